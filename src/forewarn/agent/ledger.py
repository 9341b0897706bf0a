"""The journal's file: its schema, which grows by `PRAGMA user_version`, and who may have it open."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from forewarn.errors import Rejected

# Each brings the schema one version further; those that were ever released are never changed.
MIGRATIONS = (
    """
    CREATE TABLE events (
      key TEXT PRIMARY KEY, id TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, facts TEXT NOT NULL,
      seen_at REAL NOT NULL, boot_id TEXT NOT NULL, not_before REAL, rule TEXT NOT NULL, plan TEXT NOT NULL,
      started_at REAL, gone_at REAL, outcome TEXT NOT NULL, closed INTEGER NOT NULL) STRICT;
    CREATE INDEX events_by_id ON events (id);
    CREATE INDEX events_open ON events (number) WHERE closed = 0;
    CREATE TABLE steps (
      event_key TEXT NOT NULL REFERENCES events (key) ON DELETE CASCADE, step TEXT NOT NULL, phase TEXT NOT NULL,
      number INTEGER NOT NULL, state TEXT NOT NULL, begun_at REAL NOT NULL, ended_at REAL, boot_id TEXT NOT NULL,
      text TEXT NOT NULL, notes TEXT NOT NULL, holder TEXT NOT NULL, tries INTEGER NOT NULL,
      PRIMARY KEY (event_key, step, phase)) STRICT;
    CREATE TABLE approvals (
      event_key TEXT PRIMARY KEY REFERENCES events (key) ON DELETE CASCADE,
      state TEXT NOT NULL, at REAL NOT NULL, text TEXT NOT NULL) STRICT;
    CREATE TABLE consents (
      event_key TEXT PRIMARY KEY REFERENCES events (key) ON DELETE CASCADE,
      first_at REAL NOT NULL, asked_at REAL NOT NULL, answer TEXT NOT NULL, text TEXT NOT NULL) STRICT;
    CREATE TABLE memory (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    """,
)


class Lock:
    """One agent has a journal at a time; the lock ends with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        beside = path.with_name(f"{path.name}.lock")
        try:
            beside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _not_opened(path, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise Rejected(
                f"the journal {str(path)!r} is in use by another agent: stop that one, or name another journal"
            ) from error

    def release(self) -> None:
        os.close(self._fd)


def is_held(path: Path) -> bool:
    """Whether an agent has this journal."""
    try:
        fd = os.open(path.with_name(f"{path.name}.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def open_file(path: Path) -> sqlite3.Connection:
    """The journal for writing, made or brought up to date if need be."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # notes are not for everybody
    except OSError as error:
        raise _not_opened(path, error) from error
    db = _connect(path, "rw")
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            db.execute(f"PRAGMA {pragma}")
        version = _version(db, path)
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            db.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
    except sqlite3.DatabaseError as error:
        db.close()
        raise unusable(path, error) from error
    except Rejected:
        db.close()
        raise
    return db


def look_into(path: Path) -> sqlite3.Connection:
    """Somebody else's journal, as it is now."""
    if not path.exists():
        raise Rejected(f"there is no journal {str(path)!r}: no agent has run with it yet")
    db = _connect(path, "ro")
    try:
        if _version(db, path) < len(MIGRATIONS):
            raise Rejected(f"the journal {str(path)!r} is of an older forewarn: start the agent once, it brings it up")
    except Rejected:
        db.close()
        raise
    return db


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=5.0)
    except sqlite3.OperationalError as error:
        raise _not_opened(path, error) from error
    db.row_factory = sqlite3.Row
    return db


def _version(db: sqlite3.Connection, path: Path) -> int:
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise unusable(path, error) from error
    if version > len(MIGRATIONS):
        raise Rejected(f"the journal {str(path)!r} was written by a newer forewarn: use that one")
    return int(version)


def _not_opened(path: Path, error: Exception) -> Rejected:
    why = getattr(error, "strerror", None) or str(error)
    return Rejected(f"the journal {str(path)!r} cannot be opened ({why}): name another place with `state`")


def unusable(path: Path, error: sqlite3.DatabaseError) -> Rejected:
    """What is wrong with the place passes, or is mended there; what is wrong with the file is not."""
    if isinstance(error, sqlite3.OperationalError):
        return _not_opened(path, error)
    return Rejected(f"the journal {str(path)!r} is no journal ({error}): move it away and start again")
