"""The writer thread of a SQLite store: commits all waiting writes in one transaction (group commit).

A write that fails for its own reasons (a Conflict) is rolled back alone: after a failure the group is repeated with
savepoints. A file error rolls back the whole group; each of its writes gets Unavailable. The next group starts fresh.
A store that is a copy of a record commits each group there first (`GroupReplication`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from itertools import groupby
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

from forewarn.errors import Rejected, Unavailable
from forewarn.store.commit_mark import CommitMark
from forewarn.store.sqlite_file import StoreFileDisplaced

Result = TypeVar("Result")


# How long a group of writes to a record waits for more writes.
#
# A commit to a record takes nearly as long for one write as for many: the time of its round trips, and of the disks of
# two servers. Callers that were just answered often write again: VMs that approve one after the other, a reconciler
# that starts their events. If the next group does not wait for them, those that were queued meanwhile commit first, and
# each group has only a part of the callers.

_FROM_CALLERS = 8  # fewer are never waited for
_MAX_WAIT_S = 0.1  # also after a commit that took longer, such as one that waited for a server
_MAX_PAUSE = 16  # groups


class GroupGathering:
    """Decides how long a group of writes waits, before its commit, for the callers of the group before it.

    A group waits until it has 7/8 of the writes that were under way when the group before was answered, at most as long
    as the commit of that group took, and never longer than 0.1 s. Fewer than 8 writes are never waited for. If the
    callers did not come back, the next group does not wait; if that happens again and again, the next 2, 4, 8 and at
    most 16 groups do not wait. It only computes. Times are monotonic.
    """

    def __init__(self) -> None:
        self._last_size = 0  # writes in the last group
        self._wait_until = 0.0
        self._expected: int | None = None  # writes that were under way when it was answered; None: not known yet
        self._has_waited = False  # the group that is next
        self._pause = 0  # groups that do not wait
        self._next_pause = 1

    def wait_s(self, queued: int, now: float) -> float:
        """Return how many seconds a group of `queued` writes should wait for another write; 0.0 for none."""
        if self._expected is None:
            self._expected = self._last_size + queued
        if self._pause or self._expected < _FROM_CALLERS or self._has_enough(queued):
            return 0.0
        wait_s = max(0.0, self._wait_until - now)
        self._has_waited |= wait_s > 0
        return wait_s

    def answered(self, size: int, began_at: float, now: float) -> None:
        """Note that a group of `size` writes was answered now; the next group waits for its callers."""
        if self._pause:
            self._pause -= 1
        elif self._has_waited and self._has_enough(size):
            self._next_pause = 1
        elif self._has_waited:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _MAX_PAUSE)
        self._last_size, self._expected, self._has_waited = size, None, False
        self._wait_until = now + min(now - began_at, _MAX_WAIT_S)

    def _has_enough(self, size: int) -> bool:
        """Whether most of the expected writes are there: some callers always end."""
        return self._expected is not None and size >= self._expected - self._expected // 8


MAX_GROUP_SIZE = 512  # writes in one transaction: limits how long the first of them waits
_MAX_QUEUED_TOGETHER = MAX_GROUP_SIZE // 2
_MANY_ROWS = 1000  # a write of more rows, such as a change of a whole fleet, has a longer limit
_ROWS_PER_S = 1000  # that a slow record still writes
WriteOutcome = tuple[Any, BaseException | None]  # result, or error


class _WriteLimit:
    """Gives up writes that were queued together, `limit_s` after the first of them: one timer for all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, store: str) -> None:
        self.limit_s, self._store = limit_s, store
        self._futures: list[asyncio.Future[Any]] = []
        self._answered = 0
        self._timer = loop.call_later(limit_s, self._give_up)

    def add(self, future: asyncio.Future[Any]) -> None:
        self._futures.append(future)

    def count_answer(self) -> None:
        """Called for each write that was done or has failed; the last one ends the timer."""
        self._answered += 1
        if self._answered == len(self._futures):
            self._timer.cancel()

    def _give_up(self) -> None:
        for future in self._futures:
            if not future.done():
                future.set_exception(
                    Unavailable(
                        f"the store {self._store!r} has not confirmed a write for {self.limit_s:g} s, and may still "
                        "save it: check whether it did before you try again"
                    )
                )


class _WriteJob(NamedTuple):
    write: Callable[[sqlite3.Connection], Any]
    on_commit: Callable[[Any], None] | None
    future: asyncio.Future[Any]
    limit: _WriteLimit | None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.future.get_loop()


class _DisplacedDuringWrite(StoreFileDisplaced):
    """The file was moved, deleted or replaced during a group of writes: their outcome is not known."""


class GroupReplication(Protocol):
    """Commits each group of writes to a record (PostgreSQL) before the copy is committed."""

    @property
    def number(self) -> int:
        """The number of the last group that the record has; it stays the same after a group without changes."""

    def begin(self) -> None:
        """Prepare for the next group; called after the BEGIN of the copy."""

    def commit(self) -> None:
        """Commit to the record what has changed since `begin`; called before the COMMIT of the copy."""

    def copied(self) -> None:
        """Note that the copy has the group that the record has; called after the COMMIT of the copy."""

    def failed(self, error: Exception) -> Exception:
        """Return the error that the writes of a group get; called with the failure, after the copy's rollback.

        A failure after `commit` means that the record has the group and the copy has not.
        """


class WriterThread:
    """A thread that runs queued writes on the connection `db`, which nothing else may use.

    The constructor starts it. Open `db` with check_same_thread=False and isolation_level=None. `name` is how messages
    call the store; `check` runs before and after each group of writes, and raises if the file was replaced. The
    attribute `failures` counts the writes that failed because of the file or the record. Writes are done in the order
    of the calls. With `replication`, `db` is a copy; without, `mark` shows at the next start whether writes were lost.
    A write that is not done after `limit_s` (None: no limit) raises Unavailable, although it may be done later. End it
    with `finish`, then `close`.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        name: str,
        *,
        check: Callable[[], None] = lambda: None,
        replication: GroupReplication | None = None,
        mark: CommitMark | None = None,
        limit_s: float | None = None,
    ) -> None:
        self._db = db
        self._name = name
        self._check = check
        self._replication = replication
        self._mark = mark
        self._limit_s = limit_s
        self._unqueued: list[_WriteJob] = []  # of the current iteration of the event loop
        self._queues_on: asyncio.AbstractEventLoop | None = None  # the loop that will call `_queue_writes`
        self._limit: _WriteLimit | None = None  # of the writes in `_unqueued`
        self._queue: SimpleQueue[list[_WriteJob] | None] = SimpleQueue()
        self._gathering = GroupGathering()  # without a record, no group waits
        self._is_open = True
        self.failures = 0  # writes that failed because of the file or the record
        self._thread = Thread(target=self._run, name=f"writer of {name}", daemon=True)
        self._thread.start()

    async def write(
        self,
        write: Callable[[sqlite3.Connection], Result],
        on_commit: Callable[[Result], None] | None = None,
        *,
        rows: int = 1,
    ) -> Result:
        """Run `write` on the thread, with its connection and in a transaction; return its result once durable.

        `write` may run several times, after a rollback because of another write: it must change only the database.
        `on_commit` is called with the result before this returns, on the event loop, in commit order, even if the
        caller was cancelled. `rows` is about how many it writes: many have more time. After an error nothing of this
        write is stored, unless it says that it may be saved, or that the process must end (MustStop).
        """
        if not self._is_open:
            raise Unavailable(f"the store {self._name!r} is closed and accepts no writes: open it again")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        # The thread gets all writes of one iteration of the event loop together, so that one transaction has them all.
        if self._queues_on is not loop:  # an earlier event loop may have ended before it queued its writes
            self._queues_on = loop
            loop.call_soon(self._queue_writes)
            if self._limit_s is not None:
                self._limit = _WriteLimit(loop, self._limit_s, self._name)
        limit = self._limit
        if limit is not None:
            if rows > _MANY_ROWS:
                limit = _WriteLimit(loop, limit.limit_s + rows // _ROWS_PER_S, self._name)
            limit.add(future)
        self._unqueued.append(_WriteJob(write, on_commit, future, limit))
        result: Result = await future
        return result

    async def finish(self) -> None:
        """Do the queued writes and end the thread; later writes raise Unavailable. May be called again."""
        if self._is_open:
            self._is_open = False
            self._queue_writes()
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def close(self) -> None:
        """Close the connection; call `finish` first. Blocks while SQLite applies the log. May be called twice."""
        self._db.close()
        if self._mark is not None:
            self._mark.close()

    def _queue_writes(self) -> None:
        self._queues_on = None
        jobs, self._unqueued = self._unqueued, []
        for at in range(0, len(jobs), _MAX_QUEUED_TOGETHER):
            self._queue.put(jobs[at : at + _MAX_QUEUED_TOGETHER])

    def _run(self) -> None:
        while jobs := self._take_jobs():
            began_at, number = monotonic(), self._record_number
            outcomes = self._commit_group(jobs)
            self.failures += sum(isinstance(error, Unavailable) for _, error in outcomes)
            _answer_jobs(jobs, outcomes)
            if self._record_number != number:
                self._gathering.answered(len(jobs), began_at, monotonic())

    @property
    def _record_number(self) -> int:
        return 0 if self._replication is None else self._replication.number

    def _take_jobs(self) -> list[_WriteJob]:
        """Wait for a write and return all that are queued; [] after `finish`."""
        jobs: list[_WriteJob] = []
        queued = self._queue.get()
        while queued is not None:
            jobs += queued
            if len(jobs) > MAX_GROUP_SIZE - _MAX_QUEUED_TOGETHER:
                return jobs  # more might be too many
            queued = self._next_jobs(len(jobs))
            if queued == []:
                return jobs
        if jobs:
            self._queue.put(None)  # ends the thread after these jobs
        return jobs

    def _next_jobs(self, taken: int) -> list[_WriteJob] | None:
        """Return more jobs for a group that has `taken` already, [] if there are none; None after `finish`."""
        try:
            return self._queue.get_nowait()
        except Empty:
            wait_s = 0.0 if self._replication is None else self._gathering.wait_s(taken, monotonic())
        try:
            return self._queue.get(timeout=wait_s) if wait_s > 0 else []
        except Empty:
            return []

    def _commit_group(self, jobs: list[_WriteJob]) -> list[WriteOutcome]:
        try:
            return self._in_transaction(lambda: [(job.write(self._db), None) for job in jobs])
        except Exception as error:
            failure = self._roll_back_after(error)
            # The disk or the record has failed, not a write: repeating it would fail again.
            if _is_file_error(failure) or isinstance(failure, Unavailable):
                return [(None, self._unavailable(failure)) for _ in jobs]
        try:
            # Savepoints only now: nearly every group goes through without, and they cost.
            return self._in_transaction(lambda: [self._write_in_savepoint(job) for job in jobs])
        except Exception as error:
            failure = self._roll_back_after(error)
        # It does not say which row: find out by committing each write alone.
        if isinstance(failure, Rejected):  # by the record
            return [(None, failure)] if len(jobs) == 1 else [self._commit_group([job])[0] for job in jobs]
        return [(None, self._unavailable(failure)) for _ in jobs]

    def _in_transaction(self, write_all: Callable[[], list[WriteOutcome]]) -> list[WriteOutcome]:
        self._check()
        self._db.execute("BEGIN IMMEDIATE")
        if self._replication is not None:
            self._replication.begin()
        # A group without a change needs no new mark.
        changes = self._db.total_changes
        outcomes = write_all()
        if self._replication is not None:
            self._replication.commit()
        mark = self._mark if self._db.total_changes != changes else None
        number = 0 if mark is None else mark.count(self._db)
        self._db.execute("COMMIT")
        if mark is not None:
            # After the COMMIT and before the answers, see `commit_mark`.
            mark.committed(number)
        self._check_after_commit()
        if self._replication is not None:
            self._replication.copied()
        return outcomes

    def _check_after_commit(self) -> None:
        """Check the file again: a COMMIT to a file that a restart does not find must not be acknowledged."""
        # It may be saved all the same, if somebody puts the file back.
        try:
            self._check()
        except StoreFileDisplaced as error:
            raise _DisplacedDuringWrite(str(error)) from error

    def _roll_back_after(self, error: Exception) -> Exception:
        self._roll_back()
        return error if self._replication is None else self._replication.failed(error)

    def _write_in_savepoint(self, job: _WriteJob) -> WriteOutcome:
        self._db.execute("SAVEPOINT attempt")
        try:
            outcome: WriteOutcome = (job.write(self._db), None)
        except Exception as error:
            if _is_file_error(error):
                raise
            self._db.execute("ROLLBACK TO attempt")
            outcome = (None, error)
        self._db.execute("RELEASE attempt")
        return outcome

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the next BEGIN fails too, until a rollback succeeds

    def _unavailable(self, error: Exception) -> Unavailable:
        if isinstance(error, Unavailable):  # of the record
            unavailable = type(error)(str(error))  # each caller gets one of its own
        else:
            unavailable = Unavailable(_write_failure_text(self._name, error))
        unavailable.__cause__ = error
        return unavailable


def _write_failure_text(store: str, error: Exception) -> str:
    if isinstance(error, _DisplacedDuringWrite):
        return (
            f"the store {store!r} has not confirmed a write, because {error}, and may still save it: put the file back "
            "and check before you try again, or take a backup before the service stops, because the files that it has "
            "open may be the only copy"
        )
    if isinstance(error, StoreFileDisplaced):
        return (
            f"the store {store!r} cannot be written, because {error}: put the file back, or take a backup before the "
            "service stops, because the files that it has open may be the only copy"
        )
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return (
        f"the store {store!r} cannot be written now ({name}: {error}), and nothing was saved: "
        "check its disk and try again"
    )


def _is_file_error(error: Exception) -> bool:
    caused_by_write = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, caused_by_write)


def _answer_jobs(jobs: list[_WriteJob], outcomes: list[WriteOutcome]) -> None:
    pairs = zip(jobs, outcomes, strict=True)
    for loop, answered in groupby(pairs, key=lambda pair: pair[0].loop):
        try:
            loop.call_soon_threadsafe(_resolve_futures, list(answered))
        except RuntimeError:
            pass  # the loop is closed: no caller waits any more


def _resolve_futures(answered: list[tuple[_WriteJob, WriteOutcome]]) -> None:
    for job, (result, error) in answered:
        if error is None and job.on_commit is not None:
            job.on_commit(result)
        if job.limit is not None:
            job.limit.count_answer()
        if job.future.done():
            continue  # its caller was cancelled, or waited too long
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)
