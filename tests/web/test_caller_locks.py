"""Previews of one caller run one at a time, so that no caller delays the others."""

from __future__ import annotations

import asyncio

from forewarn.web.dependencies import CallerLocks


def test_a_caller_with_many_previews_delays_others_by_one_preview_at_most() -> None:
    locks, done = CallerLocks(), list[str]()

    async def ask(who: str, queue: asyncio.Lock) -> None:
        async with locks.for_caller(who), queue:
            await asyncio.sleep(0)
            done.append(who)

    async def scenario() -> None:
        queue = asyncio.Lock()
        asked = [asyncio.create_task(ask("joe", queue)) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.gather(ask("ann", queue), *asked)

    asyncio.run(scenario())
    assert done.index("ann") <= 2
    assert len(done) == 21


def test_a_callers_lock_is_dropped_after_its_last_use() -> None:
    locks = CallerLocks()

    async def ask(who: str) -> None:
        async with locks.for_caller(who):
            await asyncio.sleep(0)

    async def scenario() -> None:
        await asyncio.gather(*(ask(f"person {number}") for number in range(100)))

    asyncio.run(scenario())
    assert not locks._locks
