"""A store in a SQLite file: short reads on the calling thread, long ones and writes on a thread each."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from forewarn.clock import read_real_time
from forewarn.core.access import Grant, RegisteredClient
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState, Gate
from forewarn.core.fleet import Host, Vm
from forewarn.core.health import MAX_MEASUREMENTS, Measurement
from forewarn.core.history import EventDelivery, HistoryEntry
from forewarn.core.maintenance_configuration import ConfigurationAssignment, MaintenanceConfiguration
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.scope import Scope
from forewarn.core.webhook import WebhookSubscription
from forewarn.errors import Conflict
from forewarn.store import backup, pruning, queries, row_codec, sqlite_file, writes
from forewarn.store.commit_mark import CommitMark, find_lost_writes
from forewarn.store.interface import AppliedCommit, GatedEvents, LastPoll, Store, StoreCounts
from forewarn.store.reader_thread import ReaderThread
from forewarn.store.scope_cache import ScopeCache
from forewarn.store.sqlite_file import StoreFileCheck
from forewarn.store.subscribers import CommitSubscribers
from forewarn.store.writer_thread import WriterThread

T = TypeVar("T")
SqlRows = list[tuple[Any, ...]]
_MAX_INTEGER = 2**63 - 1  # the largest integer in SQLite


class SqliteStore(Store):
    """A `Store`, the durable state of a service, in a SQLite file that one process owns; `open` opens it.

    Reads block the calling thread, and `scope` and `vm` use a cache of recently read scopes; writes run on a writer
    thread, which commits all waiting writes together. `path` is the file, `reader` and `writer` are connected to it,
    and `close` closes them; `file_check` detects that the file was replaced (None: a new check).
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

        Blocks. Takes no lock against other processes. Starts a writer thread, which `close` ends. Raises Rejected, and
        leaves the file as it is, if it is not an intact store or its directory is missing; Refused for a store that was
        moved to a record or is a copy of one, which is only migrated; Unavailable if it cannot be opened. If confirmed
        writes are lost (`commit_mark`), every scope has a new epoch on return; `now` is real time (None: the present).
        """
        try:
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
                undo.pop_all()
            return cls(path, reader=reader, writer=writer, file_check=file_check)

    def scope(self, scope_id: str) -> Scope | None:
        """Return a scope with its present VMs and its live events; None if there is no such scope.

        VMs are in the order they were added, events (scheduled or started) in order of publication. Raises Unavailable.
        """
        known = self._scope_cache.scope(scope_id)
        if known is None and (known := self._read_scope(scope_id)) is not None:
            self._scope_cache.put(known)
        return known

    def scopes(self) -> Iterator[Scope]:
        """Return an iterator over a snapshot of all scopes, taken at the call and sorted by id.

        A scope is the VMs that share one document. Each has its present (not removed) VMs and its live (scheduled or
        started) events, as `scope` returns it. Raises Unavailable.
        """
        with self._read_transaction() as db:
            rows = db.execute(queries.SCOPES).fetchall()
            vms = row_codec.group_by_scope(db.execute(queries.ALL_PRESENT_VMS))
            events = row_codec.group_by_scope(db.execute(queries.ALL_LIVE_EVENTS))
        return (
            row_codec.read_scope(
                row,
                tuple(map(row_codec.read_vm, vms.pop(row[0], ()))),  # frees memory that the caller may need
                tuple(map(row_codec.read_event, events.pop(row[0], ()))),
            )
            for row in rows
        )

    def scope_ids(self, *, enabled: bool | None = None) -> list[str]:
        """Return sorted scope ids: of all scopes (None), of enabled ones (True) or of disabled ones (False).

        Raises Unavailable.
        """
        return [scope_id for (scope_id,) in self._rows(queries.scope_ids_by(enabled))]

    def scope_versions(self) -> dict[str, int]:
        """Return the stored version of every scope, by scope id; a commit that writes a scope adds 1.

        Raises Unavailable.
        """
        return dict(self._rows(queries.SCOPE_VERSIONS))

    def counts(self) -> StoreCounts:
        """Return how many present VMs, scopes, hosts and live events there are. Raises Unavailable."""
        row = self._row(queries.COUNTS)
        assert row is not None
        return StoreCounts(*row)

    def enabled_scope_count(self) -> int:
        """Return how many scopes are enabled. Raises Unavailable."""
        row = self._row(queries.ENABLED_SCOPE_COUNT)
        return int(row[0]) if row else 0

    def failed_writes(self) -> int:
        """Return how many writes have failed with Unavailable since the store was opened; never raises.

        Conflicts do not count, nor do writes after `close` or writes that were merely not confirmed in time.
        """
        return self._writer.failures

    def vm(self, key: str) -> Vm | None:
        """Return a VM by its key, also a removed one that is not pruned yet (`removed_at` is set), or None.

        Raises Unavailable.
        """
        known = self._scope_cache.vm(key)
        if known is None and (row := self._row(queries.VM, row_id=key)):
            return row_codec.read_vm(row[0])
        return known

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        """Return the VMs in this scope and on this host (None: any), in the order they were added.

        Only present ones; with `removed`, removed ones too. A VM that was removed and added again, or moved to another
        scope, counts as added then. Raises Unavailable.
        """
        wanted = _without_none(scope_id=scope_id, host=host)
        return [row_codec.read_vm(body) for (body,) in self._rows(queries.vms_by(tuple(wanted), removed), **wanted)]

    def vms_with_program(self) -> list[Vm]:
        """Return the present VMs whose `program` is not empty, in the order they were added.

        Raises Unavailable.
        """
        return [vm for (body,) in self._rows(queries.VMS_WITH_PROGRAM) if (vm := row_codec.read_vm(body)).program]

    def hosts(self) -> list[Host]:
        """Return all hosts, of any state, sorted by name ignoring letter case. Raises Unavailable."""
        return [row_codec.read_host(*row) for row in self._rows(queries.HOSTS)]

    def event(self, event_id: str) -> Event | None:
        """Return an event by its id, live or over; None if there is none or it was pruned. Raises Unavailable."""
        row = self._row(queries.EVENT, row_id=event_id)
        return row_codec.read_event(row[0]) if row else None

    def events(
        self,
        *,
        scope_id: str | None = None,
        request_id: str | None = None,
        gate_id: str | None = None,
        statuses: Sequence[EventState] = tuple(EventState),
        limit: int | None = None,
    ) -> list[Event]:
        """Return the events that match all conditions (None: any), live or over, in the order they were added.

        `statuses` are the states to include, by default all; an empty one gives no events. Of more than `limit` events
        (None: no limit), return the newest ones, still oldest first. Raises Unavailable.
        """
        wanted = _without_none(scope_id=scope_id, request_id=request_id, gate_id=gate_id)
        sql = queries.events_by(tuple(wanted), tuple(sorted(set(statuses))), limit is not None)
        return [row_codec.read_event(body) for (body,) in self._newest_rows(sql, limit, **wanted)]

    def events_ended_between(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        """Return events that ended from `since` to `until`, both included, in the order in which they ended.

        The one that ended first comes first; of equal ends the one that was added first. Times are lab time. Of more
        than `limit` events, return those that ended last, or without `newest` those that ended first, in this order.
        Raises Unavailable.
        """
        rows = self._rows(queries.EVENTS_ENDED_BETWEEN[newest], since=since, until=until, limit=limit)
        return [row_codec.read_event(body) for (body,) in (reversed(rows) if newest else rows)]

    def gate(self, gate_id: str) -> Gate | None:
        """Return a gate by its id, released or not; None if there is none or it was pruned.

        A gate starts the events of several scopes on one host together. Raises Unavailable.
        """
        row = self._row(queries.GATE, row_id=gate_id)
        return row_codec.read_gate(*row) if row else None

    def request(self, request_id: str) -> MaintenanceRequest | None:
        """Return a maintenance request by its id, open or ended, or None. Raises Unavailable."""
        row = self._row(queries.REQUEST, row_id=request_id)
        return row_codec.read_request(*row) if row else None

    def requests(self, *, open_only: bool = False, limit: int | None = None) -> list[MaintenanceRequest]:
        """Return requests in the order they were added; with `limit`, only the newest, still oldest first.

        `open_only`: only rollouts and replays that have not ended; other requests are never open. Raises Unavailable.
        """
        sql = queries.requests_by(open_only, limit is not None)
        return [row_codec.read_request(*row) for row in self._newest_rows(sql, limit)]

    def planned(self, *, request_id: str | None = None) -> list[PlannedEvent]:
        """Return the planned events of this request (None: of all), oldest first.

        These are events that were decided, and that the reconciler has neither published nor dropped yet. Raises
        Unavailable.
        """
        wanted = _without_none(request_id=request_id)
        return [row_codec.read_planned(body) for (body,) in self._rows(queries.planned_by(tuple(wanted)), **wanted)]

    def events_behind_gates(self, gate_ids: Sequence[str]) -> GatedEvents:
        """Return the scheduled events behind these gates (ids), and which of the gates have planned events.

        Events that are started or over are left out; unknown gates are ignored. Raises Unavailable.
        """
        wanted = {"gate_ids": row_codec.json_list(gate_ids)}
        scheduled = [row_codec.read_event(body) for (body,) in self._rows(queries.SCHEDULED_BEHIND, **wanted)]
        return GatedEvents(scheduled, {gate_id for (gate_id,) in self._rows(queries.PLANNED_BEHIND, **wanted)})

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        """Return the ids of up to `limit` scopes whose `wakes_at` is `now` or earlier, the earliest first.

        `now` is lab time. These are the scopes that the reconciler must look at; equal times are sorted by id. Raises
        Unavailable.
        """
        return [scope_id for (scope_id,) in self._rows(queries.DUE_SCOPES, now=now, limit=limit)]

    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]:
        """Return up to `limit` gates whose `wakes_at` is `now` (lab time) or earlier, the earliest first.

        A gate starts the events of one host together; these are to be checked. Equal times are sorted by id. Raises
        Unavailable.
        """
        return [row_codec.read_gate(*row) for row in self._rows(queries.DUE_GATES, now=now, limit=limit)]

    def next_wake_at(self) -> float | None:
        """Return the earliest `wakes_at`, in lab time, of all scopes and gates, perhaps past; None if none.

        Raises Unavailable.
        """
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
        """Return the history entries that match all conditions, oldest first.

        `after` and `before` are sequence numbers, both excluded; `vm` is a VM's name, not its key; None: any. Of more
        than `limit` entries (None: no limit), return the newest ones, or without `newest` the oldest. Raises
        Unavailable.
        """
        wanted = _without_none(scope_id=scope_id, event_id=event_id, request_id=request_id, vm=vm)
        backwards = newest and limit is not None
        most = _MAX_INTEGER if limit is None else limit
        bounds = {"after": after, "before": _MAX_INTEGER if before is None else before, "limit": most}
        rows = self._rows(queries.history_by(tuple(wanted), backwards), **bounds, **wanted)
        return [row_codec.read_entry(*row) for row in (reversed(rows) if backwards else rows)]

    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]:
        """Return the first `limit` history entries whose `seq` is greater than this one, oldest first.

        Raises Unavailable.
        """
        return [row_codec.read_entry(*row) for row in self._rows(queries.ENTRIES_AFTER, after=seq, limit=limit)]

    def last_seq(self) -> int:
        """Return the number of the last history entry, even if pruned; 0 if none. Raises Unavailable."""
        row = self._row(queries.LAST_SEQ)
        return int(row[0]) if row else 0

    def deliveries(self, *, event_id: str | None = None, vm: str | None = None) -> list[EventDelivery]:
        """Return the first delivery of each event, VM (key) and status, sorted by time, event, VM, status.

        `event_id` and `vm` (a key) select those of one event or VM; None: any. Raises Unavailable.
        """
        wanted = _without_none(event_id=event_id, vm=vm)
        return [row_codec.read_delivery(row) for row in self._rows(queries.deliveries_by(tuple(wanted)), **wanted)]

    def events_given_before_start(self, event_ids: Sequence[str]) -> set[str]:
        """Return those of these events (ids) that were delivered to a VM while they were scheduled.

        Unknown events are ignored. Raises Unavailable.
        """
        wanted = {"event_ids": row_codec.json_list(event_ids)}
        return {event_id for (event_id,) in self._rows(queries.GIVEN_BEFORE_START, **wanted)}

    def last_polls(self, *, scope_id: str | None = None) -> list[LastPoll]:
        """Return the latest recorded poll of each VM that has one, also of removed VMs, sorted by VM key.

        `scope_id`: only VMs whose latest poll was in this scope. Raises Unavailable.
        """
        wanted = _without_none(scope_id=scope_id)
        return [row_codec.read_last_poll(body) for (body,) in self._rows(queries.polls_by(tuple(wanted)), **wanted)]

    def client(self, client_id: str) -> RegisteredClient | None:
        """Return a registered API client by its id, which must be in lower case, or None. Raises Unavailable."""
        row = self._row(queries.CLIENT, row_id=client_id)
        return row_codec.read_client(row[0]) if row else None

    def clients(self) -> list[RegisteredClient]:
        """Return all registered API clients, sorted by id. Raises Unavailable."""
        return [row_codec.read_client(body) for (body,) in self._rows(queries.CLIENTS)]

    def grants(self, *, to: str | None = None) -> list[Grant]:
        """Return the grants of roles to this principal (its id; None: to all), in the order they were added.

        Raises Unavailable.
        """
        wanted = _without_none(to=to)
        return [row_codec.read_grant(body) for (body,) in self._rows(queries.grants_by(tuple(wanted)), **wanted)]

    def webhooks(self) -> list[WebhookSubscription]:
        """Return all webhook subscriptions with their cursors, in the order they were added.

        Raises Unavailable.
        """
        return [row_codec.read_webhook(*row) for row in self._rows(queries.WEBHOOKS)]

    def measurements(self, request_id: str, *, limit: int | None = None) -> list[Measurement]:
        """Return the newest `limit` measurements (None: all) of a rollout (its request's id), oldest first.

        [] if it has none; of each rollout only the newest 5,000 are kept. Raises Unavailable.
        """
        rows = self._newest_rows(queries.MEASUREMENTS, MAX_MEASUREMENTS if limit is None else limit, row_id=request_id)
        return [row_codec.read_measurement(body) for (body,) in rows]

    def configurations(self) -> list[MaintenanceConfiguration]:
        """Return all maintenance configurations, sorted by key. Raises Unavailable."""
        return [row_codec.read_configuration(body) for (body,) in self._rows(queries.CONFIGURATIONS)]

    def assignments(self) -> list[ConfigurationAssignment]:
        """Return all assignments of maintenance configurations, sorted by key. Raises Unavailable."""
        return [row_codec.read_assignment(body) for (body,) in self._rows(queries.ASSIGNMENTS)]

    def load(self, name: str) -> bytes | None:
        """Return the value that `save` or a commit wrote under this name, or None. Raises Unavailable."""
        row = self._row(queries.SAVED_VALUE, row_id=name)
        return row[0] if row else None

    async def read_in_thread(self, read: Callable[[Store], T]) -> T:
        """Return what `read` returns, called on the reader thread with a store that it may only read.

        That store has a connection of its own, for this call only. A long read thus blocks neither the event loop nor
        asyncio's threads; it waits for earlier ones. Raises Unavailable, and what `read` raises.
        """
        return await self._reader_thread.run(
            lambda db: read(SqliteStore(self._path, reader=db, writer=self._writer, file_check=self._file_check))
        )

    async def commit(self, commit: Commit) -> int:
        """Write a commit, all of it or nothing; return the sequence number of the store's last history entry.

        Adds 1 to the version of each scope, host, gate and request that it writes. Subscribers are called before it
        returns. Raises Conflict if one of these is no longer at the version in the commit or occurs twice at one
        version, or if a host is not as `Commit` demands. Raises Unavailable. After an error nothing was written, unless
        Unavailable says that it may have been. A write whose caller is cancelled goes on.
        """
        try:
            applied = await self._writer.write(lambda db: writes.apply_commit(db, commit), self._on_commit)
        except Conflict:
            self._scope_cache.evict(scope.id for scope in commit.scopes)  # another process may have written them
            raise
        return applied.seq

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        """Write polls and deliveries, and move `last_request_at` of the polled scopes forward.

        Keeps the latest poll of each VM, of equal times the one recorded last, and the first delivery of each event, VM
        and status; others change nothing. The versions of the scopes stay the same, and no subscriber is called. An
        unknown VM or scope is no error. Raises Unavailable if they cannot be written.
        """
        await self._writer.write(
            lambda db: writes.write_observations(db, polls, deliveries), lambda _: self._scope_cache.record_polls(polls)
        )

    async def save(self, name: str, value: bytes) -> None:
        """Write a value under a name, in place of an earlier one; durable on return. `load` returns it.

        Raises Unavailable if it cannot be written.
        """
        await self._writer.write(lambda db: writes.save_value(db, name, value))

    async def prune(self, before: float) -> int:
        """Delete what ended or was removed before this lab time; return how many history entries it deleted.

        That is what `Store.prune` lists: history, ended events and requests, removed VMs, unless kept rows refer to
        them. Works in small transactions, then shortens the file; after Unavailable some is done, and the next call
        continues.
        """
        return await pruning.prune_store(self._writer, self._path, before)

    async def back_up(self, path: Path) -> None:
        """Write a consistent copy to the new file `path` while the store is in use; durable on return.

        Works also after the database was moved, deleted or replaced: then it copies the file that is still open. Raises
        Refused if `path` exists, Unavailable if a file cannot be read or written; then there is no file `path`.
        """
        original = self._reader if self._file_check.is_displaced() else None
        await asyncio.to_thread(backup.write_backup, self._path, path, original)

    def subscribe(self, listener: Callable[[AppliedCommit], None]) -> Callable[[], None]:
        """Call the listener after every `commit`, in order, on the event loop; return a function to stop it.

        Other writes notify nobody. Errors of the listener go to the loop's exception handler.
        """
        return self._subscribers.add(listener)

    async def close(self) -> None:
        """Finish the writes and the long read under way, end both threads, and close the file.

        Later writes raise Unavailable, and so do reads, except of scopes and VMs in the cache. May be called again.
        """
        await self._writer.finish()
        await self._reader_thread.close()
        self._reader.close()
        await asyncio.to_thread(self._writer.close)

    def _on_commit(self, applied: AppliedCommit) -> None:
        self._scope_cache.on_commit(applied.commit)
        self._subscribers.notify(applied)

    def _read_scope(self, scope_id: str) -> Scope | None:
        wanted = {"row_id": scope_id}
        if not self._rows(queries.SCOPE, **wanted):
            return None  # without a transaction, which takes longer: a new fleet asks for each of its scopes
        with self._read_transaction() as db:
            row = db.execute(queries.SCOPE, wanted).fetchone()
            vms = db.execute(queries.PRESENT_VMS, wanted).fetchall() if row else []
            events = db.execute(queries.LIVE_EVENTS, wanted).fetchall() if row else []
        if row is None:
            return None
        present = tuple(row_codec.read_vm(body) for (body,) in vms)
        return row_codec.read_scope(row, present, tuple(row_codec.read_event(body) for (body,) in events))

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
