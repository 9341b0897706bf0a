"""A file that is no sound store is refused by name, with what to do instead, and keeps every byte."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from forewarn.conformance.store_rows import sample_history_entry
from forewarn.core.commit import Commit
from forewarn.errors import Rejected, Unavailable
from forewarn.store import SqliteStore
from forewarn.store.schema import APPLICATION_ID


def a_store_with_content(path: Path) -> None:
    async def write() -> None:
        store = SqliteStore.open(path)
        await store.commit(Commit(entries=tuple(sample_history_entry(f"{n}" * 200, vm=f"{n}") for n in range(200))))
        await store.close()

    asyncio.run(write())


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def text(path: Path) -> None:
    path.write_text("fleet:\n  - name: web-0\n")


def bytes_after_the_header(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + os.urandom(4096))


def cut_off(path: Path) -> None:
    a_store_with_content(path)
    os.truncate(path, path.stat().st_size // 2)


def overwritten_in_the_middle(path: Path) -> None:
    a_store_with_content(path)
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
    a_store_with_content(path)
    edit(path, "DROP TABLE history")


def without_a_revision(path: Path) -> None:
    edit(path, "CREATE TABLE scopes (id)", f"PRAGMA application_id = {APPLICATION_ID}")


def newer(path: Path) -> None:
    a_store_with_content(path)
    edit(path, "UPDATE alembic_version SET version_num = '0999'", "PRAGMA user_version = 999")


def of_an_unknown_revision(path: Path) -> None:
    a_store_with_content(path)
    edit(path, "UPDATE alembic_version SET version_num = '0000'")


@pytest.mark.parametrize(
    ("spoil", "why", "remedy"),
    [
        (text, "is not an SQLite database", "give another path"),
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
def test_it_is_refused_by_name_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], None], why: str, remedy: str
) -> None:
    path = tmp_path / "our store.db"
    spoil(path)
    before = path.read_bytes()

    with pytest.raises(Rejected) as refusal:
        SqliteStore.open(path)

    message = str(refusal.value)
    assert repr(str(path)) in message
    assert why in message
    assert "left as it is" in message
    assert remedy in message
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="is not an SQLite database"):
        SqliteStore.open(tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"create '.*/nowhere' first"):
        SqliteStore.open(tmp_path / "nowhere" / "store.db")


def test_a_place_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.symlink_to(tmp_path / "not mounted" / "store.db")
    with pytest.raises(Unavailable, match=r"store\.db' cannot be opened now .*try again"):
        SqliteStore.open(path)


@pytest.mark.parametrize("statements", [(), ("PRAGMA journal_mode = WAL",), ("PRAGMA user_version = 0",)])
def test_what_a_crash_leaves_before_the_first_table_is_opened_as_new(
    tmp_path: Path, statements: tuple[str, ...]
) -> None:
    path = tmp_path / "100% new?.db"
    path.touch()
    edit(path, *statements)

    async def story() -> None:
        store = SqliteStore.open(path)
        assert await store.commit(Commit(entries=(sample_history_entry("first"),))) == 1
        await store.close()

    asyncio.run(story())
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
