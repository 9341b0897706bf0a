"""What a service may open: not the store of the other command, and no empty store beside keys of an earlier service."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forewarn.core.commit import Commit
from forewarn.core.fleet import Host
from forewarn.core.scope import Scope
from forewarn.errors import Refused, Rejected
from forewarn.service.data_directory import DataDirectory, running_service_pid
from forewarn.store import SqliteStore, restore_backup
from forewarn.store.purpose import StorePurpose, mark_purpose, read_purpose
from forewarn.store.sqlite_file import prepare_store_file

LAB, PRODUCTION = StorePurpose.LAB, StorePurpose.PRODUCTION
ARCHIVE = Path(__file__).parents[1] / "golden" / "data" / "data-directory.tar.gz"  # a lab of the first version


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory.acquire(tmp_path / "data")
    yield directory
    directory.close()


def write_store(
    path: Path, *, purpose: StorePurpose | None = None, clock: bytes = b"", fleet: Commit | None = None
) -> None:
    async def write() -> None:
        store = SqliteStore.open(path)
        if purpose is not None:
            await mark_purpose(store, purpose)
        if clock:
            await store.save("clock", clock)
        if fleet is not None:
            await store.commit(fleet)
        await store.close()

    asyncio.run(write())


def test_a_command_that_asks_who_runs_does_not_keep_a_service_from_starting(tmp_path: Path) -> None:
    DataDirectory.acquire(tmp_path).close()
    asking = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)  # as `running_service_pid` does for an instant
    release = threading.Timer(0.05, os.close, [asking])
    release.start()
    directory = DataDirectory.acquire(tmp_path)
    assert running_service_pid(tmp_path) == os.getpid()
    release.join()
    with pytest.raises(Refused, match=f"is in use by another service \\(process {os.getpid()}\\)"):
        DataDirectory.acquire(tmp_path)
    directory.close()
    assert running_service_pid(tmp_path) is None


@pytest.mark.parametrize(
    ("purpose", "other", "owner", "command", "refused"),
    [
        (LAB, PRODUCTION, "a lab, whose time is not real time", "forewarn up", "forewarn serve"),
        (PRODUCTION, LAB, "a production service", "forewarn serve", "forewarn up"),
    ],
)
def test_a_store_is_opened_for_its_purpose_only(
    directory: DataDirectory, purpose: StorePurpose, other: StorePurpose, owner: str, command: str, refused: str
) -> None:
    write_store(directory.database, purpose=purpose)
    directory.check_store(purpose)
    before = directory.database.read_bytes()
    with pytest.raises(Refused) as refusal:
        directory.check_store(other)
    message = str(refusal.value)
    assert f"holds the store of {owner}" in message
    assert f"`{refused}` does not open it: start it with `{command}`, or name another directory with --data" in message
    assert directory.database.read_bytes() == before


def test_a_mark_is_never_changed(directory: DataDirectory) -> None:
    for purpose in (PRODUCTION, LAB):
        write_store(directory.database, purpose=purpose)
    assert read_purpose(directory.database) is PRODUCTION


@pytest.mark.parametrize(
    ("clock", "fleet", "purpose"),
    [
        (b"{}", Commit(scopes=(Scope(id="s"),)), LAB),
        (b"", Commit(scopes=(Scope(id="s"),)), PRODUCTION),
        (b"", Commit(hosts=(Host(name="h1", location="north"),)), PRODUCTION),
        (b"", None, None),
    ],
    ids=["saved clock", "scopes", "hosts", "empty"],
)
def test_a_store_without_a_mark_is_a_lab_if_it_has_a_saved_clock(
    directory: DataDirectory, clock: bytes, fleet: Commit | None, purpose: StorePurpose | None
) -> None:
    write_store(directory.database, clock=clock, fleet=fleet)
    assert read_purpose(directory.database) is purpose
    for wanted in StorePurpose:
        if purpose in (None, wanted):
            directory.check_store(wanted)
        else:
            with pytest.raises(Refused, match="does not open it"):
                directory.check_store(wanted)


def test_the_store_of_the_first_versions_lab_is_a_lab(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none
        archive.extractall(tmp_path)
    assert read_purpose(tmp_path / "root" / "data" / "forewarn.db") is LAB


@pytest.mark.parametrize("purpose", StorePurpose)
def test_a_backup_carries_the_mark(tmp_path: Path, purpose: StorePurpose) -> None:
    write_store(tmp_path / "store.db", purpose=purpose)

    async def back_up() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        await store.back_up(tmp_path / "backup.db")
        await store.close()

    asyncio.run(back_up())
    restore_backup(tmp_path / "backup.db", tmp_path / "restored.db", now=1.0)
    assert read_purpose(tmp_path / "backup.db") is read_purpose(tmp_path / "restored.db") is purpose


def without_database(path: Path) -> None:
    pass


def emptied_database(path: Path) -> None:
    path.touch()


def database_without_tables(path: Path) -> None:
    prepare_store_file(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if not name.startswith("sqlite_"):
                db.execute(f"DROP TABLE {name}")
        db.execute("DELETE FROM sqlite_sequence")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_master")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("VACUUM")


@pytest.mark.parametrize("name", ["admin.secret", "tls/ca.key", "simulated.db", "forewarn.db-wal"])
@pytest.mark.parametrize(
    ("make_database", "state"),
    [(without_database, "is missing"), (emptied_database, "is empty"), (database_without_tables, "is empty")],
)
def test_a_lost_database_beside_files_of_an_earlier_service_is_refused(
    directory: DataDirectory, make_database: object, state: str, name: str
) -> None:
    assert callable(make_database)
    make_database(directory.database)
    (directory.path / name).parent.mkdir(exist_ok=True)
    (directory.path / name).write_text("content")
    for purpose in StorePurpose:
        with pytest.raises(Refused) as refusal:
            directory.check_store(purpose)
        message = str(refusal.value)
        assert f"forewarn.db' {state}" in message
        assert f"files of an earlier service ({name.partition('/')[0]})" in message
        assert "restore a backup with `forewarn restore FILE`, or start with an empty store with --new-store" in message
        directory.check_store(purpose, new_store=True)
    assert directory.database.exists() == (make_database is not without_database)


def test_a_directory_without_files_of_a_service_gets_a_store(directory: DataDirectory) -> None:
    directory.tls.mkdir()
    (directory.path / "fleet.toml").write_text("")
    directory.check_store(LAB)
    directory.check_store(PRODUCTION, new_store=True)


def test_a_new_store_is_rejected_where_there_is_one(directory: DataDirectory) -> None:
    write_store(directory.database, purpose=LAB)
    with pytest.raises(Rejected, match="has a store already, and --new-store replaces none: leave the option out"):
        directory.check_store(LAB, new_store=True)


@pytest.mark.parametrize("content", [b"no database", os.urandom(5000)])
def test_a_file_that_is_no_database_is_left_to_the_store_to_reject(directory: DataDirectory, content: bytes) -> None:
    directory.database.write_bytes(content)
    directory.check_store(LAB)
    with pytest.raises(Rejected, match="is not an SQLite database"):
        SqliteStore.open(directory.database)
