"""Backs up a store to one file and restores it. A restore moves the old store aside."""

from __future__ import annotations

import itertools
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.store import sqlite_file

_DATABASE_SUFFIXES = ("-wal", "-shm", "-journal", "")  # a database, and what SQLite keeps beside it


def write_backup(source: Path, path: Path) -> None:
    """Copy the store at `source`, in use or not, to the new file `path`."""
    if path.exists():
        raise Refused(f"the backup {str(path)!r} exists already and is not overwritten: give another name")
    with sqlite_file.file_errors_as_unavailable(path, "written"):
        partial = _new_file_beside(path)
        _copy(sqlite_file.connect(source, mode="ro"), partial)
        _publish(partial, path)
        sqlite_file.sync_to_disk(path.parent)


def restore_backup(source: Path, target: Path, *, now: float) -> Path | None:
    """Put the backup `source` where the store `target` is; where what was there has been moved to, if anything.

    Nobody may use either meanwhile. Every scope gets an epoch that none has had, so that no tag which a VM still
    holds of the lost future ever matches (spec §4.3): later than all known here, and than the second `now`, because
    a future that was lost with its disk, or by an earlier restore of the same backup, is not known here.
    """
    with sqlite_file.file_errors_as_unavailable(target, "restored"):
        if sqlite_file.read_revision(source) is None:
            raise Rejected(f"the backup {str(source)!r} holds no store: give the file that a backup wrote")
        partial = _new_file_beside(target)
        _copy(sqlite_file.connect_read_only(source), partial)
        _renew_epochs(partial, max(_last_epoch(partial), _last_epoch(target), int(now)) + 1)
        aside = _move_aside(target)
        partial.rename(target)
        sqlite_file.sync_to_disk(target.parent)
    return aside


def _new_file_beside(path: Path) -> Path:
    """Of our own: two copies made at once do not meet in it, and nobody else's file is taken for it."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    return Path(name)


def _publish(partial: Path, path: Path) -> None:
    """Under its name at last, unless another backup has got it meanwhile."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise Refused(f"the backup {str(path)!r} exists already and is not overwritten: give another name") from None
    finally:
        partial.unlink(missing_ok=True)


def _copy(original: sqlite3.Connection, partial: Path) -> None:
    """All of it, on the disk, or nothing: a half copy would fill a disk that is full already."""
    try:
        with closing(original), closing(sqlite_file.connect(partial, mode="rwc")) as copy:
            original.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it
        sqlite_file.sync_to_disk(partial)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _renew_epochs(path: Path, epoch: int) -> None:
    with closing(sqlite_file.connect(path, mode="rw")) as db:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("UPDATE scopes SET epoch = ?", (epoch,))
    sqlite_file.sync_to_disk(path)


def _last_epoch(path: Path) -> int:
    """The latest epoch in a store; 0 where there is none, or it cannot be read any more."""
    try:
        if sqlite_file.read_revision(path) is None:
            return 0
        with closing(sqlite_file.connect_read_only(path)) as db:
            return int(db.execute("SELECT coalesce(max(epoch), 0) FROM scopes").fetchone()[0])
    except (ForewarnError, OSError, sqlite3.Error):
        return 0


def _move_aside(target: Path) -> Path | None:
    """Also what lies beside it: a stray log would be played into whatever database takes the name."""
    suffixes = [suffix for suffix in _DATABASE_SUFFIXES if _with_suffix(target, suffix).exists()]
    names = (f"{target.name}.before-restore-{number}" for number in itertools.count(1))
    aside = next(path for path in map(target.with_name, names) if not path.exists())
    for suffix in suffixes:
        _with_suffix(target, suffix).rename(_with_suffix(aside, suffix))
    return aside if suffixes else None


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
