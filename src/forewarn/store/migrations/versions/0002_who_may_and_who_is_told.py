"""Who may do what, and who outside is told."""

from alembic import op
from sqlalchemy import Column, Integer, LargeBinary, String, UniqueConstraint

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables of clients, grants and webhooks."""
    op.create_table(
        "clients",
        Column("id", String, primary_key=True),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_table(
        "grants",
        Column("position", Integer, primary_key=True),
        Column("id", String, nullable=False),
        Column("to", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("id"),
    )
    op.create_index("grants_by_principal", "grants", ["to"])
    op.create_table(
        "webhooks",
        Column("position", Integer, primary_key=True),
        Column("id", String, nullable=False),
        Column("cursor", Integer, nullable=False),
        Column("body", LargeBinary, nullable=False),
        UniqueConstraint("id"),
    )
