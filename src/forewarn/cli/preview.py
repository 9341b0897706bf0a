"""What would come of a command, where it is told not to do it: which events, in which order, when."""

from __future__ import annotations

from collections.abc import Iterator

import click

from forewarn.cli.connection import View
from forewarn.cli.instant import when
from forewarn.cli.invocation import Invocation
from forewarn.cli.screen import Cell, faint, strong
from forewarn.cli.wording import names

_MOST = 40  # events shown to people; programs get all

dry_run_option = click.option("--dry-run", is_flag=True, help="Tell what would happen, and change nothing.")


def show_preview(call: Invocation, view: View) -> None:
    if call.screen.as_json:
        call.screen.document(view)
        return
    call.screen.say(strong("Nothing was changed."), " This would happen:")
    for sentence in view["sentences"]:
        call.screen.say("  ", sentence)
    listed = [event for event in view["events"] if event["listed"]]
    if listed:
        call.screen.say()
        call.screen.table(
            ("wave", "kind", "VMs", "update domain", "published", "not before"), _rows(listed, view["now"])
        )
    if len(listed) > _MOST:
        call.screen.say(faint(f"and {len(listed) - _MOST} more events; --json tells all"))


def _rows(events: list[View], now: float) -> Iterator[list[Cell]]:
    for event in events[:_MOST]:
        at = when(event["published_at"], now) if event["published_at"] > now else "at once"
        yield [
            str(event["wave"]),
            str(event["kind"]),
            names(event["vms"]),
            str(event["update_domain"]),
            at,
            when(event["not_before"], now),
        ]
