"""Exchanges: which request counts as a poll or an approval, and what the timeline shows of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forewarn.crash_test import answers
from forewarn.crash_test.answers import Concerns, ServiceAnswer, SpoiledAnswer
from forewarn.crash_test.proxy import Exchange, RequestKind, unreadable_request
from forewarn.crash_test.timeline import Approved, DeliveredEvent, OtherRequest, Polled, Poller
from forewarn.protocol.http_message import HttpRequest

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
EVENT = {"EventId": "E-1", "EventStatus": "Scheduled", "EventType": "reboot", "Resources": ["a", "b"], "NotBefore": ""}


def exchange(method: str = "GET", target: str = TARGET, *, sent: bytes = b"", **changes: Any) -> Exchange:
    request = HttpRequest(method=method, target=target, headers=(("metadata", "true"),), body=sent)
    return Exchange(request=request, at=1.0, **changes)


def document(*events: dict[str, Any]) -> bytes:
    return json.dumps({"DocumentIncarnation": 4, "Events": list(events)}).encode()


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("GET", TARGET, RequestKind.POLL),
        ("GET", "/Metadata/ScheduledEvents/", RequestKind.POLL),
        ("GET", "http://169.254.169.254/metadata/scheduledevents", RequestKind.POLL),
        ("GET", "/metadata/latest/scheduledevents", RequestKind.POLL),
        ("POST", TARGET, RequestKind.APPROVAL),
        ("HEAD", TARGET, RequestKind.OTHER),
        ("GET", "/metadata/instance?api-version=2021-02-01", RequestKind.OTHER),
        ("GET", "/scheduledevents", RequestKind.OTHER),
        ("CONNECT", "host:80", RequestKind.OTHER),
        ("", "", RequestKind.OTHER),
    ],
)
def test_method_and_path_say_what_a_request_is_for(method: str, target: str, kind: RequestKind) -> None:
    assert exchange(method, target).kind is kind


@pytest.mark.parametrize(
    ("concerns", "expected"),
    [(Concerns.POLLS, [1, 0, 0]), (Concerns.APPROVALS, [0, 1, 0]), (Concerns.ALL, [1, 1, 1])],
)
def test_a_substitute_is_for_the_requests_that_it_concerns(concerns: Concerns, expected: list[int]) -> None:
    substitute = SpoiledAnswer(name="x", concerns=concerns)
    given = [exchange(), exchange("POST"), exchange(target="/metadata/instance")]
    assert [int(each.concerns(substitute)) for each in given] == expected


def test_a_substitute_leaves_served_versions_alone() -> None:
    substitute = answers.version_refused(("2019-08-01",))
    assert exchange().concerns(substitute)
    assert exchange(target="/metadata/scheduledevents").concerns(substitute)
    assert not exchange(target="/metadata/scheduledevents?API-version=2019-08-01").concerns(substitute)


def test_a_poll_shows_the_events_of_its_document() -> None:
    body = document(EVENT)
    done = exchange(status=200, body=body, service_body=body, answered_at=1.5)
    assert done.observation("vm", Poller.REFERENCE) == Polled(
        at=1.0,
        vm="vm",
        by=Poller.REFERENCE,
        status=200,
        version="2020-07-01",
        incarnation=4,
        events=(DeliveredEvent(id="E-1", kind="reboot", status="Scheduled", vms=("a", "b")),),
        answered_at=1.5,
    )


@pytest.mark.parametrize(
    ("status", "body"), [(200, b""), (200, b"<html>"), (200, document(EVENT)[:-9]), (500, document(EVENT)), (None, b"")]
)
def test_a_poll_without_a_document_shows_no_events(status: int | None, body: bytes) -> None:
    seen = exchange(status=status, body=body, substitute="x").observation("vm", Poller.HANDLER)
    assert isinstance(seen, Polled)
    assert (seen.status, seen.incarnation, seen.events, seen.substitute) == (status, None, (), "x")


def test_a_huge_document_is_shown_with_the_own_events_and_twenty_others() -> None:
    own = ServiceAnswer(200, (), document(EVENT))
    body = answers.huge_document(500).transform(own).body
    seen = exchange(status=200, body=body, service_body=own.body).observation("vm", Poller.HANDLER)
    assert isinstance(seen, Polled)
    assert len(seen.events) == 21
    assert seen.events[-1].id == "E-1"


@pytest.mark.parametrize(("values", "expected"), [((), False), (("True",), True), (("true", "false"), False)])
def test_the_metadata_header_must_be_true(values: tuple[str, ...], expected: bool) -> None:
    headers = tuple(("metadata", value) for value in values)
    given = Exchange(request=HttpRequest(method="GET", target=TARGET, headers=headers), at=1.0)
    seen = given.observation("vm", Poller.HANDLER)
    assert isinstance(seen, Polled)
    assert seen.has_header is expected


def test_an_approval_shows_its_events_in_upper_case() -> None:
    body = b'{"StartRequests":[{"EventId":"e-1"},{"EventId":"E-2"}]}'
    seen = exchange("POST", sent=body, status=200).observation("vm", Poller.HANDLER)
    assert seen == Approved(
        at=1.0, vm="vm", by=Poller.HANDLER, event_ids=("E-1", "E-2"), status=200, version="2020-07-01"
    )


@pytest.mark.parametrize(
    ("body", "is_valid", "problem"),
    [
        (b"StartRequests=1", True, "The body is not JSON at line 1 column 1"),
        (b"{}", True, "StartRequests is missing"),
        (b"", False, "The request is not HTTP"),
    ],
)
def test_an_approval_that_cannot_be_read_says_why(body: bytes, is_valid: bool, problem: str) -> None:
    seen = exchange("POST", sent=body, is_valid=is_valid).observation("vm", Poller.HANDLER)
    assert isinstance(seen, Approved)
    assert (seen.event_ids, seen.problem) == ((), problem)


def test_another_request_shows_its_path_without_the_query() -> None:
    seen = exchange(target="/metadata/instance/compute/name?api-version=2021-02-01", status=200)
    assert seen.observation("vm", Poller.HANDLER) == OtherRequest(
        at=1.0, vm="vm", by=Poller.HANDLER, method="GET", path="/metadata/instance/compute/name", status=200
    )


@pytest.mark.parametrize(
    ("raw", "method", "target"),
    [
        (b"\r\nGET /metadata/scheduledevents HTTP/1.1\r\nHost", "GET", "/metadata/scheduledevents"),
        (b"", "", ""),
        (b"hello", "hello", ""),
        (b"\x16\x03\x01\n", "\x16\x03\x01", ""),
    ],
)
def test_the_first_line_of_invalid_http_is_read_as_far_as_it_goes(raw: bytes, method: str, target: str) -> None:
    request = unreadable_request(raw)
    assert (request.method, request.target) == (method, target)
