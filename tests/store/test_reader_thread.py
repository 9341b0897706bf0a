"""Long reads of a SQLite store have a thread of their own, which ends with the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forewarn.errors import Unavailable
from forewarn.store import SqliteStore
from forewarn.store.sqlite import ReaderThread

LIMIT_S = 60.0


class HeldRead:
    """A read that a test ends."""

    def __init__(self) -> None:
        self._begun, self._may_end = threading.Event(), threading.Event()

    def __call__(self, source: object) -> str:
        self._begun.set()
        assert self._may_end.wait(LIMIT_S)
        return threading.current_thread().name

    @property
    def has_begun(self) -> bool:
        return self._begun.is_set()

    async def until_begun(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not self.has_begun:
                await asyncio.sleep(0.001)

    def end(self) -> None:
        self._may_end.set()


def with_store(tmp_path: Path, scenario: Callable[[SqliteStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_a_long_read_leaves_the_threads_of_asyncio_to_others(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="asyncio's"))
        held = HeldRead()
        reading = asyncio.create_task(store.read_in_thread(held))
        try:
            await held.until_begun()
            quick = asyncio.create_task(asyncio.to_thread(threading.current_thread))
            done, _ = await asyncio.wait({quick}, timeout=LIMIT_S)
            assert done == {quick}
        finally:
            held.end()
        assert (await reading).startswith("reader of ")

    with_store(tmp_path, scenario)


def test_long_reads_run_one_after_the_other(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        first, second = HeldRead(), HeldRead()
        second.end()
        reads = [asyncio.create_task(store.read_in_thread(each)) for each in (first, second)]
        await first.until_begun()
        assert not second.has_begun
        first.end()
        assert len(set(await asyncio.gather(*reads))) == 1

    with_store(tmp_path, scenario)


def test_a_long_read_whose_caller_was_cancelled_does_not_begin(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        first, second = HeldRead(), HeldRead()
        reading, waiting = (asyncio.create_task(store.read_in_thread(each)) for each in (first, second))
        await first.until_begun()
        waiting.cancel()
        first.end()
        await reading
        assert await store.read_in_thread(lambda reader: reader.last_seq()) == 0
        assert not second.has_begun

    with_store(tmp_path, scenario)


def test_closing_the_thread_waits_for_the_read_under_way_and_refuses_others(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        thread = ReaderThread(tmp_path / "store.db", lambda: None)
        first, second = HeldRead(), HeldRead()
        reading, waiting = (asyncio.create_task(thread.run(each)) for each in (first, second))
        await first.until_begun()
        closing = asyncio.create_task(thread.close())
        await asyncio.sleep(0)  # it refuses reads from here on
        with pytest.raises(Unavailable, match="is closed and cannot be read: open it again"):
            await thread.run(second)
        assert not closing.done()
        first.end()
        await closing
        assert await reading not in {each.name for each in threading.enumerate()}
        with pytest.raises(Unavailable, match="is closed and cannot be read"):
            await waiting
        assert not second.has_begun
        await thread.close()

    with_store(tmp_path, scenario)


def test_a_closed_store_begins_no_long_read(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        name = await store.read_in_thread(lambda reader: threading.current_thread().name)
        await store.close()
        assert name not in {each.name for each in threading.enumerate()}
        with pytest.raises(Unavailable, match="is closed and cannot be read: open it again"):
            await store.read_in_thread(lambda reader: None)

    with_store(tmp_path, scenario)
