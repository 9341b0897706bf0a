"""SQL statements of the writer, written with SQLAlchemy Core and compiled to SQL text once.

ADD inserts unless the key exists, PUT inserts or replaces, UPDATE changes an existing row, REMOVE deletes by `row_id`.
Other parameters are named like the columns (see `row_codec`). `pruning` has the statements that delete old rows.
"""

from __future__ import annotations

from typing import Any

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

from forewarn.store.queries import compile_sql, in_json_list
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

_ZERO: ColumnElement[Any] = literal_column("0")
_ONE: ColumnElement[Any] = literal_column("1")
_UNINDEXED_COLUMNS = ("position", "body")  # of table `events`
_GENERATED_COLUMNS = ("position", "number")  # the database gives their values


def _insert_statement(table: Table, **special: ColumnElement[Any]) -> Insert:
    plain: dict[str, ColumnElement[Any]] = {
        c.name: bindparam(c.name) for c in table.columns if c.name not in (*_GENERATED_COLUMNS, *special)
    }
    return insert(table).values({**plain, **special})


def _insert_if_absent(table: Table) -> str:
    return compile_sql(_insert_statement(table).on_conflict_do_nothing())


def _upsert(table: Table, key: str) -> str:
    statement = _insert_statement(table)
    new = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in (key, "position")}
    return compile_sql(statement.on_conflict_do_update(index_elements=[key], set_=new))


def _update_versioned(table: Table, **special: ColumnElement[Any]) -> str:
    fixed = ("position", "id", "version")
    plain: dict[str, ColumnElement[Any]] = {
        c.name: bindparam(f"new_{c.name}") for c in table.columns if c.name not in fixed
    }
    values = {**plain, "version": table.c.version + _ONE, **special}
    found = and_(table.c.id == bindparam("row_id"), table.c.version == bindparam("decided_on"))
    return compile_sql(update(table).where(found).values(values))


def _update_event_body() -> str:
    """Return an update of an event's body; counts no row if an indexed column changes too."""
    same = (
        column.is_not_distinct_from(bindparam(column.name))
        for column in events.columns
        if column.name not in _UNINDEXED_COLUMNS
    )
    return compile_sql(update(events).where(and_(*same)).values(body=bindparam("body")))


def _delete_by_key(table: Table, key: str) -> str:
    return compile_sql(delete(table).where(table.c[key] == bindparam("row_id")))


def _is_host_at_version() -> ColumnElement[bool]:
    return and_(hosts.c.id == bindparam("id"), hosts.c.version == bindparam("decided_on"))


def _is_unchanged_host() -> ColumnElement[bool]:
    """A host whose version is the decided one, and to which no commit has brought VMs since."""
    return and_(_is_host_at_version(), hosts.c.arrivals == bindparam("arrivals"))


def _later(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.max(func.coalesce(one, other), func.coalesce(other, one))


def _upsert_vm() -> str:
    end = select(func.coalesce(func.max(vms.c.position), _ZERO) + _ONE).scalar_subquery()
    statement = _insert_statement(vms, position=end)
    new = statement.excluded
    is_restored = and_(vms.c.removed_at.is_not(None), new.removed_at.is_(None))
    position = case((or_(is_restored, vms.c.scope_id != new.scope_id), new.position), else_=vms.c.position)
    values = {name: new[name] for name in ("scope_id", "host", "removed_at", "body")}
    return compile_sql(statement.on_conflict_do_update(index_elements=["key"], set_={**values, "position": position}))


def _upsert_poll() -> str:
    statement = _insert_statement(polls)
    new = statement.excluded
    return compile_sql(
        statement.on_conflict_do_update(
            index_elements=["vm"],
            set_={"scope_id": new.scope_id, "at": new.at, "body": new.body},
            where=new.at >= polls.c.at,
        )
    )


def _delete_polls_of_removed_vms() -> str:
    removed = select(vms.c.key).where(in_json_list(vms.c.key, "keys"), vms.c.removed_at.is_not(None))
    return compile_sql(delete(polls).where(polls.c.vm.in_(removed)))


def _update_last_request() -> str:
    at = _later(scopes.c.last_request_at, bindparam("polled_at"))
    return compile_sql(update(scopes).where(scopes.c.id == bindparam("row_id")).values(last_request_at=at))


def _update_gate_wake() -> str:
    """Return an update that makes a gate due; a new version too, so that an earlier decision conflicts."""
    woken = {"wakes_at": _ZERO, "version": gates.c.version + _ONE}
    return compile_sql(update(gates).where(gates.c.id == bindparam("row_id")).values(woken))


def _number_of(table: Table, text: Column[Any], parameter: str) -> ScalarSelect[Any]:
    return select(table.c.number).where(text == bindparam(parameter)).scalar_subquery()


def _insert_delivery_event() -> str:
    scope = _number_of(delivery_labels, delivery_labels.c.text, "scope_text")
    return compile_sql(_insert_statement(delivery_events, scope=scope).on_conflict_do_nothing())


def _insert_delivery() -> str:
    numbers = {
        "event": _number_of(delivery_events, delivery_events.c.event_id, "event_id"),
        "vm": _number_of(delivery_vms, delivery_vms.c.vm, "vm_key"),
        "status": _number_of(delivery_labels, delivery_labels.c.text, "status_text"),
        "version": _number_of(delivery_labels, delivery_labels.c.text, "version_text"),
    }
    return compile_sql(_insert_statement(deliveries, **numbers).on_conflict_do_nothing().inline())


def _update_cursor() -> str:
    ahead = and_(webhooks.c.id == bindparam("row_id"), webhooks.c.cursor < bindparam("seq"))
    return compile_sql(update(webhooks).where(ahead).values(cursor=bindparam("seq")))


def _delete_old_measurements() -> str:
    position, request_id = measurements.c.position, measurements.c.request_id
    newest_old = (
        select(position)
        .where(request_id == bindparam("row_id"))
        .order_by(position.desc())
        .limit(_ONE)
        .offset(bindparam("kept"))
        .scalar_subquery()
    )
    return compile_sql(delete(measurements).where(request_id == bindparam("row_id"), position <= newest_old))


ADD_SCOPE = _insert_if_absent(scopes)
UPDATE_SCOPE = _update_versioned(
    scopes, last_request_at=_later(scopes.c.last_request_at, bindparam("new_last_request_at"))
)
PUT_VM = _upsert_vm()
UPDATE_EVENT_BODY = _update_event_body()
PUT_EVENT = _upsert(events, "id")
ADD_HOST = compile_sql(_insert_statement(hosts, version=_ONE, arrivals=_ZERO).on_conflict_do_nothing())
UPDATE_HOST = compile_sql(
    update(hosts).where(_is_unchanged_host()).values(version=hosts.c.version + _ONE, body=bindparam("body"))
)
REMOVE_HOST = compile_sql(delete(hosts).where(_is_unchanged_host()))
COUNT_ARRIVAL = compile_sql(update(hosts).where(_is_host_at_version()).values(arrivals=hosts.c.arrivals + _ONE))
ADD_GATE = _insert_if_absent(gates)
UPDATE_GATE = _update_versioned(gates)
WAKE_GATE = _update_gate_wake()
ADD_REQUEST = _insert_if_absent(requests)
UPDATE_REQUEST = _update_versioned(requests)
PUT_PLANNED = _upsert(planned, "event_id")
REMOVE_PLANNED = _delete_by_key(planned, "event_id")
ADD_ENTRY = compile_sql(insert(history).values({c.name: bindparam(c.name) for c in history.columns if c.name != "seq"}))
ADD_MEASUREMENT = compile_sql(_insert_statement(measurements))
REMOVE_OLD_MEASUREMENTS = _delete_old_measurements()
PUT_POLL = _upsert_poll()
REMOVE_POLLS_OF_REMOVED_VMS = _delete_polls_of_removed_vms()
UPDATE_LAST_REQUEST = _update_last_request()
ADD_DELIVERY_EVENT = _insert_delivery_event()
ADD_DELIVERY_VM = _insert_if_absent(delivery_vms)
ADD_DELIVERY_LABEL = _insert_if_absent(delivery_labels)
ADD_DELIVERY = _insert_delivery()
PUT_CLIENT = _upsert(clients, "id")
REMOVE_CLIENT = _delete_by_key(clients, "id")
PUT_GRANT = _upsert(grants, "id")
REMOVE_GRANT = _delete_by_key(grants, "id")
PUT_WEBHOOK = _upsert(webhooks, "id")
REMOVE_WEBHOOK = _delete_by_key(webhooks, "id")
UPDATE_CURSOR = _update_cursor()
PUT_CONFIGURATION = _upsert(maintenance_configurations, "id")
REMOVE_CONFIGURATION = _delete_by_key(maintenance_configurations, "id")
PUT_ASSIGNMENT = _upsert(configuration_assignments, "id")
REMOVE_ASSIGNMENT = _delete_by_key(configuration_assignments, "id")
PUT_SAVED = _upsert(saved, "name")
