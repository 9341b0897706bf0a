"""Only time in which a handler could act counts against it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.crash_test.case import Observed
from forewarn.crash_test.claims import DEFAULT_CLAIMS, HandlerProfile
from forewarn.crash_test.fair_time import (
    Span,
    counted_s,
    deadline_after,
    disturbed_spans,
    longest_gap,
    obstructed_spans,
    why_machine_was_slow,
)
from forewarn.crash_test.timeline import Disturbance, Impact, ProgramExited, ProgramStarted, ResourcesSampled
from tests.support.crash_timelines import NEIGHBOUR, VM, observe, polled, published

STARTED = ProgramStarted(at=0.0, vm=VM, run=1)


def starved(*times: float, seconds: float = 0.9, vm: str = VM) -> list[ResourcesSampled]:
    """Samples of a handler that waited for a CPU for most of the second before each of these times."""
    return [
        ResourcesSampled(at=at, vm=vm, cpu_s=1.0, memory_bytes=1, connections=0, processes=1, starved_s=seconds)
        for at in times
    ]


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(STARTED, polled(2.0)), [(0.0, 2.0)], id="until its first poll"),
        pytest.param(observe(STARTED, polled(30.0)), [(0.0, 5.0)], id="at most five seconds after its start"),
        pytest.param(observe(has_start=False), [], id="a program that something else started"),
        pytest.param(
            observe(STARTED, polled(0.5), ProgramExited(at=20.0, vm=VM, code=1), ProgramStarted(at=30.0, vm=VM, run=2)),
            [(0.0, 0.5)],
            id="its own exit counts",
        ),
        pytest.param(
            observe(
                STARTED,
                polled(0.5),
                ProgramExited(at=20.0, vm=VM, code=None, signal=9, by_case=True),
                ProgramStarted(at=30.0, vm=VM, run=2),
                polled(31.0),
            ),
            [(0.0, 0.5), (20.0, 31.0)],
            id="a kill by the case does not",
        ),
        pytest.param(
            observe(STARTED, polled(0.5), Impact(at=10.0, vm=VM, verb="freeze", until=19.0)),
            [(0.0, 0.5), (10.0, 19.0)],
            id="frozen",
        ),
        pytest.param(
            observe(STARTED, polled(0.5), Impact(at=10.0, vm=NEIGHBOUR, verb="freeze", until=19.0)),
            [(0.0, 0.5)],
            id="a neighbour frozen",
        ),
        pytest.param(
            observe(STARTED, polled(0.5), Impact(at=10.0, vm=VM, verb="evict")),
            [(0.0, 0.5), (10.0, 60.0)],
            id="evicted",
        ),
        pytest.param(
            observe(STARTED, polled(0.5), Disturbance(at=10.0, vm=VM, text="refused", until=20.0)),
            [(0.0, 0.5), (10.0, 20.0)],
            id="cut off",
        ),
        pytest.param(
            observe(
                STARTED,
                polled(0.5),
                Disturbance(at=10.0, vm=VM, text="NotBefore as an ISO date", until=20.0),
                polled(12.0, "E1", substitute="NotBefore as an ISO date"),
            ),
            [(0.0, 0.5), (10.0, 12.0)],
            id="a changed document counts once it was got",
        ),
        pytest.param(
            observe(
                STARTED,
                polled(0.5),
                polled(12.0, status=503, substitute="503"),
                polled(15.0, status=503, substitute="503"),
                polled(18.0),
            ),
            [(0.0, 0.5), (12.0, 15.0)],
            id="between spoiled answers",
        ),
        pytest.param(
            observe(STARTED, polled(0.5), Disturbance(at=10.0, vm=VM, text="the handler was killed")),
            [(0.0, 0.5)],
            id="a disturbance without an end",
        ),
    ],
)
def test_time_in_which_a_handler_could_not_act_does_not_count(observed: Observed, expected: list[Span]) -> None:
    assert obstructed_spans(observed) == expected


def test_spoiled_answers_can_count() -> None:
    observed = observe(STARTED, polled(0.5), Disturbance(at=10.0, vm=VM, text="slow", until=20.0))
    assert obstructed_spans(observed, despite_disturbance=True) == [(0.0, 0.5)]


def test_only_disturbances_of_the_judged_vm_are_listed() -> None:
    observed = observe(
        Disturbance(at=10.0, vm=VM, text="503", until=15.0),
        Disturbance(at=14.0, vm=VM, text="429", until=20.0),
        Disturbance(at=30.0, vm=NEIGHBOUR, text="503", until=40.0),
    )
    assert disturbed_spans(observed) == [(10.0, 20.0)]


@pytest.mark.parametrize(
    ("start", "seconds", "expected"),
    [(0.0, 4.0, 4.0), (0.0, 5.0, 5.0), (0.0, 6.0, 11.0), (7.0, 1.0, 11.0), (12.0, 3.0, 15.0), (0.0, 16.0, 31.0)],
)
def test_a_deadline_is_moved_by_what_does_not_count(start: float, seconds: float, expected: float) -> None:
    assert deadline_after([(5.0, 10.0), (20.0, 30.0)], start, seconds) == expected


@given(
    st.lists(st.integers(0, 100), min_size=2, max_size=8, unique=True).map(sorted),
    st.integers(0, 100),
    st.integers(1, 50),
)
def test_as_much_time_counts_until_a_deadline_as_was_given(edges: list[int], start: int, seconds: int) -> None:
    pairs = zip(edges[::2], edges[1::2], strict=False)
    spans = [(float(begin), float(until)) for begin, until in pairs]
    deadline = deadline_after(spans, float(start), float(seconds))
    assert counted_s(spans, float(start), deadline) == pytest.approx(seconds)


def test_the_longest_gap_includes_both_ends() -> None:
    assert longest_gap([2.0, 5.0], 0.0, 10.0) == 5.0
    assert longest_gap([], 0.0, 10.0) == 10.0
    assert longest_gap([9.0], 0.0, 10.0) == 9.0


@pytest.mark.parametrize(
    ("observed", "part"),
    [
        pytest.param(observe(published()), "", id="fast enough"),
        pytest.param(observe(published(), has_reference=False), "no reference poller", id="no reference poller"),
        pytest.param(observe(published(), stalls=(0.0, 60.0)), "no reference poller", id="it got no answer at all"),
        pytest.param(observe(published(), stalls=(10.0, 60.0)), "did not get the event", id="it never got the event"),
        pytest.param(observe(published(), stalls=(10.0, 35.0)), "too late as well", id="it got the event too late"),
        pytest.param(observe(published(), stalls=(12.0, 20.0)), "too slow", id="it had a long gap"),
    ],
)
def test_a_slow_machine_is_recognized_by_the_reference_poller(observed: Observed, part: str) -> None:
    reason = why_machine_was_slow(observed, 10.0, 30.0, "E1")
    assert part in reason
    assert bool(part) == bool(reason)


@pytest.mark.parametrize(
    ("samples", "is_excused"),
    [
        pytest.param(starved(*range(11, 31)), True, id="it waited all the time"),
        pytest.param(starved(11, 12, 20, 21, 22, 28), True, id="it waited for a quarter of the time"),
        pytest.param(starved(11, 12, 20, 21), True, id="it waited for more than three seconds"),
        pytest.param(starved(11, 12, 20), False, id="it waited for less"),
        pytest.param(starved(*range(11, 31), seconds=0.1), False, id="it waited a little each time"),
        pytest.param(starved(*range(1, 11), *range(31, 50)), False, id="it waited before and afterwards"),
        pytest.param(starved(*range(11, 31), vm=NEIGHBOUR), False, id="another VM waited"),
    ],
)
def test_a_handler_that_waited_for_a_cpu_is_not_blamed(samples: list[ResourcesSampled], is_excused: bool) -> None:
    reason = why_machine_was_slow(observe(published(), *samples), 10.0, 30.0, "E1")
    assert reason.startswith(f"the machine was too busy: the handler on {VM} had to wait") == is_excused
    assert bool(reason) == is_excused


@pytest.mark.parametrize(
    ("samples", "event", "is_excused"),
    [
        pytest.param(starved(*range(11, 31), vm=NEIGHBOUR), "E1", True, id="another VM waited"),
        pytest.param(starved(11, 12) + starved(20, 21, vm=NEIGHBOUR), "E1", False, id="both waited for less"),
        pytest.param(starved(*range(11, 31), vm=NEIGHBOUR), "", False, id="its own polls depend on no other VM"),
    ],
)
def test_copies_that_approve_for_each_other_are_not_blamed_if_one_waited(
    samples: list[ResourcesSampled], event: str, is_excused: bool
) -> None:
    observed = observe(published(), *samples, claims=DEFAULT_CLAIMS[HandlerProfile.CLUSTER])
    reason = why_machine_was_slow(observed, 10.0, 30.0, event)
    assert reason.startswith(f"the machine was too busy: the handler on {NEIGHBOUR} had to wait") == is_excused
    assert bool(reason) == is_excused
