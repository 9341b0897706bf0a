"""Compares each document with what is known, and derives the changes of events. Pure.

A document may be stale for up to a minute (spec §11), and a scope that is enabled again restarts at incarnation 1
(spec §4.2). An ETag with an epoch (spec §4.3) tells the two apart at once; without it only time does.

Changes come in the order in which their events were published: first those of known events, in their order, then the
new events in the document's order. The document does not say why an event is no longer listed. The incarnation grows
by one for each event added, started or removed (spec §4.2), so the part of its growth that no other change explains
shows how an event that was last seen scheduled has ended: one is its removal alone, two are its start and its
removal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from forewarn.client.events import Change, Event, Gone, Outcome, Scheduled, Started, event_key, lists
from forewarn.protocol.document import Kind, NoticeStatus

MAX_STALE_S = 70.0  # documents may be up to a minute stale (spec §11); what lasts longer is no stale one
# No number has more digits that this service counts: beyond that it is somebody else's tag.
_ETAG = re.compile(r'(W/)?"(?P<epoch>[0-9]{1,20})-[0-9]{1,20}(?P<scope>-[0-9a-f]{8})?"')
_RESET_MAX_INCARNATION, _RESET_MIN_FALL = 3, 10  # "falls back to a small number": to at most this, by more than that


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEvent:
    """An event that is listed, as it was last seen, and the boot during which it was last seen to be still to come."""

    event: Event
    boot_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDocument:
    """What a watcher knows: the document that it followed last, and what is over."""

    epoch: str = ""  # the ETag's part of it; "" where the server gives none
    incarnation: int = -1
    events: tuple[KnownEvent, ...] = ()
    is_exact: bool = True  # False: more is seen than the incarnation counts
    gone_keys: tuple[str, ...] = ()  # keys of the latest events that are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDocument:
    """A document, and the circumstances under which it came."""

    incarnation: int
    events: tuple[Event, ...]
    epoch: str = ""
    date: float | None = None  # the service's
    boot_id: str = ""
    vm_name: str | None = None  # this VM's, where it is known
    older_for_s: float = 0.0  # for how long documents have been older than the one known
    shows_all_kinds: bool = True  # the api-version hides no kind


class DocumentFreshness(Enum):
    CURRENT = auto()
    RESET = auto()  # another epoch: the number says nothing about the one before
    STALE = auto()
    DOUBTFUL = auto()  # stale or reset, it cannot be told yet: news is told, but nothing is taken back


def document_freshness(known: KnownDocument, sight: ObservedDocument) -> DocumentFreshness:
    both = bool(known.epoch and sight.epoch)
    if both and known.epoch != sight.epoch:
        earlier = _epoch_number(sight.epoch) < _epoch_number(known.epoch)
        return DocumentFreshness.DOUBTFUL if earlier and sight.older_for_s < MAX_STALE_S else DocumentFreshness.RESET
    if sight.incarnation >= known.incarnation:
        return DocumentFreshness.CURRENT
    if sight.older_for_s >= MAX_STALE_S:
        return DocumentFreshness.RESET
    if both:
        return DocumentFreshness.STALE
    is_low = sight.incarnation <= _RESET_MAX_INCARNATION and known.incarnation - sight.incarnation > _RESET_MIN_FALL
    return DocumentFreshness.RESET if is_low else DocumentFreshness.DOUBTFUL


def is_older_document(known: KnownDocument, sight: ObservedDocument) -> bool:
    """Whether this document is older than the one known, as far as can be seen; if for long, it is another epoch's."""
    return document_freshness(known, sight) in (DocumentFreshness.STALE, DocumentFreshness.DOUBTFUL)


def epoch_from_etag(tag: str) -> str:
    """The epoch that an ETag of this service carries, and the mark of its scope; "" of any other (spec §4.3)."""
    found = _ETAG.fullmatch(tag)
    return found["epoch"] + (found["scope"] or "") if found else ""


def _epoch_number(epoch: str) -> int:
    digits = epoch.partition("-")[0]
    return int(digits) if digits.isdigit() else 0


_MAX_GONE_KEYS = 100
_REBOOTING_KINDS = frozenset({Kind.REBOOT, Kind.REDEPLOY})


def detect_changes(known: KnownDocument, sight: ObservedDocument) -> tuple[KnownDocument, tuple[Change, ...]]:
    """What is known after this document, and what it tells."""
    verdict = document_freshness(known, sight)
    if verdict is DocumentFreshness.STALE:
        return known, ()
    listed = {event_key(event): event for event in reversed(sight.events)}
    listed = {key: listed[key] for key in dict.fromkeys(map(event_key, sight.events))}
    if verdict is DocumentFreshness.DOUBTFUL:
        return _add_unknown_events(known, sight, listed)

    before = {event_key(seen.event): seen for seen in known.events}
    changes = (
        *_changes_of_known_events(known, sight, listed, counts=verdict is DocumentFreshness.CURRENT),
        *_changes_of_new_events(before, listed, sight),
    )
    gone = tuple(key for key in before if key not in listed)
    return (
        KnownDocument(
            epoch=sight.epoch,
            incarnation=sight.incarnation,
            events=tuple(
                _updated_known_event(before.get(key), event, sight)
                for key, event in _known_events_first(before, listed)
            ),
            gone_keys=(*(key for key in known.gone_keys if key not in listed), *gone)[-_MAX_GONE_KEYS:],
        ),
        changes,
    )


def _add_unknown_events(
    known: KnownDocument, sight: ObservedDocument, listed: dict[str, Event]
) -> tuple[KnownDocument, tuple[Change, ...]]:
    """Only what was never heard of: a Preempt must not wait until the doubt is over."""
    heard = {event_key(seen.event) for seen in known.events} | set(known.gone_keys)
    fresh = {key: event for key, event in listed.items() if key not in heard}
    added = tuple(KnownEvent(event=event, boot_id=sight.boot_id) for event in fresh.values())
    after = replace(known, events=(*known.events, *added), is_exact=known.is_exact and not added)
    return after, tuple(_changes_of_new_events({}, fresh, sight))


def _known_events_first(before: dict[str, KnownEvent], listed: dict[str, Event]) -> Iterator[tuple[str, Event]]:
    for key in (*(key for key in before if key in listed), *(key for key in listed if key not in before)):
        yield key, listed[key]


def _updated_known_event(before: KnownEvent | None, event: Event, sight: ObservedDocument) -> KnownEvent:
    if before is None:
        return KnownEvent(event=event, boot_id=sight.boot_id)
    # What has started does not become scheduled again, whatever an odd server says.
    is_back = _has_started(before.event) and not _has_started(event)
    if is_back:
        return before
    # One that is still to come was not the reason why this VM came up anew.
    return replace(before, event=event, boot_id=before.boot_id if _has_started(event) else sight.boot_id)


def _changes_of_new_events(
    before: dict[str, KnownEvent], listed: dict[str, Event], sight: ObservedDocument
) -> Iterator[Change]:
    for key, event in listed.items():
        if key not in before:
            yield (
                Started(event=event, first=True)
                if _has_started(event)
                else Scheduled(event=event, left_s=time_left_s(event, sight.date))
            )


def _changes_of_known_events(
    known: KnownDocument, sight: ObservedDocument, listed: dict[str, Event], *, counts: bool
) -> Iterator[Change]:
    ended = outcome_by_incarnation(known, sight, listed) if counts else Outcome.UNKNOWN
    for seen in known.events:
        event = listed.get(event_key(seen.event))
        if event is None:
            yield Gone(event=seen.event, outcome=_event_outcome(seen, sight, ended))
        elif _has_started(event) and not _has_started(seen.event):
            yield Started(event=event)


def _event_outcome(seen: KnownEvent, sight: ObservedDocument, by_count: Outcome) -> Outcome:
    if _has_started(seen.event):
        return Outcome.FINISHED
    if by_count is Outcome.UNKNOWN and _has_rebooted(seen, sight):
        return Outcome.FINISHED
    return by_count


def _has_rebooted(seen: KnownEvent, sight: ObservedDocument) -> bool:
    """This VM came up anew since it first saw an event that would do that to it."""
    return _may_have_rebooted(seen, sight) and sight.vm_name is not None and lists(seen.event, sight.vm_name)


def _may_have_rebooted(seen: KnownEvent, sight: ObservedDocument) -> bool:
    is_new_boot = bool(seen.boot_id and sight.boot_id) and seen.boot_id != sight.boot_id
    return is_new_boot and seen.event.kind in _REBOOTING_KINDS


def is_vm_name_needed(known: KnownDocument, sight: ObservedDocument) -> bool:
    """Whether this VM's name matters to what a document tells."""
    listed = set(map(event_key, sight.events))
    return any(_may_have_rebooted(seen, sight) for seen in known.events if event_key(seen.event) not in listed)


def outcome_by_incarnation(known: KnownDocument, sight: ObservedDocument, listed: dict[str, Event]) -> Outcome:
    """How those ended that were seen scheduled and are listed no longer, where the incarnation's step decides it."""
    before = {event_key(seen.event): seen.event for seen in known.events}
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
    is_certain = unclear == 1 and left == 2 and sight.shows_all_kinds and not any(map(_has_started, added))
    return Outcome.FINISHED if is_certain else Outcome.UNKNOWN


def time_left_s(event: Event, date: float | None) -> float | None:
    """Until its not-before, by the service's own time (spec §12)."""
    return None if event.not_before is None or date is None else event.not_before - date


def _has_started(event: Event) -> bool:
    """A status that nobody knows is no start: whoever hears of the event still has time to get ready."""
    return event.status == NoticeStatus.STARTED
