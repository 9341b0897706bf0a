"""Administration of a record: migrations, moving a site there and back, new epochs, and a report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import BigInteger, Float, LargeBinary, String, create_engine, inspect

from forewarn.cli.invocation import Invocation
from forewarn.cli.store import store as store_command
from forewarn.cluster import record_administration
from forewarn.cluster.following import CopyFollower
from forewarn.cluster.postgres_record import open_record
from forewarn.cluster.record import RecordUnavailable
from forewarn.cluster.record_administration import (
    copy_record_to_store,
    copy_store_to_record,
    examine_record,
    migrate_record,
    renew_epochs,
)
from forewarn.cluster.row_changes import copy_digests, snapshot_digests
from forewarn.conformance.record import FIRST_ROW, group_after
from forewarn.conformance.store_suite import sample_event, sample_history_entry, sample_poll, sample_vm
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import ForewarnError, Refused
from forewarn.store import SqliteStore
from forewarn.store.purpose import StorePurpose, mark_purpose
from forewarn.store.schema import REVISION, metadata
from tests.support.postgres_pair import ServerPair
from tests.support.replicated_store import open_replicated, take
from tests.support.replication_checks import check_copy

pytestmark = pytest.mark.cluster
DATABASE_FILE = "forewarn.db"
FILLED = Commit(
    scopes=(Scope(id="s1", epoch=2_000_000_000, incarnation=7), Scope(id="s2", epoch=5)),
    vms=(sample_vm("a"), sample_vm("ü")),
    events=(sample_event("E1"),),
    entries=(sample_history_entry("first", at=1.0), sample_history_entry("second")),
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(store_command, arguments, obj=Invocation(), standalone_mode=False)


@pytest.fixture
def new_database(servers: ServerPair) -> Callable[[str], str]:
    """Creates a database without tables and returns its URL."""

    def new(name: str, options: str = "") -> str:
        servers.query(f"DROP DATABASE IF EXISTS {name}", database="postgres")
        servers.query(f"CREATE DATABASE {name} {options}", database="postgres")
        return servers.primary.url(name)

    return new


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The store of a site in production, from which the first entry of the history was pruned."""
    path = tmp_path / "site" / DATABASE_FILE
    path.parent.mkdir()

    async def fill() -> None:
        store = SqliteStore.open(path)
        await mark_purpose(store, StorePurpose.PRODUCTION)
        await store.commit(FILLED)
        await store.record_observations([sample_poll("a", at=1.0)], [])
        await store.prune(2.0)
        await store.close()

    asyncio.run(fill())
    return path


# Migrations


def test_a_migrated_database_has_the_declared_tables(servers: ServerPair) -> None:
    def connect() -> Any:
        return psycopg.connect(servers.url)

    engine = create_engine("postgresql+psycopg://", creator=connect)
    inspector = inspect(engine)
    tables = set(inspector.get_table_names())
    assert tables == {*metadata.tables, "lease", "log", "nodes", "alembic_version"} - {"polls", "record_position"}
    for name in tables & set(metadata.tables):
        declared, found = metadata.tables[name], {column["name"]: column for column in inspector.get_columns(name)}
        assert list(found) == [column.name for column in declared.columns]
        for column in declared.columns:
            kind = next(k for k in (Float, LargeBinary, String, BigInteger) if isinstance(column.type, k))
            wanted = {Float: "DOUBLE PRECISION", LargeBinary: "BYTEA", String: "VARCHAR", BigInteger: "BIGINT"}[kind]
            shown = found[column.name]
            assert (str(shown["type"]), shown["nullable"], shown["default"]) == (wanted, column.nullable, None)
        key = inspector.get_pk_constraint(name)["constrained_columns"]
        assert key == [column.name for column in declared.primary_key.columns]
        assert {index["name"] for index in inspector.get_indexes(name) if not index["unique"]} == {
            index.name for index in declared.indexes
        }
    engine.dispose()


def test_a_migration_can_be_repeated(new_database: Callable[[str], str]) -> None:
    url = new_database("migrated")
    assert migrate_record(url) is None
    assert migrate_record(url) == REVISION
    assert run("migrate", url).output == f"The record has the schema of this release already ({REVISION}).\n"


def test_a_migration_leaves_room_for_changes_of_rows(servers: ServerPair, new_database: Callable[[str], str]) -> None:
    """A change of an event then writes the row alone, and no entry in the indexes of its table."""
    migrate_record(new_database("roomy"))
    options = servers.query("SELECT reloptions FROM pg_class WHERE relname = 'events'", database="roomy")
    assert options == [(["fillfactor=70"],)]


def test_a_failing_migration_changes_nothing(servers: ServerPair, new_database: Callable[[str], str]) -> None:
    url = new_database("occupied")
    servers.query("CREATE TABLE saved (in_the_way int)", database="occupied")
    with pytest.raises(ForewarnError, match='relation "saved" already exists'):
        migrate_record(url)
    tables = servers.query("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database="occupied")
    assert tables == [("saved",)]


def test_a_newer_schema_is_left_as_it_is(servers: ServerPair, new_database: Callable[[str], str]) -> None:
    url = new_database("newer")
    migrate_record(url)
    servers.query("UPDATE alembic_version SET version_num = '0999'", database="newer")
    for refuse in (migrate_record, open_record):
        with pytest.raises(Refused, match="has schema revision 0999, unknown to this forewarn"):
            refuse(url)


def test_a_database_without_tables_names_the_command_that_creates_them(new_database: Callable[[str], str]) -> None:
    with pytest.raises(Refused, match="has no tables of forewarn: run `forewarn store migrate`"):
        open_record(new_database("empty"))


def test_a_database_of_another_encoding_is_refused(servers: ServerPair, new_database: Callable[..., str]) -> None:
    url = new_database("latin", "ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(Refused, match="has the encoding LATIN1"):
        migrate_record(url)


# A site moves


def test_a_site_moves_to_a_record_with_everything_but_polls(servers: ServerPair, site: Path, tmp_path: Path) -> None:
    wanted = copy_digests(site)
    result = run("copy", str(site.parent), servers.url)
    assert result.exit_code == 0, result.output
    assert "2 scopes" in result.output
    record = open_record(servers.url)
    lease = record.read_lease()
    assert (lease.number, lease.seq, lease.holder) == (1, 2, "forewarn store copy")
    assert lease.remaining_s <= 0
    with record.snapshot() as snapshot:
        assert snapshot_digests(snapshot) == wanted

    async def use() -> None:
        store = open_replicated(tmp_path / "copy.db", record)
        scope = store.scope("s1")
        assert scope is not None
        assert (scope.epoch, scope.incarnation) == (2_000_000_000, 7)
        assert [entry.text for entry in store.history()] == ["second"]
        assert await store.commit(Commit(entries=(sample_history_entry("third"),))) == 3
        await store.close()

    asyncio.run(use())
    check_copy(tmp_path / "copy.db", record)
    record.close()


def test_a_site_that_was_moved_is_not_opened_again(servers: ServerPair, site: Path) -> None:
    copy_store_to_record(site, servers.url, now=1.0)
    with pytest.raises(Refused, match=r"was moved to PostgreSQL at 127\.0\.0\.1"):
        SqliteStore.open(site)
    with pytest.raises(Refused, match="was moved"):
        copy_store_to_record(site, servers.url, now=1.0)
    assert "secret" not in run("copy", str(site.parent), servers.url).output


def test_a_copy_that_ended_before_the_mark_is_completed(servers: ServerPair, site: Path) -> None:
    before = site.read_bytes()
    copy_store_to_record(site, servers.url, now=1.0)
    site.write_bytes(before)
    copy_store_to_record(site, servers.url, now=1.0)
    assert open_record_number(servers) == 1
    with pytest.raises(Refused, match="was moved"):
        SqliteStore.open(site)


def open_record_number(servers: ServerPair) -> int:
    record = open_record(servers.url)
    number = record.read_lease().number
    record.close()
    return number


def test_a_record_in_use_is_not_overwritten(servers: ServerPair, site: Path) -> None:
    before = copy_digests(site)
    record = open_record(servers.url)
    lease = take(record)
    with pytest.raises(Refused, match="is in use by 'c1': stop all control nodes first"):
        copy_store_to_record(site, servers.url, now=1.0)
    record.commit(group_after(lease, FIRST_ROW))
    record.release_lease(lease.term)
    with pytest.raises(Refused, match=r"has been used already \(1 saved\)"):
        copy_store_to_record(site, servers.url, now=1.0)
    record.close()
    assert copy_digests(site) == before


def test_a_lab_is_not_moved(servers: ServerPair, tmp_path: Path) -> None:
    async def mark() -> None:
        store = SqliteStore.open(tmp_path / "lab.db")
        await mark_purpose(store, StorePurpose.LAB)
        await store.close()

    asyncio.run(mark())
    with pytest.raises(Refused, match="is of a lab"):
        copy_store_to_record(tmp_path / "lab.db", servers.url, now=1.0)


def test_a_site_moves_back_to_one_machine(servers: ServerPair, site: Path, tmp_path: Path) -> None:
    wanted = copy_store_to_record(site, servers.url, now=1.0)
    result = run("copy", servers.url, str(tmp_path / "back"), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["rows"]["scopes"] == 2
    back = tmp_path / "back" / DATABASE_FILE
    assert copy_digests(back) == wanted

    async def use() -> None:
        store = SqliteStore.open(back)
        assert await store.commit(Commit(entries=(sample_history_entry("third"),))) == 3
        await store.close()

    asyncio.run(use())
    record = open_record(servers.url)
    with pytest.raises(Refused, match="was moved to"):
        CopyFollower(tmp_path / "copy.db", record)
    record.close()
    assert any("moved from this record" in problem for problem in examine_record(servers.url).problems)
    with pytest.raises(Refused, match="is not overwritten"):
        copy_record_to_store(servers.url, back)


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_move_back_whose_mark_was_not_confirmed_is_completed_by_the_next_attempt(
    servers: ServerPair, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_effect: bool
) -> None:
    wanted = copy_store_to_record(site, servers.url, now=1.0)
    back, rewrite = tmp_path / DATABASE_FILE, record_administration._rewrite

    def lose_answer(*arguments: Any) -> None:
        if took_effect:
            rewrite(*arguments)
        raise RecordUnavailable("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(record_administration, "_rewrite", lose_answer)
        with pytest.raises(RecordUnavailable):
            copy_record_to_store(servers.url, back)
    assert not back.exists()
    copy_record_to_store(servers.url, back)
    assert copy_digests(back) == wanted
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [DATABASE_FILE]


@pytest.mark.parametrize("arguments", [("a", "b"), ("postgresql://x/y", "postgresql://x/z")])
def test_a_copy_needs_one_directory_and_one_record(arguments: tuple[str, str]) -> None:
    assert "give one path and one" in str(run("copy", *arguments).exception)


# Epochs


def test_renewed_epochs_are_later_than_all_before(servers: ServerPair, site: Path, tmp_path: Path) -> None:
    copy_store_to_record(site, servers.url, now=1.0)
    assert servers.query("UPDATE scopes SET enabled_at = 1 RETURNING id")
    record = open_record(servers.url)
    follower = CopyFollower(tmp_path / "copy.db", record)
    follower.follow()
    assert renew_epochs(servers.url, now=1_900_000_000.0) == 2_000_000_001
    assert renew_epochs(servers.url, now=2_100_000_000.0) == 2_100_000_001
    follower.follow()
    assert len(follower.rebuilt) == 2
    follower.close()
    assert servers.query("SELECT DISTINCT epoch FROM scopes") == [(2_100_000_001,)]
    shown = servers.query("SELECT DISTINCT incarnation > 500000000 FROM scopes")
    assert shown == [(True,)], "above all that may have been shown (spec §4.2)"
    check_copy(tmp_path / "copy.db", record)
    assert take(record).term > 2_100_000_000, "hosts may know any term of the lost history"
    result = run("renew", servers.url)
    assert isinstance(result.exception, Refused)
    record.close()


# Report


def test_a_good_record_is_reported_without_problems(servers: ServerPair, tmp_path: Path) -> None:
    record = open_record(servers.url)
    lease = take(record)
    record.commit(group_after(lease, FIRST_ROW))
    follower = CopyFollower(tmp_path / "copy.db", record)
    follower.close()
    result = run("check", servers.url, "--copy", str(tmp_path / "copy.db"))
    assert result.return_value == 0, result.output
    assert "c1 is active; term 1, group 1, 1 groups in the log." in result.output
    assert "Standby server s1: streaming, sync." in result.output
    assert "Warning: PostgreSQL has fsync = off" in result.output
    report = examine_record(servers.url)
    assert (report.holder, report.term, report.number, report.pooled) == ("c1", 1, 1, False)
    record.close()


def test_a_copy_that_differs_is_reported(servers: ServerPair, tmp_path: Path) -> None:
    record = open_record(servers.url)
    lease = take(record)
    record.commit(group_after(lease, FIRST_ROW))
    CopyFollower(tmp_path / "copy.db", record).close()
    servers.query("UPDATE saved SET value = 'changed by hand'")
    result = run("check", servers.url, "--copy", str(tmp_path / "copy.db"))
    assert result.return_value == 1
    assert "differs from the record in saved" in result.output
    record.commit(group_after(lease, FIRST_ROW, number=2))
    assert "they cannot be compared" in run("check", servers.url, "--copy", str(tmp_path / "copy.db")).output
    record.close()


def test_a_file_that_is_no_copy_is_refused_by_a_check(servers: ServerPair, site: Path) -> None:
    with pytest.raises(Refused, match="is not a copy of a record"):
        examine_record(servers.url, site)


def test_a_missing_standby_is_a_problem_and_stops_administration_at_once(servers: ServerPair, site: Path) -> None:
    with servers.without_standby():
        assert "waits for its synchronous standby 's1'" in run("check", servers.url).output
        for act in (migrate_record, lambda url: renew_epochs(url, now=1.0)):
            with pytest.raises(Refused, match="demands the synchronous standby 's1', which is not connected"):
                act(servers.url)
        with pytest.raises(Refused, match="which is not connected"):
            copy_store_to_record(site, servers.url, now=1.0)
    asyncio.run(_open_and_close(site))  # it was not marked


async def _open_and_close(path: Path) -> None:
    await SqliteStore.open(path).close()
