"""Demands on noticing, preparing and recovering are judged fairly from a timeline."""

from __future__ import annotations

import pytest

from forewarn.crash_test.case import Observed
from forewarn.crash_test.claims import Approves, HandlerClaims
from forewarn.crash_test.demands import (
    if_survives_restart,
    not_prepared_for,
    noticed,
    noticed_before_start,
    prepared_at_most_once,
    prepared_at_start,
    prepared_before_start,
    reacted,
    recovered,
    stays_prepared,
)
from forewarn.crash_test.timeline import (
    Disturbance,
    EventEnded,
    EventStarted,
    Impact,
    Probe,
    ProgramExited,
    ProgramStarted,
)
from forewarn.crash_test.verdict import CaseOutcome
from tests.support.crash_timelines import (
    NEIGHBOUR,
    VM,
    approval,
    observe,
    outcome_of,
    polled,
    prepared,
    published,
    recovered_probe,
)

REBOOT = Impact(at=40.2, vm=VM, verb="reboot", until=42.2, event="E1")
PASS, SLOW, FAIL, UNKNOWN = CaseOutcome.PASS, CaseOutcome.SLOW, CaseOutcome.FAIL, CaseOutcome.UNKNOWN


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), polled(13.0, "E1")), PASS, id="after three seconds"),
        pytest.param(observe(published(), polled(25.0, "E1")), SLOW, id="after fifteen seconds"),
        pytest.param(observe(published(), polled(45.0, "E1")), FAIL, id="after NotBefore"),
        pytest.param(observe(published(), polled(13.0)), FAIL, id="never, although it polls"),
        pytest.param(observe(polled(13.0)), UNKNOWN, id="nothing was published"),
        pytest.param(observe(published(), ended_at=20.0), UNKNOWN, id="the case ended too early"),
        pytest.param(observe(published(), has_reference=False), UNKNOWN, id="no reference poller"),
        pytest.param(observe(published(), stalls=(10.0, 60.0)), UNKNOWN, id="the reference poller saw nothing either"),
        pytest.param(
            observe(published(), polled(25.0, "E1"), stalls=(10.0, 16.0)), UNKNOWN, id="the machine stalled meanwhile"
        ),
        pytest.param(
            observe(published(), EventEnded(at=14.0, event="E1", is_withdrawn=True)), UNKNOWN, id="listed too briefly"
        ),
        pytest.param(
            observe(published(), Disturbance(at=8.0, vm=VM, text="503", until=20.0), polled(25.0, "E1")),
            PASS,
            id="five seconds after spoiled answers",
        ),
        pytest.param(
            observe(
                published(),
                ProgramStarted(at=0.0, vm=VM, run=1),
                ProgramExited(at=9.0, vm=VM, code=None, signal=9, by_case=True),
            ),
            UNKNOWN,
            id="killed by the case for good",
        ),
        pytest.param(
            observe(
                published(),
                ProgramStarted(at=0.0, vm=VM, run=1),
                ProgramExited(at=9.0, vm=VM, code=1),
            ),
            FAIL,
            id="ended by itself",
        ),
        pytest.param(
            observe(published(), Impact(at=9.0, vm=VM, verb="freeze", until=19.0), polled(22.0, "E1")),
            PASS,
            id="three seconds after a freeze",
        ),
    ],
)
def test_an_event_must_be_noticed_within_the_claimed_poll_interval(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(noticed(), observed) is expected


def test_the_sentence_about_a_notice_has_its_times() -> None:
    _, seen, times = noticed().judge(observe(published(), polled(24.2, "E1")))
    assert seen == "the first poll with the event came 14.2 s after it was published, 15.8 s before NotBefore"
    assert times == (24.2,)


def test_the_sentence_about_an_excuse_has_its_reason() -> None:
    _, seen, _ = noticed().judge(observe(published(), polled(25.0, "E1"), stalls=(11.0, 16.0)))
    assert "too slow" in seen


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), polled(25.0, "E1")), PASS, id="fifteen seconds before"),
        pytest.param(observe(published(), polled(35.0, "E1")), SLOW, id="five seconds before"),
        pytest.param(observe(published(), polled(39.0, "E1")), FAIL, id="one second before"),
        pytest.param(observe(published()), FAIL, id="never"),
        pytest.param(observe(published(), ended_at=30.0), UNKNOWN, id="the case ended before NotBefore"),
        pytest.param(observe(published(not_before=None)), UNKNOWN, id="without notice"),
        pytest.param(
            observe(published(), claims=HandlerClaims(polls_every_s=60.0)),
            UNKNOWN,
            id="the notice is shorter than the claim",
        ),
        pytest.param(
            observe(published(kind="Preempt"), claims=HandlerClaims(polls_every_s=60.0)),
            FAIL,
            id="an eviction has 30 seconds for everybody",
        ),
        pytest.param(
            observe(published(), Disturbance(at=9.0, vm=VM, text="503", until=36.0)),
            UNKNOWN,
            id="spoiled until the end",
        ),
    ],
)
def test_an_event_must_be_noticed_before_it_starts(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(noticed_before_start(margin_s=10.0, least_s=2.0), observed) is expected


def test_usable_substitute_answers_are_no_excuse() -> None:
    observed = observe(published(), Disturbance(at=9.0, vm=VM, text="an answer after 3 s", until=40.0))
    demand = noticed_before_start(margin_s=10.0, least_s=2.0, despite_disturbance=True)
    assert outcome_of(demand, observed) is FAIL


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), prepared(5.0, False), prepared(20.0)), PASS, id="in time"),
        pytest.param(observe(published(), prepared(39.8)), SLOW, id="at the last moment"),
        pytest.param(observe(published(), prepared(45.0)), FAIL, id="after the start"),
        pytest.param(observe(published(), prepared(5.0, False)), FAIL, id="never"),
        pytest.param(observe(published(), prepared(5.0)), UNKNOWN, id="the probe said yes before"),
        pytest.param(
            observe(published(), prepared(16.0), EventStarted(at=15.0, event="E1")), PASS, id="approved when prepared"
        ),
        pytest.param(
            observe(published(), prepared(25.0), EventStarted(at=15.0, event="E1")), FAIL, id="approved before prepared"
        ),
        pytest.param(
            observe(published(), polled(39.0, "E1"), REBOOT, prepared(44.0)),
            UNKNOWN,
            id="the first look after the boot",
        ),
        pytest.param(observe(published(), REBOOT, polled(43.0, "E1"), prepared(44.0)), FAIL, id="only after the boot"),
        pytest.param(observe(published(), ended_at=30.0), UNKNOWN, id="the case ended before"),
        pytest.param(
            observe(published(), claims=HandlerClaims(prepares=True, polls_every_s=30.0)),
            UNKNOWN,
            id="claims rare polls",
        ),
        pytest.param(observe(published(not_before=None)), UNKNOWN, id="without notice"),
    ],
)
def test_a_handler_must_be_prepared_before_the_event_starts(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(prepared_before_start(), observed) is expected


def test_a_preparation_for_an_earlier_event_can_count() -> None:
    observed = observe(published(), prepared(5.0))
    assert outcome_of(prepared_before_start(already_counts=True), observed) is PASS


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), prepared(20.0)), PASS, id="prepared"),
        pytest.param(observe(published(), approval(20.0)), FAIL, id="approved, and by the probe not prepared"),
        pytest.param(observe(published(), approval(20.0), probes=()), PASS, id="approved, without a probe"),
        pytest.param(observe(published(), probes=()), UNKNOWN, id="nothing, without a probe"),
        pytest.param(
            observe(published(), claims=HandlerClaims(approves=Approves.OWN)), FAIL, id="only approves, and did not"
        ),
        pytest.param(
            observe(published(), approval(39.5), claims=HandlerClaims(approves=Approves.OWN)), SLOW, id="approves late"
        ),
    ],
)
def test_a_handler_must_react_in_a_way_that_can_be_seen(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(reacted(), observed) is expected


def test_an_observer_does_not_have_to_react() -> None:
    assert not reacted().applies(HandlerClaims())


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), prepared(15.0)), PASS, id="stays"),
        pytest.param(observe(published(), prepared(15.0), prepared(42.0, False)), PASS, id="until the start"),
        pytest.param(observe(published(), prepared(15.0), prepared(30.0, False)), FAIL, id="takes work again"),
        pytest.param(observe(published()), UNKNOWN, id="never prepared"),
    ],
)
def test_a_prepared_handler_must_stay_prepared(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(stays_prepared(), observed) is expected


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), prepared(15.0)), PASS, id="stayed prepared"),
        pytest.param(observe(published(), prepared(15.0), prepared(20.0, False), prepared(25.0)), PASS, id="again"),
        pytest.param(observe(published(), prepared(15.0), prepared(20.0, False)), FAIL, id="no longer"),
        pytest.param(observe(published(), prepared(15.0), prepared(35.0, False)), UNKNOWN, id="lost just before"),
        pytest.param(
            observe(published(), prepared(15.0), prepared(20.0, False), stalls=(21.0, 39.0)), UNKNOWN, id="slow machine"
        ),
        pytest.param(
            observe(
                published(), prepared(15.0), prepared(40.2, False), Impact(at=40.3, vm=VM, verb="reboot", event="E1")
            ),
            UNKNOWN,
            id="lost at the start",
        ),
        pytest.param(observe(published(), prepared(15.0), prepared(42.0, False)), PASS, id="recovered afterwards"),
        pytest.param(observe(published()), UNKNOWN, id="never prepared"),
        pytest.param(observe(), UNKNOWN, id="nothing was published"),
    ],
)
def test_a_handler_that_lost_its_preparation_must_prepare_again(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(prepared_at_start(), observed) is expected


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(vms=(NEIGHBOUR,)), polled(12.0, "E1")), PASS, id="saw it and stayed"),
        pytest.param(observe(published(vms=(NEIGHBOUR,)), polled(12.0, "E1"), prepared(14.0)), FAIL, id="prepared"),
        pytest.param(observe(published(vms=(NEIGHBOUR,)), polled(8.0)), UNKNOWN, id="never saw it"),
        pytest.param(observe(published(vms=(NEIGHBOUR,)), prepared(5.0)), UNKNOWN, id="the probe said yes before"),
        pytest.param(
            observe(
                published(vms=(NEIGHBOUR,)),
                published("E2", at=30.0, not_before=60.0),
                polled(12.0, "E1"),
                prepared(35.0),
            ),
            PASS,
            id="prepared for its own event later",
        ),
    ],
)
def test_a_handler_must_not_prepare_for_the_event_of_another_vm(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(not_prepared_for(), observed) is expected


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), prepared(15.0)), PASS, id="once"),
        pytest.param(observe(published()), PASS, id="not at all"),
        pytest.param(observe(published(), prepared(15.0), prepared(20.0, False), prepared(25.0)), FAIL, id="twice"),
        pytest.param(observe(), UNKNOWN, id="nothing was published"),
    ],
)
def test_a_handler_must_prepare_once(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(prepared_at_most_once(), observed) is expected


def test_a_preparation_after_the_start_can_be_left_out() -> None:
    observed = observe(published(), prepared(15.0), prepared(42.0, False), prepared(45.0))
    assert outcome_of(prepared_at_most_once(), observed) is FAIL
    assert outcome_of(prepared_at_most_once(until_start=True), observed) is PASS


ENDED = EventEnded(at=45.0, event="E1")


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), ENDED, recovered_probe(1.0)), PASS, id="always worked"),
        pytest.param(
            observe(published(), ENDED, recovered_probe(20.0, False), recovered_probe(50.0)),
            PASS,
            id="after five seconds",
        ),
        pytest.param(
            observe(published(), ENDED, recovered_probe(20.0, False), recovered_probe(60.0), ended_at=80.0),
            SLOW,
            id="after fifteen seconds",
        ),
        pytest.param(
            observe(published(), ENDED, recovered_probe(20.0, False), recovered_probe(75.0), ended_at=80.0),
            FAIL,
            id="after thirty seconds",
        ),
        pytest.param(observe(published(), ENDED, recovered_probe(20.0, False), ended_at=80.0), FAIL, id="never"),
        pytest.param(
            observe(published(), ENDED, recovered_probe(46.0), recovered_probe(50.0, False), ended_at=80.0),
            FAIL,
            id="and stopped again",
        ),
        pytest.param(observe(published(), ENDED, recovered_probe(20.0, False), ended_at=50.0), UNKNOWN, id="too early"),
        pytest.param(observe(published(), recovered_probe(20.0, False)), UNKNOWN, id="the event is still listed"),
        pytest.param(observe(recovered_probe(20.0)), UNKNOWN, id="nothing was published"),
    ],
)
def test_the_application_must_work_again_after_the_event(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(recovered(within_s=10.0, at_most_s=25.0), observed) is expected


def test_a_demand_can_be_limited_to_handlers_that_survive_a_restart() -> None:
    demand = if_survives_restart(prepared_before_start())
    assert demand.applies(HandlerClaims(prepares=True, survives_restart=True))
    assert not demand.applies(HandlerClaims(prepares=True))
    assert not demand.applies(HandlerClaims(survives_restart=True))
    assert demand.probe is Probe.PREPARED
