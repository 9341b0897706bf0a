"""Commands for access: clients with their secrets, and the roles of clients, VMs and external users."""

from __future__ import annotations

from pathlib import Path

import click

from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import client_ids, grant_ids, vm_names
from forewarn.cli.credentials import write_private_file
from forewarn.cli.formatting import count_noun, describe_resource
from forewarn.cli.invocation import CommandFunction, Invocation, non_empty_name, resource_group_id, service_command
from forewarn.cli.output import bold, dim
from forewarn.errors import Rejected


@click.group()
def client() -> None:
    """Programs that sign in with a secret of their own."""


def _secret_file_option(function: CommandFunction) -> CommandFunction:
    return click.option(
        "--secret-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the secret to this file, mode 0600, instead of showing it.",
    )(function)


@client.command()
@click.argument("client_id", type=non_empty_name, required=False, metavar="[ID]")
@click.option("--name", "called", default="", metavar="TEXT", help="For people.")
@_secret_file_option
@service_command
def add(call: Invocation, client_id: str | None, called: str, secret_file: Path | None) -> None:
    """Make a client, and show its secret: now or never. Without an ID it gets a GUID."""
    if secret_file is not None and secret_file.exists():
        raise Rejected(f"{str(secret_file)!r} exists already and is not overwritten: give another --secret-file")
    _require_parent_directory(secret_file)
    made = call.api.post("access", "clients", body={"id": client_id or "", "name": called})
    _print_secret(call, made, secret_file, "made")
    if not call.output.as_json:
        use = f"forewarn access grant Reader --to {made['id']} --everything"
        call.output.print_hints([(use, "it may do nothing before a role is granted")])


@client.command()
@click.argument("client_id", type=non_empty_name, metavar="ID", shell_complete=client_ids)
@_secret_file_option
@service_command
def renew(call: Invocation, client_id: str, secret_file: Path | None) -> None:
    """Give a client another secret; the old one counts no longer."""
    _require_parent_directory(secret_file)
    kept = secret_file or _local_secret_file(call, client_id)
    made = call.api.post("access", "clients", client_id, "secret")
    _print_secret(call, made, kept, "given another secret")


@client.command()
@click.argument("client_id", type=non_empty_name, metavar="ID", shell_complete=client_ids)
@service_command
def remove(call: Invocation, client_id: str) -> None:
    """Remove a client, and what was granted to it."""
    gone = call.api.delete("access", "clients", client_id)
    if call.output.as_json:
        call.output.print_json(gone)
    else:
        lost = f", and {count_noun(len(gone['grants']), 'grant')} with it" if gone["grants"] else ""
        call.output.print_line(f"Client {gone['id']} is removed{lost}.")


def _local_secret_file(call: Invocation, client_id: str) -> Path | None:
    """The file in which `forewarn env` and others look for this client's secret, which must not go stale."""
    if call.remote_profile is not None:
        return None
    console = call.api.get("service").get("console") or {}
    path = Path(console.get("admin_secret") or "")
    return path if client_id.casefold() == console.get("client_id") and path.is_file() else None


def _require_parent_directory(secret_file: Path | None) -> None:
    """Before there is a secret that could be lost."""
    if secret_file is not None and not secret_file.absolute().parent.is_dir():
        raise Rejected(f"{str(secret_file)!r} lies in no directory that there is: make it, or give another file")


def _print_secret(call: Invocation, made: JsonObject, secret_file: Path | None, what: str) -> None:
    view = dict(made)
    if secret_file is not None:
        write_private_file(secret_file, f"{view.pop('secret')}\n")
        view["secret_file"] = str(secret_file.absolute())
    if call.output.as_json:
        call.output.print_json(view)
        return
    call.output.print_line(f"Client {view['id']} is {what}.")
    shown = ("its secret", bold(view["secret"])) if secret_file is None else ("its secret is in", str(secret_file))
    call.output.print_facts([shown])
    if secret_file is None:
        call.output.print_line(dim("  Keep it now: nobody can show it again."))


ROLES = ("Reader", "Operator", "ScheduledEventContributor", "Platform", "Administrator")
_NEEDS_ONE_TO = "say to whom: one of --to CLIENT, --to-vm VM or --to-external ID"
_NEEDS_ONE_OVER = "say over what: one of --over RESOURCE, --over-vm VM, --over-group GROUP or --everything"


@click.group()
def access() -> None:
    """Show and change who may do what."""


access.add_command(client)


@access.command()
@service_command
def show(call: Invocation) -> None:
    """Show clients and grants."""
    view = call.api.get("access")
    if call.output.as_json:
        call.output.print_json(view)
        return
    if view["clients"]:
        call.output.print_table(
            ("client", "name", "made by"), [(bold(c["id"]), c["name"], c["by"]) for c in view["clients"]]
        )
    else:
        call.output.print_line("There is no client. `forewarn access client add ID` makes one.")
    if view["grants"]:
        call.output.print_line()
        rows = [
            (bold(call.output.short_id(g["id"])), g["role"], g["to_name"], describe_resource(g["over"]))
            for g in view["grants"]
        ]
        call.output.print_table(("grant", "role", "to", "over"), rows)


@access.command()
@click.argument("role", type=click.Choice(ROLES, case_sensitive=False), metavar="ROLE")
@click.option("--to", "client_id", metavar="CLIENT", shell_complete=client_ids, help="A client, by its id.")
@click.option("--to-vm", metavar="VM", shell_complete=vm_names, help="What runs in this VM, by its managed identity.")
@click.option("--to-external", metavar="ID", help="Somebody whom an issuer outside knows by this id.")
@click.option("--over", "resource", metavar="RESOURCE", help="A resource id, and all that lies within it.")
@click.option("--over-vm", metavar="VM", shell_complete=vm_names, help="A VM, or a scale set, by its name.")
@click.option("--over-group", metavar="GROUP", help="A resource group.")
@click.option("--everything", is_flag=True, help="The whole service.")
@service_command
def grant(
    call: Invocation,
    role: str,
    client_id: str | None,
    to_vm: str | None,
    to_external: str | None,
    resource: str | None,
    over_vm: str | None,
    over_group: str | None,
    everything: bool,
) -> None:
    """Grant a role.

    \b
    Reader                     sees VMs and their events
    Operator                   and asks for maintenance of them
    ScheduledEventContributor  sees, and approves events
    Platform                   sees, and runs hosts, rollouts, faults, the clock
    Administrator              may do everything
    """
    to = _exactly_one(
        _NEEDS_ONE_TO,
        _with_prefix("client:", client_id),
        _with_prefix("vm:", to_vm),
        _with_prefix("oidc:", to_external),
    )
    place = _exactly_one(_NEEDS_ONE_OVER, resource, over_vm, over_group, "/" if everything else None)
    place = place if over_group is None else resource_group_id(call, over_group)
    granted = call.api.post("access", "grants", body={"role": role, "to": to, "over": place})
    if call.output.as_json:
        call.output.print_json(granted)
    else:
        call.output.print_line(
            f"{granted['to_name']} has the role {granted['role']} over {describe_resource(granted['over'])}."
        )
        call.output.print_hints([(f"forewarn access revoke {call.output.short_id(granted['id'])}", "take it back")])


def _with_prefix(sort: str, value: str | None) -> str | None:
    return None if value is None else f"{sort}{value}"


def _exactly_one(otherwise: str, *given: str | None) -> str:
    """The one that was given."""
    found = [value for value in given if value is not None]
    if len(found) != 1:
        raise Rejected(otherwise)
    return found[0]


@access.command()
@click.argument("grant_id", type=non_empty_name, metavar="GRANT", shell_complete=grant_ids)
@service_command
def revoke(call: Invocation, grant_id: str) -> None:
    """Take a role back."""
    gone = call.api.delete("access", "grants", grant_id)
    if call.output.as_json:
        call.output.print_json(gone)
    else:
        call.output.print_line(
            f"{gone['to_name']} no longer has the role {gone['role']} over {describe_resource(gone['over'])}."
        )
