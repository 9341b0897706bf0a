"""How the things of the service read: pure, from the JSON of its answers to text for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from forewarn.cli.connection import View
from forewarn.cli.instant import clock_times, distance, when
from forewarn.cli.screen import Cell, clean, faint, joined, strong, word

MANY = 5
_USUAL_SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"  # that of fleets that name none
_SORTS = {
    "virtualMachines": "VM",
    "virtualMachineScaleSets": "scale set",
    "availabilitySets": "availability set",
    "cloudServices": "cloud service",
}
_BY_SOMEBODY = frozenset(
    {"requested", "approved", "withdrawn", "paused", "resumed", "stopped", "fleet", "host", "clock", "fault", "webhook"}
)


def names(listed: Sequence[str], most: int = MANY) -> str:
    """Some names, and how many more: `a, b, c and 97 more`."""
    if len(listed) <= most:
        return ", ".join(listed) or "-"
    return f"{', '.join(listed[:most])} and {len(listed) - most} more"


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def noun(verb: str) -> str:
    """`eviction of web`, as people say it."""
    return "eviction" if verb == "evict" else verb


def over(resource: str) -> str:
    """What a role is granted over, or a webhook is told of: as people call it, where that is clear."""
    if resource == "/":
        return "everything"
    words = resource.strip("/").split("/")
    if len(words) < 4 or words[:3:2] != ["subscriptions", "resourceGroups"]:
        return resource
    group = f"resource group {words[3]}"
    group += "" if words[1] == _USUAL_SUBSCRIPTION else f" of subscription {words[1]}"
    if len(words) == 4:
        return group
    return f"{_SORTS[words[6]]} {words[7]} of {group}" if len(words) == 8 and words[6] in _SORTS else resource


def what(event: View) -> str:
    """The kind that documents show; what is done, where none shows it."""
    return str(event["kind"] or event["verb"])


def status(event: View) -> Text:
    """The status, or how it ended."""
    return word(event["ending"] or event["status"])


def due(event: View, now: float) -> str:
    """The instant that matters most in the event's state."""
    at = event["over_at"] or event["started_at"] or event["not_before"]
    return when(at, now)


def waits(event: View, now: float) -> str:
    wait = event["waits_for"]
    if not wait:
        return str(event["reason"] or event["note"] or "") if event["status"] == "over" else _started(event)
    until = wait["until"]
    return str(wait["text"]) if until is None else f"{wait['text']} ({distance(until, now)})"


def _started(event: View) -> str:
    owed = [act["vm"] for act in event["acts"] if act["ok"] is None]
    return f"{noun(event['verb'])} of {names(owed)}" if owed and event["status"] == "started" else ""


EVENT_HEADERS = ("event", "kind", "status", "VMs", "when", "waits for")


def event_headers(events: Sequence[View]) -> tuple[str, ...]:
    """What is over waits for nothing: there the last column says why it ended so."""
    over = [event["status"] == "over" for event in events]
    last = "why" if all(over) else "waits for, why" if any(over) else "waits for"
    return (*EVENT_HEADERS[:-1], last)


def event_row(event: View, now: float, shown_id: str) -> list[Cell]:
    approved = faint(" approved") if event["approved_at"] and event["status"] == "scheduled" else Text()
    return [
        strong(shown_id),
        what(event),
        joined(status(event), approved),
        names(event["vms"]),
        due(event, now),
        _wait_in_short(event, now),
    ]


def _wait_in_short(event: View, now: float) -> str:
    """Where the end of its notice stands beside it."""
    wait = event["waits_for"]
    return "an approval" if wait and wait["reason"] == "notice" else waits(event, now)


def entry_lines(entries: Sequence[View], now: float) -> list[tuple[Text, Text]]:
    """Entries of the history: when and what, and the sentence that stands beside it."""
    times = clock_times((entry["at"] for entry in entries), now)
    return [_entry(entry, time) for entry, time in zip(entries, times, strict=True)]


def _entry(entry: View, time: str) -> tuple[Text, Text]:
    tells_who = entry["what"] in _BY_SOMEBODY and entry["who"] and entry["who"] not in entry["text"]
    who = f"  ({entry['who']})" if tells_who else ""
    what = Text(f"{clean(entry['what']):<10}", style=word(entry["what"]).style)
    return joined(faint(time), "  ", what, "  "), joined(entry["text"], faint(who))


def ending_sentence(events: Iterable[View]) -> str:
    """Why what was waited for did not end well."""
    bad = [event for event in events if event["ending"] in ("failed", "withdrawn")]
    return "; ".join(_ended(event) for event in bad)


def _ended(event: View) -> str:
    notes = [f"{act['vm']}: {act['note'] or 'no reason given'}" for act in event["acts"] if act["ok"] is False]
    why = "; ".join(notes) or event["reason"] or "no reason given"
    return (
        f"event {event['id']} was {event['ending']} ({why})"
        if event["ending"] == "withdrawn"
        else (f"event {event['id']} failed ({why})")
    )
