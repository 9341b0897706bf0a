"""The bytes of a document in each api-version (spec §4.1, §4.2)."""

import json

import pytest

from forewarn.protocol.codec import encode_document
from forewarn.protocol.dates import parse_date
from forewarn.protocol.document import Document, EventNotice, EventSource, Kind, NoticeStatus
from forewarn.protocol.versions import VERSIONS, event_fields


def at(text: str) -> float:
    seconds = parse_date(text)
    assert seconds is not None
    return seconds


def notice(kind: Kind = Kind.REBOOT, **changes: object) -> EventNotice:
    defaults: dict[str, object] = {
        "id": "FA298C74-0000-4000-8000-000000000001",
        "status": NoticeStatus.SCHEDULED,
        "kind": kind,
        "resources": ("web_1",),
        "not_before": at("Mon, 19 Sep 2016 18:29:47 GMT"),
    }
    return EventNotice(**{**defaults, **changes})  # type: ignore[arg-type]


def events_of(document: Document, version: str) -> list[dict[str, object]]:
    events = json.loads(encode_document(document, version))["Events"]
    assert isinstance(events, list)
    return events


def test_an_empty_document_is_39_bytes_at_incarnation_190() -> None:
    raw = encode_document(Document(incarnation=190), "2017-08-01")
    assert raw == b'{"DocumentIncarnation":190,"Events":[]}'
    assert len(raw) == 39


def test_a_recorded_eviction_is_reproduced_byte_for_byte() -> None:
    """Spec §4.1; recorded at 2019-08-01."""
    preempt = EventNotice(
        id="A123BC45-1234-5678-AB90-ABCDEF123456",
        status=NoticeStatus.SCHEDULED,
        kind=Kind.PREEMPT,
        resources=("myspotvm",),
        not_before=at("Tue, 16 Mar 2021 00:58:46 GMT"),
    )
    assert encode_document(Document(incarnation=1, notices=(preempt,)), "2019-08-01") == (
        b'{"DocumentIncarnation":1,"Events":[{"EventId":"A123BC45-1234-5678-AB90-ABCDEF123456",'
        b'"EventStatus":"Scheduled","EventType":"Preempt","ResourceType":"VirtualMachine",'
        b'"Resources":["myspotvm"],"NotBefore":"Tue, 16 Mar 2021 00:58:46 GMT",'
        b'"Description":"","EventSource":"Platform"}]}'
    )


def test_a_started_freeze_of_two_vms_is_reproduced_byte_for_byte() -> None:
    """Spec §4.1, §4.2; recorded at 2020-07-01. NotBefore is empty once started."""
    freeze = EventNotice(
        id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        status=NoticeStatus.STARTED,
        kind=Kind.FREEZE,
        resources=("WestNO_0", "WestNO_1"),
        not_before=None,
        description="Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        duration_s=5,
    )
    assert encode_document(Document(incarnation=3, notices=(freeze,)), "2020-07-01") == (
        b'{"DocumentIncarnation":3,"Events":[{"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123",'
        b'"EventStatus":"Started","EventType":"Freeze","ResourceType":"VirtualMachine",'
        b'"Resources":["WestNO_0","WestNO_1"],"NotBefore":"",'
        b'"Description":"Virtual machine is being paused because of a memory-preserving Live Migration'
        b' operation.","EventSource":"Platform","DurationInSeconds":5}]}'
    )


def test_the_2017_preview_has_the_underscore_of_the_recorded_redeploy() -> None:
    """Spec §3."""
    redeploy = notice(
        Kind.REDEPLOY,
        resources=("mysrv",),
        not_before=at("Mon, 17 Apr 2017 18:40:06 GMT"),
        source=EventSource.USER,
    )
    [event] = events_of(Document(incarnation=1, notices=(redeploy,)), "2017-03-01")
    assert event["Resources"] == ["_mysrv"]
    assert event["NotBefore"] == "Mon, 17 Apr 2017 18:40:06 GMT"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("roles", [False, True], ids=["VMs", "roles"])
def test_only_names_of_vms_in_the_preview_have_an_underscore(version: str, roles: bool) -> None:
    """Spec §3: names of cloud service roles never have one."""
    document = Document(incarnation=1, notices=(notice(resources=("FrontEnd_IN_0", "_odd")),), roles=roles)
    prefix = "_" if version == "2017-03-01" and not roles else ""
    assert events_of(document, version)[0]["Resources"] == [prefix + "FrontEnd_IN_0", prefix + "_odd"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_event_has_exactly_the_keys_of_its_version_in_order(version: str) -> None:
    [event] = events_of(Document(incarnation=1, notices=(notice(),)), version)
    assert tuple(event) == event_fields(version)


@pytest.mark.parametrize(
    ("version", "listed"),
    [
        ("2017-03-01", ["Freeze", "Reboot", "Redeploy"]),
        ("2017-08-01", ["Freeze", "Reboot", "Redeploy"]),
        ("2017-11-01", ["Freeze", "Reboot", "Redeploy", "Preempt"]),
        ("2019-01-01", ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"]),
        ("2020-07-01", ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"]),
        ("2024-07-09", [str(kind) for kind in Kind]),  # spec §14.4
    ],
)
def test_kinds_newer_than_the_version_are_not_listed_and_the_incarnation_is_the_same(
    version: str, listed: list[str]
) -> None:
    """Spec §3: the incarnation belongs to the scope, not to the version."""
    document = Document(incarnation=6, notices=tuple(notice(kind) for kind in Kind))
    content = json.loads(encode_document(document, version))
    assert [event["EventType"] for event in content["Events"]] == listed
    assert content["DocumentIncarnation"] == 6


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("iso_dates", [False, True])
def test_iso_dates_can_be_enabled_up_to_2017_08_01_only(version: str, iso_dates: bool) -> None:
    """Spec §4.2, NotBefore."""
    raw = encode_document(Document(incarnation=1, notices=(notice(),)), version, iso_dates=iso_dates)
    iso = iso_dates and version in ("2017-03-01", "2017-08-01")
    expected = "2016-09-19T18:29:47Z" if iso else "Mon, 19 Sep 2016 18:29:47 GMT"
    assert json.loads(raw)["Events"][0]["NotBefore"] == expected


def test_a_started_event_has_an_empty_not_before() -> None:
    [event] = events_of(Document(incarnation=1, notices=(notice(status=NoticeStatus.STARTED),)), "2020-07-01")
    assert event["NotBefore"] == ""


def test_events_are_in_the_order_they_were_published() -> None:
    """Spec §4.1."""
    ids = [f"{number:08X}-0000-4000-8000-000000000000" for number in (3, 1, 2)]
    document = Document(incarnation=4, notices=tuple(notice(id=event_id) for event_id in ids))
    assert [event["EventId"] for event in events_of(document, "2020-07-01")] == ids


def test_text_beyond_ascii_is_escaped_so_that_the_charset_does_not_matter() -> None:
    raw = encode_document(Document(incarnation=1, notices=(notice(resources=("bär", "\ud800")),)), "2020-07-01")
    assert raw.isascii()
    assert b'"Resources":["b\\u00e4r","\\ud800"]' in raw
