"""Prints what a maintenance request leads to: its preview, its events, and the wait for its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
from rich.console import RenderableType
from rich.text import Text

from forewarn.cli.api_client import JsonObject
from forewarn.cli.follow import HistoryFilter, Snapshot, follow
from forewarn.cli.formatting import (
    EVENT_HEADERS,
    action_noun,
    count_noun,
    describe_time,
    event_kind,
    event_row,
    failure_summary,
    join_names,
    status_text,
    waiting_reason,
)
from forewarn.cli.invocation import Invocation
from forewarn.cli.output import Cell, bold, dim, join_text

_MAX_EVENTS_SHOWN = 40  # events shown to people; programs get all

dry_run_option = click.option("--dry-run", is_flag=True, help="Tell what would happen, and change nothing.")


def show_preview(call: Invocation, view: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(view)
        return
    call.output.print_line(bold("Nothing was changed."), " This would happen:")
    for sentence in view["sentences"]:
        call.output.print_line("  ", sentence)
    listed = [event for event in view["events"] if event["listed"]]
    if listed:
        call.output.print_line()
        call.output.print_table(
            ("wave", "kind", "VMs", "update domain", "published", "not before"), _preview_rows(listed, view["now"])
        )
    if len(listed) > _MAX_EVENTS_SHOWN:
        call.output.print_line(dim(f"and {len(listed) - _MAX_EVENTS_SHOWN} more events; --json tells all"))


def _preview_rows(events: list[JsonObject], now: float) -> Iterator[list[Cell]]:
    for event in events[:_MAX_EVENTS_SHOWN]:
        at = describe_time(event["published_at"], now) if event["published_at"] > now else "at once"
        yield [
            str(event["wave"]),
            str(event["kind"]),
            join_names(event["vms"]),
            str(event["update_domain"]),
            at,
            describe_time(event["not_before"], now),
        ]


_MAX_EVENTS_IN_FULL = 3
_WAITING_LABELS = {"scheduled": "waits for", "started": "now", "over": "why"}
_FINAL_STATES = ("finished", "failed", "withdrawn")


def show_receipt(call: Invocation, answer: JsonObject) -> None:
    if call.output.as_json:
        call.output.print_json(answer)
        return
    request, events = answer["request"], answer["events"]
    title = f"{action_noun(request['ask']).capitalize()} of {join_names(request['targets'])}"
    if not events:
        call.output.print_line(bold(f"{title} is accepted"), f": its events follow, as request {request['id']}.")
        call.output.print_hints([("forewarn events", "see them")])
        return
    listed = [event for event in events if event["listed"]]
    call.output.print_line(bold(title), " ", _headline(events, listed))
    show_events(call, events)


def _headline(events: list[JsonObject], listed: list[JsonObject]) -> str:
    if not listed:
        return "is carried out at once, with no event."
    if len(listed) < len(events):
        return f"leads to {count_noun(len(listed), 'event')}; {len(events) - len(listed)} carried out at once."
    states = {event["status"] for event in listed}
    if states == {"scheduled"}:
        return "is scheduled."
    return "has started." if states == {"started"} else f"leads to {count_noun(len(listed), 'event')}."


def show_events(call: Invocation, events: list[JsonObject]) -> None:
    """A few in full, many as a table."""
    now = call.api.now()
    if len(events) > _MAX_EVENTS_IN_FULL:
        call.output.print_line()
        call.output.print_table(EVENT_HEADERS, [event_row(e, now, call.output.short_id(e["id"])) for e in events])
    else:
        for event in events:
            call.output.print_line()
            call.output.print_facts(_event_facts(call, event, now))
    _print_hints(call, events)


def _event_facts(call: Invocation, event: JsonObject, now: float) -> Iterator[tuple[str, Cell]]:
    if not event["listed"]:
        yield "VMs", join_names(event["vms"])
        yield "done", join_text(event["verb"], ", ", status_text(event))
        yield "why at once", event["note"] or "this never has an event"
        return
    yield "event", join_text(bold(call.output.short_id(event["id"])), "  ", event_kind(event), "  ", status_text(event))
    yield "VMs", join_names(event["vms"])
    if event["status"] == "scheduled":
        yield "not before", describe_time(event["not_before"], now)
    for event_id in event["replaces"]:
        yield "replaces", _replaced_event(call, event_id)
    yield ("will be told" if _is_undelivered(event) else "told"), _recipients(call, event)
    if event["note"]:
        yield "note", event["note"]
    if waiting := waiting_reason(event, now):
        yield _WAITING_LABELS[event["status"]], waiting


def _replaced_event(call: Invocation, event_id: str) -> str:
    old = call.api.get("events", event_id)
    return f"the pending {old['cause'].removeprefix('user ')}, event {call.output.short_id(event_id)}"


def _is_undelivered(event: JsonObject) -> bool:
    """Nobody has been given it yet."""
    return event["given_at"] is None and event["status"] != "over"


def _recipients(call: Invocation, event: JsonObject) -> str:
    """Every VM of the scope sees the event (spec §7.2)."""
    if event["given_at"] is None and event["status"] == "over":
        return "nobody"
    scopes = call.api.get("fleet", query={"scope": event["scope"]})["scopes"]
    scope = next((scope for scope in scopes if scope["id"] == event["scope"]), None)
    if scope is None:
        return "-"
    if not scope["enabled"]:
        return f"nobody: no VM of {scope['title']} asks for events"
    return f"{join_names(scope['vms'])} ({scope['title']})" if len(scope["vms"]) > 1 else join_names(scope["vms"])


def _print_hints(call: Invocation, events: list[JsonObject]) -> None:
    pending = [event for event in events if event["status"] == "scheduled"]
    first = (pending or events)[0]
    shown = call.output.short_id(first["id"])
    hints = [(f"forewarn explain {shown}", "what has happened, and why")]
    if pending and not first["approved_at"]:
        hints.append((f"forewarn approve {shown}", "let it start now"))
    call.output.print_hints(hints)


def wait_for_request(call: Invocation, answer: JsonObject) -> int:
    """Until the request is over: 0 when it went well."""
    request_id = answer["request"]["id"]

    def look() -> Snapshot:
        view = call.api.get("requests", request_id)
        return Snapshot(
            view=view, is_over=view["state"] in _FINAL_STATES, renderable=_progress_line(call, view["events"])
        )

    about = {"request": request_id}
    return _print_outcome(call, _follow_until_over(call, look, about, f"forewarn history --request {request_id}"))


def _follow_until_over(call: Invocation, look: Callable[[], Snapshot], about: HistoryFilter, again: str) -> JsonObject:
    """Interrupting the waiting does not interrupt what is waited for."""
    try:
        return follow(call, look, about=about)
    except KeyboardInterrupt:
        call.output.print_note(f"what was asked for goes on: `{again}` shows how far it is")
        raise


def wait_for_events(call: Invocation, ids: list[str]) -> int:
    def look() -> Snapshot:
        events = [call.api.get("events", event_id) for event_id in ids]
        over = all(event["status"] == "over" for event in events)
        view = {"state": _combined_state(events), "events": events}
        return Snapshot(view=view, is_over=over, renderable=_progress_line(call, events))

    about = {"event": ids[0]} if len(ids) == 1 else {}
    return _print_outcome(call, _follow_until_over(call, look, about, f"forewarn explain {ids[0]}"))


def _combined_state(events: list[JsonObject]) -> str:
    endings = {event["ending"] for event in events}
    return next((ending for ending in ("failed", "withdrawn") if ending in endings), "finished")


def _print_outcome(call: Invocation, view: JsonObject) -> int:
    if call.output.as_json:
        call.output.print_json(view)
    elif view["state"] == "finished":
        call.output.print_line(Text("Finished.", style="green"))
    if view["state"] == "finished":
        return 0
    call.output.print_error(failure_summary(view["events"]) or f"the request was {view['state']}")
    return 1


def _progress_line(call: Invocation, events: list[JsonObject]) -> RenderableType:
    """What is waited for now."""
    now = call.api.now()
    live = [event for event in events if event["status"] != "over"]
    if not live:
        return Text("waits for its events", style="bright_black")
    first = live[0]
    more = f"  and {count_noun(len(live) - 1, 'more event')}" if len(live) > 1 else ""
    scheduled = first["status"] == "scheduled"
    doing = dim("waits for ") if scheduled else Text()
    line = join_text(
        bold(call.output.short_id(first["id"])),
        "  ",
        status_text(first),
        "  ",
        doing,
        waiting_reason(first, now),
        dim(more),
    )
    approve = f"   forewarn approve {call.output.short_id(first['id'])}"
    return join_text(line, dim(approve)) if scheduled and not first["approved_at"] else line
