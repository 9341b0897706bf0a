"""The api-versions: what each one shows (spec §3), in one table, and which one serves a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from forewarn.protocol.document import Kind


class UnknownVersion(StrEnum):
    """What becomes of a request for a version that is not served (spec §10)."""

    REFUSE = "refuse"
    LENIENT = "lenient"
    NOT_FOUND = "not-found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shows:
    """What one version shows of a document, and asks of a request."""

    kinds: frozenset[Kind]
    fields: tuple[str, ...]
    underscore: bool = False  # names of VMs carry one leading underscore
    header: bool = True  # the Metadata header is enforced
    iso_dates: bool = False  # documented with ISO dates, so they may be asked for (spec §4.2)


_FIRST = ("EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore")
_DESCRIBED = (*_FIRST, "Description")
_SOURCED = (*_DESCRIBED, "EventSource")
_TIMED = (*_SOURCED, "DurationInSeconds")

_PREVIEW_KINDS = frozenset({Kind.FREEZE, Kind.REBOOT, Kind.REDEPLOY})
_SPOT_KINDS = _PREVIEW_KINDS | {Kind.PREEMPT}
_ALL_KINDS = _SPOT_KINDS | {Kind.TERMINATE}

_TABLE = {
    "2017-03-01": Shows(kinds=_PREVIEW_KINDS, fields=_FIRST, underscore=True, header=False, iso_dates=True),
    "2017-08-01": Shows(kinds=_PREVIEW_KINDS, fields=_FIRST, iso_dates=True),
    "2017-11-01": Shows(kinds=_SPOT_KINDS, fields=_FIRST),
    "2019-01-01": Shows(kinds=_ALL_KINDS, fields=_FIRST),
    "2019-04-01": Shows(kinds=_ALL_KINDS, fields=_DESCRIBED),
    "2019-08-01": Shows(kinds=_ALL_KINDS, fields=_SOURCED),
    "2020-07-01": Shows(kinds=_ALL_KINDS, fields=_TIMED),
}

VERSIONS: tuple[str, ...] = tuple(_TABLE)
NEWEST = VERSIONS[-1]

# /metadata/instance counts its versions apart from scheduled events.
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

_DATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def shows(version: str) -> Shows:
    return _TABLE[version]


def shows_kind(version: str, kind: Kind) -> bool:
    return kind in _TABLE[version].kinds


def fields(version: str) -> tuple[str, ...]:
    """The keys of an event in this version, in the order of the wire."""
    return _TABLE[version].fields


def enforces_header(version: str | None) -> bool:
    """Whether `Metadata: true` is enforced; so it is for a version that does not exist, or was not given."""
    return version is None or version not in _TABLE or _TABLE[version].header


def newest_three(served: Sequence[str]) -> tuple[str, ...]:
    """The list that a refusal shows (spec §10), newest first."""
    return tuple(sorted(served, reverse=True)[:3])


def is_dated(version: str) -> bool:
    """Whether this has the form of a version, known or not."""
    return _DATED.fullmatch(version) is not None


def settle(asked: str, served: Sequence[str], unknown: UnknownVersion) -> str | None:
    """The version that serves a request for `asked`; None: it is not served.

    Lenient means the newest one not newer than what was asked, so only a date can be served leniently, and
    none that is older than everything served.
    """
    if asked in served:
        return asked
    if unknown is not UnknownVersion.LENIENT or not is_dated(asked):
        return None
    return max((version for version in served if version <= asked), default=None)
