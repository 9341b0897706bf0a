"""What all connections of one server share: open connections, pending backend calls, timers, draining."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from forewarn.metadata.coarse_timers import CoarseTimers
from forewarn.metadata.identity import Caller
from forewarn.metadata.limits import Limits
from forewarn.metadata.published_documents import PublishedDocuments
from forewarn.metadata.request_counters import RequestCounters
from forewarn.metadata.responder import FinishResponse, PendingResponse, Responder
from forewarn.metadata.response_cache import ResponseCache
from forewarn.metadata.response_writer import ResponseWriter

_DRAINS_PER_TURN = 200
_HOLD_TIMER_RESOLUTION_S = 0.05
_IDLE_TIMER_STEPS = 100  # to the time that a connection may be idle


class OpenConnection(Protocol):
    """A connection, as the hall sees it."""

    def drain(self) -> None:
        """Answer what is held or in work, take no further request, and go."""

    def abort(self) -> None:
        """Go at once."""

    def on_hold_timeout(self) -> None:
        """The request that is held has waited long enough."""

    def check_idle(self) -> None:
        """Go, if there was no request for too long."""

    @property
    def buffered_bytes(self) -> int: ...


class ServerState:
    def __init__(
        self,
        *,
        reception: Responder,
        memory: ResponseCache,
        board: PublishedDocuments,
        writer: ResponseWriter,
        limits: Limits,
        tally: RequestCounters,
    ) -> None:
        self.responder, self.response_cache, self.documents, self.writer = reception, memory, board, writer
        self.limits, self.counters = limits, tally
        self.loop = asyncio.get_running_loop()
        self.serve_hit, self.time = memory.serve_hit, self.loop.time
        self.hold_timers = CoarseTimers[OpenConnection](
            self.loop, grain_s=_HOLD_TIMER_RESOLUTION_S, call=lambda guest: guest.on_hold_timeout()
        )
        self.idle_timers = CoarseTimers[OpenConnection](
            self.loop, grain_s=limits.idle_s / _IDLE_TIMER_STEPS, call=lambda guest: guest.check_idle()
        )
        self.is_draining = False
        self._max_per_vm = limits.max_connections_per_vm
        self._connections: dict[OpenConnection, str | None] = {}
        self._per_vm: Counter[str | None] = Counter()
        self._pending_tasks: set[asyncio.Task[FinishResponse]] = set()
        self._is_empty = asyncio.Event()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def buffered_bytes(self) -> int:
        return sum(guest.buffered_bytes for guest in self._connections)

    def admit_connection(self, vm: str | None) -> bool:
        """Whether one more connection of the VM may be served; strangers share one allowance, as if they were one."""
        is_crowded = self._per_vm.get(vm, 0) >= self._max_per_vm or len(self._connections) >= self.limits.connections
        if is_crowded or self.is_draining:
            self.counters.refused += 1
            return False
        self.counters.accepted += 1
        return True

    def add_connection(self, guest: OpenConnection, caller: Caller) -> None:
        self._connections[guest] = caller.vm
        self._per_vm[caller.vm] += 1

    def remove_connection(self, guest: OpenConnection) -> None:
        if guest not in self._connections:
            return
        vm = self._connections.pop(guest)
        self._per_vm[vm] -= 1
        if not self._per_vm[vm]:
            del self._per_vm[vm]
        if not self._connections:
            self._is_empty.set()

    def run_pending(self, work: PendingResponse, then: Callable[[asyncio.Task[FinishResponse]], None]) -> None:
        """Carry it through even if the caller hangs up: what it asked for was asked for."""
        task = self.loop.create_task(work)
        self._pending_tasks.add(task)
        task.add_done_callback(self._pending_tasks.discard)
        task.add_done_callback(then)

    async def drain(self, timeout_s: float) -> None:
        """Everybody is answered and leaves; who has not within the time is hung up on: everybody, if there is none."""
        self.is_draining = True
        self.response_cache.disable()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if timeout_s > 0:
                    await self._drain_connections()
        for guest in tuple(self._connections):
            guest.abort()
        for task in tuple(self._pending_tasks):
            task.cancel()
        await self._wait_until_empty()

    async def _drain_connections(self) -> None:
        for index, guest in enumerate(tuple(self._connections), start=1):
            guest.drain()
            if index % _DRAINS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._wait_until_empty()
        if self._pending_tasks:
            await asyncio.wait(self._pending_tasks)

    async def _wait_until_empty(self) -> None:
        while self._connections:
            self._is_empty.clear()
            await self._is_empty.wait()
