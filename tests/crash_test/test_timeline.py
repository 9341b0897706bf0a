"""A timeline answers questions about what was observed, and survives JSON."""

from __future__ import annotations

import msgspec
import pytest

from forewarn.crash_test.timeline import (
    Approved,
    ConnectionOpened,
    Disturbance,
    EventEnded,
    EventStarted,
    Impact,
    Observation,
    OtherRequest,
    Polled,
    Poller,
    Probe,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    ResourcesSampled,
    Timeline,
    build_timeline,
    intervals_between,
)
from tests.support.crash_timelines import NEIGHBOUR, VM, approval, polled, prepared, published

ONE_OF_EACH: tuple[Observation, ...] = (
    ProgramStarted(at=0.0, vm=VM, run=1, is_boot=True),
    ProgramExited(at=1.0, vm=VM, code=None, signal=9, by_case=True),
    ProgramOutput(at=2.0, vm=VM, text="héllo \x00"),
    ConnectionOpened(at=3.0, vm=VM, by=Poller.HANDLER),
    polled(4.0, "E1"),
    approval(5.0),
    OtherRequest(at=6.0, vm=VM, by=Poller.HANDLER, method="GET", path="/metadata/instance", status=200),
    published(),
    EventStarted(at=11.0, event="E1"),
    EventEnded(at=12.0, event="E1", is_withdrawn=True),
    Impact(at=13.0, vm=VM, verb="freeze", until=18.0, event="E1"),
    Disturbance(at=14.0, vm=VM, text="status 503", until=20.0),
    prepared(15.0),
    ResourcesSampled(at=16.0, vm=VM, cpu_s=0.5, memory_bytes=1024, connections=1, processes=2),
)


def test_a_timeline_survives_json() -> None:
    timeline = Timeline(ONE_OF_EACH, 30.0)
    assert msgspec.json.decode(msgspec.json.encode(timeline), type=Timeline) == timeline


def test_observations_are_sorted_by_time_and_keep_their_order() -> None:
    first, second = ProgramOutput(at=5.0, text="first"), ProgramOutput(at=5.0, text="second")
    later, earlier = polled(9.0), polled(1.0)
    assert build_timeline([later, first, second, earlier], 10.0).observations == (earlier, first, second, later)


def test_observations_are_found_by_type_and_vm() -> None:
    timeline = build_timeline([polled(1.0), polled(2.0, vm=NEIGHBOUR), approval(3.0)], 10.0)
    assert [item.at for item in timeline.of(Polled)] == [1.0, 2.0]
    assert [item.at for item in timeline.of(Polled, VM)] == [1.0]
    assert [item.at for item in timeline.of(Approved, NEIGHBOUR)] == []


def test_polls_of_the_reference_poller_are_kept_apart() -> None:
    timeline = build_timeline([polled(1.0), polled(2.0, by=Poller.REFERENCE)], 10.0)
    assert [item.at for item in timeline.polls(VM)] == [1.0]
    assert [item.at for item in timeline.polls(VM, Poller.REFERENCE)] == [2.0]


def test_approvals_are_found_by_vm_and_event() -> None:
    timeline = build_timeline([approval(1.0), approval(2.0, "E2"), approval(3.0, vm=NEIGHBOUR)], 10.0)
    assert [item.at for item in timeline.approvals()] == [1.0, 2.0, 3.0]
    assert [item.at for item in timeline.approvals(VM)] == [1.0, 2.0]
    assert [item.at for item in timeline.approvals(event="E1")] == [1.0, 3.0]
    assert [item.at for item in timeline.approvals(VM, "E2")] == [2.0]


def test_an_event_is_delivered_when_its_answer_is_complete() -> None:
    timeline = build_timeline([polled(1.0), polled(3.0, "E1", takes_s=None), polled(5.0, "E1", takes_s=2.0)], 10.0)
    assert timeline.delivered_at("E1", VM) == 7.0
    assert timeline.delivered_at("E1", NEIGHBOUR) is None
    assert timeline.delivered_at("E2", VM) is None


def test_a_publication_is_found_by_its_id() -> None:
    timeline = build_timeline([published(), published("E2", at=12.0)], 20.0)
    found = timeline.published("E2")
    assert found is not None
    assert found.at == 12.0
    assert timeline.published("E3") is None


@pytest.mark.parametrize(("at", "expected"), [(0.5, False), (1.0, True), (4.9, True), (5.0, False), (6.0, True)])
def test_a_program_runs_between_its_start_and_its_end(at: float, expected: bool) -> None:
    timeline = build_timeline(
        [
            ProgramStarted(at=1.0, vm=VM, run=1),
            ProgramExited(at=5.0, vm=VM, code=0),
            ProgramStarted(at=6.0, vm=VM, run=2),
            ProgramStarted(at=0.0, vm=NEIGHBOUR, run=1),
        ],
        10.0,
    )
    assert timeline.is_running(VM, at) is expected


def test_the_first_yes_of_a_probe_after_a_time_is_found() -> None:
    timeline = build_timeline([prepared(1.0), prepared(2.0, False), prepared(5.0)], 10.0)
    assert timeline.probe_yes_at(Probe.PREPARED, VM) == 1.0
    assert timeline.probe_yes_at(Probe.PREPARED, VM, after=1.5) == 5.0
    assert timeline.probe_yes_at(Probe.RECOVERED, VM) is None


def test_intervals_are_those_between_neighbouring_times() -> None:
    assert list(intervals_between([1.0, 3.0, 7.0])) == [2.0, 4.0]
    assert list(intervals_between([1.0])) == []
