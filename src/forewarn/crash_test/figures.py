"""Figures of a handler over all cases: how soon it noticed, what it approved, how often it asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from forewarn.crash_test.judgement import PROBE_LAG_S, is_accepted
from forewarn.crash_test.timeline import (
    THINNED_TEXT,
    Approved,
    Disturbance,
    EventPublished,
    EventStarted,
    OtherRequest,
    Polled,
    Poller,
    Probe,
    ProbeAnswered,
    Timeline,
)

CaseTimeline = tuple[Timeline, str, Sequence[str]]  # the timeline, the judged VM, ids of the published events
_REST_S = 5.0  # a case rests until something is published or disturbed, if that is at least this long
_ERRORS_S = 5.0  # the shortest disturbance over which requests are counted


class HandlerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one crash test of a handler, over all cases; None where nothing could be measured."""

    notice_p50_s: float | None = None  # from publication to the poll that got the event
    notice_worst_s: float | None = None  # the longest such time, of events that a poll got
    notice_share_p50: float | None = None  # the share (0 to 1) of the notice that had passed at that poll
    notice_share_worst: float | None = None  # the highest such share; 1 is too late, or never
    notice_left_worst_s: float | None = None  # the least time that was left until NotBefore; negative: it was over
    never_noticed: int = 0  # events that no poll of the handler got
    prepared_p50_s: float | None = None  # from publication to the probe's yes
    recovered_p50_s: float | None = None  # from the event's start to the probe's yes
    recovered_worst_s: float | None = None  # the longest time from an event's start to the probe's yes
    approvals: int = 0  # on the judged VM that got a 2xx; one of several events counts for each of them
    approvals_early: int | None = None  # before the probe said yes; None: no probe. Freezes do not count
    approvals_late: int = 0  # after the event had started
    approvals_repeated: int = 0  # of an event that was approved before
    approvals_for_others: int = 0  # of events that do not concern the judged VM
    never_approved: int = 0  # events that started at NotBefore, and nobody had tried to approve them
    requests_at_rest_per_s: float | None = None  # of all kinds, while nothing happened; the median
    requests_in_errors_per_s: float | None = None  # of all kinds, while answers were spoiled; the worst case
    memory_growth_bytes: int | None = None  # in one run, from four seconds after its start; the worst case


def compute_figures(cases: Sequence[CaseTimeline]) -> HandlerFigures:
    """Return the figures over all these timelines. A pure function."""
    own = [(timeline, vm, event) for timeline, vm, ids in cases for event in _own_events(timeline, vm, ids)]
    noticed = [(event, timeline.delivered_at(event.event, vm)) for timeline, vm, event in own]
    delays = [at - event.at for event, at in noticed if at is not None]
    shares = [share for share in map(_share, noticed) if share is not None]
    left = [event.not_before - at for event, at in noticed if at is not None and event.not_before is not None]
    recovered = _recovery_delays(own)
    approvals = Counter(found for timeline, vm, _ in cases for found in _judge_approvals(timeline, vm))
    has_probe = any(_has_answers(timeline, vm, Probe.PREPARED) for timeline, vm, _ in cases)
    return HandlerFigures(
        notice_p50_s=_median(delays),
        notice_worst_s=max(delays, default=None),
        notice_share_p50=_median(shares),
        notice_share_worst=max(shares, default=None),
        notice_left_worst_s=min(left, default=None),
        never_noticed=sum(at is None for _, at in noticed),
        prepared_p50_s=_median(_probe_delays(own, Probe.PREPARED)),
        recovered_p50_s=_median(recovered),
        recovered_worst_s=max(recovered, default=None),
        approvals=approvals.total(),
        approvals_early=approvals["early"] if has_probe else None,
        approvals_late=approvals["late"],
        approvals_repeated=approvals["repeated"],
        approvals_for_others=approvals["other"],
        never_approved=sum(_is_never_approved(timeline, event) for timeline, _, event in own),
        requests_at_rest_per_s=_median([rate for t, vm, _ in cases if (rate := _rest_rate(t, vm)) is not None]),
        requests_in_errors_per_s=max((r for t, vm, _ in cases for r in _error_rates(t, vm)), default=None),
        memory_growth_bytes=max((g for t, vm, _ in cases for g in _memory_growths(t, vm)), default=None),
    )


def describe_figures(figures: HandlerFigures) -> list[tuple[str, str]]:
    """Return the figures as pairs (label, text with unit), without those that were not measured."""
    growth = figures.memory_growth_bytes
    rows = [
        ("noticed after", _seconds_text(figures.notice_p50_s, figures.notice_worst_s)),
        ("notice used up by then", _share_text(figures)),
        ("never noticed", _count_events(figures.never_noticed) if figures.never_noticed else ""),
        ("prepared after", _seconds_text(figures.prepared_p50_s)),
        ("recovered after", _seconds_text(figures.recovered_p50_s, figures.recovered_worst_s)),
        ("approvals", _approvals_text(figures)),
        ("requests a second", _rates_text(figures)),
        ("memory growth", "" if growth is None else f"{max(0, growth) / 2**20:.1f} MiB at worst"),
    ]
    return [(label, text) for label, text in rows if text]


def _seconds_text(median_s: float | None, worst_s: float | None = None) -> str:
    if median_s is None:
        return ""
    worst = "" if worst_s is None else f", {worst_s:.1f} s at worst"
    return f"{median_s:.1f} s (median){worst}"


def _share_text(figures: HandlerFigures) -> str:
    middle, worst, left = figures.notice_share_p50, figures.notice_share_worst, figures.notice_left_worst_s
    if middle is None or worst is None:
        return ""
    rest = "" if left is None else f"; {left:.1f} s were left before NotBefore" if left >= 0 else "; NotBefore was over"
    return f"{middle:.0%} (median), {worst:.0%} at worst{rest}"


def _approvals_text(figures: HandlerFigures) -> str:
    counts = (
        (figures.approvals_early or 0, "early"),
        (figures.approvals_late, "late"),
        (figures.approvals_repeated, "repeated"),
        (figures.approvals_for_others, "for other VMs"),
    )
    parts = [f"{count} {what}" for count, what in counts if count]
    parts += [f"{_count_events(figures.never_approved)} never approved"] if figures.never_approved else []
    return ", ".join([str(figures.approvals), *parts])


def _count_events(count: int) -> str:
    return "1 event" if count == 1 else f"{count} events"


def _rates_text(figures: HandlerFigures) -> str:
    rest, errors = figures.requests_at_rest_per_s, figures.requests_in_errors_per_s
    parts = [f"{rest:.2f} at rest"] if rest is not None else []
    parts += [f"{errors:.2f} during errors at worst"] if errors is not None else []
    return ", ".join(parts)


def _own_events(timeline: Timeline, vm: str, ids: Sequence[str]) -> list[EventPublished]:
    return [event for event in timeline.of(EventPublished) if event.event in ids and vm in event.vms]


def _share(noticed: tuple[EventPublished, float | None]) -> float | None:
    event, at = noticed
    if event.not_before is None or event.not_before <= event.at:
        return None
    return 1.0 if at is None else min(1.0, (at - event.at) / (event.not_before - event.at))


def _probe_delays(own: Iterable[tuple[Timeline, str, EventPublished]], probe: Probe) -> list[float]:
    found = ((event, timeline.probe_yes_at(probe, vm, after=event.at)) for timeline, vm, event in own)
    return [at - event.at for event, at in found if at is not None]


def _recovery_delays(own: Iterable[tuple[Timeline, str, EventPublished]]) -> list[float]:
    delays = []
    for timeline, vm, event in own:
        started = _started_at(timeline, event)
        at = None if started is None else timeline.probe_yes_at(Probe.RECOVERED, vm, after=started)
        delays += [at - started] if at is not None and started is not None else []
    return delays


def _started_at(timeline: Timeline, event: EventPublished) -> float | None:
    return next((item.at for item in timeline.of(EventStarted) if item.event == event.event), None)


def _is_never_approved(timeline: Timeline, event: EventPublished) -> bool:
    """Return whether an event with a NotBefore has started, and no copy of the handler approved it."""
    if event.not_before is None or _started_at(timeline, event) is None:
        return False
    wanted = event.event.casefold()
    return not any(wanted == text.casefold() for approval in timeline.approvals() for text in approval.event_ids)


def _judge_approvals(timeline: Timeline, vm: str) -> list[str]:
    by_id = {event.event.casefold(): event for event in timeline.of(EventPublished)}
    seen: set[str] = set()
    found = []
    for approval in timeline.approvals(vm):
        if is_accepted(approval):
            for text in approval.event_ids:
                event = by_id.get(text.casefold())
                found.append(_judge_approval(timeline, vm, approval, event, is_repeated=text.casefold() in seen))
                seen.add(text.casefold())
    return found


def _judge_approval(
    timeline: Timeline, vm: str, approval: Approved, event: EventPublished | None, *, is_repeated: bool
) -> str:
    if event is not None and vm not in event.vms:
        return "other"
    if is_repeated:
        return "repeated"
    started = None if event is None else _started_at(timeline, event)
    if started is not None and approval.at > started:
        return "late"
    needs_preparation = event is not None and event.kind != "Freeze"
    return "early" if needs_preparation and _is_unprepared(timeline, vm, approval) else "good"


def _is_unprepared(timeline: Timeline, vm: str, approval: Approved) -> bool:
    if approval.was_prepared is not None:
        return not approval.was_prepared
    until = approval.at + PROBE_LAG_S
    answers = [a.is_yes for a in timeline.of(ProbeAnswered, vm) if a.probe is Probe.PREPARED and a.at <= until]
    return bool(answers) and not answers[-1]


def _has_answers(timeline: Timeline, vm: str, probe: Probe) -> bool:
    return any(item.probe is probe for item in timeline.of(ProbeAnswered, vm))


def _request_times(timeline: Timeline, vm: str) -> list[float]:
    requests = (item for item in timeline.observations if isinstance(item, Polled | Approved | OtherRequest))
    return [item.at for item in requests if item.by is Poller.HANDLER and item.vm == vm]


def _rest_rate(timeline: Timeline, vm: str) -> float | None:
    """Return the handler's requests a second from its first poll until something happens; None: too short."""
    times = _request_times(timeline, vm)
    happened = [item.at for item in timeline.observations if isinstance(item, EventPublished | Disturbance)]
    if not times:
        return None
    begin, end = times[0], min(happened, default=timeline.ended_at)
    if end - begin < _REST_S:
        return None
    return sum(begin <= at < end for at in times) / (end - begin)


def _error_rates(timeline: Timeline, vm: str) -> list[float]:
    here = [item for item in timeline.of(Disturbance) if item.vm in ("", vm)]
    spans = [(item.at, item.until) for item in here if item.until is not None and item.until - item.at >= _ERRORS_S]
    thinned = min((item.at for item in here if THINNED_TEXT in item.text), default=timeline.ended_at)
    spans = [(begin, min(end, thinned) if begin < thinned else end) for begin, end in spans]
    times = _request_times(timeline, vm)
    return [sum(begin <= at < end for at in times) / (end - begin) for begin, end in spans]


def _memory_growths(timeline: Timeline, vm: str) -> list[int]:
    return [run[-1].memory_bytes - run[0].memory_bytes for run in timeline.settled_samples(vm)]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
