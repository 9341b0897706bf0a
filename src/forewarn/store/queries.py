"""SQL queries of the SQLite store, written with SQLAlchemy Core and compiled to SQL text once.

Constants are queries without options; functions `*_by` return the query for rows whose columns `by` equal the
parameters of the same names (an empty tuple: all rows). Other parameters are `row_id` for a key, `limit` and `now`.
Rows of a stored type have its `read_columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec.json import Encoder
from sqlalchemy import Column, ColumnElement, Select, bindparam, false, func, literal_column, select, union_all
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

from forewarn.core.event import EventState
from forewarn.store.schema import (
    EVENTS,
    GATES,
    HISTORY,
    HOSTS,
    PLANNED,
    SCOPES,
    VMS,
    StoredType,
    deliveries,
    delivery_events,
    delivery_labels,
    delivery_vms,
)

EqualColumns = tuple[str, ...]  # columns that must equal the parameters of the same name
_encode = Encoder().encode


def _select_equal(stored: StoredType[Any], by: EqualColumns) -> Select[Any]:
    return select(*stored.read_columns).where(*(stored.c[name] == bindparam(name) for name in by))


def _with_limit(query: Select[Any]) -> Select[Any]:
    return query.limit(bindparam("limit")).offset(literal_column("0"))


def _in_order(query: Select[Any], order: Column[Any], *, newest: bool = False) -> str:
    return compile_sql(_with_limit(query.order_by(order.desc())) if newest else query.order_by(order))


def _select_due(stored: StoredType[Any], *columns: Column[Any]) -> str:
    query = select(*columns).where(stored.c.wakes_at <= bindparam("now"))
    return compile_sql(_with_limit(query.order_by(stored.c.wakes_at, stored.c.id)))


def _status_in(statuses: tuple[EventState, ...]) -> ColumnElement[bool]:
    if not statuses:
        return false()
    return EVENTS.c.status.in_([literal_column(f"'{status}'") for status in statuses])


def _select_events_ended(newest: bool) -> str:
    at, position = EVENTS.c.over_at, EVENTS.c.position
    order = (at.desc(), position.desc()) if newest else (at, position)
    return compile_sql(
        _with_limit(select(EVENTS.c.body).where(at.between(bindparam("since"), bindparam("until"))).order_by(*order))
    )


def _select_next_wake() -> str:
    first = union_all(*(select(func.min(waking.c.wakes_at).label("at")) for waking in (SCOPES, GATES))).subquery()
    return compile_sql(select(func.min(first.c.at)))


def json_list(values: Sequence[str]) -> str:
    """Return these strings as the text of a JSON list, which a query takes as one parameter."""
    return _encode(values).decode()


def in_json_list(column: Column[Any], name: str) -> ColumnElement[bool]:
    """Return the condition that a column is in a list that is passed as one JSON parameter called `name`."""
    return column.in_(select(literal_column("value")).select_from(func.json_each(bindparam(name))))


def _select_counts() -> str:
    every = func.count()
    queries = (
        select(every).select_from(VMS.sql).where(_IS_PRESENT),
        select(every).select_from(SCOPES.sql),
        select(every).select_from(HOSTS.sql),
        select(every).select_from(EVENTS.sql).where(_IS_LIVE),
    )
    return compile_sql(select(*(count.scalar_subquery() for count in queries)))


_IS_PRESENT = VMS.c.removed_at.is_(None)
_IS_LIVE = _status_in((EventState.SCHEDULED, EventState.STARTED))
_DIALECT = sqlite.dialect(paramstyle="named")


def compile_sql(statement: ClauseElement) -> str:
    """Return the SQL text of a statement for SQLite, with named parameters."""
    compiled = statement.compile(dialect=_DIALECT)
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    assert not constants, f"write these with literal_column: {constants}"
    return str(compiled)


LIVE_EVENTS = compile_sql(
    select(EVENTS.c.body).where(EVENTS.c.scope_id == bindparam("scope_id"), _IS_LIVE).order_by(EVENTS.c.seq)
)
ALL_PRESENT_VMS = compile_sql(select(VMS.c.scope_id, VMS.c.body).where(_IS_PRESENT).order_by(VMS.c.position))
ALL_LIVE_EVENTS = compile_sql(select(EVENTS.c.scope_id, EVENTS.c.body).where(_IS_LIVE).order_by(EVENTS.c.seq))
COUNTS = _select_counts()
ENABLED_SCOPE_COUNT = compile_sql(select(func.count()).select_from(SCOPES.sql).where(SCOPES.c.enabled_at.is_not(None)))
# Present VMs with the field `program`, which JSON has only if it is not empty; tags may make it find further VMs.
VMS_WITH_PROGRAM = compile_sql(
    select(VMS.c.body)
    .where(_IS_PRESENT, func.instr(VMS.c.body, literal_column("""CAST('"program":' AS BLOB)""")))
    .order_by(VMS.c.position)
)
# By whether the newest ones are wanted; parameters: since, until, limit.
EVENTS_ENDED_BETWEEN = {newest: _select_events_ended(newest) for newest in (True, False)}
# Scheduled events, and gates with planned events, of the JSON list `gate_ids`.
SCHEDULED_BEHIND = compile_sql(
    select(EVENTS.c.body)
    # The plus keeps SQLite from using the status index, which would read all scheduled events.
    .where(in_json_list(EVENTS.c.gate_id, "gate_ids"), literal_column(f"+events.status = '{EventState.SCHEDULED}'"))
    .order_by(EVENTS.c.position)
)
# Those of the listed events that were delivered while they were scheduled.
GIVEN_BEFORE_START = compile_sql(
    select(delivery_events.c.event_id)
    .distinct()
    .select_from(
        delivery_events.join(deliveries, deliveries.c.event == delivery_events.c.number).join(
            delivery_labels, deliveries.c.status == delivery_labels.c.number
        )
    )
    .where(
        in_json_list(delivery_events.c.event_id, "event_ids"),
        literal_column(f"+delivery_labels.text = '{EventState.SCHEDULED}'"),
    )
)
PLANNED_BEHIND = compile_sql(select(PLANNED.c.gate_id).distinct().where(in_json_list(PLANNED.c.gate_id, "gate_ids")))
SCOPE_VERSIONS = compile_sql(select(SCOPES.c.id, SCOPES.c.version))
DUE_SCOPES = _select_due(SCOPES, SCOPES.c.id)
DUE_GATES = _select_due(GATES, *GATES.read_columns)
NEXT_WAKE = _select_next_wake()


@cache
def row_by_key(stored: StoredType[Any]) -> str:
    return compile_sql(select(*stored.read_columns).where(stored.c[stored.key] == bindparam("row_id")))


@cache
def rows_by(stored: StoredType[Any], by: EqualColumns = (), newest: bool = False) -> str:
    return _in_order(_select_equal(stored, by), stored.c[stored.order], newest=newest)


@cache
def version_by_key(stored: StoredType[Any]) -> str:
    return compile_sql(select(stored.c.version).where(stored.c.id == bindparam("row_id")))


@cache
def scope_ids_by(enabled: bool | None) -> str:
    """Return SQL for sorted scope ids: of all scopes (None), enabled ones (True) or disabled ones (False)."""
    query = select(SCOPES.c.id)
    if enabled is not None:
        query = query.where(SCOPES.c.enabled_at.is_not(None) if enabled else SCOPES.c.enabled_at.is_(None))
    return _in_order(query, SCOPES.c.id)


@cache
def present_vms_by(by: EqualColumns) -> str:
    return _in_order(_select_equal(VMS, by).where(_IS_PRESENT), VMS.c.position)


@cache
def events_by(by: EqualColumns, statuses: tuple[EventState, ...], newest: bool) -> str:
    """Return SQL for the events in these states whose columns `by` equal parameters so named."""
    query = _select_equal(EVENTS, by)
    if set(statuses) != set(EventState):  # without a condition SQLite reads the table from its end
        query = query.where(_status_in(statuses))
    return _in_order(query, EVENTS.c.position, newest=newest)


@cache
def history_by(by: EqualColumns, backwards: bool) -> str:
    """Return SQL for history entries whose columns `by` equal parameters of these names."""
    # It also takes the parameters `after`, `before` (sequence numbers, both excluded) and `limit`; all are needed, and
    # None would match nothing.
    seq = HISTORY.c.seq
    query = _select_equal(HISTORY, by).where(seq > bindparam("after"), seq < bindparam("before"))
    return compile_sql(_with_limit(query.order_by(seq.desc() if backwards else seq)))


@cache
def deliveries_by(by: EqualColumns) -> str:
    """Return SQL for the deliveries whose columns `by` equal parameters of these names."""
    status, version, scope = (delivery_labels.alias(f"{name}_label") for name in ("status", "version", "scope"))
    found = (
        deliveries.join(delivery_events, deliveries.c.event == delivery_events.c.number)
        .join(delivery_vms, deliveries.c.vm == delivery_vms.c.number)
        .join(status, deliveries.c.status == status.c.number)
        .join(version, deliveries.c.version == version.c.number)
        .join(scope, delivery_events.c.scope == scope.c.number)
    )
    columns = {"event_id": delivery_events.c.event_id, "vm": delivery_vms.c.vm}
    query = (
        select(
            delivery_events.c.event_id,
            scope.c.text,
            delivery_vms.c.vm,
            status.c.text,
            version.c.text,
            deliveries.c.incarnation,
            deliveries.c.at,
        )
        .select_from(found)
        .where(*(columns[name] == bindparam(name) for name in by))
    )
    order = (deliveries.c.at, delivery_events.c.event_id, delivery_vms.c.vm, status.c.text)
    return compile_sql(query.order_by(*order))


LAST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'history'"
