"""Requests of the client and what it makes of the answers, without a socket."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.client.requests import (
    MAX_BACKOFF_S,
    POLL_INTERVAL_S,
    PollAnswer,
    PollState,
    approval_request,
    backoff_s,
    name_request,
    parse_poll_answer,
    partial_document_warning,
    poll_request,
    raise_for_status,
    step_after_answer,
    step_after_failure,
)
from forewarn.errors import NotFound, Rejected, Unavailable
from forewarn.protocol.codec import Received, ReceivedEvent
from forewarn.protocol.exchange import parse_approval
from forewarn.protocol.http_message import HttpRequest, HttpResponse

EMPTY = b'{"DocumentIncarnation":1,"Events":[]}'
FIRST, SECOND = Received(incarnation=1), Received(incarnation=2, events=(ReceivedEvent(id="A"),))


def answer_with(received: Received | None, *, tag: str = "", held: bool = False) -> PollAnswer:
    return PollAnswer(received=received, etag=tag, was_held=held, server_time=None)


def test_every_request_has_the_metadata_header_and_one_api_version() -> None:
    """Spec §2.2, §2.4."""
    for request in (poll_request(), approval_request(["A"]), name_request()):
        assert request.header_values("metadata") == ("true",)
        assert request.target.count("api-version=") == 1


def test_a_poll_with_an_etag_asks_for_a_long_poll() -> None:
    """Spec §4.3, §4.4."""
    request: HttpRequest = poll_request(tag='"1-4"', hold_s=10)
    assert request.header_values("if-none-match") == ('"1-4"',)
    assert request.header_values("prefer") == ("wait=10",)
    assert poll_request(hold_s=10).header_values("prefer") == ()


def test_the_service_can_parse_an_approval() -> None:
    """Spec §5.1."""
    request = approval_request(["AB", "CD"])
    assert request.method == "POST"
    assert json.loads(request.body) == {"StartRequests": [{"EventId": "AB"}, {"EventId": "CD"}]}
    assert parse_approval(request.body) == ("AB", "CD")


def test_an_answer_has_the_document_its_etag_and_the_services_time() -> None:
    """Spec §4.3, §12."""
    headers = (("etag", '"1-1"'), ("date", "Mon, 19 Sep 2016 18:29:47 GMT"), ("preference-applied", "wait=10"))
    answer = parse_poll_answer(HttpResponse(status=200, headers=headers, body=EMPTY))
    assert answer == PollAnswer(received=FIRST, etag='"1-1"', was_held=True, server_time=1474309787.0)
    assert parse_poll_answer(HttpResponse(status=304, headers=headers)).received is None


@pytest.mark.parametrize("status", [408, 410, 429, 500, 502, 503, 504])
def test_a_transient_status_raises_unavailable(status: int) -> None:
    """Spec §11: 410 for up to 70 s, 429, 500."""
    with pytest.raises(Unavailable, match=f"status {status}"):
        raise_for_status(HttpResponse(status=status))


@pytest.mark.parametrize(
    "body",
    [b"", b"  ", b"<html>", b"[]", b"{}", b'{"error":"x"}', b'{"DocumentIncarnation":1,"Events":[{}]}'],
    ids=["empty", "blank", "no JSON", "a list", "no members", "an error", "no event"],
)
def test_a_body_that_is_not_a_document_raises_unavailable(body: bytes) -> None:
    """Spec §11: 200 with an empty body."""
    with pytest.raises(Unavailable):
        parse_poll_answer(HttpResponse(status=200, body=body))


def test_a_rejection_has_the_services_own_text() -> None:
    """Spec §10."""
    body = b'{ "error": "Bad request. Unknown EventId: X" }'
    with pytest.raises(Rejected, match=r"^the service refused with status 400: Bad request\. Unknown EventId: X$"):
        raise_for_status(HttpResponse(status=400, body=body))
    with pytest.raises(NotFound, match="does not know this VM, or not this path"):
        raise_for_status(HttpResponse(status=404, body=b'{ "error": "Not found" }'))
    with pytest.raises(Rejected, match="status 405: no reason given"):
        raise_for_status(HttpResponse(status=405))
    with pytest.raises(Rejected, match=r"status 400: \[\[\["):
        raise_for_status(HttpResponse(status=400, body=b"[" * 2000))


def test_a_watch_yields_only_documents_that_differ() -> None:
    """Spec §4.2: same incarnation, same content; a re-enabled scope restarts at 1."""
    step = step_after_answer(PollState(), answer_with(FIRST))
    assert step.new_document == FIRST
    assert step_after_answer(step.state, answer_with(FIRST)).new_document is None
    assert step_after_answer(step.state, answer_with(SECOND)).new_document == SECOND
    again = step_after_answer(step_after_answer(step.state, answer_with(SECOND)).state, answer_with(FIRST))
    assert again.new_document == FIRST


def test_a_document_that_is_usable_in_part_must_come_again_in_full() -> None:
    """A 304 would hide for ever what the unusable element was."""
    state = step_after_answer(PollState(), answer_with(replace(SECOND, unusable=("",)), tag='"1-2"')).state
    assert (state.etag, state.condition) == ('"1-2"', "")
    assert step_after_answer(state, answer_with(SECOND, tag='"1-2"')).state.condition == '"1-2"'


@pytest.mark.parametrize(
    ("unusable", "text"),
    [
        ((), ""),
        (
            ("",),
            "1 of the 2 elements of the document cannot be used: no event counts as over until a whole document comes",
        ),
        (
            ("B", "C"),
            "2 of the 3 elements of the document cannot be used: events with their ids do not count as over until a "
            "whole document comes",
        ),
    ],
)
def test_the_warning_about_a_partial_document_says_what_follows(unusable: tuple[str, ...], text: str) -> None:
    assert partial_document_warning(replace(SECOND, unusable=unusable)) == text


def test_a_watch_polls_once_a_second_without_long_polls() -> None:
    """Spec §8.5."""
    watch = step_after_answer(PollState(), answer_with(FIRST, tag='"1"')).state
    assert step_after_answer(watch, answer_with(None, tag='"1"')).pause_s == POLL_INTERVAL_S
    assert step_after_answer(watch, answer_with(SECOND)).pause_s == POLL_INTERVAL_S
    assert step_after_answer(watch, answer_with(None, tag='"1"', held=True)).pause_s < POLL_INTERVAL_S


def test_after_a_failure_a_watch_drops_its_etag_and_keeps_its_document() -> None:
    watch = step_after_answer(PollState(), answer_with(FIRST, tag='"1"')).state
    step = step_after_failure(watch)
    assert step.state.etag == ""
    assert step_after_answer(step.state, answer_with(FIRST, tag='"1"')).new_document is None


@settings(max_examples=50, deadline=None)
@given(st.integers(min_value=1, max_value=10**9))
def test_the_pause_after_failures_is_short_enough_for_a_preempt(failures: int) -> None:
    """Spec §6.3: 30 s of notice."""
    assert 0 < backoff_s(failures) <= MAX_BACKOFF_S < 30
