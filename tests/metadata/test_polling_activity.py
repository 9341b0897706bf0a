"""Polling activity of VMs: user agent, interval and silence; and the categories of requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forewarn.base.times import RealTime
from forewarn.core.explain.polling import SILENCE_LIMIT_S, PollingPace
from forewarn.core.history import LastPoll
from forewarn.metadata import GuestObservations, GuestView
from forewarn.metadata.request_counters import (
    MAX_USER_AGENT_LENGTH,
    UNKNOWN_CALLER_REQUEST,
    RequestCategory,
    request_category,
    user_agent_of,
)
from forewarn.protocol.document import Document
from forewarn.protocol.http_message import HttpRequest
from forewarn.protocol.instance import InstanceFacts
from tests.metadata.conftest import MakeRequest, RunScenario, World

NEWEST = "2020-07-01"


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def view(vm: str = "a", vm_id: str = "") -> GuestView:
    return GuestView(
        vm=vm,
        scope_id="pair",
        enabled=True,
        epoch=1,
        document=Document(incarnation=1),
        facts=InstanceFacts(name=vm, vm_id=vm_id),
    )


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def observations(time: Time) -> GuestObservations:
    return GuestObservations(real_time=time)


def poll(observations: GuestObservations, time: Time, *, every_s: float, times: int, **how: Any) -> None:
    for _ in range(times):
        time.now += every_s
        observations.record_poll(view(), NEWEST, 1.0, **how)


def pace_of(observations: GuestObservations) -> PollingPace:
    pace = observations.pace("a")
    assert pace is not None
    return pace


def near(seconds: float) -> Any:
    return pytest.approx(seconds)


@pytest.mark.parametrize("by_worker", [False, True], ids=["one process", "worker"])
def test_after_a_restart_the_last_poll_is_as_old_in_real_time_as_it_is(time: Time, by_worker: bool) -> None:
    """Spec §12: neither the start of the service nor the lab's clock changes how long ago a VM polled."""
    wall = Time()
    before = GuestObservations(real_time=time, wall_time=lambda: RealTime(wall()))
    if by_worker:
        worker = GuestObservations(real_time=time, wall_time=lambda: RealTime(5.0))  # its clock is wrong
        worker.record_poll(view(), NEWEST, 1.0)
        before.merge_increments(*worker.take_increments())
    else:
        before.record_poll(view(), NEWEST, 1.0, wait_s=10)
    polls, _ = before.take_batch()
    time.now, wall.now = 7.0, wall.now + 3600  # the monotonic clock of another boot
    after = GuestObservations(real_time=time, wall_time=lambda: RealTime(wall()))
    after.restore_counts(polls)
    time.now += 30
    held_s = 0 if by_worker else 10
    assert pace_of(after).silent_s == near(3630 - held_s)
    assert not pace_of(after).is_silent  # it has had no minute yet to poll the new process
    time.now += 31
    assert pace_of(after).is_silent
    after.record_poll(view(), NEWEST, 1.0)
    assert pace_of(after).silent_s == 0


def test_a_vm_that_never_polled_has_no_pace(observations: GuestObservations) -> None:
    assert observations.pace("a") is None
    assert list(observations.paces()) == []


def test_the_average_interval_is_that_of_recent_polls(observations: GuestObservations, time: Time) -> None:
    poll(observations, time, every_s=10, times=30)
    assert observations.pace("a") == PollingPace(0.0, near(10))
    poll(observations, time, every_s=1, times=200)
    assert pace_of(observations).gap_s == pytest.approx(1)


def test_a_single_poll_has_no_interval(observations: GuestObservations, time: Time) -> None:
    poll(observations, time, every_s=1, times=1)
    assert observations.pace("a") == PollingPace(0.0, None)


def test_polls_recorded_together_count_separately(observations: GuestObservations, time: Time) -> None:
    poll(observations, time, every_s=1, times=20, count=5)
    assert pace_of(observations).gap_s == pytest.approx(0.2)


def test_a_long_silence_does_not_change_the_interval(observations: GuestObservations, time: Time) -> None:
    poll(observations, time, every_s=1, times=100)
    time.now += 10_000
    poll(observations, time, every_s=1, times=3)
    assert pace_of(observations).gap_s == pytest.approx(1)


def test_a_vm_is_silent_after_a_minute_of_real_time(observations: GuestObservations, time: Time) -> None:
    poll(observations, time, every_s=1, times=3)
    time.now += SILENCE_LIMIT_S
    assert not pace_of(observations).is_silent
    time.now += 1
    assert pace_of(observations).is_silent
    assert list(observations.paces()) == [("pair", observations.pace("a"))]


def test_a_vm_with_a_held_poll_is_not_silent(observations: GuestObservations, time: Time) -> None:
    poll(observations, time, every_s=1, times=1, wait_s=300)
    time.now += 300
    assert pace_of(observations).silent_s == 0
    time.now += SILENCE_LIMIT_S + 1
    assert pace_of(observations).is_silent


def test_after_a_restart_known_vms_are_silent_only_after_a_minute(observations: GuestObservations, time: Time) -> None:
    observations.restore_counts([LastPoll(vm="a", scope_id="pair", at=1.0, version=NEWEST, count=41)])
    assert observations.pace("a") == PollingPace(0.0, None, listened_s=0.0)
    time.now += SILENCE_LIMIT_S + 1
    assert pace_of(observations).is_silent
    poll(observations, time, every_s=1, times=2)
    assert observations.pace("a") == PollingPace(0.0, near(1))


def test_polls_that_workers_observed_count(observations: GuestObservations, time: Time) -> None:
    worker = GuestObservations(real_time=time)
    for _ in range(5):
        time.now += 2
        worker.record_poll(view(), NEWEST, 1.0, user_agent="curl/8.1", wait_s=30)
        observations.merge_increments(*worker.take_increments())
    assert pace_of(observations).gap_s == pytest.approx(2)
    [poll], _ = observations.take_batch()
    assert (poll.agent, poll.wait_s, poll.count) == ("curl/8.1", 30, 5)


def test_the_user_agent_is_recorded_for_cached_and_other_polls(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        for _ in range(3):
            await client.ask(User_Agent="curl/8.1")
        [poll], _ = world.server.observations.take_batch()
        assert (poll.agent, poll.count) == ("curl/8.1", 3)
        await client.ask(User_Agent="other")
        await client.ask(User_Agent="curl/8.1")  # a cache hit, and the last poll
        assert [poll.agent for poll in world.server.observations.take_batch()[0]] == ["curl/8.1"]

    run_scenario(scenario)


def test_the_wait_is_recorded_only_for_held_polls(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        tag = (await client.ask()).headers["etag"]
        await client.ask(If_None_Match='"0-0"', Prefer="wait=120")
        assert [poll.wait_s for poll in world.server.observations.take_batch()[0]] == [0]
        client.send(request_bytes(If_None_Match=tag, Prefer="wait=120"))
        await world.until(lambda: world.server.counters.held == 1)
        assert [poll.wait_s for poll in world.server.observations.take_batch()[0]] == [120]

    run_scenario(scenario)


def request_of(agent: str) -> HttpRequest:
    return HttpRequest(method="GET", target="/", headers=(("user-agent", agent), ("user-agent", "second")))


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("python-requests/2.31", "python-requests/2.31"),
        ("a\x1b[31mb\x00c\xa0", "a[31mbc"),
        ("x" * 500, "x" * MAX_USER_AGENT_LENGTH),
        ("<script>", "<script>"),
        ("", ""),
    ],
    ids=["usual", "what cannot be printed", "long", "markup", "empty"],
)
def test_the_user_agent_is_printable_and_bounded(sent: str, kept: str) -> None:
    assert user_agent_of(request_of(sent)) == kept


def test_a_request_without_a_user_agent_has_an_empty_one() -> None:
    assert user_agent_of(HttpRequest(method="GET", target="/")) == ""


EVENTS = "/metadata/scheduledevents"


@pytest.mark.parametrize(
    ("method", "target", "category"),
    [
        ("GET", f"{EVENTS}?api-version=2020-07-01", RequestCategory("poll", "2020-07-01")),
        ("GET", "/Metadata/ScheduledEvents/?API-Version=2017-08-01", RequestCategory("poll", "2017-08-01")),
        ("GET", f"{EVENTS}?api-version=2031-01-01", RequestCategory("poll", "other")),
        ("GET", EVENTS, RequestCategory("poll", "none")),
        ("POST", f"{EVENTS}?api-version=2020-07-01", RequestCategory("approval", "2020-07-01")),
        ("BREW", f"{EVENTS}?api-version=2020-07-01", RequestCategory("other", "2020-07-01")),
        ("GET", "/metadata/instance/compute?api-version=2021-02-01", RequestCategory("instance")),
        ("GET", "/metadata/identity/oauth2/token?resource=x", RequestCategory("token")),
        ("GET", "/favicon.ico", RequestCategory("other")),
        ("OPTIONS", "*", RequestCategory("other")),
    ],
)
def test_a_request_has_a_category(method: str, target: str, category: RequestCategory) -> None:
    assert request_category(HttpRequest(method=method, target=target)) == category


def test_requests_are_counted_by_version_and_unknown_callers_separately(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        for _ in range(3):
            await client.ask()
        await client.ask(f"{EVENTS}?api-version=nonsense")
        await world.ask(vm="unknown")
        assert world.server.counters.answered == {
            (RequestCategory("poll", "2020-07-01"), 200): 3,
            (RequestCategory("poll", "other"), 400): 1,
            (UNKNOWN_CALLER_REQUEST, 404): 1,
        }

    run_scenario(scenario)


def polling_starts(observations: GuestObservations) -> tuple[list[Sequence[str]], Callable[[], None]]:
    starts: list[Sequence[str]] = []
    return starts, observations.subscribe_polling_starts(starts.append)


def test_subscribers_learn_that_a_vm_started_polling_once_it_is_stored(
    observations: GuestObservations, time: Time
) -> None:
    starts, stop = polling_starts(observations)
    poll(observations, time, every_s=1, times=3)
    assert starts == []
    observations.take_batch()
    observations.notify_written([])
    poll(observations, time, every_s=SILENCE_LIMIT_S - 1, times=5)
    observations.notify_written([])
    assert starts == [("a",)]
    time.now += SILENCE_LIMIT_S + 1
    observations.record_poll(view(), NEWEST, 1.0)
    observations.notify_written([])
    assert starts == [("a",), ("a",)]
    stop()
    time.now += SILENCE_LIMIT_S + 1
    observations.record_poll(view(), NEWEST, 1.0)
    observations.notify_written([])
    assert len(starts) == 2


def test_a_poll_after_a_long_poll_is_not_a_polling_start(observations: GuestObservations, time: Time) -> None:
    observations.record_poll(view(), NEWEST, 1.0, wait_s=120)
    starts, _ = polling_starts(observations)
    time.now += 120 + SILENCE_LIMIT_S
    observations.record_poll(view(), NEWEST, 1.0)
    observations.notify_written([])
    assert starts == []


@pytest.mark.parametrize(("after_s", "expected"), [(SILENCE_LIMIT_S - 1, []), (SILENCE_LIMIT_S + 1, [("a",)])])
def test_a_vm_that_polls_soon_after_a_restart_did_not_start_polling(
    observations: GuestObservations, time: Time, after_s: float, expected: list[tuple[str, ...]]
) -> None:
    observations.restore_counts([LastPoll(vm="a", scope_id="pair", at=1.0, version=NEWEST, count=3)])
    starts, _ = polling_starts(observations)
    time.now += after_s
    observations.record_poll(view(), NEWEST, 1.0)
    observations.notify_written([])
    assert starts == expected


def test_subscribers_learn_of_polling_starts_in_other_processes(observations: GuestObservations, time: Time) -> None:
    starts, _ = polling_starts(observations)
    for _ in range(3):
        time.now += 1
        observations.merge_increments([LastPoll(vm="b", scope_id="pair", at=1.0, version=NEWEST, count=2)], [])
        observations.notify_written([])
    assert starts == [("b",)]


def test_a_vm_with_another_id_starts_to_count_again(observations: GuestObservations) -> None:
    """As in a worker, which learns of the new VM by its first poll."""
    for vm_id in ("old", "old", "new"):
        observations.record_poll(view(vm_id=vm_id), NEWEST, 1.0)
    polls, _ = observations.take_batch()
    assert [(poll.vm_id, poll.count) for poll in polls] == [("new", 1)]


def test_late_reports_about_a_replaced_vm_are_ignored(observations: GuestObservations) -> None:
    def report(vm_id: str) -> LastPoll:
        return LastPoll(vm="a", scope_id="pair", at=1.0, version=NEWEST, count=5, vm_id=vm_id)

    observations.merge_increments([report("old")], [])
    batch = observations.take_batch()
    observations.replace_vm("a", "new")
    observations.return_batch(*batch)
    observations.merge_increments([report("old")], [])
    assert observations.pace("a") is None
    assert observations.take_batch() == ([], [])
    observations.merge_increments([report("new")], [])
    assert [poll.count for poll in observations.take_batch()[0]] == [5]
