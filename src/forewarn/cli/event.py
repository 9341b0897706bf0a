"""Commands for events: list or watch them, approve or withdraw pending ones."""

from __future__ import annotations

from collections.abc import Mapping

import click
from rich.console import RenderableType
from rich.text import Text

from forewarn.cli.api_client import JsonObject, QueryParameters, named_error
from forewarn.cli.completion import event_ids, host_names, rollout_ids, scope_ids, vm_names
from forewarn.cli.follow import PIPE_INTERVAL_S, TERMINAL_INTERVAL_S, live_area, wait_for_entries
from forewarn.cli.invocation import CommandFunction, Invocation, non_empty_name, service_command
from forewarn.cli.output import (
    Cell,
    build_table,
    clock_time,
    count_noun,
    dim,
    event_headers,
    event_kind,
    event_row,
    event_time,
    join_names,
    join_text,
    status_text,
    waiting_reason,
)
from forewarn.cli.request_output import show_events
from forewarn.errors import Rejected

_NO_EVENTS = "No event is pending. Request one: forewarn restart VM, or forewarn rollout start --all-hosts"


@click.command()
@click.option("--watch", is_flag=True, help="Keep running, and show every change.")
@click.option("--all", "over_too", is_flag=True, help="Include events that are over.")
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Show only events that affect this VM.")
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Show only events of this scope.")
@click.option("--host", metavar="HOST", shell_complete=host_names, help="Show only events of this host or its VMs.")
@click.option("--rollout", metavar="ROLLOUT", shell_complete=rollout_ids, help="Show only events of this rollout.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Show at most N events.")
@service_command
def events(call: Invocation, watch: bool, over_too: bool, limit: int | None, **selection: str | None) -> None:
    """Show pending events, those that come next first."""
    query = {"all": over_too or None, "limit": limit, **selection}
    page = _read_events(call, query)
    if watch:
        _watch_events(call, query, page)
    elif call.output.as_json:
        call.output.print_json(page)
    elif page["events"]:
        call.output.print_table(event_headers(page["events"]), _event_rows(call, page["events"]))
    else:
        call.output.print_line(_no_events_text([name for name in selection.values() if name], over_too=over_too))


def _read_events(call: Invocation, query: QueryParameters) -> JsonObject:
    """The API's page, sorted by time: what is in progress, what comes next, then what ended last."""
    page = call.api.get("events", query=query)
    return {**page, "events": sorted(page["events"], key=_time_order)}


def _time_order(event: JsonObject) -> tuple[int, float]:
    if event["status"] == "over":
        return 2, -event_time(event)
    return (0 if event["status"] == "started" else 1), event_time(event)


def _no_events_text(selected: list[str], *, over_too: bool) -> str:
    if not selected:
        return _NO_EVENTS
    return f"No event of {' and '.join(selected)} is {'known' if over_too else 'pending'}."


def _event_rows(call: Invocation, listed: list[JsonObject]) -> list[list[Cell]]:
    now = call.api.now()
    return [event_row(event, now, call.output.short_id(event["id"])) for event in listed]


def _watch_events(call: Invocation, query: QueryParameters, page: JsonObject) -> None:
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
            page = _read_events(call, query)


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
    """Return the events of `after`, in its order, that are new or have another status, approval or ending."""
    known = {event["id"]: _comparable_state(event) for event in before}
    return [event for event in after if known.get(event["id"]) != _comparable_state(event)]


def removed_event_ids(before: list[JsonObject], after: list[JsonObject]) -> list[str]:
    """Return the ids of the events that are in `before` but not in `after`, in the order of `before`."""
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


_NO_EVENT_NAMED = "no event is given: give event ids, or select events with --vm, --host or --rollout"


def _selection_options(function: CommandFunction) -> CommandFunction:
    options = (
        click.argument("events", type=non_empty_name, metavar="[EVENT]...", nargs=-1, shell_complete=event_ids),
        click.option("--vm", metavar="VM", shell_complete=vm_names, help="Select all pending events of this VM."),
        click.option(
            "--host", metavar="HOST", shell_complete=host_names, help="Select all pending events of this host."
        ),
        click.option(
            "--rollout",
            metavar="ROLLOUT",
            shell_complete=rollout_ids,
            help="Select all pending events of this rollout.",
        ),
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
    return _change_events(call, "approve", "approved", _selection_body(events, selection))


@click.command()
@_selection_options
@click.option("--reason", metavar="TEXT", help="Record this reason in the history.")
@service_command
def withdraw(call: Invocation, events: tuple[str, ...], reason: str | None, **selection: str | None) -> int:
    """Withdraw events that have not started.

    EVENT is an event's id, or the first four or more characters of it.
    """
    body = _selection_body(events, selection)
    return _change_events(call, "withdraw", "withdrawn", {**body, **({"reason": reason} if reason else {})})


def _selection_body(events: tuple[str, ...], selection: Mapping[str, str | None]) -> JsonObject:
    given = {what: value for what, value in selection.items() if value is not None}
    if bool(events) == bool(given):
        raise Rejected(_NO_EVENT_NAMED if not events else "give event ids or a selection, not both: leave one out")
    return {"ids": list(dict.fromkeys(events))} if events else given


def _change_events(call: Invocation, verb: str, done: str, body: JsonObject) -> int:
    answer = call.api.post("events", verb, body=body)
    if len(body.get("ids", ())) == 1:
        for refused in answer["refused"]:
            raise named_error(refused["code"], refused["message"])
        return _print_single_event(call, answer, done)
    if call.output.as_json:
        return _print_json_results(call, answer, done)
    for event in answer["events"]:
        _print_result(call, event, done)
    for refused in answer["refused"]:
        call.output.print_error(refused["message"])
    if not answer["events"] and not answer["refused"]:
        selected_by = " and ".join(f"{what} {body[what]}" for what in ("vm", "host", "rollout") if what in body)
        suffix = " without an approval" if done == "approved" else ""
        call.output.print_line(dim(f"No event of {selected_by} is pending{suffix}."))
    return 2 if answer["refused"] else 0


def _print_single_event(call: Invocation, answer: JsonObject, done: str) -> int:
    if call.output.as_json:
        return _print_json_results(call, answer, done)
    call.output.print_line(f"{done.capitalize()}.")
    show_events(call, answer)
    return 0


def _print_json_results(call: Invocation, answer: JsonObject, done: str) -> int:
    call.output.print_json(answer)
    if not answer["refused"]:
        return 0
    count = len(answer["events"]) + len(answer["refused"])
    message = f"{len(answer['refused'])} of {count_noun(count, 'event')} could not be {done}"
    call.output.print_error(message, code="Refused")
    return 2


def _print_result(call: Invocation, event: JsonObject, done: str) -> None:
    after = f", and has {event['status']}" if done == "approved" and event["status"] == "started" else ""
    wait = event["waits_for"]
    after = f", and waits for {wait['text']}" if wait else after
    call.output.print_line(
        f"{call.output.short_id(event['id'])}  {event_kind(event)} of {join_names(event['vms'])} is {done}{after}."
    )
