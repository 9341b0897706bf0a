"""The memory store fails on demand, at exactly the write that a test chooses."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.conformance.store_suite import sample_history_entry
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Unavailable
from forewarn.store import AppliedCommit, MemoryStore


class Crash(BaseException):
    """The death of a process, as an exception."""


def entry_commit(text: str) -> Commit:
    return Commit(entries=(sample_history_entry(text),))


def test_an_injected_failure_fails_one_write_without_effect() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        applied: list[AppliedCommit] = []
        store.subscribe(applied.append)
        store.fail_next(Unavailable("disk full"))
        with pytest.raises(Unavailable, match="disk full"):
            await store.commit(entry_commit("a"))
        assert (store.history(), applied) == ([], [])
        assert await store.commit(entry_commit("b")) == 1

    asyncio.run(scenario())


def test_an_injected_failure_can_wait_for_a_later_write() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        store.fail_next(Crash(), after=2)
        await store.commit(entry_commit("a"))
        await store.save("clock", b"1")
        with pytest.raises(Crash):
            await store.prune(0.0)
        assert await store.commit(entry_commit("b")) == 2

    asyncio.run(scenario())


def test_a_crash_after_the_commit_keeps_it_for_the_next_process() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        applied: list[AppliedCommit] = []
        store.subscribe(applied.append)
        store.fail_next(Crash(), applied=True)
        with pytest.raises(Crash):
            await store.commit(entry_commit("a"))
        assert applied == []
        assert [entry.text for entry in store.copy().history()] == ["a"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("after", "applied"), [(0, True), (1, False), (1, True)])
def test_a_write_that_fails_by_itself_leaves_the_injected_failure_for_a_later_one(after: int, applied: bool) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        store.fail_next(Crash(), after=after, applied=applied)
        with pytest.raises(Conflict):
            await store.commit(Commit(scopes=(Scope(id="x", version=7),)))
        for number in range(after):
            await store.save("clock", str(number).encode())
        with pytest.raises(Crash):
            await store.save("clock", b"last")
        assert store.failed_writes() == 1

    asyncio.run(scenario())


def test_a_copy_of_a_memory_store_changes_independently() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await store.commit(entry_commit("a"))
        await store.close()
        copy = store.copy()
        assert await copy.commit(entry_commit("b")) == 2
        assert store.last_seq() == 1

    asyncio.run(scenario())
