"""What each api-version shows, and which one serves a request (spec §3)."""

import pytest

from forewarn.protocol.document import Kind
from forewarn.protocol.versions import (
    INSTANCE_VERSIONS,
    NEWEST_VERSION,
    VERSIONS,
    UnknownVersionPolicy,
    event_fields,
    newest_three_versions,
    requires_metadata_header,
    resolve_version,
    version_features,
    version_lists_kind,
)

REFUSE, LENIENT, NOT_FOUND = UnknownVersionPolicy.REFUSE, UnknownVersionPolicy.LENIENT, UnknownVersionPolicy.NOT_FOUND
FIRST_SIX = ("EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore")


def test_the_seven_versions_of_the_specification_are_served_in_ascending_order() -> None:
    assert VERSIONS == (
        "2017-03-01",
        "2017-08-01",
        "2017-11-01",
        "2019-01-01",
        "2019-04-01",
        "2019-08-01",
        "2020-07-01",
    )
    assert NEWEST_VERSION == "2020-07-01"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("kind", "since"),
    [
        (Kind.FREEZE, "2017-03-01"),
        (Kind.REBOOT, "2017-03-01"),
        (Kind.REDEPLOY, "2017-03-01"),
        (Kind.PREEMPT, "2017-11-01"),
        (Kind.TERMINATE, "2019-01-01"),
    ],
)
def test_a_kind_is_shown_from_the_version_that_brought_it(version: str, kind: Kind, since: str) -> None:
    assert version_lists_kind(version, kind) is (version >= since)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("field", "since"),
    [("Description", "2019-04-01"), ("EventSource", "2019-08-01"), ("DurationInSeconds", "2020-07-01")],
)
def test_a_field_is_shown_from_the_version_that_brought_it(version: str, field: str, since: str) -> None:
    assert event_fields(version)[:6] == FIRST_SIX
    assert (field in event_fields(version)) is (version >= since)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_preview_has_the_underscore_and_spares_callers_the_header(version: str) -> None:
    preview = version == "2017-03-01"
    assert version_features(version).underscore is preview
    assert requires_metadata_header(version) is not preview


@pytest.mark.parametrize("version", [None, "", "2016-01-01", "latest"])
def test_a_version_that_does_not_exist_spares_nobody_the_header(version: str | None) -> None:
    assert requires_metadata_header(version)


@pytest.mark.parametrize(
    ("asked", "served", "unknown", "settled"),
    [
        ("2019-04-01", VERSIONS, REFUSE, "2019-04-01"),
        ("2019-04-01", VERSIONS, LENIENT, "2019-04-01"),
        ("2019-04-02", VERSIONS, REFUSE, None),
        ("2019-04-02", VERSIONS, NOT_FOUND, None),
        ("2019-04-02", VERSIONS, LENIENT, "2019-04-01"),
        ("2031-01-01", VERSIONS, LENIENT, "2020-07-01"),
        ("2016-12-31", VERSIONS, LENIENT, None),
        ("2020-07-01", VERSIONS[:2], REFUSE, None),
        ("2020-07-01", VERSIONS[:2], LENIENT, "2017-08-01"),
        ("latest", VERSIONS, LENIENT, None),
        ("{latest}", VERSIONS, LENIENT, None),
        ("2020-07-01 ", VERSIONS, LENIENT, None),
        ("2020-07-01-preview", VERSIONS, LENIENT, None),
        ("٢٠٢٠-07-01", VERSIONS, LENIENT, None),
        ("", VERSIONS, LENIENT, None),
    ],
)
def test_the_version_that_serves_a_request(
    asked: str, served: tuple[str, ...], unknown: UnknownVersionPolicy, settled: str | None
) -> None:
    """Spec §10: lenient is the newest one not newer than what was asked."""
    assert resolve_version(asked, served, unknown) == settled


def test_the_instance_has_versions_of_its_own() -> None:
    """Spec §2.6."""
    assert list(INSTANCE_VERSIONS) == sorted(set(INSTANCE_VERSIONS))
    assert len(INSTANCE_VERSIONS) == 35
    assert newest_three_versions(INSTANCE_VERSIONS) == ("2025-04-07", "2024-07-17", "2024-03-15")


def test_the_newest_three_are_told_newest_first_however_they_were_configured() -> None:
    assert newest_three_versions(("2019-01-01", "2020-07-01", "2017-03-01", "2017-08-01")) == (
        "2020-07-01",
        "2019-01-01",
        "2017-08-01",
    )
    assert newest_three_versions(("2017-03-01",)) == ("2017-03-01",)
