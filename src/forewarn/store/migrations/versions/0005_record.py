"""PostgreSQL becomes a record of several control nodes; a SQLite store may be a copy of one."""

from alembic import op
from sqlalchemy import BigInteger, Column, Float, Integer, LargeBinary, String, inspect

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the tables of a record (PostgreSQL), or of the position of a copy (SQLite).

    In PostgreSQL it also makes all integers 64 bits wide, and drops the table of polls.
    """
    if op.get_bind().dialect.name == "sqlite":
        op.create_table(
            "record_position",
            Column("record_id", String, primary_key=True),
            Column("term", Integer, nullable=False),
            Column("number", Integer, nullable=False),
        )
    else:
        _widen_integers()
        _create_record_tables()


def _widen_integers() -> None:
    """Give all integers 64 bits, and no numbers of PostgreSQL's own: the active control node gives them."""
    tables = (
        *("delivery_events", "delivery_vms", "delivery_labels", "deliveries", "events", "gates", "grants", "history"),
        *("hosts", "planned", "requests", "scopes", "vms", "webhooks"),
    )
    inspector = inspect(op.get_bind())
    for table in tables:
        for column in inspector.get_columns(table):
            if isinstance(column["type"], Integer):
                name = column["name"]
                op.execute(f'ALTER TABLE "{table}" ALTER COLUMN "{name}" DROP DEFAULT')
                op.alter_column(table, name, type_=BigInteger())
                op.execute(f"DROP SEQUENCE IF EXISTS {table}_{name}_seq")
    op.drop_table("polls")  # each control node has its own


def _create_record_tables() -> None:
    op.execute(
        "CREATE TABLE lease (shard int PRIMARY KEY, record_id text NOT NULL, term bigint NOT NULL,"
        " holder text NOT NULL, url text NOT NULL, expires_at timestamptz NOT NULL, n bigint NOT NULL,"
        " seq bigint NOT NULL, clock double precision NOT NULL)"
    )
    op.execute("INSERT INTO lease VALUES (0, gen_random_uuid()::text, 0, '', '', '-infinity', 0, 0, 0)")
    op.create_table(
        "log",
        Column("n", BigInteger, primary_key=True, autoincrement=False),
        Column("term", BigInteger, nullable=False),
        Column("revision", String, nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("clock", Float, nullable=False),
        Column("body", LargeBinary),
    )
    op.execute("ALTER TABLE log ADD COLUMN at timestamptz NOT NULL DEFAULT clock_timestamp()")
    op.execute("CREATE INDEX log_by_time ON log (at)")
    op.create_table(
        "nodes",
        Column("name", String, primary_key=True),
        Column("url", String, nullable=False),
        Column("role", String, nullable=False),
        Column("version", String, nullable=False),
        Column("number", BigInteger, nullable=False),
        Column("status", String, nullable=False),
    )
    op.execute("ALTER TABLE nodes ADD COLUMN seen_at timestamptz NOT NULL DEFAULT clock_timestamp()")
