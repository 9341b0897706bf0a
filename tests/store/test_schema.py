"""The migrations make the tables that the code expects, and no question needs to read a whole table."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from forewarn.core.event import Status
from forewarn.core.scope import Scope
from forewarn.store import file, query, statement
from forewarn.store.migrations import FOLDER
from forewarn.store.schema import APPLICATION_ID, REVISION, REVISIONS, metadata

LIVE = (Status.SCHEDULED, Status.STARTED)


def schema_of(db: sqlite3.Connection) -> set[str]:
    rows = db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name NOT LIKE 'alembic%'")
    return {re.sub(r"\s+", " ", sql) for (sql,) in rows}


def test_migrating_from_scratch_gives_the_declared_tables(tmp_path: Path) -> None:
    declared, migrated = tmp_path / "declared.db", tmp_path / "migrated.db"
    engine = create_engine(f"sqlite:///{declared}")
    metadata.create_all(engine)
    engine.dispose()
    file.prepare(migrated)

    with closing(sqlite3.connect(declared)) as one, closing(sqlite3.connect(migrated)) as other:
        assert schema_of(one) == schema_of(other)


def test_the_steps_are_the_revisions_the_code_knows() -> None:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    steps = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(step.revision for step in steps)[::-1] == REVISIONS


def test_a_file_says_whose_it_is_and_of_which_revision(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert file.examine(path) is None
    file.prepare(path)
    assert file.examine(path) == REVISION
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert db.execute("PRAGMA user_version").fetchone() == (int(REVISION),)


def test_a_step_that_fails_leaves_the_file_without_any(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE saved (in_the_way)")
        db.execute("PRAGMA journal_mode = DELETE")
        with pytest.raises(sqlite3.OperationalError, match="saved already exists"):
            file.migrate(path)
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["saved"]


@pytest.mark.parametrize(
    "sql",
    [
        query.SCOPE,
        query.PRESENT_VMS,
        query.LIVE_EVENTS,
        query.VM,
        query.EVENT,
        query.GATE,
        query.REQUEST,
        query.DUE_SCOPES,
        query.DUE_GATES,
        query.vms_by(("scope_id",), False),
        query.vms_by(("host",), False),
        query.events_by(("scope_id",), LIVE, False),
        query.events_by(("request_id",), tuple(Status), False),
        query.events_by(("gate_id",), LIVE, False),
        query.events_by((), (Status.STARTED,), False),
        query.requests_by(True, False),
        *query.EVENTS_OVER.values(),
        query.planned_by(("request_id",)),
        query.history_by((), False),
        query.history_by(("scope_id",), True),
        query.history_by(("event_id",), False),
        query.history_by(("request_id",), False),
        query.history_by(("vm",), True),
        query.sightings_by(("event_id",)),
        query.sightings_by(("vm",)),
        query.polls_by(("scope_id",)),
        statement.MOVE_SCOPE,
        statement.MOVE_GATE,
        statement.MOVE_REQUEST,
        statement.WAKE_GATE,
        statement.TOUCH_SCOPE,
        statement.REMOVE_PLANNED,
        statement.PRUNE_EVENTS,
        statement.PRUNE_HISTORY,
        statement.PRUNE_SIGHTINGS,
    ],
)
def test_no_question_reads_a_whole_table(tmp_path: Path, sql: str) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for made in sorted(_declared(), key=lambda made: "CREATE INDEX" in made):
            db.execute(made)
        names = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
        steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", names)]
    assert steps
    assert not [step for step in steps if step.startswith("SCAN")], steps


@pytest.mark.parametrize("sql", [query.SCHEDULED_BEHIND, query.PLANNED_BEHIND])
def test_what_gates_hold_back_is_found_by_the_gates(tmp_path: Path, sql: str) -> None:
    """And not by going through all that is scheduled; the list of gates is read whole."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for made in sorted(_declared(), key=lambda made: "CREATE INDEX" in made):
            db.execute(made)
        steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", {"gate_ids": "[]"})]
    assert [step for step in steps if "_by_gate (gate_id=?)" in step], steps
    assert all("json_each" in step for step in steps if step.startswith("SCAN")), steps


def _declared() -> list[str]:
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.connect() as connection:
        query_ = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'"
        made = [str(sql) for (sql,) in connection.exec_driver_sql(query_)]
    engine.dispose()
    return made


def test_every_field_of_a_scope_has_a_column() -> None:
    """A scope's row has no body, so a new field needs a migration."""
    loaded = {"vms", "events", "news"}
    assert set(metadata.tables["scopes"].columns.keys()) == set(Scope.__struct_fields__) - loaded
