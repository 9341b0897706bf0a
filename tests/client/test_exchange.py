"""What the guest's client asks, and what it makes of the answers, without a socket."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.client.exchange import (
    LONGEST_PAUSE_S,
    POLL_S,
    Heard,
    Watch,
    after_answer,
    after_failure,
    approval,
    check,
    heard,
    name_question,
    pause_after,
    poll,
)
from forewarn.errors import NotFound, Rejected, Unavailable
from forewarn.protocol.approval import read_approval
from forewarn.protocol.codec import Received, ReceivedEvent
from forewarn.protocol.exchange import Request
from forewarn.protocol.message import Response

EMPTY = b'{"DocumentIncarnation":1,"Events":[]}'
FIRST, SECOND = Received(incarnation=1), Received(incarnation=2, events=(ReceivedEvent(id="A"),))


def said(received: Received | None, *, tag: str = "", held: bool = False) -> Heard:
    return Heard(received=received, tag=tag, held=held, at=None)


def test_every_question_carries_the_metadata_header_and_one_api_version() -> None:
    """Spec §2.2, §2.4."""
    for request in (poll(), approval(["A"]), name_question()):
        assert request.values("metadata") == ("true",)
        assert request.target.count("api-version=") == 1


def test_a_poll_with_a_tag_asks_to_be_held_until_the_document_changes() -> None:
    """Spec §4.3, §4.4."""
    request: Request = poll(tag='"1-4"', hold_s=20)
    assert request.values("if-none-match") == ('"1-4"',)
    assert request.values("prefer") == ("wait=20",)
    assert poll(hold_s=20).values("prefer") == ()


def test_an_approval_is_what_the_service_reads_as_one() -> None:
    """Spec §5.1."""
    request = approval(["AB", "CD"])
    assert request.method == "POST"
    assert json.loads(request.body) == {"StartRequests": [{"EventId": "AB"}, {"EventId": "CD"}]}
    assert read_approval(request.body) == ("AB", "CD")


def test_an_answer_tells_the_document_its_tag_and_the_services_time() -> None:
    """Spec §4.3, §12."""
    headers = (("etag", '"1-1"'), ("date", "Mon, 19 Sep 2016 18:29:47 GMT"), ("preference-applied", "wait=20"))
    answer = heard(Response(status=200, headers=headers, body=EMPTY))
    assert answer == Heard(received=FIRST, tag='"1-1"', held=True, at=1474309787.0)
    assert heard(Response(status=304, headers=headers)).received is None


@pytest.mark.parametrize("status", [408, 410, 429, 500, 502, 503, 504])
def test_what_may_pass_is_unavailable(status: int) -> None:
    """Spec §11: 410 for up to 70 s, 429, 500."""
    with pytest.raises(Unavailable, match=f"status {status}"):
        check(Response(status=status))


@pytest.mark.parametrize("body", [b"", b"  ", b"<html>", b"[]"], ids=["empty", "blank", "no JSON", "no document"])
def test_a_body_that_is_no_document_may_be_one_next_time(body: bytes) -> None:
    """Spec §11: 200 with an empty body."""
    with pytest.raises(Unavailable):
        heard(Response(status=200, body=body))


def test_a_refusal_is_told_in_the_words_of_the_service() -> None:
    """Spec §10."""
    body = b'{ "error": "Bad request. Unknown EventId: X" }'
    with pytest.raises(Rejected, match=r"^the service refused with status 400: Bad request\. Unknown EventId: X$"):
        check(Response(status=400, body=body))
    with pytest.raises(NotFound, match="does not know this VM, or not this path"):
        check(Response(status=404, body=b'{ "error": "Not found" }'))
    with pytest.raises(Rejected, match="status 405: no reason given"):
        check(Response(status=405))
    with pytest.raises(Rejected, match=r"status 400: \[\[\["):
        check(Response(status=400, body=b"[" * 2000))


def test_a_watcher_passes_on_only_documents_that_differ() -> None:
    """Spec §4.2: same number, same content; a re-enabled scope starts over at 1."""
    step = after_answer(Watch(), said(FIRST))
    assert step.news == FIRST
    assert after_answer(step.watch, said(FIRST)).news is None
    assert after_answer(step.watch, said(SECOND)).news == SECOND
    again = after_answer(after_answer(step.watch, said(SECOND)).watch, said(FIRST))
    assert again.news == FIRST


def test_a_watcher_polls_once_a_second_where_the_service_does_not_hold() -> None:
    """Spec §8.5."""
    watch = after_answer(Watch(), said(FIRST, tag='"1"')).watch
    assert after_answer(watch, said(None, tag='"1"')).pause_s == POLL_S
    assert after_answer(watch, said(SECOND)).pause_s == POLL_S
    assert after_answer(watch, said(None, tag='"1"', held=True)).pause_s < POLL_S


def test_a_watcher_forgets_its_tag_after_a_failure_but_not_what_it_passed_on() -> None:
    watch = after_answer(Watch(), said(FIRST, tag='"1"')).watch
    step = after_failure(watch)
    assert step.watch.tag == ""
    assert after_answer(step.watch, said(FIRST, tag='"1"')).news is None


@settings(max_examples=50, deadline=None)
@given(st.integers(min_value=1, max_value=10**9))
def test_the_pause_after_failures_is_never_longer_than_a_preempt_allows(failures: int) -> None:
    """Spec §6.3: 30 s of notice."""
    assert 0 < pause_after(failures) <= LONGEST_PAUSE_S < 30
