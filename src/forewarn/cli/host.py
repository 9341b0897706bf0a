"""Hosts: hardware that is about to fail, has failed, or is well again."""

from __future__ import annotations

import click

from forewarn.cli.connection import View
from forewarn.cli.duration import duration
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.preview import dry_run_option, show_preview
from forewarn.cli.receipt import show_events, wait_for_request
from forewarn.cli.request import short_notice_option, wait_option
from forewarn.cli.screen import strong, word
from forewarn.cli.suggestion import host_names

host_argument = click.argument("host", metavar="HOST", shell_complete=host_names)


@click.command()
@host_argument
@click.option("--in", "in_s", type=duration, default="7d", show_default=True, metavar="DURATION", help="When.")
@short_notice_option
@dry_run_option
@wait_option
@served
def degrade(call: Invocation, host: str, in_s: float, short_notice: bool, dry_run: bool, wait: bool) -> int:
    """Predict a host's failure: each of its VMs is told to move."""
    body: dict[str, object] = {"in_s": in_s}
    if short_notice:
        body["short_notice"] = True
    if dry_run:
        show_preview(call, call.api.post("hosts", host, "degrade", "preview", body=body))
        return 0
    return _answered(call, host, "is predicted to fail", call.api.post("hosts", host, "degrade", body=body), wait)


@click.command()
@host_argument
@dry_run_option
@wait_option
@served
def fail(call: Invocation, host: str, dry_run: bool, wait: bool) -> int:
    """Let a host fail now: its VMs start elsewhere, with no notice."""
    if dry_run:
        show_preview(call, call.api.post("hosts", host, "fail", "preview"))
        return 0
    return _answered(call, host, "has failed", call.api.post("hosts", host, "fail"), wait)


def _answered(call: Invocation, host: str, what: str, answer: View, wait: bool) -> int:
    if wait:
        return wait_for_request(call, answer)
    if call.screen.as_json:
        call.screen.document(answer)
    elif answer["events"]:
        call.screen.say(strong(f"Host {host} {what}."))
        show_events(call, answer["events"])
    else:
        call.screen.say(strong(f"Host {host} {what}"), ", and no VM is hit by that yet.")
    return 0


@click.command()
@host_argument
@served
def repair(call: Invocation, host: str) -> None:
    """Make a host healthy again."""
    view = call.api.post("hosts", host, "repair")
    if call.screen.as_json:
        call.screen.document(view)
    else:
        call.screen.say(f"Host {view['name']} is ", word(view["health"]), ".")
