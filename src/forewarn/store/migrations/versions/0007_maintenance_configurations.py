"""Maintenance configurations and their assignments."""

from alembic import op
from sqlalchemy import Column, LargeBinary, String

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the tables of maintenance configurations and of their assignments."""
    for table in ("maintenance_configurations", "configuration_assignments"):
        op.create_table(table, Column("id", String, primary_key=True), Column("body", LargeBinary, nullable=False))
