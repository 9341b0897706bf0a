"""The state that all connections of a server share: open connections, pending calls, timers, draining."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

from forewarn.metadata.identity import Caller
from forewarn.metadata.limits import Limits
from forewarn.metadata.published_documents import PublishedDocuments
from forewarn.metadata.request_counters import RequestCounters
from forewarn.metadata.responder import FinishResponse, PendingResponse, Responder
from forewarn.metadata.response_cache import ResponseCache
from forewarn.metadata.response_writer import ResponseWriter

_log = logging.getLogger(__name__)
T = TypeVar("T")


# Thousands of timeouts behind one event loop timer, each rounded up to a fixed resolution.
#
# A timer of its own would be most of the memory and of the cost of an idle connection. Callbacks that are due at
# the same time run in batches, so that other requests are not delayed.

_CALLBACKS_PER_TURN = 200  # more would delay other polls


class CoarseTimers(Generic[T]):
    """Calls `callback(item)` for each scheduled item, after its time but within about `resolution_s`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, resolution_s: float, callback: Callable[[T], None]) -> None:
        self._loop, self._resolution_s, self._callback = loop, resolution_s, callback
        self._slots: dict[int, dict[T, None]] = {}
        self._slot_heap: list[int] = []  # all slots, and some that were canceled
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self, at: float, item: T) -> int:
        """Call back once for the item soon after the loop time `at`; soon, if that is in the past."""
        slot = int(at / self._resolution_s) + 1
        items = self._slots.get(slot)
        if items is None:
            items = self._slots[slot] = {}
            heappush(self._slot_heap, slot)
            if self._slot_heap[0] == slot:
                self._restart_timer()
        items[item] = None
        return slot

    def cancel(self, slot: int, item: T) -> None:
        """Do not call back for the item in the slot that `schedule` returned; does nothing if it is not there."""
        items = self._slots.get(slot)
        if items is not None:
            items.pop(item, None)
            if not items:
                del self._slots[slot]

    def _next_slot(self) -> int | None:
        while self._slot_heap and self._slot_heap[0] not in self._slots:
            heappop(self._slot_heap)
        return self._slot_heap[0] if self._slot_heap else None

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (slot := self._next_slot()) is not None:
            self._timer = self._loop.call_at(slot * self._resolution_s, self._fire_due)

    def _fire_due(self) -> None:
        latest, budget = self._loop.time() / self._resolution_s, _CALLBACKS_PER_TURN
        while (slot := self._next_slot()) is not None and slot <= latest:
            budget = self._fire_slot(slot, budget)
            if not budget:
                self._loop.call_soon(self._fire_due)
                return
        self._restart_timer()

    def _fire_slot(self, slot: int, budget: int) -> int:
        """Run at most `budget` callbacks and return the rest of it. A callback may cancel later items."""
        items = self._slots[slot]
        while items and budget:
            budget -= 1
            item, _ = items.popitem()
            try:
                self._callback(item)
            except Exception:
                _log.exception("the timer of %r failed with an internal error", item)
        if not items and self._slots.get(slot) is items:
            del self._slots[slot]
        return budget


_DRAINS_PER_TURN = 200
_HOLD_TIMER_RESOLUTION_S = 0.05
_IDLE_TIMER_STEPS = 100  # resolution of the idle timeout


class OpenConnection(Protocol):
    """The part of a connection that the server state uses; see `MetadataConnection`."""

    def drain(self, *, close_idle: bool) -> None:
        """Answer the request in progress, also one that has only begun to arrive, then close."""

    def abort(self) -> None:
        """Close at once, without sending buffered data."""

    def on_hold_timeout(self) -> None:
        """Answer the held request, if there is one, because its time is over; it may be held again."""

    def check_idle(self) -> None:
        """Close if there was no request for `Limits.idle_s`, else schedule the next check."""

    @property
    def buffered_bytes(self) -> int:
        """The number of received bytes not parsed yet, plus bytes of responses that the kernel has not taken."""


class ServerState:
    """The parts of a server that its connections use, the set of open connections, and their timers."""

    def __init__(
        self,
        *,
        responder: Responder,
        response_cache: ResponseCache,
        documents: PublishedDocuments,
        writer: ResponseWriter,
        limits: Limits,
        counters: RequestCounters,
    ) -> None:
        self.responder, self.response_cache, self.documents, self.writer = responder, response_cache, documents, writer
        self.limits, self.counters = limits, counters
        self.loop = asyncio.get_running_loop()
        self.serve_hit, self.time = response_cache.serve_hit, self.loop.time  # bound once: the fast path needs them
        self.hold_timers = CoarseTimers[OpenConnection](
            self.loop,
            resolution_s=_HOLD_TIMER_RESOLUTION_S,
            callback=lambda connection: connection.on_hold_timeout(),
        )
        self.idle_timers = CoarseTimers[OpenConnection](
            self.loop,
            resolution_s=limits.idle_s / _IDLE_TIMER_STEPS,
            callback=lambda connection: connection.check_idle(),
        )
        self.is_draining = False
        self._max_connections, self._max_per_vm = limits.max_connections, limits.max_connections_per_vm
        self._connections: dict[OpenConnection, str | None] = {}
        self._per_vm: Counter[str | None] = Counter()
        self._pending_tasks: set[asyncio.Task[FinishResponse]] = set()
        self._is_grace_over = False
        self._drain_progress = asyncio.Event()  # no connection is left, or the grace of idle ones is over

    @property
    def connection_count(self) -> int:
        """The number of open connections of all callers to this process, also of those that are closing."""
        return len(self._connections)

    @property
    def buffered_bytes(self) -> int:
        """The number of received bytes not parsed yet, plus bytes of responses that the kernel has not taken."""
        return sum(connection.buffered_bytes for connection in self._connections)

    def admit_connection(self, vm: str | None) -> bool:
        """Return whether one more connection of the VM (its key) may be added."""
        is_full = self._per_vm.get(vm, 0) >= self._max_per_vm or len(self._connections) >= self._max_connections
        if is_full or self.is_draining:
            self.counters.refused += 1
            return False
        self.counters.accepted += 1
        return True

    def add_connection(self, connection: OpenConnection, caller: Caller) -> None:
        """Add an open connection of the caller's VM, without checking limits."""
        self._connections[connection] = caller.vm
        self._per_vm[caller.vm] += 1

    def remove_connection(self, connection: OpenConnection) -> None:
        """Forget a connection that is closed; does nothing if it is not there."""
        if connection not in self._connections:
            return
        vm = self._connections.pop(connection)
        self._per_vm[vm] -= 1
        if not self._per_vm[vm]:
            del self._per_vm[vm]
        if not self._connections:
            self._drain_progress.set()

    def run_pending(self, pending: PendingResponse, on_done: Callable[[asyncio.Task[FinishResponse]], None]) -> None:
        """Start a backend call as a task and return at once; when it ends, `on_done` is called with the task."""
        # It runs to its end even if the client disconnects. Only `drain` cancels it, after its timeout.
        task = self.loop.create_task(pending)
        self._pending_tasks.add(task)
        task.add_done_callback(self._pending_tasks.discard)
        task.add_done_callback(on_done)

    async def drain(self, timeout_s: float, *, idle_grace_s: float = 0.0) -> None:
        """Answer the requests in progress and close all connections; no more are admitted, nothing is cached.

        Idle connections stay open for up to `idle_grace_s`, and close when their next request is answered: closed at
        once, they would lose a request that is on its way.
        """
        self.is_draining = True
        # First: a cached answer keeps connections open, and nothing would tell clients to close them.
        self.response_cache.disable()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if timeout_s > 0:
                    await self._drain_connections(idle_grace_s)
        for connection in tuple(self._connections):
            connection.abort()
        # After the connections: nobody waits for their results any more.
        for task in tuple(self._pending_tasks):
            task.cancel()
        await self._wait_until_empty()

    def end_idle_grace(self) -> None:
        """End the wait of idle connections in a `drain` with `idle_grace_s`: they close now. Returns at once."""
        self._is_grace_over = True
        self._drain_progress.set()

    async def _drain_connections(self, idle_grace_s: float) -> None:
        if idle_grace_s > 0:
            # Not the idle ones yet: closed at once, they would lose a request that is on its way.
            await self._drain_each(close_idle=False)
            with suppress(TimeoutError):
                async with asyncio.timeout(idle_grace_s):
                    while self._connections and not self._is_grace_over:
                        self._drain_progress.clear()
                        await self._drain_progress.wait()
        await self._drain_each(close_idle=True)
        await self._wait_until_empty()
        if self._pending_tasks:
            await asyncio.wait(self._pending_tasks)

    async def _drain_each(self, *, close_idle: bool) -> None:
        for index, connection in enumerate(tuple(self._connections), start=1):
            connection.drain(close_idle=close_idle)
            if index % _DRAINS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _wait_until_empty(self) -> None:
        while self._connections:
            self._drain_progress.clear()
            await self._drain_progress.wait()
