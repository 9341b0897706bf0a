"""The store of the active control node: a SQLite copy whose writes are committed to the record first."""

# Two databases, one truth: the order of the commits.
#
# The invariants. What a caller was told is in the record. The copy is never ahead of the record. The copy, the log and
# the tables of the record have the same rows in the same order of groups.
#
# The record is PostgreSQL; every node has a copy, an ordinary SQLite store. The service reads the store in some 260
# places, on its event loop, and relies on answers within microseconds. That is why reads go to the copy. And the copy
# is exact for the node that holds the lease, since nobody else writes: version conflicts are found there, by the same
# code as on a single machine, and the record needs no serializable transactions.
#
# One group of writes, in the writer's thread:
#
#     copy:    BEGIN; run the writes; a write that conflicts is undone alone
#     copy:    read back the rows that have changed, write the new position
#     record:  fence, rows, log; COMMIT
#     copy:    COMMIT
#     answers, then subscribers
#
# The copy runs first, because only it can tell which writes conflict, and which numbers the rows get. The record
# commits first, because what is in the record cannot be taken back. The other way round, a crash would leave the copy
# ahead of the record, with rows that no other node will ever see. Answers come last. The rows are captured by triggers
# and read back, so that no statement exists in two dialects, and an autoincrement or a default is the same everywhere.
#
# The position (term, number and chained hash of the last group) is a row of the copy, written in the transaction of the
# group. So each copy knows exactly which groups it has, whatever happens to its process. The hash covers all groups
# before it: two nodes with the same hash have the same past, and a record that has another hash under a known number
# has lost something.
#
# What a crash leaves:
#
# - Before the COMMIT of the record: nothing anywhere. The copy rolls back.
# - Between the two COMMITs: the record has the group and the copy has not. Nobody was answered. The next start applies
#   it from the log; if the log does not reach back that far, the copy is built again from a snapshot.
# - After both: nothing to do. The caller may not have its answer; a request key makes its repetition harmless.
#
# If the copy cannot be committed after the record, this process must end (`failed`): it would go on deciding on rows
# that are older than what is true.
#
# The answer to COMMIT may be lost. It may have taken effect, and neither guess is allowed: "failed" would let the
# caller repeat it, "done" may be a lie. `_find_out` asks on a new connection. It reads the lease row with a lock, which
# waits for the old transaction if that is still running, and then looks up the number of the group in the log under
# this node's term: only this node writes in its term. Until there is an answer the writer waits, and so do all writes
# behind it; a caller gets Unavailable after WRITE_LIMIT_S, which does not mean that the write failed. If the record
# stays away while the service stops, the next start finds the group in the log, or does not.
#
# Only a connection that is lost at COMMIT is unknown. That is why `PostgresRecord.commit` first sends everything else
# and waits for its answer: a failure there is a certain one. The price is a second round trip for each group.
#
# A COMMIT that PostgreSQL reports as done may still not be on the standby, if somebody cancelled its wait: the server
# says so only in a warning. That counts as `NotReplicated`, and the process ends; whether the group survives is for the
# next holder to see.
#
# What stays out of the record: polls. Each node knows those that it has seen, and the last request of a scope is
# written once an hour. Nothing that was promised depends on them.
#
# What was tried or considered, and not kept:
#
# - Sending PostgreSQL the statements that ran on SQLite. Each would exist in two dialects, and values that the engines
#   make by themselves would differ.
# - One statement for each row, and a callback in Python for each row that changes. The driver and the interpreter cost
#   more than the rows; one statement for each table with an array for each column, and triggers that only note keys,
#   took their place.
# - Advisory locks for the lease. They belong to a session, say nothing to a node that has lost it, and do not pass a
#   pooler.

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Protocol

from forewarn.cluster.following import CopyFollower, CopyPosition, write_position
from forewarn.cluster.record import (
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
from forewarn.cluster.row_changes import ChangeCapture, encode_changes
from forewarn.store import queries, sqlite_file
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
        # Right before the write: a lease that is over must not even be tried.
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
        # Before it is sent: the server renews the lease at some time after this.
        sent_at = monotonic()
        self._commit_to_record(group)
        # From here on the record has the group: an error of the copy is no failure of the write.
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
