"""Events: what is pending, and what becomes of it."""

from __future__ import annotations

import click
from rich.console import RenderableType
from rich.text import Text

from forewarn.cli.connection import Query, View
from forewarn.cli.following import PIPE_TICK_S, TERMINAL_TICK_S, bottom, news
from forewarn.cli.instant import clock_time
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.screen import Cell, joined, table_of
from forewarn.cli.suggestion import host_names, rollout_ids, scope_ids, vm_names
from forewarn.cli.wording import event_headers, event_row, names, status, waits, what

_NONE = "No event is pending. Ask for one: forewarn restart VM, or forewarn rollout start --all-hosts"


@click.command()
@click.option("--watch", is_flag=True, help="Stay, and show every change.")
@click.option("--all", "over_too", is_flag=True, help="Those that are over too.")
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Only those that this VM is told of.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Only those of this scope.")
@click.option("--host", metavar="HOST", shell_complete=host_names, help="Only those that hit this host, or VMs on it.")
@click.option("--rollout", metavar="ROLLOUT", shell_complete=rollout_ids, help="Only those of this rollout.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")
@served
def events(call: Invocation, watch: bool, over_too: bool, limit: int | None, **selection: str | None) -> None:
    """Show pending events."""
    query = {"all": over_too or None, "limit": limit, **selection}
    page = call.api.get("events", query=query)
    if watch:
        _watch(call, query, page)
    elif call.screen.as_json:
        call.screen.document(page)
    elif page["events"]:
        call.screen.table(event_headers(page["events"]), _rows(call, page["events"]))
    else:
        call.screen.say(_none_of([name for name in selection.values() if name], over_too=over_too))


def _none_of(selected: list[str], *, over_too: bool) -> str:
    if not selected:
        return _NONE
    return f"No event of {' and '.join(selected)} is {'known' if over_too else 'pending'}."


def _rows(call: Invocation, listed: list[View]) -> list[list[Cell]]:
    now = call.api.now()
    return [event_row(event, now, call.screen.short(event["id"])) for event in listed]


def _watch(call: Invocation, query: Query, page: View) -> None:
    """For ever: a table that keeps up on a terminal, one line per change in a pipe, one document per change in JSON."""
    tick_s = TERMINAL_TICK_S if call.screen.is_terminal else PIPE_TICK_S
    before: list[View] = []
    with bottom(call, stays=True) as place:
        while True:
            place.show(_table(call, page["events"]))
            if call.screen.as_json and (page["events"] != before or not before):
                call.screen.document(page)
            elif not call.screen.is_terminal:
                _tell_changes(call, before, page["events"])
            before, seq = page["events"], page["seq"]
            while not news(call, seq, wait_s=tick_s)["entries"] and not call.screen.is_terminal:
                pass
            page = call.api.get("events", query=query)


def _table(call: Invocation, listed: list[View]) -> RenderableType:
    if not listed:
        return Text(_NONE, style="bright_black")
    return table_of(event_headers(listed), _rows(call, listed), call.screen.out.width)


def _tell_changes(call: Invocation, before: list[View], after: list[View]) -> None:
    now = call.api.now()
    for event in changed(before, after):
        call.screen.say(_line(event, now))
    for event_id in gone(before, after):
        call.screen.say(_line(call.api.get("events", event_id), now))


def changed(before: list[View], after: list[View]) -> list[View]:
    """Those that are new, or have another status or an approval since."""
    known = {event["id"]: _state(event) for event in before}
    return [event for event in after if known.get(event["id"]) != _state(event)]


def gone(before: list[View], after: list[View]) -> list[str]:
    still = {event["id"] for event in after}
    return [event["id"] for event in before if event["id"] not in still]


def _state(event: View) -> tuple[object, ...]:
    return event["status"], event["approved_at"], event["ending"]


def _line(event: View, now: float) -> Text:
    approved = ", approved" if event["approved_at"] and event["status"] == "scheduled" else ""
    head = joined(clock_time(now, now), "  ", event["id"], "  ", status(event), approved)
    return joined(head, f"  {what(event)} of {names(event['vms'])}", _tail(waits(event, now)))


def _tail(text: str) -> str:
    return f": {text}" if text else ""
