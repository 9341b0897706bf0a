"""Thousands of timeouts behind one event loop timer, each rounded up to a fixed resolution.

A timer of its own would be most of the memory and of the cost of an idle connection. Callbacks that are due at
the same time run in batches, so that other requests are not delayed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

_CALLBACKS_PER_TURN = 200  # more would delay other polls

T = TypeVar("T")


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
