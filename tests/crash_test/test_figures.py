"""The figures of a crash test, each over timelines built by hand."""

from __future__ import annotations

import pytest

from forewarn.crash_test.case import Observed
from forewarn.crash_test.figures import HandlerFigures, compute_figures, describe_figures
from forewarn.crash_test.timeline import (
    THINNED_TEXT,
    Disturbance,
    EventEnded,
    EventStarted,
    OtherRequest,
    Poller,
    ProbeAnswered,
    ProgramStarted,
    ResourcesSampled,
)
from tests.support.crash_timelines import (
    NEIGHBOUR,
    VM,
    approval,
    observe,
    polled,
    polls,
    prepared,
    published,
    recovered_probe,
)

MIB = 2**20


def figures_of(*cases: Observed) -> HandlerFigures:
    return compute_figures([(case.timeline, case.vm, case.events) for case in cases])


def sampled(at: float, mebibytes: float) -> ResourcesSampled:
    return ResourcesSampled(at=at, vm=VM, cpu_s=0.0, memory_bytes=int(mebibytes * MIB), connections=0, processes=1)


def test_time_to_notice_is_the_median_and_the_worst_of_all_events() -> None:
    cases = [observe(published(), polled(10.0 + delay, "E1")) for delay in (1.0, 2.0, 15.0)]
    figures = figures_of(*cases)
    assert (figures.notice_p50_s, figures.notice_worst_s) == (2.0, 15.0)


def test_the_answer_counts_as_notice_not_the_request() -> None:
    assert figures_of(observe(published(), polled(11.0, "E1", takes_s=3.0))).notice_p50_s == 4.0
    assert figures_of(observe(published(), polled(11.0, "E1", takes_s=None))).never_noticed == 1


def test_polls_of_the_reference_and_events_of_neighbours_are_no_notice() -> None:
    only_reference = observe(published(), polled(12.0))
    assert (only_reference.timeline.delivered_at("E1", VM, Poller.REFERENCE), figures_of(only_reference)) == (
        10.5,
        HandlerFigures(notice_share_p50=1.0, notice_share_worst=1.0, never_noticed=1),
    )
    neighbours = observe(published(vms=(NEIGHBOUR,)), polled(12.0, "E1"))
    assert figures_of(neighbours).notice_p50_s is None


def test_the_share_of_the_notice_is_measured_against_not_before() -> None:
    cases = [observe(published(), polled(at, "E1")) for at in (13.0, 16.0, 34.0)]
    figures = figures_of(*cases)
    assert figures.notice_share_p50 == pytest.approx(0.2)
    assert figures.notice_share_worst == pytest.approx(0.8)
    assert figures.notice_left_worst_s == 6.0


def test_an_event_that_is_noticed_too_late_or_never_uses_all_of_its_notice() -> None:
    late = figures_of(observe(published(), polled(45.0, "E1")))
    assert (late.notice_share_worst, late.notice_left_worst_s) == (1.0, -5.0)
    never = figures_of(observe(published(), polled(12.0)))
    assert (never.notice_share_worst, never.notice_left_worst_s, never.never_noticed) == (1.0, None, 1)


def test_an_event_that_starts_at_once_has_no_share_of_notice() -> None:
    figures = figures_of(observe(published(not_before=None), polled(12.0, "E1")))
    assert (figures.notice_p50_s, figures.notice_share_worst) == (2.0, None)


@pytest.mark.parametrize(
    ("answers", "was_prepared", "early"),
    [
        pytest.param([prepared(0.5, False)], False, 1, id="the probe said no at the approval"),
        pytest.param([prepared(0.5, False), prepared(12.5)], True, 0, id="the probe said yes at the approval"),
        pytest.param([prepared(0.5, False)], None, 1, id="the probe never said yes"),
        pytest.param([prepared(0.5, False), prepared(13.0)], None, 0, id="the probe said yes before"),
        pytest.param([prepared(0.5, False), prepared(15.0)], None, 0, id="the probe said yes just after, for it lags"),
        pytest.param([prepared(0.5, False), prepared(17.0)], None, 1, id="the probe said yes too late"),
        pytest.param([], None, None, id="no probe"),
    ],
)
def test_approvals_before_the_preparation_are_early(
    answers: list[ProbeAnswered], was_prepared: bool | None, early: int | None
) -> None:
    case = observe(published(), polled(12.0, "E1"), approval(14.0, was_prepared=was_prepared), answers)
    assert figures_of(case).approvals_early == early


def test_a_freeze_may_be_approved_without_preparation() -> None:
    case = observe(published(kind="Freeze"), prepared(0.5, False), approval(14.0, was_prepared=False))
    assert figures_of(case).approvals_early == 0


def test_approvals_after_the_start_are_late() -> None:
    case = observe(published(), EventStarted(at=40.0, event="E1"), approval(41.0))
    assert (figures_of(case).approvals, figures_of(case).approvals_late) == (1, 1)


def test_an_event_that_is_approved_again_is_repeated_in_any_letters() -> None:
    case = observe(published(), approval(12.0), approval(13.0, "e1"), approval(14.0))
    assert (figures_of(case).approvals, figures_of(case).approvals_repeated) == (3, 2)


def test_approvals_of_events_of_other_vms_are_counted() -> None:
    case = observe(published(vms=(NEIGHBOUR,)), published("E2"), approval(12.0), approval(12.0, "E2"))
    assert (figures_of(case).approvals, figures_of(case).approvals_for_others) == (2, 1)


def test_refused_approvals_are_not_counted_and_are_not_never() -> None:
    case = observe(published(), approval(12.0, status=500), EventStarted(at=40.0, event="E1"))
    assert (figures_of(case).approvals, figures_of(case).never_approved) == (0, 0)


@pytest.mark.parametrize(
    ("case", "never"),
    [
        pytest.param(observe(published(), EventStarted(at=40.0, event="E1")), 1, id="started without one"),
        pytest.param(observe(published(), EventEnded(at=20.0, event="E1", is_withdrawn=True)), 0, id="withdrawn"),
        pytest.param(observe(published()), 0, id="not started yet"),
        pytest.param(
            observe(published(not_before=None), EventStarted(at=10.0, event="E1")), 0, id="nothing could be approved"
        ),
        pytest.param(
            observe(published(), approval(12.0, vm=NEIGHBOUR), EventStarted(at=12.0, event="E1")),
            0,
            id="by another copy",
        ),
        pytest.param(observe(published(vms=(NEIGHBOUR,)), EventStarted(at=40.0, event="E1")), 0, id="of a neighbour"),
    ],
)
def test_an_event_that_started_without_any_approval_was_never_approved(case: Observed, never: int) -> None:
    assert figures_of(case).never_approved == never


def test_recovery_counts_from_the_start_of_the_event() -> None:
    def case(yes_at: float) -> Observed:
        return observe(
            published(),
            recovered_probe(1.0),
            EventStarted(at=40.0, event="E1"),
            recovered_probe(41.0, False),
            recovered_probe(yes_at),
        )

    figures = figures_of(case(43.0), case(44.0), case(52.0))
    assert (figures.recovered_p50_s, figures.recovered_worst_s) == (4.0, 12.0)
    assert figures_of(observe(published(), recovered_probe(1.0))).recovered_p50_s is None


def test_requests_at_rest_are_all_kinds_until_something_happens() -> None:
    other = OtherRequest(at=3.5, vm=VM, by=Poller.HANDLER, method="GET", path="/metadata/instance", status=200)
    case = observe(polls([2.0, 4.0, 6.0, 8.0]), other, published(), polls([11.0, 11.1, 11.2], "E1"))
    assert figures_of(case).requests_at_rest_per_s == pytest.approx(5 / 8)
    assert figures_of(observe(polls([7.0, 8.0]), published())).requests_at_rest_per_s is None, "too short to tell"
    assert figures_of(observe(published(), polls([12.0, 40.0]))).requests_at_rest_per_s is None, "never at rest"


def test_requests_during_errors_are_those_of_the_worst_disturbance_of_this_vm() -> None:
    case = observe(
        polls([1.0, 2.0, 21.0, 22.0, 23.0, 31.0, 31.5, 32.0, 32.5, 33.0]),
        Disturbance(at=20.0, vm=VM, text="answers 503", until=30.0),
        Disturbance(at=30.0, vm=VM, text="answers 429", until=35.0),
        Disturbance(at=40.0, vm=VM, text="too short to tell", until=42.0),
        Disturbance(at=0.0, vm=NEIGHBOUR, text="answers 503 to another VM", until=5.0),
    )
    assert figures_of(case).requests_in_errors_per_s == 1.0


def test_requests_that_were_not_all_recorded_count_only_until_then() -> None:
    flood = [20.0 + number / 100 for number in range(500)]  # 100 a second for five seconds
    case = observe(
        polls(flood),
        Disturbance(at=20.0, vm=VM, text="answers 503", until=40.0),
        Disturbance(at=25.0, vm=VM, text=f"after many, {THINNED_TEXT}"),
    )
    assert figures_of(case).requests_in_errors_per_s == pytest.approx(100.0)


def test_memory_growth_is_measured_in_each_run_once_the_program_has_started() -> None:
    case = observe(
        ProgramStarted(at=0.0, vm=VM, run=1),
        [sampled(1.0, 2), sampled(5.0, 20), sampled(14.0, 23)],
        ProgramStarted(at=15.0, vm=VM, run=2),
        [sampled(16.0, 1), sampled(20.0, 20), sampled(30.0, 21)],
    )
    assert figures_of(case).memory_growth_bytes == 3 * MIB
    assert figures_of(observe(sampled(1.0, 2), sampled(6.0, 20))).memory_growth_bytes is None


def test_figures_are_described_with_their_units() -> None:
    figures = HandlerFigures(
        notice_p50_s=1.0,
        notice_worst_s=7.0,
        notice_share_p50=0.05,
        notice_share_worst=0.4,
        notice_left_worst_s=10.25,
        never_noticed=1,
        recovered_p50_s=4.0,
        recovered_worst_s=12.0,
        approvals=9,
        approvals_early=2,
        approvals_repeated=3,
        never_approved=1,
        requests_at_rest_per_s=0.2,
        memory_growth_bytes=3 * MIB,
    )
    assert describe_figures(figures) == [
        ("noticed after", "1.0 s (median), 7.0 s at worst"),
        ("notice used up by then", "5% (median), 40% at worst; 10.2 s were left before NotBefore"),
        ("never noticed", "1 event"),
        ("recovered after", "4.0 s (median), 12.0 s at worst"),
        ("approvals", "9, 2 early, 3 repeated, 1 event never approved"),
        ("requests a second", "0.20 at rest"),
        ("memory growth", "3.0 MiB at worst"),
    ]
