"""A record and its copies know by a chained hash which groups they have, and whether a standby is demanded."""

from alembic import op
from sqlalchemy import Column, String

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the hash of a group to the positions of copies (SQLite), or to the log, and two facts to the lease."""
    if op.get_bind().dialect.name == "sqlite":
        op.add_column("record_position", Column("hash", String, nullable=False, server_default=""))
        return
    op.add_column("log", Column("hash", String, nullable=False, server_default=""))
    op.add_column("lease", Column("lost", String, nullable=False, server_default=""))
    op.execute("ALTER TABLE lease ADD COLUMN demands_standby boolean NOT NULL DEFAULT false")
