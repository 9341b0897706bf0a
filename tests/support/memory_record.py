"""A `SharedRecord` in memory, with faults: outages, lost answers of COMMIT, a missing standby, lost groups.

`MemoryRecordServer` is the server; `connect` gives the connections of nodes. Any thread may use either.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Condition
from typing import NamedTuple

from forewarn.cluster.record import (
    LACKS_STANDBY,
    LEASE_S,
    Deposed,
    GroupMark,
    LeaseRow,
    LogPruned,
    NotReplicated,
    OutcomeUnknown,
    RecordGroup,
    RecordMismatch,
    RecordSnapshot,
    RecordUnavailable,
    RowChange,
    RowsRejected,
    SharedRecord,
    SqlValues,
)
from forewarn.cluster.row_changes import REPLICATED_TABLES, upsert_sql
from forewarn.core.control_node import NodeRow
from forewarn.store.commit_mark import begin_new_epoch
from forewarn.store.schema import REVISION

KEPT_GROUPS = 1000  # `prune_log` never deletes the last ones
Tables = dict[str, dict[SqlValues, SqlValues]]


class _LoggedGroup(NamedTuple):
    group: RecordGroup
    at: float


class MemoryRecordServer:
    """The server of records in memory. `clock` is the only clock that decides about leases."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.changed = Condition()  # its lock guards everything here
        self.is_down = False
        self.standby_is_missing = False
        self.fenced = True  # False plants a fault: groups of earlier terms, and with any number, are written, too
        self.record_id = "memory-1"
        self.renewals = 1
        self.term, self.holder, self.url, self.expires_at = 0, "", "", float("-inf")
        self.lab_clock = 0.0
        self.first_tables: Tables = {}  # before the first group
        self.first_seq = 0
        self.groups: list[RecordGroup] = []  # all, also those that are pruned from the log
        self.log: list[_LoggedGroup] = []
        self.tables: Tables = defaultdict(dict)
        self.node_rows: dict[str, tuple[NodeRow, float]] = {}
        self.lost_answers: list[bool] = []  # for the next commits: whether the group takes effect
        self.cancelled_waits = 0  # for how many commits the wait for the standby is cancelled
        self.waiting = 0  # calls that wait for the standby
        self.is_synchronous = True  # a standby is demanded
        self.demands_standby = False  # one was demanded once
        self.lost = ""

    def connect(self) -> MemoryRecord:
        """Return a connection of a node."""
        return MemoryRecord(self)

    @property
    def number(self) -> int:
        return len(self.groups)

    @property
    def seq(self) -> int:
        return self.groups[-1].seq if self.groups else self.first_seq

    def stop(self) -> None:
        """Be out of reach: calls raise RecordUnavailable, also those that wait for the standby."""
        with self.changed:
            self.is_down = True
            self.changed.notify_all()

    def start(self) -> None:
        """Be in reach again."""
        with self.changed:
            self.is_down = False
            self.changed.notify_all()

    def lose_answer(self, *, committed: bool) -> None:
        """Break the connection during one of the next commits, after it took effect or before."""
        with self.changed:
            self.lost_answers.append(committed)

    def cancel_wait(self) -> None:
        """Cancel the wait for the standby of the next commit, as an administrator can."""
        with self.changed:
            self.cancelled_waits += 1

    def remove_standby(self) -> None:
        """Let every write wait until `add_standby`."""
        with self.changed:
            self.standby_is_missing = True

    def add_standby(self) -> None:
        """Answer the writes that wait, and later ones."""
        with self.changed:
            self.standby_is_missing = False
            self.changed.notify_all()

    def promote(self, *, lost: int) -> None:
        """Continue on a server that never received the last `lost` groups."""
        with self.changed:
            kept = self.groups[: len(self.groups) - lost]
            self.tables = defaultdict(dict, {table: dict(rows) for table, rows in self.first_tables.items()})
            self.groups = []
            for group in kept:
                self.apply(group)
            self.log = [logged for logged in self.log if logged.group.number <= len(kept)]

    def apply(self, group: RecordGroup) -> None:
        """Change the tables as the group says."""
        for change in group.changes:
            if change.row is None:
                self.tables[change.table].pop(change.key, None)
        for change in group.changes:
            if change.row is not None:
                self.tables[change.table][change.key] = change.row
        self.groups.append(group)
        self.lab_clock = max(self.lab_clock, group.clock)


class MemoryRecord(SharedRecord):
    """A connection to a `MemoryRecordServer`."""

    def __init__(self, server: MemoryRecordServer) -> None:
        self._server = server
        self._is_closed = False
        self._is_aborted = False

    def connect(self) -> MemoryRecord:
        return MemoryRecord(self._server)

    def read_lease(self) -> LeaseRow:
        with self._connected() as server:
            return self._lease(server)

    def take_lease(self, holder: str, url: str) -> LeaseRow | None:
        with self._connected() as server:
            if server.expires_at >= server.clock():
                return None
            server.term += 1
            server.holder, server.url = holder, url
            server.expires_at = server.clock() + LEASE_S
            server.demands_standby |= server.is_synchronous
            self._await_standby(server, RecordUnavailable)
            return self._lease(server)

    def renew_lease(self, term: int) -> LeaseRow | None:
        with self._connected() as server:
            if server.term != term:
                return None
            server.expires_at = server.clock() + LEASE_S
            server.demands_standby |= server.is_synchronous
            self._await_standby(server, RecordUnavailable)
            return self._lease(server)

    def release_lease(self, term: int) -> None:
        with self._connected() as server:
            if server.term == term:
                server.expires_at = server.clock() - 1e-6  # a clock that stands still must find it expired
                self._await_standby(server, RecordUnavailable)

    def commit(self, group: RecordGroup) -> None:
        with self._connected() as server:
            if server.term != group.term and server.fenced:
                raise Deposed(f"control node {server.holder!r} has taken the lease (term {server.term})")
            if group.number != server.number + 1 and server.fenced:
                raise RecordMismatch(f"the record is at {server.number}, so group {group.number} cannot follow")
            if server.demands_standby and not server.is_synchronous:
                raise RecordUnavailable(LACKS_STANDBY)
            texts = (value for change in group.changes for value in change.row or () if isinstance(value, str))
            if any("\0" in text for text in texts):
                raise RowsRejected("the record cannot store a text with a NUL")
            lost = server.lost_answers.pop(0) if server.lost_answers else None
            if lost is not False:
                server.apply(group)
                server.log.append(_LoggedGroup(group, server.clock()))
                server.expires_at = server.clock() + LEASE_S
            if lost is not None:
                raise OutcomeUnknown(f"the connection to the record was lost while group {group.number} was committed")
            if server.cancelled_waits:
                server.cancelled_waits -= 1
                raise NotReplicated(f"group {group.number} is not on the standby: its COMMIT was cancelled")
            self._await_standby(server, OutcomeUnknown)

    def was_committed(self, term: int, number: int) -> bool:
        with self._connected() as server:
            if number > server.number:
                return False
            return server.groups[number - 1].term == term

    def log_after(self, number: int, limit: int) -> list[RecordGroup]:
        with self._connected() as server:
            if number == server.number:
                return []
            found = [logged.group for logged in server.log if logged.group.number > number]
            if number > server.number or not found or found[0].number != number + 1:
                raise LogPruned(f"the log of the record does not continue after {number}")
            return found[:limit]

    def group_mark(self, number: int) -> GroupMark | None:
        with self._connected() as server:
            if number == 0:
                return GroupMark(0, "")
            found = (logged.group for logged in server.log if logged.group.number == number)
            return next((GroupMark(group.term, group.hash) for group in found), None)

    def report_loss(self, record_id: str, lost: str) -> None:
        with self._connected() as server:
            if record_id == server.record_id:
                server.lost = server.lost or lost

    def renew_epochs(self, lease: LeaseRow, now: float, reason: str, *, is_loss: bool = False) -> tuple[LeaseRow, int]:
        with self._connected() as server, closing(sqlite3.connect(":memory:")) as db:
            if (server.term, server.number) != (lease.term, lease.number):
                raise Deposed("a control node has begun to use the record")
            changes = []
            for table in ("scopes", "saved"):
                columns = REPLICATED_TABLES[table].columns
                db.execute(f"CREATE TABLE {table} ({', '.join(columns)}, PRIMARY KEY ({columns[0]}))")
                db.executemany(upsert_sql(table, len(columns), "?"), server.tables[table].values())
            renewal = begin_new_epoch(db.execute, now=now, reason=reason, is_loss=is_loss)
            for table in ("scopes", "saved"):
                changes += [RowChange(table, row[:1], row) for row in db.execute(f"SELECT * FROM {table}")]
            number, server.renewals = server.number + 1, server.renewals + 1
            server.record_id, server.lost, server.term = f"memory-{server.renewals}", "", max(server.term, int(now))
            server.apply(
                RecordGroup(
                    term=lease.term,
                    number=number,
                    seq=server.seq,
                    clock=now,
                    changes=tuple(changes),
                    hash=f"renewal-{number}",
                )
            )
            server.log = [_LoggedGroup(server.groups[-1], server.clock())]
            server.expires_at = server.clock() + LEASE_S
            self._await_standby(server, RecordUnavailable)
            return self._lease(server), renewal.epoch

    def prune_log(self, keep_s: float) -> int:
        with self._connected() as server:
            before, first = server.clock() - keep_s, server.number - KEPT_GROUPS
            kept = [logged for logged in server.log if logged.at >= before or logged.group.number > first]
            pruned, server.log = len(server.log) - len(kept), kept
            return pruned

    @contextmanager
    def snapshot(self) -> Iterator[RecordSnapshot]:
        with self._connected() as server:
            tables = {table: list(rows.values()) for table, rows in server.tables.items()}
            snapshot = RecordSnapshot(
                record_id=server.record_id,
                term=server.groups[-1].term if server.groups else 0,
                number=server.number,
                hash=server.groups[-1].hash if server.groups else "",
                seq=server.seq,
                revision=REVISION,
                tables=iter(tables.items()),
            )
        yield snapshot

    def waits_for_standby(self) -> bool:
        with self._connected() as server:
            return server.waiting > 0

    def put_node(self, node: NodeRow) -> None:
        with self._connected() as server:
            server.node_rows[node.name] = (node, server.clock())

    def nodes(self) -> list[NodeRow]:
        with self._connected() as server:
            now = server.clock()
            return [
                NodeRow(
                    name=node.name,
                    url=node.url,
                    role=node.role,
                    version=node.version,
                    number=node.number,
                    status=node.status,
                    last_seen_ago_s=now - at,
                )
                for _, (node, at) in sorted(server.node_rows.items())
            ]

    def abort(self) -> None:
        with self._server.changed:
            self._is_aborted = True
            self._server.changed.notify_all()

    def close(self) -> None:
        self._is_closed = True

    @contextmanager
    def _connected(self) -> Iterator[MemoryRecordServer]:
        with self._server.changed:
            self._is_aborted = False
            self._check_reach(self._server, RecordUnavailable)
            yield self._server

    def _check_reach(self, server: MemoryRecordServer, error: type[RecordUnavailable] | type[OutcomeUnknown]) -> None:
        if server.is_down or self._is_closed or self._is_aborted:
            raise error("the record cannot be reached")

    def _await_standby(self, server: MemoryRecordServer, error: type[RecordUnavailable] | type[OutcomeUnknown]) -> None:
        server.waiting += 1
        try:
            while server.standby_is_missing:
                server.changed.wait()
                self._check_reach(server, error)
        finally:
            server.waiting -= 1

    def _lease(self, server: MemoryRecordServer) -> LeaseRow:
        return LeaseRow(
            term=server.term,
            holder=server.holder,
            url=server.url,
            number=server.number,
            seq=server.seq,
            clock=server.lab_clock,
            remaining_s=server.expires_at - server.clock(),
            server_time=server.clock(),
            record_id=server.record_id,
            lacks_standby=server.demands_standby and not server.is_synchronous,
            lost=server.lost,
        )
