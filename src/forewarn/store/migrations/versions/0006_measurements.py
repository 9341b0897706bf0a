"""Results of the health checks of rollouts get a table."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, String

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table of measurements of health checks."""
    op.create_table(
        "measurements",
        # The active control node gives the numbers, so PostgreSQL has none of its own.
        Column("position", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=False),
        Column("request_id", String, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_index("measurements_by_request", "measurements", ["request_id", "position"])
