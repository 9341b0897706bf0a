"""Keeps a copy of a record in a SQLite store: applies the log, or builds the store from a snapshot.

A copy holds the term and number of the last group that it has, written in the same transaction as the rows. So after a
crash it is some groups behind at most, and the log has them. It is built again if the log does not reach back to it,
or if the record has another group under its number: then the record has lost what this copy has.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from forewarn.base.files import sync_to_disk
from forewarn.cluster.record import (
    LeaseRow,
    LogPruned,
    RecordGroup,
    RecordMismatch,
    RecordSnapshot,
    SharedRecord,
    describe_loss,
)
from forewarn.cluster.row_changes import apply_changes, set_last_seq, upsert_sql
from forewarn.errors import Refused
from forewarn.store import sqlite_file
from forewarn.store.schema import REVISION, REVISIONS
from forewarn.store.sqlite_file import StoreDamaged

_GROUPS_PER_READ = 200
_DATABASE_SUFFIXES = ("", "-wal", "-shm", "-journal")  # the database first: without it the others mean nothing
_READ_POSITION = "SELECT record_id, term, number, hash FROM record_position"
_FORGET_POSITION = "DELETE FROM record_position"
_ADD_POSITION = "INSERT INTO record_position (record_id, term, number, hash) VALUES (?, ?, ?, ?)"
_HAS_ROWS = "SELECT EXISTS (SELECT 1 FROM scopes) OR EXISTS (SELECT 1 FROM hosts) OR EXISTS (SELECT 1 FROM history)"


class CopyPosition(NamedTuple):
    """How far a copy of a record (PostgreSQL) is: the last group of writes in it. Stored in the copy."""

    record_id: str  # the id of the record; another one each time that is made, moved or renewed
    term: int  # the term of the group
    number: int  # the number of the group; 0: before the first one
    hash: str = ""  # the hash of the group, over all groups up to it


class RebuildReason(StrEnum):
    """Why a copy of a record was built, for the first time or again; the values are clauses for people."""

    MISSING = "there was no copy"
    DAMAGED = "the file was damaged"
    OTHER_RECORD = "the copy was of another record, or from before its epochs were renewed"
    TOO_OLD = "the log did not reach back to the copy"
    LOST_GROUPS = "the copy had groups that the record has lost"


def read_position(db: sqlite3.Connection) -> CopyPosition | None:
    """Return the last group of its record that a copy has; None if this store is not a copy."""
    row = db.execute(_READ_POSITION).fetchone()
    return CopyPosition(*row) if row else None


def write_position(db: sqlite3.Connection, position: CopyPosition) -> None:
    """Write the term and number of the last group that a copy has; the caller commits.

    Call it in the transaction that writes the rows of the group. Does nothing in a store that is not a copy.
    """
    db.execute("UPDATE record_position SET term = ?, number = ?, hash = ?", position[1:])


def forget_position(path: Path) -> None:
    """Turn a copy of a record into an ordinary store, which can be opened without the record."""
    with closing(sqlite_file.connect(path, mode="rw")) as db:
        db.execute("PRAGMA synchronous = FULL")
        db.execute(_FORGET_POSITION)
    sync_to_disk(path)


class CopyFollower:
    """A copy of a record (PostgreSQL) in a SQLite file that follows it. No other connection may be open.

    The constructor opens the copy at `path`, and builds it if it is missing, empty or damaged; `follow` brings it up to
    date. `rebuilt` has the reason for each time that the copy was built, oldest first.
    """

    def __init__(self, path: Path, record: SharedRecord, name: str = "the copy") -> None:
        self._path = path
        self._name = name  # whose copy it is, for people
        self._record = record
        self.rebuilt: list[RebuildReason] = []  # why the copy was built, each time
        self._found = 0  # the number of the last group in the record, as it was read last
        self._opened: sqlite3.Connection | None = None
        with sqlite_file.file_errors_as_unavailable(path, "opened"):
            self._open()

    @property
    def position(self) -> CopyPosition:
        """The last group of the record that the copy has; read from the file each time."""
        found = read_position(self._db)
        assert found is not None
        return found

    def follow(self) -> LeaseRow:
        """Bring the copy up to date with the record; return the lease as it was read before that.

        Applies all groups of writes in the record's log that the copy lacks. If it cannot continue from there, it
        builds the copy again from a snapshot and appends the reason to `rebuilt`; if the record has lost groups that
        the copy had, it first reports that to the record. Opens a closed copy again. Blocks. Groups that were applied
        before an error stay in the copy; after a failed rebuild it is closed until the next call.
        """
        lease = self._record.read_lease()
        self._found = lease.number
        with sqlite_file.file_errors_as_unavailable(self._path, "written"):
            if self._opened is None:  # an earlier attempt to build it has failed
                self._open()
            position = self.position
            # Another record, or this one with new epochs: its numbers say nothing about ours.
            if position.record_id != lease.record_id:
                self._rebuild(RebuildReason.OTHER_RECORD)
            # More than the record has: it was promoted or restored without our last groups.
            elif position.number > lease.number:
                self._rebuild(RebuildReason.LOST_GROUPS)
            else:
                self._apply_log(position)
        return lease

    def follow_to(self, lease: LeaseRow) -> CopyPosition:
        """Follow once, and check that the copy ends at the last group of a lease; return its position."""
        self.follow()
        position = self.position
        # Nobody writes while we hold the lease, so a difference means that our copy or the record is not what we think.
        if (position.record_id, position.number) != (lease.record_id, lease.number):
            raise RecordMismatch(
                f"the copy {str(self._path)!r} is at group {position.number}, although the lease was taken at group "
                f"{lease.number}"
            )
        return position

    def load(self, name: str) -> bytes | None:
        row = self._db.execute("SELECT value FROM saved WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """Close the copy's file, not the record. Closing twice is harmless; `follow` opens the file again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._opened is None:
            raise sqlite3.ProgrammingError("the copy is closed")
        return self._opened

    def _open(self) -> None:
        reason = _reason_to_rebuild(self._path)
        if reason is not None:
            build_copy(self._path, self._record)
            self.rebuilt.append(reason)
        sqlite_file.prepare_store_file(self._path, as_copy=True)
        self._opened = sqlite_file.connect_copy_writer(self._path)

    def _apply_log(self, position: CopyPosition) -> None:
        while True:
            try:
                # In parts, each its own transaction of the copy: a crash leaves a copy that is only further behind.
                groups = self._record.log_after(position.number, _GROUPS_PER_READ)
            except LogPruned:
                self._rebuild(RebuildReason.TOO_OLD)
                return
            # After the groups were read: a record that has lost groups has others under their numbers by then.
            mark = self._record.group_mark(position.number)
            if mark != (position.term, position.hash):
                self._rebuild(RebuildReason.TOO_OLD if mark is None else RebuildReason.LOST_GROUPS)
                return
            if not groups:
                return
            position = self._apply_groups(position.record_id, groups)

    def _apply_groups(self, record_id: str, groups: list[RecordGroup]) -> CopyPosition:
        last = groups[-1]
        position = CopyPosition(record_id, last.term, last.number, last.hash)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for group in groups:
                _check_revision(group.revision)
                apply_changes(self._db, group.changes)
            set_last_seq(self._db, last.seq)
            write_position(self._db, position)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return position

    def _rebuild(self, reason: RebuildReason) -> None:
        if reason is RebuildReason.LOST_GROUPS:
            position = self.position
            lost = describe_loss(self._name, known=position.number, found=self._found)
            self._record.report_loss(position.record_id, lost)  # before the copy that shows it is gone
        self.close()
        build_copy(self._path, self._record)
        self.rebuilt.append(reason)
        self._opened = sqlite_file.connect_copy_writer(self._path)


def _reason_to_rebuild(path: Path) -> RebuildReason | None:
    """Return why the file cannot be followed from; a store that is not a copy is refused, so never overwritten."""
    if sqlite_file.is_new_file(path):
        return RebuildReason.MISSING
    try:
        if sqlite_file.read_revision(path) != REVISION:
            sqlite_file.migrate_store_file(path)
    except StoreDamaged:
        return RebuildReason.DAMAGED
    with closing(sqlite_file.connect(path, mode="rw")) as db:
        # It says that it is a copy; only then may it be thrown away and built again.
        if read_position(db) is not None:
            return None
        # A store of its own, perhaps the only one that somebody has: never overwrite it.
        if db.execute(_HAS_ROWS).fetchone()[0]:
            raise Refused(
                f"the store {str(path)!r} is not a copy of a record and was left as it is: move it away, or copy it "
                "to the record with `forewarn store copy`"
            )
    return RebuildReason.MISSING


def build_copy(path: Path, record: SharedRecord) -> CopyPosition:
    """Build a copy of the record in place of the file at `path`, durably; return the copy's position.

    The copy is written to a file beside `path`, which then replaces any store there. Only a damaged store is kept, as
    NAME.damaged. Polls of an earlier copy are lost. An error before the replacement leaves everything as it was.
    """
    partial = path.with_name(path.name + ".building")
    _delete_database(partial)
    try:
        with record.snapshot() as snapshot:
            _check_revision(snapshot.revision)
            sqlite_file.migrate_store_file(partial)
            with closing(sqlite_file.connect(partial, mode="rw")) as db:
                position = _fill(db, snapshot)
        sync_to_disk(partial)
        # Only now, when the new one is complete and on disk.
        _set_aside_if_damaged(path)
        _delete_database(path)
        partial.rename(path)
    except BaseException:
        with suppress(OSError):  # a full disk must not stay full because of this attempt
            _delete_database(partial)
        raise
    sync_to_disk(path.parent)
    return position


def _fill(db: sqlite3.Connection, snapshot: RecordSnapshot) -> CopyPosition:
    position = CopyPosition(snapshot.record_id, snapshot.term, snapshot.number, snapshot.hash)
    db.execute("PRAGMA synchronous = OFF")  # the file is synced once, when it is complete
    db.execute("BEGIN IMMEDIATE")
    for table, rows in snapshot.tables:
        if rows:
            db.executemany(upsert_sql(table, len(rows[0]), "?"), rows)
    set_last_seq(db, snapshot.seq)
    db.execute(_FORGET_POSITION)
    db.execute(_ADD_POSITION, position)
    db.execute("COMMIT")
    return position


def _check_revision(revision: str) -> None:
    if revision not in REVISIONS:
        raise Refused(
            f"the record has rows of schema revision {revision}, unknown to this forewarn, which knows {REVISION} and "
            "earlier: use the forewarn that wrote them, or a later one"
        )


def _set_aside_if_damaged(path: Path) -> None:
    try:
        if path.exists():
            sqlite_file.read_revision(path)
    except StoreDamaged:
        path.rename(path.with_name(path.name + ".damaged"))


def _delete_database(path: Path) -> None:
    for suffix in _DATABASE_SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
