"""The writes of a SQLite store, executed on the writer thread within its transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from forewarn.core.commit import Commit
from forewarn.core.event import Event
from forewarn.core.fleet import Host
from forewarn.core.health import MAX_MEASUREMENTS
from forewarn.core.history import EventDelivery, HistoryEntry, LastPoll
from forewarn.store import queries, row_codec, write_statements
from forewarn.store.interface import AppliedCommit, VersionedRow, host_conflict, version_conflict


def apply_commit(db: sqlite3.Connection, commit: Commit) -> AppliedCommit:
    """Write all of a commit, in the order of its fields; return it with numbered history entries."""
    for scope in commit.scopes:
        _write_versioned(
            db, "scopes", scope, row_codec.scope_row(scope), write_statements.ADD_SCOPE, write_statements.UPDATE_SCOPE
        )
    if present_keys := [vm.key for vm in commit.vms if vm.removed_at is None]:
        db.execute(write_statements.REMOVE_POLLS_OF_REMOVED_VMS, {"keys": row_codec.json_list(present_keys)})
    _execute_each(db, write_statements.PUT_VM, commit.vms, row_codec.vm_row)
    for event in commit.events:
        _write_event(db, event)
    for host in commit.hosts:
        _write_host(db, host, write_statements.UPDATE_HOST if host.version else write_statements.ADD_HOST)
    for host in commit.removed_hosts:
        _write_host(db, host, write_statements.REMOVE_HOST)
    for host in commit.destinations:
        _write_host(db, host, write_statements.COUNT_ARRIVAL)
    for gate in commit.gates:
        _write_versioned(
            db, "gates", gate, row_codec.gate_row(gate), write_statements.ADD_GATE, write_statements.UPDATE_GATE
        )
    _execute_each(db, write_statements.WAKE_GATE, commit.wake_gates, _id_row)
    for request in commit.requests:
        row = row_codec.request_row(request)
        _write_versioned(db, "requests", request, row, write_statements.ADD_REQUEST, write_statements.UPDATE_REQUEST)
    _execute_each(db, write_statements.PUT_PLANNED, commit.planned, row_codec.planned_row)
    _execute_each(db, write_statements.REMOVE_PLANNED, commit.unplanned, _id_row)
    _execute_each(db, write_statements.PUT_CLIENT, commit.clients, row_codec.client_row)
    _execute_each(db, write_statements.REMOVE_CLIENT, commit.removed_clients, _id_row)
    _execute_each(db, write_statements.PUT_GRANT, commit.grants, row_codec.grant_row)
    _execute_each(db, write_statements.REMOVE_GRANT, commit.removed_grants, _id_row)
    _execute_each(db, write_statements.PUT_WEBHOOK, commit.webhooks, row_codec.webhook_row)
    _execute_each(db, write_statements.REMOVE_WEBHOOK, commit.removed_webhooks, _id_row)
    _execute_each(db, write_statements.UPDATE_CURSOR, commit.cursors, row_codec.cursor_row)
    _execute_each(db, write_statements.ADD_MEASUREMENT, commit.measurements, row_codec.measurement_row)
    for request_id in {measurement.request_id for measurement in commit.measurements}:
        db.execute(write_statements.REMOVE_OLD_MEASUREMENTS, {"row_id": request_id, "kept": MAX_MEASUREMENTS})
    _execute_each(db, write_statements.PUT_CONFIGURATION, commit.configurations, row_codec.configuration_row)
    _execute_each(db, write_statements.REMOVE_CONFIGURATION, commit.removed_configurations, _id_row)
    _execute_each(db, write_statements.PUT_ASSIGNMENT, commit.assignments, row_codec.configuration_row)
    _execute_each(db, write_statements.REMOVE_ASSIGNMENT, commit.removed_assignments, _id_row)
    for saved in commit.saved:
        save_value(db, saved.name, saved.value)
    entries = tuple(_append_entry(db, entry) for entry in commit.entries)
    seq = entries[-1].seq if entries else _read_last_seq(db)
    return AppliedCommit(commit=replace(commit, entries=entries), seq=seq)


def write_observations(db: sqlite3.Connection, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
    """Write polls, the last request time of their scopes, and deliveries; the caller commits."""
    _execute_each(db, write_statements.PUT_POLL, polls, row_codec.last_poll_row)
    _execute_each(db, write_statements.UPDATE_LAST_REQUEST, polls, lambda p: {"row_id": p.scope_id, "polled_at": p.at})
    _add_deliveries(db, deliveries)


def save_value(db: sqlite3.Connection, name: str, value: bytes) -> None:
    """Write a value under a name into table `saved`, in place of an earlier one; the caller commits."""
    db.execute(write_statements.PUT_SAVED, {"name": name, "value": value})


def _read_last_seq(db: sqlite3.Connection) -> int:
    """Return the sequence number of the last history entry ever written, also a pruned one; 0 if none."""
    found = db.execute(queries.LAST_SEQ).fetchone()
    return int(found[0]) if found else 0


def _write_versioned(
    db: sqlite3.Connection, table: str, value: VersionedRow, row: row_codec.SqlRow, add: str, update: str
) -> None:
    if value.version == 0:
        done = db.execute(add, {**row, "id": value.id, "version": 1})
    else:
        changed = {f"new_{name}": field for name, field in row.items()}
        done = db.execute(update, {**changed, "row_id": value.id, "decided_on": value.version})
    if done.rowcount != 1:
        raise version_conflict(table.removesuffix("s"), value.id, value.version, _stored_version(db, table, value.id))


def _write_host(db: sqlite3.Connection, host: Host, statement: str) -> None:
    if db.execute(statement, row_codec.host_row(host)).rowcount != 1:
        raise host_conflict(host, _stored_version(db, "hosts", host.id))


def _stored_version(db: sqlite3.Connection, table: str, row_id: str) -> int:
    found = db.execute(queries.ROW_VERSION[table], {"row_id": row_id}).fetchone()
    return int(found[0]) if found else 0


def _execute_each(
    db: sqlite3.Connection, sql: str, values: Sequence[Any], row_of: Callable[[Any], row_codec.SqlRow]
) -> None:
    if len(values) == 1:
        db.execute(sql, row_of(values[0]))
    elif values:
        db.executemany(sql, map(row_of, values))


def _write_event(db: sqlite3.Connection, event: Event) -> None:
    """Update only the body if no indexed column changes, as in most cases; that leaves six indexes alone."""
    row = row_codec.event_row(event)
    if db.execute(write_statements.UPDATE_EVENT_BODY, row).rowcount != 1:
        db.execute(write_statements.PUT_EVENT, row)


def _add_deliveries(db: sqlite3.Connection, deliveries: Sequence[EventDelivery]) -> None:
    events = list({delivery.event_id: delivery for delivery in reversed(deliveries)}.values())  # the first of each
    vms = sorted({delivery.vm for delivery in deliveries})
    labels = sorted({text for d in deliveries for text in (d.status, d.version, d.scope_id)})
    _execute_each(db, write_statements.ADD_DELIVERY_LABEL, labels, lambda text: {"text": text})
    _execute_each(db, write_statements.ADD_DELIVERY_EVENT, events, row_codec.delivery_event_row)
    _execute_each(db, write_statements.ADD_DELIVERY_VM, vms, lambda vm: {"vm": vm})
    _execute_each(db, write_statements.ADD_DELIVERY, deliveries, row_codec.delivery_row)


def _id_row(row_id: str) -> row_codec.SqlRow:
    return {"row_id": row_id}


def _append_entry(db: sqlite3.Connection, entry: HistoryEntry) -> HistoryEntry:
    seq = db.execute(write_statements.ADD_ENTRY, row_codec.entry_row(entry)).lastrowid
    assert seq is not None
    return replace(entry, seq=seq)
