"""What a store is for: a lab, whose clock can be moved, or production, in real time.

A store is marked once, when it is created. The mark is a saved value, so that backups carry it. A store of a version
that wrote no mark is a lab if it has the position of a lab clock, which every lab saves after a minute and when it
stops; otherwise it is for production, unless it has neither scopes nor hosts: then its next start marks it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from enum import StrEnum
from pathlib import Path

from forewarn.store import sqlite_file
from forewarn.store.interface import LAB_CLOCK_NAME, Store

_MARK_NAME = "purpose"  # of a saved value
_READ_SAVED = "SELECT value FROM saved WHERE name = ?"
_HAS_FLEET = "SELECT EXISTS (SELECT 1 FROM scopes) OR EXISTS (SELECT 1 FROM hosts)"


class StorePurpose(StrEnum):
    """What a store is for; a service of one kind refuses a store of the other. The values are stored."""

    LAB = "lab"  # its clock can be moved
    PRODUCTION = "production"  # real time


def read_purpose(path: Path) -> StorePurpose | None:
    """Return what the store in this file is for; None if that is not decided yet or unreadable."""
    if sqlite_file.is_new_file(path):
        return None
    try:
        with closing(sqlite_file.connect_read_only(path)) as db:
            if (mark := db.execute(_READ_SAVED, (_MARK_NAME,)).fetchone()) is not None:
                return StorePurpose(mark[0].decode())
            if db.execute(_READ_SAVED, (LAB_CLOCK_NAME,)).fetchone() is not None:
                return StorePurpose.LAB
            return StorePurpose.PRODUCTION if db.execute(_HAS_FLEET).fetchone()[0] else None
    except sqlite3.Error:
        return None  # opening the store says what is wrong with it


async def mark_purpose(store: Store, purpose: StorePurpose) -> None:
    """Save in the store what it is for, durably; does nothing if a purpose is saved already, even another."""
    if store.load(_MARK_NAME) is None:
        await store.save(_MARK_NAME, purpose.encode())
