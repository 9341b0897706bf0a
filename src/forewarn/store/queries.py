"""SQL queries of the SQLite store, written with SQLAlchemy Core and compiled to SQL text once.

Constants are queries without options; functions `*_by` return the query for rows whose columns `by` equal the
parameters of the same names (an empty tuple: all rows). Other parameters are `row_id` for a key, `limit` and `now`.
Column `body` is the value as JSON, which `row_codec` reads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, Table, bindparam, false, func, literal_column, select, union_all
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

from forewarn.core.event import EventState
from forewarn.store.schema import (
    clients,
    configuration_assignments,
    deliveries,
    delivery_events,
    delivery_labels,
    delivery_vms,
    events,
    gates,
    grants,
    history,
    hosts,
    maintenance_configurations,
    measurements,
    planned,
    polls,
    requests,
    saved,
    scopes,
    vms,
    webhooks,
)

EqualColumns = tuple[str, ...]  # columns that must equal the parameters of the same name


def _equal_conditions(table: Table, by: EqualColumns) -> list[ColumnElement[bool]]:
    return [table.c[name] == bindparam(name) for name in by]


def _select_by_key(key: Column[Any], *columns: Column[Any]) -> str:
    return compile_sql(select(*columns).where(key == bindparam("row_id")))


def _with_limit(query: Select[Any]) -> Select[Any]:
    return query.limit(bindparam("limit")).offset(literal_column("0"))


def _select_ordered(query: Select[Any], order: Column[Any], newest: bool) -> str:
    return compile_sql(_with_limit(query.order_by(order.desc())) if newest else query.order_by(order))


def _select_due(table: Table, *columns: Column[Any]) -> str:
    query = select(*columns).where(table.c.wakes_at <= bindparam("now"))
    return compile_sql(_with_limit(query.order_by(table.c.wakes_at, table.c.id)))


def _status_in(statuses: tuple[EventState, ...]) -> ColumnElement[bool]:
    if not statuses:
        return false()
    return events.c.status.in_([literal_column(f"'{status}'") for status in statuses])


def _select_events_ended(newest: bool) -> str:
    at, position = events.c.over_at, events.c.position
    order = (at.desc(), position.desc()) if newest else (at, position)
    return compile_sql(
        _with_limit(select(events.c.body).where(at.between(bindparam("since"), bindparam("until"))).order_by(*order))
    )


def _select_next_wake() -> str:
    first = union_all(*(select(func.min(table.c.wakes_at).label("at")) for table in (scopes, gates))).subquery()
    return compile_sql(select(func.min(first.c.at)))


def in_json_list(column: Column[Any], name: str) -> ColumnElement[bool]:
    """Return the condition that a column is in a list that is passed as one JSON parameter called `name`."""
    return column.in_(select(literal_column("value")).select_from(func.json_each(bindparam(name))))


def _select_counts() -> str:
    every = func.count()
    queries = (
        select(every).select_from(vms).where(_IS_PRESENT),
        select(every).select_from(scopes),
        select(every).select_from(hosts),
        select(every).select_from(events).where(_IS_LIVE),
    )
    return compile_sql(select(*(count.scalar_subquery() for count in queries)))


_IS_PRESENT = vms.c.removed_at.is_(None)
_IS_LIVE = _status_in((EventState.SCHEDULED, EventState.STARTED))
_DIALECT = sqlite.dialect(paramstyle="named")


def compile_sql(statement: ClauseElement) -> str:
    """Return the SQL text of a statement for SQLite, with named parameters."""
    compiled = statement.compile(dialect=_DIALECT)
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    assert not constants, f"write these with literal_column: {constants}"
    return str(compiled)


# By key `row_id`, or all rows, unless a comment says otherwise.
SCOPE = _select_by_key(scopes.c.id, *scopes.columns)
PRESENT_VMS = compile_sql(
    select(vms.c.body).where(vms.c.scope_id == bindparam("row_id"), _IS_PRESENT).order_by(vms.c.position)
)
LIVE_EVENTS = compile_sql(
    select(events.c.body).where(events.c.scope_id == bindparam("row_id"), _IS_LIVE).order_by(events.c.seq)
)
SCOPES = compile_sql(select(scopes).order_by(scopes.c.id))
ALL_PRESENT_VMS = compile_sql(select(vms.c.scope_id, vms.c.body).where(_IS_PRESENT).order_by(vms.c.position))
ALL_LIVE_EVENTS = compile_sql(select(events.c.scope_id, events.c.body).where(_IS_LIVE).order_by(events.c.seq))
COUNTS = _select_counts()
ENABLED_SCOPE_COUNT = compile_sql(select(func.count()).select_from(scopes).where(scopes.c.enabled_at.is_not(None)))
VM = _select_by_key(vms.c.key, vms.c.body)
# Present VMs with the field `program`, which JSON has only if it is not empty; tags may make it find further VMs.
VMS_WITH_PROGRAM = compile_sql(
    select(vms.c.body)
    .where(_IS_PRESENT, func.instr(vms.c.body, literal_column("""CAST('"program":' AS BLOB)""")))
    .order_by(vms.c.position)
)
HOSTS = compile_sql(select(hosts.c.body, hosts.c.version, hosts.c.arrivals).order_by(hosts.c.id))
EVENT = _select_by_key(events.c.id, events.c.body)
# By whether the newest ones are wanted; parameters: since, until, limit.
EVENTS_ENDED_BETWEEN = {newest: _select_events_ended(newest) for newest in (True, False)}
GATE = _select_by_key(gates.c.id, gates.c.body, gates.c.version, gates.c.wakes_at)
# Scheduled events, and gates with planned events, of the JSON list `gate_ids`.
SCHEDULED_BEHIND = compile_sql(
    select(events.c.body)
    # The plus keeps SQLite from using the status index, which would read all scheduled events.
    .where(in_json_list(events.c.gate_id, "gate_ids"), literal_column(f"+events.status = '{EventState.SCHEDULED}'"))
    .order_by(events.c.position)
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
PLANNED_BEHIND = compile_sql(select(planned.c.gate_id).distinct().where(in_json_list(planned.c.gate_id, "gate_ids")))
REQUEST = _select_by_key(requests.c.id, requests.c.body, requests.c.version)
CLIENT = _select_by_key(clients.c.id, clients.c.body)
CLIENTS = compile_sql(select(clients.c.body).order_by(clients.c.id))
CONFIGURATIONS = compile_sql(select(maintenance_configurations.c.body).order_by(maintenance_configurations.c.id))
ASSIGNMENTS = compile_sql(select(configuration_assignments.c.body).order_by(configuration_assignments.c.id))
WEBHOOKS = compile_sql(select(webhooks.c.body, webhooks.c.cursor).order_by(webhooks.c.position))
ENTRIES_AFTER = compile_sql(
    _with_limit(select(history.c.body, history.c.seq).where(history.c.seq > bindparam("after")).order_by(history.c.seq))
)
# Newest first; parameters: row_id of the rollout's request, limit.
MEASUREMENTS = compile_sql(
    _with_limit(
        select(measurements.c.body)
        .where(measurements.c.request_id == bindparam("row_id"))
        .order_by(measurements.c.position.desc())
    )
)
SAVED_VALUE = _select_by_key(saved.c.name, saved.c.value)
# By table name; parameter: row_id.
ROW_VERSION = {table.name: _select_by_key(table.c.id, table.c.version) for table in (scopes, hosts, gates, requests)}
SCOPE_VERSIONS = compile_sql(select(scopes.c.id, scopes.c.version))
DUE_SCOPES = _select_due(scopes, scopes.c.id)
DUE_GATES = _select_due(gates, gates.c.body, gates.c.version, gates.c.wakes_at)
NEXT_WAKE = _select_next_wake()


@cache
def scope_ids_by(enabled: bool | None) -> str:
    """Return SQL for sorted scope ids: of all scopes (None), enabled ones (True) or disabled ones (False)."""
    query = select(scopes.c.id).order_by(scopes.c.id)
    if enabled is None:
        return compile_sql(query)
    return compile_sql(query.where(scopes.c.enabled_at.is_not(None) if enabled else scopes.c.enabled_at.is_(None)))


@cache
def vms_by(by: EqualColumns, removed: bool) -> str:
    """Return SQL for the VMs (`body`) whose columns `by` equal parameters of these names."""
    query = select(vms.c.body).where(*_equal_conditions(vms, by))
    return _select_ordered(query if removed else query.where(vms.c.removed_at.is_(None)), vms.c.position, False)


@cache
def events_by(by: EqualColumns, statuses: tuple[EventState, ...], newest: bool) -> str:
    """Return SQL for the events (`body`) in these states whose columns `by` equal parameters so named."""
    query = select(events.c.body).where(*_equal_conditions(events, by))
    if set(statuses) != set(EventState):  # without a condition SQLite reads the table from its end
        query = query.where(_status_in(statuses))
    return _select_ordered(query, events.c.position, newest)


@cache
def requests_by(open_only: bool, newest: bool) -> str:
    """Return SQL for requests (`body`, `version`), oldest first; with `open_only`, only open ones."""
    query = select(requests.c.body, requests.c.version)
    query = query.where(requests.c.is_open == literal_column("1")) if open_only else query
    return _select_ordered(query, requests.c.position, newest)


@cache
def planned_by(by: EqualColumns) -> str:
    """Return SQL for the planned events (`body`) whose columns `by` equal parameters of these names."""
    return _select_ordered(select(planned.c.body).where(*_equal_conditions(planned, by)), planned.c.position, False)


@cache
def history_by(by: EqualColumns, backwards: bool) -> str:
    """Return SQL for history entries (`body`, `seq`) whose columns `by` equal parameters of these names."""
    # It also takes the parameters `after`, `before` (sequence numbers, both excluded) and `limit`; all are needed, and
    # None would match nothing.
    seq = history.c.seq
    query = select(history.c.body, seq).where(
        seq > bindparam("after"), seq < bindparam("before"), *_equal_conditions(history, by)
    )
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


@cache
def polls_by(by: EqualColumns) -> str:
    """Return SQL for the latest polls (`body`) whose columns `by` equal parameters of these names."""
    return _select_ordered(select(polls.c.body).where(*_equal_conditions(polls, by)), polls.c.vm, False)


@cache
def grants_by(by: EqualColumns) -> str:
    """Return SQL for the grants (`body`) whose columns `by` equal parameters of these names."""
    return _select_ordered(select(grants.c.body).where(*_equal_conditions(grants, by)), grants.c.position, False)


LAST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'history'"
