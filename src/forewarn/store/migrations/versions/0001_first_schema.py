"""The first schema: every table of a store (SQLite), and of a record of control nodes (PostgreSQL)."""

from alembic import op
from sqlalchemy import BigInteger, Column, Float, LargeBinary, String, UniqueConstraint, literal_column
from sqlalchemy import Integer as Int

revision = "0001"
down_revision = None

# 64 bits on both engines. PostgreSQL gives no numbers of its own: the active control node gives them.
Integer = BigInteger().with_variant(Int(), "sqlite")


def upgrade() -> None:
    """Create all tables: those that both engines have, then those of one of them."""
    _create_fleet()
    _create_work()
    _create_history()
    _create_access()
    if op.get_bind().dialect.name == "sqlite":
        _create_copy()
    else:
        _create_record()


def _create_fleet() -> None:
    op.create_table(
        "scopes",
        Column("id", String, primary_key=True),
        Column("version", Integer, nullable=False),
        Column("epoch", Integer, nullable=False),
        Column("incarnation", Integer, nullable=False),
        Column("enabled_at", Float),
        Column("last_request_at", Float),
        Column("next_seq", Integer, nullable=False),
        Column("wakes_at", Float),
    )
    op.create_index("scopes_due", "scopes", ["wakes_at", "id"])
    op.create_table(
        "vms",
        Column("key", String, primary_key=True),
        Column("scope_id", String, nullable=False),
        Column("host", String, nullable=False),
        Column("removed_at", Float),
        Column("position", Integer, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_index("vms_by_scope", "vms", ["scope_id", "position"])
    op.create_index("vms_by_host", "vms", ["host", "position"])
    op.create_index("vms_by_position", "vms", ["position"])
    op.create_index("vms_removed", "vms", ["removed_at"], sqlite_where=literal_column("removed_at IS NOT NULL"))
    op.create_table(
        "hosts",
        Column("id", String, primary_key=True),
        Column("version", Integer, nullable=False),
        Column("arrivals", Integer, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )


def _create_work() -> None:
    op.create_table(
        "events",
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("id", String, nullable=False),
        Column("scope_id", String, nullable=False),
        Column("seq", Integer, nullable=False),
        Column("request_id", String, nullable=False),
        Column("gate_id", String, nullable=False),
        Column("status", String, nullable=False),
        Column("over_at", Float),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("id"),
    )
    op.create_index("events_by_scope", "events", ["scope_id", "status", "seq"])
    op.create_index("events_by_status", "events", ["status"])
    op.create_index("events_by_request", "events", ["request_id"])
    op.create_index("events_by_gate", "events", ["gate_id"])
    op.create_index("events_over", "events", ["over_at"])
    op.create_table(
        "gates",
        Column("id", String, primary_key=True),
        Column("version", Integer, nullable=False),
        Column("wakes_at", Float),
        Column("request_id", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_index("gates_due", "gates", ["wakes_at", "id"])
    op.create_index("gates_by_request", "gates", ["request_id"])
    op.create_table(
        "requests",
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("id", String, nullable=False),
        Column("version", Integer, nullable=False),
        Column("is_open", Integer, nullable=False),
        Column("at", Float, nullable=False),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("id"),
    )
    op.create_index("requests_open", "requests", ["is_open"])
    op.create_index("requests_by_time", "requests", ["at"])
    op.create_table(
        "planned",
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("event_id", String, nullable=False),
        Column("request_id", String, nullable=False),
        Column("scope_id", String, nullable=False),
        Column("gate_id", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("event_id"),
    )
    op.create_index("planned_by_request", "planned", ["request_id"])
    op.create_index("planned_by_gate", "planned", ["gate_id"])
    op.create_table(
        "measurements",
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("request_id", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_index("measurements_by_request", "measurements", ["request_id", "position"])
    op.create_table(
        "maintenance_configurations",
        Column("id", String, primary_key=True),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_table(
        "configuration_assignments",
        Column("id", String, primary_key=True),
        Column("body", LargeBinary, nullable=False),
    )


def _create_history() -> None:
    op.create_table(
        "history",
        Column("seq", Integer, primary_key=True, autoincrement=False),
        Column("at", Float, nullable=False),
        Column("kind", String, nullable=False),
        Column("scope_id", String, nullable=False),
        Column("event_id", String, nullable=False),
        Column("request_id", String, nullable=False),
        Column("vm", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("history_by_scope", "history", ["scope_id"])
    op.create_index("history_by_event", "history", ["event_id"])
    op.create_index("history_by_request", "history", ["request_id"])
    op.create_index("history_by_vm", "history", ["vm"])
    op.create_index("history_by_time", "history", ["at"])
    op.create_table(
        "delivery_events",
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("event_id", String, nullable=False),
        Column("scope", Integer, nullable=False),
        Column("first_at", Float, nullable=False),
        UniqueConstraint("event_id"),
    )
    op.create_index("delivery_events_by_time", "delivery_events", ["first_at"])
    op.create_table(
        "delivery_vms",
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("vm", String, nullable=False),
        UniqueConstraint("vm"),
    )
    op.create_table(
        "delivery_labels",
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("text", String, nullable=False),
        UniqueConstraint("text"),
    )
    op.create_table(
        "deliveries",
        Column("event", Integer, primary_key=True, autoincrement=False),
        Column("vm", Integer, primary_key=True, autoincrement=False),
        Column("status", Integer, primary_key=True, autoincrement=False),
        Column("version", Integer, nullable=False),
        Column("incarnation", Integer, nullable=False),
        Column("at", Float, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("deliveries_by_vm", "deliveries", ["vm"])
    op.create_table(
        "saved",
        Column("name", String, primary_key=True),
        Column("value", LargeBinary, nullable=False),
    )


def _create_access() -> None:
    op.create_table(
        "clients",
        Column("id", String, primary_key=True),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_table(
        "grants",
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("id", String, nullable=False),
        Column("principal", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("id"),
    )
    op.create_index("grants_by_principal", "grants", ["principal"])
    op.create_table(
        "webhooks",
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("id", String, nullable=False),
        Column("cursor", Integer, nullable=False),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("id"),
    )


def _create_copy() -> None:
    """What only a control node has: the polls of its VMs, and the position of its copy of a record."""
    op.create_table(
        "polls",
        Column("vm", String, primary_key=True),
        Column("scope_id", String, nullable=False),
        Column("at", Float, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_index("polls_by_scope", "polls", ["scope_id"])
    op.create_table(
        "record_position",
        Column("record_id", String, primary_key=True),
        Column("term", Integer, nullable=False),
        Column("number", Integer, nullable=False),
        Column("hash", String, nullable=False, server_default=""),
    )


def _create_record() -> None:
    """The lease, the log of groups of writes, and the control nodes."""
    op.execute(
        "CREATE TABLE lease (shard int PRIMARY KEY, record_id text NOT NULL, term bigint NOT NULL,"
        " holder text NOT NULL, url text NOT NULL, expires_at timestamptz NOT NULL, n bigint NOT NULL,"
        " seq bigint NOT NULL, clock double precision NOT NULL, lost text NOT NULL DEFAULT '',"
        " demands_standby boolean NOT NULL DEFAULT false)"
    )
    op.execute("INSERT INTO lease VALUES (0, gen_random_uuid()::text, 0, '', '', '-infinity', 0, 0, 0)")
    op.execute(
        "CREATE TABLE log (n bigint PRIMARY KEY, term bigint NOT NULL, revision text NOT NULL, seq bigint NOT NULL,"
        " clock double precision NOT NULL, body bytea, at timestamptz NOT NULL DEFAULT clock_timestamp(),"
        " hash text NOT NULL DEFAULT '')"
    )
    op.execute("CREATE INDEX log_by_time ON log (at)")
    op.execute(
        "CREATE TABLE nodes (name text PRIMARY KEY, url text NOT NULL, role text NOT NULL, version text NOT NULL,"
        " number bigint NOT NULL, status text NOT NULL,"
        " seen_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
