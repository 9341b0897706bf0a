"""Demands on approvals are judged fairly from a timeline."""

from __future__ import annotations

import pytest

from forewarn.crash_test.approval_demands import (
    approvals_are_well_formed,
    approvals_sent_at_most,
    approved,
    approved_at_most,
    approved_only_after_prepared,
    approves_nothing,
    approves_only_own,
    not_approved,
    retried_after_refusal,
)
from forewarn.crash_test.case import Observed
from forewarn.crash_test.claims import Approves, HandlerClaims
from forewarn.crash_test.timeline import Approved, EventEnded, Poller, ProgramExited, ProgramStarted
from forewarn.crash_test.verdict import CaseOutcome
from tests.support.crash_timelines import NEIGHBOUR, VM, approval, observe, outcome_of, polled, prepared, published

PASS, SLOW, FAIL, UNKNOWN = CaseOutcome.PASS, CaseOutcome.SLOW, CaseOutcome.FAIL, CaseOutcome.UNKNOWN
SCOPE = HandlerClaims(approves=Approves.SCOPE, prepares=True)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), approval(20.0)), PASS, id="in time"),
        pytest.param(observe(published(), approval(20.0, "e1")), PASS, id="with an id in lower case"),
        pytest.param(observe(published(), approval(39.0)), SLOW, id="at the last moment"),
        pytest.param(observe(published(), approval(42.0)), FAIL, id="after NotBefore"),
        pytest.param(observe(published()), FAIL, id="never"),
        pytest.param(observe(published(), approval(20.0, status=500)), FAIL, id="refused"),
        pytest.param(observe(published(), approval(20.0, vm=NEIGHBOUR)), FAIL, id="by a neighbour"),
        pytest.param(
            observe(published(), approval(20.0, vm=NEIGHBOUR), claims=SCOPE), PASS, id="by the scope's leader"
        ),
        pytest.param(
            observe(published(vms=(NEIGHBOUR,)), approval(20.0, vm=NEIGHBOUR)), PASS, id="by the VM that it is for"
        ),
        pytest.param(observe(published(), ended_at=30.0), UNKNOWN, id="the case ended before"),
        pytest.param(observe(published(not_before=None)), UNKNOWN, id="started at once"),
        pytest.param(
            observe(published(), EventEnded(at=20.0, event="E1", is_withdrawn=True)), UNKNOWN, id="was withdrawn"
        ),
        pytest.param(observe(published(), stalls=(12.0, 38.0)), UNKNOWN, id="the machine stalled"),
        pytest.param(
            observe(
                published(),
                ProgramStarted(at=0.0, vm=VM, run=1),
                ProgramExited(at=11.0, vm=VM, code=None, signal=9, by_case=True),
            ),
            UNKNOWN,
            id="killed by the case",
        ),
    ],
)
def test_an_event_must_be_approved_before_not_before(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(approved(), observed) is expected


def test_a_handler_that_never_approves_is_not_asked_to() -> None:
    assert not approved().applies(HandlerClaims())
    assert approved().applies(SCOPE)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), approval(20.0)), PASS, id="once"),
        pytest.param(observe(published()), PASS, id="not at all"),
        pytest.param(observe(published(), approval(20.0), approval(25.0)), FAIL, id="twice"),
        pytest.param(observe(published(), approval(20.0, status=503), approval(25.0)), PASS, id="after a refusal"),
        pytest.param(
            observe(published(), approval(20.0), approval(21.0, vm=NEIGHBOUR), claims=SCOPE), PASS, id="one on each VM"
        ),
        pytest.param(observe(), UNKNOWN, id="nothing was published"),
    ],
)
def test_an_event_must_be_approved_at_most_once(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(approved_at_most(), observed) is expected


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(vms=(NEIGHBOUR,)), polled(12.0, "E1")), PASS, id="saw it and did not"),
        pytest.param(observe(published(vms=(NEIGHBOUR,)), approval(12.0)), FAIL, id="approved"),
        pytest.param(observe(published(vms=(NEIGHBOUR,)), approval(12.0, status=400)), FAIL, id="tried to"),
        pytest.param(observe(published(vms=(NEIGHBOUR,))), UNKNOWN, id="never saw it"),
    ],
)
def test_a_handler_must_not_approve_the_event_of_a_neighbour(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(not_approved(), observed) is expected


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), approval(12.0)), PASS, id="own event"),
        pytest.param(observe(published()), PASS, id="none"),
        pytest.param(observe(published(vms=(NEIGHBOUR,)), approval(12.0)), FAIL, id="event of a neighbour"),
        pytest.param(observe(published(), approval(12.0, vm=NEIGHBOUR)), FAIL, id="the neighbour's copy for this VM"),
        pytest.param(observe(approval(12.0, "E9")), PASS, id="an id that nobody published"),
    ],
)
def test_copies_of_a_handler_must_approve_their_own_events_only(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(approves_only_own(), observed) is expected


def test_the_leader_of_a_scope_may_approve_for_others() -> None:
    assert not approves_only_own().applies(SCOPE)
    assert not not_approved().applies(SCOPE)


def test_a_handler_that_claims_not_to_approve_must_not() -> None:
    demand = approves_nothing()
    assert demand.applies(HandlerClaims())
    assert not demand.applies(SCOPE)
    assert outcome_of(demand, observe(published())) is PASS
    assert outcome_of(demand, observe(published(), approval(12.0))) is FAIL


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), prepared(15.0), approval(16.0)), PASS, id="after"),
        pytest.param(observe(published(), prepared(16.4), approval(16.0)), PASS, id="the probe is a little late"),
        pytest.param(observe(published(), prepared(25.0), approval(16.0)), FAIL, id="before"),
        pytest.param(observe(published(), approval(16.0)), FAIL, id="never prepared"),
        pytest.param(
            observe(published(), prepared(16.0), approval(16.0, was_prepared=True)), PASS, id="the probe said yes then"
        ),
        pytest.param(
            observe(published(), prepared(16.1), approval(16.0, was_prepared=False)), FAIL, id="milliseconds before"
        ),
        pytest.param(
            observe(published(), prepared(14.0), prepared(15.0, False), approval(16.0, was_prepared=False)),
            FAIL,
            id="no longer prepared",
        ),
        pytest.param(observe(published(), prepared(15.0)), PASS, id="not approved"),
        pytest.param(observe(published(), prepared(5.0), approval(16.0)), UNKNOWN, id="the probe said yes before"),
        pytest.param(observe(), UNKNOWN, id="nothing was published"),
    ],
)
def test_a_handler_must_approve_only_after_it_is_prepared(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(approved_only_after_prepared(), observed) is expected


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(observe(published(), approval(15.0, status=429), approval(18.0)), PASS, id="after three seconds"),
        pytest.param(observe(published(), approval(15.0, status=None), approval(30.0)), SLOW, id="after fifteen"),
        pytest.param(
            observe(published(not_before=70.0), approval(15.0, status=500), approval(45.0)), FAIL, id="after thirty"
        ),
        pytest.param(observe(published(), polled(12.0, "E1"), approval(15.0, status=429)), FAIL, id="not again"),
        pytest.param(observe(published(), polled(12.0, "E1")), FAIL, id="never tried"),
        pytest.param(observe(published()), UNKNOWN, id="never saw it"),
        pytest.param(observe(published(), approval(15.0)), UNKNOWN, id="was not refused"),
        pytest.param(observe(published(), approval(15.0, status=429), ended_at=20.0), UNKNOWN, id="ended too early"),
    ],
)
def test_a_refused_approval_must_be_sent_again(observed: Observed, expected: CaseOutcome) -> None:
    assert outcome_of(retried_after_refusal(within_s=10.0, at_most_s=20.0), observed) is expected


def test_approvals_of_an_event_are_counted_with_refused_ones() -> None:
    many = [approval(12.0 + number, status=400) for number in range(6)]
    assert outcome_of(approvals_sent_at_most(times=5), observe(published(), many)) is FAIL
    assert outcome_of(approvals_sent_at_most(times=6), observe(published(), many)) is PASS
    assert outcome_of(approvals_sent_at_most(times=6), observe()) is UNKNOWN


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param({}, PASS, id="correct"),
        pytest.param({"has_header": False}, FAIL, id="without the header"),
        pytest.param({"version": ""}, FAIL, id="without an api-version"),
        pytest.param({"problem": "the body is not JSON"}, FAIL, id="without a readable body"),
    ],
)
def test_approvals_must_be_well_formed(sent: dict[str, bool | str], expected: CaseOutcome) -> None:
    fields = {"has_header": True, "version": "2020-07-01", "problem": ""} | sent
    item = Approved(
        at=12.0,
        vm=VM,
        by=Poller.HANDLER,
        event_ids=("E1",),
        status=200,
        version=str(fields["version"]),
        has_header=bool(fields["has_header"]),
        problem=str(fields["problem"]),
    )
    assert outcome_of(approvals_are_well_formed(), observe(published(), item)) is expected


def test_without_an_approval_nothing_can_be_said_about_its_form() -> None:
    assert outcome_of(approvals_are_well_formed(), observe(published())) is UNKNOWN
