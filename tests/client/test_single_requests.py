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
from forewarn.client.blocking_client import send_request
from forewarn.client.effects import FlowRunner, IncompleteResponse, SendRequest
from forewarn.client.endpoint import parse_endpoint
from forewarn.client.requests import GONE_TIMEOUT_S, MAX_RETRY_AFTER_S, PollState, poll_request
from forewarn.client.session import ANSWER_TIMEOUT_S, FIRST_ANSWER_TIMEOUT_S, ClientSession
from forewarn.client.watch import WatchOptions
from forewarn.errors import Rejected, Unavailable
from forewarn.protocol.http_message import HttpResponse
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

Driver = Callable[..., Any]
DATE = ("Date", "Mon, 19 Sep 2016 18:14:47 GMT")
OURS = {"EventId": "A", "EventStatus": "Scheduled", "EventType": "Freeze", "Resources": ["x", "_WEB-0"]}
THEIRS = {"EventId": "B", "EventStatus": "Scheduled", "EventType": "Freeze", "Resources": ["web-00", "__web-0"]}
EMPTY = {"DocumentIncarnation": 1, "Events": []}
INVALID = json_reply({"error": "Not found. Invalid version requested"}, status=404)


def offering(*versions: str) -> ScriptedReply:
    return json_reply({"error": "Bad request. api-version is invalid", "newest-versions": versions}, status=400)


def versions(server: ScriptedServer) -> list[str]:
    return [request.target.rpartition("=")[2] for request in server.requests]


def test_mine_are_the_events_that_list_this_vm(driver: Driver) -> None:
    """Spec §7.2: without case, and with the underscore that 2017 put before names (§3)."""
    with ScriptedServer(
        ScriptedReply(body=b"web-0\n"), json_reply({"DocumentIncarnation": 3, "Events": [OURS, THEIRS]})
    ) as server:
        one = driver(server.url)
        assert [event.id for event in one.call("mine")] == ["A"]
        one.call("mine")
        assert one.call("name") == "web-0"
    assert [request.target.split("?")[0].rpartition("/")[2] for request in server.requests] == [
        *("name", "scheduledevents", "scheduledevents")
    ], "the name is learned once"


def test_an_endpoint_where_nobody_listens_is_told_in_the_same_words_by_both(driver: Driver) -> None:
    with ScriptedServer(ScriptedReply()) as server:
        url = server.url
    with pytest.raises(Unavailable) as caught:
        driver(url).call("events")
    assert str(caught.value) == f"nothing answers at {url} ({os.strerror(errno.ECONNREFUSED)}): check the endpoint"


def test_an_event_without_resources_lists_nobody() -> None:
    assert not lists(Event(id="A"), "web-0")
    assert not lists(Event(id="A"), "")


def test_events_and_ids_are_approved_alike(driver: Driver) -> None:
    """Spec §5.1."""
    with ScriptedServer(ScriptedReply()) as server:
        driver(server.url).call("approve", Event(id="A"), "B")
    assert server.requests[0].body == b'{"StartRequests": [{"EventId": "A"}, {"EventId": "B"}]}'


def test_time_left_is_the_services_time_which_goes_on(driver: Driver) -> None:
    """Spec §12: NotBefore − Date, whatever the clock of this machine says."""
    now = [50.0]
    event = {**OURS, "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}
    with ScriptedServer(
        json_reply({"Events": [event, {"EventId": "B"}]}, headers=(DATE,)), json_reply(EMPTY)
    ) as server:
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
        *(ScriptedReply(status=status) for status in (408, 410, 429, 500, 503)),
        *(ScriptedReply(), ScriptedReply(resets=True), ScriptedReply(body=b"{"), ScriptedReply(status=304)),
    ],
    ids=["408", "410", "429", "500", "503", "empty body", "reset", "half a body", "304"],
)
def test_a_passing_fault_is_tried_again(driver: Driver, bad: ScriptedReply) -> None:
    """Spec §11."""
    with ScriptedServer(bad, bad, json_reply(EMPTY)) as server:
        one = driver(server.url)
        assert one.call("events").incarnation == 1
    assert one.naps == [0.5, 1.0]


def test_410_is_waited_out_for_as_long_as_it_lasts(driver: Driver) -> None:
    """Spec §11: for up to 70 s."""
    with ScriptedServer(ScriptedReply(status=410)) as server:
        one = driver(server.url)
        with pytest.raises(Unavailable, match="status 410"):
            one.call("events")
    assert 70 < sum(one.naps) <= GONE_TIMEOUT_S + 5


@pytest.mark.parametrize(
    ("retry_after", "pause_s"),
    [
        ("3", 3.0),
        ("Mon, 19 Sep 2016 18:14:50 GMT", 3.0),
        ("Mon, 19 Sep 2016 17:00:00 GMT", 0.5),
        ("86400", MAX_RETRY_AFTER_S),
        ("9" * 400, MAX_RETRY_AFTER_S),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER_S),
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
    throttled = ScriptedReply(status=429, headers=(DATE, ("Retry-After", retry_after)))
    with ScriptedServer(throttled, json_reply(EMPTY)) as server:
        one = driver(server.url)
        one.call("events")
    assert one.naps == [pause_s]


def test_a_fault_that_stays_is_told_after_a_few_tries(driver: Driver) -> None:
    with ScriptedServer(ScriptedReply(status=500)) as server, pytest.raises(Unavailable, match="cannot answer now"):
        driver(server.url).call("approve", "A")
    assert len(server.requests) == 5


def test_the_first_answer_may_take_two_minutes_and_later_ones_may_not() -> None:
    """Spec §8.1."""
    session = ClientSession("127.0.0.1")
    for expected in (FIRST_ANSWER_TIMEOUT_S, ANSWER_TIMEOUT_S):
        run = FlowRunner(session.poll(PollState(), hold_s=0))
        move = run.next_effect()
        assert isinstance(move, SendRequest)
        assert move.timeout_s == expected
        run.set_result(HttpResponse(status=200, body=b'{"Events":[]}'))
        assert run.next_effect() is None
    assert FIRST_ANSWER_TIMEOUT_S > 120


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
            with pytest.raises(IncompleteResponse, match="broke off its answer"):
                one.call("run_flow", talk)
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
            response = driver(f"127.0.0.1:{port}").call("run_flow", _patient(port))
        finally:
            thread.join()
    assert len(response.body) == 30


def _patient(port: int) -> Any:
    return (yield SendRequest(endpoint=parse_endpoint(f"127.0.0.1:{port}"), request=poll_request(), timeout_s=1.0))


def _impatient(port: int) -> Any:
    yield SendRequest(
        endpoint=parse_endpoint(f"127.0.0.1:{port}"), request=poll_request(), timeout_s=5.0, body_timeout_s=-4.8
    )


def test_a_service_that_accepts_and_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(IncompleteResponse, match="timed out"):
        send_request(parse_endpoint(f"127.0.0.1:{listener.getsockname()[1]}"), poll_request(), 0.1)


def test_junk_in_a_document_is_passed_on_and_harms_nothing(driver: Driver) -> None:
    """Unknown kinds, fields and statuses are kept; dates that are none are unknown."""
    odd = {"EventId": "A", "EventStatus": "Pondered", "EventType": "Teleport", "NotBefore": "soon", "Beam": [1]}
    with ScriptedServer(
        json_reply({"DocumentIncarnation": "7", "Events": [odd, 5, None]}, headers=(("Date", "now"),))
    ) as server:
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
    with ScriptedServer(json_reply(EMPTY)) as server:
        driver(server.url).call("events")
    (request,) = server.requests
    assert request.target.startswith("/metadata/"), "not the absolute form that proxies are sent"
    assert not {"origin", "x-forwarded-for"} & {name for name, _ in request.headers}


def test_a_version_that_is_refused_is_followed_by_the_newest_that_is_offered(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """Spec §10; what is lost with it is said (§3)."""
    with ScriptedServer(offering("2019-08-01", "2019-04-01", "2019-01-01"), json_reply(EMPTY)) as server:
        one = driver(server.url)
        one.call("events")
        one.call("approve", "A")
    assert versions(server) == ["2020-07-01", "2019-08-01", "2019-08-01"], "and it is remembered"
    assert one.client.version == "2019-08-01"
    assert [record.getMessage() for record in caplog.records] == [
        "the service takes api-version 2019-08-01 at most: events come without DurationInSeconds"
    ]


def test_of_versions_that_are_all_strange_the_newest_of_ours_below_them_is_tried(driver: Driver) -> None:
    with ScriptedServer(offering("2020-01-01", "2019-12-01"), json_reply(EMPTY)) as server:
        driver(server.url).call("events")
    assert versions(server) == ["2020-07-01", "2019-08-01"]


def test_404_invalid_version_steps_down_one_by_one(driver: Driver) -> None:
    """Spec §11: unknown api-version answered 404."""
    with ScriptedServer(INVALID, INVALID, json_reply(EMPTY)) as server:
        driver(server.url).call("events")
    assert versions(server) == ["2020-07-01", "2019-08-01", "2019-04-01"]


@pytest.mark.parametrize(
    ("reply", "hidden"),
    [(offering("2017-08-01", "2017-03-01"), "Preempt and Terminate"), (INVALID, "Terminate")],
    ids=["offered", "stepped down to"],
)
def test_no_version_is_taken_by_itself_that_hides_a_kind(driver: Driver, reply: ScriptedReply, hidden: str) -> None:
    """Spec §3."""
    with (
        ScriptedServer(reply) as server,
        pytest.raises(Rejected, match=rf"does not list {hidden}: give version='2017-"),
    ):
        driver(server.url).call("events")


def test_a_version_that_was_asked_for_is_not_exchanged(driver: Driver) -> None:
    with ScriptedServer(offering("2020-07-01")) as server, pytest.raises(Rejected, match="api-version is invalid"):
        driver(server.url, version="2017-08-01").call("events")
    assert versions(server) == ["2017-08-01"]


def test_a_refusal_that_offers_only_what_was_tried_is_told(driver: Driver) -> None:
    with ScriptedServer(offering("2020-07-01")) as server, pytest.raises(Rejected):
        driver(server.url).call("events")
    assert len(server.requests) == 1


def test_the_name_is_asked_for_with_a_version_that_the_service_takes(driver: Driver) -> None:
    with ScriptedServer(offering("2019-11-01", "2019-08-15"), ScriptedReply(body=b"web-0")) as server:
        assert driver(server.url).call("name") == "web-0"
    assert "2019-11-01" in server.requests[1].target


def test_watching_says_so_when_the_service_stays_away(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        ScriptedServer(*[ScriptedReply(status=500)] * 9, json_reply(EMPTY)) as server,
    ):
        driver(server.url).take(1, "documents")
    (record,) = caplog.records
    assert record.getMessage().endswith("(status 500): ask again in a few seconds; retrying")


def test_both_clients_offer_the_same() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Client) - public(AsyncClient) == {"endpoint"}, "which may have to ask"
    assert public(AsyncClient) <= public(Client)


def test_the_services_time_goes_on_between_its_answers_and_trouble_is_told_until_the_next() -> None:
    real = [100.0]
    dated = json_reply(EMPTY, headers=(("Date", "Mon, 19 Sep 2016 18:29:47 GMT"),))
    with ScriptedServer(dated, ScriptedReply(status=503), dated) as server:
        client = Client(server.url, clock=lambda: real[0], sleep=lambda _: None)
        assert (client.now, client.answered_at, client.last_error) == (None, None, "")
        client.events()
        real[0] += 2.5
        assert (client.now, client.answered_at) == (1474309787.0 + 2.5, 100.0)
        told = client.watch_with(None, WatchOptions(max_poll_s=lambda: 0.0))
        assert next(told) is None
        assert "503" in client.last_error
        assert client.answered_at == 100.0
        assert next(told) is None
        assert (client.last_error, client.answered_at) == ("", 102.5)


@pytest.mark.parametrize("headers", [(), (("Date", "junk"),)], ids=["none", "junk"])
def test_an_answer_without_a_date_does_not_stop_the_services_clock(headers: tuple[tuple[str, str], ...]) -> None:
    """This machine's own may be hours away from it: steps would be cut for good."""
    real = [100.0]
    dated = json_reply(EMPTY, headers=(("Date", "Mon, 19 Sep 2016 18:29:47 GMT"),))
    with ScriptedServer(dated, json_reply(EMPTY, headers=headers)) as server:
        client = Client(server.url, clock=lambda: real[0], sleep=lambda _: None)
        client.events()
        real[0] += 30
        client.events()
        real[0] += 1
        assert (client.now, client.answered_at) == (1474309787.0 + 31, 130.0)


@pytest.mark.parametrize("page", [b"<html>log in", b'{"name": "web-0"}', b"web-0\nweb-1", b"x" * 257])
def test_a_page_of_somebody_else_is_no_name(driver: Driver, page: bytes) -> None:
    """Nothing would ever be about a VM of that name, and nobody would be told."""
    with (
        ScriptedServer(ScriptedReply(body=page)) as server,
        pytest.raises(Unavailable, match="not a VM's name: check the endpoint"),
    ):
        driver(server.url).call("name")
