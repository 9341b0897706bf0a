"""Commands for access: clients with their secrets, and the roles of clients, VMs and external users."""

from __future__ import annotations

from pathlib import Path

import click

from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import client_ids, grant_ids, vm_names
from forewarn.cli.credentials import write_private_file
from forewarn.cli.invocation import CommandFunction, Invocation, non_empty_name, service_command
from forewarn.cli.output import bold, count_noun, describe_resource, dim
from forewarn.errors import Rejected


@click.group()
def client() -> None:
    """Manage the clients: programs that sign in with their own secret."""


def _secret_file_option(function: CommandFunction) -> CommandFunction:
    return click.option(
        "--secret-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the secret to this file, mode 0600, instead of showing it.",
    )(function)


@client.command()
@click.argument("client_id", type=non_empty_name, required=False, metavar="[ID]")
@click.option("--name", "called", default="", metavar="TEXT", help="Give the client this display name.")
@_secret_file_option
@service_command
def add(call: Invocation, client_id: str | None, called: str, secret_file: Path | None) -> None:
    """Create a client, and show its secret once. Without an ID the client gets a GUID."""
    if secret_file is not None and secret_file.exists():
        raise Rejected(f"{str(secret_file)!r} exists already and is not overwritten: give another --secret-file")
    _require_parent_directory(secret_file)
    created = call.api.post("access", "clients", body={"id": client_id or "", "name": called})
    _print_secret(call, created, secret_file, "created")
    if not call.output.as_json:
        command = f"forewarn access grant Reader --to {created['id']} --everything"
        call.output.print_hints([(command, "grant it a role; without one it may do nothing")])


@client.command()
@click.argument("client_id", type=non_empty_name, metavar="ID", shell_complete=client_ids)
@_secret_file_option
@service_command
def renew(call: Invocation, client_id: str, secret_file: Path | None) -> None:
    """Give a client a new secret; the old one is no longer valid."""
    _require_parent_directory(secret_file)
    renewed = call.api.post("access", "clients", client_id, "secret")
    _print_secret(call, renewed, secret_file or _local_secret_file(call, renewed), "given a new secret")


@client.command()
@click.argument("client_id", type=non_empty_name, metavar="ID", shell_complete=client_ids)
@service_command
def remove(call: Invocation, client_id: str) -> None:
    """Remove a client, and its grants."""
    removed = call.api.delete("access", "clients", client_id)
    if call.output.as_json:
        call.output.print_json(removed)
    else:
        grants = f", and {count_noun(len(removed['grants']), 'grant')} with it" if removed["grants"] else ""
        call.output.print_line(f"Client {removed['id']} is removed{grants}.")


def _local_secret_file(call: Invocation, renewed: JsonObject) -> Path | None:
    """The local service's file with this client's secret, which `forewarn env` reads; None if it has none."""
    path = Path(renewed["secret_file"])
    return path if call.remote_profile is None and path.is_file() else None


def _require_parent_directory(secret_file: Path | None) -> None:
    """Raise Rejected if the file's directory does not exist, before a secret is created."""
    if secret_file is not None and not secret_file.absolute().parent.is_dir():
        raise Rejected(f"the directory of {str(secret_file)!r} does not exist: create it, or give another file")


def _print_secret(call: Invocation, answer: JsonObject, secret_file: Path | None, what: str) -> None:
    view = {name: value for name, value in answer.items() if name != "secret_file"}
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
        call.output.print_line(dim("  Store it now: it cannot be shown again."))


ROLES = ("Reader", "Operator", "ScheduledEventContributor", "Platform", "Administrator")
_NEEDS_ONE_TO = "no grantee is given, or several: give one of --to CLIENT, --to-vm VM or --to-external ID"
_NEEDS_ONE_OVER = (
    "no resource is given, or several: give one of --over RESOURCE, --over-vm VM, --over-group GROUP or --everything"
)


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
            ("client", "name", "created by"), [(bold(c["id"]), c["name"], c["created_by"]) for c in view["clients"]]
        )
    else:
        call.output.print_line("There are no clients. Create one with `forewarn access client add ID`.")
    if view["grants"]:
        call.output.print_line()
        rows = [
            (bold(call.output.short_id(g["id"])), g["role"], g["principal_name"], describe_resource(g["resource"]))
            for g in view["grants"]
        ]
        call.output.print_table(("grant", "role", "to", "over"), rows)


@access.command()
@click.argument("role", type=click.Choice(ROLES, case_sensitive=False), metavar="ROLE")
@click.option("--to", "client_id", metavar="CLIENT", shell_complete=client_ids, help="Grant to this client.")
@click.option("--to-vm", metavar="VM", shell_complete=vm_names, help="Grant to this VM's managed identity.")
@click.option("--to-external", metavar="ID", help="Grant to the external issuer's user with this id.")
@click.option("--over", "resource", metavar="RESOURCE", help="Grant over this resource id and everything in it.")
@click.option("--over-vm", metavar="VM", shell_complete=vm_names, help="Grant over this VM or scale set.")
@click.option("--over-group", metavar="GROUP", help="Grant over this resource group.")
@click.option("--everything", is_flag=True, help="Grant over the whole service.")
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
    Reader                     view VMs and their events
    Operator                   view, and request maintenance
    ScheduledEventContributor  view, and approve events
    Platform                   view, and operate hosts, rollouts, faults and the clock
    Administrator              everything
    """
    to = _exactly_one(
        _NEEDS_ONE_TO,
        _with_prefix("client:", client_id),
        _with_prefix("vm:", to_vm),
        _with_prefix("oidc:", to_external),
    )
    over = _exactly_one(_NEEDS_ONE_OVER, resource, over_vm, over_group, "/" if everything else None)
    over = over if over_group is None else f"group:{over}"
    granted = call.api.post("access", "grants", body={"role": role, "principal": to, "resource": over})
    if call.output.as_json:
        call.output.print_json(granted)
    else:
        call.output.print_line(
            f"{granted['principal_name']} has the role {granted['role']} over {describe_resource(granted['resource'])}."
        )
        call.output.print_hints([(f"forewarn access revoke {call.output.short_id(granted['id'])}", "revoke it")])


def _with_prefix(prefix: str, value: str | None) -> str | None:
    return None if value is None else f"{prefix}{value}"


def _exactly_one(message: str, *given: str | None) -> str:
    found = [value for value in given if value is not None]
    if len(found) != 1:
        raise Rejected(message)
    return found[0]


@access.command()
@click.argument("grant_id", type=non_empty_name, metavar="GRANT", shell_complete=grant_ids)
@service_command
def revoke(call: Invocation, grant_id: str) -> None:
    """Revoke a granted role."""
    revoked = call.api.delete("access", "grants", grant_id)
    if call.output.as_json:
        call.output.print_json(revoked)
    else:
        call.output.print_line(
            f"{revoked['principal_name']} no longer has the role {revoked['role']} "
            f"over {describe_resource(revoked['resource'])}."
        )
