"""Demands on the program itself are judged fairly from a timeline."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from forewarn.crash_test.case import Demand, Observed
from forewarn.crash_test.claims import HandlerClaims
from forewarn.crash_test.figures import compute_figures
from forewarn.crash_test.program_demands import (
    connections_at_most,
    cpu_at_most,
    does_not_exit,
    memory_grows_at_most,
    output_at_most,
    polls_after_restart,
    polls_again,
    polls_regularly,
    processes_at_most,
    requests_at_most,
    requests_at_most_during_errors,
    sends_metadata_header,
    still_polls,
)
from forewarn.crash_test.timeline import (
    Disturbance,
    Impact,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    ResourcesSampled,
)
from forewarn.crash_test.verdict import CaseOutcome
from tests.support.crash_timelines import VM, approval, observe, outcome_of, polled, polls, published

PASS, SLOW, FAIL, UNKNOWN = CaseOutcome.PASS, CaseOutcome.SLOW, CaseOutcome.FAIL, CaseOutcome.UNKNOWN
STARTED = ProgramStarted(at=0.0, vm=VM, run=1)
KILLED = ProgramExited(at=20.0, vm=VM, code=None, signal=9, by_case=True)
RESTARTED = ProgramStarted(at=21.0, vm=VM, run=2)
TROUBLE = Disturbance(at=10.0, vm=VM, text="status 503", until=20.0)


def every(seconds: float, start: float = 1.0, end: float = 60.0) -> list[float]:
    return [start + number * seconds for number in range(int((end - start) / seconds) + 1)]


def samples(
    *memory_mib: float, cpu_s: Sequence[float] = (), connections: int = 1, processes: int = 1
) -> list[ResourcesSampled]:
    """One sample every five seconds."""
    return [
        ResourcesSampled(
            at=1.0 + 5.0 * number,
            vm=VM,
            cpu_s=cpu_s[number] if cpu_s else 0.0,
            memory_bytes=int(value * 1024 * 1024),
            connections=connections,
            processes=processes,
        )
        for number, value in enumerate(memory_mib)
    ]


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(STARTED), PASS, id="runs"),
        pytest.param(observe(STARTED, KILLED, RESTARTED), PASS, id="killed by the case"),
        pytest.param(observe(STARTED, ProgramExited(at=20.0, vm=VM, code=0)), FAIL, id="exits with success"),
        pytest.param(observe(STARTED, ProgramExited(at=20.0, vm=VM, code=None, signal=11)), FAIL, id="crashes"),
        pytest.param(observe(has_start=False), UNKNOWN, id="not started by the crash test"),
    ],
)
def test_a_program_must_not_end_by_itself(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(does_not_exit(), observed) is expected


@pytest.mark.parametrize("demand", [does_not_exit(), still_polls(), polls_again(), polls_regularly()])
def test_a_one_shot_program_may_end(demand: Demand) -> None:
    assert not demand.applies(HandlerClaims(one_shot=True))
    assert demand.applies(HandlerClaims())


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(polls(every(5.0))), PASS, id="polls to the end"),
        pytest.param(observe(polls(every(5.0, end=45.0))), SLOW, id="silent for three intervals"),
        pytest.param(observe(polls(every(5.0, end=20.0))), FAIL, id="stopped"),
        pytest.param(observe(), FAIL, id="never polled"),
        pytest.param(observe(polls(every(5.0, end=20.0)), stalls=(21.0, 60.0)), UNKNOWN, id="the machine stalled"),
        pytest.param(
            observe(polls(every(5.0, end=20.0)), Impact(at=22.0, vm=VM, verb="evict")), PASS, id="the VM was removed"
        ),
        pytest.param(observe(STARTED, KILLED, polls(every(5.0, end=20.0))), PASS, id="killed for good"),
        pytest.param(observe(polls([1.0, 5.0]), polled(9.0, takes_s=50.0)), PASS, id="waits in a long poll"),
    ],
)
def test_a_handler_must_still_poll_at_the_end(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(still_polls(), observed) is expected


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(TROUBLE, polled(15.0, status=503, substitute="503"), polled(24.0)), PASS, id="at once"),
        pytest.param(observe(TROUBLE, polled(24.0, status=304)), PASS, id="nothing new"),
        pytest.param(observe(TROUBLE, polled(38.0)), SLOW, id="after a long pause"),
        pytest.param(observe(TROUBLE, polled(15.0, status=503, substitute="503")), FAIL, id="never again"),
        pytest.param(observe(TROUBLE, polled(24.0, status=400)), FAIL, id="only errors"),
        pytest.param(observe(TROUBLE, ended_at=22.0), UNKNOWN, id="the case ended too early"),
        pytest.param(observe(polls(every(5.0))), UNKNOWN, id="nothing was disturbed"),
        pytest.param(observe(TROUBLE, stalls=(20.0, 60.0)), UNKNOWN, id="the machine stalled"),
    ],
)
def test_polls_must_be_answered_again_after_trouble(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(polls_again(), observed) is expected


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(STARTED, KILLED, RESTARTED, polled(30.0)), PASS, id="soon"),
        pytest.param(observe(STARTED, KILLED, RESTARTED, polled(39.0)), SLOW, id="late"),
        pytest.param(observe(STARTED, KILLED, RESTARTED), FAIL, id="never"),
        pytest.param(observe(STARTED), UNKNOWN, id="was not restarted"),
    ],
)
def test_a_restarted_program_must_poll(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(polls_after_restart(within_s=10.0, at_most_s=15.0), observed) is expected


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(polls(every(5.0))), PASS, id="every five seconds"),
        pytest.param(observe(polls(every(10.0))), SLOW, id="every ten seconds"),
        pytest.param(observe(polls(every(15.0))), FAIL, id="every fifteen seconds"),
        pytest.param(observe(polls(every(15.0)), claims=HandlerClaims(polls_every_s=15.0)), PASS, id="as it claims"),
        pytest.param(observe(polls(every(15.0)), stalls=(1.0, 60.0)), UNKNOWN, id="the machine stalled"),
        pytest.param(observe(polls(every(5.0, start=20.0))), PASS, id="slow to start"),
        pytest.param(observe(), FAIL, id="never"),
        pytest.param(
            observe(polls([1.0, 6.0, 11.0]), Disturbance(at=12.0, vm=VM, text="refused", until=55.0)),
            PASS,
            id="was cut off",
        ),
    ],
)
def test_a_handler_must_poll_as_often_as_it_claims(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(polls_regularly(), observed) is expected


def test_a_limit_for_pauses_is_never_shorter_than_the_claim() -> None:
    observed = observe(polls(every(20.0)), claims=HandlerClaims(polls_every_s=20.0))
    assert outcome_of(polls_regularly(within_s=10.0, at_most_s=15.0), observed) is PASS
    assert outcome_of(polls_regularly(within_s=10.0, at_most_s=15.0), observe(polls(every(20.0)))) is FAIL


def test_requests_are_counted_over_five_seconds() -> None:
    calm, storm = polls(every(1.0)), polls(every(0.1, start=30.0, end=36.0))
    assert outcome_of(requests_at_most(2.0), observe(calm)) is PASS
    assert outcome_of(requests_at_most(2.0), observe(calm, storm)) is FAIL
    assert outcome_of(requests_at_most(2.0), observe(calm, [approval(at) for at in every(0.1, 30.0, 36.0)])) is FAIL


def test_requests_during_errors_are_counted_only_then() -> None:
    demand = requests_at_most_during_errors(2.0)
    assert outcome_of(demand, observe(TROUBLE, polls(every(1.0)))) is PASS
    assert outcome_of(demand, observe(TROUBLE, polls(every(0.1, start=11.0, end=19.0)))) is FAIL
    assert outcome_of(demand, observe(TROUBLE, polls(every(0.1, start=30.0, end=39.0)))) is PASS
    assert outcome_of(demand, observe(polls(every(1.0)))) is UNKNOWN


def test_every_request_must_have_the_header() -> None:
    demand = sends_metadata_header()
    assert outcome_of(demand, observe(polled(1.0), approval(2.0))) is PASS
    assert outcome_of(demand, observe(polled(1.0), polled(2.0, has_header=False))) is FAIL
    assert outcome_of(demand, observe()) is UNKNOWN


def test_open_connections_are_bounded() -> None:
    assert outcome_of(connections_at_most(4), observe(samples(10, 10, connections=4))) is PASS
    assert outcome_of(connections_at_most(4), observe(samples(10, 10, connections=5))) is FAIL
    assert outcome_of(connections_at_most(4), observe()) is UNKNOWN


def test_processes_are_bounded() -> None:
    assert outcome_of(processes_at_most(4), observe(samples(10, processes=4))) is PASS
    assert outcome_of(processes_at_most(4), observe(samples(10, processes=40))) is FAIL
    assert outcome_of(processes_at_most(4), observe()) is UNKNOWN


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        pytest.param((5, 30, 30, 31, 30), PASS, id="steady after its start"),
        pytest.param((5, 30, 60, 90, 120), FAIL, id="grows"),
        pytest.param((30, 30), UNKNOWN, id="too short"),
        pytest.param((), UNKNOWN, id="not sampled"),
    ],
)
def test_memory_must_not_grow(memory: tuple[float, ...], expected: CaseOutcome) -> None:
    assert outcome_of(memory_grows_at_most(32.0), observe(samples(*memory))) is expected


def test_memory_growth_is_judged_from_four_seconds_after_the_start_as_in_the_figures() -> None:
    first, second, third = samples(5, 30, 70)
    observed = observe(STARTED, first, replace(second, at=4.5), replace(third, at=13.0))

    assert compute_figures([(observed.timeline, VM, ())]).memory_growth_bytes == 40 * 1024 * 1024
    assert outcome_of(memory_grows_at_most(40.0), observed) is PASS
    assert outcome_of(memory_grows_at_most(39.0), observed) is FAIL


def test_memory_of_two_runs_is_not_compared() -> None:
    runs = [
        *samples(30, 30, 30, 30),
        ResourcesSampled(at=40.0, vm=VM, cpu_s=0, memory_bytes=10**9, connections=0, processes=1),
    ]
    assert outcome_of(memory_grows_at_most(32.0), observe(STARTED, KILLED, RESTARTED, runs)) is PASS


@pytest.mark.parametrize(
    ("cpu_s", "expected"),
    [
        pytest.param((1.0, 1.1, 1.2, 1.3), PASS, id="idle"),
        pytest.param((1.0, 6.0, 11.0, 16.0), FAIL, id="busy"),
        pytest.param((1.0, 2.0), UNKNOWN, id="too short"),
    ],
)
def test_a_handler_must_use_little_cpu(cpu_s: tuple[float, ...], expected: CaseOutcome) -> None:
    observed = observe(samples(*(10.0 for _ in cpu_s), cpu_s=cpu_s))
    assert outcome_of(cpu_at_most(0.25), observed) is expected


def test_output_during_errors_is_bounded() -> None:
    def lines(count: int) -> list[ProgramOutput]:
        return [ProgramOutput(at=11.0, vm=VM, text="error") for _ in range(count)]

    assert outcome_of(output_at_most(5.0), observe(TROUBLE, lines(50))) is PASS
    assert outcome_of(output_at_most(5.0), observe(TROUBLE, lines(51))) is FAIL
    assert outcome_of(output_at_most(5.0), observe(published(), lines(51))) is UNKNOWN
