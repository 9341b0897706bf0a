"""Commands for hosts: predict a failure, make a host fail, confirm that it is down, repair it."""

from __future__ import annotations

import click

from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import host_names
from forewarn.cli.invocation import Invocation, duration, service_command
from forewarn.cli.output import bold, state_text
from forewarn.cli.request import short_notice_option, wait_option
from forewarn.cli.request_output import preview_options, show_events, show_preview, wait_for_request

host_argument = click.argument("host", metavar="HOST", shell_complete=host_names)


@click.command()
@host_argument
@click.option(
    "--in", "in_s", type=duration, default="7d", show_default=True, metavar="DURATION", help="Fail after this time."
)
@short_notice_option
@preview_options
@wait_option
@service_command
def degrade(call: Invocation, host: str, in_s: float, short_notice: bool, dry_run: bool, wait: bool) -> int:
    """Predict a host's failure: each of its VMs gets a Redeploy event."""
    body: dict[str, object] = {"in_s": in_s}
    if short_notice:
        body["short_notice"] = True
    if dry_run:
        show_preview(call, call.api.post("hosts", host, "degrade", "preview", body=body))
        return 0
    return _print_answer(call, host, "is predicted to fail", call.api.post("hosts", host, "degrade", body=body), wait)


@click.command()
@host_argument
@preview_options
@wait_option
@service_command
def fail(call: Invocation, host: str, dry_run: bool, wait: bool) -> int:
    """Make a host fail now: its VMs are redeployed with no notice.

    A production service shows which VMs these are, and asks first.
    """
    if dry_run:
        show_preview(call, call.api.post("hosts", host, "fail", "preview"))
        return 0
    return _print_answer(call, host, "has failed", call.api.post("hosts", host, "fail"), wait)


def _print_answer(call: Invocation, host: str, what: str, answer: JsonObject, wait: bool) -> int:
    if wait:
        return wait_for_request(call, answer)
    if call.output.as_json:
        call.output.print_json(answer)
    elif answer["events"]:
        call.output.print_line(bold(f"Host {host} {what}."))
        show_events(call, answer)
    else:
        call.output.print_line(bold(f"Host {host} {what}"), "; no VM is affected yet.")
    return 0


@click.command("confirm-down")
@host_argument
@preview_options
@service_command
def confirm_down(call: Invocation, host: str, dry_run: bool) -> None:
    """Confirm that a host is down: its VMs may start elsewhere.

    Use it for a host that does not answer, and only if you know that it is off: a VM that still runs there would
    run twice and damage its disks. `forewarn repair` takes it back.
    """
    if dry_run:
        show_preview(call, call.api.post("hosts", host, "confirm-down", "preview"))
        return
    view = call.api.post("hosts", host, "confirm-down")
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_line(f"Host {view['name']} is confirmed down: its VMs may be started elsewhere.")


@click.command()
@host_argument
@service_command
def repair(call: Invocation, host: str) -> None:
    """Make a host healthy again."""
    view = call.api.post("hosts", host, "repair")
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_line(f"Host {view['name']} is ", state_text(view["health"]), ".")
