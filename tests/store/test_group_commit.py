"""Many callers share one commit, and none of them pays for another's conflict."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from forewarn.conformance.store_rows import sample_event, sample_history_entry
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import Conflict
from forewarn.store import SqliteStore, sqlite_file
from forewarn.store.writer_thread import WriterThread


def test_a_conflict_hits_only_its_own_caller(tmp_path: Path) -> None:
    async def story() -> None:
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

    asyncio.run(story())


def test_of_two_that_decided_on_the_same_version_one_wins(tmp_path: Path) -> None:
    async def story() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        commits = [store.commit(Commit(scopes=(Scope(id="s", epoch=number),))) for number in range(8)]
        answers = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(answer) for answer in answers] == [int] + [Conflict] * 7
        assert store.scope("s") == Scope(id="s", version=1, epoch=0)
        await store.close()

    asyncio.run(story())


def _new_database(path: Path) -> sqlite3.Connection:
    db = sqlite_file.connect(path, mode="rwc")
    db.execute("CREATE TABLE numbers (number)")
    return db


async def _hold(writer: WriterThread) -> tuple[threading.Event, asyncio.Task[None]]:
    """Keep the writer busy until the event is set, so that what comes meanwhile has to wait."""
    held, go = threading.Event(), threading.Event()

    def wait(db: sqlite3.Connection) -> None:
        held.set()
        go.wait()

    task = asyncio.create_task(writer.write(wait))
    await asyncio.to_thread(held.wait)
    return go, task


def test_what_waits_is_committed_together(tmp_path: Path) -> None:
    async def story() -> None:
        db = _new_database(tmp_path / "numbers.db")
        said: list[str] = []
        writer = WriterThread(db, "numbers")
        go, first = await _hold(writer)
        db.set_trace_callback(said.append)
        others = [
            asyncio.create_task(writer.write(lambda db, n=n: db.execute("INSERT INTO numbers VALUES (?)", (n,))))
            for n in range(64)
        ]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *others)
        db.set_trace_callback(None)
        await writer.finish()
        # One of these ends the group that was held.
        assert said.count("COMMIT") == 2
        assert db.execute("SELECT count(*) FROM numbers").fetchone() == (64,)
        writer.close()

    asyncio.run(story())


def test_a_caller_that_gave_up_holds_up_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        impatient = asyncio.create_task(store.commit(Commit(entries=(sample_history_entry("impatient"),))))
        patient = asyncio.create_task(store.commit(Commit(entries=(sample_history_entry("patient"),))))
        await asyncio.sleep(0)
        impatient.cancel()
        assert await patient == 2
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert [entry.text for entry in store.history()] == ["impatient", "patient"]
        await store.close()

    asyncio.run(story())


def test_a_value_that_cannot_be_written_is_its_callers_own_trouble(tmp_path: Path) -> None:
    async def story() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        too_large = Commit(scopes=(Scope(id="s", epoch=2**70),))
        answers = await asyncio.gather(
            store.commit(too_large), store.commit(Commit(entries=(sample_history_entry("a"),))), return_exceptions=True
        )
        assert isinstance(answers[0], OverflowError)
        assert answers[1] == 1
        await store.close()

    asyncio.run(story())


def test_a_scope_is_read_whole_while_it_is_being_written(tmp_path: Path) -> None:
    """Same number, same content (spec §4.2): never the row of one commit with the events of another."""

    async def story() -> None:
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

    asyncio.run(story())
