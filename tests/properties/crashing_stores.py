"""Stores at which a process may die, and a world that restarts the process.

A process dies at one write: before it, or right after it took effect. From then on that process writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from forewarn.control.lab_clock import load_clock_setting
from forewarn.core.commit import Commit
from forewarn.core.history import EventDelivery, LastPoll
from forewarn.errors import Unavailable
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite import SqliteStore
from tests.support.world import World

T = TypeVar("T")
MAX_PASSES = 5000  # reconcile passes between two steps of a test; more means that it never comes to rest


class ProcessDied(BaseException):
    """The death of the process, as an exception."""


class NeverAtRest(BaseException):
    """The reconciler runs passes without end."""


class FailurePlan:
    """When the writes of one process fail, or the process dies."""

    def __init__(self) -> None:
        self.dies_in: int | None = None  # after this many writes
        self.dies_late = False  # after the write took effect
        self.fails_in: int | None = None
        self.yields = 0  # how often a write lets other tasks run first
        self.passes = 0

    def count_pass(self) -> None:
        self.passes += 1
        if self.passes > MAX_PASSES:
            raise NeverAtRest(f"{MAX_PASSES} passes and not at rest")

    async def run_write(self, write: Callable[[], Awaitable[T]]) -> T:
        await self._yield()
        self._maybe_fail()
        if self._is_last():
            if self.dies_late and self.dies_in == 0:
                await write()
            self.dies_in = -1
            raise ProcessDied
        answer = await write()
        await self._yield()
        return answer

    async def _yield(self) -> None:
        for _ in range(self.yields):
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


class CrashingMemoryStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.failures = FailurePlan()

    def reopen(self) -> CrashingMemoryStore:
        other = CrashingMemoryStore()
        other._tables = self._tables.copy()
        return other

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        self.failures.count_pass()
        return super().due_scopes(now, limit)

    async def commit(self, commit: Commit) -> int:
        return await self.failures.run_write(lambda: MemoryStore.commit(self, commit))

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        await self.failures.run_write(lambda: MemoryStore.record_observations(self, polls, deliveries))

    async def save(self, name: str, value: bytes) -> None:
        await self.failures.run_write(lambda: MemoryStore.save(self, name, value))


class CrashingSqliteStore(SqliteStore):
    failures: FailurePlan
    path: Path

    @classmethod
    def open_at(cls, path: Path) -> CrashingSqliteStore:
        store = cls.open(path)
        assert isinstance(store, CrashingSqliteStore)
        store.failures, store.path = FailurePlan(), path
        return store

    def reopen(self) -> CrashingSqliteStore:
        return CrashingSqliteStore.open_at(self.path)

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        self.failures.count_pass()
        return super().due_scopes(now, limit)

    async def commit(self, commit: Commit) -> int:
        return await self.failures.run_write(lambda: SqliteStore.commit(self, commit))

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        await self.failures.run_write(lambda: SqliteStore.record_observations(self, polls, deliveries))

    async def save(self, name: str, value: bytes) -> None:
        await self.failures.run_write(lambda: SqliteStore.save(self, name, value))


CrashingStore = CrashingMemoryStore | CrashingSqliteStore


class CrashingWorld(World):
    """A world whose process may die at any write."""

    crashing_store: CrashingStore

    def __init__(self, store: CrashingStore, **facts: Any) -> None:
        self.crashing_store = store
        super().__init__(store=store, **facts)

    @property
    def failures(self) -> FailurePlan:
        return self.crashing_store.failures

    def restart_process(self) -> None:
        """Replace the process by a new one on the same store, which has not run a reconcile pass yet."""
        self.do(self.control.close())
        self.do(self.store.close())
        self.store = self.crashing_store = self.crashing_store.reopen()
        if (setting := load_clock_setting(self.store)) is not None and setting.lab_at > self.now:
            self.clock.apply_setting(setting)
        self.control = self.do(self._build())
