"""Commands for events: list or watch them, approve or withdraw pending ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import click
from rich.console import RenderableType
from rich.text import Text

from forewarn.cli.api_client import JsonObject, QueryParameters, error_code
from forewarn.cli.completion import event_ids, host_names, rollout_ids, scope_ids, vm_names
from forewarn.cli.follow import PIPE_INTERVAL_S, TERMINAL_INTERVAL_S, live_area, wait_for_entries
from forewarn.cli.formatting import (
    clock_time,
    count_noun,
    event_headers,
    event_kind,
    event_row,
    join_names,
    status_text,
    waiting_reason,
)
from forewarn.cli.invocation import CommandFunction, Invocation, non_empty_name, service_command
from forewarn.cli.output import Cell, build_table, dim, join_text
from forewarn.cli.request_output import show_events
from forewarn.errors import Conflict, ForewarnError, Rejected

_NO_EVENTS = "No event is pending. Request one: forewarn restart VM, or forewarn rollout start --all-hosts"


@click.command()
@click.option("--watch", is_flag=True, help="Keep running, and show every change.")
@click.option("--all", "over_too", is_flag=True, help="Include events that are over.")
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Show only events that this VM sees.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Show only events of this scope.")
@click.option("--host", metavar="HOST", shell_complete=host_names, help="Show only events of this host or its VMs.")
@click.option("--rollout", metavar="ROLLOUT", shell_complete=rollout_ids, help="Show only events of this rollout.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Show at most N events.")
@service_command
def events(call: Invocation, watch: bool, over_too: bool, limit: int | None, **selection: str | None) -> None:
    """Show pending events."""
    query = {"all": over_too or None, "limit": limit, **selection}
    page = call.api.get("events", query=query)
    if watch:
        _watch_events(call, query, page)
    elif call.output.as_json:
        call.output.print_json(page)
    elif page["events"]:
        call.output.print_table(event_headers(page["events"]), _event_rows(call, page["events"]))
    else:
        call.output.print_line(_no_events_text([name for name in selection.values() if name], over_too=over_too))


def _no_events_text(selected: list[str], *, over_too: bool) -> str:
    if not selected:
        return _NO_EVENTS
    return f"No event of {' and '.join(selected)} is {'known' if over_too else 'pending'}."


def _event_rows(call: Invocation, listed: list[JsonObject]) -> list[list[Cell]]:
    now = call.api.now()
    return [event_row(event, now, call.output.short_id(event["id"])) for event in listed]


def _watch_events(call: Invocation, query: QueryParameters, page: JsonObject) -> None:
    """Print changes until interrupted: a live table, lines in a pipe, or JSON pages."""
    interval_s = TERMINAL_INTERVAL_S if call.output.is_terminal else PIPE_INTERVAL_S
    before: list[JsonObject] = []
    with live_area(call, keep_visible=True) as area:
        while True:
            area.show(_event_table(call, page["events"]))
            if call.output.as_json and (page["events"] != before or not before):
                call.output.print_json(page)
            elif not call.output.is_terminal:
                _print_changes(call, before, page["events"])
            before, seq = page["events"], page["seq"]
            while not wait_for_entries(call, seq, wait_s=interval_s)["entries"] and not call.output.is_terminal:
                pass
            page = call.api.get("events", query=query)


def _event_table(call: Invocation, listed: list[JsonObject]) -> RenderableType:
    if not listed:
        return Text(_NO_EVENTS, style="bright_black")
    return build_table(event_headers(listed), _event_rows(call, listed), call.output.stdout.width)


def _print_changes(call: Invocation, before: list[JsonObject], after: list[JsonObject]) -> None:
    now = call.api.now()
    for event in changed_events(before, after):
        call.output.print_line(_event_line(event, now))
    for event_id in removed_event_ids(before, after):
        call.output.print_line(_event_line(call.api.get("events", event_id), now))


def changed_events(before: list[JsonObject], after: list[JsonObject]) -> list[JsonObject]:
    """The events of `after`, in its order, that are new or whose status, approval or ending changed."""
    known = {event["id"]: _comparable_state(event) for event in before}
    return [event for event in after if known.get(event["id"]) != _comparable_state(event)]


def removed_event_ids(before: list[JsonObject], after: list[JsonObject]) -> list[str]:
    """The ids of events that are in `before` but not in `after`, in the order of `before`."""
    remaining = {event["id"] for event in after}
    return [event["id"] for event in before if event["id"] not in remaining]


def _comparable_state(event: JsonObject) -> tuple[object, ...]:
    return event["status"], event["approved_at"], event["ending"]


def _event_line(event: JsonObject, now: float) -> Text:
    approved = ", approved" if event["approved_at"] and event["status"] == "scheduled" else ""
    head = join_text(clock_time(now, now), "  ", event["id"], "  ", status_text(event), approved)
    return join_text(
        head, f"  {event_kind(event)} of {join_names(event['vms'])}", _after_colon(waiting_reason(event, now))
    )


def _after_colon(text: str) -> str:
    return f": {text}" if text else ""


_ALL_EVENTS_LIMIT = 100_000
_NO_EVENT_NAMED = "no event is given: give event ids, or select events with --vm, --host or --rollout"


def _selection_options(function: CommandFunction) -> CommandFunction:
    """Add the arguments that select pending events: by id, or all of a VM, host or rollout."""
    options = (
        click.argument("events", type=non_empty_name, metavar="[EVENT]...", nargs=-1, shell_complete=event_ids),
        click.option("--vm", metavar="VM", shell_complete=vm_names, help="Select all pending events of this VM."),
        click.option(
            "--host", metavar="HOST", shell_complete=host_names, help="Select all pending events of this host."
        ),
        click.option("--rollout", metavar="ROLLOUT", shell_complete=rollout_ids, help="Select those of this rollout."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@_selection_options
@service_command
def approve(call: Invocation, events: tuple[str, ...], **selection: str | None) -> int:
    """Approve events, so that they may start before their notice ends.

    EVENT is an event's id, or the first four or more characters of it.
    """
    selected = _select_events(call, events, selection, lambda event: event["approved_at"] is None)
    return _apply_to_each(call, selected, "approved", lambda event_id: call.api.post("events", event_id, "approve"))


@click.command()
@_selection_options
@click.option("--reason", metavar="TEXT", help="Record this reason in the history.")
@service_command
def withdraw(call: Invocation, events: tuple[str, ...], reason: str | None, **selection: str | None) -> int:
    """Withdraw events that have not started.

    EVENT is an event's id, or the first four or more characters of it.
    """
    body = {"reason": reason} if reason else {}
    selected = _select_events(call, events, selection, lambda event: True)
    return _apply_to_each(
        call, selected, "withdrawn", lambda event_id: call.api.post("events", event_id, "withdraw", body=body)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    ids: list[str]
    selected_by: str = ""  # such as "vm web-0"; "" if ids were given


def _select_events(
    call: Invocation, events: tuple[str, ...], selection: Mapping[str, str | None], wanted: Callable[[JsonObject], bool]
) -> _Selection:
    given = {what: value for what, value in selection.items() if value is not None}
    if bool(events) == bool(given):
        raise Rejected(_NO_EVENT_NAMED if not events else "give event ids or a selection, not both: leave one out")
    if events:
        return _Selection(ids=list(dict.fromkeys(events)))
    page = call.api.get("events", query={**given, "limit": _ALL_EVENTS_LIMIT})
    pending = [event["id"] for event in page["events"] if event["status"] == "scheduled" and wanted(event)]
    return _Selection(ids=pending, selected_by=" and ".join(f"{what} {value}" for what, value in given.items()))


@dataclass(slots=True)
class _Results:
    events: list[JsonObject] = field(default_factory=list)
    refused: list[JsonObject] = field(default_factory=list)


def _apply_to_each(call: Invocation, selected: _Selection, done: str, do: Callable[[str], JsonObject]) -> int:
    """Apply `do` to each event, even if one is refused; prints results, returns the exit code."""
    if len(selected.ids) == 1 and not selected.selected_by:
        return _print_single_event(call, do(selected.ids[0]), done)
    results = _Results()
    for event_id in selected.ids:
        try:
            event = do(event_id)
        except (Rejected, Conflict) as error:
            results.refused.append(_print_refusal(call, event_id, error))
        else:
            results.events.append(event)
            _print_result(call, event, done)
    return _print_summary(call, selected, results, done)


def _print_single_event(call: Invocation, event: JsonObject, done: str) -> int:
    if call.output.as_json:
        call.output.print_json({"events": [event], "refused": []})
    else:
        call.output.print_line(f"{done.capitalize()}.")
        show_events(call, [event])
    return 0


def _print_result(call: Invocation, event: JsonObject, done: str) -> None:
    if call.output.as_json:
        return
    after = f", and has {event['status']}" if done == "approved" and event["status"] == "started" else ""
    wait = event["waits_for"]
    after = f", and waits for {wait['text']}" if wait else after
    call.output.print_line(
        f"{call.output.short_id(event['id'])}  {event_kind(event)} of {join_names(event['vms'])} is {done}{after}."
    )


def _print_refusal(call: Invocation, event_id: str, error: ForewarnError) -> JsonObject:
    if not call.output.as_json:
        call.output.print_error(error)
    return {"event": event_id, "code": error_code(error), "message": str(error)}


def _print_summary(call: Invocation, selected: _Selection, results: _Results, done: str) -> int:
    if call.output.as_json:
        call.output.print_json({"events": results.events, "refused": results.refused})
        if results.refused:
            message = f"{len(results.refused)} of {count_noun(len(selected.ids), 'event')} could not be {done}"
            call.output.print_error(message, code="Refused")
    elif not selected.ids:
        call.output.print_line(dim(f"No event of {selected.selected_by} is pending{_selection_suffix(done)}."))
    return 2 if results.refused else 0


def _selection_suffix(done: str) -> str:
    return " without an approval" if done == "approved" else ""
