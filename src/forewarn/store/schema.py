"""The SQL tables: a column for each field that queries use; column `body` holds the value as JSON.

They are the same in SQLite and in PostgreSQL; `migrations` says which tables only one of them has. A change here needs
a migration in `migrations/versions` and its number in REVISIONS; a test compares the two.
"""

from __future__ import annotations

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

APPLICATION_ID = 0x4657524E  # "FWRN", in the header of every store file
REVISIONS = ("0001",)  # ids of the migrations, oldest first
REVISION = REVISIONS[-1]  # of a store that is up to date; also the user_version of the file

# 64 bits on both engines: an epoch is a time in seconds, and 32 bits end in 2038.
Integer = BigInteger().with_variant(Int(), "sqlite")

metadata = MetaData()

scopes = Table(
    "scopes",
    metadata,
    Column("id", String, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("enabled_at", Float),
    Column("last_request_at", Float),
    Column("next_seq", Integer, nullable=False),
    Column("wakes_at", Float),
    Index("scopes_due", "wakes_at", "id"),
)

vms = Table(
    "vms",
    metadata,
    Column("key", String, primary_key=True),
    Column("scope_id", String, nullable=False),
    Column("host", String, nullable=False),
    Column("removed_at", Float),
    Column("position", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("vms_by_scope", "scope_id", "position"),
    Index("vms_by_host", "host", "position"),
    Index("vms_by_position", "position"),
    Index("vms_removed", "removed_at", sqlite_where=literal_column("removed_at IS NOT NULL")),
)

hosts = Table(
    "hosts",
    metadata,
    Column("id", String, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("arrivals", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("position", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("scope_id", String, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("request_id", String, nullable=False),
    Column("gate_id", String, nullable=False),
    Column("status", String, nullable=False),
    Column("over_at", Float),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("id"),
    Index("events_by_scope", "scope_id", "status", "seq"),
    Index("events_by_status", "status"),
    Index("events_by_request", "request_id"),
    Index("events_by_gate", "gate_id"),
    Index("events_over", "over_at"),
)

gates = Table(
    "gates",
    metadata,
    Column("id", String, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("wakes_at", Float),
    Column("request_id", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("gates_due", "wakes_at", "id"),
    Index("gates_by_request", "request_id"),
)

requests = Table(
    "requests",
    metadata,
    Column("position", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("is_open", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("id"),
    Index("requests_open", "is_open"),
    Index("requests_by_time", "at"),
)

planned = Table(
    "planned",
    metadata,
    Column("position", Integer, primary_key=True),
    Column("event_id", String, nullable=False),
    Column("request_id", String, nullable=False),
    Column("scope_id", String, nullable=False),
    Column("gate_id", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("event_id"),
    Index("planned_by_request", "request_id"),
    Index("planned_by_gate", "gate_id"),
)

history = Table(
    "history",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("scope_id", String, nullable=False),
    Column("event_id", String, nullable=False),
    Column("request_id", String, nullable=False),
    Column("vm", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("history_by_scope", "scope_id"),
    Index("history_by_event", "event_id"),
    Index("history_by_request", "request_id"),
    Index("history_by_vm", "vm"),
    Index("history_by_time", "at"),
    sqlite_autoincrement=True,  # so that a number is never used twice, even after pruning
)

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

polls = Table(
    "polls",
    metadata,
    Column("vm", String, primary_key=True),
    Column("scope_id", String, nullable=False),
    Column("at", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("polls_by_scope", "scope_id"),
)

saved = Table(
    "saved",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

clients = Table(
    "clients",
    metadata,
    Column("id", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

grants = Table(
    "grants",
    metadata,
    Column("position", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("principal", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("id"),
    Index("grants_by_principal", "principal"),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("position", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("cursor", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("id"),
)

# Results of the health checks of rollouts.
measurements = Table(
    "measurements",
    metadata,
    Column("position", Integer, primary_key=True),
    Column("request_id", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("measurements_by_request", "request_id", "position"),
)

maintenance_configurations = Table(
    "maintenance_configurations",
    metadata,
    Column("id", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

configuration_assignments = Table(
    "configuration_assignments",
    metadata,
    Column("id", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
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
