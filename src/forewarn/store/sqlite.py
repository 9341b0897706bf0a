"""The store in an SQLite file. Reads in the calling thread, on a connection of their own; one writer thread."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forewarn.core.access import Client, Grant
from forewarn.core.change import Commit
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Host, Vm
from forewarn.core.gate import Gate
from forewarn.core.history import Entry, Sighting
from forewarn.core.request import Planned, Request
from forewarn.core.scope import Scope
from forewarn.core.webhook import Webhook
from forewarn.errors import Conflict
from forewarn.store import backup, file, query, record, statement, writing
from forewarn.store.recent import Recent
from forewarn.store.seam import Behind, Committed, Counts, Polled
from forewarn.store.subscription import Subscribers
from forewarn.store.whereabouts import Whereabouts
from forewarn.store.writer import Writer

Rows = list[tuple[Any, ...]]
_LARGEST = 2**63 - 1  # that SQLite holds


class SqliteStore:
    """A `Store` (see `seam`) that one process owns. Use it from one thread, that of its event loop."""

    def __init__(self, path: Path, *, reader: sqlite3.Connection, writer: Writer) -> None:
        self._path = path
        self._reader = reader
        self._writer = writer
        self._recent = Recent()
        self._subscribers = Subscribers()

    @classmethod
    def open(cls, path: Path) -> SqliteStore:
        """Create or migrate the file and open it; Rejected, and the file untouched, where it is no sound store."""
        file.prepare(path)
        with file.translated(path, "opened"):
            writer = Writer(file.connect_writer(path), str(path), check=Whereabouts(path).check)
            return cls(path, reader=file.connect_reader(path), writer=writer)

    def scope(self, scope_id: str) -> Scope | None:
        known = self._recent.scope(scope_id)
        if known is None and (known := self._read_scope(scope_id)) is not None:
            self._recent.keep(known)
        return known

    def scopes(self) -> Iterator[Scope]:
        with self._at_one_moment() as db:
            rows = db.execute(query.SCOPES).fetchall()
            vms = _by_scope(db.execute(query.ALL_PRESENT_VMS))
            events = _by_scope(db.execute(query.ALL_LIVE_EVENTS))
        return (
            record.read_scope(
                row,
                tuple(map(record.read_vm, vms.get(row[0], ()))),
                tuple(map(record.read_event, events.get(row[0], ()))),
            )
            for row in rows
        )

    def scope_ids(self, *, enabled: bool | None = None) -> list[str]:
        return [scope_id for (scope_id,) in self._rows(query.scope_ids_by(enabled))]

    def counts(self) -> Counts:
        row = self._row(query.COUNTS)
        assert row is not None
        return Counts(*row)

    def enabled(self) -> int:
        row = self._row(query.ENABLED)
        return int(row[0]) if row else 0

    def failed_writes(self) -> int:
        return self._writer.failures

    def vm(self, key: str) -> Vm | None:
        known = self._recent.vm(key)
        if known is None and (row := self._row(query.VM, row_id=key)):
            return record.read_vm(row[0])
        return known

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        wanted = _given(scope_id=scope_id, host=host)
        return [record.read_vm(body) for (body,) in self._rows(query.vms_by(tuple(wanted), removed), **wanted)]

    def hosts(self) -> list[Host]:
        return [record.read_host(body) for (body,) in self._rows(query.HOSTS)]

    def event(self, event_id: str) -> Event | None:
        row = self._row(query.EVENT, row_id=event_id)
        return record.read_event(row[0]) if row else None

    def events(
        self,
        *,
        scope_id: str | None = None,
        request_id: str | None = None,
        gate_id: str | None = None,
        statuses: Sequence[Status] = tuple(Status),
        limit: int | None = None,
    ) -> list[Event]:
        wanted = _given(scope_id=scope_id, request_id=request_id, gate_id=gate_id)
        sql = query.events_by(tuple(wanted), tuple(sorted(set(statuses))), limit is not None)
        return [record.read_event(body) for (body,) in self._newest(sql, limit, **wanted)]

    def events_over(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        rows = self._rows(query.EVENTS_OVER[newest], since=since, until=until, limit=limit)
        return [record.read_event(body) for (body,) in (reversed(rows) if newest else rows)]

    def gate(self, gate_id: str) -> Gate | None:
        row = self._row(query.GATE, row_id=gate_id)
        return record.read_gate(*row) if row else None

    def request(self, request_id: str) -> Request | None:
        row = self._row(query.REQUEST, row_id=request_id)
        return record.read_request(*row) if row else None

    def requests(self, *, open_only: bool = False, limit: int | None = None) -> list[Request]:
        sql = query.requests_by(open_only, limit is not None)
        return [record.read_request(*row) for row in self._newest(sql, limit)]

    def planned(self, *, request_id: str | None = None) -> list[Planned]:
        wanted = _given(request_id=request_id)
        return [record.read_planned(body) for (body,) in self._rows(query.planned_by(tuple(wanted)), **wanted)]

    def behind(self, gate_ids: Sequence[str]) -> Behind:
        wanted = {"gate_ids": record.listed(gate_ids)}
        scheduled = [record.read_event(body) for (body,) in self._rows(query.SCHEDULED_BEHIND, **wanted)]
        return Behind(scheduled, {gate_id for (gate_id,) in self._rows(query.PLANNED_BEHIND, **wanted)})

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        return [scope_id for (scope_id,) in self._rows(query.DUE_SCOPES, now=now, limit=limit)]

    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]:
        return [record.read_gate(*row) for row in self._rows(query.DUE_GATES, now=now, limit=limit)]

    def next_wake(self) -> float | None:
        row = self._row(query.NEXT_WAKE)
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
    ) -> list[Entry]:
        wanted = _given(scope_id=scope_id, event_id=event_id, request_id=request_id, vm=vm)
        backwards = newest and limit is not None
        most = _LARGEST if limit is None else limit
        bounds = {"after": after, "before": _LARGEST if before is None else before, "limit": most}
        rows = self._rows(query.history_by(tuple(wanted), backwards), **bounds, **wanted)
        return [record.read_entry(*row) for row in (reversed(rows) if backwards else rows)]

    def entries_after(self, seq: int, limit: int) -> list[Entry]:
        return [record.read_entry(*row) for row in self._rows(query.ENTRIES_AFTER, after=seq, limit=limit)]

    def last_seq(self) -> int:
        row = self._row(statement.LAST_SEQ)
        return int(row[0]) if row else 0

    def sightings(self, *, event_id: str | None = None, vm: str | None = None) -> list[Sighting]:
        wanted = _given(event_id=event_id, vm=vm)
        rows = self._rows(query.sightings_by(tuple(wanted)), **wanted)
        return [record.read_sighting(body) for (body,) in rows]

    def polls(self, *, scope_id: str | None = None) -> list[Polled]:
        wanted = _given(scope_id=scope_id)
        return [record.read_polled(body) for (body,) in self._rows(query.polls_by(tuple(wanted)), **wanted)]

    def client(self, client_id: str) -> Client | None:
        row = self._row(query.CLIENT, row_id=client_id)
        return record.read_client(row[0]) if row else None

    def clients(self) -> list[Client]:
        return [record.read_client(body) for (body,) in self._rows(query.CLIENTS)]

    def grants(self, *, to: str | None = None) -> list[Grant]:
        wanted = _given(to=to)
        return [record.read_grant(body) for (body,) in self._rows(query.grants_by(tuple(wanted)), **wanted)]

    def webhooks(self) -> list[Webhook]:
        return [record.read_webhook(*row) for row in self._rows(query.WEBHOOKS)]

    def saved(self, name: str) -> bytes | None:
        row = self._row(query.SAVED, row_id=name)
        return row[0] if row else None

    async def commit(self, commit: Commit) -> int:
        try:
            committed = await self._writer.write(lambda db: writing.apply(db, commit), self._tell)
        except Conflict:
            self._recent.forget(scope.id for scope in commit.scopes)  # should another process have written
            raise
        return committed.seq

    async def observe(self, polls: Sequence[Polled], sightings: Sequence[Sighting]) -> None:
        await self._writer.write(lambda db: writing.observe(db, polls, sightings), lambda _: self._recent.touch(polls))

    async def save(self, name: str, value: bytes) -> None:
        await self._writer.write(lambda db: writing.save(db, name, value))

    async def prune(self, before: float) -> int:
        """Forget entries from before then, and what was over before then; keep 24 hours at least (spec §5.2)."""
        return await self._writer.write(lambda db: writing.prune(db, before))

    async def back_up(self, path: Path) -> None:
        """A consistent copy in one new file, taken while work goes on."""
        await asyncio.to_thread(backup.back_up, self._path, path)

    def subscribe(self, hear: Callable[[Committed], None]) -> Callable[[], None]:
        return self._subscribers.add(hear)

    async def close(self) -> None:
        await self._writer.finish()
        self._reader.close()
        await asyncio.to_thread(self._writer.close)

    def _tell(self, committed: Committed) -> None:
        self._recent.hear(committed.commit)
        self._subscribers.tell(committed)

    def _read_scope(self, scope_id: str) -> Scope | None:
        wanted = {"row_id": scope_id}
        with self._at_one_moment() as db:
            row = db.execute(query.SCOPE, wanted).fetchone()
            vms = db.execute(query.PRESENT_VMS, wanted).fetchall() if row else []
            events = db.execute(query.LIVE_EVENTS, wanted).fetchall() if row else []
        if row is None:
            return None
        present = tuple(record.read_vm(body) for (body,) in vms)
        return record.read_scope(row, present, tuple(record.read_event(body) for (body,) in events))

    @contextmanager
    def _at_one_moment(self) -> Iterator[sqlite3.Connection]:
        """One transaction, lest the writer commits between a row and its events."""
        with file.translated(self._path, "read"):
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.execute("ROLLBACK")

    def _row(self, sql: str, **parameters: Any) -> tuple[Any, ...] | None:
        rows = self._rows(sql, **parameters)
        return rows[0] if rows else None

    def _rows(self, sql: str, **parameters: Any) -> Rows:
        try:
            return self._reader.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise file.unavailable(self._path, "read", error) from error

    def _newest(self, sql: str, limit: int | None, **parameters: Any) -> Rows:
        """All rows in order, or the `limit` last of them, which `sql` then finds backwards."""
        if limit is None:
            return self._rows(sql, **parameters)
        return self._rows(sql, limit=limit, **parameters)[::-1]


def _by_scope(rows: Iterator[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = defaultdict(list)
    for scope_id, body in rows:
        found[scope_id].append(body)
    return found


def _given(**parameters: str | None) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if value is not None}
