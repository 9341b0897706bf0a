"""Single questions, with either driver, to services in good days and bad ones (spec §11)."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.client import AsyncClient, Client, Event, lists
from forewarn.client.endpoint import read_endpoint
from forewarn.client.exchange import GONE_S, LONGEST_RETRY_AFTER_S, Watch, poll
from forewarn.client.line import send
from forewarn.client.move import Broken, Run, Send
from forewarn.client.session import ANSWER_S, FIRST_ANSWER_S, Session
from forewarn.client.watching import Manner
from forewarn.errors import Rejected, Unavailable
from forewarn.protocol.message import Response
from forewarn.testing.scripted import Reply, Scripted, says

Driver = Callable[..., Any]
DATE = ("Date", "Mon, 19 Sep 2016 18:14:47 GMT")
OURS = {"EventId": "A", "EventStatus": "Scheduled", "EventType": "Freeze", "Resources": ["x", "_WEB-0"]}
THEIRS = {"EventId": "B", "EventStatus": "Scheduled", "EventType": "Freeze", "Resources": ["web-00", "__web-0"]}
EMPTY = {"DocumentIncarnation": 1, "Events": []}
INVALID = says({"error": "Not found. Invalid version requested"}, status=404)


def offering(*versions: str) -> Reply:
    return says({"error": "Bad request. api-version is invalid", "newest-versions": versions}, status=400)


def versions(server: Scripted) -> list[str]:
    return [request.target.rpartition("=")[2] for request in server.requests]


def test_mine_are_the_events_that_list_this_vm(driver: Driver) -> None:
    """Spec §7.2: without case, and with the underscore that 2017 put before names (§3)."""
    with Scripted(Reply(body=b"web-0\n"), says({"DocumentIncarnation": 3, "Events": [OURS, THEIRS]})) as server:
        one = driver(server.url)
        assert [event.id for event in one.call("mine")] == ["A"]
        one.call("mine")
        assert one.call("name") == "web-0"
    assert [request.target.split("?")[0].rpartition("/")[2] for request in server.requests] == [
        *("name", "scheduledevents", "scheduledevents")
    ], "the name is learned once"


def test_an_endpoint_where_nobody_listens_is_told_in_the_same_words_by_both(driver: Driver) -> None:
    with Scripted(Reply()) as server:
        url = server.url
    with pytest.raises(Unavailable) as caught:
        driver(url).call("events")
    assert str(caught.value) == f"nothing answers at {url} ({os.strerror(errno.ECONNREFUSED)}): check the endpoint"


def test_an_event_without_resources_lists_nobody() -> None:
    assert not lists(Event(id="A"), "web-0")
    assert not lists(Event(id="A"), "")


def test_events_and_ids_are_approved_alike(driver: Driver) -> None:
    """Spec §5.1."""
    with Scripted(Reply()) as server:
        driver(server.url).call("approve", Event(id="A"), "B")
    assert server.requests[0].body == b'{"StartRequests": [{"EventId": "A"}, {"EventId": "B"}]}'


def test_time_left_is_the_services_time_which_goes_on(driver: Driver) -> None:
    """Spec §12: NotBefore − Date, whatever the clock of this machine says."""
    now = [50.0]
    event = {**OURS, "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}
    with Scripted(says({"Events": [event, {"EventId": "B"}]}, headers=(DATE,)), says(EMPTY)) as server:
        one = driver(server.url, clock=lambda: now[0])
        assert one.client.time_left(Event(not_before=1.0)) is None, "nothing was heard yet"
        first, second = one.call("events").events
        assert one.client.time_left(first) == 900
        now[0] = 60.0
        assert one.client.time_left(first) == 890
        assert one.client.time_left(second) is None
        one.call("events")
        assert one.client.time_left(first) == 890, "what it told before goes on"


@pytest.mark.parametrize(
    "bad",
    [
        *(Reply(status=status) for status in (408, 410, 429, 500, 503)),
        *(Reply(), Reply(resets=True), Reply(body=b"{"), Reply(status=304)),
    ],
    ids=["408", "410", "429", "500", "503", "empty body", "reset", "half a body", "304"],
)
def test_a_passing_fault_is_tried_again(driver: Driver, bad: Reply) -> None:
    """Spec §11."""
    with Scripted(bad, bad, says(EMPTY)) as server:
        one = driver(server.url)
        assert one.call("events").incarnation == 1
    assert one.naps == [0.5, 1.0]


def test_410_is_waited_out_for_as_long_as_it_lasts(driver: Driver) -> None:
    """Spec §11: for up to 70 s."""
    with Scripted(Reply(status=410)) as server:
        one = driver(server.url)
        with pytest.raises(Unavailable, match="status 410"):
            one.call("events")
    assert 70 < sum(one.naps) <= GONE_S + 5


@pytest.mark.parametrize(
    ("retry_after", "pause_s"),
    [
        ("3", 3.0),
        ("Mon, 19 Sep 2016 18:14:50 GMT", 3.0),
        ("Mon, 19 Sep 2016 17:00:00 GMT", 0.5),
        ("86400", LONGEST_RETRY_AFTER_S),
        ("9" * 400, LONGEST_RETRY_AFTER_S),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_RETRY_AFTER_S),
        ("0", 0.5),
        ("soon", 0.5),
        ("", 0.5),
        ("-1", 0.5),
    ],
    ids=["seconds", "date", "past", "a day", "absurd", "far date", "zero", "junk", "empty", "negative"],
)
def test_a_throttled_client_comes_back_when_it_is_told_to_within_reason(
    driver: Driver, retry_after: str, pause_s: float
) -> None:
    """Spec §11: 429; a Preempt gives 30 s only, so no wait is longer than a third of that."""
    throttled = Reply(status=429, headers=(DATE, ("Retry-After", retry_after)))
    with Scripted(throttled, says(EMPTY)) as server:
        one = driver(server.url)
        one.call("events")
    assert one.naps == [pause_s]


def test_a_fault_that_stays_is_told_after_a_few_tries(driver: Driver) -> None:
    with Scripted(Reply(status=500)) as server, pytest.raises(Unavailable, match="cannot answer now"):
        driver(server.url).call("approve", "A")
    assert len(server.requests) == 5


def test_the_first_answer_may_take_two_minutes_and_later_ones_may_not() -> None:
    """Spec §8.1."""
    session = Session("127.0.0.1")
    for expected in (FIRST_ANSWER_S, ANSWER_S):
        run = Run(session.poll(Watch(), hold_s=0))
        move = run.move()
        assert isinstance(move, Send)
        assert move.patience_s == expected
        run.came(Response(status=200, body=b'{"Events":[]}'))
        assert run.move() is None
    assert FIRST_ANSWER_S > 120


def test_a_body_that_trickles_in_for_ever_is_no_answer(driver: Driver) -> None:
    """Spec §11: slow body; patience with pieces is not endless."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not over.wait(0.01):
                    connection.sendall(b" ")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            one = driver(f"127.0.0.1:{port}")
            talk = _impatient(port)
            with pytest.raises(Broken, match="broke off its answer"):
                one.call("ask", talk)
        finally:
            over.set()
            thread.join()


def test_a_slow_body_is_waited_for_while_it_comes(driver: Driver) -> None:
    """Spec §11: it may take far longer than an answer may take to begin."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n")
                for _ in range(30):
                    connection.sendall(b" ")
                    threading.Event().wait(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            response = driver(f"127.0.0.1:{port}").call("ask", _patient(port))
        finally:
            thread.join()
    assert len(response.body) == 30


def _patient(port: int) -> Any:
    return (yield Send(endpoint=read_endpoint(f"127.0.0.1:{port}"), request=poll(), patience_s=1.0))


def _impatient(port: int) -> Any:
    yield Send(endpoint=read_endpoint(f"127.0.0.1:{port}"), request=poll(), patience_s=5.0, body_s=-4.8)


def test_a_service_that_accepts_and_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(Broken, match="timed out"):
        send(read_endpoint(f"127.0.0.1:{listener.getsockname()[1]}"), poll(), 0.1)


def test_junk_in_a_document_is_passed_on_and_harms_nothing(driver: Driver) -> None:
    """Unknown kinds, fields and statuses are kept; dates that are none are unknown."""
    odd = {"EventId": "A", "EventStatus": "Pondered", "EventType": "Teleport", "NotBefore": "soon", "Beam": [1]}
    with Scripted(says({"DocumentIncarnation": "7", "Events": [odd, 5, None]}, headers=(("Date", "now"),))) as server:
        one = driver(server.url)
        (event,) = one.call("events").events
    assert (event.kind, event.status, event.not_before, event.not_before_text) == ("Teleport", "Pondered", None, "soon")
    assert event.resources == ()
    assert event.raw == odd
    assert one.client.time_left(event) is None


def test_no_proxy_is_used_and_no_header_sent_that_services_refuse(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec §2.2, §2.3."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Scripted(says(EMPTY)) as server:
        driver(server.url).call("events")
    (request,) = server.requests
    assert request.target.startswith("/metadata/"), "not the absolute form that proxies are sent"
    assert not {"origin", "x-forwarded-for"} & {name for name, _ in request.headers}


def test_a_version_that_is_refused_is_followed_by_the_newest_that_is_offered(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """Spec §10; what is lost with it is said (§3)."""
    with Scripted(offering("2019-08-01", "2019-04-01", "2019-01-01"), says(EMPTY)) as server:
        one = driver(server.url)
        one.call("events")
        one.call("approve", "A")
    assert versions(server) == ["2020-07-01", "2019-08-01", "2019-08-01"], "and it is remembered"
    assert one.client.version == "2019-08-01"
    assert [record.getMessage() for record in caplog.records] == [
        "the service takes api-version 2019-08-01 at most: events come without DurationInSeconds"
    ]


def test_of_versions_that_are_all_strange_the_newest_of_ours_below_them_is_tried(driver: Driver) -> None:
    with Scripted(offering("2020-01-01", "2019-12-01"), says(EMPTY)) as server:
        driver(server.url).call("events")
    assert versions(server) == ["2020-07-01", "2019-08-01"]


def test_404_invalid_version_steps_down_one_by_one(driver: Driver) -> None:
    """Spec §11: unknown api-version answered 404."""
    with Scripted(INVALID, INVALID, says(EMPTY)) as server:
        driver(server.url).call("events")
    assert versions(server) == ["2020-07-01", "2019-08-01", "2019-04-01"]


@pytest.mark.parametrize(
    ("reply", "hidden"),
    [(offering("2017-08-01", "2017-03-01"), "Preempt and Terminate"), (INVALID, "Terminate")],
    ids=["offered", "stepped down to"],
)
def test_no_version_is_taken_by_itself_that_hides_a_kind(driver: Driver, reply: Reply, hidden: str) -> None:
    """Spec §3."""
    with Scripted(reply) as server, pytest.raises(Rejected, match=rf"does not tell of {hidden}: give version='2017-"):
        driver(server.url).call("events")


def test_a_version_that_was_asked_for_is_not_exchanged(driver: Driver) -> None:
    with Scripted(offering("2020-07-01")) as server, pytest.raises(Rejected, match="api-version is invalid"):
        driver(server.url, version="2017-08-01").call("events")
    assert versions(server) == ["2017-08-01"]


def test_a_refusal_that_offers_only_what_was_tried_is_told(driver: Driver) -> None:
    with Scripted(offering("2020-07-01")) as server, pytest.raises(Rejected):
        driver(server.url).call("events")
    assert len(server.requests) == 1


def test_the_name_is_asked_for_with_a_version_that_the_service_takes(driver: Driver) -> None:
    with Scripted(offering("2019-11-01", "2019-08-15"), Reply(body=b"web-0")) as server:
        assert driver(server.url).call("name") == "web-0"
    assert "2019-11-01" in server.requests[1].target


def test_watching_says_so_when_the_service_stays_away(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Scripted(*[Reply(status=500)] * 9, says(EMPTY)) as server:
        driver(server.url).take(1, "documents")
    (record,) = caplog.records
    assert record.getMessage().endswith("(status 500): ask again in a few seconds; going on trying")


def test_both_clients_offer_the_same() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Client) - public(AsyncClient) == {"endpoint"}, "which may have to ask"
    assert public(AsyncClient) <= public(Client)


def test_the_services_time_goes_on_between_its_answers_and_trouble_is_told_until_the_next() -> None:
    real = [100.0]
    dated = says(EMPTY, headers=(("Date", "Mon, 19 Sep 2016 18:29:47 GMT"),))
    with Scripted(dated, Reply(status=503), dated) as server:
        client = Client(server.url, clock=lambda: real[0], sleep=lambda _: None)
        assert (client.now, client.answered_at, client.trouble) == (None, None, "")
        client.events()
        real[0] += 2.5
        assert (client.now, client.answered_at) == (1474309787.0 + 2.5, 100.0)
        told = client.follow(None, Manner(within_s=lambda: 0.0))
        assert next(told) is None
        assert "503" in client.trouble
        assert client.answered_at == 100.0
        assert next(told) is None
        assert (client.trouble, client.answered_at) == ("", 102.5)


@pytest.mark.parametrize("headers", [(), (("Date", "junk"),)], ids=["none", "junk"])
def test_an_answer_without_a_date_does_not_stop_the_services_clock(headers: tuple[tuple[str, str], ...]) -> None:
    """This machine's own may be hours away from it: steps would be cut for good."""
    real = [100.0]
    dated = says(EMPTY, headers=(("Date", "Mon, 19 Sep 2016 18:29:47 GMT"),))
    with Scripted(dated, says(EMPTY, headers=headers)) as server:
        client = Client(server.url, clock=lambda: real[0], sleep=lambda _: None)
        client.events()
        real[0] += 30
        client.events()
        real[0] += 1
        assert (client.now, client.answered_at) == (1474309787.0 + 31, 130.0)


@pytest.mark.parametrize("page", [b"<html>log in", b'{"name": "web-0"}', b"web-0\nweb-1", b"x" * 257])
def test_a_page_of_somebody_else_is_no_name(driver: Driver, page: bytes) -> None:
    """Nothing would ever be about a VM of that name, and nobody would be told."""
    with Scripted(Reply(body=page)) as server, pytest.raises(Unavailable, match="no name of a VM: check the endpoint"):
        driver(server.url).call("name")
