"""Preview of a request before it is made: the events it would publish, in which order and when.

Assumes that no event is approved, that every act takes its usual time, and that no other request comes in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from forewarn.base.duration import duration_text
from forewarn.base.times import Timestamp, timestamp
from forewarn.base.wording import first_names
from forewarn.core.cause import CAUSE_RULES, Cause, Verb, verb_noun
from forewarn.core.event import Event
from forewarn.core.explain.rollout_plan import PlannedWave, counted
from forewarn.core.request import PlannedEvent

_MAX_LISTED_REASONS = 4  # more reasons, or replaced events, are not listed


class PreviewedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that the request would lead to. Times are lab time in POSIX seconds."""

    batch: int  # from 1: the number of its batch, whose events are published together
    scope: str  # the id of its scope
    cause: str  # a value of Cause: why it is done
    kind: str | None  # as VMs see it, such as Reboot; None: they see no event, because it is not listed
    verb: str  # a value of Verb: what is done to each VM
    vms: tuple[str, ...]  # names of its VMs
    host: str  # the host that the work is about; "": none
    update_domain: int  # the update domain of its VMs, from 0
    listed: bool  # False: performed at once, and no document shows it
    note: str  # why it has no notice, or less or more than usual; may be ""
    published_at: Timestamp  # when it would be published
    not_before: Timestamp  # when it could start without an approval
    starts_at: Timestamp | None = None  # None: never, or after the end of the preview
    over_at: Timestamp | None = None  # None: after the end of the preview
    ending: str | None = None  # a value of Ending: how it would end; None: after the end of the preview
    reason: str = ""  # why it would fail or be withdrawn
    replaces: tuple[str, ...] = ()  # ids of pending events that it would replace


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a request would lead to: its events, when they would be over, and a summary in sentences."""

    # It assumes that nobody approves, that every act takes its usual time, and that no other request comes in between.

    now: Timestamp  # of the preview
    events: tuple[PreviewedEvent, ...]  # in order of publication
    vms: int  # how many VMs the request is about, each counted once
    over_at: Timestamp | None  # when its last event would be over; None: after the end of the preview
    is_partial: bool  # the preview does not reach the end: more events may follow than are listed here
    summary: tuple[str, ...]  # the summary for people
    rollout_waves: tuple[PlannedWave, ...] = ()  # of a rollout: its waves, with latest times; () for other requests
    # Those of the sentences that a person confirms first: VMs are interrupted at once, or what is lost for good.
    confirm: tuple[str, ...] = ()


def preview_from_events(
    events: Sequence[Event], *, now: float, vms: int, is_over: bool, skipped: Sequence[str] = ()
) -> Preview:
    """Return the preview of a request from the events of its dry run, given in order of publication."""
    waves = {at: number for number, at in enumerate(sorted({event.published_at for event in events}), 1)}
    previewed = tuple(_from_event(event, waves[event.published_at]) for event in events)
    return _preview(previewed, now=now, vms=vms, is_over=is_over, skipped=skipped)


def preview_from_first_batch(planned: Iterable[PlannedEvent], *, now: float, vms: int) -> Preview:
    """Return the preview of a request too large for a dry run: its first batch, without starts and ends."""
    return _preview(tuple(_from_planned(item, now) for item in planned), now=now, vms=vms, is_over=False)


def _preview(
    events: tuple[PreviewedEvent, ...], *, now: float, vms: int, is_over: bool, skipped: Sequence[str] = ()
) -> Preview:
    ends = [event.over_at for event in events if event.over_at is not None]
    over_at = max(ends, default=now) if is_over else None
    sentences = (*_sentences(events, now=now, vms=vms, over_at=over_at), *skipped)
    confirm = (
        *_immediate_sentences([event for event in events if Verb(event.verb).rules.interrupts]),
        *_without_notice_sentences(events),
        *_loss_sentences(events),
    )
    return Preview(
        now=timestamp(now),
        events=events,
        vms=vms,
        over_at=timestamp(over_at),
        is_partial=not is_over,
        summary=sentences,
        confirm=confirm,
    )


def preview_to_confirm(now: float, *sentences: str) -> Preview:
    """Return the preview of a change without events, which a person confirms first."""
    return Preview(
        now=timestamp(now),
        events=(),
        vms=0,
        over_at=timestamp(now),
        is_partial=False,
        summary=sentences,
        confirm=sentences,
    )


def _from_event(event: Event, wave: int) -> PreviewedEvent:
    return PreviewedEvent(
        batch=wave,
        scope=event.scope_id,
        cause=event.cause,
        kind=event.rules.kind if event.listed else None,
        verb=event.rules.verb,
        vms=event.vms,
        host=event.host,
        update_domain=event.update_domain,
        listed=event.listed,
        note=event.note,
        published_at=timestamp(event.published_at),
        not_before=timestamp(event.not_before),
        starts_at=timestamp(event.started_at),
        over_at=timestamp(event.over_at),
        ending=event.ending,
        reason=event.reason,
        replaces=event.replaces,
    )


def _from_planned(item: PlannedEvent, now: float) -> PreviewedEvent:
    rules = CAUSE_RULES[item.cause]
    return PreviewedEvent(
        batch=1,
        scope=item.scope_id,
        cause=item.cause,
        kind=rules.kind,
        verb=rules.verb,
        vms=item.vms,
        host=item.host,
        update_domain=item.update_domain,
        listed=True,
        note="",
        published_at=timestamp(now),
        not_before=timestamp(float(math.ceil(now + item.notice_s))),
    )


def preview_warnings(events: Sequence[PreviewedEvent]) -> tuple[str, ...]:
    """Return the sentences about these previewed events that a user must not overlook."""
    return (*_immediate_sentences(events), *_without_notice_sentences(events), *_replacement_sentences(events))


def _sentences(events: Sequence[PreviewedEvent], *, now: float, vms: int, over_at: float | None) -> Iterator[str]:
    yield from _immediate_sentences(events)
    listed = [event for event in events if event.listed]
    yield from _published_sentences(listed, vms, is_over=over_at is not None)
    yield from _replacement_sentences(events)
    yield from _loss_sentences(events)
    if over_at is not None and listed:
        done = f"f every act takes its usual time, everything is done in {duration_text(over_at - now)}"
        # Approvals matter only to events that wait for the end of their notice.
        if any(event.starts_at != event.published_at for event in listed):
            yield f"Without approvals, and i{done}; approvals make it faster."
        else:
            yield f"I{done}."


def _immediate_sentences(events: Sequence[PreviewedEvent]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for event in events:
        if event.listed:
            continue
        reasons.setdefault((event.verb, event.note), []).extend(event.vms)
    listed, others = list(reasons.items())[:_MAX_LISTED_REASONS], list(reasons.values())[_MAX_LISTED_REASONS:]
    for (verb, why), names in listed:
        yield f"{verb_noun(verb).capitalize()} of {first_names(names)} at once, without an event: {why}."
    if others:
        named = first_names([name for names in others for name in names])
        yield f"Other VMs are affected at once for {counted(len(others), 'more reason')}: {named}."


def _published_sentences(events: Sequence[PreviewedEvent], vms: int, *, is_over: bool) -> Iterator[str]:
    if not events:
        return
    affected = len({(event.scope, name) for event in events for name in event.vms})
    waves = max(event.batch for event in events)
    if waves > 1:
        how = f"in {'' if is_over else 'the first '}{waves} batches, one update domain of a scope at a time"
    else:
        how = "published at once" if is_over else "published first"
    yield f"{counted(len(events), 'event')} over {counted(affected, 'VM')}, {how}."
    yield from _without_notice_sentences(events)
    if not is_over and affected < vms:
        why = f"{counted(vms, 'VM')} are too many to simulate" if waves == 1 else "the simulation stopped there"
        yield f"{counted(vms - affected, 'more VM')} follow in later batches, which the preview leaves out: {why}."


def _without_notice_sentences(events: Sequence[PreviewedEvent]) -> Iterator[str]:
    if immediate := [event for event in events if event.listed and _starts_at_once(event)]:
        names = first_names(list(dict.fromkeys(name for event in immediate for name in event.vms)))
        why = "; ".join(dict.fromkeys(event.note for event in immediate if event.note))
        start = f"{counted(len(immediate), 'event')} start{'s' if len(immediate) == 1 else ''}"
        yield f"{start} at once, without notice: {names}{f' ({why})' if why else ''}."


def _starts_at_once(event: PreviewedEvent) -> bool:
    # A notice of 0 ends with the second in which the event is published.
    return event.starts_at is not None and event.starts_at - event.published_at < 1


def _loss_sentences(events: Sequence[PreviewedEvent]) -> Iterator[str]:
    verbs = dict.fromkeys(Verb(event.verb) for event in events if CAUSE_RULES[Cause(event.cause)].has_impact)
    return (verb.rules.loss for verb in verbs if verb.rules.loss)


def _replacement_sentences(events: Sequence[PreviewedEvent]) -> Iterator[str]:
    if replaced := [event_id for event in events for event_id in event.replaces]:
        others = " and others" if len(replaced) > _MAX_LISTED_REASONS else ""
        named = ", ".join(replaced[:_MAX_LISTED_REASONS])
        yield f"It replaces {counted(len(replaced), 'pending event')}, which would be withdrawn: {named}{others}."
