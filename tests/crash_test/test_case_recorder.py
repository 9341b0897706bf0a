"""The recorder of a case: bounded, and something to wait on."""

import asyncio

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import RealTime
from forewarn.crash_test.case_recorder import MAX_REQUESTS, CaseRecorder
from forewarn.crash_test.timeline import (
    Disturbance,
    EventStarted,
    Observation,
    Polled,
    Poller,
    Probe,
    ProbeAnswered,
)


def stopped_clock() -> LabClock:
    return LabClock(ClockSetting(lab_at=1000.0, real_at=RealTime(0.0), speed=0.0), real=lambda: RealTime(0.0))


def poll(at: float, by: Poller = Poller.HANDLER) -> Polled:
    return Polled(at=at, vm="web-0", by=by, status=200, answered_at=at)


def is_start(seen: Observation) -> bool:
    return isinstance(seen, EventStarted)


def test_times_begin_with_the_case_and_go_by_the_clock_of_the_service() -> None:
    clock = stopped_clock()
    recorder = CaseRecorder(clock)
    clock.apply_setting(clock.setting_after_jump(1007.5))

    assert recorder.now() == 7.5
    assert recorder.since_start(1002.0) == 2.0
    assert recorder.finish().ended_at == 7.5


def test_a_recorder_that_begins_again_keeps_only_the_last_answers_of_probes() -> None:
    clock = stopped_clock()
    recorder = CaseRecorder(clock)
    clock.apply_setting(clock.setting_after_jump(1010.0))
    recorder.record(poll(at=1.0))
    for at, is_yes in ((2.0, True), (3.0, False)):
        recorder.record(ProbeAnswered(at=at, vm="web-0", probe=Probe.PREPARED, is_yes=is_yes))

    recorder.restart()

    assert recorder.now() == 0.0
    assert recorder.observations == (ProbeAnswered(at=0.0, vm="web-0", probe=Probe.PREPARED, is_yes=False),)


def test_of_very_many_requests_only_some_are_kept_until_the_end() -> None:
    recorder = CaseRecorder(stopped_clock())
    for number in range(2 * MAX_REQUESTS):
        recorder.record(poll(at=number / 1000))
    recorder.record(poll(at=10.0, by=Poller.REFERENCE))
    recorder.record(EventStarted(at=10.0, event="A"))

    timeline = recorder.finish()

    polls = timeline.polls("web-0")
    assert MAX_REQUESTS <= len(polls) <= MAX_REQUESTS + 30
    assert polls[-1].at >= 9.7, "it can be judged whether it still polls"
    assert len(timeline.polls("web-0", Poller.REFERENCE)) == 1
    assert len(timeline.of(EventStarted)) == 1
    assert [item.text for item in timeline.of(Disturbance)] == [
        f"after {MAX_REQUESTS} requests and connections, only some more are recorded"
    ]


def test_waiting_ends_when_something_matches_or_time_is_up() -> None:
    async def scenario() -> list[bool]:
        recorder = CaseRecorder(LabClock())
        recorder.record(EventStarted(at=0.0, event="A"))
        asyncio.get_running_loop().call_later(0.05, recorder.record, EventStarted(at=0.0, event="B"))
        return [
            await recorder.wait_for(is_start, within_s=0.0),
            await recorder.wait_for(is_start, times=3, within_s=0.01),
            await recorder.wait_for(is_start, times=2, within_s=30.0),
        ]

    assert asyncio.run(scenario()) == [True, False, True]


def test_a_finished_recorder_takes_nothing_more() -> None:
    recorder = CaseRecorder(stopped_clock())
    recorder.report_problem("the first problem")
    recorder.report_problem("the second problem")
    recorder.finish()
    recorder.record(EventStarted(at=1.0, event="A"))

    assert recorder.observations == ()
    assert recorder.problem == "the first problem"
