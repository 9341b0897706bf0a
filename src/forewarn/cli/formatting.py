"""Formats API answers as text: times, names, counts, events and history entries. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.text import Text

from forewarn.base.duration import format_duration
from forewarn.base.times import parse_time
from forewarn.base.wording import first_names
from forewarn.cli.api_client import JsonObject
from forewarn.cli.output import Cell, bold, dim, join_text, state_text, without_control_characters

Instant = float | str  # POSIX seconds, or the text of a time in an answer


def posix_seconds(at: Instant) -> float:
    """Return a time in POSIX seconds."""
    return parse_time(at) if isinstance(at, str) else at


def local_time(at: Instant) -> datetime:
    """Return a time as a datetime in this machine's time zone."""
    return datetime.fromtimestamp(posix_seconds(at)).astimezone()


def zone_name(at: datetime) -> str:
    """Return the name of a time's zone: `CET`, or `UTC+03` for a zone without a name."""
    name = at.tzname() or "UTC"
    return f"UTC{name}" if name[0] in "+-" else name


def clock_time(at: Instant, now: Instant, *, dated: bool = False) -> str:
    """Return the local time of day, `12:00:05 CET`, or `2026-03-01 12:00:05 CET` if its date is not today's."""
    try:
        shown, today = local_time(at), local_time(now).date()
    except (ValueError, OverflowError, OSError):
        return "never"
    day = f"{shown:%Y-%m-%d} " if shown.date() != today or dated else ""
    return f"{day}{shown:%H:%M:%S} {zone_name(shown)}"


def clock_times(ats: Iterable[Instant], now: Instant) -> list[str]:
    """Return the local times of one column, `12:00:05 CET`, in the same order, all with or without a date."""
    listed = list(ats)
    plain = [clock_time(at, now) for at in listed]
    alike = len({text.count(" ") for text in plain if text != "never"}) <= 1
    return plain if alike else [clock_time(at, now, dated=True) for at in listed]


def relative_time(at: Instant, now: Instant, *, units: int = 2) -> str:
    """Return how far `at` is from `now`: `in 5m 3s`, `2h ago`, or `now` if less than 1 s."""
    left_s = posix_seconds(at) - posix_seconds(now)
    if abs(left_s) < 1:
        return "now"
    far = " ".join(format_duration(abs(left_s)).split()[:units])
    return f"in {far}" if left_s > 0 else f"{far} ago"


def describe_time(at: Instant | None, now: Instant, *, units: int = 2) -> str:
    """Return a time as `12:00:05 CET (in 5m)`: the local time, and how far it is; `-` for None."""
    return "-" if at is None else f"{clock_time(at, now)} ({relative_time(at, now, units=units)})"


MAX_NAMES_SHOWN = 5
_DEFAULT_SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"  # of fleets that name none
_RESOURCE_TYPES = {
    "virtualMachines": "VM",
    "virtualMachineScaleSets": "scale set",
    "availabilitySets": "availability set",
    "cloudServices": "cloud service",
}
_ENTRIES_WITH_ACTOR = frozenset(
    {"requested", "approved", "withdrawn", "paused", "resumed", "stopped", "fleet", "host", "clock", "fault", "webhook"}
)


def join_names(listed: Sequence[str], most: int = MAX_NAMES_SHOWN) -> str:
    """Return the first `most` names, then how many more: `a, b, c and 97 more`; `-` for none."""
    return first_names(listed, most) or "-"


def count_noun(count: int, thing: str, things: str = "") -> str:
    """Return the count with its noun: `1 event`, `0 events`."""
    return f"{count} {thing}" if count == 1 else f"{count} {things or f'{thing}s'}"


def action_noun(verb: str) -> str:
    """Return the noun of a request's verb, for texts such as `eviction of web`."""
    return "eviction" if verb == "evict" else verb


def describe_resource(resource: str) -> str:
    """Return a resource id in words, such as `VM web-0 of resource group lab`; unknown forms unchanged."""
    if resource == "/":
        return "everything"
    parts = resource.strip("/").split("/")
    if len(parts) < 4 or parts[:3:2] != ["subscriptions", "resourceGroups"]:
        return resource
    group = f"resource group {parts[3]}"
    group += "" if parts[1] == _DEFAULT_SUBSCRIPTION else f" of subscription {parts[1]}"
    if len(parts) == 4:
        return group
    return (
        f"{_RESOURCE_TYPES[parts[6]]} {parts[7]} of {group}"
        if len(parts) == 8 and parts[6] in _RESOURCE_TYPES
        else resource
    )


def event_kind(event: JsonObject) -> str:
    """Return the kind of an event as VMs see it, such as `Reboot`; if they never see it, its verb."""
    return str(event["kind"] or event["verb"])


def status_text(event: JsonObject) -> Text:
    """Return an event's ending (`finished`) if it is over, else its status (`started`), in its colour."""
    return state_text(event["ending"] or event["status"])


def event_time(event: JsonObject) -> float:
    """Return when an event ended, else started, else may start; `event` is the API's view of it."""
    return posix_seconds(event["over_at"] or event["started_at"] or event["not_before"])


def waiting_reason(event: JsonObject, now: float) -> str:
    """Return what an event waits for and until when, or what is being done, or why it ended; may be ""."""
    wait = event["waits_for"]
    if not wait:
        return str(event["reason"] or event["note"] or "") if event["status"] == "over" else _acts_under_way(event)
    until = wait["until"]
    return str(wait["text"]) if until is None else f"{wait['text']} ({relative_time(until, now)})"


def _acts_under_way(event: JsonObject) -> str:
    owed = [act for act in event["acts"] if act["ok"] is None]
    if not owed or event["status"] != "started":
        return ""
    note = next((f": {act['note']}" for act in owed if act["note"]), "")
    return f"{action_noun(event['verb'])} of {join_names([act['vm'] for act in owed])}{note}"


EVENT_HEADERS = ("event", "kind", "status", "VMs", "when", "waits for")


def event_headers(events: Sequence[JsonObject]) -> tuple[str, ...]:
    """Return the table headers for rows of `event_row`: EVENT_HEADERS, whose last one fits `events`."""
    over = [event["status"] == "over" for event in events]
    last = "why" if all(over) else "waits for, why" if any(over) else "waits for"
    return (*EVENT_HEADERS[:-1], last)


def event_row(event: JsonObject, now: float, shown_id: str) -> list[Cell]:
    """Return the table cells of one event, in the order of EVENT_HEADERS."""
    approved = dim(" approved") if event["approved_at"] and event["status"] == "scheduled" else Text()
    return [
        bold(shown_id),
        event_kind(event),
        join_text(status_text(event), approved),
        join_names(event["vms"]),
        describe_time(event_time(event), now, units=1),  # so that the row fits in 80 columns
        _short_waiting_reason(event, now),
    ]


def _short_waiting_reason(event: JsonObject, now: float) -> str:
    wait = event["waits_for"]
    return "an approval" if wait and wait["reason"] == "notice" else waiting_reason(event, now)


def history_lines(entries: Sequence[JsonObject], now: float) -> list[tuple[Text, Text]]:
    """Return a label (local time and kind) and a sentence for each history entry, in the same order."""
    times = clock_times((entry["at"] for entry in entries), now)
    return [_history_line(entry, time) for entry, time in zip(entries, times, strict=True)]


def _history_line(entry: JsonObject, time: str) -> tuple[Text, Text]:
    shows_actor = entry["kind"] in _ENTRIES_WITH_ACTOR and entry["actor"] and entry["actor"] not in entry["text"]
    who = f"  ({entry['actor']})" if shows_actor else ""
    what = Text(f"{without_control_characters(entry['kind']):<10}", style=state_text(entry["kind"]).style)
    return join_text(dim(time), "  ", what, "  "), join_text(entry["text"], dim(who))


def failure_reasons(events: Iterable[JsonObject]) -> list[str]:
    """Return a clause for each event that failed or was withdrawn, such as `event ID failed (web-0: …)`."""
    return [_failure_of_event(event) for event in events if event["ending"] in ("failed", "withdrawn")]


def _failure_of_event(event: JsonObject) -> str:
    notes = [f"{act['vm']}: {act['note'] or 'no reason given'}" for act in event["acts"] if act["ok"] is False]
    why = "; ".join(notes) or event["reason"] or "no reason given"
    return (
        f"event {event['id']} was {event['ending']} ({why})"
        if event["ending"] == "withdrawn"
        else f"event {event['id']} failed ({why})"
    )
