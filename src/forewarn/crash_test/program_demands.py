"""Demands on the program itself: it keeps polling, does not exit, and uses few resources.

They are pure functions, like those of `demands`.
"""

from __future__ import annotations

from collections.abc import Sequence

from forewarn.crash_test import remedies
from forewarn.crash_test.case import Demand, Observed
from forewarn.crash_test.claims import HandlerClaims
from forewarn.crash_test.fair_time import (
    START_UP_S,
    Span,
    counted_s,
    deadline_after,
    disturbed_spans,
    is_spoiled,
    obstructed_spans,
    why_machine_was_slow,
)
from forewarn.crash_test.judgement import Deadline, Judgement, judge_deadline
from forewarn.crash_test.timeline import (
    Approved,
    OtherRequest,
    Polled,
    Poller,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    ResourcesSampled,
)
from forewarn.crash_test.verdict import CaseOutcome

_WINDOW_S = 5.0  # over which request rates are measured


def does_not_exit() -> Demand:
    """Demand that the program on the judged VM does not end by itself.

    Exits that the case or the platform caused do not count. The outcome is unknown if the program was never started.
    Does not apply to handlers that claim one-shot or run elsewhere.
    """

    def judge(observed: Observed) -> Judgement:
        exits = [item for item in observed.timeline.of(ProgramExited, observed.vm) if not item.by_case]
        if exits:
            how = f"signal {exits[0].signal}" if exits[0].code is None else f"status {exits[0].code}"
            return CaseOutcome.FAIL, f"it ended by itself at {exits[0].at:.1f} s, with {how}", (exits[0].at,)
        if not observed.timeline.of(ProgramStarted, observed.vm):
            return CaseOutcome.UNKNOWN, "the crash test did not start its program, so this cannot be judged", ()
        return CaseOutcome.PASS, "it did not end by itself", ()

    return Demand(
        text="it does not exit", judge=judge, watches_process=True, remedy=remedies.DO_NOT_EXIT, applies=_runs_always
    )


def still_polls() -> Demand:
    """Demand that the handler still polls when the case ends.

    A last answer within two claimed intervals plus a second before the end is in time, within three plus 5 s slow,
    earlier a failure. A poll that was never answered counts as in time. Time in which the handler could not poll does
    not count. The outcome is unknown for a handler that never polled and hardly could, and for a late one if the
    machine was too slow. Does not apply to handlers that claim one-shot.
    """

    def judge(observed: Observed) -> Judgement:
        final = observed.timeline.ended_at
        polls = observed.timeline.polls(observed.vm)
        spans = obstructed_spans(observed)
        every_s = observed.claims.polls_every_s
        last = max((final if poll.answered_at is None else poll.answered_at for poll in polls), default=0.0)
        silent_s = counted_s(spans, last, final)
        seen = f"its last poll came {final - last:.1f} s before the end of the case" if polls else "it never polled"
        if silent_s <= 2 * every_s + 1.0:
            return (CaseOutcome.PASS if polls else CaseOutcome.UNKNOWN), seen, (last,)
        reason = why_machine_was_slow(observed, last, final)
        if reason:
            return CaseOutcome.UNKNOWN, f"{seen}; {reason}", (last,)
        return (CaseOutcome.SLOW if silent_s <= 3 * every_s + START_UP_S else CaseOutcome.FAIL), seen, (last,)

    return Demand(text="it still polls at the end", judge=judge, remedy=remedies.KEEP_POLLING, applies=_runs_always)


def polls_again(*, within_s: float | None = None, at_most_s: float | None = None) -> Demand:
    """Demand that a poll is answered within `within_s` of the last disturbance; slow until `at_most_s`.

    By default the limits are two poll intervals that the handler claims plus 2 s, and three plus 5 s. Answered means
    200 or 304. Time in which the handler could not poll does not count. The outcome is unknown if no disturbance ended
    before the case did, the machine was too slow, or the case ended before the second limit without such a poll. Does
    not apply to handlers that claim one-shot.
    """
    limit = "a few poll intervals" if within_s is None else f"{within_s:g} s"

    def judge(observed: Observed) -> Judgement:
        end = _end_of_trouble(observed)
        if end is None:
            return CaseOutcome.UNKNOWN, "the case ended before its disturbance did, so this cannot be judged", ()
        return _judge_next_poll(observed, end, within_s, at_most_s, "the last disturbance")

    text = f"its polls are answered again within {limit} of the last disturbance"
    return Demand(text=text, judge=judge, remedy=remedies.KEEP_POLLING, applies=_runs_always)


def polls_after_restart(*, within_s: float = 10.0, at_most_s: float = 15.0) -> Demand:
    """Demand that a poll is answered within `within_s` of the program's restart; slow until `at_most_s`.

    Answered means 200 or 304. The restart is the second start of the program; if the case or the platform had ended it,
    up to 5 s that it takes to start do not count. The outcome is unknown if there is no restart, the machine was too
    slow, or the case ended before the second limit without such a poll. Does not apply to handlers that claim one-shot
    or run elsewhere.
    """

    def judge(observed: Observed) -> Judgement:
        starts = observed.timeline.of(ProgramStarted, observed.vm)
        if len(starts) < 2:
            return CaseOutcome.UNKNOWN, "its program was not started again while the case ran", ()
        return _judge_next_poll(observed, starts[1].at, within_s, at_most_s, "its restart")

    return Demand(
        text=f"it polls within {within_s:g} s after its restart",
        judge=judge,
        watches_process=True,
        remedy=remedies.POLL_AT_START,
        applies=_runs_always,
    )


def polls_regularly(*, within_s: float | None = None, at_most_s: float | None = None) -> Demand:
    """Demand that the time between two polls is at most `within_s`; until `at_most_s` it is slow.

    The time counts from the answer of one poll to the next poll. By default, and at least, the limit is 1.25 poll
    intervals that the handler claims plus a second; slow until two intervals plus 2 s. Time before the first poll, and
    time in which the handler could not poll, does not count; time from the last poll to the end does, and without any
    poll the whole case counts. The outcome is unknown if the machine was too slow. Does not apply to handlers that
    claim one-shot.
    """
    limit = "as often as it claims" if within_s is None else f"at least every {within_s:g} s"

    def judge(observed: Observed) -> Judgement:
        every_s = observed.claims.polls_every_s
        spans = obstructed_spans(observed)
        gap_s, begin, end = _longest_silence(observed, spans)
        seen = f"the longest time between two polls was {gap_s:.1f} s, and it claims {every_s:g} s"
        soon_s = 1.25 * every_s + 1.0 if within_s is None else max(within_s, 1.25 * every_s + 1.0)
        late_s = max(soon_s, 2 * every_s + 2.0 if at_most_s is None else at_most_s)
        if gap_s <= soon_s:
            return CaseOutcome.PASS, seen, ()
        reason = why_machine_was_slow(observed, begin, end)
        if reason:
            return CaseOutcome.UNKNOWN, f"{seen}; {reason}", (begin, end)
        return (CaseOutcome.SLOW if gap_s <= late_s else CaseOutcome.FAIL), seen, (begin, end)

    return Demand(text=f"it polls {limit}", judge=judge, remedy=remedies.POLL_OFTEN, applies=_runs_always)


def requests_at_most(per_s: float = 5.0) -> Demand:
    """Demand that the handler on the judged VM sends at most this many requests a second, of all kinds.

    The rate is the average over any five seconds of the service's clock; a handler that sends none passes. Applies to
    all handlers.
    """

    def judge(observed: Observed) -> Judgement:
        rate, at = _highest_rate(_request_times(observed))
        seen = f"it sent at most {rate:.1f} requests a second over {_WINDOW_S:g} s"
        return (CaseOutcome.FAIL if rate > per_s else CaseOutcome.PASS), seen, at

    return Demand(text=f"it sends at most {per_s:g} requests a second", judge=judge, remedy=remedies.SEND_LESS)


def requests_at_most_during_errors(per_s: float = 2.0) -> Demand:
    """Demand that the handler sends at most this many requests a second while its answers are spoiled.

    The rate is the average over any five seconds; only requests on the judged VM during disturbances that have ended
    count. The outcome is unknown if no disturbance has ended; a handler that sends none passes. Applies to all
    handlers.
    """

    def judge(observed: Observed) -> Judgement:
        spans = disturbed_spans(observed)
        if not spans:
            return CaseOutcome.UNKNOWN, "the case ended before its disturbance did, so this cannot be judged", ()
        times = [at for at in _request_times(observed) if any(begin <= at <= until for begin, until in spans)]
        rate, at = _highest_rate(times)
        seen = f"it sent at most {rate:.1f} requests a second over {_WINDOW_S:g} s during errors"
        return (CaseOutcome.FAIL if rate > per_s else CaseOutcome.PASS), seen, at

    return Demand(
        text=f"it sends at most {per_s:g} requests a second during errors", judge=judge, remedy=remedies.BACK_OFF
    )


def sends_metadata_header() -> Demand:
    """Demand that every poll and approval of the handler, on all VMs, has the header `Metadata: true`.

    Other requests do not count. The outcome is unknown if there is no poll or approval. Applies to all handlers.
    """

    def judge(observed: Observed) -> Judgement:
        requests = [item for item in observed.timeline.of(Polled) if item.by is Poller.HANDLER]
        approvals = [item for item in observed.timeline.of(Approved) if item.by is Poller.HANDLER]
        sent: list[Polled | Approved] = [*requests, *approvals]
        without = sorted(item.at for item in sent if not item.has_header)
        if without:
            first = without[0]
            return CaseOutcome.FAIL, f"{len(without)} requests had no header, the first at {first:.1f} s", (first,)
        if not requests and not approvals:
            return CaseOutcome.UNKNOWN, "it sent no request, so this cannot be judged", ()
        return CaseOutcome.PASS, f"all {len(requests) + len(approvals)} requests had the header", ()

    return Demand(text="it sends `Metadata: true` with every request", judge=judge, remedy=remedies.SEND_HEADER)


def connections_at_most(open_at_once: int = 5) -> Demand:
    """Demand that the handler has at most this many connections to the metadata endpoint at once.

    They are counted once a second of real time, on the judged VM. The outcome is unknown if they were never counted.
    Does not apply to handlers that run elsewhere.
    """

    def judge(observed: Observed) -> Judgement:
        samples = observed.timeline.of(ResourcesSampled, observed.vm)
        if not samples:
            return CaseOutcome.UNKNOWN, "its resources were not sampled", ()
        most = max(samples, key=lambda item: item.connections)
        outcome = CaseOutcome.FAIL if most.connections > open_at_once else CaseOutcome.PASS
        return outcome, f"it had at most {most.connections} connections open at once", (most.at,)

    return Demand(
        text=f"it has at most {open_at_once} connections open at once",
        judge=judge,
        watches_process=True,
        remedy=remedies.REUSE_CONNECTIONS,
    )


def memory_grows_at_most(mebibytes: float = 32.0) -> Demand:
    """Demand that the handler's memory, with child processes, grows at most by this much in one run.

    Memory is sampled once a second, on the judged VM; the time from four seconds after the start of a run to its last
    sample counts. The outcome is unknown if that is under 8 s in every run. The run that grew most decides. Does not
    apply to handlers that run elsewhere.
    """

    def judge(observed: Observed) -> Judgement:
        grown, at = 0, 0.0
        runs = observed.timeline.settled_samples(observed.vm)
        for run in runs:
            grown, at = max((grown, at), (run[-1].memory_bytes - run[0].memory_bytes, run[-1].at))
        if not runs:
            return CaseOutcome.UNKNOWN, "its program did not run long enough to tell whether its memory grows", ()
        outcome = CaseOutcome.FAIL if grown > mebibytes * 1024 * 1024 else CaseOutcome.PASS
        return outcome, f"its memory grew by {grown / 1024 / 1024:.1f} MiB", (at,)

    return Demand(
        text=f"its memory grows by at most {mebibytes:g} MiB",
        judge=judge,
        watches_process=True,
        remedy=remedies.FREE_MEMORY,
    )


def processes_at_most(count: int = 32) -> Demand:
    """Demand that the handler has at most this many processes at once: it does not leave them behind.

    They are counted once a second of real time, on the judged VM. The outcome is unknown if they were never counted.
    Does not apply to handlers that run elsewhere.
    """

    def judge(observed: Observed) -> Judgement:
        samples = observed.timeline.of(ResourcesSampled, observed.vm)
        if not samples:
            return CaseOutcome.UNKNOWN, "its resources were not sampled", ()
        most = max(samples, key=lambda item: item.processes)
        outcome = CaseOutcome.FAIL if most.processes > count else CaseOutcome.PASS
        return outcome, f"it had at most {most.processes} processes at once", (most.at,)

    return Demand(
        text=f"it has at most {count} processes at once",
        judge=judge,
        watches_process=True,
        remedy=remedies.WAIT_FOR_CHILDREN,
    )


def cpu_at_most(share: float = 0.25) -> Demand:
    """Demand that the handler uses at most this share (0.25: a quarter) of one CPU, on average over a run.

    CPU time is sampled once a second on the judged VM, and divided by seconds of the service's clock; the time from
    four seconds after the start of a run to its last sample counts. The outcome is unknown if that is under 8 s in
    every run. The run that used most decides. Does not apply to handlers that run elsewhere.
    """

    def judge(observed: Observed) -> Judgement:
        worst, at = 0.0, 0.0
        runs = observed.timeline.settled_samples(observed.vm)
        for run in runs:
            used = (run[-1].cpu_s - run[0].cpu_s) / (run[-1].at - run[0].at)
            worst, at = max((worst, at), (used, run[-1].at))
        if not runs:
            return CaseOutcome.UNKNOWN, "its program did not run long enough to tell how much CPU it uses", ()
        outcome = CaseOutcome.FAIL if worst > share else CaseOutcome.PASS
        return outcome, f"it used {worst * 100:.0f} % of one CPU", (at,)

    return Demand(
        text=f"it uses at most {share * 100:.0f} % of one CPU",
        judge=judge,
        watches_process=True,
        remedy=remedies.SLEEP_BETWEEN_POLLS,
    )


def output_at_most(lines_per_s: float = 5.0) -> Demand:
    """Demand that the handler writes at most this many lines a second while answers are spoiled.

    That is the average over all disturbances that have ended; the outcome is unknown if they lasted less than 5 s in
    total. Recorded lines of the judged VM count, at most 1000 in a case. Does not apply to handlers that run elsewhere.
    """

    def judge(observed: Observed) -> Judgement:
        spans = disturbed_spans(observed)
        lasted_s = sum(until - begin for begin, until in spans)
        if lasted_s < _WINDOW_S:
            return CaseOutcome.UNKNOWN, "the disturbance was too short to tell how much it writes", ()
        lines = [
            item.at
            for item in observed.timeline.of(ProgramOutput, observed.vm)
            if any(begin <= item.at <= until for begin, until in spans)
        ]
        outcome = CaseOutcome.FAIL if len(lines) > lines_per_s * lasted_s else CaseOutcome.PASS
        return outcome, f"it wrote {len(lines)} lines in {lasted_s:.1f} s of errors", tuple(lines[:1])

    return Demand(
        text=f"it writes at most {lines_per_s:g} lines a second during errors",
        judge=judge,
        watches_process=True,
        remedy=remedies.LOG_LESS,
    )


def _runs_always(claims: HandlerClaims) -> bool:
    return not claims.one_shot


def _judge_next_poll(
    observed: Observed, start: float, within_s: float | None, at_most_s: float | None, after: str
) -> Judgement:
    """Judge how long after `start` a poll was answered; without limits, by the claimed interval."""
    every_s = observed.claims.polls_every_s
    soon_s = 2 * every_s + 2.0 if within_s is None else within_s
    late_s = max(soon_s, 3 * every_s + 5.0 if at_most_s is None else at_most_s)
    answered = (
        poll.answered_at
        for poll in observed.timeline.polls(observed.vm)
        if poll.answered_at is not None and poll.answered_at >= start and poll.status in (200, 304)
    )
    at = next(answered, None)
    spans = obstructed_spans(observed)
    deadline = Deadline(
        start=start, soon=deadline_after(spans, start, soon_s), late=deadline_after(spans, start, late_s)
    )
    return judge_deadline(
        observed,
        at,
        deadline,
        seen=f"a poll was answered {0.0 if at is None else at - start:.1f} s after {after}",
        missing=f"no poll was answered in the {observed.timeline.ended_at - start:.1f} s after {after}",
    )


def _end_of_trouble(observed: Observed) -> float | None:
    ends = [until for _, until in disturbed_spans(observed)]
    ends += [poll.at for poll in observed.timeline.polls(observed.vm) if is_spoiled(poll)]
    return max((at for at in ends if at < observed.timeline.ended_at), default=None)


def _longest_silence(observed: Observed, spans: Sequence[Span]) -> tuple[float, float, float]:
    # The time until the first poll does not count: on a busy machine a program takes long to start.
    polls = observed.timeline.polls(observed.vm)
    final = observed.timeline.ended_at
    begins = [poll.at if poll.answered_at is None else poll.answered_at for poll in polls] or [0.0]
    ends = [*(poll.at for poll in polls[1:]), final]
    silences = [(counted_s(spans, begin, end), begin, end) for begin, end in zip(begins, ends, strict=True)]
    return max(silences)


def _request_times(observed: Observed) -> list[float]:
    requests = [
        item.at
        for item in observed.timeline.observations
        if isinstance(item, Polled | Approved | OtherRequest) and item.by is Poller.HANDLER and item.vm == observed.vm
    ]
    return sorted(requests)


def _highest_rate(times: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    best, at, first = 0, 0.0, 0
    for last, time in enumerate(times):
        while times[first] < time - _WINDOW_S:
            first += 1
        if last - first + 1 > best:
            best, at = last - first + 1, times[first]
    return best / _WINDOW_S, ((at,) if best else ())
