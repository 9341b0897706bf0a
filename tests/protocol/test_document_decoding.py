"""The guest decodes documents of real servers and tolerates wrong and missing fields (spec §4.2)."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.protocol.codec import (
    InvalidDocument,
    Received,
    ReceivedEvent,
    decode_document,
    decode_event,
    encode_document,
)
from forewarn.protocol.dates import parse_date
from forewarn.protocol.document import Document, EventNotice, EventSource, Kind, NoticeStatus
from forewarn.protocol.versions import VERSIONS, event_fields, version_lists_kind

WHOLE = {"EventId": "A", "EventStatus": "Scheduled", "EventType": "Freeze", "Resources": ["web-0"]}


def decoded(**event: object) -> ReceivedEvent:
    return decode_event(json.loads(json.dumps(event)))


@pytest.mark.parametrize("incarnation", [0, 1, 190, 279, 2**40])
def test_an_empty_document_is_decoded(incarnation: int) -> None:
    raw = b'{"DocumentIncarnation":%d, "Events":[]}' % incarnation
    assert decode_document(raw) == Received(incarnation=incarnation)


def test_a_recorded_2019_event_has_no_duration() -> None:
    """Spec §3: DurationInSeconds came with 2020-07-01."""
    event = decoded(
        EventId="A123BC45-1234-5678-AB90-ABCDEF123456",
        EventStatus="Scheduled",
        EventType="Preempt",
        ResourceType="VirtualMachine",
        Resources=["myspotvm"],
        NotBefore="Tue, 16 Mar 2021 00:58:46 GMT",
        Description="",
        EventSource="Platform",
    )
    assert event == ReceivedEvent(
        id="A123BC45-1234-5678-AB90-ABCDEF123456",
        status="Scheduled",
        kind="Preempt",
        resource_type="VirtualMachine",
        resources=("myspotvm",),
        not_before=1615856326.0,
        not_before_text="Tue, 16 Mar 2021 00:58:46 GMT",
        source="Platform",
        duration_s=None,
    )


def test_unknown_kinds_and_fields_are_kept() -> None:
    event = decoded(EventType="Defragment", Severity={"level": 3})
    assert event.kind == "Defragment"
    assert event.extra == {"Severity": {"level": 3}}


@pytest.mark.parametrize("text", ["", "soon", "Mon, 32 Foo 2016 18:29:47 GMT"])
def test_an_invalid_date_is_kept_as_text(text: str) -> None:
    event = decoded(NotBefore=text)
    assert (event.not_before, event.not_before_text) == (None, text)


def test_iso_and_rfc_1123_dates_are_the_same_time() -> None:
    """Spec §4.2: clients read both."""
    iso, rfc = decoded(NotBefore="2016-09-19T18:29:47Z"), decoded(NotBefore="Mon, 19 Sep 2016 18:29:47 GMT")
    assert iso.not_before == rfc.not_before == 1474309787.0


def test_known_values_are_recognized_in_any_case() -> None:
    """Spec §4.2: Azure does not promise their case."""
    event = decoded(EventStatus="started", EventType="FREEZE", EventSource="user")
    assert (event.status, event.kind, event.source) == ("Started", "Freeze", "User")


def test_an_event_may_lack_every_key() -> None:
    assert decoded() == ReceivedEvent()


@pytest.mark.parametrize("field", ["EventId", "EventType", "EventStatus", "EventSource", "Description", "Resources"])
def test_a_lone_surrogate_is_replaced_because_it_cannot_be_stored(field: str) -> None:
    assert "half ?" in repr(decoded(**{field: "half \ud800"}))


def test_a_number_beyond_64_bits_is_ignored() -> None:
    assert decoded(DurationInSeconds=10**400).duration_s is None


@pytest.mark.parametrize(
    ("value", "duration_s"),
    [(5, 5), (-1, -1), ("9", 9), (7.0, 7), (None, None), ("x", None), (True, None), ([], None)],
)
def test_a_duration_is_an_integer_or_unknown(value: object, duration_s: int | None) -> None:
    assert decoded(DurationInSeconds=value).duration_s == duration_s


@pytest.mark.parametrize(
    ("value", "resources"),
    [(["a", "b"], ("a", "b")), ("a", ("a",)), (None, ()), (["a", 1, None], ("a",)), ({}, ())],
)
def test_resources_that_are_not_text_are_ignored(value: object, resources: tuple[str, ...]) -> None:
    assert decoded(Resources=value).resources == resources


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"{}", "DocumentIncarnation is missing"),
        (b'{"error":"Not found"}', "DocumentIncarnation is missing (it says 'Not found')"),
        (b'{"Events":[]}', "DocumentIncarnation is missing"),
        (b'{"DocumentIncarnation":"5","Events":[]}', "DocumentIncarnation is not an integer"),
        (b'{"DocumentIncarnation":"five","Events":[]}', "DocumentIncarnation is not an integer"),
        (b'{"DocumentIncarnation":true,"Events":[]}', "DocumentIncarnation is not an integer"),
        (b'{"DocumentIncarnation":null,"Events":[]}', "DocumentIncarnation is not an integer"),
        (b'{"DocumentIncarnation":1.5,"Events":[]}', "DocumentIncarnation is not an integer"),
        (b'{"DocumentIncarnation":-1,"Events":[]}', "DocumentIncarnation is not an integer"),
        (b'{"DocumentIncarnation":1e999,"Events":[]}', "DocumentIncarnation is not an integer"),
        (b'{"DocumentIncarnation":1%s,"Events":[]}' % (b"0" * 400), "DocumentIncarnation is not an integer"),
        (b'{"DocumentIncarnation":3}', "Events is missing"),
        (b'{"DocumentIncarnation":3,"Events":null}', "Events is not a list"),
        (b'{"DocumentIncarnation":3,"Events":"none"}', "Events is not a list"),
        (b'{"DocumentIncarnation":3,"Events":{}}', "Events is not a list"),
    ],
)
def test_a_response_without_its_members_is_not_a_document_without_events(raw: bytes, problem: str) -> None:
    """It says nothing about the events, so a client must not take them for ended."""
    with pytest.raises(InvalidDocument) as error:
        decode_document(raw)
    assert str(error.value) == f"the response is not a document, because {problem}: poll again"


@pytest.mark.parametrize(
    "elements",
    [[{}], [None], ["x", 7], [{"EventId": "A"}], [{**WHOLE, "EventId": ""}], [{**WHOLE, "Resources": None}]],
    ids=["empty", "null", "text and number", "only an id", "empty id", "no VMs"],
)
def test_a_response_in_which_no_element_is_an_event_is_not_a_document(elements: list[object]) -> None:
    raw = json.dumps({"DocumentIncarnation": 3, "Events": elements}).encode()
    with pytest.raises(InvalidDocument, match=f"none of the {len(elements)} elements of Events is an event"):
        decode_document(raw)


@pytest.mark.parametrize(
    ("element", "event_id"),
    [
        (None, ""),
        ("x", ""),
        ({}, ""),
        ({**WHOLE, "EventId": 7}, ""),
        ({"EventId": "B"}, "B"),
        ({**WHOLE, "EventId": "B", "EventStatus": ""}, "B"),
        ({**WHOLE, "EventId": "B", "EventType": None}, "B"),
        ({"EventId": "B", "EventStatus": "Scheduled", "EventType": "Freeze"}, "B"),
    ],
)
def test_an_unusable_element_is_left_out_and_reported_with_its_id(element: object, event_id: str) -> None:
    received = decode_document(json.dumps({"DocumentIncarnation": 3, "Events": [WHOLE, element]}).encode())
    assert [event.id for event in received.events] == ["A"]
    assert received.unusable == (event_id,)


def test_a_byte_order_mark_and_an_integer_with_a_fraction_of_zero_are_accepted() -> None:
    assert decode_document(b'\xef\xbb\xbf{"DocumentIncarnation":3.0,"Events":[]}') == Received(incarnation=3)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the response has an empty body, not a document: poll again"),
        (b" \r\n", "the response has an empty body, not a document: poll again"),
        (b"[]", "the response is a JSON list, not a document: check the address"),
        (b"<html>", "the response of 6 bytes is not JSON"),
        (b'{"DocumentIncarnation":1,"Eve', "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"DocumentIncarnation":' + b"9" * 5000 + b"}", "is not JSON"),
    ],
    ids=["empty", "blank", "list", "html", "cut", "binary", "deep", "huge-int"],
)
def test_the_error_for_an_invalid_document_says_what_is_wrong(raw: bytes, message: str) -> None:
    """Spec §11: real servers send 200 with an empty body."""
    with pytest.raises(InvalidDocument) as error:
        decode_document(raw)
    assert message in str(error.value)
    assert isinstance(error.value, ValueError)


NOTICES = st.builds(
    EventNotice,
    id=st.uuids().map(lambda value: str(value).upper()),
    status=st.just(NoticeStatus.SCHEDULED),
    kind=st.sampled_from(Kind),
    resources=st.lists(st.text(max_size=12), max_size=4).map(tuple),
    not_before=st.integers(0, 4_102_444_800).map(float),
    description=st.text(max_size=40),
    source=st.sampled_from(EventSource),
    duration_s=st.integers(-1, 10_000),
).flatmap(lambda one: st.sampled_from([one, replace(one, status=NoticeStatus.STARTED, not_before=None)]))
DOCUMENTS = st.builds(
    Document,
    incarnation=st.integers(0, 2**63 - 1),
    notices=st.lists(NOTICES, max_size=5).map(tuple),
    roles=st.booleans(),
)


def as_received(notice: EventNotice, version: str, prefix: str) -> ReceivedEvent:
    fields = event_fields(version)
    return ReceivedEvent(
        id=notice.id,
        status=notice.status,
        kind=notice.kind,
        resource_type="VirtualMachine",
        resources=tuple(prefix + name for name in notice.resources),
        not_before=notice.not_before,
        description=notice.description if "Description" in fields else "",
        source=notice.source if "EventSource" in fields else "",
        duration_s=notice.duration_s if "DurationInSeconds" in fields else None,
    )


@given(DOCUMENTS, st.sampled_from(VERSIONS), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_guest_decodes_every_document_that_the_host_encodes(
    document: Document, version: str, iso_dates: bool
) -> None:
    received = decode_document(encode_document(document, version, iso_dates=iso_dates))
    prefix = "_" if version == "2017-03-01" and not document.roles else ""

    assert received.incarnation == document.incarnation
    assert [replace(event, not_before_text="") for event in received.events] == [
        as_received(notice, version, prefix) for notice in document.notices if version_lists_kind(version, notice.kind)
    ]
    for event in received.events:
        assert parse_date(event.not_before_text) == event.not_before


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(event_fields("2020-07-01")), JSON_VALUES))
@settings(max_examples=150, deadline=None)
def test_every_json_object_decodes_to_an_event(event: dict[str, object]) -> None:
    assert isinstance(decoded(**event), ReceivedEvent)


@given(st.binary(max_size=80))
@settings(max_examples=200, deadline=None)
def test_all_bytes_decode_or_raise_invalid_document(raw: bytes) -> None:
    try:
        assert isinstance(decode_document(raw), Received)
    except InvalidDocument:
        pass
