"""Backs up a store to one file and restores it. A restore moves the old store aside."""

from __future__ import annotations

import itertools
import os
import sqlite3
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from forewarn.base.files import sync_to_disk
from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.store import sqlite_file
from forewarn.store.commit_mark import MARK_SUFFIX, HighestNumbers, begin_new_epoch, highest_numbers

# The database last, after the files beside it: SQLite would use its log for another database.
_DATABASE_SUFFIXES = ("-wal", "-shm", "-journal", MARK_SUFFIX, "")
_ALL_PAGES = -1  # in one step, so that the writer's commits do not make the copy start again
_PAGES_PER_STEP = 256  # of a connection that the event loop reads with: the loop waits for one step at most


def write_backup(source: Path, path: Path, original: sqlite3.Connection | None = None) -> None:
    """Copy the store at `source`, which may be in use, to the new file `path`; durable on return.

    `original` is an open connection to copy from, for a store whose file is no longer at `source`. Call it in a thread.
    """
    if path.exists():
        raise Refused(f"the backup {str(path)!r} exists already and is not overwritten: give another name")
    with sqlite_file.file_errors_as_unavailable(path, "written"):
        with ExitStack() as stack:
            if original is None:
                with sqlite_file.file_errors_as_unavailable(source, "read"):
                    original = stack.enter_context(closing(sqlite_file.connect(source, mode="ro")))
                pages = _ALL_PAGES
            else:
                pages = _PAGES_PER_STEP
            # In the same directory, so that the last step is a rename and never a copy.
            partial = _new_file_beside(path)
            _copy(original, partial, pages=pages)
        _publish(partial, path)
        sync_to_disk(path.parent)


def restore_backup(source: Path, target: Path, *, now: float) -> Path | None:
    """Restore the backup `source` as the store `target`; return where the old store was moved, or None.

    A file at `target`, even a damaged one, is moved to `NAME.before-restore-N` beside it; None if there was none.
    `source` stays as it is. No process may use either file meanwhile. Blocks; durable on return.

    Every scope gets a new epoch (`begin_new_epoch`), above those of both files and `now` (real time): those of a store
    that was lost with its disk, or by an earlier restore of this backup, are not known here. The backup of a copy of a
    record (PostgreSQL), or of a store that was moved to one, becomes a store of its own.
    """
    with sqlite_file.file_errors_as_unavailable(target, "restored"):
        if sqlite_file.read_revision(source) is None:
            raise Rejected(f"the file {str(source)!r} is not a backup of a store: give a file that a backup wrote")
        partial = _new_file_beside(target)
        with closing(sqlite_file.connect_read_only(source)) as original:
            _copy(original, partial)
        with closing(sqlite_file.connect(partial, mode="rw")) as db, db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN")
            begin_new_epoch(
                db.execute, now=now, reason=f"the backup {str(source)!r} was restored", above=_last_shown(target)
            )
        _forget_record(partial)
        # As late as possible: until here an error leaves the old store in place.
        aside = _move_aside(target)
        partial.rename(target)
        sync_to_disk(target.parent)
    return aside


def _new_file_beside(path: Path) -> Path:
    """Create an empty file with a unique name, so that concurrent copies do not share it."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    return Path(name)


def _publish(partial: Path, path: Path) -> None:
    """Give the finished file its name, unless another backup took the name meanwhile."""
    try:
        # A link fails if the name is taken; a rename would overwrite the other backup.
        os.link(partial, path)
    except FileExistsError:
        raise Refused(f"the backup {str(path)!r} exists already and is not overwritten: give another name") from None
    finally:
        partial.unlink(missing_ok=True)


def _copy(original: sqlite3.Connection, partial: Path, *, pages: int = _ALL_PAGES) -> None:
    """Copy all of it and sync it to disk, or remove the partial copy, which would fill a full disk."""
    try:
        with closing(sqlite_file.connect(partial, mode="rwc")) as copy:
            original.backup(copy, pages=pages)
            copy.execute("PRAGMA journal_mode = DELETE")  # so that the backup is one file
        sync_to_disk(partial)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _forget_record(path: Path) -> None:
    """Make the backup of a copy of a record, or of a store that was moved to one, a store of its own."""
    with closing(sqlite_file.connect(path, mode="rw")) as db:
        if not db.execute("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'record_position')").fetchone()[0]:
            return  # of a release without records
        db.execute("DELETE FROM record_position")
        db.execute("DELETE FROM saved WHERE name = ?", (sqlite_file.MOVED_NAME,))
    sync_to_disk(path)


def _last_shown(path: Path) -> HighestNumbers:
    """Return the highest epoch and incarnation in a store; zeros if there is no store or it is unreadable."""
    try:
        if sqlite_file.read_revision(path) is None:
            return HighestNumbers()
        with closing(sqlite_file.connect_read_only(path)) as db:
            return highest_numbers(db.execute)
    except (ForewarnError, OSError, sqlite3.Error):
        return HighestNumbers()


def _move_aside(target: Path) -> Path | None:
    """Rename the store and its log; return the store's new path, or None if there was at most a log."""
    # SQLite would apply a log left behind to the restored database.
    suffixes = [suffix for suffix in _DATABASE_SUFFIXES if _with_suffix(target, suffix).exists()]
    names = (f"{target.name}.before-restore-{number}" for number in itertools.count(1))
    aside = next(path for path in map(target.with_name, names) if not _any_file_exists(path))
    for suffix in suffixes:
        _with_suffix(target, suffix).rename(_with_suffix(aside, suffix))
    return aside if "" in suffixes else None


def _any_file_exists(path: Path) -> bool:
    return any(_with_suffix(path, suffix).exists() for suffix in _DATABASE_SUFFIXES)


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
