"""Optimistic concurrency: a row may change only from the version that the decision was based on.

Shared by both implementations of `Store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from forewarn.errors import Conflict


class VersionedRow(Protocol):
    """A scope, gate or request: `version` is the one it was decided on, 0 for a new row."""

    @property
    def id(self) -> str: ...
    @property
    def version(self) -> int: ...


def version_conflict(thing: str, row_id: str, decided_on: int, stored: int) -> Conflict:
    """Return the Conflict for a row that is stored at another version; 0 is a row that does not exist."""
    then = f"version {decided_on}" if decided_on else "it not existing"
    now = f"is at version {stored}" if stored else "does not exist"
    return Conflict(f"{thing} {row_id!r} {now}, but this was decided on {then}: read it again and decide again")


def require_current_versions(thing: str, rows: Iterable[VersionedRow], stored_version: Callable[[str], int]) -> None:
    """Raise Conflict for the first row whose version is not the stored one; a row may occur several times."""
    seen: dict[str, int] = {}
    for row in rows:
        stored = seen.get(row.id, stored_version(row.id))
        if row.version != stored:
            raise version_conflict(thing, row.id, row.version, stored)
        seen[row.id] = stored + 1
