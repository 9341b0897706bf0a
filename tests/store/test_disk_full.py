"""A full disk makes writes Unavailable, and writing works again once there is space (spec §10)."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.conformance.store_suite import sample_history_entry
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import Unavailable
from forewarn.store import SqliteStore, sqlite_file
from forewarn.store.writer_thread import WriterThread

LARGE_COMMIT = Commit(scopes=(Scope(id="large"),), entries=(sample_history_entry("x" * 1_000_000),))


def small_commit(number: int) -> Commit:
    return Commit(entries=(sample_history_entry(f"small {number}"),))


def test_writes_fail_on_a_full_disk_and_work_again_once_there_is_space(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        sqlite_file.prepare_store_file(path)
        db = sqlite_file.connect_writer(path)
        store = SqliteStore(path, reader=sqlite_file.connect_reader(path), writer=WriterThread(db, str(path)))
        await store.commit(small_commit(1))
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 4}")
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"store\.db' cannot be written now \(SQLITE_FULL: .* try again"):
                await store.commit(LARGE_COMMIT)
        assert store.scope("large") is None
        assert store.failed_writes() == 3
        assert await store.commit(small_commit(2)) == 2

        db.execute("PRAGMA max_page_count = 1000000")
        assert await store.commit(LARGE_COMMIT) == 3
        assert [entry.seq for entry in store.history()] == [1, 2, 3]
        await store.close()

    asyncio.run(scenario())
    assert sqlite_file.read_revision(path) is not None


def test_a_file_error_fails_all_writes_of_a_group_and_writes_none(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def scenario() -> None:
        sqlite_file.prepare_store_file(path)
        db = sqlite_file.connect_writer(path)
        store = SqliteStore(path, reader=sqlite_file.connect_reader(path), writer=WriterThread(db, str(path)))
        db.execute("PRAGMA query_only = ON")
        answers = await asyncio.gather(*(store.commit(small_commit(n)) for n in range(9)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {Unavailable}
        assert store.last_seq() == 0
        db.execute("PRAGMA query_only = OFF")
        assert sorted(await asyncio.gather(*(store.commit(small_commit(n)) for n in range(9)))) == list(range(1, 10))
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("pattern", ["store.db", "store.db-wal", "store.db*"])
def test_no_write_is_acknowledged_while_the_file_is_moved_away(tmp_path: Path, pattern: str) -> None:
    away = tmp_path / "away"
    away.mkdir()

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        await store.commit(small_commit(1))
        moved = [found.rename(away / found.name) for found in sorted(tmp_path.glob(pattern))]
        for _ in range(2):
            with pytest.raises(Unavailable) as refusal:
                await store.commit(small_commit(2))
            message = str(refusal.value)
            assert re.search(
                r"store\.db(-wal)? was moved, deleted or replaced while it is in use: put .* back", message
            )
            assert "take a backup before the service stops" in message
            assert "disk" not in message
        for found in moved:
            found.rename(tmp_path / found.name)
        assert await store.commit(small_commit(3)) == 2
        await store.close()

    asyncio.run(scenario())
    assert sqlite_file.read_revision(tmp_path / "store.db") is not None


def test_a_store_file_that_was_replaced_is_not_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        await store.commit(small_commit(1))
        await store.back_up(tmp_path / "copy.db")
        (tmp_path / "copy.db").replace(tmp_path / "store.db")
        with pytest.raises(Unavailable, match=r"store\.db was moved, deleted or replaced"):
            await store.commit(small_commit(2))
        await store.close()

    asyncio.run(scenario())


COMMIT_UNDER_A_SIZE_LIMIT = """
import asyncio, resource, sys
from pathlib import Path
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.errors import Unavailable
from forewarn.store import SqliteStore

def commit(size):
    return Commit(entries=(HistoryEntry(at=0.0, kind=EntryKind.SERVICE, text="x" * size),))

async def main():
    store = SqliteStore.open(Path(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
    acknowledged, refused = 0, 0
    for _ in range(40):
        try:
            assert await store.commit(commit(30_000)) == acknowledged + 1
            acknowledged += 1
        except Unavailable as error:
            assert "cannot be written now" in str(error), error
            refused += 1
    assert acknowledged and refused, (acknowledged, refused)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert await store.commit(commit(30_000)) == acknowledged + 1
    await store.close()
    print(acknowledged + 1)

asyncio.run(main())
"""


def test_a_file_size_limit_loses_no_acknowledged_commit(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    command = [sys.executable, "-c", COMMIT_UNDER_A_SIZE_LIMIT, str(path)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert child.returncode == 0, child.stderr

    async def count() -> int:
        store = SqliteStore.open(path)
        try:
            return len(store.history())
        finally:
            await store.close()

    assert asyncio.run(count()) == int(child.stdout)


def test_a_closed_store_cannot_be_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        await store.close()
        with pytest.raises(Unavailable, match=r"store\.db' cannot be read now"):
            store.scope("s")
        with pytest.raises(Unavailable, match=r"store\.db' cannot be read now"):
            store.hosts()

    asyncio.run(scenario())
