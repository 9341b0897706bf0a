"""Compares each document with what is known, and derives the changes of events. Pure.

A document may be stale for up to a minute (spec §11), and a scope that is enabled again restarts at incarnation 1
(spec §4.2). An ETag with an epoch (spec §4.3) tells the two apart at once; without it only time does.

Changes come in the order in which their events were published: first those of known events, in their order, then the
new events in the document's order. The document does not say why an event is no longer listed. The incarnation grows
by one for each event added, started or removed (spec §4.2), so the part of its growth that no other change explains
shows how an event that was last seen scheduled has ended: one is its removal alone, two are its start and its
removal.

Only a part of a document may be usable (`Received.unusable`). Its usable events count as in any other. An unusable
element may stand for any missing event, so a missing event is over only if every unusable element has a readable
EventId and it is the id of another event. Nothing else in such an element is trusted. The number of elements proves
nothing either, because nobody can tell which of two missing events one of them stands for. The kept events end with
the next whole document that does not list them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from forewarn.client.events import Change, Event, Gone, Outcome, Scheduled, Started, event_key, lists
from forewarn.protocol.document import Kind, NoticeStatus

MAX_STALE_S = 70.0  # documents may be up to a minute stale (spec §11); beyond this, the document was reset
# This service's numbers have at most 20 digits; a longer one is another server's ETag. The digits after them stand for
# the scope, in newer versions also for the store, and then for the content.
_ETAG = re.compile(r'(W/)?"(?P<epoch>[0-9]{1,20})-[0-9]{1,20}((?P<scope>-[0-9a-f]{8,40})(-[0-9a-f]{16})?)?"')
_RESET_MAX_INCARNATION, _RESET_MIN_FALL = 3, 10  # a reset falls to at most the first, by more than the second


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEvent:
    """An event that a watcher knows as listed: as last seen, and in which boot of this VM."""

    event: Event  # as in the latest document that lists it
    boot_id: str = ""  # boot in which it was last seen scheduled, or first seen if it had started; "" if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDocument:
    """What a watcher knows: the last accepted document, and the events that are gone."""

    epoch: str = ""  # `epoch_from_etag`: another one means that incarnations began again; "" if the server gives none
    incarnation: int = -1  # the document's number, which grows with each change; -1: no document yet
    events: tuple[KnownEvent, ...] = ()  # not gone yet, in order of publication
    is_exact: bool = True  # False: `events` may not be exactly those that `incarnation` counts
    gone_keys: tuple[str, ...] = ()  # `event_key` of the latest events that are gone, at most 100, oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDocument:
    """A received document and the circumstances in which it was received."""

    incarnation: int  # the document's number
    events: tuple[Event, ...]  # in its order, without unusable ones
    unusable: tuple[str, ...] = ()  # one text for each unusable element: its event's id, "" if not readable
    epoch: str = ""  # from the ETag; "" if the server gives none
    date: float | None = None  # the service's time when it was received, POSIX seconds; None: unknown
    boot_id: str = ""  # the id of this VM's boot now; "" if unknown
    vm_name: str | None = None  # this VM's, if known; needed only if `is_vm_name_needed`
    older_for_s: float = 0.0  # for how many seconds received documents have been older than the known one
    shows_all_kinds: bool = True  # False: the api-version hides some kinds
    repeats_moved: bool = False  # whether another NotBefore of a scheduled event is reported, as a Scheduled again


class DocumentFreshness(Enum):
    """How a received document relates to the last one that a watcher accepted."""

    CURRENT = auto()  # the same document or a newer one
    RESET = auto()  # incarnations began again, or so it seems: they cannot be compared
    STALE = auto()  # older, and certainly not reset: to be ignored
    DOUBTFUL = auto()  # stale or reset, not known yet: new events count, missing ones do not


def document_freshness(known: KnownDocument, observed: ObservedDocument) -> DocumentFreshness:
    """Classify a received document by epoch, incarnation, and how long documents have been older.

    If both documents have an epoch and the epochs differ, it is RESET, or DOUBTFUL if the received epoch is earlier.
    Otherwise an equal or higher incarnation is CURRENT. A lower one is STALE if both documents have an epoch; if not,
    it is DOUBTFUL, or RESET if it fell by more than 10 to at most 3. Once `older_for_s` has reached MAX_STALE_S, RESET
    replaces STALE and DOUBTFUL.
    """
    have_epochs = bool(known.epoch and observed.epoch)
    if have_epochs and known.epoch != observed.epoch:
        earlier = _epoch_number(observed.epoch) < _epoch_number(known.epoch)
        return DocumentFreshness.DOUBTFUL if earlier and observed.older_for_s < MAX_STALE_S else DocumentFreshness.RESET
    if observed.incarnation >= known.incarnation:
        return DocumentFreshness.CURRENT
    if observed.older_for_s >= MAX_STALE_S:
        return DocumentFreshness.RESET
    if have_epochs:
        return DocumentFreshness.STALE
    is_low = (
        observed.incarnation <= _RESET_MAX_INCARNATION and known.incarnation - observed.incarnation > _RESET_MIN_FALL
    )
    return DocumentFreshness.RESET if is_low else DocumentFreshness.DOUBTFUL


def is_older_document(known: KnownDocument, observed: ObservedDocument) -> bool:
    """Return whether the received document seems older than the known one: it is STALE or DOUBTFUL."""
    return document_freshness(known, observed) in (DocumentFreshness.STALE, DocumentFreshness.DOUBTFUL)


def epoch_from_etag(tag: str) -> str:
    """Return the part of this service's ETag that stays as the incarnation grows; "" for a foreign ETag."""
    found = _ETAG.fullmatch(tag)
    return found["epoch"] + (found["scope"] or "") if found else ""


def _epoch_number(epoch: str) -> int:
    digits = epoch.partition("-")[0]
    return int(digits) if digits.isdigit() else 0


_MAX_GONE_KEYS = 100
_REBOOTING_KINDS = frozenset({Kind.REBOOT, Kind.REDEPLOY})


def detect_changes(known: KnownDocument, observed: ObservedDocument) -> tuple[KnownDocument, tuple[Change, ...]]:
    """Return what is known after this document, and the changes that it shows.

    The outcome of a Gone is FINISHED if the event had started, else what the growth of the incarnation proves, else
    FINISHED if this VM has rebooted for a Reboot or Redeploy of it, else UNKNOWN. A STALE document changes nothing, a
    DOUBTFUL one only adds events never seen before.
    """
    freshness = document_freshness(known, observed)
    if freshness is DocumentFreshness.STALE:
        return known, ()
    listed = {event_key(event): event for event in reversed(observed.events)}
    listed = {key: listed[key] for key in dict.fromkeys(map(event_key, observed.events))}
    if freshness is DocumentFreshness.DOUBTFUL:
        return _add_unknown_events(known, observed, listed)

    before = {event_key(known_event.event): known_event for known_event in known.events}
    over = _events_over(known, observed)
    changes = (
        *_changes_of_known_events(known, observed, listed, over, counts=freshness is DocumentFreshness.CURRENT),
        *_changes_of_new_events(before, listed, observed),
    )
    is_same = (known.epoch, known.incarnation) == (observed.epoch, observed.incarnation) and not changes
    return (
        KnownDocument(
            epoch=observed.epoch,
            incarnation=observed.incarnation,
            events=(
                *(
                    _updated_known_event(each, listed.get(key), observed)
                    for key, each in before.items()
                    if key not in over
                ),
                *(
                    KnownEvent(event=each, boot_id=observed.boot_id)
                    for key, each in listed.items()
                    if key not in before
                ),
            ),
            is_exact=not observed.unusable or (known.is_exact and is_same),
            gone_keys=(*(key for key in known.gone_keys if key not in listed), *over)[-_MAX_GONE_KEYS:],
        ),
        changes,
    )


def _events_over(known: KnownDocument, observed: ObservedDocument) -> dict[str, KnownEvent]:
    """The known events that are certainly no longer listed, by key in their order."""
    if "" in observed.unusable:
        return {}
    present = {*map(event_key, observed.events), *(event_id.upper() for event_id in observed.unusable)}
    return {key: one for one in known.events if (key := event_key(one.event)) not in present}


def _add_unknown_events(
    known: KnownDocument, observed: ObservedDocument, listed: dict[str, Event]
) -> tuple[KnownDocument, tuple[Change, ...]]:
    """Adds only events never seen before: a Preempt must not wait until the doubt is over."""
    known_keys = {event_key(known_event.event) for known_event in known.events} | set(known.gone_keys)
    new_events = {key: event for key, event in listed.items() if key not in known_keys}
    added = tuple(KnownEvent(event=event, boot_id=observed.boot_id) for event in new_events.values())
    after = replace(known, events=(*known.events, *added), is_exact=known.is_exact and not added)
    return after, tuple(_changes_of_new_events({}, new_events, observed))


def _updated_known_event(before: KnownEvent, event: Event | None, observed: ObservedDocument) -> KnownEvent:
    """The known event after a document that shows it as `event`; None: it is kept without being shown."""
    # A started event does not become scheduled again, even if a server says so.
    if event is None or (_has_started(before.event) and not _has_started(event)):
        return before
    # A reboot before the start of the event was not caused by it.
    return replace(before, event=event, boot_id=before.boot_id if _has_started(event) else observed.boot_id)


def _changes_of_new_events(
    before: dict[str, KnownEvent], listed: dict[str, Event], observed: ObservedDocument
) -> Iterator[Change]:
    for key, event in listed.items():
        if key not in before:
            yield (
                Started(event=event, first=True)
                if _has_started(event)
                else Scheduled(event=event, left_s=time_left_s(event, observed.date))
            )


def _changes_of_known_events(
    known: KnownDocument,
    observed: ObservedDocument,
    listed: dict[str, Event],
    over: Collection[str],
    *,
    counts: bool,
) -> Iterator[Change]:
    ended = _outcome_by_incarnation(known, observed, listed) if counts else Outcome.UNKNOWN
    for known_event in known.events:
        key = event_key(known_event.event)
        event = listed.get(key)
        if key in over:
            yield Gone(event=known_event.event, outcome=_event_outcome(known_event, observed, ended))
        elif event is not None and _has_started(event) and not _has_started(known_event.event):
            yield Started(event=event)
        elif event is not None and observed.repeats_moved and _is_moved(known_event.event, event):
            yield Scheduled(event=event, left_s=time_left_s(event, observed.date))


def _is_moved(before: Event, after: Event) -> bool:
    """Whether an event that has not started has another NotBefore, one that is readable."""
    is_coming = not _has_started(before) and not _has_started(after)
    return is_coming and after.not_before is not None and after.not_before != before.not_before


def _event_outcome(known_event: KnownEvent, observed: ObservedDocument, by_count: Outcome) -> Outcome:
    if _has_started(known_event.event):
        return Outcome.FINISHED
    if by_count is Outcome.UNKNOWN and _has_rebooted(known_event, observed):
        return Outcome.FINISHED
    return by_count


def _has_rebooted(known_event: KnownEvent, observed: ObservedDocument) -> bool:
    """Whether this VM has rebooted since it first saw an event that reboots it."""
    return (
        _may_have_rebooted(known_event, observed)
        and observed.vm_name is not None
        and lists(known_event.event, observed.vm_name)
    )


def _may_have_rebooted(known_event: KnownEvent, observed: ObservedDocument) -> bool:
    is_new_boot = bool(known_event.boot_id and observed.boot_id) and known_event.boot_id != observed.boot_id
    return is_new_boot and known_event.event.kind in _REBOOTING_KINDS


def is_vm_name_needed(known: KnownDocument, observed: ObservedDocument) -> bool:
    """Return whether `detect_changes` may need `observed.vm_name` to decide how an event ended.

    A Reboot or Redeploy that was seen in another boot and is no longer listed has happened if it lists this VM.
    """
    return any(_may_have_rebooted(known_event, observed) for known_event in _events_over(known, observed).values())


def _outcome_by_incarnation(known: KnownDocument, observed: ObservedDocument, listed: dict[str, Event]) -> Outcome:
    """How known events that had not started ended, if they are missing and the incarnation shows it."""
    # Each addition, start and removal of an event raises the incarnation by one.
    before = {event_key(known_event.event): known_event.event for known_event in known.events}
    unclear = sum(key not in listed and not _has_started(event) for key, event in before.items())
    removed = sum(key not in listed and _has_started(event) for key, event in before.items())
    turned = sum(key in listed and event.status != listed[key].status for key, event in before.items())
    added = [event for key, event in listed.items() if key not in before]
    left = observed.incarnation - known.incarnation - removed - turned - len(added)

    if known.incarnation < 0 or not known.is_exact or not unclear or observed.unusable:
        return Outcome.UNKNOWN
    if left == unclear:  # each removal is one step, so there was no start
        return Outcome.WITHDRAWN
    # The second step could also be the start of a new event, or belong to an event of a hidden kind.
    is_certain = unclear == 1 and left == 2 and observed.shows_all_kinds and not any(map(_has_started, added))
    return Outcome.FINISHED if is_certain else Outcome.UNKNOWN


def time_left_s(event: Event, date: float | None) -> float | None:
    """Return the seconds from `date`, the service's time in POSIX seconds, to the event's NotBefore."""
    return None if event.not_before is None or date is None else event.not_before - date


def _has_started(event: Event) -> bool:
    """Whether the event has started. An unknown status is not a start: there is still time to prepare."""
    return event.status == NoticeStatus.STARTED
