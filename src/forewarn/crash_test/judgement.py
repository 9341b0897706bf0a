"""What all demands share: finding an event, reading probes, and judging a deadline fairly."""

from __future__ import annotations

from dataclasses import dataclass

from forewarn.crash_test.case import Observed
from forewarn.crash_test.fair_time import why_machine_was_slow
from forewarn.crash_test.timeline import (
    Approved,
    EventEnded,
    EventPublished,
    EventStarted,
    Poller,
    Probe,
    ProbeAnswered,
)
from forewarn.crash_test.verdict import CaseOutcome

Judgement = tuple[CaseOutcome, str, tuple[float, ...]]  # the outcome, what was seen (a sentence), and when

PROBE_LAG_S = 1.5  # a probe runs every half second, and takes a while: its yes may be this late
_TIME_TO_ACT_S = 5.0  # that a handler must have between a poll at its claimed interval and the start of an event
_ORDINALS = ("the event", "the second event", "the third event", "the fourth event")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When something should have happened: until `soon` it is in time, until `late` slow, later a failure."""

    start: float  # from when on the time counts
    soon: float  # until then, included, it is in time
    late: float  # until then, included, it is slow
    event: str = ""  # the id of an event that the reference poller must also have got until `soon`; "": none


def judge_deadline(observed: Observed, at: float | None, deadline: Deadline, *, seen: str, missing: str) -> Judgement:
    """Judge whether something happened in time; `at` is when it did, None if it did not."""
    times = () if at is None else (at,)
    if at is not None and at <= deadline.soon:
        return CaseOutcome.PASS, seen, times
    text = missing if at is None else seen
    reason = why_machine_was_slow(observed, deadline.start, deadline.soon, deadline.event)
    if reason:
        return CaseOutcome.UNKNOWN, f"{text}; {reason}", times
    if at is not None:
        return (CaseOutcome.SLOW if at <= deadline.late else CaseOutcome.FAIL), seen, times
    if observed.timeline.ended_at < deadline.late:
        early_s = deadline.late - observed.timeline.ended_at
        return CaseOutcome.UNKNOWN, f"{missing}; the case ended {early_s:.1f} s before the deadline", ()
    return CaseOutcome.FAIL, missing, ()


def event_name(index: int) -> str:
    """Return how demands name the script's event with this number, from 0."""
    return _ORDINALS[index] if index < len(_ORDINALS) else f"event {index + 1}"


def published_event(observed: Observed, index: int) -> EventPublished | None:
    """Return the publication of the script's event with this number, from 0; None if it was not published."""
    if index >= len(observed.events):
        return None
    return observed.timeline.published(observed.events[index])


def not_published(index: int) -> Judgement:
    """Return the judgement, unknown, for an event (by number, from 0) that the script has not published."""
    return CaseOutcome.UNKNOWN, f"the case ended before it published {event_name(index)}", ()


def started_at(observed: Observed, event: EventPublished) -> float | None:
    """Return when the platform started this event, else its NotBefore; None: neither is known."""
    found = next((item.at for item in observed.timeline.of(EventStarted) if item.event == event.event), None)
    return event.not_before if found is None else found


def ended_event(observed: Observed, event: EventPublished) -> EventEnded | None:
    """Return the end of this event, or None if it was still listed when the case ended."""
    return next((item for item in observed.timeline.of(EventEnded) if item.event == event.event), None)


def approvals_of(observed: Observed, event: EventPublished, *, on_all_vms: bool = False) -> list[Approved]:
    """Return the handler's approvals of this event on the judged VM, or on all VMs, in order."""
    wanted = event.event.casefold()
    return [
        approval
        for approval in observed.timeline.of(Approved, None if on_all_vms else observed.vm)
        if approval.by is Poller.HANDLER and wanted in {text.casefold() for text in approval.event_ids}
    ]


def is_accepted(approval: Approved) -> bool:
    """Return whether an approval was answered with a success (2xx), even by a substitute answer."""
    return approval.status is not None and 200 <= approval.status < 300


def why_notice_is_too_short(observed: Observed, event: EventPublished) -> str:
    """Return why the event's notice is too short for the handler's claims, as a clause; "": it is not."""
    # A handler for reboots may poll rarely, because they are announced 15 minutes ahead; a case that announces one
    # later cannot hold that against it.
    if event.kind == "Preempt" or event.not_before is None:
        return ""
    notice_s = event.not_before - event.at
    if observed.claims.polls_every_s + _TIME_TO_ACT_S <= notice_s:
        return ""
    return f"the notice of {notice_s:.0f} s is too short for polls every {observed.claims.polls_every_s:g} s"


def probe_state(observed: Observed, probe: Probe, at: float) -> bool | None:
    """Return the last answer of a probe on the judged VM until `at`: True for yes; None: no answer yet."""
    answers = [item.is_yes for item in _answers(observed, probe) if item.at <= at]
    return answers[-1] if answers else None


def turns_to_yes(observed: Observed, probe: Probe, start: float, end: float) -> list[float]:
    """Return when the answer of a probe on the judged VM turned to yes, after `start` and until `end`."""
    return [
        item.at
        for earlier, item in zip([None, *_answers(observed, probe)], _answers(observed, probe), strict=False)
        if item.is_yes and start < item.at <= end and not (earlier is not None and earlier.is_yes)
    ]


def turns_to_no(observed: Observed, probe: Probe, start: float, end: float) -> list[float]:
    """Return when the answer of a probe on the judged VM turned to no, after `start` and until `end`."""
    return [item.at for item in _answers(observed, probe) if not item.is_yes and start < item.at <= end]


def _answers(observed: Observed, probe: Probe) -> list[ProbeAnswered]:
    return [item for item in observed.timeline.of(ProbeAnswered, observed.vm) if item.probe is probe]
