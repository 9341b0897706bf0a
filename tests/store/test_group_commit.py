"""Concurrent writes share one transaction, and a conflict of one does not affect the others."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from functools import partial
from pathlib import Path

import pytest

from forewarn.conformance.store_suite import sample_event, sample_history_entry
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Unavailable
from forewarn.store import SqliteStore, sqlite_file
from forewarn.store.sqlite_file import StoreFileDisplaced
from forewarn.store.writer_thread import WriterThread


def test_a_conflict_fails_only_its_own_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        await store.commit(Commit(scopes=tuple(Scope(id=f"s{n}") for n in range(64))))

        async def commit(number: int) -> int | Conflict:
            scope = Scope(id=f"s{number}", version=1 if number % 9 else 5, epoch=number)
            try:
                return await store.commit(Commit(scopes=(scope,), entries=(sample_history_entry(f"s{number}"),)))
            except Conflict as conflict:
                return conflict

        answers = await asyncio.gather(*(commit(number) for number in range(64)))

        for number, answer in enumerate(answers):
            if number % 9:
                assert store.scope(f"s{number}") == Scope(id=f"s{number}", version=2, epoch=number)
            else:
                assert isinstance(answer, Conflict)
                assert f"'s{number}' is at version 1" in str(answer)
        kept = [entry.text for entry in store.history()]
        assert kept == [f"s{number}" for number in range(64) if number % 9]
        await store.close()

    asyncio.run(scenario())


def test_one_of_several_commits_on_the_same_version_wins(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        commits = [store.commit(Commit(scopes=(Scope(id="s", epoch=number),))) for number in range(8)]
        answers = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(answer) for answer in answers] == [int] + [Conflict] * 7
        assert store.scope("s") == Scope(id="s", version=1, epoch=0)
        await store.close()

    asyncio.run(scenario())


def _new_database(path: Path) -> sqlite3.Connection:
    db = sqlite_file.connect(path, mode="rwc")
    db.execute("CREATE TABLE numbers (number)")
    return db


def _insert(db: sqlite3.Connection, *, number: int) -> None:
    db.execute("INSERT INTO numbers VALUES (?)", (number,))


async def _block_writer(writer: WriterThread) -> tuple[threading.Event, asyncio.Task[None]]:
    """Block the writer thread until the returned event is set, so that later writes have to wait."""
    blocked, unblock = threading.Event(), threading.Event()

    def wait(db: sqlite3.Connection) -> None:
        blocked.set()
        unblock.wait()

    task = asyncio.create_task(writer.write(wait))
    await asyncio.to_thread(blocked.wait)
    return unblock, task


def test_waiting_writes_are_committed_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        db = _new_database(tmp_path / "numbers.db")
        statements: list[str] = []
        writer = WriterThread(db, "numbers")
        unblock, first = await _block_writer(writer)
        db.set_trace_callback(statements.append)
        others = [asyncio.create_task(writer.write(partial(_insert, number=n))) for n in range(64)]
        await asyncio.sleep(0)
        unblock.set()
        await asyncio.gather(first, *others)
        db.set_trace_callback(None)
        await writer.finish()
        # One of the two ends the group that was blocked.
        assert statements.count("COMMIT") == 2
        assert db.execute("SELECT count(*) FROM numbers").fetchone() == (64,)
        writer.close()

    asyncio.run(scenario())


def test_writes_of_one_iteration_of_the_event_loop_are_one_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        db = _new_database(tmp_path / "numbers.db")
        statements: list[str] = []
        db.set_trace_callback(statements.append)
        writer = WriterThread(db, "numbers")
        await asyncio.gather(*(writer.write(partial(_insert, number=n)) for n in range(64)))
        await writer.finish()
        db.set_trace_callback(None)
        assert statements.count("COMMIT") == 1
        writer.close()

    asyncio.run(scenario())


def test_a_write_of_many_rows_has_more_time_than_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        writer = WriterThread(_new_database(tmp_path / "numbers.db"), "numbers", limit_s=0.05)
        unblock, first = await _block_writer(writer)
        large = asyncio.create_task(writer.write(partial(_insert, number=1), rows=1_000_000))
        small = asyncio.create_task(writer.write(partial(_insert, number=2)))
        with pytest.raises(Unavailable, match=r"for 0\.05 s, and may still save it"):
            await small
        assert not large.done()
        unblock.set()
        await large
        await asyncio.gather(first, return_exceptions=True)
        await writer.finish()
        writer.close()

    asyncio.run(scenario())


def test_a_write_during_which_the_file_is_replaced_fails_but_may_still_be_saved(tmp_path: Path) -> None:
    checks = iter([False, True, True])  # before the group, after its COMMIT, before the next group

    def check() -> None:
        if next(checks):
            raise StoreFileDisplaced("numbers.db was moved")

    async def scenario() -> None:
        db = _new_database(tmp_path / "numbers.db")
        writer = WriterThread(db, "numbers", check=check)
        with pytest.raises(
            Unavailable, match=r"has not confirmed a write, because .* was moved.*, and may still save it"
        ):
            await writer.write(partial(_insert, number=1))
        with pytest.raises(Unavailable, match=r"cannot be written, because numbers.db was moved: put the file back"):
            await writer.write(partial(_insert, number=2))
        await writer.finish()
        assert db.execute("SELECT * FROM numbers").fetchall() == [(1,)]
        writer.close()

    asyncio.run(scenario())


def test_a_write_that_an_ended_event_loop_left_behind_does_not_block_later_ones(tmp_path: Path) -> None:
    writer = WriterThread(_new_database(tmp_path / "numbers.db"), "numbers")
    ended = asyncio.new_event_loop()
    left = ended.create_task(writer.write(partial(_insert, number=1)))
    ended.call_soon(ended.stop)
    ended.run_forever()
    ended.close()

    async def scenario() -> None:
        await asyncio.wait_for(writer.write(partial(_insert, number=2)), 20)
        await writer.finish()
        writer.close()

    asyncio.run(scenario())
    assert not left.done()  # its loop is closed: nobody can answer it


def test_a_cancelled_caller_does_not_affect_other_writes(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        cancelled = asyncio.create_task(store.commit(Commit(entries=(sample_history_entry("cancelled"),))))
        other = asyncio.create_task(store.commit(Commit(entries=(sample_history_entry("other"),))))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await other == 2
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert [entry.text for entry in store.history()] == ["cancelled", "other"]
        await store.close()

    asyncio.run(scenario())


def test_a_value_that_cannot_be_stored_fails_only_its_own_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        too_large = Commit(scopes=(Scope(id="s", epoch=2**70),))
        answers = await asyncio.gather(
            store.commit(too_large), store.commit(Commit(entries=(sample_history_entry("a"),))), return_exceptions=True
        )
        assert isinstance(answers[0], OverflowError)
        assert answers[1] == 1
        await store.close()

    asyncio.run(scenario())


def test_a_scope_is_read_consistently_while_it_is_being_written(tmp_path: Path) -> None:
    """Same incarnation, same content (spec §4.2): never the row of one commit with the events of another."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")

        async def write() -> None:
            for number in range(300):
                event = sample_event("E", scope_id="s", note=str(number))
                await store.commit(Commit(scopes=(Scope(id="s", version=number, epoch=number),), events=(event,)))

        writing = asyncio.create_task(write())
        while not writing.done():
            scope = store.scope("s")
            assert scope is None or [event.note for event in scope.events] == [str(scope.epoch)]
            await asyncio.sleep(0)
        await writing
        await store.close()

    asyncio.run(scenario())
