"""A store copied to one file, and put back in place. What is replaced is moved aside, never deleted."""

from __future__ import annotations

import itertools
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.store import file

_SUFFIXES = ("-wal", "-shm", "-journal", "")  # a database, and what SQLite keeps beside it


def back_up(source: Path, path: Path) -> None:
    """Copy the store at `source`, in use or not, to the new file `path`."""
    if path.exists():
        raise Refused(f"the backup {str(path)!r} exists already and is not overwritten: give another name")
    with file.translated(path, "written"):
        partial = _new_file_beside(path)
        _copy(file.connect(source, mode="ro"), partial)
        _publish(partial, path)
        file.sync(path.parent)


def restore(source: Path, target: Path, *, now: float) -> Path | None:
    """Put the backup `source` where the store `target` is; where what was there has been moved to, if anything.

    Nobody may use either meanwhile. Every scope gets an epoch that none has had, so that no tag which a VM still
    holds of the lost future ever matches (spec §4.3): later than all known here, and than the second `now`, because
    a future that was lost with its disk, or by an earlier restore of the same backup, is not known here.
    """
    with file.translated(target, "restored"):
        if file.examine(source) is None:
            raise Rejected(f"the backup {str(source)!r} holds no store: give the file that a backup wrote")
        partial = _new_file_beside(target)
        _copy(file.connect_unused(source), partial)
        _renew_epochs(partial, max(_last_epoch(partial), _last_epoch(target), int(now)) + 1)
        aside = _move_aside(target)
        partial.rename(target)
        file.sync(target.parent)
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
        with closing(original), closing(file.connect(partial, mode="rwc")) as copy:
            original.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it
        file.sync(partial)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _renew_epochs(path: Path, epoch: int) -> None:
    with closing(file.connect(path, mode="rw")) as db:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("UPDATE scopes SET epoch = ?", (epoch,))
    file.sync(path)


def _last_epoch(path: Path) -> int:
    """The latest epoch in a store; 0 where there is none, or it cannot be read any more."""
    try:
        if file.examine(path) is None:
            return 0
        with closing(file.connect_unused(path)) as db:
            return int(db.execute("SELECT coalesce(max(epoch), 0) FROM scopes").fetchone()[0])
    except (ForewarnError, OSError, sqlite3.Error):
        return 0


def _move_aside(target: Path) -> Path | None:
    """Also what lies beside it: a stray log would be played into whatever database takes the name."""
    suffixes = [suffix for suffix in _SUFFIXES if _with_suffix(target, suffix).exists()]
    names = (f"{target.name}.before-restore-{number}" for number in itertools.count(1))
    aside = next(path for path in map(target.with_name, names) if not path.exists())
    for suffix in suffixes:
        _with_suffix(target, suffix).rename(_with_suffix(aside, suffix))
    return aside if suffixes else None


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
