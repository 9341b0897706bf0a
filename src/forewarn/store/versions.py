"""Optimistic concurrency: a row may change only from the version that the decision was based on.

Shared by both implementations of `Store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from forewarn.core.fleet import Host
from forewarn.errors import Conflict


class VersionedRow(Protocol):
    """A scope, host, gate or request that carries the version it was decided on, 0 for a new row."""

    @property
    def id(self) -> str:
        """The id under which a scope, host (its name in lower case), gate or request is stored."""

    @property
    def version(self) -> int:
        """The version that the row was decided on; 0: it must not exist yet."""


def version_conflict(thing: str, row_id: str, decided_on: int, stored: int) -> Conflict:
    """Return (not raise) the Conflict for a row that is stored at another version than it was decided on."""
    then = f"version {decided_on}" if decided_on else "it not existing"
    now = f"is at version {stored}" if stored else "does not exist"
    return Conflict(f"{thing} {row_id!r} {now}, but this was decided on {then}: read it again and decide again")


def host_conflict(host: Host, stored: int) -> Conflict:
    """Return, without raising it, the Conflict for a host that has changed or to which VMs have come."""
    if host.version and host.version == stored:
        return Conflict(f"VMs have come to host {host.name!r} since this was decided: read it again and decide again")
    return version_conflict("host", host.name, host.version, stored)


def require_current_versions(thing: str, rows: Iterable[VersionedRow], stored_version: Callable[[str], int]) -> None:
    """Raise Conflict for the first row whose version is not the stored one; changes nothing."""
    seen: dict[str, int] = {}
    for row in rows:
        stored = seen.get(row.id, stored_version(row.id))
        if row.version != stored:
            raise version_conflict(thing, row.id, row.version, stored)
        seen[row.id] = stored + 1
