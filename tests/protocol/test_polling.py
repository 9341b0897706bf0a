"""Conditional polls and long polls: ETag, If-None-Match and Prefer: wait (spec §4.3, §4.4)."""

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
DIGEST = "0123456789abcdef"
CURRENT = etag(SCOPE, 3, 7, DIGEST)
JSON = ("Content-Type", "application/json; charset=utf-8")


def poll_with(*headers: tuple[str, str], rules: EndpointRules | None = None) -> PollRequest:
    request = HttpRequest(
        method="GET",
        target="/metadata/scheduledevents?api-version=2020-07-01",
        headers=(("metadata", "true"), *headers),
    )
    read = read_request(request, is_known_caller=True, rules=rules or EndpointRules())
    assert isinstance(read, PollRequest)
    return read


def response_to(*headers: tuple[str, str]) -> HttpResponse:
    return poll_response(poll_with(*headers), tag=CURRENT, document=DOCUMENT, rules=EndpointRules())


def wait_of(*preferences: str, tagged: bool = True, rules: EndpointRules | None = None) -> int | None:
    tag = [("if-none-match", CURRENT)] if tagged else []
    return poll_with(*tag, *(("prefer", preference) for preference in preferences), rules=rules).wait_s


def test_every_200_has_an_etag() -> None:
    assert response_to() == HttpResponse(
        status=200,
        headers=(JSON, ("ETag", CURRENT)),
        body=b'{"DocumentIncarnation":7,"Events":[]}',
    )


def test_etags_are_quoted_and_differ_by_scope_epoch_and_incarnation() -> None:
    assert CURRENT.startswith('"3-7-')
    tags = {etag(scope, epoch, number, DIGEST) for scope in "ab" for epoch in range(12) for number in range(12)}
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
def test_a_client_that_has_the_document_gets_304_without_a_body(condition: str) -> None:
    response = response_to(("if-none-match", condition))
    assert response == HttpResponse(status=304, headers=(("ETag", CURRENT),), body=b"")


def test_if_none_match_may_be_repeated() -> None:
    assert response_to(("if-none-match", '"1"'), ("if-none-match", CURRENT)).status == 304


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
def test_an_invalid_or_outdated_etag_or_a_star_gets_the_document(condition: str) -> None:
    """A star must not get 304: a client that always sends it would never receive an event."""
    assert response_to(("if-none-match", condition)).status == 200


def test_the_same_incarnation_of_a_later_epoch_is_another_document() -> None:
    poll = poll_with(("if-none-match", CURRENT))
    assert client_has_document(poll, CURRENT)
    assert not client_has_document(poll, etag(SCOPE, 4, 7, DIGEST))
    assert poll_response(poll, tag=etag(SCOPE, 4, 7, DIGEST), document=DOCUMENT, rules=EndpointRules()).status == 200


def test_the_same_numbers_in_another_scope_are_another_document() -> None:
    assert not client_has_document(poll_with(("if-none-match", CURRENT)), etag("other", 3, 7, DIGEST))


def test_the_etag_of_another_store_is_not_the_current_one() -> None:
    """Spec §4.3: a new store counts epochs and incarnations from 1 again."""
    tags = {etag(SCOPE, 1, 1, DIGEST, store) for store in ("", "00000001", "00000002")}
    assert len(tags) == 3
    assert all(tag.startswith('"1-1-') and tag.endswith('"') for tag in tags)


def test_a_poll_without_if_none_match_always_gets_the_document() -> None:
    assert not client_has_document(poll_with(), CURRENT)


def test_an_encoded_body_is_sent_unchanged() -> None:
    response = poll_response(poll_with(), tag=CURRENT, document=DOCUMENT, rules=EndpointRules(), body=b"rendered")
    assert response.body == b"rendered"
    assert ("ETag", CURRENT) in response.headers


def test_iso_dates_are_a_setting() -> None:
    notice = EventNotice(id="A", status=NoticeStatus.SCHEDULED, kind=Kind.REBOOT, resources=(), not_before=0.0)
    document = Document(incarnation=2, notices=(notice,))
    poll = PollRequest(version="2017-08-01")
    response = poll_response(poll, tag=CURRENT, document=document, rules=EndpointRules(iso_dates=True))
    assert b"1970-01-01T00:00:00Z" in response.body


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
def test_prefer_wait_is_parsed_as_rfc_7240_says(preferences: tuple[str, ...], wait_s: int | None) -> None:
    """Without case, quoted or not; the first `wait` counts, and an invalid one means no wait."""
    assert wait_of(*preferences) == wait_s


def test_a_poll_without_if_none_match_is_never_held() -> None:
    assert wait_of("wait=60", tagged=False) is None


@pytest.mark.parametrize(("max_wait_s", "wait_s"), [(20, 20), (60, 60), (0, None)])
def test_the_longest_wait_is_a_setting(max_wait_s: int, wait_s: int | None) -> None:
    assert wait_of("wait=60", rules=EndpointRules(max_wait_s=max_wait_s)) == wait_s


def test_the_response_to_a_long_poll_has_preference_applied() -> None:
    held = with_preference_applied(response_to(("if-none-match", CURRENT)), 60)
    assert held == HttpResponse(status=304, headers=(("ETag", CURRENT), ("Preference-Applied", "wait=60")))


@given(st.lists(st.text(alphabet='wait=0123456789",;\\ x', max_size=30), max_size=3))
@settings(max_examples=200, deadline=None)
def test_no_prefer_header_exceeds_the_longest_wait(preferences: list[str]) -> None:
    wait_s = wait_of(*preferences)
    assert wait_s is None or 0 < wait_s <= 300
