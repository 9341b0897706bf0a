"""Fair time: which time counts against a handler, and whether the machine was too slow to judge.

Time does not count while the handler's program was not running because the case or the platform had ended it, while its
VM was frozen, while its answers were spoiled, and while it was starting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from forewarn.crash_test.case import Observed
from forewarn.crash_test.claims import Approves
from forewarn.crash_test.timeline import (
    Disturbance,
    Impact,
    Polled,
    Poller,
    ProgramExited,
    ProgramStarted,
    ResourcesSampled,
    Timeline,
    intervals_between,
)

START_UP_S = 5.0  # that a program may take from its start to its first poll
_STALL_S = 3.0  # the reference poller polls once a second: a longer gap means that the machine stalled or is too busy
_STALL_SHARE = 0.25  # of the time until a deadline: a gap that is longer makes the deadline unfair
_STARVED_SHARE = 0.1  # of that time: a handler that waits longer for a CPU may miss the deadline only for that reason

Span = tuple[float, float]  # from, until; seconds since the start of the case


def obstructed_spans(observed: Observed, *, despite_disturbance: bool = False) -> list[Span]:
    """Return the spans of time that do not count against the handler, in order, without overlaps.

    In these spans the case or the platform had ended the program of the judged VM or not started it yet, the program
    was starting after that (5 s at most), the platform acted on its VM, or the case disturbed it, as with spoiled
    answers or a reboot, until a poll got a document again. With `despite_disturbance`, such disturbances are left out:
    a handler must be able to use the answers.
    """
    timeline, vm = observed.timeline, observed.vm
    spans = [*_not_running(timeline, vm), *_acted_on(timeline, vm)]
    if not despite_disturbance:
        spans += _spoiled(timeline, vm)
    return _merge(spans)


def counted_s(spans: Sequence[Span], start: float, end: float) -> float:
    """Return how many seconds between `start` and `end` count, that is, are in none of the spans."""
    lost = sum(max(0.0, min(end, until) - max(start, begin)) for begin, until in spans)
    return max(0.0, end - start - lost)


def deadline_after(spans: Sequence[Span], start: float, seconds: float) -> float:
    """Return the time at which `seconds` that count, outside of the spans, have passed since `start`."""
    at = start
    for begin, until in spans:
        if until <= at:
            continue
        if begin - at >= seconds:
            break
        seconds -= max(0.0, begin - at)
        at = until
    return at + seconds


def why_machine_was_slow(observed: Observed, start: float, deadline: float, event: str = "") -> str:
    """Return why a deadline cannot be held against the handler, as a clause; "" if it can.

    It cannot if the reference poller, a plain poller beside the handler, had no answer in the whole case, or got the
    event only after the deadline or never. Nor can it if, between `start` and `deadline`, that poller had no answer for
    more than 3 s and a quarter of the time, or the handler had to wait for a CPU for more than 3 s and a tenth of the
    time. With a handler that approves for its scope, the last reason counts for its copy on any VM, as copies wait for
    each other.
    """
    timeline = observed.timeline
    answered = [
        poll.answered_at
        for poll in timeline.polls(observed.vm, Poller.REFERENCE)
        if poll.answered_at is not None and poll.status is not None
    ]
    if not answered:
        return "no reference poller ran beside the handler, so it is not known whether the machine was too slow"
    if event:
        delivered = timeline.delivered_at(event, observed.vm, Poller.REFERENCE)
        if delivered is None:
            return "the reference poller did not get the event either"
        if delivered > deadline:
            return f"the reference poller got the event too late as well, {delivered - start:.1f} s later"
    end = max(start, min(deadline, timeline.ended_at))
    gap = longest_gap([at for at in answered if start <= at <= end], start, end)
    if gap > max(_STALL_S, _STALL_SHARE * (end - start)):
        return f"the machine was too slow: the reference poller had no answer for {gap:.1f} s either"
    waits_for_copies = event and observed.claims.approves is Approves.SCOPE
    starved_vm, starved = _longest_starved(timeline, start, end, "" if waits_for_copies else observed.vm)
    if starved > max(_STALL_S, _STARVED_SHARE * (end - start)):
        return f"the machine was too busy: the handler on {starved_vm} had to wait {starved:.1f} s for a CPU"
    return ""


def _longest_starved(timeline: Timeline, start: float, end: float, only_vm: str) -> tuple[str, float]:
    waited: defaultdict[str, float] = defaultdict(float)
    for sample in timeline.of(ResourcesSampled, only_vm or None):
        if start < sample.at <= end:
            waited[sample.vm] += sample.starved_s
    return max(waited.items(), key=lambda item: item[1], default=("", 0.0))


def longest_gap(times: Sequence[float], start: float, end: float) -> float:
    """Return the longest time between `start` and `end` that has none of these sorted times in it."""
    return max(intervals_between([start, *times, end]), default=0.0)


def is_spoiled(poll: Polled) -> bool:
    """Return whether a poll got a substitute answer without a document; a 304 is not spoiled."""
    return bool(poll.substitute) and poll.incarnation is None and poll.status != 304


def disturbed_spans(observed: Observed) -> list[Span]:
    """Return the spans in which the case disturbed the judged VM, in order, without overlaps."""
    return _merge(
        (item.at, item.until)
        for item in observed.timeline.of(Disturbance)
        if item.vm in ("", observed.vm) and item.until is not None
    )


def _not_running(timeline: Timeline, vm: str) -> Iterator[Span]:
    """Yield when the program was not running through no fault of its own, and when it was starting."""
    changes = [
        item for item in timeline.observations if isinstance(item, ProgramStarted | ProgramExited) and item.vm == vm
    ]
    down_since: float | None = 0.0 if changes else None
    for item in changes:
        if isinstance(item, ProgramExited):
            down_since = item.at if item.by_case else None
        elif down_since is not None:
            yield down_since, _started_up(timeline, vm, item.at)
            down_since = None
    if down_since is not None:
        yield down_since, timeline.ended_at


def _started_up(timeline: Timeline, vm: str, started_at: float) -> float:
    """Return when a program that was started then had polled, or should have."""
    polled = (poll.at for poll in timeline.polls(vm) if poll.at >= started_at)
    return min(next(polled, started_at + START_UP_S), started_at + START_UP_S)


def _spoiled(timeline: Timeline, vm: str) -> Iterator[Span]:
    """Yield when the handler could get no document because the case spoiled its answers."""
    good = [
        poll.answered_at
        for poll in timeline.polls(vm)
        if poll.answered_at is not None and (poll.incarnation is not None or poll.status == 304)
    ]
    for item in timeline.of(Disturbance):
        if item.vm in ("", vm) and item.until is not None:
            yield item.at, min([item.until, *(at for at in good if at > item.at)])
    run: list[float] = []
    for poll in timeline.polls(vm):
        if is_spoiled(poll):
            run.append(poll.at)
        elif run:
            yield run[0], run[-1]
            run = []
    if run:
        yield run[0], run[-1]


def _acted_on(timeline: Timeline, vm: str) -> Iterator[Span]:
    for item in timeline.of(Impact, vm):
        yield item.at, timeline.ended_at if item.until is None else item.until


def _merge(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, until in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(until, merged[-1][1]))
        elif until > begin:
            merged.append((begin, until))
    return merged
