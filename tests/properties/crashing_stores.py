"""Stores that a process may die at, and a world that comes back from it.

A death falls at one write: before it, or right after it took effect. From then on that process writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from forewarn.control.lab_clock import load_clock_setting
from forewarn.core.commit import Commit
from forewarn.core.history import EventDelivery
from forewarn.errors import Unavailable
from forewarn.store.interface import LastPoll
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite import SqliteStore
from tests.support.world import World

T = TypeVar("T")
MOST_TURNS = 5000  # between two steps of a test; more is a reconciler that never comes to rest


class Died(BaseException):
    """The process is gone."""


class Restless(BaseException):
    """The reconciler turns for ever."""


class Fate:
    """What is to befall the writes of one process."""

    def __init__(self) -> None:
        self.dies_in: int | None = None  # writes
        self.dies_late = False  # after the write took effect
        self.fails_in: int | None = None
        self.naps = 0  # how often a write lets others go first
        self.turns = 0

    def look(self) -> None:
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Restless(f"{MOST_TURNS} turns and no rest")

    async def meet(self, write: Callable[[], Awaitable[T]]) -> T:
        await self._nap()
        self._maybe_fail()
        if self._is_last():
            if self.dies_late and self.dies_in == 0:
                await write()
            self.dies_in = -1
            raise Died
        answer = await write()
        await self._nap()
        return answer

    async def _nap(self) -> None:
        for _ in range(self.naps):
            await asyncio.sleep(0)

    def _maybe_fail(self) -> None:
        if self.fails_in is None:
            return
        self.fails_in -= 1
        if self.fails_in < 0:
            self.fails_in = None
            raise Unavailable("the disk is full for a moment: try again later")

    def _is_last(self) -> bool:
        if self.dies_in is None:
            return False
        if self.dies_in <= 0:
            return True
        self.dies_in -= 1
        return False


class MortalMemory(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.fate = Fate()

    def reopened(self) -> MortalMemory:
        other = MortalMemory()
        other._tables = self._tables.copy()
        return other

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        self.fate.look()
        return super().due_scopes(now, limit)

    async def commit(self, commit: Commit) -> int:
        return await self.fate.meet(lambda: MemoryStore.commit(self, commit))

    async def record_observations(self, polls: Sequence[LastPoll], sightings: Sequence[EventDelivery]) -> None:
        await self.fate.meet(lambda: MemoryStore.record_observations(self, polls, sightings))

    async def save(self, name: str, value: bytes) -> None:
        await self.fate.meet(lambda: MemoryStore.save(self, name, value))


class MortalSqlite(SqliteStore):
    fate: Fate
    path: Path

    @classmethod
    def at(cls, path: Path) -> MortalSqlite:
        store = cls.open(path)
        assert isinstance(store, MortalSqlite)
        store.fate, store.path = Fate(), path
        return store

    def reopened(self) -> MortalSqlite:
        return MortalSqlite.at(self.path)

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        self.fate.look()
        return super().due_scopes(now, limit)

    async def commit(self, commit: Commit) -> int:
        return await self.fate.meet(lambda: SqliteStore.commit(self, commit))

    async def record_observations(self, polls: Sequence[LastPoll], sightings: Sequence[EventDelivery]) -> None:
        await self.fate.meet(lambda: SqliteStore.record_observations(self, polls, sightings))

    async def save(self, name: str, value: bytes) -> None:
        await self.fate.meet(lambda: SqliteStore.save(self, name, value))


MortalStore = MortalMemory | MortalSqlite


class MortalWorld(World):
    """A world whose process may die at any write; `reborn` is the next process, which has not turned yet."""

    mortal: MortalStore

    def __init__(self, store: MortalStore, **facts: Any) -> None:
        self.mortal = store
        super().__init__(store=store, **facts)

    @property
    def fate(self) -> Fate:
        return self.mortal.fate

    def reborn(self) -> None:
        self.do(self.control.close())
        self.do(self.store.close())
        self.store = self.mortal = self.mortal.reopened()
        if (setting := load_clock_setting(self.store)) is not None and setting.lab_at > self.now:
            self.clock.apply_setting(setting)
        self.control = self.do(self._build())
