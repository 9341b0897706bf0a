"""The stored types, and the SQL tables.

A stored type is one declaration: its table, how its values become rows, and which fields of a commit write it. The
statements of the SQLite store and the dictionaries of the memory store follow from it. Tables are the same in SQLite
and in PostgreSQL; `migrations` says which of them only one engine has. A change here needs a migration in
`migrations/versions` and its number in REVISIONS; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.json import Decoder, Encoder
from msgspec.structs import force_setattr
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    literal_column,
)
from sqlalchemy import Integer as Int

from forewarn.core.access import Grant, RegisteredClient
from forewarn.core.commit import SavedValue
from forewarn.core.event import Event, Gate
from forewarn.core.fleet import Host, Vm
from forewarn.core.health import Measurement
from forewarn.core.history import HistoryEntry, LastPoll
from forewarn.core.maintenance_configuration import ConfigurationAssignment, MaintenanceConfiguration
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.scope import Scope
from forewarn.core.webhook import WebhookSubscription

Row = TypeVar("Row", bound=Struct)
SqlRow = dict[str, Any]  # parameters of a write statement: column → value

APPLICATION_ID = 0x4657524E  # "FWRN", in the header of every store file
REVISIONS = ("0001",)  # ids of the migrations, oldest first
REVISION = REVISIONS[-1]  # of a store that is up to date; also the user_version of the file

# 64 bits on both engines: an epoch is a time in seconds, and 32 bits end in 2038.
Integer = BigInteger().with_variant(Int(), "sqlite")

metadata = MetaData()
_encode = Encoder().encode


def _text(name: str) -> Column[Any]:
    return Column(name, String, nullable=False)


def _integer(name: str) -> Column[Any]:
    return Column(name, Integer, nullable=False)


def _time(name: str, *, optional: bool = False) -> Column[Any]:
    return Column(name, Float, nullable=optional)


class StoredType(Generic[Row]):
    """How values of one type are stored: a column for each field that queries use, and the whole as JSON in `body`."""

    def __init__(
        self,
        table: str,
        type_: type[Row],
        *parts: Column[Any] | Index,
        key: str = "id",  # the column by which a value is found, replaced and removed; "": none
        order: str = "",  # the column by which values are sorted, with a number from the database; "": the key
        attributes: Mapping[str, str] = {},  # column → the attribute that it has, if that is called otherwise
        overrides: Sequence[str] = (),  # columns that statements change alone: what they say counts, not the body
        has_body: bool = True,  # False: the columns are the whole value
        changed: str = "",  # the field of `Commit` with new and changed values; "": it is called like the table
        removed: str = "",  # the field of `Commit` with keys of values to remove; "": there is none
        **options: Any,
    ) -> None:
        self.name = table
        columns = [part for part in parts if isinstance(part, Column)]
        is_numbered = order != "" and order not in [column.name for column in columns]
        leading = [Column[Any](order, Integer, primary_key=True)] if is_numbered else []
        if key:
            leading.append(Column(key, String, primary_key=not is_numbered, nullable=False))
        body = [Column("body", LargeBinary, nullable=False)] if has_body else []
        unique = [UniqueConstraint(key)] if key and is_numbered else []
        indexes = [part for part in parts if isinstance(part, Index)]
        self.sql = Table(table, metadata, *leading, *columns, *body, *unique, *indexes, **options)
        self.c = self.sql.columns
        self.key = key
        self.order = order or key
        self.read_columns = [self.c[name] for name in ("body", *overrides)] if has_body else [*self.c]
        self.key_of = attrgetter(attributes.get(key, key))
        self.changed = attrgetter(changed or table)
        self.removed = attrgetter(removed) if removed else None
        self._type, self._has_body = type_, has_body
        self._decode = Decoder(type_).decode
        self._overrides = overrides
        # Returns the value of a row, of which it takes the columns `read_columns`.
        self.read: Callable[..., Row] = self._decode
        if overrides:
            self.read = self._read_with_overrides
        elif not has_body:
            self.read = self._read_columns
        written = [column.name for column in (*leading, *columns) if column.name != order]
        self._fields = [(name, attrgetter(attributes.get(name, name))) for name in written]

    def row(self, value: Row) -> SqlRow:
        """Return the row of a value as column → value, without the number that the database gives."""
        row = {name: field(value) for name, field in self._fields}
        if self._has_body:
            row["body"] = _encode(value)
        return row

    def _read_columns(self, *row: Any) -> Row:
        return self._type(**dict(zip(self.c.keys(), row, strict=True)))

    def _read_with_overrides(self, body: bytes, *columns: Any) -> Row:
        value = self._decode(body)
        for name, column in zip(self._overrides, columns, strict=True):
            force_setattr(value, name, column)  # nobody else has the value yet
        return value


SCOPES = StoredType(
    "scopes",
    Scope,
    _integer("version"),
    _integer("epoch"),
    _integer("incarnation"),
    _time("enabled_at", optional=True),
    _time("last_request_at", optional=True),
    _integer("next_seq"),
    _time("wakes_at", optional=True),
    Index("scopes_due", "wakes_at", "id"),
    has_body=False,
)

VMS = StoredType(
    "vms",
    Vm,
    _text("scope_id"),
    _text("host"),
    _time("removed_at", optional=True),
    _integer("position"),
    Index("vms_by_scope", "scope_id", "position"),
    Index("vms_by_host", "host", "position"),
    Index("vms_by_position", "position"),
    Index("vms_removed", "removed_at", sqlite_where=literal_column("removed_at IS NOT NULL")),
    key="key",
    order="position",
)

HOSTS = StoredType("hosts", Host, _integer("version"), _integer("arrivals"), overrides=("version", "arrivals"))

EVENTS = StoredType(
    "events",
    Event,
    _text("scope_id"),
    _integer("seq"),
    _text("request_id"),
    _text("gate_id"),
    _text("status"),
    _time("over_at", optional=True),
    Index("events_by_scope", "scope_id", "status", "seq"),
    Index("events_by_status", "status"),
    Index("events_by_request", "request_id"),
    Index("events_by_gate", "gate_id"),
    Index("events_over", "over_at"),
    order="position",
    attributes={"status": "status.value"},
)

GATES = StoredType(
    "gates",
    Gate,
    _integer("version"),
    _time("wakes_at", optional=True),
    _text("request_id"),
    Index("gates_due", "wakes_at", "id"),
    Index("gates_by_request", "request_id"),
    overrides=("version", "wakes_at"),
)

REQUESTS = StoredType(
    "requests",
    MaintenanceRequest,
    _integer("version"),
    _integer("is_open"),
    _time("at"),
    Index("requests_open", "is_open"),
    Index("requests_by_time", "at"),
    order="position",
    attributes={"at": "requested_at"},
    overrides=("version",),
)

PLANNED = StoredType(
    "planned",
    PlannedEvent,
    _text("request_id"),
    _text("scope_id"),
    _text("gate_id"),
    Index("planned_by_request", "request_id"),
    Index("planned_by_gate", "gate_id"),
    key="event_id",
    order="position",
    removed="unplanned",
)

HISTORY = StoredType(
    "history",
    HistoryEntry,
    _time("at"),
    _text("kind"),
    _text("scope_id"),
    _text("event_id"),
    _text("request_id"),
    _text("vm"),
    Index("history_by_scope", "scope_id"),
    Index("history_by_event", "event_id"),
    Index("history_by_request", "request_id"),
    Index("history_by_vm", "vm"),
    Index("history_by_time", "at"),
    key="",
    order="seq",
    attributes={"kind": "kind.value"},
    overrides=("seq",),
    sqlite_autoincrement=True,  # so that a number is never used twice, even after pruning
)

POLLS = StoredType("polls", LastPoll, _text("scope_id"), _time("at"), Index("polls_by_scope", "scope_id"), key="vm")

CLIENTS = StoredType("clients", RegisteredClient, removed="removed_clients")

GRANTS = StoredType(
    "grants",
    Grant,
    _text("principal"),
    Index("grants_by_principal", "principal"),
    order="position",
    removed="removed_grants",
)

WEBHOOKS = StoredType(
    "webhooks",
    WebhookSubscription,
    _integer("cursor"),
    order="position",
    overrides=("cursor",),
    removed="removed_webhooks",
)

# Results of the health checks of rollouts.
MEASUREMENTS = StoredType(
    "measurements",
    Measurement,
    _text("request_id"),
    Index("measurements_by_request", "request_id", "position"),
    key="",
    order="position",
)

CONFIGURATIONS = StoredType(
    "maintenance_configurations",
    MaintenanceConfiguration,
    attributes={"id": "key"},
    changed="configurations",
    removed="removed_configurations",
)

ASSIGNMENTS = StoredType(
    "configuration_assignments",
    ConfigurationAssignment,
    attributes={"id": "key"},
    changed="assignments",
    removed="removed_assignments",
)

SAVED = StoredType("saved", SavedValue, Column("value", LargeBinary, nullable=False), key="name", has_body=False)

# Those that a commit puts and removes by key, without a check of a version.
PUT_BY_KEY: tuple[StoredType[Any], ...] = (PLANNED, CLIENTS, GRANTS, WEBHOOKS, CONFIGURATIONS, ASSIGNMENTS, SAVED)

# A delivery is a small row of numbers, because there is one for each event, VM and status: these three tables hold
# the texts. An event is in one scope.
delivery_events = Table(
    "delivery_events",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("event_id", String, nullable=False),
    Column("scope", Integer, nullable=False),
    Column("first_at", Float, nullable=False),
    UniqueConstraint("event_id"),
    Index("delivery_events_by_time", "first_at"),
)

delivery_vms = Table(
    "delivery_vms",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("vm", String, nullable=False),
    UniqueConstraint("vm"),
)

delivery_labels = Table(
    "delivery_labels",  # statuses, api-versions and scope ids
    metadata,
    Column("number", Integer, primary_key=True),
    Column("text", String, nullable=False),
    UniqueConstraint("text"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("event", Integer, primary_key=True),
    Column("vm", Integer, primary_key=True),
    Column("status", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Index("deliveries_by_vm", "vm"),
    sqlite_with_rowid=False,
)

# Only in SQLite, and empty unless the store is a copy of a record (see `record`): the last group that the copy has.
record_position = Table(
    "record_position",
    metadata,
    Column("record_id", String, primary_key=True),
    Column("term", Integer, nullable=False),
    Column("number", Integer, nullable=False),
    Column("hash", String, nullable=False, server_default=""),
)
