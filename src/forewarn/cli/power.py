"""What happens at once, with no event of its own: power, and starting maintenance that is pending anyway."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from forewarn.cli.invocation import Invocation, served
from forewarn.cli.name import name
from forewarn.cli.preview import dry_run_option
from forewarn.cli.receipt import show_events, wait_for_events
from forewarn.cli.request import ask, wait_option
from forewarn.cli.suggestion import vm_names
from forewarn.errors import Rejected

_ASKS = {
    "off": "power-off",
    "start": "start",
    "deallocate": "deallocate",
    "reapply": "reapply",
    "reimage": "reimage",
}


def _words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    asks = [CompletionItem(word) for word in _ASKS if word.startswith(incomplete)]
    return [*vm_names(ctx, param, incomplete), *asks]


@click.command()
@click.argument("words", type=name, metavar=f"VM... {'|'.join(_ASKS)}", nargs=-1, required=True, shell_complete=_words)
@dry_run_option
@wait_option
@served
def power(call: Invocation, words: tuple[str, ...], wait: bool, dry_run: bool) -> int:
    """Turn VMs off or on, deallocate, reapply, reimage."""
    *vms, what = words
    if not vms or what not in _ASKS:
        raise Rejected(f"say which VMs, then one of {', '.join(_ASKS)}: forewarn power {_mended(words)}")
    return ask(call, _ASKS[what], tuple(vms), wait=wait, dry_run=dry_run)


def _mended(words: tuple[str, ...]) -> str:
    """What was probably meant."""
    vm = next((word for word in words if word not in _ASKS), "VM")
    return f"{vm} {next((word for word in words if word in _ASKS), 'start')}"


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
