"""STEPS OF THE SCHEMA. One file per revision in `versions`; `migrate` takes a database from any of them to the
newest. A step that has been released never changes. Never here: data that a person should give.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.pool import StaticPool

from forewarn.store.schema import APPLICATION_ID, REVISION

FOLDER = Path(__file__).parent


def migrate(db: sqlite3.Connection) -> None:
    """All steps that are missing, in one transaction: all of them or none. `db` has no isolation level."""
    engine = create_engine("sqlite://", creator=lambda: db, poolclass=StaticPool)
    event.listen(engine, "begin", _begin)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {int(REVISION)}")


def _begin(connection: Connection) -> None:
    # The driver begins by itself before data changes only; tables are to be created all or none.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
