"""Schema migrations: one file per revision in `versions`; `migrate_to_newest` applies missing ones.

A released migration never changes.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from threading import Lock
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.pool import StaticPool

from forewarn.store.schema import APPLICATION_ID, REVISION

_ALEMBIC = Lock()  # its context is global, and the nodes of a test are threads of one process
MIGRATIONS_DIRECTORY = Path(__file__).parent  # where Alembic finds `env.py` and `versions`


def migrate_to_newest(db: sqlite3.Connection) -> None:
    """Apply all missing migrations in one transaction, and write the revision into the file's header."""
    engine = create_engine("sqlite://", creator=lambda: db, poolclass=StaticPool)
    event.listen(engine, "begin", _begin_immediate)
    with engine.begin() as connection:
        _apply_missing(connection)
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {int(REVISION)}")


def migrate_record_to_newest(db: Any) -> None:
    """Apply all missing migrations to a database of PostgreSQL in one transaction, or none of them."""
    engine = create_engine("postgresql+psycopg://", creator=lambda: db, poolclass=StaticPool)
    with engine.begin() as connection:
        _apply_missing(connection)


def _apply_missing(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS_DIRECTORY).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "head")


def _begin_immediate(connection: Connection) -> None:
    # The driver begins a transaction only before data changes, not before CREATE TABLE.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
