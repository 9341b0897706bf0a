"""The file of a SQLite store: recognize, create, migrate, connect, and detect its replacement.

SQLite keeps writing to a file that was moved or deleted; `StoreFileCheck` detects that before data is lost.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from forewarn.base.files import sync_to_disk
from forewarn.errors import Refused, Rejected, Unavailable
from forewarn.store.schema import APPLICATION_ID, REVISION, REVISIONS, metadata

MOVED_NAME = "moved-to"  # of the saved value that says where a store was moved
_SQLITE_MAGIC = b"SQLite format 3\x00"
_INCREMENTAL_VACUUM = 2  # the value of PRAGMA auto_vacuum
_BUSY_TIMEOUT_S = 5.0  # how long to wait for another program that has locked the file
_WRITER_PRAGMAS = (
    "journal_mode = WAL",
    "temp_store = MEMORY",  # keeps the pages of savepoints in memory: a third faster
    "wal_autocheckpoint = 4000",  # pages
    "journal_size_limit = 16777216",  # after a large transaction the log becomes small again
)


def connect(path: Path, *, mode: str) -> sqlite3.Connection:
    """Open a connection without implicit transactions, for any thread; raises sqlite3.Error."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open the connection of the writer thread to an existing file: WAL, and every commit synced to disk."""
    return _connect_with_pragmas(
        path,
        "synchronous = FULL",
        "fullfsync = ON",  # on macOS, fsync alone does not reach the disk
        *_WRITER_PRAGMAS,
    )


def connect_copy_writer(path: Path) -> sqlite3.Connection:
    """Open the connection that writes a copy of a record: WAL, synced only now and then."""
    # After a loss of power the copy is intact, but may be some groups behind; the log of the record has them.
    return _connect_with_pragmas(path, "synchronous = NORMAL", *_WRITER_PRAGMAS)


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a connection to an existing file for reads beside the writer; raises sqlite3.Error."""
    return _connect_with_pragmas(path, "query_only = ON")


def _connect_with_pragmas(path: Path, *pragmas: str) -> sqlite3.Connection:
    db = connect(path, mode="rw")  # also a reader of a WAL database writes to the shared memory file
    try:
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        db.close()
        raise
    return db


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a file that no process uses, for reads; raises sqlite3.Error."""
    has_log = path.with_name(path.name + "-wal").exists()
    return connect(path, mode="ro" if has_log else "ro&immutable=1")


def prepare_store_file(path: Path, *, as_copy: bool = False) -> None:
    """Create the store if it is missing or empty, or migrate it to the newest revision; durable on return."""
    with file_errors_as_unavailable(path, "opened"):
        if read_revision(path) != REVISION:
            migrate_store_file(path)
        _refuse_cluster_store(path, as_copy=as_copy)
        _enable_incremental_vacuum(path)
        sync_to_disk(path.parent)


def _refuse_cluster_store(path: Path, *, as_copy: bool) -> None:
    with closing(connect_read_only(path)) as db:
        moved = db.execute("SELECT value FROM saved WHERE name = ?", (MOVED_NAME,)).fetchone()
        is_copy = db.execute("SELECT EXISTS (SELECT 1 FROM record_position)").fetchone()[0]
    if moved is not None:
        raise Refused(
            f"the store {str(path)!r} was moved to {bytes(moved[0]).decode(errors='replace')} and is not used any "
            "more: start the service on that, or restore a backup"
        )
    if is_copy and not as_copy:
        raise Refused(
            f"the store {str(path)!r} is a copy of a record in PostgreSQL and is of no use without it: start the "
            "service on that, or give another path"
        )


def is_new_file(path: Path) -> bool:
    """Return whether a file is missing, empty or an SQLite database without tables; changes nothing."""
    try:
        if not path.exists() or (path.is_file() and path.stat().st_size == 0):
            return True
        with closing(connect_read_only(path)) as db:
            return not db.execute("SELECT EXISTS (SELECT 1 FROM sqlite_master)").fetchone()[0]
    except (OSError, sqlite3.Error):
        return False


def read_revision(path: Path) -> str | None:
    """Check a store and return its schema revision, such as "0004"; None if missing or without tables."""
    if not path.parent.is_dir():
        raise Rejected(
            f"the store {str(path)!r} cannot be created, its directory is missing: create {str(path.parent)!r} first"
        )
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return None
    if not path.is_file() or not _starts_like_sqlite(path):
        raise _foreign_file_error(path, "is not an SQLite database")
    try:
        with closing(connect_read_only(path)) as db:
            return _checked_revision(path, db)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise _damaged_file_error(path, str(error)) from error


def migrate_store_file(path: Path) -> None:
    """Create the file and tables, or migrate those of an older revision, in one transaction."""
    from forewarn.store import migrations  # here, because Alembic is slow to load and seldom needed

    with closing(connect(path, mode="rwc")) as db:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect in a file without tables
        try:
            migrations.migrate_to_newest(db)
        except DBAPIError as error:
            raise (error.orig or error) from error


def _enable_incremental_vacuum(path: Path) -> None:
    # Without enough space for the copy the store stays as it is, and the next start tries again.
    with closing(connect(path, mode="rw")) as db:
        if db.execute("PRAGMA auto_vacuum").fetchone()[0] != _INCREMENTAL_VACUUM:
            with suppress(sqlite3.OperationalError):
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
                db.execute("VACUUM")


@contextmanager
def file_errors_as_unavailable(path: Path, action: str) -> Iterator[None]:
    """Turn OSError and sqlite3.Error of the `with` block into Unavailable, whose message names `path`."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise store_unavailable(path, action, error) from error


def store_unavailable(path: Path, action: str, error: Exception) -> Unavailable:
    """Return (not raise) the Unavailable that says: the store at `path` cannot be `action` ("read") now."""
    remedy = "free some space on its disk" if is_disk_full(error) else "check the file and try again"
    return Unavailable(f"the store {str(path)!r} cannot be {action} now ({error}): {remedy}")


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error of SQLite, or of the system, says that a disk or a quota is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"


def _starts_like_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC


def _checked_revision(path: Path, db: sqlite3.Connection) -> str | None:
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables and application_id in (0, APPLICATION_ID):
        return None
    if application_id != APPLICATION_ID:
        raise _foreign_file_error(path, f"belongs to another program (application id {application_id})")
    revision = _known_revision(path, db, tables)
    findings = [finding for (finding,) in db.execute("PRAGMA quick_check(1)")]
    if findings != ["ok"]:
        raise _damaged_file_error(path, findings[0])
    missing = sorted(set(metadata.tables) - tables) if revision == REVISION else []
    if missing:
        raise _damaged_file_error(path, f"no table {', '.join(missing)}")
    return revision


def _known_revision(path: Path, db: sqlite3.Connection, tables: set[str]) -> str:
    if "alembic_version" not in tables:
        raise _damaged_file_error(path, "no table alembic_version")
    revision = "/".join(str(number) for (number,) in db.execute("SELECT version_num FROM alembic_version"))
    if revision not in REVISIONS:
        raise Rejected(
            f"the store {str(path)!r} has schema revision {revision}, unknown to this forewarn, which knows "
            f"{REVISION} and earlier; it was left as it is: use the forewarn that wrote it, or a later one"
        )
    return revision


def _foreign_file_error(path: Path, why: str) -> Rejected:
    return Rejected(
        f"the file {str(path)!r} {why} and cannot be the store; it was left as it is: "
        "give another path, or move the file away"
    )


class StoreDamaged(Rejected):
    """The file of a store is damaged, as `read_revision` found; the message says how, and what to do."""


def _damaged_file_error(path: Path, why: str) -> StoreDamaged:
    return StoreDamaged(
        f"the store {str(path)!r} is damaged ({why}) and was left as it is: "
        "restore a backup in its place, or move the file away to start empty"
    )


class StoreFileDisplaced(sqlite3.OperationalError):
    """The database or the log of an open store was moved, deleted or replaced; the message says which."""


FileIdentity = tuple[int, int]  # device and inode: they stay the same when a file is renamed


class StoreFileCheck:
    """Detects that the database or the log of an open store was moved, deleted or replaced, by device and inode."""

    def __init__(self, path: Path) -> None:
        self._files = (path, path.with_name(path.name + "-wal"))
        self._known: dict[Path, FileIdentity] = {}

    def check(self) -> None:
        """Raise StoreFileDisplaced if the database or its log is not the file that was found first."""
        for file in self._files:
            found = _file_identity(file)
            known = self._known.get(file)
            if known is None and found is not None:
                self._known[file] = found  # SQLite creates the log with the first write
            elif found != known:
                raise StoreFileDisplaced(f"{file.name} was moved, deleted or replaced while it is in use")

    def is_displaced(self) -> bool:
        """Return whether the database or its log is not the file that `check` found first; for any thread."""
        return any(_file_identity(file) != known for file, known in self._known.copy().items())


def _file_identity(file: Path) -> FileIdentity | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino
