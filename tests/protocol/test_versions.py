"""The api-versions: what each contains, and which one serves a request (spec §3)."""

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
def test_a_kind_is_listed_since_the_version_that_introduced_it(version: str, kind: Kind, since: str) -> None:
    assert version_lists_kind(version, kind) is (version >= since)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("field", "since"),
    [("Description", "2019-04-01"), ("EventSource", "2019-08-01"), ("DurationInSeconds", "2020-07-01")],
)
def test_a_field_exists_since_the_version_that_introduced_it(version: str, field: str, since: str) -> None:
    assert event_fields(version)[:6] == FIRST_SIX
    assert (field in event_fields(version)) is (version >= since)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_preview_has_the_underscore_and_works_without_the_header(version: str) -> None:
    preview = version == "2017-03-01"
    assert version_features(version).underscore is preview
    assert requires_metadata_header(version) is not preview


@pytest.mark.parametrize("version", [None, "", "2016-01-01", "latest"])
def test_an_unknown_version_requires_the_header(version: str | None) -> None:
    assert requires_metadata_header(version)


@pytest.mark.parametrize(
    ("requested", "served", "policy", "version"),
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
def test_a_request_is_served_by_the_version_that_the_policy_selects(
    requested: str, served: tuple[str, ...], policy: UnknownVersionPolicy, version: str | None
) -> None:
    """Spec §10: lenient selects the newest version that is not newer than the requested date."""
    assert resolve_version(requested, served, policy) == version


def test_instance_metadata_has_versions_of_its_own() -> None:
    """Spec §2.6."""
    assert list(INSTANCE_VERSIONS) == sorted(set(INSTANCE_VERSIONS))
    assert len(INSTANCE_VERSIONS) == 35
    assert newest_three_versions(INSTANCE_VERSIONS) == ("2025-04-07", "2024-07-17", "2024-03-15")


def test_the_newest_three_versions_are_newest_first_in_any_configured_order() -> None:
    assert newest_three_versions(("2019-01-01", "2020-07-01", "2017-03-01", "2017-08-01")) == (
        "2020-07-01",
        "2019-01-01",
        "2017-08-01",
    )
    assert newest_three_versions(("2017-03-01",)) == ("2017-03-01",)
