"""What readers ask SQLite. Each shape of a question is compiled the first time it is asked, and kept."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, Table, bindparam, false, func, literal_column, select, union_all

from forewarn.core.event import Status
from forewarn.store.schema import (
    clients,
    events,
    gates,
    grants,
    history,
    hosts,
    planned,
    polls,
    requests,
    saved,
    scopes,
    sightings,
    vms,
    webhooks,
)
from forewarn.store.statement import text_of

By = tuple[str, ...]  # the columns that must equal the parameters of their name


def _equal(table: Table, by: By) -> list[ColumnElement[bool]]:
    return [table.c[name] == bindparam(name) for name in by]


def _one(key: Column[Any], *columns: Column[Any]) -> str:
    return text_of(select(*columns).where(key == bindparam("row_id")))


def _at_most(query: Select[Any]) -> Select[Any]:
    return query.limit(bindparam("limit")).offset(literal_column("0"))


def _all(query: Select[Any], order: Column[Any], newest: bool) -> str:
    """In order; or, for the newest ones, backwards and limited."""
    return text_of(_at_most(query.order_by(order.desc())) if newest else query.order_by(order))


def _due(table: Table, *columns: Column[Any]) -> str:
    query = select(*columns).where(table.c.wakes_at <= bindparam("now"))
    return text_of(_at_most(query.order_by(table.c.wakes_at, table.c.id)))


def _status_is(statuses: tuple[Status, ...]) -> ColumnElement[bool]:
    if not statuses:
        return false()
    return events.c.status.in_([literal_column(f"'{status}'") for status in statuses])


def _events_over(newest: bool) -> str:
    at, position = events.c.over_at, events.c.position
    order = (at.desc(), position.desc()) if newest else (at, position)
    return text_of(
        _at_most(select(events.c.body).where(at.between(bindparam("since"), bindparam("until"))).order_by(*order))
    )


def _next_wake() -> str:
    first = union_all(*(select(func.min(table.c.wakes_at).label("at")) for table in (scopes, gates))).subquery()
    return text_of(select(func.min(first.c.at)))


def _among(column: Column[Any], name: str) -> ColumnElement[bool]:
    """In a list of any length, which is one parameter."""
    return column.in_(select(literal_column("value")).select_from(func.json_each(bindparam(name))))


def _counts() -> str:
    """Of `seam.Counts`, in the order of its fields."""
    every = func.count()
    there = (
        select(every).select_from(vms).where(_IS_PRESENT),
        select(every).select_from(scopes),
        select(every).select_from(hosts),
        select(every).select_from(events).where(_IS_LIVE),
    )
    return text_of(select(*(count.scalar_subquery() for count in there)))


_IS_PRESENT = vms.c.removed_at.is_(None)
_IS_LIVE = _status_is((Status.SCHEDULED, Status.STARTED))
SCOPE = _one(scopes.c.id, *scopes.columns)
PRESENT_VMS = text_of(
    select(vms.c.body).where(vms.c.scope_id == bindparam("row_id"), _IS_PRESENT).order_by(vms.c.position)
)
LIVE_EVENTS = text_of(
    select(events.c.body).where(events.c.scope_id == bindparam("row_id"), _IS_LIVE).order_by(events.c.seq)
)
SCOPES = text_of(select(scopes).order_by(scopes.c.id))
ALL_PRESENT_VMS = text_of(select(vms.c.scope_id, vms.c.body).where(_IS_PRESENT).order_by(vms.c.position))
ALL_LIVE_EVENTS = text_of(select(events.c.scope_id, events.c.body).where(_IS_LIVE).order_by(events.c.seq))
COUNTS = _counts()
ENABLED = text_of(select(func.count()).select_from(scopes).where(scopes.c.enabled_at.is_not(None)))
VM = _one(vms.c.key, vms.c.body)
HOSTS = text_of(select(hosts.c.body).order_by(hosts.c.name))
EVENT = _one(events.c.id, events.c.body)
EVENTS_OVER = {newest: _events_over(newest) for newest in (True, False)}
GATE = _one(gates.c.id, gates.c.body, gates.c.version, gates.c.wakes_at)
SCHEDULED_BEHIND = text_of(
    select(events.c.body)
    # The plus keeps SQLite from going through all that are scheduled, however few are behind the gates.
    .where(_among(events.c.gate_id, "gate_ids"), literal_column(f"+events.status = '{Status.SCHEDULED}'"))
    .order_by(events.c.position)
)
PLANNED_BEHIND = text_of(select(planned.c.gate_id).distinct().where(_among(planned.c.gate_id, "gate_ids")))
REQUEST = _one(requests.c.id, requests.c.body, requests.c.version)
CLIENT = _one(clients.c.id, clients.c.body)
CLIENTS = text_of(select(clients.c.body).order_by(clients.c.id))
WEBHOOKS = text_of(select(webhooks.c.body, webhooks.c.cursor).order_by(webhooks.c.position))
ENTRIES_AFTER = text_of(
    _at_most(select(history.c.body, history.c.seq).where(history.c.seq > bindparam("after")).order_by(history.c.seq))
)
SAVED = _one(saved.c.name, saved.c.value)
DUE_SCOPES = _due(scopes, scopes.c.id)
DUE_GATES = _due(gates, gates.c.body, gates.c.version, gates.c.wakes_at)
NEXT_WAKE = _next_wake()
VERSION = {table.name: _one(table.c.id, table.c.version) for table in (scopes, gates, requests)}


@cache
def scope_ids_by(enabled: bool | None) -> str:
    query = select(scopes.c.id).order_by(scopes.c.id)
    if enabled is None:
        return text_of(query)
    return text_of(query.where(scopes.c.enabled_at.is_not(None) if enabled else scopes.c.enabled_at.is_(None)))


@cache
def vms_by(by: By, removed: bool) -> str:
    query = select(vms.c.body).where(*_equal(vms, by))
    return _all(query if removed else query.where(vms.c.removed_at.is_(None)), vms.c.position, False)


@cache
def events_by(by: By, statuses: tuple[Status, ...], newest: bool) -> str:
    query = select(events.c.body).where(*_equal(events, by))
    if set(statuses) != set(Status):  # else the newest ones are simply the last
        query = query.where(_status_is(statuses))
    return _all(query, events.c.position, newest)


@cache
def requests_by(open_only: bool, newest: bool) -> str:
    query = select(requests.c.body, requests.c.version)
    query = query.where(requests.c.is_open == literal_column("1")) if open_only else query
    return _all(query, requests.c.position, newest)


@cache
def planned_by(by: By) -> str:
    return _all(select(planned.c.body).where(*_equal(planned, by)), planned.c.position, False)


@cache
def history_by(by: By, backwards: bool) -> str:
    seq = history.c.seq
    query = select(history.c.body, seq).where(seq > bindparam("after"), seq < bindparam("before"), *_equal(history, by))
    return text_of(_at_most(query.order_by(seq.desc() if backwards else seq)))


@cache
def sightings_by(by: By) -> str:
    return _all(select(sightings.c.body).where(*_equal(sightings, by)), sightings.c.position, False)


@cache
def polls_by(by: By) -> str:
    return _all(select(polls.c.body).where(*_equal(polls, by)), polls.c.vm, False)


@cache
def grants_by(by: By) -> str:
    return _all(select(grants.c.body).where(*_equal(grants, by)), grants.c.position, False)
