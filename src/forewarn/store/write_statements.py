"""What the writer says to SQLite: written with SQLAlchemy Core, compiled once to text with named parameters."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
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
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.sql import ClauseElement

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

_ZERO: ColumnElement[Any] = literal_column("0")
_ONE: ColumnElement[Any] = literal_column("1")
_OVER: ColumnElement[Any] = literal_column(f"'{Status.OVER}'")
_OWN = ("position", "body")  # of an event's row, and nothing it is found by
_DIALECT = sqlite.dialect(paramstyle="named")


def text_of(statement: ClauseElement) -> str:
    """The statement as SQLite reads it. Its parameters are the named ones; constants are written out."""
    compiled = statement.compile(dialect=_DIALECT)
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    assert not constants, f"write these with literal_column: {constants}"
    return str(compiled)


def _insert(table: Table, **special: ColumnElement[Any]) -> Insert:
    """An insert of every column but a generated `position`; parameters are named like the columns."""
    plain: dict[str, ColumnElement[Any]] = {c.name: bindparam(c.name) for c in table.columns if c.name != "position"}
    return insert(table).values({**plain, **special})


def _add(table: Table) -> str:
    """Inserts a row, or changes nothing (and counts no row) where its key exists."""
    return text_of(_insert(table).on_conflict_do_nothing())


def _put(table: Table, key: str) -> str:
    """Inserts a row or puts it in place of the one with its key."""
    statement = _insert(table)
    news = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in (key, "position")}
    return text_of(statement.on_conflict_do_update(index_elements=[key], set_=news))


def _move(table: Table, **special: ColumnElement[Any]) -> str:
    """Changes the row `row_id` from version `decided_on` to the next; counts no row where it has moved on."""
    fixed = ("position", "id", "version")
    plain: dict[str, ColumnElement[Any]] = {
        c.name: bindparam(f"new_{c.name}") for c in table.columns if c.name not in fixed
    }
    values = {**plain, "version": table.c.version + _ONE, **special}
    found = and_(table.c.id == bindparam("row_id"), table.c.version == bindparam("decided_on"))
    return text_of(update(table).where(found).values(values))


def _change_event() -> str:
    """Puts a new body in an event's row; counts no row where anything is new that it can be found by."""
    same = (column.is_not_distinct_from(bindparam(column.name)) for column in events.columns if column.name not in _OWN)
    return text_of(update(events).where(and_(*same)).values(body=bindparam("body")))


def _remove(table: Table, key: str) -> str:
    return text_of(delete(table).where(table.c[key] == bindparam("row_id")))


def _later(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.max(func.coalesce(one, other), func.coalesce(other, one))


def _put_vm() -> str:
    """A VM that is new in its scope, or comes back, is put behind all others."""
    end = select(func.coalesce(func.max(vms.c.position), _ZERO) + _ONE).scalar_subquery()
    statement = _insert(vms, position=end)
    new = statement.excluded
    comes_back = and_(vms.c.removed_at.is_not(None), new.removed_at.is_(None))
    position = case((or_(comes_back, vms.c.scope_id != new.scope_id), new.position), else_=vms.c.position)
    values = {name: new[name] for name in ("scope_id", "host", "removed_at", "body")}
    return text_of(statement.on_conflict_do_update(index_elements=["key"], set_={**values, "position": position}))


def _put_poll() -> str:
    statement = _insert(polls)
    new = statement.excluded
    return text_of(
        statement.on_conflict_do_update(
            index_elements=["vm"],
            set_={"scope_id": new.scope_id, "at": new.at, "body": new.body},
            where=new.at >= polls.c.at,
        )
    )


def _touch_scope() -> str:
    at = _later(scopes.c.last_request_at, bindparam("polled_at"))
    return text_of(update(scopes).where(scopes.c.id == bindparam("row_id")).values(last_request_at=at))


def _wake_gate() -> str:
    """A new version too: a decision made before the gate was woken must not put it back to sleep."""
    woken = {"wakes_at": _ZERO, "version": gates.c.version + _ONE}
    return text_of(update(gates).where(gates.c.id == bindparam("row_id")).values(woken))


def _move_cursor() -> str:
    """Never back, and nothing where the webhook is gone."""
    ahead = and_(webhooks.c.id == bindparam("row_id"), webhooks.c.cursor < bindparam("seq"))
    return text_of(update(webhooks).where(ahead).values(cursor=bindparam("seq")))


ADD_SCOPE = _add(scopes)
MOVE_SCOPE = _move(scopes, last_request_at=_later(scopes.c.last_request_at, bindparam("new_last_request_at")))
PUT_VM = _put_vm()
CHANGE_EVENT = _change_event()
PUT_EVENT = _put(events, "id")
PUT_HOST = _put(hosts, "name")
REMOVE_HOST = _remove(hosts, "name")
ADD_GATE = _add(gates)
MOVE_GATE = _move(gates)
WAKE_GATE = _wake_gate()
ADD_REQUEST = _add(requests)
MOVE_REQUEST = _move(requests)
PUT_PLANNED = _put(planned, "event_id")
REMOVE_PLANNED = _remove(planned, "event_id")
ADD_ENTRY = text_of(insert(history).values({c.name: bindparam(c.name) for c in history.columns if c.name != "seq"}))
PUT_POLL = _put_poll()
TOUCH_SCOPE = _touch_scope()
ADD_SIGHTING = _add(sightings)
PUT_CLIENT = _put(clients, "id")
REMOVE_CLIENT = _remove(clients, "id")
PUT_GRANT = _put(grants, "id")
REMOVE_GRANT = _remove(grants, "id")
PUT_WEBHOOK = _put(webhooks, "id")
REMOVE_WEBHOOK = _remove(webhooks, "id")
MOVE_CURSOR = _move_cursor()
PUT_SAVED = _put(saved, "name")

# A rollout reads off its events which VMs it is done with, so they stay as long as it is under way.
_UNDER_WAY = select(requests.c.id).where(requests.c.is_open == _ONE)
_PAST = and_(events.c.status == _OVER, events.c.over_at < bindparam("before"), events.c.request_id.not_in(_UNDER_WAY))
PRUNE_SIGHTINGS = text_of(delete(sightings).where(sightings.c.event_id.in_(select(events.c.id).where(_PAST))))
PRUNE_EVENTS = text_of(delete(events).where(_PAST))
PRUNE_HISTORY = text_of(delete(history).where(history.c.at < bindparam("before")))
LAST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'history'"
