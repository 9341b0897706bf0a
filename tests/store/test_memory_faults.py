"""The store in memory fails on demand, at exactly the write that a test names."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.conformance.store_rows import sample_history_entry
from forewarn.core.commit import Commit
from forewarn.errors import Unavailable
from forewarn.store import AppliedCommit, MemoryStore


class Crash(BaseException):
    """The process is gone."""


def an_entry_commit(text: str) -> Commit:
    return Commit(entries=(sample_history_entry(text),))


def test_a_failure_leaves_no_trace_and_is_over_after_one_write() -> None:
    async def story() -> None:
        store = MemoryStore()
        heard: list[AppliedCommit] = []
        store.subscribe(heard.append)
        store.fail_next(Unavailable("disk full"))
        with pytest.raises(Unavailable, match="disk full"):
            await store.commit(an_entry_commit("a"))
        assert (store.history(), heard) == ([], [])
        assert await store.commit(an_entry_commit("b")) == 1

    asyncio.run(story())


def test_a_failure_waits_for_its_write() -> None:
    async def story() -> None:
        store = MemoryStore()
        store.fail_next(Crash(), after=2)
        await store.commit(an_entry_commit("a"))
        await store.save("clock", b"1")
        with pytest.raises(Crash):
            await store.prune(0.0)
        assert await store.commit(an_entry_commit("b")) == 2

    asyncio.run(story())


def test_a_crash_after_the_commit_leaves_it_for_the_next_process() -> None:
    async def story() -> None:
        store = MemoryStore()
        heard: list[AppliedCommit] = []
        store.subscribe(heard.append)
        store.fail_next(Crash(), applied=True)
        with pytest.raises(Crash):
            await store.commit(an_entry_commit("a"))
        assert heard == []
        assert [entry.text for entry in store.copy().history()] == ["a"]

    asyncio.run(story())


def test_a_copy_goes_its_own_way() -> None:
    async def story() -> None:
        store = MemoryStore()
        await store.commit(an_entry_commit("a"))
        await store.close()
        copy = store.copy()
        assert await copy.commit(an_entry_commit("b")) == 2
        assert store.last_seq() == 1

    asyncio.run(story())
