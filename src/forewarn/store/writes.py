"""The writes of a SQLite store, executed on the writer thread within its transaction, and their SQL statements.

The statements are written with SQLAlchemy Core and compiled to SQL text once. ADD inserts unless the key exists, PUT
inserts or replaces, UPDATE changes an existing row, REMOVE deletes by `row_id`. Other parameters are named like the
columns. `pruning` has the statements that delete old rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import asdict, replace
from sqlalchemy import (
    Column,
    ColumnElement,
    ScalarSelect,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import Insert, insert

from forewarn.core.commit import Commit
from forewarn.core.event import Event
from forewarn.core.fleet import Host
from forewarn.core.health import MAX_MEASUREMENTS
from forewarn.core.history import EventDelivery, HistoryEntry, LastPoll
from forewarn.store import queries
from forewarn.store.interface import AppliedCommit, VersionedRow, host_conflict, version_conflict
from forewarn.store.queries import compile_sql, in_json_list, json_list
from forewarn.store.schema import (
    EVENTS,
    GATES,
    HISTORY,
    HOSTS,
    MEASUREMENTS,
    POLLS,
    PUT_BY_KEY,
    REQUESTS,
    SAVED,
    SCOPES,
    VMS,
    WEBHOOKS,
    SqlRow,
    StoredType,
    deliveries,
    delivery_events,
    delivery_labels,
    delivery_vms,
)

_ZERO: ColumnElement[Any] = literal_column("0")
_ONE: ColumnElement[Any] = literal_column("1")


def _insert(table: Table, **special: ColumnElement[Any]) -> Insert:
    plain: dict[str, ColumnElement[Any]] = {
        c.name: bindparam(c.name)
        for c in table.columns
        if c.name not in special and c is not table.autoincrement_column
    }
    return insert(table).values({**plain, **special})


def _insert_if_absent(table: Table, **special: ColumnElement[Any]) -> str:
    return compile_sql(_insert(table, **special).on_conflict_do_nothing())


def _upsert(stored: StoredType[Any]) -> str:
    statement = _insert(stored.sql)
    new = {c.name: statement.excluded[c.name] for c in stored.c if c.name not in (stored.key, stored.order)}
    return compile_sql(statement.on_conflict_do_update(index_elements=[stored.key], set_=new))


def _is_at_version(stored: StoredType[Any]) -> ColumnElement[bool]:
    return and_(stored.c.id == bindparam("id"), stored.c.version == bindparam("version"))


def _update_versioned(stored: StoredType[Any], **special: ColumnElement[Any]) -> str:
    fixed = (stored.order, "id", "version")
    plain: dict[str, ColumnElement[Any]] = {c.name: bindparam(c.name) for c in stored.c if c.name not in fixed}
    values = {**plain, "version": stored.c.version + _ONE, **special}
    return compile_sql(update(stored.sql).where(_is_at_version(stored)).values(values))


def _update_event_body() -> str:
    """Return an update of an event's body; counts no row if an indexed column changes too."""
    indexed = (column for column in EVENTS.c if column.name not in ("position", "body"))
    same = (column.is_not_distinct_from(bindparam(column.name)) for column in indexed)
    return compile_sql(update(EVENTS.sql).where(and_(*same)).values(body=bindparam("body")))


def _later(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.max(func.coalesce(one, other), func.coalesce(other, one))


def _upsert_vm() -> str:
    end = select(func.coalesce(func.max(VMS.c.position), _ZERO) + _ONE).scalar_subquery()
    statement = _insert(VMS.sql, position=end)
    new = statement.excluded
    is_restored = and_(VMS.c.removed_at.is_not(None), new.removed_at.is_(None))
    position = case((or_(is_restored, VMS.c.scope_id != new.scope_id), new.position), else_=VMS.c.position)
    values = {name: new[name] for name in ("scope_id", "host", "removed_at", "body")}
    return compile_sql(statement.on_conflict_do_update(index_elements=["key"], set_={**values, "position": position}))


def _upsert_poll() -> str:
    statement = _insert(POLLS.sql)
    new = statement.excluded
    return compile_sql(
        statement.on_conflict_do_update(
            index_elements=["vm"],
            set_={"scope_id": new.scope_id, "at": new.at, "body": new.body},
            where=new.at >= POLLS.c.at,
        )
    )


def _delete_polls_of_removed_vms() -> str:
    removed = select(VMS.c.key).where(in_json_list(VMS.c.key, "keys"), VMS.c.removed_at.is_not(None))
    return compile_sql(delete(POLLS.sql).where(POLLS.c.vm.in_(removed)))


def _update_last_request() -> str:
    at = _later(SCOPES.c.last_request_at, bindparam("polled_at"))
    return compile_sql(update(SCOPES.sql).where(SCOPES.c.id == bindparam("row_id")).values(last_request_at=at))


def _update_gate_wake() -> str:
    """Return an update that makes a gate due; a new version too, so that an earlier decision conflicts."""
    woken = {"wakes_at": _ZERO, "version": GATES.c.version + _ONE}
    return compile_sql(update(GATES.sql).where(GATES.c.id == bindparam("row_id")).values(woken))


def _number_of(table: Table, text: Column[Any], parameter: str) -> ScalarSelect[Any]:
    return select(table.c.number).where(text == bindparam(parameter)).scalar_subquery()


def _insert_delivery() -> str:
    numbers = {
        "event": _number_of(delivery_events, delivery_events.c.event_id, "event_id"),
        "vm": _number_of(delivery_vms, delivery_vms.c.vm, "vm_key"),
        "status": _number_of(delivery_labels, delivery_labels.c.text, "status_text"),
        "version": _number_of(delivery_labels, delivery_labels.c.text, "version_text"),
    }
    return compile_sql(_insert(deliveries, **numbers).on_conflict_do_nothing().inline())


def _update_cursor() -> str:
    ahead = and_(WEBHOOKS.c.id == bindparam("webhook_id"), WEBHOOKS.c.cursor < bindparam("seq"))
    return compile_sql(update(WEBHOOKS.sql).where(ahead).values(cursor=bindparam("seq")))


def _delete_old_measurements() -> str:
    position, request_id = MEASUREMENTS.c.position, MEASUREMENTS.c.request_id
    newest_old = (
        select(position)
        .where(request_id == bindparam("row_id"))
        .order_by(position.desc())
        .limit(_ONE)
        .offset(bindparam("kept"))
        .scalar_subquery()
    )
    return compile_sql(delete(MEASUREMENTS.sql).where(request_id == bindparam("row_id"), position <= newest_old))


ADD = {
    SCOPES: _insert_if_absent(SCOPES.sql, version=_ONE),
    HOSTS: _insert_if_absent(HOSTS.sql, version=_ONE, arrivals=_ZERO),
    GATES: _insert_if_absent(GATES.sql, version=_ONE),
    REQUESTS: _insert_if_absent(REQUESTS.sql, version=_ONE),
}
UPDATE = {
    SCOPES: _update_versioned(SCOPES, last_request_at=_later(SCOPES.c.last_request_at, bindparam("last_request_at"))),
    GATES: _update_versioned(GATES),
    REQUESTS: _update_versioned(REQUESTS),
}
PUT = {stored: _upsert(stored) for stored in (EVENTS, *PUT_BY_KEY)}
REMOVE = {
    stored: compile_sql(delete(stored.sql).where(stored.c[stored.key] == bindparam("row_id")))
    for stored in PUT_BY_KEY
    if stored.removed
}
PUT_VM = _upsert_vm()
UPDATE_EVENT_BODY = _update_event_body()
# A host whose version is the decided one, and to which no commit has brought VMs since.
_IS_UNCHANGED_HOST = and_(_is_at_version(HOSTS), HOSTS.c.arrivals == bindparam("arrivals"))
UPDATE_HOST = compile_sql(
    update(HOSTS.sql).where(_IS_UNCHANGED_HOST).values(version=HOSTS.c.version + _ONE, body=bindparam("body"))
)
REMOVE_HOST = compile_sql(delete(HOSTS.sql).where(_IS_UNCHANGED_HOST))
COUNT_ARRIVAL = compile_sql(update(HOSTS.sql).where(_is_at_version(HOSTS)).values(arrivals=HOSTS.c.arrivals + _ONE))
WAKE_GATE = _update_gate_wake()
ADD_ENTRY = compile_sql(_insert(HISTORY.sql))
ADD_MEASUREMENT = compile_sql(_insert(MEASUREMENTS.sql))
REMOVE_OLD_MEASUREMENTS = _delete_old_measurements()
PUT_POLL = _upsert_poll()
REMOVE_POLLS_OF_REMOVED_VMS = _delete_polls_of_removed_vms()
UPDATE_LAST_REQUEST = _update_last_request()
ADD_DELIVERY_EVENT = _insert_if_absent(
    delivery_events, scope=_number_of(delivery_labels, delivery_labels.c.text, "scope_text")
)
ADD_DELIVERY_VM = _insert_if_absent(delivery_vms)
ADD_DELIVERY_LABEL = _insert_if_absent(delivery_labels)
ADD_DELIVERY = _insert_delivery()
UPDATE_CURSOR = _update_cursor()


def apply_commit(db: sqlite3.Connection, commit: Commit) -> AppliedCommit:
    """Write all of a commit, in the order of its fields; return it with numbered history entries."""
    for scope in commit.scopes:
        _write_versioned(db, SCOPES, scope)
    if present_keys := [vm.key for vm in commit.vms if vm.removed_at is None]:
        db.execute(REMOVE_POLLS_OF_REMOVED_VMS, {"keys": json_list(present_keys)})
    _execute_each(db, PUT_VM, commit.vms, VMS.row)
    for event in commit.events:
        _write_event(db, event)
    for host in commit.hosts:
        _write_host(db, host, UPDATE_HOST if host.version else ADD[HOSTS])
    for host in commit.removed_hosts:
        _write_host(db, host, REMOVE_HOST)
    for host in commit.destinations:
        _write_host(db, host, COUNT_ARRIVAL)
    for gate in commit.gates:
        _write_versioned(db, GATES, gate)
    _execute_each(db, WAKE_GATE, commit.wake_gates, _id_row)
    for request in commit.requests:
        _write_versioned(db, REQUESTS, request)
    for stored in PUT_BY_KEY:
        if values := stored.changed(commit):
            _execute_each(db, PUT[stored], values, stored.row)
        if stored.removed and (keys := stored.removed(commit)):
            _execute_each(db, REMOVE[stored], keys, _id_row)
    _execute_each(db, UPDATE_CURSOR, commit.cursors, asdict)
    _execute_each(db, ADD_MEASUREMENT, commit.measurements, MEASUREMENTS.row)
    for request_id in {measurement.request_id for measurement in commit.measurements}:
        db.execute(REMOVE_OLD_MEASUREMENTS, {"row_id": request_id, "kept": MAX_MEASUREMENTS})
    entries = tuple(_append_entry(db, entry) for entry in commit.entries)
    seq = entries[-1].seq if entries else _read_last_seq(db)
    return AppliedCommit(commit=replace(commit, entries=entries), seq=seq)


def write_observations(db: sqlite3.Connection, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
    """Write polls, the last request time of their scopes, and deliveries; the caller commits."""
    _execute_each(db, PUT_POLL, polls, POLLS.row)
    _execute_each(db, UPDATE_LAST_REQUEST, polls, lambda poll: {"row_id": poll.scope_id, "polled_at": poll.at})
    _add_deliveries(db, deliveries)


def save_value(db: sqlite3.Connection, name: str, value: bytes) -> None:
    """Write a value under a name into table `saved`, in place of an earlier one; the caller commits."""
    db.execute(PUT[SAVED], {"name": name, "value": value})


def _read_last_seq(db: sqlite3.Connection) -> int:
    """Return the sequence number of the last history entry ever written, also a pruned one; 0 if none."""
    found = db.execute(queries.LAST_SEQ).fetchone()
    return int(found[0]) if found else 0


def _write_versioned(db: sqlite3.Connection, stored: StoredType[Any], value: VersionedRow) -> None:
    statements = UPDATE if value.version else ADD
    if db.execute(statements[stored], stored.row(value)).rowcount != 1:
        stored_version = _stored_version(db, stored, value.id)
        raise version_conflict(stored.name.removesuffix("s"), value.id, value.version, stored_version)


def _write_host(db: sqlite3.Connection, host: Host, statement: str) -> None:
    if db.execute(statement, HOSTS.row(host)).rowcount != 1:
        raise host_conflict(host, _stored_version(db, HOSTS, host.id))


def _stored_version(db: sqlite3.Connection, stored: StoredType[Any], row_id: str) -> int:
    found = db.execute(queries.version_by_key(stored), {"row_id": row_id}).fetchone()
    return int(found[0]) if found else 0


def _execute_each(db: sqlite3.Connection, sql: str, values: Sequence[Any], row_of: Callable[[Any], SqlRow]) -> None:
    if len(values) == 1:
        db.execute(sql, row_of(values[0]))
    elif values:
        db.executemany(sql, map(row_of, values))


def _write_event(db: sqlite3.Connection, event: Event) -> None:
    """Update only the body if no indexed column changes, as in most cases; that leaves six indexes alone."""
    row = EVENTS.row(event)
    if db.execute(UPDATE_EVENT_BODY, row).rowcount != 1:
        db.execute(PUT[EVENTS], row)


def _add_deliveries(db: sqlite3.Connection, deliveries: Sequence[EventDelivery]) -> None:
    events = list({delivery.event_id: delivery for delivery in reversed(deliveries)}.values())  # the first of each
    vms = sorted({delivery.vm for delivery in deliveries})
    labels = sorted({text for d in deliveries for text in (d.status, d.version, d.scope_id)})
    _execute_each(db, ADD_DELIVERY_LABEL, labels, lambda text: {"text": text})
    _execute_each(
        db, ADD_DELIVERY_EVENT, events, lambda d: {"event_id": d.event_id, "scope_text": d.scope_id, "first_at": d.at}
    )
    _execute_each(db, ADD_DELIVERY_VM, vms, lambda vm: {"vm": vm})
    _execute_each(db, ADD_DELIVERY, deliveries, _delivery_row)


def _delivery_row(delivery: EventDelivery) -> SqlRow:
    return {
        "event_id": delivery.event_id,
        "vm_key": delivery.vm,
        "status_text": delivery.status,
        "version_text": delivery.version,
        "incarnation": delivery.incarnation,
        "at": delivery.at,
    }


def _id_row(row_id: str) -> SqlRow:
    return {"row_id": row_id}


def _append_entry(db: sqlite3.Connection, entry: HistoryEntry) -> HistoryEntry:
    seq = db.execute(ADD_ENTRY, HISTORY.row(entry)).lastrowid
    assert seq is not None
    return replace(entry, seq=seq)
