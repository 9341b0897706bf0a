"""Deliveries become small rows of numbers, and indexes find what is old enough to be pruned."""

from alembic import op
from sqlalchemy import Column, Float, Integer, LargeBinary, String, UniqueConstraint, literal_column

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Replace the table of sightings with deliveries, and add what pruning needs.

    Adds the request to gates, and indexes of removed VMs and of requests by time. In SQLite, sightings become
    deliveries, and gates stay; in PostgreSQL, which was not in use then, both are dropped.
    """
    _create_deliveries()
    if _is_sqlite():
        _copy_sightings()
    op.drop_table("sightings")
    _add_request_to_gates()
    op.create_index("vms_removed", "vms", ["removed_at"], sqlite_where=literal_column("removed_at IS NOT NULL"))
    op.create_index("requests_by_time", "requests", ["at"])


def _is_sqlite() -> bool:
    """Return whether there may be rows: forewarn has used PostgreSQL only since a later revision."""
    return op.get_bind().dialect.name == "sqlite"


def _create_deliveries() -> None:
    op.create_table(
        "delivery_events",
        Column("number", Integer, primary_key=True),
        Column("event_id", String, nullable=False),
        Column("scope", Integer, nullable=False),
        Column("first_at", Float, nullable=False),
        UniqueConstraint("event_id"),
    )
    op.create_index("delivery_events_by_time", "delivery_events", ["first_at"])
    op.create_table(
        "delivery_vms",
        Column("number", Integer, primary_key=True),
        Column("vm", String, nullable=False),
        UniqueConstraint("vm"),
    )
    op.create_table(
        "delivery_labels",
        Column("number", Integer, primary_key=True),
        Column("text", String, nullable=False),
        UniqueConstraint("text"),
    )
    op.create_table(
        "deliveries",
        Column("event", Integer, primary_key=True),
        Column("vm", Integer, primary_key=True),
        Column("status", Integer, primary_key=True),
        Column("version", Integer, nullable=False),
        Column("incarnation", Integer, nullable=False),
        Column("at", Float, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("deliveries_by_vm", "deliveries", ["vm"])


def _field(name: str) -> str:
    return f"json_extract(CAST(body AS TEXT), '$.{name}')"


def _copy_sightings() -> None:
    op.execute(
        "INSERT INTO delivery_labels (text) SELECT status FROM sightings"
        f" UNION SELECT {_field('version')} FROM sightings UNION SELECT {_field('scope_id')} FROM sightings"
    )
    op.execute("INSERT INTO delivery_vms (vm) SELECT DISTINCT vm FROM sightings ORDER BY vm")
    op.execute(
        "INSERT INTO delivery_events (event_id, scope, first_at)"
        f" SELECT event_id, min(delivery_labels.number), min({_field('at')}) FROM sightings"
        f" JOIN delivery_labels ON delivery_labels.text = {_field('scope_id')}"
        " GROUP BY event_id ORDER BY min(position)"
    )
    op.execute(
        "INSERT INTO deliveries (event, vm, status, version, incarnation, at)"
        " SELECT delivery_events.number, delivery_vms.number, status_label.number, version_label.number,"
        f" {_field('incarnation')}, {_field('at')} FROM sightings"
        " JOIN delivery_events ON delivery_events.event_id = sightings.event_id"
        " JOIN delivery_vms ON delivery_vms.vm = sightings.vm"
        " JOIN delivery_labels AS status_label ON status_label.text = sightings.status"
        f" JOIN delivery_labels AS version_label ON version_label.text = {_field('version')}"
        " ORDER BY 1, 2, 3"
    )


def _add_request_to_gates() -> None:
    op.drop_index("gates_due")
    if _is_sqlite():
        op.rename_table("gates", "old_gates")
    else:
        op.drop_table("gates")
    op.create_table(
        "gates",
        Column("id", String, primary_key=True),
        Column("version", Integer, nullable=False),
        Column("wakes_at", Float),
        Column("request_id", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    if _is_sqlite():
        op.execute(
            "INSERT INTO gates (id, version, wakes_at, request_id, body)"
            f" SELECT id, version, wakes_at, {_field('request_id')}, body FROM old_gates"
        )
        op.drop_table("old_gates")
    op.create_index("gates_due", "gates", ["wakes_at", "id"])
    op.create_index("gates_by_request", "gates", ["request_id"])
