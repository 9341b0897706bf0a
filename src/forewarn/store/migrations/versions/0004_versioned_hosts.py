"""Hosts get a version and a count of arrivals, so that a change of one conflicts with moves to it."""

from alembic import op
from sqlalchemy import Column, Integer, LargeBinary, String, text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table of hosts again, with version and arrivals; existing hosts stay, at version 1.

    The key becomes the name in lower case, so the migration fails if two names differ only in letter case.
    """
    rows = op.get_bind().execute(text("SELECT name, body FROM hosts")).all()
    op.drop_table("hosts")
    hosts = op.create_table(
        "hosts",
        Column("id", String, primary_key=True),
        Column("version", Integer, nullable=False),
        Column("arrivals", Integer, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    op.bulk_insert(hosts, [{"id": name.casefold(), "version": 1, "arrivals": 0, "body": body} for name, body in rows])
