"""What happened and why, for people: "why did my VM reboot", "what is this restart waiting for".

A story is told from the record alone: the event's facts, the history, who was given what and when. Its sentences
carry spans, not times of day: each line has its instant beside it, to be shown in the reader's own time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from forewarn.core.cause import noun
from forewarn.core.event import Act, Ending, Event, Status
from forewarn.core.fleet import Power, Vm
from forewarn.core.history import Entry, Sighting, What
from forewarn.core.release import Wait
from forewarn.core.scope import Scope
from forewarn.core.vmstate import VmState, vm_state

_SHOWN = 8  # VMs told one by one; the others are counted
_SILENT_S = 60.0  # a scope that was silent this long is not being watched: clients poll once a second (spec §8.5)
_TOLD = frozenset({What.SKIPPED, What.RETRIED})  # entries told as they are; an event's own facts tell the others


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: float
    text: str
    detail: str = ""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    lines: tuple[Line, ...]
    now: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """When a VM last asked for its document."""

    vm: str  # its name
    at: float
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known around the events of one scope."""

    now: float
    scope: Scope
    title: str  # the scope, as people call it
    polls: Sequence[Asked] = ()
    sightings: Sequence[Sighting] = ()
    entries: Sequence[Entry] = ()  # of the events, and what the service said of itself
    waits: Mapping[str, Wait] = field(default_factory=dict)  # by event id
    names: Mapping[str, str] = field(default_factory=dict)  # VM key → its name
    rollouts: Mapping[str, str] = field(default_factory=dict)  # request id → the rollout, as a sentence names it


def story_of_event(event: Event, record: Record) -> Story:
    lines = [
        *_beginning(event, record),
        *_given(event, record),
        *_told_by_history(event, record),
        *_course(event),
        *_interruptions(event, record),
    ]
    return Story(
        title=f"{kind_of(event)} of {listed(event.vms)}: {event.cause}",
        lines=tuple(sorted(lines, key=lambda line: line.at)),
        now=(*standing(event, record), *audience(record)),
    )


def story_of_vm(vm: Vm, events: Iterable[Event], record: Record) -> Story:
    """All that is on record of a VM, the newest event first."""
    newest = sorted(events, key=lambda event: (event.published_at, event.seq), reverse=True)
    lines = tuple(_summary(event, vm, record) for event in newest)
    live = [event for event in newest if event.is_live]
    return Story(
        title=f"{vm.name}, {_place(vm, record.title)}",
        lines=lines,
        now=(
            _condition(vm, live, record.now),
            *(() if lines else ("No maintenance of it is on record.",)),
            *(f"{kind_of(event)} ({event.id}): {text}" for event in live for text in standing(event, record)),
            *(audience(record) if vm.removed_at is None else ()),
        ),
    )


def _beginning(event: Event, record: Record) -> Iterator[Line]:
    rollout = record.rollouts.get(event.request_id)
    part = f", as part of {rollout}" if rollout else ""
    replaces = f", in place of event {listed(event.replaces)}" if event.replaces else ""
    asked = f"{event.who} asked for it: {event.cause}{part}{replaces}"
    if not event.listed:
        yield Line(at=event.published_at, text=f"{asked}; carried out at once, with no event", detail=event.note)
    elif had_no_notice(event):
        yield Line(at=event.published_at, text=f"{asked}; it started without notice", detail=event.note)
    else:
        notice = _promised(event)
        yield Line(at=event.published_at, text=f"{asked}; scheduled with {notice} of notice", detail=event.note)


def _given(event: Event, record: Record) -> Iterator[Line]:
    """Who was given it, and when; of many VMs the first ones singly."""
    for status in (Status.SCHEDULED, Status.STARTED):
        seen = sorted((s for s in record.sightings if _is_of(s, event, status)), key=lambda s: s.at)
        for sighting in seen[:_SHOWN]:
            name = record.names.get(sighting.vm, sighting.vm)
            detail = f"api-version {sighting.version}, incarnation {sighting.incarnation}"
            yield Line(at=sighting.at, text=f"{name} was given it as {status.title()}", detail=detail)
        if rest := seen[_SHOWN:]:
            yield Line(at=rest[-1].at, text=f"by now {len(rest)} more VMs were given it as {status.title()}")


def _is_of(sighting: Sighting, event: Event, status: Status) -> bool:
    return sighting.event_id == event.id and sighting.status == status


def _course(event: Event) -> Iterator[Line]:
    if event.approved_at is not None and event.approved_by != "policy":
        early = span(event.not_before - event.approved_at)
        yield Line(at=event.approved_at, text=f"{event.approved_by} approved it, {early} before its notice ended")
    if event.started_at is not None and not had_no_notice(event):
        yield Line(at=event.started_at, text=f"it started: {_why_started(event)}")
    for act in event.acts:
        if act.outcome is not None:
            yield _performed(event, act)
    if event.over_at is not None:
        yield Line(at=event.over_at, text=f"it was over: {ending(event)}")


def _why_started(event: Event) -> str:
    assert event.started_at is not None
    promised = _promised(event)
    if event.approved_at is not None:
        got = span(event.started_at - event.published_at)
        return f"{event.approved_by} had approved, {got} into the {promised} of notice"
    late = event.started_at - event.not_before
    return f"its notice of {promised} had ended" + (f" {span(late)} before" if late >= 1 else "")


def had_no_notice(event: Event) -> bool:
    """Whether it began as it was published. Where lab time stands still, one that a VM approved did not."""
    return event.started_at == event.published_at and (event.approved_at is None or event.approved_by == "policy")


def _promised(event: Event) -> str:
    """NotBefore was rounded up to a whole second: the rest was not asked for."""
    return span(math.floor(event.not_before - event.published_at))


def _performed(event: Event, act: Act) -> Line:
    assert act.outcome is not None
    begun = event.started_at if event.started_at is not None else event.published_at
    took = span(act.outcome.at - begun)
    moved = f" from {act.from_host} to {act.to_host}" if act.to_host and act.from_host else ""
    word = "was performed" if act.outcome.ok else "failed"
    text = f"{noun(act.verb)} of {act.name}{moved} {word}, {took} after the start"
    return Line(at=act.outcome.at, text=text, detail=act.outcome.note)


def ending(event: Event) -> str:
    if event.ending is Ending.FINISHED:
        return "finished"
    return f"{event.ending}, {event.reason}" if event.reason else str(event.ending)


def _told_by_history(event: Event, record: Record) -> Iterator[Line]:
    """What is no fact of the event: skipped VMs, another try, the gate it went through."""
    for entry in record.entries:
        about_host = entry.what is What.RELEASED and (entry.request_id, entry.host) == (event.request_id, event.host)
        if about_host or (entry.what in _TOLD and entry.event_id == event.id):
            yield Line(at=entry.at, text=entry.text)


def _interruptions(event: Event, record: Record) -> Iterator[Line]:
    """Sightings are written down once a second: a service that crashed may have lost the last ones."""
    end = event.over_at if event.over_at is not None else record.now
    said = [entry for entry in record.entries if entry.what is What.SERVICE]
    for before, entry in zip([None, *said], said, strict=False):
        if "started" not in entry.text or not event.published_at < entry.at <= end:
            continue
        if before is not None and "stopped" in before.text:
            yield Line(at=entry.at, text=f"the service was back after {span(entry.at - before.at)} away")
        else:
            yield Line(at=entry.at, text="the service was back after a crash", detail=_LOST)


_LOST = "who was given the event in the two seconds before the crash may be missing here"


def standing(event: Event, record: Record) -> Iterator[str]:
    """Where an event is now, and what it waits for."""
    if event.status is Status.OVER:
        ago = span(record.now - (event.over_at or record.now))
        yield f"It was over {ago} ago: {ending(event)}."
    elif event.status is Status.STARTED:
        yield from _still_owed(event, record.now)
        yield from _setback(event, record)
    else:
        yield _waiting(event, record)
        if unaware := _unaware(event, record):
            yield f"{listed(unaware)} {'has' if len(unaware) == 1 else 'have'} not been given it yet."


def _still_owed(event: Event, now: float) -> Iterator[str]:
    since = span(now - (event.started_at or now))
    if event.owed:
        names = listed([act.name for act in event.owed])
        yield f"It started {since} ago; the {noun(event.row.verb)} of {names} is under way."
    else:
        yield f"It started {since} ago and everything is performed; it is listed a little longer to settle."


def _setback(event: Event, record: Record) -> Iterator[str]:
    """The last time that what is owed did not go well: that is what it waits for."""
    owed = {act.name for act in event.owed}
    tried = [e for e in record.entries if e.what is What.RETRIED and e.event_id == event.id and e.vm in owed]
    if tried:
        yield f"{span(record.now - tried[-1].at)} ago: {tried[-1].text}."


def _waiting(event: Event, record: Record) -> str:
    approved = f", was approved by {event.approved_by}," if event.approved_at is not None else ""
    wait = record.waits.get(event.id)
    if wait is None:
        return f"It is scheduled{approved} and starts now."
    ends = f": {span(wait.until - record.now)} at the longest" if wait.until is not None else ""
    return f"It is scheduled{approved} and waits for {wait.text}{ends}."


def _unaware(event: Event, record: Record) -> list[str]:
    aware = {record.names.get(s.vm, s.vm) for s in record.sightings if s.event_id == event.id}
    return [name for name in event.vms if name not in aware]


def audience(record: Record) -> Iterator[str]:
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
    ago = span(record.now - latest.at)
    if record.now - latest.at > _SILENT_S:
        yield f"Nobody there has asked for events for {ago}; the last was {latest.vm} (api-version {latest.version})."
    else:
        yield f"{_asking(record)} (the last {ago} ago, api-version {latest.version})."


def _asking(record: Record) -> str:
    names = sorted(poll.vm for poll in record.polls if record.now - poll.at <= _SILENT_S)
    verb = "asks" if len(names) == 1 else "ask"
    silent = len(record.scope.present) - len(names)
    others = {0: "", 1: ", one other does not"}.get(max(silent, 0), f", {silent} others do not")
    return f"{listed(names)} {verb} for events{others}"


def _summary(event: Event, vm: Vm, record: Record) -> Line:
    """One event in one line: cause and end above, how it went below."""
    at = event.started_at if event.started_at is not None else event.published_at
    state = ending(event) if event.ending is not None else f"{event.status}"
    sentences = [*notice_of(event), *_how_given(event, vm, record), *_how_approved(event), *_how_performed(event, vm)]
    sentences += [f"{line.text}: {line.detail}" for line in _interruptions(event, record) if line.detail]
    text = f"{kind_of(event)}, asked for by {event.who} ({event.cause}): {state}"
    if rollout := record.rollouts.get(event.request_id):
        sentences.append(f"part of {rollout}")
    return Line(at=at, text=text, detail="; ".join((*sentences, f"event {event.id}")))


def notice_of(event: Event) -> Iterator[str]:
    """What was promised, and what was given."""
    if not event.listed or had_no_notice(event):
        yield f"no notice{': ' + event.note if event.note else ''}"
        return
    promised = _promised(event)
    if event.started_at is None:
        yield f"{promised} of notice promised"
    else:
        yield f"{promised} of notice promised, {span(event.started_at - event.published_at)} given"


def _how_given(event: Event, vm: Vm, record: Record) -> Iterator[str]:
    """Whether the VM knew; and else, whether anybody did."""
    seen = sorted((s for s in record.sightings if s.event_id == event.id), key=lambda s: s.at)
    own = next((s for s in seen if s.vm == vm.key), None)
    first = own or next(iter(seen), None)
    if first is None:
        if event.listed and event.status is not Status.SCHEDULED:
            yield "no VM was given it"
        return
    name = vm.name if own else record.names.get(first.vm, first.vm)
    only = "" if own else f"{vm.name} was never given it, but "
    yield f"{only}{name} was given it after {span(first.at - event.published_at)} (api-version {first.version})"


def _how_approved(event: Event) -> Iterator[str]:
    if event.approved_at is not None:
        yield f"approved by {event.approved_by}"
    elif event.listed and event.started_at is not None and event.started_at != event.published_at:
        yield "approved by nobody"


def _how_performed(event: Event, vm: Vm) -> Iterator[str]:
    act = next((act for act in event.acts if act.vm == vm.key), None)
    if act is None:
        return
    yield _performed(event, act).text if act.outcome is not None else f"{noun(act.verb)} is under way"


_DOWN = {VmState.FROZEN: "frozen on", VmState.REBOOTING: "rebooting on", VmState.MOVING: "moving away from"}


def _condition(vm: Vm, live: Sequence[Event], now: float) -> str:
    if vm.removed_at is not None:
        return f"{vm.name} was removed {span(now - vm.removed_at)} ago."
    if vm.power is Power.DEALLOCATED:
        return f"{vm.name} is deallocated and on no host."
    return f"{vm.name} is {_DOWN.get(vm_state(vm, live), f'{vm.power} on')} {vm.host or 'no host'}."


def _place(vm: Vm, title: str) -> str:
    return f"of {title}" if vm.availability_set or vm.scale_set or vm.cloud_service else "a scope of its own"


def kind_of(event: Event) -> str:
    return str(event.row.kind if event.listed and event.row.kind else noun(event.row.verb).capitalize())


def listed(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def span(seconds: float) -> str:
    """A length of time as people say it, in its two largest units."""
    whole = max(0, round(seconds))
    if whole == 0:
        return "less than a second"
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, length)
        parts.append(f"{count} {unit}" if count else "")
    first = next(index for index, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)
