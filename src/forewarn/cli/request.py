"""Commands that request maintenance of VMs.

restart, redeploy, evict, delete, power and perform-maintenance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from forewarn.cli.completion import vm_names
from forewarn.cli.invocation import Invocation, duration, non_empty_name, service_command
from forewarn.cli.request_output import (
    preview_options,
    show_events,
    show_preview,
    show_receipt,
    wait_for_request,
)
from forewarn.errors import Rejected

CommandCallback = Callable[..., Any]
_ZERO_NOTICE = (
    "a notice of 0 s is no notice: omit --notice for the default, or add --short-notice to rehearse without notice"
)

vms_argument = click.argument(
    "vms", type=non_empty_name, metavar="VM...", nargs=-1, required=True, shell_complete=vm_names
)
wait_option = click.option(
    "--wait/--no-wait", default=False, help="Wait until it is over; exit 1 unless it succeeded.  [default: no-wait]"
)
notice_option = click.option(
    "--notice", "notice_s", type=duration, metavar="DURATION", help="Give this much notice, such as 20m."
)
short_notice_option = click.option(
    "--short-notice", is_flag=True, help="Allow a shorter notice than the minimum (testing only)."
)


def _request_options(function: CommandCallback) -> CommandCallback:
    for option in (wait_option, preview_options, short_notice_option, notice_option, vms_argument):
        function = option(function)
    return function


def _send_maintenance_request(
    call: Invocation,
    what: str,
    vms: tuple[str, ...],
    *,
    wait: bool,
    notice_s: float | None = None,
    short_notice: bool = False,
    dry_run: bool = False,
) -> int:
    if notice_s == 0 and not short_notice:
        raise Rejected(_ZERO_NOTICE)
    if short_notice and notice_s is None:
        raise Rejected("--short-notice needs a length: give it with --notice")
    body: dict[str, object] = {"operation": what, "vms": list(vms)}
    if notice_s is not None:
        body["notice_s"] = notice_s
    if short_notice:
        body["short_notice"] = True
    if dry_run:
        show_preview(call, call.api.post("requests", "preview", body=body))
        return 0
    answer = call.api.post("requests", body=body)
    if wait:
        return wait_for_request(call, answer)
    show_receipt(call, answer)
    return 0


@click.command()
@_request_options
@service_command
def restart(call: Invocation, vms: tuple[str, ...], **options: Any) -> int:
    """Restart VMs, with notice where that is enabled.

    Where no VM of the scope has polled for a day, scheduled events are disabled, and VMs restart at once. A production
    service shows which VMs these are, and asks first.
    """
    return _send_maintenance_request(call, "restart", vms, **options)


@click.command()
@_request_options
@service_command
def redeploy(call: Invocation, vms: tuple[str, ...], **options: Any) -> int:
    """Move VMs to another host, with notice where that is enabled.

    Where no VM of the scope has polled for a day, scheduled events are disabled, and VMs move at once. A production
    service shows which VMs these are, and asks first.
    """
    return _send_maintenance_request(call, "redeploy", vms, **options)


@click.command()
@click.option("--recommend", is_flag=True, help="Only recommend to rebalance: no VM is evicted.")
@_request_options
@service_command
def evict(call: Invocation, vms: tuple[str, ...], recommend: bool, **options: Any) -> int:
    """Evict Spot VMs, with 30 seconds of notice.

    A production service shows what would happen, and asks first.
    """
    return _send_maintenance_request(call, "recommend-rebalance" if recommend else "evict", vms, **options)


@click.command()
@click.option("--scale-in", is_flag=True, help="Delete as a scale-in by the platform, not by the user.")
@_request_options
@service_command
def delete(call: Invocation, vms: tuple[str, ...], scale_in: bool, **options: Any) -> int:
    """Delete VMs, with notice where that is enabled.

    VMs without terminate notification, and VMs in a scope in which no VM has polled for a day, are deleted at once. A
    production service shows what would happen, and asks first.
    """
    return _send_maintenance_request(call, "scale-in" if scale_in else "delete", vms, **options)


_POWER_ACTIONS = {
    "off": "power-off",
    "start": "start",
    "deallocate": "deallocate",
    "reapply": "reapply",
    "reimage": "reimage",
}


def _complete_power_arguments(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    actions = [CompletionItem(action) for action in _POWER_ACTIONS if action.startswith(incomplete)]
    return [*vm_names(ctx, param, incomplete), *actions]


@click.command()
@click.argument(
    "words",
    type=non_empty_name,
    metavar=f"VM... {'|'.join(_POWER_ACTIONS)}",
    nargs=-1,
    required=True,
    shell_complete=_complete_power_arguments,
)
@preview_options
@wait_option
@service_command
def power(call: Invocation, words: tuple[str, ...], wait: bool, dry_run: bool) -> int:
    """Turn VMs off or on, deallocate, reapply, reimage.

    A production service asks before it interrupts a VM.
    """
    *vms, what = words
    if not vms or what not in _POWER_ACTIONS:
        raise Rejected(f"give VMs, then one of {', '.join(_POWER_ACTIONS)}: forewarn power {_corrected(words)}")
    return _send_maintenance_request(call, _POWER_ACTIONS[what], tuple(vms), wait=wait, dry_run=dry_run)


def _corrected(words: tuple[str, ...]) -> str:
    """The arguments that were probably meant."""
    vm = next((argument for argument in words if argument not in _POWER_ACTIONS), "VM")
    return f"{vm} {next((argument for argument in words if argument in _POWER_ACTIONS), 'start')}"


@click.command("perform-maintenance")
@click.argument("vm", metavar="VM", shell_complete=vm_names)
@wait_option
@service_command
def perform_maintenance(call: Invocation, vm: str, wait: bool) -> int:
    """Start a VM's pending platform maintenance now."""
    answer = call.api.post("vms", vm, "perform-maintenance")
    if wait:
        return wait_for_request(call, answer)
    if call.output.as_json:
        call.output.print_json(answer)
    else:
        call.output.print_line(f"The pending maintenance of {vm} may start now.")
        show_events(call, answer)
    return 0
