"""Tags and held polls (spec §4.3, §4.4)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.protocol.document import Document, EventNotice, Kind, NoticeStatus
from forewarn.protocol.exchange import (
    EndpointRules,
    PollRequest,
    client_has_document,
    etag,
    poll_response,
    read_request,
    with_preference_applied,
)
from forewarn.protocol.http_message import HttpRequest, HttpResponse

DOCUMENT = Document(incarnation=7)
SCOPE = "vm:sub/lab/web"
CURRENT = etag(SCOPE, 3, 7)
JSON = ("Content-Type", "application/json; charset=utf-8")


def polled(*headers: tuple[str, str], rules: EndpointRules | None = None) -> PollRequest:
    request = HttpRequest(
        method="GET",
        target="/metadata/scheduledevents?api-version=2020-07-01",
        headers=(("metadata", "true"), *headers),
    )
    asked = read_request(request, known=True, rules=rules or EndpointRules())
    assert isinstance(asked, PollRequest)
    return asked


def answered(*headers: tuple[str, str]) -> HttpResponse:
    return poll_response(polled(*headers), tag=CURRENT, document=DOCUMENT, rules=EndpointRules())


def waits(*preferences: str, tagged: bool = True, rules: EndpointRules | None = None) -> int | None:
    tag = [("if-none-match", CURRENT)] if tagged else []
    return polled(*tag, *(("prefer", preference) for preference in preferences), rules=rules).wait_s


def test_every_200_carries_a_tag() -> None:
    assert answered() == HttpResponse(
        status=200,
        headers=(JSON, ("ETag", CURRENT)),
        body=b'{"DocumentIncarnation":7,"Events":[]}',
    )


def test_the_tag_is_quoted_and_tells_scopes_epochs_and_incarnations_apart() -> None:
    assert CURRENT.startswith('"3-7-')
    tags = {etag(scope, epoch, number) for scope in "ab" for epoch in range(12) for number in range(12)}
    assert len(tags) == 288
    assert all(tag[0] == tag[-1] == '"' for tag in tags)


@pytest.mark.parametrize(
    "condition",
    [
        CURRENT,
        f" {CURRENT} ",
        f"W/{CURRENT}",
        f'"0", {CURRENT}',
        f'"x,y",{CURRENT},"z"',
        f'W/"1",W/{CURRENT}',
    ],
)
def test_whoever_has_the_document_is_told_304_without_a_body(condition: str) -> None:
    answer = answered(("if-none-match", condition))
    assert answer == HttpResponse(status=304, headers=(("ETag", CURRENT),), body=b"")


def test_tags_may_be_spread_over_several_headers() -> None:
    assert answered(("if-none-match", '"1"'), ("if-none-match", CURRENT)).status == 304


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "0",
        "*",
        "3-7",
        '"7"',
        '"2-7"',
        '"3-6"',
        '"3-77"',
        "W/",
        f"w/{CURRENT}",
        '"3-7',
        "junk, junk",
        "\ud800",
    ],
)
def test_junk_an_old_tag_or_a_star_gets_the_document(condition: str) -> None:
    """A star names no document that the caller could have: a 304 would keep every event from it."""
    assert answered(("if-none-match", condition)).status == 200


def test_an_epoch_later_the_same_incarnation_is_another_document() -> None:
    poll = polled(("if-none-match", CURRENT))
    assert client_has_document(poll, CURRENT)
    assert not client_has_document(poll, etag(SCOPE, 4, 7))
    assert poll_response(poll, tag=etag(SCOPE, 4, 7), document=DOCUMENT, rules=EndpointRules()).status == 200


def test_in_another_scope_the_same_numbers_are_another_document() -> None:
    assert not client_has_document(polled(("if-none-match", CURRENT)), etag("other", 3, 7))


def test_a_poll_without_a_tag_is_never_current() -> None:
    assert not client_has_document(polled(), CURRENT)


def test_bytes_that_were_rendered_before_are_sent_as_they_are() -> None:
    answer = poll_response(polled(), tag=CURRENT, document=DOCUMENT, rules=EndpointRules(), body=b"rendered")
    assert answer.body == b"rendered"
    assert ("ETag", CURRENT) in answer.headers


def test_the_setting_for_iso_dates_reaches_the_document() -> None:
    notice = EventNotice(id="A", status=NoticeStatus.SCHEDULED, kind=Kind.REBOOT, resources=(), not_before=0.0)
    document = Document(incarnation=2, notices=(notice,))
    poll = PollRequest(version="2017-08-01")
    answer = poll_response(poll, tag=CURRENT, document=document, rules=EndpointRules(iso_dates=True))
    assert b"1970-01-01T00:00:00Z" in answer.body


@pytest.mark.parametrize(
    ("preferences", "wait_s"),
    [
        (("wait=60",), 60),
        (("Wait=60",), 60),
        (('wait="60"',), 60),
        (("wait = 60 ",), 60),
        (("wait=060",), 60),
        (("respond-async, wait=60",), 60),
        (("wait=60; note=x, handling=lenient",), 60),
        (("respond-async", "wait=60"), 60),
        (('note="a, wait=5", wait=60',), 60),
        (('note="\\", wait=5", wait=60',), 60),
        (("wait=60, wait=5",), 60),
        (("wait=300",), 300),
        (("wait=301",), 300),
        (("wait=" + "9" * 5000,), 300),
        (("wait=" + "0" * 5000 + "9",), 9),
        ((), None),
        (("",), None),
        (("wait",), None),
        (("wait=",), None),
        (("wait=0",), None),
        (("wait=-5",), None),
        (("wait=1.5",), None),
        (("wait=soon",), None),
        (("wait=soon, wait=60",), None),
        (("wait=٣",), None),
        (('wait="60',), None),
        (('note="a, wait=60',), None),
        (("waiting=60",), None),
        (("x; wait=60",), None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_how_long_a_poll_asks_to_be_held(preferences: tuple[str, ...], wait_s: int | None) -> None:
    """RFC 7240: without case, quoted or not, the first of several counts; junk is ignored."""
    assert waits(*preferences) == wait_s


def test_without_a_tag_nothing_is_held() -> None:
    assert waits("wait=60", tagged=False) is None


@pytest.mark.parametrize(("most_s", "wait_s"), [(20, 20), (60, 60), (0, None)])
def test_the_longest_wait_is_a_setting(most_s: int, wait_s: int | None) -> None:
    assert waits("wait=60", rules=EndpointRules(max_wait_s=most_s)) == wait_s


def test_a_held_answer_says_so() -> None:
    held = with_preference_applied(answered(("if-none-match", CURRENT)), 60)
    assert held == HttpResponse(status=304, headers=(("ETag", CURRENT), ("Preference-Applied", "wait=60")))


@given(st.lists(st.text(alphabet='wait=0123456789",;\\ x', max_size=30), max_size=3))
@settings(max_examples=200, deadline=None)
def test_no_preference_is_held_longer_than_allowed(preferences: list[str]) -> None:
    wait_s = waits(*preferences)
    assert wait_s is None or 0 < wait_s <= 300
