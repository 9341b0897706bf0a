"""Who may do what: the roles granted to clients, to VMs, and to people whom an issuer outside knows."""

from __future__ import annotations

import click

from forewarn.cli.credential import client
from forewarn.cli.group import group_id
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.name import name
from forewarn.cli.screen import strong
from forewarn.cli.suggestion import client_ids, grant_ids, vm_names
from forewarn.cli.wording import over
from forewarn.errors import Rejected

ROLES = ("Reader", "Operator", "ScheduledEventContributor", "Platform", "Administrator")
_ONE_TO = "say to whom: one of --to CLIENT, --to-vm VM or --to-external ID"
_ONE_OVER = "say over what: one of --over RESOURCE, --over-vm VM, --over-group GROUP or --everything"


@click.group()
def access() -> None:
    """Show and change who may do what."""


access.add_command(client)


@access.command()
@served
def show(call: Invocation) -> None:
    """Show clients and grants."""
    view = call.api.get("access")
    if call.screen.as_json:
        call.screen.document(view)
        return
    if view["clients"]:
        call.screen.table(
            ("client", "name", "made by"), [(strong(c["id"]), c["name"], c["by"]) for c in view["clients"]]
        )
    else:
        call.screen.say("There is no client. `forewarn access client add ID` makes one.")
    if view["grants"]:
        call.screen.say()
        rows = [(strong(call.screen.short(g["id"])), g["role"], g["to_name"], over(g["over"])) for g in view["grants"]]
        call.screen.table(("grant", "role", "to", "over"), rows)


@access.command()
@click.argument("role", type=click.Choice(ROLES, case_sensitive=False), metavar="ROLE")
@click.option("--to", "client_id", metavar="CLIENT", shell_complete=client_ids, help="A client, by its id.")
@click.option("--to-vm", metavar="VM", shell_complete=vm_names, help="What runs in this VM, by its managed identity.")
@click.option("--to-external", metavar="ID", help="Somebody whom an issuer outside knows by this id.")
@click.option("--over", "resource", metavar="RESOURCE", help="A resource id, and all that lies within it.")
@click.option("--over-vm", metavar="VM", shell_complete=vm_names, help="A VM, or a scale set, by its name.")
@click.option("--over-group", metavar="GROUP", help="A resource group.")
@click.option("--everything", is_flag=True, help="The whole service.")
@served
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
    to = _only(_ONE_TO, _prefixed("client:", client_id), _prefixed("vm:", to_vm), _prefixed("oidc:", to_external))
    place = _only(_ONE_OVER, resource, over_vm, over_group, "/" if everything else None)
    place = place if over_group is None else group_id(call, over_group)
    granted = call.api.post("access", "grants", body={"role": role, "to": to, "over": place})
    if call.screen.as_json:
        call.screen.document(granted)
    else:
        call.screen.say(f"{granted['to_name']} has the role {granted['role']} over {over(granted['over'])}.")
        call.screen.hints([(f"forewarn access revoke {call.screen.short(granted['id'])}", "take it back")])


def _prefixed(sort: str, value: str | None) -> str | None:
    return None if value is None else f"{sort}{value}"


def _only(otherwise: str, *given: str | None) -> str:
    """The one that was given."""
    found = [value for value in given if value is not None]
    if len(found) != 1:
        raise Rejected(otherwise)
    return found[0]


@access.command()
@click.argument("grant_id", type=name, metavar="GRANT", shell_complete=grant_ids)
@served
def revoke(call: Invocation, grant_id: str) -> None:
    """Take a role back."""
    gone = call.api.delete("access", "grants", grant_id)
    if call.screen.as_json:
        call.screen.document(gone)
    else:
        call.screen.say(f"{gone['to_name']} no longer has the role {gone['role']} over {over(gone['over'])}.")
