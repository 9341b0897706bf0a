"""What users ask for their VMs: restart, redeploy, evict, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from forewarn.cli.duration import duration
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.name import name
from forewarn.cli.preview import dry_run_option, show_preview
from forewarn.cli.receipt import show_receipt, wait_for_request
from forewarn.cli.suggestion import vm_names
from forewarn.errors import Rejected

Command = Callable[..., Any]
_NO_NOTICE = "a notice of 0 s is none: leave --notice out for the usual one, or say --short-notice to rehearse without"

vms_argument = click.argument("vms", type=name, metavar="VM...", nargs=-1, required=True, shell_complete=vm_names)
wait_option = click.option("--wait", is_flag=True, help="Stay until it is over; exit 1 if it failed.")
notice_option = click.option(
    "--notice", "notice_s", type=duration, metavar="DURATION", help="Notice to give, such as 20m."
)
short_notice_option = click.option(
    "--short-notice", is_flag=True, help="Allow less notice than the kind's minimum, for rehearsal."
)


def _asking(function: Command) -> Command:
    for option in (wait_option, dry_run_option, short_notice_option, notice_option, vms_argument):
        function = option(function)
    return function


def ask(
    call: Invocation,
    what: str,
    vms: tuple[str, ...],
    *,
    wait: bool,
    notice_s: float | None = None,
    short_notice: bool = False,
    dry_run: bool = False,
) -> int:
    """Send the request, say what becomes of it, and wait for that if told to."""
    if notice_s == 0 and not short_notice:
        raise Rejected(_NO_NOTICE)
    if short_notice and notice_s is None:
        raise Rejected("a short notice needs a length: say how long with --notice")
    body: dict[str, object] = {"ask": what, "vms": list(vms)}
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
@_asking
@served
def restart(call: Invocation, vms: tuple[str, ...], **options: Any) -> int:
    """Restart VMs, with notice."""
    return ask(call, "restart", vms, **options)


@click.command()
@_asking
@served
def redeploy(call: Invocation, vms: tuple[str, ...], **options: Any) -> int:
    """Move VMs to another host, with notice."""
    return ask(call, "redeploy", vms, **options)


@click.command()
@_asking
@served
def evict(call: Invocation, vms: tuple[str, ...], **options: Any) -> int:
    """Evict Spot VMs, with 30 seconds of notice."""
    return ask(call, "evict", vms, **options)


@click.command()
@click.option("--scale-in", is_flag=True, help="As a scale-in by the platform, not by their user.")
@_asking
@served
def delete(call: Invocation, vms: tuple[str, ...], scale_in: bool, **options: Any) -> int:
    """Delete VMs, with notice where that is enabled."""
    return ask(call, "scale-in" if scale_in else "delete", vms, **options)
