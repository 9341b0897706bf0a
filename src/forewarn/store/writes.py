"""What a write does, inside the transaction of the writer's thread: a handful of prebuilt statements each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from forewarn.core.change import Commit
from forewarn.core.event import Event
from forewarn.core.history import Entry, Sighting
from forewarn.store import query, record, statement
from forewarn.store.guard import Guarded, conflict
from forewarn.store.seam import Committed, Polled

Db = sqlite3.Connection


def apply(db: Db, commit: Commit) -> Committed:
    """Write all of a commit, in the order of its fields; Conflict where a guarded row has moved on."""
    for scope in commit.scopes:
        _guarded(db, "scopes", scope, record.scope_row(scope), statement.ADD_SCOPE, statement.MOVE_SCOPE)
    _each(db, statement.PUT_VM, commit.vms, record.vm_row)
    for event in commit.events:
        _put_event(db, event)
    _each(db, statement.PUT_HOST, commit.hosts, record.host_row)
    _each(db, statement.REMOVE_HOST, commit.removed_hosts, _id_row)
    for gate in commit.gates:
        _guarded(db, "gates", gate, record.gate_row(gate), statement.ADD_GATE, statement.MOVE_GATE)
    _each(db, statement.WAKE_GATE, commit.wake_gates, _id_row)
    for request in commit.requests:
        row = record.request_row(request)
        _guarded(db, "requests", request, row, statement.ADD_REQUEST, statement.MOVE_REQUEST)
    _each(db, statement.PUT_PLANNED, commit.planned, record.planned_row)
    _each(db, statement.REMOVE_PLANNED, commit.unplanned, _id_row)
    _each(db, statement.PUT_CLIENT, commit.clients, record.client_row)
    _each(db, statement.REMOVE_CLIENT, commit.removed_clients, _id_row)
    _each(db, statement.PUT_GRANT, commit.grants, record.grant_row)
    _each(db, statement.REMOVE_GRANT, commit.removed_grants, _id_row)
    _each(db, statement.PUT_WEBHOOK, commit.webhooks, record.webhook_row)
    _each(db, statement.REMOVE_WEBHOOK, commit.removed_webhooks, _id_row)
    _each(db, statement.MOVE_CURSOR, commit.cursors, record.cursor_row)
    entries = tuple(_append(db, entry) for entry in commit.entries)
    return Committed(commit=replace(commit, entries=entries), seq=entries[-1].seq if entries else last_seq(db))


def observe(db: Db, polls: Sequence[Polled], sightings: Sequence[Sighting]) -> None:
    _each(db, statement.PUT_POLL, polls, record.polled_row)
    _each(db, statement.TOUCH_SCOPE, polls, lambda p: {"row_id": p.scope_id, "polled_at": p.at})
    _each(db, statement.ADD_SIGHTING, sightings, record.sighting_row)


def save(db: Db, name: str, value: bytes) -> None:
    db.execute(statement.PUT_SAVED, {"name": name, "value": value})


def prune(db: Db, before: float) -> int:
    row = {"before": before}
    db.execute(statement.PRUNE_SIGHTINGS, row)
    db.execute(statement.PRUNE_EVENTS, row)
    return db.execute(statement.PRUNE_HISTORY, row).rowcount


def last_seq(db: Db) -> int:
    found = db.execute(statement.LAST_SEQ).fetchone()
    return int(found[0]) if found else 0


def _guarded(db: Db, table: str, value: Guarded, row: record.Row, add: str, move: str) -> None:
    if value.version == 0:
        done = db.execute(add, {**row, "id": value.id, "version": 1})
    else:
        moved = {f"new_{name}": field for name, field in row.items()}
        done = db.execute(move, {**moved, "row_id": value.id, "decided_on": value.version})
    if done.rowcount != 1:
        raise conflict(table.removesuffix("s"), value.id, value.version, _stored_version(db, table, value.id))


def _stored_version(db: Db, table: str, row_id: str) -> int:
    found = db.execute(query.VERSION[table], {"row_id": row_id}).fetchone()
    return int(found[0]) if found else 0


def _each(db: Db, sql: str, values: Sequence[Any], row_of: Callable[[Any], record.Row]) -> None:
    if len(values) == 1:
        db.execute(sql, row_of(values[0]))
    elif values:
        db.executemany(sql, map(row_of, values))


def _put_event(db: Db, event: Event) -> None:
    """Most changes leave alone what the event is found by: then its indexes, six of them, are not written again."""
    row = record.event_row(event)
    if db.execute(statement.CHANGE_EVENT, row).rowcount != 1:
        db.execute(statement.PUT_EVENT, row)


def _id_row(row_id: str) -> record.Row:
    return {"row_id": row_id}


def _append(db: Db, entry: Entry) -> Entry:
    seq = db.execute(statement.ADD_ENTRY, record.entry_row(entry)).lastrowid
    assert seq is not None
    return replace(entry, seq=seq)
