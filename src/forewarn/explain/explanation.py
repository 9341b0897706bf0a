"""Explains one event or one VM: a timeline of what happened and why, and what it waits for now.

Uses only recorded facts: the event, the history, and which VM was given what and when. Sentences contain durations
rather than times of day; each line carries its time, which the reader's surface formats in its own time zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from forewarn.core.cause import verb_noun
from forewarn.core.event import Act, Event, EventState
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.history import EntryKind, EventDelivery, HistoryEntry
from forewarn.core.release import StartWait
from forewarn.core.scope import Scope
from forewarn.explain.phrases import (
    duration_text,
    ending_text,
    event_kind_text,
    join_names,
    notice_phrases,
    promised_notice,
    started_without_notice,
)
from forewarn.explain.vm_state import VmState, vm_state

_MAX_LISTED_VMS = 8  # VMs told one by one; the others are counted
_SILENT_SCOPE_S = 60.0  # a scope that was silent this long is not being watched: clients poll once a second (spec §8.5)
_COPIED_ENTRY_KINDS = frozenset(
    {EntryKind.SKIPPED, EntryKind.RETRIED}
)  # entries told as they are; an event's own facts tell the others


class ExplanationLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: float
    text: str
    detail: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    lines: tuple[ExplanationLine, ...]
    now: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VmPoll:
    """When a VM last asked for its document."""

    vm: str  # its name
    at: float
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFacts:
    """What is known around the events of one scope."""

    now: float
    scope: Scope
    title: str  # the scope, as people call it
    polls: Sequence[VmPoll] = ()
    deliveries: Sequence[EventDelivery] = ()
    entries: Sequence[HistoryEntry] = ()  # of the events, and what the service said of itself
    waits: Mapping[str, StartWait] = field(default_factory=dict)  # by event id
    names: Mapping[str, str] = field(default_factory=dict)  # VM key → its name
    rollouts: Mapping[str, str] = field(default_factory=dict)  # request id → the rollout, as a sentence names it


def event_explanation(event: Event, record: ScopeFacts) -> Explanation:
    lines = [
        *_request_lines(event, record),
        *_delivery_lines(event, record),
        *_history_lines(event, record),
        *_lifecycle_lines(event),
        *_service_restart_lines(event, record),
    ]
    return Explanation(
        title=f"{event_kind_text(event)} of {join_names(event.vms)}: {event.cause}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=(*describe_event_status(event, record), *describe_polling(record)),
    )


def vm_explanation(vm: Vm, events: Iterable[Event], record: ScopeFacts) -> Explanation:
    """All that is on record of a VM, the newest event first."""
    newest = sorted(events, key=lambda event: (event.published_at, event.seq), reverse=True)
    lines = tuple(_event_summary_line(event, vm, record) for event in newest)
    live = [event for event in newest if event.is_live]
    return Explanation(
        title=f"{vm.name}, {_scope_phrase(vm, record.title)}",
        lines=lines,
        now=(
            _vm_sentence(vm, live, record.now),
            *(() if lines else ("No maintenance of it is on record.",)),
            *(
                f"{event_kind_text(event)} ({event.id}): {text}"
                for event in live
                for text in describe_event_status(event, record)
            ),
            *(describe_polling(record) if vm.removed_at is None else ()),
        ),
    )


def _request_lines(event: Event, record: ScopeFacts) -> Iterator[ExplanationLine]:
    rollout = record.rollouts.get(event.request_id)
    part = f", as part of {rollout}" if rollout else ""
    replaces = f", in place of event {join_names(event.replaces)}" if event.replaces else ""
    asked = f"{event.who} asked for it: {event.cause}{part}{replaces}"
    if not event.listed:
        yield ExplanationLine(
            at=event.published_at, text=f"{asked}; carried out at once, with no event", detail=event.note
        )
    elif started_without_notice(event):
        yield ExplanationLine(at=event.published_at, text=f"{asked}; it started without notice", detail=event.note)
    else:
        notice = promised_notice(event)
        yield ExplanationLine(
            at=event.published_at, text=f"{asked}; scheduled with {notice} of notice", detail=event.note
        )


def _delivery_lines(event: Event, record: ScopeFacts) -> Iterator[ExplanationLine]:
    """Who was given it, and when; of many VMs the first ones singly."""
    for status in (EventState.SCHEDULED, EventState.STARTED):
        seen = sorted((s for s in record.deliveries if _is_delivery_of(s, event, status)), key=lambda s: s.at)
        for sighting in seen[:_MAX_LISTED_VMS]:
            name = record.names.get(sighting.vm, sighting.vm)
            detail = f"api-version {sighting.version}, incarnation {sighting.incarnation}"
            yield ExplanationLine(at=sighting.at, text=f"{name} was given it as {status.title()}", detail=detail)
        if rest := seen[_MAX_LISTED_VMS:]:
            yield ExplanationLine(at=rest[-1].at, text=f"by now {len(rest)} more VMs were given it as {status.title()}")


def _is_delivery_of(sighting: EventDelivery, event: Event, status: EventState) -> bool:
    return sighting.event_id == event.id and sighting.status == status


def _lifecycle_lines(event: Event) -> Iterator[ExplanationLine]:
    if event.approved_at is not None and event.approved_by != "policy":
        early = duration_text(event.not_before - event.approved_at)
        yield ExplanationLine(
            at=event.approved_at, text=f"{event.approved_by} approved it, {early} before its notice ended"
        )
    if event.started_at is not None and not started_without_notice(event):
        yield ExplanationLine(at=event.started_at, text=f"it started: {_start_reason(event)}")
    for act in event.acts:
        if act.outcome is not None:
            yield _outcome_line(event, act)
    if event.over_at is not None:
        yield ExplanationLine(at=event.over_at, text=f"it was over: {ending_text(event)}")


def _start_reason(event: Event) -> str:
    assert event.started_at is not None
    promised = promised_notice(event)
    if event.approved_at is not None:
        got = duration_text(event.started_at - event.published_at)
        return f"{event.approved_by} had approved, {got} into the {promised} of notice"
    late = event.started_at - event.not_before
    return f"its notice of {promised} had ended" + (f" {duration_text(late)} before" if late >= 1 else "")


def _outcome_line(event: Event, act: Act) -> ExplanationLine:
    assert act.outcome is not None
    begun = event.started_at if event.started_at is not None else event.published_at
    took = duration_text(act.outcome.at - begun)
    moved = f" from {act.from_host} to {act.to_host}" if act.to_host and act.from_host else ""
    word = "was performed" if act.outcome.ok else "failed"
    text = f"{verb_noun(act.verb)} of {act.name}{moved} {word}, {took} after the start"
    return ExplanationLine(at=act.outcome.at, text=text, detail=act.outcome.note)


def _history_lines(event: Event, record: ScopeFacts) -> Iterator[ExplanationLine]:
    """What is no fact of the event: skipped VMs, another try, the gate it went through."""
    for entry in record.entries:
        about_host = entry.what is EntryKind.RELEASED and (entry.request_id, entry.host) == (
            event.request_id,
            event.host,
        )
        if about_host or (entry.what in _COPIED_ENTRY_KINDS and entry.event_id == event.id):
            yield ExplanationLine(at=entry.at, text=entry.text)


def _service_restart_lines(event: Event, record: ScopeFacts) -> Iterator[ExplanationLine]:
    """Sightings are written down once a second: a service that crashed may have lost the last ones."""
    end = event.over_at if event.over_at is not None else record.now
    said = [entry for entry in record.entries if entry.what is EntryKind.SERVICE]
    for before, entry in zip([None, *said], said, strict=False):
        if "started" not in entry.text or not event.published_at < entry.at <= end:
            continue
        if before is not None and "stopped" in before.text:
            yield ExplanationLine(
                at=entry.at, text=f"the service was back after {duration_text(entry.at - before.at)} away"
            )
        else:
            yield ExplanationLine(at=entry.at, text="the service was back after a crash", detail=_LOST_DELIVERIES_TEXT)


_LOST_DELIVERIES_TEXT = "who was given the event in the two seconds before the crash may be missing here"


def describe_event_status(event: Event, record: ScopeFacts) -> Iterator[str]:
    """Where an event is now, and what it waits for."""
    if event.status is EventState.OVER:
        ago = duration_text(record.now - (event.over_at or record.now))
        yield f"It was over {ago} ago: {ending_text(event)}."
    elif event.status is EventState.STARTED:
        yield from _running_acts_sentences(event, record.now)
        yield from _last_retry_sentences(event, record)
    else:
        yield _wait_sentence(event, record)
        if unaware := _vms_without_delivery(event, record):
            yield f"{join_names(unaware)} {'has' if len(unaware) == 1 else 'have'} not been given it yet."


def _running_acts_sentences(event: Event, now: float) -> Iterator[str]:
    since = duration_text(now - (event.started_at or now))
    if event.unfinished_acts:
        names = join_names([act.name for act in event.unfinished_acts])
        yield f"It started {since} ago; the {verb_noun(event.rules.verb)} of {names} is under way."
    else:
        yield f"It started {since} ago and everything is performed; it is listed a little longer to settle."


def _last_retry_sentences(event: Event, record: ScopeFacts) -> Iterator[str]:
    """The last time that what is owed did not go well: that is what it waits for."""
    owed = {act.name for act in event.unfinished_acts}
    tried = [e for e in record.entries if e.what is EntryKind.RETRIED and e.event_id == event.id and e.vm in owed]
    if tried:
        yield f"{duration_text(record.now - tried[-1].at)} ago: {tried[-1].text}."


def _wait_sentence(event: Event, record: ScopeFacts) -> str:
    approved = f", was approved by {event.approved_by}," if event.approved_at is not None else ""
    wait = record.waits.get(event.id)
    if wait is None:
        return f"It is scheduled{approved} and starts now."
    ends = f": {duration_text(wait.until - record.now)} at the longest" if wait.until is not None else ""
    return f"It is scheduled{approved} and waits for {wait.text}{ends}."


def _vms_without_delivery(event: Event, record: ScopeFacts) -> list[str]:
    aware = {record.names.get(s.vm, s.vm) for s in record.deliveries if s.event_id == event.id}
    return [name for name in event.vms if name not in aware]


def describe_polling(record: ScopeFacts) -> Iterator[str]:
    """Whether anybody of the scope would hear of an event."""
    if record.scope.is_enabled:
        yield f"Scheduled events are enabled for {record.title}."
    else:
        yield (
            f"Scheduled events are disabled for {record.title}: none of its VMs has asked within 24 h. "
            "What users ask for is carried out at once."
        )
    latest = max(record.polls, key=lambda poll: poll.at, default=None)
    if latest is None:
        yield "Nobody there has ever asked for events."
        return
    ago = duration_text(record.now - latest.at)
    if record.now - latest.at > _SILENT_SCOPE_S:
        yield f"Nobody there has asked for events for {ago}; the last was {latest.vm} (api-version {latest.version})."
    else:
        yield f"{_active_pollers_text(record)} (the last {ago} ago, api-version {latest.version})."


def _active_pollers_text(record: ScopeFacts) -> str:
    names = sorted(poll.vm for poll in record.polls if record.now - poll.at <= _SILENT_SCOPE_S)
    verb = "asks" if len(names) == 1 else "ask"
    silent = len(record.scope.present_vms) - len(names)
    others = {0: "", 1: ", one other does not"}.get(max(silent, 0), f", {silent} others do not")
    return f"{join_names(names)} {verb} for events{others}"


def _event_summary_line(event: Event, vm: Vm, record: ScopeFacts) -> ExplanationLine:
    """One event in one line: cause and end above, how it went below."""
    at = event.started_at if event.started_at is not None else event.published_at
    state = ending_text(event) if event.ending is not None else f"{event.status}"
    sentences = [
        *notice_phrases(event),
        *_delivery_phrases(event, vm, record),
        *_approval_phrases(event),
        *_outcome_phrases(event, vm),
    ]
    sentences += [f"{line.text}: {line.detail}" for line in _service_restart_lines(event, record) if line.detail]
    text = f"{event_kind_text(event)}, asked for by {event.who} ({event.cause}): {state}"
    if rollout := record.rollouts.get(event.request_id):
        sentences.append(f"part of {rollout}")
    return ExplanationLine(at=at, text=text, detail="; ".join((*sentences, f"event {event.id}")))


def _delivery_phrases(event: Event, vm: Vm, record: ScopeFacts) -> Iterator[str]:
    """Whether the VM knew; and else, whether anybody did."""
    seen = sorted((s for s in record.deliveries if s.event_id == event.id), key=lambda s: s.at)
    own = next((s for s in seen if s.vm == vm.key), None)
    first = own or next(iter(seen), None)
    if first is None:
        if event.listed and event.status is not EventState.SCHEDULED:
            yield "no VM was given it"
        return
    name = vm.name if own else record.names.get(first.vm, first.vm)
    only = "" if own else f"{vm.name} was never given it, but "
    yield (
        f"{only}{name} was given it after {duration_text(first.at - event.published_at)} (api-version {first.version})"
    )


def _approval_phrases(event: Event) -> Iterator[str]:
    if event.approved_at is not None:
        yield f"approved by {event.approved_by}"
    elif event.listed and event.started_at is not None and event.started_at != event.published_at:
        yield "approved by nobody"


def _outcome_phrases(event: Event, vm: Vm) -> Iterator[str]:
    act = next((act for act in event.acts if act.vm == vm.key), None)
    if act is None:
        return
    yield _outcome_line(event, act).text if act.outcome is not None else f"{verb_noun(act.verb)} is under way"


_STATE_PHRASES = {VmState.FROZEN: "frozen on", VmState.REBOOTING: "rebooting on", VmState.MOVING: "moving away from"}


def _vm_sentence(vm: Vm, live: Sequence[Event], now: float) -> str:
    if vm.removed_at is not None:
        return f"{vm.name} was removed {duration_text(now - vm.removed_at)} ago."
    if vm.power is PowerState.DEALLOCATED:
        return f"{vm.name} is deallocated and on no host."
    return f"{vm.name} is {_STATE_PHRASES.get(vm_state(vm, live), f'{vm.power} on')} {vm.host or 'no host'}."


def _scope_phrase(vm: Vm, title: str) -> str:
    return f"of {title}" if vm.availability_set or vm.scale_set or vm.cloud_service else "a scope of its own"
