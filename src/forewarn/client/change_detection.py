"""From one document to the next: which changes it tells of. Pure: rules in, changes out.

Changes come in the order in which their events were published: first what became of the events that were known, in
their order, then the new ones in the document's. The start of one event is told before a later one is scheduled.

The wire does not say why an event is no longer listed. The incarnation grows by one for each event added, started or
removed (spec §4.2), so what is left of its step when all other changes are accounted for tells how an event that was
only seen scheduled has ended: one is its removal alone, two are its start and its removal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forewarn.client.change import Change, Gone, Outcome, Scheduled, Started
from forewarn.client.event import Event, key_of, lists
from forewarn.client.sight import Known, Seen, Sight, Verdict, verdict_on
from forewarn.protocol.document import Kind, Status

_REMEMBERED = 100
_REBOOTING = frozenset({Kind.REBOOT, Kind.REDEPLOY})


def follow(known: Known, sight: Sight) -> tuple[Known, tuple[Change, ...]]:
    """What is known after this document, and what it tells."""
    verdict = verdict_on(known, sight)
    if verdict is Verdict.STALE:
        return known, ()
    listed = {key_of(event): event for event in reversed(sight.events)}
    listed = {key: listed[key] for key in dict.fromkeys(map(key_of, sight.events))}
    if verdict is Verdict.DOUBTFUL:
        return _with_news(known, sight, listed)

    before = {key_of(seen.event): seen for seen in known.seen}
    changes = (*_of_known(known, sight, listed, counts=verdict is Verdict.CURRENT), *_of_new(before, listed, sight))
    gone = tuple(key for key in before if key not in listed)
    return (
        Known(
            epoch=sight.epoch,
            incarnation=sight.incarnation,
            seen=tuple(_seen(before.get(key), event, sight) for key, event in _in_order(before, listed)),
            over=(*(key for key in known.over if key not in listed), *gone)[-_REMEMBERED:],
        ),
        changes,
    )


def _with_news(known: Known, sight: Sight, listed: dict[str, Event]) -> tuple[Known, tuple[Change, ...]]:
    """Only what was never heard of: a Preempt must not wait until the doubt is over."""
    heard = {key_of(seen.event) for seen in known.seen} | set(known.over)
    fresh = {key: event for key, event in listed.items() if key not in heard}
    added = tuple(Seen(event=event, boot=sight.boot) for event in fresh.values())
    after = replace(known, seen=(*known.seen, *added), is_exact=known.is_exact and not added)
    return after, tuple(_of_new({}, fresh, sight))


def _in_order(before: dict[str, Seen], listed: dict[str, Event]) -> Iterator[tuple[str, Event]]:
    for key in (*(key for key in before if key in listed), *(key for key in listed if key not in before)):
        yield key, listed[key]


def _seen(before: Seen | None, event: Event, sight: Sight) -> Seen:
    if before is None:
        return Seen(event=event, boot=sight.boot)
    # What has started does not become scheduled again, whatever an odd server says.
    is_back = _has_started(before.event) and not _has_started(event)
    if is_back:
        return before
    # One that is still to come was not the reason why this VM came up anew.
    return replace(before, event=event, boot=before.boot if _has_started(event) else sight.boot)


def _of_new(before: dict[str, Seen], listed: dict[str, Event], sight: Sight) -> Iterator[Change]:
    for key, event in listed.items():
        if key not in before:
            yield (
                Started(event=event, first=True)
                if _has_started(event)
                else Scheduled(event=event, left_s=left_s(event, sight.date))
            )


def _of_known(known: Known, sight: Sight, listed: dict[str, Event], *, counts: bool) -> Iterator[Change]:
    ended = outcome_by_count(known, sight, listed) if counts else Outcome.UNKNOWN
    for seen in known.seen:
        event = listed.get(key_of(seen.event))
        if event is None:
            yield Gone(event=seen.event, outcome=_outcome(seen, sight, ended))
        elif _has_started(event) and not _has_started(seen.event):
            yield Started(event=event)


def _outcome(seen: Seen, sight: Sight, by_count: Outcome) -> Outcome:
    if _has_started(seen.event):
        return Outcome.FINISHED
    if by_count is Outcome.UNKNOWN and _has_rebooted(seen, sight):
        return Outcome.FINISHED
    return by_count


def _has_rebooted(seen: Seen, sight: Sight) -> bool:
    """This VM came up anew since it first saw an event that would do that to it."""
    return _may_have_rebooted(seen, sight) and sight.name is not None and lists(seen.event, sight.name)


def _may_have_rebooted(seen: Seen, sight: Sight) -> bool:
    is_new_boot = bool(seen.boot and sight.boot) and seen.boot != sight.boot
    return is_new_boot and seen.event.kind in _REBOOTING


def might_have_rebooted(known: Known, sight: Sight) -> bool:
    """Whether this VM's name matters to what a document tells."""
    listed = set(map(key_of, sight.events))
    return any(_may_have_rebooted(seen, sight) for seen in known.seen if key_of(seen.event) not in listed)


def outcome_by_count(known: Known, sight: Sight, listed: dict[str, Event]) -> Outcome:
    """How those ended that were seen scheduled and are listed no longer, where the incarnation's step decides it."""
    before = {key_of(seen.event): seen.event for seen in known.seen}
    unclear = sum(key not in listed and not _has_started(event) for key, event in before.items())
    removed = sum(key not in listed and _has_started(event) for key, event in before.items())
    turned = sum(key in listed and event.status != listed[key].status for key, event in before.items())
    added = [event for key, event in listed.items() if key not in before]
    left = sight.incarnation - known.incarnation - removed - turned - len(added)

    if known.incarnation < 0 or not known.is_exact or not unclear:
        return Outcome.UNKNOWN
    if left == unclear:  # every removal takes one, so there was nothing else
        return Outcome.WITHDRAWN
    # The second step could also be the start of an event that is new here, or one of a kind that is hidden.
    is_certain = unclear == 1 and left == 2 and sight.shows_all and not any(map(_has_started, added))
    return Outcome.FINISHED if is_certain else Outcome.UNKNOWN


def left_s(event: Event, date: float | None) -> float | None:
    """Until its not-before, by the service's own time (spec §12)."""
    return None if event.not_before is None or date is None else event.not_before - date


def _has_started(event: Event) -> bool:
    """A status that nobody knows is no start: whoever hears of the event still has time to get ready."""
    return event.status == Status.STARTED
