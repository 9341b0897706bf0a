"""Which program asks, how often, and since when it has not: kept beside the counts, at no cost to a poll."""

from __future__ import annotations

import pytest

from forewarn.explain.polling import SILENCE_LIMIT_S, PollingPace
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
from forewarn.store.interface import LastPoll

NEWEST = "2020-07-01"


class Time:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def view(vm="a"):
    return GuestView(
        vm=vm,
        scope_id="pair",
        enabled=True,
        epoch=1,
        document=Document(incarnation=1),
        facts=InstanceFacts(name=vm),
    )


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def seen(time):
    return GuestObservations(real_time=time)


def ask(seen, time, *, every_s, times, **how):
    for _ in range(times):
        time.now += every_s
        seen.record_poll(view(), NEWEST, 1.0, **how)


def test_a_vm_that_never_polled_has_no_pace(seen):
    assert seen.pace("a") is None
    assert list(seen.paces()) == []


def test_the_average_interval_is_that_of_recent_polls(seen, time):
    ask(seen, time, every_s=10, times=30)
    assert seen.pace("a") == PollingPace(0.0, pytest.approx(10))
    ask(seen, time, every_s=1, times=200)
    assert seen.pace("a").gap_s == pytest.approx(1)


def test_a_single_poll_has_no_interval(seen, time):
    ask(seen, time, every_s=1, times=1)
    assert seen.pace("a") == PollingPace(0.0, None)


def test_polls_recorded_together_count_separately(seen, time):
    ask(seen, time, every_s=1, times=20, count=5)
    assert seen.pace("a").gap_s == pytest.approx(0.2)


def test_a_long_silence_does_not_change_the_interval(seen, time):
    ask(seen, time, every_s=1, times=100)
    time.now += 10_000
    ask(seen, time, every_s=1, times=3)
    assert seen.pace("a").gap_s == pytest.approx(1)


def test_a_vm_is_silent_after_a_minute_of_real_time(seen, time):
    ask(seen, time, every_s=1, times=3)
    time.now += SILENCE_LIMIT_S
    assert not seen.pace("a").is_silent
    time.now += 1
    assert seen.pace("a").is_silent
    assert list(seen.paces()) == [("pair", seen.pace("a"))]


def test_a_vm_with_a_held_poll_is_not_silent(seen, time):
    ask(seen, time, every_s=1, times=1, wait_s=300)
    time.now += 300
    assert seen.pace("a").silent_s == 0
    time.now += SILENCE_LIMIT_S + 1
    assert seen.pace("a").is_silent


def test_after_a_restart_known_vms_are_silent_only_after_a_minute(seen, time):
    seen.restore_counts([LastPoll(vm="a", scope_id="pair", at=1.0, version=NEWEST, count=41)])
    assert seen.pace("a") == PollingPace(0.0, None)
    time.now += SILENCE_LIMIT_S + 1
    assert seen.pace("a").is_silent
    ask(seen, time, every_s=1, times=2)
    assert seen.pace("a") == PollingPace(0.0, pytest.approx(1))


def test_polls_that_workers_observed_count(seen, time):
    worker = GuestObservations(real_time=time)
    for _ in range(5):
        time.now += 2
        worker.record_poll(view(), NEWEST, 1.0, user_agent="curl/8.1", wait_s=30)
        seen.merge_increments(*worker.take_increments())
    assert seen.pace("a").gap_s == pytest.approx(2)
    [poll], _ = seen.take_batch()
    assert (poll.agent, poll.wait_s, poll.count) == ("curl/8.1", 30, 5)


def test_the_user_agent_is_recorded_for_cached_and_other_polls(run_scenario):
    async def scenario(world):
        client = await world.connect()
        for _ in range(3):
            await client.ask(User_Agent="curl/8.1")
        [poll], _ = world.server.observations.take_batch()
        assert (poll.agent, poll.count) == ("curl/8.1", 3)
        await client.ask(User_Agent="other")
        await client.ask(User_Agent="curl/8.1")  # remembered, and the last
        assert [poll.agent for poll in world.server.observations.take_batch()[0]] == ["curl/8.1"]

    run_scenario(scenario)


def test_the_wait_is_recorded_only_for_held_polls(run_scenario, request_bytes):
    async def scenario(world):
        client = await world.connect()
        tag = (await client.ask()).headers["etag"]
        await client.ask(If_None_Match='"0-0"', Prefer="wait=120")
        assert [poll.wait_s for poll in world.server.observations.take_batch()[0]] == [0]
        client.send(request_bytes(If_None_Match=tag, Prefer="wait=120"))
        await world.until(lambda: world.server.counters.held == 1)
        assert [poll.wait_s for poll in world.server.observations.take_batch()[0]] == [120]

    run_scenario(scenario)


def asking(agent):
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
def test_the_user_agent_is_printable_and_bounded(sent, kept):
    assert user_agent_of(asking(sent)) == kept


def test_a_request_without_a_user_agent_has_an_empty_one():
    assert user_agent_of(HttpRequest(method="GET", target="/")) == ""


EVENTS = "/metadata/scheduledevents"


@pytest.mark.parametrize(
    ("method", "target", "sort"),
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
def test_a_request_has_a_category(method, target, sort):
    assert request_category(HttpRequest(method=method, target=target)) == sort


def test_requests_are_counted_by_version_and_unknown_callers_separately(run_scenario):
    async def scenario(world):
        client = await world.connect()
        for _ in range(3):
            await client.ask()
        await client.ask(f"{EVENTS}?api-version=nonsense")
        await world.ask(vm="nobody")
        assert world.server.counters.answered == {
            (RequestCategory("poll", "2020-07-01"), 200): 3,
            (RequestCategory("poll", "other"), 400): 1,
            (UNKNOWN_CALLER_REQUEST, 404): 1,
        }

    run_scenario(scenario)


def told_of(seen):
    told = []
    return told, seen.subscribe_polling_starts(told.append)


def test_subscribers_learn_that_a_vm_started_polling_once_it_is_stored(seen, time):
    told, stop = told_of(seen)
    ask(seen, time, every_s=1, times=3)
    assert told == []
    seen.take_batch()
    seen.notify_written([])
    ask(seen, time, every_s=SILENCE_LIMIT_S - 1, times=5)
    seen.notify_written([])
    assert told == [("a",)]
    time.now += SILENCE_LIMIT_S + 1
    seen.record_poll(view(), NEWEST, 1.0)
    seen.notify_written([])
    assert told == [("a",), ("a",)]
    stop()
    time.now += SILENCE_LIMIT_S + 1
    seen.record_poll(view(), NEWEST, 1.0)
    seen.notify_written([])
    assert len(told) == 2


def test_a_poll_after_a_long_poll_is_not_a_polling_start(seen, time):
    seen.record_poll(view(), NEWEST, 1.0, wait_s=120)
    told, _ = told_of(seen)
    time.now += 120 + SILENCE_LIMIT_S
    seen.record_poll(view(), NEWEST, 1.0)
    seen.notify_written([])
    assert told == []


@pytest.mark.parametrize(("after_s", "begun"), [(SILENCE_LIMIT_S - 1, []), (SILENCE_LIMIT_S + 1, [("a",)])])
def test_a_vm_that_polls_soon_after_a_restart_did_not_start_polling(seen, time, after_s, begun):
    seen.restore_counts([LastPoll(vm="a", scope_id="pair", at=1.0, version=NEWEST, count=3)])
    told, _ = told_of(seen)
    time.now += after_s
    seen.record_poll(view(), NEWEST, 1.0)
    seen.notify_written([])
    assert told == begun


def test_subscribers_learn_of_polling_starts_in_other_processes(seen, time):
    told, _ = told_of(seen)
    for _ in range(3):
        time.now += 1
        seen.merge_increments([LastPoll(vm="b", scope_id="pair", at=1.0, version=NEWEST, count=2)], [])
        seen.notify_written([])
    assert told == [("b",)]
