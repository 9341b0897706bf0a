"""The first tables."""

from alembic import op
from sqlalchemy import Column, Float, Integer, LargeBinary, String, UniqueConstraint

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables of the first release: of the fleet, of work, and of the history."""
    _create_fleet()
    _create_work()
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
    op.create_table(
        "hosts",
        Column("name", String, primary_key=True),
        Column("body", LargeBinary, nullable=False),
    )


def _create_work() -> None:
    op.create_table(
        "events",
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
        Column("body", LargeBinary, nullable=False),
    )
    op.create_index("gates_due", "gates", ["wakes_at", "id"])
    op.create_table(
        "requests",
        Column("position", Integer, primary_key=True),
        Column("id", String, nullable=False),
        Column("version", Integer, nullable=False),
        Column("is_open", Integer, nullable=False),
        Column("at", Float, nullable=False),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("id"),
    )
    op.create_index("requests_open", "requests", ["is_open"])
    op.create_table(
        "planned",
        Column("position", Integer, primary_key=True),
        Column("event_id", String, nullable=False),
        Column("request_id", String, nullable=False),
        Column("scope_id", String, nullable=False),
        Column("gate_id", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("event_id"),
    )
    op.create_index("planned_by_request", "planned", ["request_id"])
    op.create_index("planned_by_gate", "planned", ["gate_id"])


def _create_record() -> None:
    op.create_table(
        "history",
        Column("seq", Integer, primary_key=True),
        Column("at", Float, nullable=False),
        Column("what", String, nullable=False),
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
        "sightings",
        Column("position", Integer, primary_key=True),
        Column("event_id", String, nullable=False),
        Column("vm", String, nullable=False),
        Column("status", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("event_id", "vm", "status"),
    )
    op.create_index("sightings_by_vm", "sightings", ["vm"])
    op.create_table(
        "polls",
        Column("vm", String, primary_key=True),
        Column("scope_id", String, nullable=False),
        Column("at", Float, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_index("polls_by_scope", "polls", ["scope_id"])
    op.create_table(
        "saved",
        Column("name", String, primary_key=True),
        Column("value", LargeBinary, nullable=False),
    )
