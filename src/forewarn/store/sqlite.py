"""A store in a SQLite file: short reads on the calling thread, long ones and writes on a thread each."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from forewarn.base.clock import read_real_time
from forewarn.base.times import LabTime
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState, Gate
from forewarn.core.fleet import Vm
from forewarn.core.history import EventDelivery, HistoryEntry, LastPoll
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Unavailable
from forewarn.store import backup, pruning, queries, sqlite_file, writes
from forewarn.store.commit_mark import CommitMark, find_lost_writes
from forewarn.store.interface import AppliedCommit, CommitSubscribers, GatedEvents, Store, StoreCounts
from forewarn.store.schema import EVENTS, GATES, HISTORY, SCOPES, VMS, Row, StoredType
from forewarn.store.scope_cache import ScopeCache
from forewarn.store.sqlite_file import StoreFileCheck
from forewarn.store.writer_thread import WriterThread

T = TypeVar("T")


# The thread of a SQLite store for long reads, each on a connection of its own.
#
# asyncio's threads are few, and others need them for quick work such as durable writes of small files: long reads there
# would hold that up. One thread is enough, because the interpreter runs only one of several reads at a time anyway.


class ReaderThread:
    """A thread that reads the store's file at `path`, one read after the other; the first read starts it."""

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        self._path = path
        self._check = check
        self._is_open = True
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"reader of {path}")

    async def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `read` returns, called on the thread with a new connection, which is closed afterwards."""
        self._require_open()
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, read)

    async def close(self) -> None:
        """Wait for the read under way, and end the thread; reads that wait raise Unavailable."""
        self._is_open = False
        await asyncio.to_thread(self._executor.shutdown)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        self._require_open()
        with sqlite_file.file_errors_as_unavailable(self._path, "read"):
            self._check()
            db = sqlite_file.connect_reader(self._path)
        with closing(db):
            return read(db)

    def _require_open(self) -> None:
        if not self._is_open:
            raise Unavailable(f"the store {str(self._path)!r} is closed and cannot be read: open it again")


SqlRows = list[tuple[Any, ...]]
_MAX_INTEGER = 2**63 - 1  # the largest integer in SQLite


class SqliteStore(Store):
    """A `Store` in a SQLite file that one process owns; `open` opens it.

    Reads block the calling thread; writes run on a writer thread, which commits all waiting writes together.
    """

    def __init__(
        self,
        path: Path,
        *,
        reader: sqlite3.Connection,
        writer: WriterThread,
        file_check: StoreFileCheck | None = None,
    ) -> None:
        self._path = path
        self._file_check = file_check or StoreFileCheck(path)
        self._reader = reader
        self._writer = writer
        self._reader_thread = ReaderThread(path, self._file_check.check)
        self._scope_cache = ScopeCache()
        self._subscribers = CommitSubscribers()

    @classmethod
    def open(cls, path: Path, *, now: float | None = None) -> SqliteStore:
        """Return the store at `path`; creates the file if it is missing, or migrates it to the newest schema.

        Blocks. Takes no lock against other processes. Starts a writer thread, which `close` ends. If confirmed writes
        are lost (`commit_mark`), every scope has a new epoch on return; `now` is real time (None: the present).
        """
        try:
            # Before the store is opened, because opening it may remove the log that shows the loss.
            lost = find_lost_writes(path)
        except (OSError, sqlite3.Error):
            lost = None  # the next line says what is wrong with the file
        sqlite_file.prepare_store_file(path)
        with sqlite_file.file_errors_as_unavailable(path, "opened"):
            file_check = StoreFileCheck(path)
            with ExitStack() as undo:
                reader = sqlite_file.connect_reader(path)
                undo.callback(reader.close)
                writer_db = sqlite_file.connect_writer(path)
                undo.callback(writer_db.close)
                reader.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the log: it may be moved
                file_check.check()
                mark = CommitMark.begin(path, writer_db, lost, now=read_real_time() if now is None else now)
                writer = WriterThread(writer_db, str(path), check=file_check.check, mark=mark)
                # From here on the store owns them.
                undo.pop_all()
            return cls(path, reader=reader, writer=writer, file_check=file_check)

    def scope(self, scope_id: str) -> Scope | None:
        known = self._scope_cache.scope(scope_id)
        if known is None and (known := self._load_scope(scope_id)) is not None:
            self._scope_cache.put(known)
        return known

    def scopes(self) -> Iterator[Scope]:
        with self._read_transaction() as db:
            rows = db.execute(queries.rows_by(SCOPES)).fetchall()
            vms = _group_by_scope(db.execute(queries.ALL_PRESENT_VMS))
            events = _group_by_scope(db.execute(queries.ALL_LIVE_EVENTS))
        # `pop` frees memory that the caller may need.
        return (_read_scope(row, vms.pop(row[0], ()), events.pop(row[0], ())) for row in rows)

    def scope_ids(self, *, enabled: bool | None = None) -> list[str]:
        return [scope_id for (scope_id,) in self._rows(queries.scope_ids_by(enabled))]

    def scope_versions(self) -> dict[str, int]:
        return dict(self._rows(queries.SCOPE_VERSIONS))

    def counts(self) -> StoreCounts:
        row = self._row(queries.COUNTS)
        assert row is not None
        return StoreCounts(*row)

    def enabled_scope_count(self) -> int:
        row = self._row(queries.ENABLED_SCOPE_COUNT)
        return int(row[0]) if row else 0

    def failed_writes(self) -> int:
        return self._writer.failures

    def row(self, stored: StoredType[Row], key: str) -> Row | None:
        rows = self._rows(queries.row_by_key(stored), row_id=key)
        return stored.read(*rows[0]) if rows else None

    def rows(self, stored: StoredType[Row], *, limit: int | None = None, **equal: str | int | None) -> list[Row]:
        wanted = {name: value for name, value in equal.items() if value is not None}
        sql = queries.rows_by(stored, tuple(wanted), limit is not None)
        return [stored.read(*row) for row in self._newest_rows(sql, limit, **wanted)]

    def vm(self, key: str) -> Vm | None:
        return self._scope_cache.vm(key) or self.row(VMS, key)

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        if removed:
            return self.rows(VMS, scope_id=scope_id, host=host)
        wanted = _without_none(scope_id=scope_id, host=host)
        return [VMS.read(body) for (body,) in self._rows(queries.present_vms_by(tuple(wanted)), **wanted)]

    def vms_with_program(self) -> list[Vm]:
        return [vm for (body,) in self._rows(queries.VMS_WITH_PROGRAM) if (vm := VMS.read(body)).program]

    def events(
        self,
        *,
        scope_id: str | None = None,
        request_id: str | None = None,
        gate_id: str | None = None,
        statuses: Sequence[EventState] = tuple(EventState),
        limit: int | None = None,
    ) -> list[Event]:
        wanted = _without_none(scope_id=scope_id, request_id=request_id, gate_id=gate_id)
        sql = queries.events_by(tuple(wanted), tuple(sorted(set(statuses))), limit is not None)
        return [EVENTS.read(body) for (body,) in self._newest_rows(sql, limit, **wanted)]

    def events_ended_between(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        rows = self._rows(queries.EVENTS_ENDED_BETWEEN[newest], since=since, until=until, limit=limit)
        return [EVENTS.read(body) for (body,) in (reversed(rows) if newest else rows)]

    def events_behind_gates(self, gate_ids: Sequence[str]) -> GatedEvents:
        wanted = {"gate_ids": queries.json_list(gate_ids)}
        scheduled = [EVENTS.read(body) for (body,) in self._rows(queries.SCHEDULED_BEHIND, **wanted)]
        return GatedEvents(scheduled, {gate_id for (gate_id,) in self._rows(queries.PLANNED_BEHIND, **wanted)})

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        return [scope_id for (scope_id,) in self._rows(queries.DUE_SCOPES, now=now, limit=limit)]

    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]:
        return [GATES.read(*row) for row in self._rows(queries.DUE_GATES, now=now, limit=limit)]

    def next_wake_at(self) -> float | None:
        row = self._row(queries.NEXT_WAKE)
        return row[0] if row else None

    def history(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        scope_id: str | None = None,
        event_id: str | None = None,
        request_id: str | None = None,
        vm: str | None = None,
        limit: int | None = None,
        newest: bool = True,
    ) -> list[HistoryEntry]:
        wanted = _without_none(scope_id=scope_id, event_id=event_id, request_id=request_id, vm=vm)
        backwards = newest and limit is not None
        most = _MAX_INTEGER if limit is None else limit
        bounds = {"after": after, "before": _MAX_INTEGER if before is None else before, "limit": most}
        rows = self._rows(queries.history_by(tuple(wanted), backwards), **bounds, **wanted)
        return [HISTORY.read(*row) for row in (reversed(rows) if backwards else rows)]

    def last_seq(self) -> int:
        row = self._row(queries.LAST_SEQ)
        return int(row[0]) if row else 0

    def deliveries(self, *, event_id: str | None = None, vm: str | None = None) -> list[EventDelivery]:
        wanted = _without_none(event_id=event_id, vm=vm)
        return [_read_delivery(*row) for row in self._rows(queries.deliveries_by(tuple(wanted)), **wanted)]

    def events_given_before_start(self, event_ids: Sequence[str]) -> set[str]:
        wanted = {"event_ids": queries.json_list(event_ids)}
        return {event_id for (event_id,) in self._rows(queries.GIVEN_BEFORE_START, **wanted)}

    async def read_in_thread(self, read: Callable[[Store], T]) -> T:
        return await self._reader_thread.run(
            lambda db: read(SqliteStore(self._path, reader=db, writer=self._writer, file_check=self._file_check))
        )

    async def commit(self, commit: Commit) -> int:
        rows = len(commit.scopes) + len(commit.vms) + len(commit.events)
        try:
            applied = await self._writer.write(lambda db: writes.apply_commit(db, commit), self._on_commit, rows=rows)
        except Conflict:
            self._scope_cache.evict(scope.id for scope in commit.scopes)  # another process may have written them
            raise
        return applied.seq

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        await self._writer.write(
            lambda db: writes.write_observations(db, polls, deliveries), lambda _: self._scope_cache.record_polls(polls)
        )

    async def save(self, name: str, value: bytes) -> None:
        await self._writer.write(lambda db: writes.save_value(db, name, value))

    async def prune(self, before: float) -> int:
        return await pruning.prune_store(self._writer, self._path, before)

    async def back_up(self, path: Path) -> None:
        # Moved or deleted under us: the open connection may be the only way to the rows.
        original = self._reader if self._file_check.is_displaced() else None
        await asyncio.to_thread(backup.write_backup, self._path, path, original)

    def subscribe(self, listener: Callable[[AppliedCommit], None]) -> Callable[[], None]:
        return self._subscribers.add(listener)

    async def close(self) -> None:
        # Writers before readers: their answers still read.
        await self._writer.finish()
        await self._reader_thread.close()
        self._reader.close()
        await asyncio.to_thread(self._writer.close)

    def _on_commit(self, applied: AppliedCommit) -> None:
        # The cache first: subscribers read scopes, and must see this commit.
        self._scope_cache.on_commit(applied.commit)
        self._subscribers.notify(applied)

    def _load_scope(self, scope_id: str) -> Scope | None:
        scope = queries.row_by_key(SCOPES)
        if not self._rows(scope, row_id=scope_id):
            return None  # without a transaction, which takes longer: a new fleet asks for each of its scopes
        with self._read_transaction() as db:
            row = db.execute(scope, {"row_id": scope_id}).fetchone()
            wanted = {"scope_id": scope_id}
            vms = db.execute(queries.present_vms_by(("scope_id",)), wanted).fetchall() if row else []
            events = db.execute(queries.LIVE_EVENTS, wanted).fetchall() if row else []
        return _read_scope(row, (body for (body,) in vms), (body for (body,) in events)) if row else None

    @contextmanager
    def _read_transaction(self) -> Iterator[sqlite3.Connection]:
        """Read in one transaction, so that the writer cannot commit between a row and its events."""
        with sqlite_file.file_errors_as_unavailable(self._path, "read"):
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.execute("ROLLBACK")

    def _row(self, sql: str, **parameters: Any) -> tuple[Any, ...] | None:
        rows = self._rows(sql, **parameters)
        return rows[0] if rows else None

    def _rows(self, sql: str, **parameters: Any) -> SqlRows:
        try:
            return self._reader.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise sqlite_file.store_unavailable(self._path, "read", error) from error

    def _newest_rows(self, sql: str, limit: int | None, **parameters: Any) -> SqlRows:
        """Return all rows in order, or the last `limit` rows, which `sql` then returns in reverse order."""
        if limit is None:
            return self._rows(sql, **parameters)
        return self._rows(sql, limit=limit, **parameters)[::-1]


def _without_none(**parameters: str | None) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if value is not None}


def _group_by_scope(rows: Iterable[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    """Return scope id → the JSON bodies of its rows, in their order; a row is a scope id and a body."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for scope_id, body in rows:
        found[scope_id].append(body)
    return found


def _read_scope(row: tuple[Any, ...], vms: Iterable[bytes], events: Iterable[bytes]) -> Scope:
    return replace(SCOPES.read(*row), vms=tuple(map(VMS.read, vms)), events=tuple(map(EVENTS.read, events)))


def _read_delivery(
    event_id: str, scope_id: str, vm: str, status: str, version: str, incarnation: int, at: LabTime
) -> EventDelivery:
    return EventDelivery(
        event_id=event_id, scope_id=scope_id, vm=vm, status=status, version=version, incarnation=incarnation, at=at
    )
