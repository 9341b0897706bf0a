"""What happens at once, with no event of its own: power, and starting maintenance that is pending anyway."""

from __future__ import annotations

import click

from forewarn.cli.invocation import Invocation, served
from forewarn.cli.receipt import show_events, wait_for_events
from forewarn.cli.request import ask, vms_argument, wait_option
from forewarn.cli.suggestion import vm_names

_ASKS = {
    "off": "power-off",
    "start": "start",
    "deallocate": "deallocate",
    "reapply": "reapply",
    "reimage": "reimage",
}


@click.command()
@vms_argument
@click.argument("what", type=click.Choice(list(_ASKS)), metavar="|".join(_ASKS))
@wait_option
@served
def power(call: Invocation, vms: tuple[str, ...], what: str, wait: bool) -> int:
    """Turn VMs off or on, deallocate, reapply, reimage."""
    return ask(call, _ASKS[what], vms, wait=wait)


@click.command("perform-maintenance")
@click.argument("vm", metavar="VM", shell_complete=vm_names)
@wait_option
@served
def perform_maintenance(call: Invocation, vm: str, wait: bool) -> int:
    """Start a VM's pending platform maintenance now."""
    answer = call.api.post("vms", vm, "perform-maintenance")
    if wait:
        return wait_for_events(call, [event["id"] for event in answer["events"]])
    if call.screen.as_json:
        call.screen.document(answer)
    else:
        call.screen.say(f"The pending maintenance of {vm} may start now.")
        show_events(call, answer["events"])
    return 0
