"""Substitute answers: each one spoils what its name says, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.crash_test import answers
from forewarn.crash_test.answers import Concerns, ServiceAnswer, SpoiledAnswer
from forewarn.protocol.codec import decode_document
from forewarn.protocol.dates import parse_date
from forewarn.protocol.responses import too_many_requests, unsupported_version
from forewarn.protocol.versions import VERSIONS

DATE = "Mon, 19 Sep 2016 18:14:47 GMT"
EVENT = {
    "EventId": "602D9444-D2CD-49C7-8624-8643E7171297",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["Web_0"],
    "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
    "Description": "Host server is undergoing maintenance.",
    "EventSource": "Platform",
    "DurationInSeconds": 5,
}
SECOND = EVENT | {"EventId": "8A1C2E5B-0000-4000-8000-000000000001", "EventStatus": "Started", "NotBefore": ""}
HEADERS = (("Content-Type", "application/json; charset=utf-8"), ("ETag", '"1-7-abc"'), ("Date", DATE))


def document(*events: dict[str, Any], incarnation: int = 7) -> ServiceAnswer:
    content = {"DocumentIncarnation": incarnation, "Events": list(events)}
    return ServiceAnswer(200, HEADERS, json.dumps(content, separators=(",", ":")).encode())


def spoiled(substitute: SpoiledAnswer, answer: ServiceAnswer | None = None) -> Any:
    return json.loads(substitute.transform(answer or document(EVENT)).body)


EDITS: dict[str, SpoiledAnswer] = {
    "iso dates": answers.iso_dates(),
    "weekdays": answers.wrong_weekdays(),
    "empty NotBefore": answers.empty_not_before(),
    "unknown type": answers.unknown_event_type(),
    "unknown keys": answers.unknown_keys(),
    "missing fields": answers.without_fields("Description"),
    "lower case": answers.lower_case_names(),
    "upper case": answers.upper_case_names(),
    "incarnation reset": answers.incarnation_reset(),
    "older": answers.older_document(),
    "repeated": answers.repeated_events(),
    "huge": answers.huge_document(10),
    "byte order mark": answers.byte_order_mark(),
    "invalid": answers.invalid_json(),
    "truncated": answers.truncated_body(),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b'{"error":"x"}', b"<html>", b'{"DocumentIncarnation":1,"Events":{}}', b"\xff" * 9],
)
def test_an_edit_leaves_a_body_that_is_not_a_document_alone(edit: SpoiledAnswer, body: bytes) -> None:
    answer = ServiceAnswer(200, HEADERS, body)
    assert edit.transform(answer) == answer


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_an_edit_changes_a_document_and_removes_its_etag(edit: SpoiledAnswer) -> None:
    before = document(EVENT)
    after = edit.transform(before)
    assert after.body != before.body
    assert after.status == 200
    assert after.header("ETag") is None
    assert after.header("Content-Type") == before.header("content-type")
    assert edit.concerns is Concerns.POLLS
    assert not edit.withholds_request
    assert edit.transform(before) == after  # pure


@pytest.mark.parametrize("edit", ["iso dates", "weekdays", "lower case", "missing fields", "older", "repeated"])
def test_an_edit_that_finds_nothing_to_change_keeps_the_bytes(edit: str) -> None:
    answer = document()
    assert EDITS[edit].transform(answer) is answer


def test_an_edit_keeps_elements_that_are_no_events_and_the_order_of_keys() -> None:
    answer = ServiceAnswer(200, (), b'{"Events":[7,null,{"Resources":["A",3],"EventId":"x"}],"DocumentIncarnation":2}')
    body = answers.lower_case_names().transform(answer).body
    assert body == b'{"Events":[7,null,{"Resources":["a",3],"EventId":"x"}],"DocumentIncarnation":2}'


def test_dates_become_iso_dates_of_the_same_time() -> None:
    first, second = spoiled(answers.iso_dates(), document(EVENT, SECOND))["Events"]
    assert first["NotBefore"] == "2016-09-19T18:29:47Z"
    assert parse_date(first["NotBefore"]) == parse_date(str(EVENT["NotBefore"]))
    assert second["NotBefore"] == ""


def test_a_date_keeps_its_time_when_its_weekday_is_wrong() -> None:
    first, second = spoiled(answers.wrong_weekdays(), document(EVENT, SECOND))["Events"]
    assert first["NotBefore"] == "Sun, 19 Sep 2016 18:29:47 GMT"
    assert parse_date(first["NotBefore"]) == parse_date(str(EVENT["NotBefore"]))
    assert second["NotBefore"] == ""


@pytest.mark.parametrize(
    ("substitute", "expected"),
    [
        (answers.empty_not_before(), EVENT | {"NotBefore": ""}),
        (answers.unknown_event_type(), EVENT | {"EventType": "SpotRebalanceRecommendation"}),
        (answers.unknown_event_type("Pause"), EVENT | {"EventType": "Pause"}),
        (answers.lower_case_names(), EVENT | {"Resources": ["web_0"]}),
        (answers.upper_case_names(), EVENT | {"Resources": ["WEB_0"]}),
        (answers.incarnation_reset(), EVENT),
    ],
    ids=lambda value: value.name if isinstance(value, SpoiledAnswer) else "",
)
def test_an_edit_changes_only_the_field_that_it_names(substitute: SpoiledAnswer, expected: dict[str, Any]) -> None:
    assert spoiled(substitute)["Events"] == [expected]


def test_the_incarnation_falls_to_one() -> None:
    assert spoiled(answers.incarnation_reset()) == {"DocumentIncarnation": 1, "Events": [EVENT]}


@pytest.mark.parametrize("name", ["Description", "EventSource", "DurationInSeconds", "Resources"])
def test_a_field_is_missing_from_every_event(name: str) -> None:
    events = spoiled(answers.without_fields(name), document(EVENT, SECOND))["Events"]
    assert [set(EVENT) - set(event) for event in events] == [{name}, {name}]


def test_unknown_keys_are_added_to_the_document_and_its_events() -> None:
    content = spoiled(answers.unknown_keys())
    assert set(content) > {"DocumentIncarnation", "Events"}
    assert set(content["Events"][0]) > set(EVENT)
    assert content["Events"][0] | EVENT == content["Events"][0]


def test_an_older_document_lacks_the_newest_event() -> None:
    content = spoiled(answers.older_document(), document(EVENT, SECOND))
    assert content == {"DocumentIncarnation": 6, "Events": [EVENT]}


def test_every_event_is_listed_twice() -> None:
    assert spoiled(answers.repeated_events(), document(EVENT, SECOND))["Events"] == [EVENT, EVENT, SECOND, SECOND]


def test_a_huge_document_has_more_than_a_megabyte_before_the_own_event() -> None:
    body = answers.huge_document().transform(document(EVENT)).body
    received = decode_document(body)
    assert len(body) > 1024 * 1024
    assert len(received.events) == 4001
    assert len({event.id for event in received.events}) == 4001
    assert received.events[-1].id == EVENT["EventId"]
    assert received.events[0].not_before == parse_date("Mon, 19 Sep 2016 18:30:00 GMT")
    assert not any("Web_0" in event.resources for event in received.events[:-1])


def test_a_document_with_a_byte_order_mark_is_otherwise_unchanged() -> None:
    before = document(EVENT)
    assert answers.byte_order_mark().transform(before).body == b"\xef\xbb\xbf" + before.body


def test_invalid_json_has_the_right_length_and_a_truncated_body_does_not() -> None:
    before = document(EVENT)
    invalid, truncated = (make().transform(before) for make in (answers.invalid_json, answers.truncated_body))
    assert invalid.body == truncated.body == before.body[: len(before.body) // 2]
    assert invalid.header("Content-Length") is None
    assert truncated.header("Content-Length") == str(len(before.body))
    with pytest.raises(ValueError):
        json.loads(invalid.body)


def test_a_chunked_answer_keeps_its_body_and_its_etag() -> None:
    before = document(EVENT)
    after = answers.chunked_transfer().transform(before)
    assert (after.body, after.header("ETag")) == (before.body, before.header("ETag"))
    assert after.header("Transfer-Encoding") == "chunked"
    empty = ServiceAnswer(200, (), b"")
    assert answers.chunked_transfer().transform(empty) == empty


WHOLE: list[tuple[SpoiledAnswer, int, bytes, Concerns]] = [
    (answers.status(503), 503, b'{"error": "Service Unavailable"}', Concerns.ALL),
    (answers.status(599, b"x"), 599, b"x", Concerns.ALL),
    (answers.status(500, concerns=Concerns.POLLS), 500, b'{"error": "Internal Server Error"}', Concerns.POLLS),
    (answers.empty_body(), 200, b"", Concerns.POLLS),
    (answers.empty_object(), 200, b"{}", Concerns.POLLS),
    (answers.redirect(), 302, b"", Concerns.POLLS),
    (answers.unauthorized(), 401, b'{"error": "Unauthorized"}', Concerns.ALL),
    (answers.gone(), 410, b'{ "error": "Gone" }', Concerns.ALL),
    (answers.throttled(7), 429, too_many_requests().body, Concerns.ALL),
    (answers.version_refused(), 400, unsupported_version(VERSIONS).body, Concerns.ALL),
    (answers.version_unknown(), 404, b'{ "error": "Not found. Invalid version requested" }', Concerns.ALL),
    (answers.approval_refused(400), 400, b"", Concerns.APPROVALS),
    (answers.approval_refused(429), 429, too_many_requests().body, Concerns.APPROVALS),
    (answers.approval_refused(500), 500, b'{ "error": "Internal server error" }', Concerns.APPROVALS),
    (answers.approval_refused(503), 503, b"", Concerns.APPROVALS),
    (answers.approval_refused(502), 502, b'{"error": "Bad Gateway"}', Concerns.APPROVALS),
]


@pytest.mark.parametrize(("substitute", "code", "body", "concerns"), WHOLE, ids=[row[0].name for row in WHOLE])
def test_a_whole_answer_replaces_any_answer_and_the_service_gets_no_request(
    substitute: SpoiledAnswer, code: int, body: bytes, concerns: Concerns
) -> None:
    for before in (document(EVENT), ServiceAnswer(304, HEADERS, b""), ServiceAnswer(200, (), b"")):
        after = substitute.transform(before)
        assert after.status == code
        assert body in after.body
        assert after.header("ETag") is None
        assert after.header("Date") == before.header("Date")
    assert substitute.concerns is concerns
    assert substitute.withholds_request


def test_retry_after_is_seconds_or_a_date() -> None:
    given = [answers.throttled(7), answers.status(503, retry_after=DATE), answers.throttled(None)]
    assert [each.transform(document()).header("Retry-After") for each in given] == ["7", DATE, None]
    assert answers.approval_refused(503).transform(document()).header("Retry-After") == "5"
    assert answers.approval_refused(429, 2).transform(document()).header("Retry-After") == "2"


def test_a_status_can_be_given_although_the_service_gets_the_request() -> None:
    assert not answers.status(500, withholds_request=False).withholds_request


def test_an_html_page_is_called_html() -> None:
    page = answers.html_page().transform(document(EVENT))
    assert (page.status, page.header("Content-Type")) == (200, "text/html; charset=utf-8")
    assert page.body.startswith(b"<!DOCTYPE html>")
    assert answers.html_page(502).transform(document(EVENT)).status == 502


def test_a_redirect_has_a_location() -> None:
    assert answers.redirect("/elsewhere").transform(document()).header("Location") == "/elsewhere"


def test_a_refused_version_names_those_that_are_served() -> None:
    refused = answers.version_refused(("2019-08-01", "2017-11-01"))
    assert refused.served_versions == {"2019-08-01", "2017-11-01"}
    assert spoiled(refused)["newest-versions"] == ["2019-08-01", "2017-11-01"]
    assert answers.version_unknown(("2019-08-01",)).served_versions == {"2019-08-01"}


TIMED: list[tuple[Callable[[], SpoiledAnswer], dict[str, object]]] = [
    (lambda: answers.slow_body(8), {"body_s": 8}),
    (lambda: answers.late_answer(120), {"delay_s": 120}),
    (lambda: answers.never_answers(), {"never_answers": True}),
    (lambda: answers.resets_connections(), {"resets": True}),
    (lambda: answers.refuses_connections(), {"refuses_connections": True}),
]


@pytest.mark.parametrize(("make", "fields"), TIMED)
def test_a_substitute_that_changes_only_the_delivery_keeps_the_answer(
    make: Callable[[], SpoiledAnswer], fields: dict[str, object]
) -> None:
    substitute, answer = make(), document(EVENT)
    assert substitute.transform(answer) is answer
    assert {name: getattr(substitute, name) for name in fields} == fields
    assert not substitute.withholds_request


def test_every_substitute_has_a_name_of_its_own() -> None:
    names = [each.name for each in (*EDITS.values(), *(row[0] for row in WHOLE), *(make() for make, _ in TIMED))]
    assert all(names)
    assert len(set(names)) == len(names)
