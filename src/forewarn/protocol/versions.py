"""The api-versions in one table: what each shows (spec §3), and which one serves a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from forewarn.errors import Rejected
from forewarn.protocol.document import Kind


class UnknownVersionPolicy(StrEnum):
    """How the service responds to an api-version, of any form, that it does not serve (spec §10).

    A request without an api-version always gets 400.
    """

    # The values are those of the setting `unknown_version`.
    REFUSE = "refuse"  # 400; the default
    LENIENT = "lenient"  # as the newest served version before it; 400 if there is none, or if it is not a date
    NOT_FOUND = "not-found"  # 404, but 400 for `latest`


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFeatures:
    """How one api-version of scheduled events renders a document, and what it requires of a request."""

    kinds: frozenset[Kind]  # events of other kinds are not listed
    fields: tuple[str, ...]  # JSON keys of an event, in order
    underscore: bool = False  # VM names have one leading underscore
    requires_header: bool = True  # the Metadata header is required
    iso_dates: bool = False  # Azure documented ISO dates, so the operator may enable them (spec §4.2)


_BASE_FIELDS = ("EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore")
_FIELDS_WITH_DESCRIPTION = (*_BASE_FIELDS, "Description")
_FIELDS_WITH_SOURCE = (*_FIELDS_WITH_DESCRIPTION, "EventSource")
_FIELDS_WITH_DURATION = (*_FIELDS_WITH_SOURCE, "DurationInSeconds")

_PREVIEW_KINDS = frozenset({Kind.FREEZE, Kind.REBOOT, Kind.REDEPLOY})
_SPOT_KINDS = _PREVIEW_KINDS | {Kind.PREEMPT}
_ALL_KINDS = _SPOT_KINDS | {Kind.TERMINATE}
_PREVIEW_VERSION = "2024-07-09"  # known only from clients; served if the operator enables it (spec §14.4)

_FEATURES_BY_VERSION = {
    "2017-03-01": VersionFeatures(
        kinds=_PREVIEW_KINDS, fields=_BASE_FIELDS, underscore=True, requires_header=False, iso_dates=True
    ),
    "2017-08-01": VersionFeatures(kinds=_PREVIEW_KINDS, fields=_BASE_FIELDS, iso_dates=True),
    "2017-11-01": VersionFeatures(kinds=_SPOT_KINDS, fields=_BASE_FIELDS),
    "2019-01-01": VersionFeatures(kinds=_ALL_KINDS, fields=_BASE_FIELDS),
    "2019-04-01": VersionFeatures(kinds=_ALL_KINDS, fields=_FIELDS_WITH_DESCRIPTION),
    "2019-08-01": VersionFeatures(kinds=_ALL_KINDS, fields=_FIELDS_WITH_SOURCE),
    "2020-07-01": VersionFeatures(kinds=_ALL_KINDS, fields=_FIELDS_WITH_DURATION),
    _PREVIEW_VERSION: VersionFeatures(kinds=_ALL_KINDS | {Kind.SPOT_REBALANCE}, fields=_FIELDS_WITH_DURATION),
}

ALL_VERSIONS: tuple[str, ...] = tuple(_FEATURES_BY_VERSION)  # of scheduled events, oldest first, with the preview
VERSIONS: tuple[str, ...] = tuple(version for version in ALL_VERSIONS if version != _PREVIEW_VERSION)
NEWEST_VERSION = VERSIONS[-1]

# /metadata/instance has versions of its own.
INSTANCE_VERSIONS: tuple[str, ...] = (
    *("2017-03-01", "2017-04-02", "2017-08-01", "2017-10-01", "2017-12-01"),
    *("2018-02-01", "2018-04-02", "2018-10-01"),
    *("2019-02-01", "2019-03-11", "2019-04-30", "2019-06-01", "2019-06-04"),
    *("2019-08-01", "2019-08-15", "2019-11-01"),
    *("2020-06-01", "2020-07-15", "2020-09-01", "2020-10-01", "2020-12-01"),
    *("2021-01-01", "2021-02-01", "2021-03-01", "2021-05-01", "2021-08-01"),
    *("2021-10-01", "2021-11-01", "2021-11-15", "2021-12-13"),
    *("2023-07-01", "2023-11-15", "2024-03-15", "2024-07-17", "2025-04-07"),
)

_VERSION_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def version_features(version: str) -> VersionFeatures:
    """Return the features of a scheduled events version. KeyError if it is not in ALL_VERSIONS."""
    return _FEATURES_BY_VERSION[version]


def version_lists_kind(version: str, kind: Kind) -> bool:
    """Return whether documents of this api-version list events of this kind."""
    return kind in _FEATURES_BY_VERSION[version].kinds


def event_fields(version: str) -> tuple[str, ...]:
    """Return the JSON keys of an event in this api-version, in order; KeyError if not in ALL_VERSIONS."""
    return _FEATURES_BY_VERSION[version].fields


def requires_metadata_header(version: str | None) -> bool:
    """Return whether a request must have the header `Metadata: true`: False only for 2017-03-01."""
    return version is None or version not in _FEATURES_BY_VERSION or _FEATURES_BY_VERSION[version].requires_header


def newest_three_versions(served: Sequence[str]) -> tuple[str, ...]:
    """Return the newest three of these versions, newest first, for the body of a 400 (spec §10)."""
    return tuple(sorted(served, reverse=True)[:3])


def is_version_date(version: str) -> bool:
    """Return whether the text has the form YYYY-MM-DD, of a known version or not; the date need not exist."""
    return _VERSION_DATE.fullmatch(version) is not None


def resolve_version(requested: str, served: Sequence[str], policy: UnknownVersionPolicy) -> str | None:
    """Return the version of `served` that serves a request for `requested`; None if no version does.

    For a date that is not served, LENIENT takes the newest served version that is not newer.
    """
    if requested in served:
        return requested
    if policy is not UnknownVersionPolicy.LENIENT or not is_version_date(requested):
        return None
    return max((version for version in served if version <= requested), default=None)


def check_location_versions(by_location: Mapping[str, Sequence[str]], served: Sequence[str]) -> None:
    """Raise Rejected if a location has no versions, or one that is not in `served`; else do nothing."""
    for location, versions in by_location.items():
        for version in versions:
            if version not in served:
                raise Rejected(
                    f"setting 'versions' for location {location!r}: {version!r} is not an api-version; "
                    f"choose from {', '.join(served)}"
                )
        if not versions:
            raise Rejected(f"setting 'versions' for location {location!r} is empty: name at least one api-version")
