"""Single requests with both clients, to services with and without faults (spec §11)."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from forewarn.client import AsyncClient, Client, Event, Unreachable, lists
from forewarn.client.blocking_client import send_request
from forewarn.client.effects import FlowRunner, IncompleteResponse, SendRequest
from forewarn.client.endpoint import parse_endpoint
from forewarn.client.requests import GONE_TIMEOUT_S, LONG_POLL_S, MAX_RETRY_AFTER_S, PollState, poll_request
from forewarn.client.session import AGREEING_ANSWERS, ANSWER_TIMEOUT_S, FIRST_ANSWER_TIMEOUT_S, ClientSession
from forewarn.client.watch import WatchOptions
from forewarn.errors import Rejected, Unavailable
from forewarn.protocol.dates import http_date
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
    """Spec §7.2: ignores case, and the leading underscore of 2017 (§3)."""
    with ScriptedServer(
        ScriptedReply(body=b"web-0\n"), json_reply({"DocumentIncarnation": 3, "Events": [OURS, THEIRS]})
    ) as server:
        one = driver(server.url)
        assert [event.id for event in one.call("own_events")] == ["A"]
        one.call("own_events")
        assert one.call("name") == "web-0"
    assert [request.target.split("?")[0].rpartition("/")[2] for request in server.requests] == [
        *("name", "scheduledevents", "scheduledevents")
    ], "the name is learned once"


def test_both_clients_report_an_unreachable_endpoint_in_the_same_words(driver: Driver) -> None:
    with ScriptedServer(ScriptedReply()) as server:
        url = server.url
    one = driver(url)
    with pytest.raises(Unreachable) as caught:
        one.call("events")
    assert str(caught.value) == f"nothing answers at {url} ({os.strerror(errno.ECONNREFUSED)}): check the endpoint"
    assert one.pauses == []


def test_an_event_without_resources_lists_no_vm() -> None:
    assert not lists(Event(id="A"), "web-0")
    assert not lists(Event(id="A"), "")


def test_events_and_ids_can_be_approved(driver: Driver) -> None:
    """Spec §5.1."""
    with ScriptedServer(ScriptedReply()) as server:
        driver(server.url).call("approve", Event(id="A"), "B")
    assert server.requests[0].body == b'{"StartRequests": [{"EventId": "A"}, {"EventId": "B"}]}'


def test_time_left_is_measured_by_the_services_time(driver: Driver) -> None:
    """Spec §12: NotBefore − Date, whatever the clock of this machine shows."""
    now = [50.0]
    event = {**OURS, "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}
    with ScriptedServer(
        json_reply({"DocumentIncarnation": 3, "Events": [event, THEIRS]}, headers=(DATE,)), json_reply(EMPTY)
    ) as server:
        one = driver(server.url, clock=lambda: now[0])
        assert one.client.time_left(Event(not_before=1.0)) is None, "no answer came yet"
        first, second = one.call("events").events
        assert one.client.time_left(first) == 900
        now[0] = 60.0
        assert one.client.time_left(first) == 890
        assert one.client.time_left(second) is None
        one.call("events")
        assert one.client.time_left(first) == 890, "its time goes on"


@pytest.mark.parametrize(
    "bad",
    [
        *(ScriptedReply(status=status) for status in (408, 410, 429, 500, 503)),
        *(ScriptedReply(), ScriptedReply(resets=True), ScriptedReply(body=b"{"), ScriptedReply(status=304)),
        *(ScriptedReply(body=b"{}"), json_reply({"error": "Not found"}), json_reply({**EMPTY, "Events": None})),
        *(json_reply({**EMPTY, "Events": [{}]}), json_reply({**EMPTY, "DocumentIncarnation": "1"})),
    ],
    ids=[
        *("408", "410", "429", "500", "503", "empty body", "reset", "half a body", "304"),
        *("no members", "an error", "no events", "no event", "a textual incarnation"),
    ],
)
def test_a_transient_fault_is_retried(driver: Driver, bad: ScriptedReply) -> None:
    """Spec §11."""
    with ScriptedServer(bad, bad, json_reply(EMPTY)) as server:
        one = driver(server.url)
        assert one.call("events").incarnation == 1
    assert one.pauses == [0.5, 1.0]


def test_410_is_retried_as_long_as_it_lasts(driver: Driver) -> None:
    """Spec §11: for up to 70 s."""
    with ScriptedServer(ScriptedReply(status=410)) as server:
        one = driver(server.url)
        with pytest.raises(Unavailable, match="status 410"):
            one.call("events")
    assert 70 < sum(one.pauses) <= GONE_TIMEOUT_S + 5


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
def test_a_throttled_client_waits_for_retry_after_within_a_limit(
    driver: Driver, retry_after: str, pause_s: float
) -> None:
    """Spec §11: 429; a Preempt gives only 30 s, so no wait is longer than a third of that."""
    throttled = ScriptedReply(status=429, headers=(DATE, ("Retry-After", retry_after)))
    with ScriptedServer(throttled, json_reply(EMPTY)) as server:
        one = driver(server.url)
        one.call("events")
    assert one.pauses == [pause_s]


def test_a_lasting_fault_is_raised_after_a_few_tries(driver: Driver) -> None:
    with ScriptedServer(ScriptedReply(status=500)) as server:
        one = driver(server.url)
        with pytest.raises(Unavailable, match="cannot answer now"):
            one.call("approve", "A")
    assert len(server.requests) == 5
    assert sum(one.pauses) < 30


def test_the_first_answer_may_take_two_minutes_and_later_ones_may_not() -> None:
    """Spec §8.1."""
    session = ClientSession("127.0.0.1")
    for expected in (FIRST_ANSWER_TIMEOUT_S, ANSWER_TIMEOUT_S):
        run = FlowRunner(session.poll(PollState(), hold_s=0))
        effect = run.next_effect()
        assert isinstance(effect, SendRequest)
        assert effect.timeout_s == expected
        run.set_result(HttpResponse(status=200, body=b'{"DocumentIncarnation":1,"Events":[]}'))
        assert run.next_effect() is None
    assert FIRST_ANSWER_TIMEOUT_S > 120


def test_the_answer_to_the_discovery_is_the_first_answer() -> None:
    """A lost poll after it must not be waited for as long as for a first answer (spec §8.1)."""
    session = ClientSession(environ={})
    run = FlowRunner(session.poll(PollState(), hold_s=0))
    timeouts_s = []
    for _ in range(2):
        effect = run.next_effect()
        assert isinstance(effect, SendRequest)
        timeouts_s.append(effect.timeout_s)
        run.set_result(HttpResponse(status=200, body=b'{"DocumentIncarnation":1,"Events":[]}'))
    assert run.next_effect() is None
    assert timeouts_s == [FIRST_ANSWER_TIMEOUT_S, ANSWER_TIMEOUT_S]


@pytest.mark.parametrize(
    ("answers", "timeouts_s"),
    [
        (("held", "held"), (20.0, 20.0, 20.0)),
        (("at once", "at once"), (20.0, 10.0, 10.0)),
        (("at once", "failed"), (20.0, 10.0, 20.0)),
    ],
    ids=["a service that holds polls", "a service that holds none", "nothing is known after a failure"],
)
def test_a_poll_that_nothing_holds_has_no_time_for_being_held(
    answers: tuple[str, ...], timeouts_s: tuple[float, ...]
) -> None:
    """A request that is lost must not use up the 30 s of a Preempt (spec §6.3)."""
    session = ClientSession("127.0.0.1")
    replies = {
        "held": HttpResponse(status=304, headers=(("preference-applied", "wait=10"),)),
        "at once": HttpResponse(status=304),
        "failed": HttpResponse(status=503),
    }
    run_poll(session, PollState(), HttpResponse(status=200, body=b'{"DocumentIncarnation":1,"Events":[]}'))
    polls = (*answers, "at once")
    assert tuple(run_poll(session, PollState(etag='"1-1"'), replies[answer]) for answer in polls) == timeouts_s


def run_poll(session: ClientSession, state: PollState, response: HttpResponse) -> float:
    """Poll once, with this answer; returns the timeout of the request."""
    run = FlowRunner(session.poll(state, hold_s=LONG_POLL_S))
    effect = run.next_effect()
    assert isinstance(effect, SendRequest)
    run.set_result(response)
    with suppress(Unavailable):
        assert run.next_effect() is None
    return effect.timeout_s


def test_an_endless_body_is_given_up(driver: Driver) -> None:
    """Spec §11: a slow body has a time limit."""
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
            flow = _short_flow(port)
            with pytest.raises(IncompleteResponse, match="broke off its answer"):
                one.call("run_flow", flow)
        finally:
            over.set()
            thread.join()


def test_a_slow_body_is_read_to_its_end(driver: Driver) -> None:
    """Spec §11: it may take much longer than the start of an answer."""
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
            response = driver(f"127.0.0.1:{port}").call("run_flow", _long_flow(port))
        finally:
            thread.join()
    assert len(response.body) == 30


def _long_flow(port: int) -> Any:
    return (yield SendRequest(endpoint=parse_endpoint(f"127.0.0.1:{port}"), request=poll_request(), timeout_s=1.0))


def _short_flow(port: int) -> Any:
    yield SendRequest(
        endpoint=parse_endpoint(f"127.0.0.1:{port}"), request=poll_request(), timeout_s=5.0, body_timeout_s=-4.8
    )


def test_a_service_that_accepts_and_never_answers_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(IncompleteResponse, match="timed out"):
        send_request(parse_endpoint(f"127.0.0.1:{listener.getsockname()[1]}"), poll_request(), 0.1)


def test_unknown_values_in_a_document_are_passed_on(driver: Driver) -> None:
    """Unknown kinds, fields and statuses are kept; unreadable dates are unknown."""
    odd = {"EventId": "A", "EventStatus": "Pondered", "EventType": "Teleport", "NotBefore": "soon", "Beam": [1]}
    odd |= {"Resources": []}
    with ScriptedServer(
        json_reply({"DocumentIncarnation": 7, "Events": [odd, 5, None]}, headers=(("Date", "now"),))
    ) as server:
        one = driver(server.url)
        document = one.call("events")
    (event,) = document.events
    assert document.unusable == ("", "")
    assert (event.kind, event.status, event.not_before, event.not_before_text) == ("Teleport", "Pondered", None, "soon")
    assert event.resources == ()
    assert event.raw == odd
    assert one.client.time_left(event) is None


def test_proxies_are_ignored_and_no_rejected_header_is_sent(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §2.2, §2.3."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ScriptedServer(json_reply(EMPTY)) as server:
        driver(server.url).call("events")
    (request,) = server.requests
    assert request.target.startswith("/metadata/"), "not the absolute form that proxies are sent"
    assert not {"origin", "x-forwarded-for"} & {name for name, _ in request.headers}


def test_after_a_rejected_version_the_newest_offered_one_is_used(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """Spec §10; the client logs which fields are missing (§3)."""
    with ScriptedServer(offering("2019-08-01", "2019-04-01", "2019-01-01"), json_reply(EMPTY)) as server:
        one = driver(server.url)
        one.call("events")
        one.call("approve", "A")
    assert versions(server) == ["2020-07-01", "2019-08-01", "2019-08-01"], "and it is remembered"
    assert one.client.version == "2019-08-01"
    assert [record.getMessage() for record in caplog.records] == [
        "the service takes api-version 2019-08-01 at most: events come without DurationInSeconds"
    ]


def test_if_all_offered_versions_are_unknown_an_older_one_of_ours_is_tried(driver: Driver) -> None:
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
def test_the_negotiation_never_selects_a_version_that_hides_a_kind(
    driver: Driver, reply: ScriptedReply, hidden: str
) -> None:
    """Spec §3."""
    with (
        ScriptedServer(reply) as server,
        pytest.raises(Rejected, match=rf"does not list {hidden}: give version='2017-"),
    ):
        driver(server.url).call("events")


def test_an_explicit_version_is_not_negotiated(driver: Driver) -> None:
    with ScriptedServer(offering("2020-07-01")) as server, pytest.raises(Rejected, match="api-version is invalid"):
        driver(server.url, version="2017-08-01").call("events")
    assert versions(server) == ["2017-08-01"]


def test_a_rejection_that_offers_only_the_tried_version_is_raised(driver: Driver) -> None:
    with ScriptedServer(offering("2020-07-01")) as server, pytest.raises(Rejected):
        driver(server.url).call("events")
    assert len(server.requests) == 1


def test_the_name_is_requested_with_a_version_that_the_service_accepts(driver: Driver) -> None:
    with ScriptedServer(offering("2019-11-01", "2019-08-15"), ScriptedReply(body=b"web-0")) as server:
        assert driver(server.url).call("name") == "web-0"
    assert "2019-11-01" in server.requests[1].target


def test_a_watch_logs_a_warning_when_the_service_stays_away(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        ScriptedServer(*[ScriptedReply(status=500)] * 9, json_reply(EMPTY)) as server,
    ):
        driver(server.url).take(1, "documents")
    (record,) = caplog.records
    assert record.getMessage().endswith("(status 500): ask again in a few seconds; retrying")


def test_both_clients_have_the_same_public_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Client) - public(AsyncClient) == {"endpoint"}, "which may need a request"
    assert public(AsyncClient) <= public(Client)


def test_the_services_time_advances_between_answers_and_the_last_error_is_kept_until_the_next() -> None:
    real = [100.0]
    dated = json_reply(EMPTY, headers=(("Date", "Mon, 19 Sep 2016 18:29:47 GMT"),))
    with ScriptedServer(dated, ScriptedReply(status=503), dated) as server:
        client = Client(server.url, clock=lambda: real[0], sleep=lambda _: None)
        assert (client.now, client.answered_at, client.last_error) == (None, None, "")
        client.events()
        real[0] += 2.5
        assert (client.now, client.answered_at) == (1474309787.0 + 2.5, 100.0)
        changes = client.follow(None, WatchOptions(max_poll_s=lambda: 0.0))
        assert next(changes) is None
        assert "503" in client.last_error
        assert client.answered_at == 100.0
        assert next(changes) is None
        assert (client.last_error, client.answered_at) == ("", 102.5)


@pytest.mark.parametrize("headers", [(), (("Date", "junk"),)], ids=["none", "junk"])
def test_an_answer_without_a_date_does_not_stop_the_services_clock(headers: tuple[tuple[str, str], ...]) -> None:
    """This machine's clock may be hours off: the agent would cut steps."""
    real = [100.0]
    dated = json_reply(EMPTY, headers=(("Date", "Mon, 19 Sep 2016 18:29:47 GMT"),))
    with ScriptedServer(dated, json_reply(EMPTY, headers=headers)) as server:
        client = Client(server.url, clock=lambda: real[0], sleep=lambda _: None)
        client.events()
        real[0] += 30
        client.events()
        real[0] += 1
        assert (client.now, client.answered_at) == (1474309787.0 + 31, 130.0)


def dated(seconds: float, **members: Any) -> ScriptedReply:
    """A document whose Date is this many seconds after 2016-09-19 18:29:47."""
    return json_reply({**EMPTY, **members}, headers=(("Date", http_date(SERVICE_TIME + seconds)),))


SERVICE_TIME = 1474309787.0


def test_one_wrong_date_does_not_change_the_services_time(driver: Driver) -> None:
    """The time left decides which steps of the agent are cut, and that cannot be taken back."""
    with ScriptedServer(dated(0), dated(86_400), dated(0)) as server:
        one = driver(server.url, clock=lambda: 100.0)
        one.call("events")
        one.call("events")
        assert (one.client.now, one.client.date) == (SERVICE_TIME, SERVICE_TIME)
    assert len(server.requests) == 3, "it asked once more"


def test_a_time_in_which_several_answers_agree_is_the_services_time(driver: Driver) -> None:
    """A lab's clock jumps, and this machine's stops while it is frozen."""
    with ScriptedServer(dated(0), dated(900)) as server:
        one = driver(server.url, clock=lambda: 100.0)
        one.call("events")
        one.call("events")
        assert one.client.now == SERVICE_TIME + 900
    assert len(server.requests) == 1 + AGREEING_ANSWERS


def test_servers_with_different_clocks_change_nothing_and_are_not_flooded(driver: Driver) -> None:
    wrong = [dated(600.0 * number) for number in range(1, 20)]
    with ScriptedServer(dated(0), *wrong) as server:
        one = driver(server.url, clock=lambda: 100.0)
        for _ in range(5):
            one.call("events")
        assert one.client.now == SERVICE_TIME
    assert len(server.requests) <= 5 + 2 * AGREEING_ANSWERS


def test_a_failed_request_about_the_time_does_not_fail_the_poll(driver: Driver) -> None:
    with ScriptedServer(dated(0), dated(900), ScriptedReply(resets=True)) as server:
        one = driver(server.url, clock=lambda: 100.0)
        one.call("events")
        assert one.call("events").incarnation == 1
        assert one.client.now == SERVICE_TIME


@pytest.mark.parametrize("page", [b"<html>log in", b'{"name": "web-0"}', b"web-0\nweb-1", b"x" * 257])
def test_a_page_of_another_service_is_not_accepted_as_name(driver: Driver, page: bytes) -> None:
    """No event would ever list a VM with that name, and the client would miss all events."""
    with (
        ScriptedServer(ScriptedReply(body=page)) as server,
        pytest.raises(Unavailable, match="not a VM's name: check the endpoint"),
    ):
        driver(server.url).call("name")
