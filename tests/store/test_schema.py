"""The migrations create the tables that the code declares, and no query scans a whole table."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from forewarn.core.event import EventState
from forewarn.core.scope import Scope
from forewarn.store import pruning, queries, sqlite_file, writes
from forewarn.store.migrations import MIGRATIONS_DIRECTORY
from forewarn.store.schema import (
    APPLICATION_ID,
    EVENTS,
    GATES,
    GRANTS,
    MEASUREMENTS,
    PLANNED,
    POLLS,
    PUT_BY_KEY,
    REQUESTS,
    REVISION,
    REVISIONS,
    SCOPES,
    VMS,
    metadata,
)

LIVE = (EventState.SCHEDULED, EventState.STARTED)


def schema_of(db: sqlite3.Connection) -> set[str]:
    rows = db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name NOT LIKE 'alembic%'")
    return {re.sub(r"\s+", " ", sql) for (sql,) in rows}


def test_migrations_from_scratch_create_the_declared_tables(tmp_path: Path) -> None:
    declared, migrated = tmp_path / "declared.db", tmp_path / "migrated.db"
    engine = create_engine(f"sqlite:///{declared}")
    metadata.create_all(engine)
    engine.dispose()
    sqlite_file.prepare_store_file(migrated)

    with closing(sqlite3.connect(declared)) as one, closing(sqlite3.connect(migrated)) as other:
        assert schema_of(one) == schema_of(other)


def test_the_migrations_are_the_revisions_that_the_code_knows() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS_DIRECTORY).replace("%", "%%"))
    migrations = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(migration.revision for migration in migrations)[::-1] == REVISIONS


def test_a_store_file_carries_its_application_id_and_revision(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert sqlite_file.read_revision(path) is None
    sqlite_file.prepare_store_file(path)
    assert sqlite_file.read_revision(path) == REVISION
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert db.execute("PRAGMA user_version").fetchone() == (int(REVISION),)


def test_a_failing_migration_leaves_the_file_without_tables(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE saved (in_the_way)")
        db.execute("PRAGMA journal_mode = DELETE")
        with pytest.raises(sqlite3.OperationalError, match="saved already exists"):
            sqlite_file.migrate_store_file(path)
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["saved"]


@pytest.mark.parametrize(
    "sql",
    [
        *(queries.row_by_key(stored) for stored in (SCOPES, VMS, EVENTS, GATES, REQUESTS, *PUT_BY_KEY)),
        queries.LIVE_EVENTS,
        queries.DUE_SCOPES,
        queries.DUE_GATES,
        queries.present_vms_by(("scope_id",)),
        queries.present_vms_by(("host",)),
        queries.events_by(("scope_id",), LIVE, False),
        queries.events_by(("request_id",), tuple(EventState), False),
        queries.events_by(("gate_id",), LIVE, False),
        queries.events_by((), (EventState.STARTED,), False),
        queries.rows_by(REQUESTS, ("is_open",)),
        *queries.EVENTS_ENDED_BETWEEN.values(),
        queries.rows_by(PLANNED, ("request_id",)),
        queries.history_by((), False),
        queries.history_by(("scope_id",), True),
        queries.history_by(("event_id",), False),
        queries.history_by(("request_id",), False),
        queries.history_by(("vm",), True),
        queries.deliveries_by(("event_id",)),
        queries.deliveries_by(("vm",)),
        queries.rows_by(POLLS, ("scope_id",)),
        queries.rows_by(GRANTS, ("principal",)),
        queries.rows_by(MEASUREMENTS, ("request_id",)),
        *writes.UPDATE.values(),
        *writes.REMOVE.values(),
        writes.WAKE_GATE,
        writes.UPDATE_LAST_REQUEST,
        pruning.PRUNE_HISTORY,
        pruning.PRUNE_DELIVERIES,
        pruning.PRUNE_DELIVERY_EVENTS,
        pruning.PRUNE_EVENTS,
        pruning.OLD_REQUESTS,
        pruning.PRUNE_GATES,
        pruning.PRUNE_REPLAY_SCRIPT,
        pruning.PRUNE_DELIVERY_VM,
    ],
)
def test_no_query_scans_a_whole_table(tmp_path: Path, sql: str) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for statement in sorted(_declared_schema(), key=lambda sql: "CREATE INDEX" in sql):
            db.execute(statement)
        names = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
        steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", names)]
    assert steps
    assert not [step for step in steps if step.startswith("SCAN")], steps


@pytest.mark.parametrize("sql", [queries.SCHEDULED_BEHIND, queries.PLANNED_BEHIND])
def test_events_behind_gates_are_found_by_the_index_on_gates(tmp_path: Path, sql: str) -> None:
    """Only the JSON list of gates is scanned."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for statement in sorted(_declared_schema(), key=lambda sql: "CREATE INDEX" in sql):
            db.execute(statement)
        steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", {"gate_ids": "[]"})]
    assert [step for step in steps if "_by_gate (gate_id=?)" in step], steps
    assert all("json_each" in step for step in steps if step.startswith("SCAN")), steps


def test_deliveries_of_several_events_are_found_by_the_index_on_events(tmp_path: Path) -> None:
    """Only the JSON list of events is scanned."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for statement in sorted(_declared_schema(), key=lambda sql: "CREATE INDEX" in sql):
            db.execute(statement)
        steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {queries.GIVEN_BEFORE_START}", {"event_ids": "[]"})]
    assert [step for step in steps if "delivery_events" in step and "(event_id=?)" in step], steps
    assert all("json_each" in step for step in steps if step.startswith("SCAN")), steps


def _declared_schema() -> list[str]:
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.connect() as connection:
        query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'"
        statements = [str(sql) for (sql,) in connection.exec_driver_sql(query)]
    engine.dispose()
    return statements


def test_every_field_of_a_scope_has_a_column() -> None:
    """The row of a scope has no JSON body, so a new field needs a migration."""
    loaded = {"vms", "events", "new_entries"}
    assert set(metadata.tables["scopes"].columns.keys()) == set(Scope.__struct_fields__) - loaded


@pytest.mark.parametrize("name", [name for name in dir(writes) if name.isupper()])
def test_no_write_returns_rows_that_nobody_reads(name: str) -> None:
    """Rows that are not read keep a statement active, and Python 3.13 refuses to run it again."""
    assert "RETURNING" not in str(getattr(writes, name))
