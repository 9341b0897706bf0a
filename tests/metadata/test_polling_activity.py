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
    return GuestObservations(real=time)


def ask(seen, time, *, every_s, times, **how):
    for _ in range(times):
        time.now += every_s
        seen.record_poll(view(), NEWEST, 1.0, **how)


def test_a_vm_that_never_asked_has_no_pace(seen):
    assert seen.pace("a") is None
    assert list(seen.paces()) == []


def test_the_average_gap_is_that_of_late(seen, time):
    ask(seen, time, every_s=10, times=30)
    assert seen.pace("a") == PollingPace(0.0, pytest.approx(10))
    ask(seen, time, every_s=1, times=200)
    assert seen.pace("a").gap_s == pytest.approx(1)


def test_a_single_request_says_nothing_about_the_next(seen, time):
    ask(seen, time, every_s=1, times=1)
    assert seen.pace("a") == PollingPace(0.0, None)


def test_requests_told_together_count_each(seen, time):
    ask(seen, time, every_s=1, times=20, count=5)
    assert seen.pace("a").gap_s == pytest.approx(0.2)


def test_a_long_silence_is_no_gap_between_polls(seen, time):
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


def test_whoever_waits_for_an_answer_still_asks(seen, time):
    ask(seen, time, every_s=1, times=1, wait_s=300)
    time.now += 300
    assert seen.pace("a").silent_s == 0
    time.now += SILENCE_LIMIT_S + 1
    assert seen.pace("a").is_silent


def test_after_a_restart_those_who_asked_before_are_given_a_minute(seen, time):
    seen.restore_counts([LastPoll(vm="a", scope_id="pair", at=1.0, version=NEWEST, count=41)])
    assert seen.pace("a") == PollingPace(0.0, None)
    time.now += SILENCE_LIMIT_S + 1
    assert seen.pace("a").is_silent
    ask(seen, time, every_s=1, times=2)
    assert seen.pace("a") == PollingPace(0.0, pytest.approx(1))


def test_what_workers_have_seen_counts_here(seen, time):
    worker = GuestObservations(real=time)
    for _ in range(5):
        time.now += 2
        worker.record_poll(view(), NEWEST, 1.0, agent="curl/8.1", wait_s=30)
        seen.merge_increments(*worker.take_increments())
    assert seen.pace("a").gap_s == pytest.approx(2)
    [poll], _ = seen.take_batch()
    assert (poll.agent, poll.wait_s, poll.count) == ("curl/8.1", 30, 5)


def test_the_program_that_asks_is_kept_with_the_poll_whether_it_is_remembered_or_not(play):
    async def story(world):
        client = await world.connect()
        for _ in range(3):
            await client.ask(User_Agent="curl/8.1")
        [poll], _ = world.server.observations.take_batch()
        assert (poll.agent, poll.count) == ("curl/8.1", 3)
        await client.ask(User_Agent="other")
        await client.ask(User_Agent="curl/8.1")  # remembered, and the last
        assert [poll.agent for poll in world.server.observations.take_batch()[0]] == ["curl/8.1"]

    play(story)


def test_a_poll_that_waits_says_for_how_long_and_one_that_is_answered_at_once_does_not(play, request_bytes):
    async def story(world):
        client = await world.connect()
        tag = (await client.ask()).headers["etag"]
        await client.ask(If_None_Match='"0-0"', Prefer="wait=120")
        assert [poll.wait_s for poll in world.server.observations.take_batch()[0]] == [0]
        client.send(request_bytes(If_None_Match=tag, Prefer="wait=120"))
        await world.until(lambda: world.server.counters.held == 1)
        assert [poll.wait_s for poll in world.server.observations.take_batch()[0]] == [120]

    play(story)


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
def test_a_program_is_called_what_it_says_within_bounds(sent, kept):
    assert user_agent_of(asking(sent)) == kept


def test_a_program_that_says_nothing_has_no_name():
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
def test_requests_are_counted_by_few_words(method, target, sort):
    assert request_category(HttpRequest(method=method, target=target)) == sort


def test_the_tally_tells_polls_apart_by_version_and_strangers_from_vms(play):
    async def story(world):
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

    play(story)


def told_of(seen):
    told = []
    return told, seen.subscribe_polling_starts(told.append)


def test_whoever_begins_to_ask_is_told_once_it_is_written_down_and_no_poll_after_that_is(seen, time):
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


def test_a_long_poll_that_lasts_is_no_silence_after_which_one_begins(seen, time):
    seen.record_poll(view(), NEWEST, 1.0, wait_s=120)
    told, _ = told_of(seen)
    time.now += 120 + SILENCE_LIMIT_S
    seen.record_poll(view(), NEWEST, 1.0)
    seen.notify_written([])
    assert told == []


@pytest.mark.parametrize(("after_s", "begun"), [(SILENCE_LIMIT_S - 1, []), (SILENCE_LIMIT_S + 1, [("a",)])])
def test_whoever_asks_soon_after_a_restart_never_stopped(seen, time, after_s, begun):
    seen.restore_counts([LastPoll(vm="a", scope_id="pair", at=1.0, version=NEWEST, count=3)])
    told, _ = told_of(seen)
    time.now += after_s
    seen.record_poll(view(), NEWEST, 1.0)
    seen.notify_written([])
    assert told == begun


def test_who_begins_to_ask_of_another_process_is_told_too(seen, time):
    told, _ = told_of(seen)
    for _ in range(3):
        time.now += 1
        seen.merge_increments([LastPoll(vm="b", scope_id="pair", at=1.0, version=NEWEST, count=2)], [])
        seen.notify_written([])
    assert told == [("b",)]
