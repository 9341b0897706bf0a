"""What became of a request: what will happen, who is told, what it waits for, and the commands to go on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from forewarn.cli.connection import View
from forewarn.cli.following import About, Look, follow
from forewarn.cli.instant import when
from forewarn.cli.invocation import Invocation
from forewarn.cli.screen import Cell, faint, joined, strong
from forewarn.cli.wording import (
    EVENT_HEADERS,
    counted,
    ending_sentence,
    event_row,
    names,
    noun,
    status,
    waits,
    what,
)

_IN_FULL = 3
_LABELS = {"scheduled": "waits for", "started": "now", "over": "why"}
_ENDED = ("finished", "failed", "withdrawn")


def show_receipt(call: Invocation, answer: View) -> None:
    if call.screen.as_json:
        call.screen.document(answer)
        return
    request, events = answer["request"], answer["events"]
    title = f"{noun(request['ask']).capitalize()} of {names(request['targets'])}"
    if not events:
        call.screen.say(strong(f"{title} is accepted"), f": its events follow, as request {request['id']}.")
        call.screen.hints([("forewarn events", "see them")])
        return
    listed = [event for event in events if event["listed"]]
    call.screen.say(strong(title), " ", _headline(events, listed))
    show_events(call, events)


def _headline(events: list[View], listed: list[View]) -> str:
    if not listed:
        return "is carried out at once, with no event."
    if len(listed) < len(events):
        return f"leads to {counted(len(listed), 'event')}; {len(events) - len(listed)} carried out at once."
    states = {event["status"] for event in listed}
    if states == {"scheduled"}:
        return "is scheduled."
    return "has started." if states == {"started"} else f"leads to {counted(len(listed), 'event')}."


def show_events(call: Invocation, events: list[View]) -> None:
    """A few in full, many as a table."""
    now = call.api.now()
    if len(events) > _IN_FULL:
        call.screen.say()
        call.screen.table(EVENT_HEADERS, [event_row(e, now, call.screen.short(e["id"])) for e in events])
    else:
        for event in events:
            call.screen.say()
            call.screen.facts(_facts(call, event, now))
    _hint(call, events)


def _facts(call: Invocation, event: View, now: float) -> Iterator[tuple[str, Cell]]:
    if not event["listed"]:
        yield "VMs", names(event["vms"])
        yield "done", joined(event["verb"], ", ", status(event))
        yield "why at once", event["note"] or "this never has an event"
        return
    yield "event", joined(strong(call.screen.short(event["id"])), "  ", what(event), "  ", status(event))
    yield "VMs", names(event["vms"])
    if event["status"] == "scheduled":
        yield "not before", when(event["not_before"], now)
    for event_id in event["replaces"]:
        yield "replaces", _replaced(call, event_id)
    yield ("will be told" if _is_news(event) else "told"), _told(call, event)
    if event["note"]:
        yield "note", event["note"]
    if waiting := waits(event, now):
        yield _LABELS[event["status"]], waiting


def _replaced(call: Invocation, event_id: str) -> str:
    old = call.api.get("events", event_id)
    return f"the pending {old['cause'].removeprefix('user ')}, event {call.screen.short(event_id)}"


def _is_news(event: View) -> bool:
    """Nobody has been given it yet."""
    return event["given_at"] is None and event["status"] != "over"


def _told(call: Invocation, event: View) -> str:
    """Every VM of the scope sees the event (spec §7.2)."""
    if event["given_at"] is None and event["status"] == "over":
        return "nobody"
    scopes = call.api.get("fleet", query={"scope": event["scope"]})["scopes"]
    scope = next((scope for scope in scopes if scope["id"] == event["scope"]), None)
    if scope is None:
        return "-"
    if not scope["enabled"]:
        return f"nobody: no VM of {scope['title']} asks for events"
    return f"{names(scope['vms'])} ({scope['title']})" if len(scope["vms"]) > 1 else names(scope["vms"])


def _hint(call: Invocation, events: list[View]) -> None:
    pending = [event for event in events if event["status"] == "scheduled"]
    first = (pending or events)[0]
    shown = call.screen.short(first["id"])
    hints = [(f"forewarn explain {shown}", "what has happened, and why")]
    if pending and not first["approved_at"]:
        hints.append((f"forewarn approve {shown}", "let it start now"))
    call.screen.hints(hints)


def wait_for_request(call: Invocation, answer: View) -> int:
    """Until the request is over: 0 when it went well."""
    request_id = answer["request"]["id"]

    def look() -> Look:
        view = call.api.get("requests", request_id)
        return Look(view=view, over=view["state"] in _ENDED, shows=_bottom_line(call, view["events"]))

    about = {"request": request_id}
    return _conclude(call, _followed(call, look, about, f"forewarn history --request {request_id}"))


def _followed(call: Invocation, look: Callable[[], Look], about: About, again: str) -> View:
    """Interrupting the waiting does not interrupt what is waited for."""
    try:
        return follow(call, look, about=about)
    except KeyboardInterrupt:
        call.screen.note(f"what was asked for goes on: `{again}` shows how far it is")
        raise


def wait_for_events(call: Invocation, ids: list[str]) -> int:
    def look() -> Look:
        events = [call.api.get("events", event_id) for event_id in ids]
        over = all(event["status"] == "over" for event in events)
        view = {"state": _state(events), "events": events}
        return Look(view=view, over=over, shows=_bottom_line(call, events))

    about = {"event": ids[0]} if len(ids) == 1 else {}
    return _conclude(call, _followed(call, look, about, f"forewarn explain {ids[0]}"))


def _state(events: list[View]) -> str:
    endings = {event["ending"] for event in events}
    return next((ending for ending in ("failed", "withdrawn") if ending in endings), "finished")


def _conclude(call: Invocation, view: View) -> int:
    if call.screen.as_json:
        call.screen.document(view)
    elif view["state"] == "finished":
        call.screen.say(Text("Finished.", style="green"))
    if view["state"] == "finished":
        return 0
    call.screen.complain(ending_sentence(view["events"]) or f"the request was {view['state']}")
    return 1


def _bottom_line(call: Invocation, events: list[View]) -> RenderableType:
    """What is waited for now."""
    now = call.api.now()
    live = [event for event in events if event["status"] != "over"]
    if not live:
        return Text("waits for its events", style="bright_black")
    first = live[0]
    more = f"  and {counted(len(live) - 1, 'more event')}" if len(live) > 1 else ""
    scheduled = first["status"] == "scheduled"
    doing = faint("waits for ") if scheduled else Text()
    line = joined(
        strong(call.screen.short(first["id"])), "  ", status(first), "  ", doing, waits(first, now), faint(more)
    )
    approve = f"   forewarn approve {call.screen.short(first['id'])}"
    return joined(line, faint(approve)) if scheduled and not first["approved_at"] else line
