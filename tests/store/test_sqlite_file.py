"""A file that is not an intact store is rejected with a remedy, and not one byte of it changes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from forewarn.conformance.store_suite import sample_history_entry
from forewarn.core.commit import Commit
from forewarn.errors import Rejected, Unavailable
from forewarn.store import SqliteStore
from forewarn.store.schema import APPLICATION_ID


def create_store(path: Path) -> None:
    async def write() -> None:
        store = SqliteStore.open(path)
        await store.commit(Commit(entries=tuple(sample_history_entry(f"{n}" * 200, vm=f"{n}") for n in range(200))))
        await store.close()

    asyncio.run(write())


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def text_file(path: Path) -> None:
    path.write_text("fleet:\n  - name: web-0\n")


def bytes_after_the_header(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + os.urandom(4096))


def cut_off(path: Path) -> None:
    create_store(path)
    os.truncate(path, path.stat().st_size // 2)


def overwritten_in_the_middle(path: Path) -> None:
    create_store(path)
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        for page in range(pages // 3, 2 * pages // 3):
            file.seek(page * 4096)
            file.write(b"\xa5" * 512)


def of_another_program(path: Path) -> None:
    edit(path, "CREATE TABLE notes (text)", "PRAGMA application_id = 77")


def of_no_known_program(path: Path) -> None:
    edit(path, "PRAGMA journal_mode = WAL", "CREATE TABLE notes (text)")


def without_history(path: Path) -> None:
    create_store(path)
    edit(path, "DROP TABLE history")


def without_a_revision(path: Path) -> None:
    edit(path, "CREATE TABLE scopes (id)", f"PRAGMA application_id = {APPLICATION_ID}")


def newer(path: Path) -> None:
    create_store(path)
    edit(path, "UPDATE alembic_version SET version_num = '0999'", "PRAGMA user_version = 999")


def of_an_unknown_revision(path: Path) -> None:
    create_store(path)
    edit(path, "UPDATE alembic_version SET version_num = '0000'")


@pytest.mark.parametrize(
    ("make_file", "reason", "remedy"),
    [
        (text_file, "is not an SQLite database", "give another path"),
        (bytes_after_the_header, "is damaged", "restore a backup"),
        (cut_off, "is damaged", "restore a backup"),
        (overwritten_in_the_middle, "is damaged", "restore a backup"),
        (of_another_program, "belongs to another program (application id 77)", "give another path"),
        (of_no_known_program, "belongs to another program (application id 0)", "give another path"),
        (without_history, "is damaged (no table history)", "restore a backup"),
        (without_a_revision, "is damaged (no table alembic_version)", "restore a backup"),
        (newer, "has schema revision 0999, unknown to this forewarn", "use the forewarn that wrote it"),
        (
            of_an_unknown_revision,
            "has schema revision 0000, unknown to this forewarn",
            "use the forewarn that wrote it",
        ),
    ],
)
def test_a_file_that_is_not_a_usable_store_is_rejected_and_left_unchanged(
    tmp_path: Path, make_file: Callable[[Path], None], reason: str, remedy: str
) -> None:
    path = tmp_path / "our store.db"
    make_file(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    with pytest.raises(Rejected) as refusal:
        SqliteStore.open(path)

    message = str(refusal.value)
    assert repr(str(path)) in message
    assert reason in message
    assert "left as it is" in message
    assert remedy in message
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="is not an SQLite database"):
        SqliteStore.open(tmp_path)


def test_a_missing_directory_is_named_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"create '.*/nowhere' first"):
        SqliteStore.open(tmp_path / "nowhere" / "store.db")


def test_a_path_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.symlink_to(tmp_path / "not mounted" / "store.db")
    with pytest.raises(Unavailable, match=r"store\.db' cannot be opened now .*try again"):
        SqliteStore.open(path)


@pytest.mark.parametrize("statements", [(), ("PRAGMA journal_mode = WAL",), ("PRAGMA user_version = 0",)])
def test_a_file_without_tables_left_by_a_crash_is_opened_as_new(tmp_path: Path, statements: tuple[str, ...]) -> None:
    path = tmp_path / "100% new?.db"
    path.touch()
    edit(path, *statements)

    async def scenario() -> None:
        store = SqliteStore.open(path)
        assert await store.commit(Commit(entries=(sample_history_entry("first"),))) == 1
        await store.close()

    asyncio.run(scenario())
    assert {p.name for p in tmp_path.iterdir()} == {path.name, f"{path.name}.mark"}
