"""The store of the active control node: a SQLite copy whose writes are committed to the record first.

In the writer's thread: the group runs on the copy (version conflicts are found there), the changed rows are committed
to the record under the term of the lease, then the copy is committed, and the callers get their answers. After a crash
in between, the copy is one group behind and the log has that group.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Protocol

from forewarn.store import queries, sqlite_file
from forewarn.store.following import CopyFollower, CopyPosition, write_position
from forewarn.store.record import (
    Deposed,
    LeaseRow,
    LogPruned,
    MustStop,
    OutcomeUnknown,
    RecordGroup,
    RecordUnavailable,
    SharedRecord,
    chain_hash,
)
from forewarn.store.row_changes import ChangeCapture, encode_changes
from forewarn.store.schema import REVISION
from forewarn.store.sqlite import SqliteStore
from forewarn.store.sqlite_file import StoreFileCheck
from forewarn.store.writer_thread import GroupReplication, WriterThread

WRITE_LIMIT_S = 5.0  # a caller waits for at most this long; the write may still be done later
_RETRY_S = 0.2  # between attempts to find out an unknown outcome


class LeaseGuard(Protocol):
    """What a replicated store needs to know about its node's lease; called on the writer's thread."""

    def check(self) -> None:
        """Raise RecordUnavailable while nothing may be written, Deposed if the lease is lost or released."""

    def renewed(self, sent_at: float) -> None:
        """Count a commit that has renewed the lease; `sent_at` is the monotonic time before it was sent."""

    def deposed(self, reason: str) -> None:
        """Mark the lease as lost, because another node has taken it; `reason` is a sentence for people."""


class RecordReplication(GroupReplication):
    """Commits the changed rows of each group of writes to the record, before the copy is committed."""

    # `on_stop` is called, once, on the writer's thread, if this process must end (MustStop); from then on every write
    # raises that error. A group without changed rows of replicated tables is committed to the copy alone.

    def __init__(
        self,
        db: sqlite3.Connection,
        record: SharedRecord,
        position: CopyPosition,
        lease: LeaseRow,
        *,
        guard: LeaseGuard,
        clock: Callable[[], float],
        on_stop: Callable[[MustStop], None],
    ) -> None:
        self._db = db
        self._record = record
        self._position = position
        self._term = lease.term
        self._guard = guard
        self._clock = clock
        self._on_stop = on_stop
        self._capture = ChangeCapture(db)
        self._is_copy_behind = False  # the record has a group that the copy has not committed yet
        self._stopped: MustStop | None = None
        self._is_closing = Event()

    @property
    def position(self) -> CopyPosition:
        """The last group that the record has, as far as this node knows."""
        return self._position

    @property
    def number(self) -> int:
        return self._position.number

    def begin(self) -> None:
        if self._stopped is not None:
            raise type(self._stopped)(str(self._stopped))
        self._capture.reset()

    def commit(self) -> None:
        """Commit the rows that have changed since `begin` to the record, if there are any; blocks."""
        # Also writes the new position to the copy, whose transaction the caller commits. If the answer is lost, waits
        # until the record says whether it has the group.
        changes = self._capture.changes()
        if not changes:
            return
        self._guard.check()
        seq = self._db.execute(queries.LAST_SEQ).fetchone()
        number, body = self._position.number + 1, encode_changes(changes)
        mark = chain_hash(self._position.hash, self._term, number, body)
        position = self._position._replace(term=self._term, number=number, hash=mark)
        write_position(self._db, position)
        group = RecordGroup(
            term=self._term,
            number=number,
            hash=mark,
            body=body,
            seq=int(seq[0]) if seq else 0,
            clock=self._clock(),
            changes=changes,
            revision=REVISION,
        )
        sent_at = monotonic()
        self._commit_to_record(group)
        self._is_copy_behind = True
        self._position = position
        self._guard.renewed(sent_at)

    def copied(self) -> None:
        self._is_copy_behind = False

    def failed(self, error: Exception) -> Exception:
        if self._is_copy_behind:
            stop = MustStop(
                f"the record has group {self.number}, but the copy could not be written ({error}): this control node "
                "must start again, and applies it then"
            )
            stop.__cause__ = error
            error = stop
        if isinstance(error, MustStop):
            self._stop(error)
        return error

    def close(self) -> None:
        """End the wait for an unknown outcome and a call to the record under way; closes no connection."""
        self._is_closing.set()
        self._record.abort()

    def _commit_to_record(self, group: RecordGroup) -> None:
        try:
            self._record.commit(group)
        except OutcomeUnknown as error:
            if not self._find_out(group):
                raise RecordUnavailable(f"nothing was saved: {error}") from error

    def _find_out(self, group: RecordGroup) -> bool:
        """Return whether a group whose COMMIT was not answered is in the record; waits until that is known."""
        while True:
            try:
                return self._record.was_committed(group.term, group.number)
            except LogPruned as error:
                raise MustStop(f"it is unknown whether group {group.number} was saved: {error}") from error
            except RecordUnavailable as error:
                if self._is_closing.wait(_RETRY_S):
                    raise MustStop(
                        f"the service stops before it is known whether group {group.number} was saved ({error})"
                    ) from error

    def _stop(self, error: MustStop) -> None:
        if self._stopped is not None:
            return
        self._stopped = error
        if isinstance(error, Deposed):
            self._guard.deposed(str(error))
        self._on_stop(error)


class ReplicatedStore(SqliteStore):
    """The `Store` of the active control node, shared with others through a record. `open_copy` opens it.

    It reads from this node's copy. A write is committed to the record first, and then to the copy. Polls are written to
    this copy alone, and `last_request_at` of a scope reaches the record once an hour.
    """

    _replication: RecordReplication
    _record: SharedRecord

    @classmethod
    def open_copy(
        cls,
        path: Path,
        record: SharedRecord,
        lease: LeaseRow,
        *,
        guard: LeaseGuard,
        clock: Callable[[], float],
        on_stop: Callable[[MustStop], None],
        name: str = "the copy",
    ) -> ReplicatedStore:
        """Bring the copy at `path` up to the lease that this node has taken, and return the store; blocks.

        `record` stays the caller's; the store has a connection of its own. Writes raise Unavailable while `guard` does
        not let them, and after WRITE_LIMIT_S without an answer, although they may be saved later. `on_stop` is called,
        once and on the writer's thread, if this process must end.
        """
        follower = CopyFollower(path, record, name)
        try:
            position = follower.follow_to(lease)
        finally:
            follower.close()
        with sqlite_file.file_errors_as_unavailable(path, "opened"), ExitStack() as undo:
            reader = sqlite_file.connect_reader(path)
            undo.callback(reader.close)
            db = sqlite_file.connect_copy_writer(path)
            undo.callback(db.close)
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the log, as in SqliteStore.open
            file_check = StoreFileCheck(path)
            file_check.check()
            own = record.connect()
            undo.callback(own.close)
            replication = RecordReplication(db, own, position, lease, guard=guard, clock=clock, on_stop=on_stop)
            writer = WriterThread(db, str(path), check=file_check.check, replication=replication, limit_s=WRITE_LIMIT_S)
            undo.pop_all()
        store = cls(path, reader=reader, writer=writer, file_check=file_check)
        store._replication, store._record = replication, own
        return store

    @property
    def position(self) -> CopyPosition:
        """The last group of writes in the record that this node has written, or found at start."""
        return self._replication.position

    @property
    def number(self) -> int:
        """The number of that group."""
        return self._replication.position.number

    async def close(self) -> None:
        """Finish the writes under way, and close the copy; may be called again. Does not release the lease."""
        # Waits as long as it is unknown whether the record has a write: `abandon` ends the wait. The next start finds
        # the write in the log.
        try:
            await super().close()
        finally:
            self._record.close()

    def abandon(self) -> None:
        """Keep `close` from waiting for a record that does not answer. Returns at once; for any thread."""
        self._replication.close()
