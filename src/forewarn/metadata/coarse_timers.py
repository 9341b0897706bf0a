"""Thousands of timeouts behind one event loop timer, each rounded up to a fixed resolution.

One timer per connection would be most of the memory and of the cost of an idle connection. Callbacks that are due at
the same time run in batches, so that other requests are not delayed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

_CALLBACKS_PER_TURN = 200  # more would make other polls wait

T = TypeVar("T")


class CoarseTimers(Generic[T]):
    def __init__(self, loop: asyncio.AbstractEventLoop, *, grain_s: float, call: Callable[[T], None]) -> None:
        self._loop, self._resolution_s, self._callback = loop, grain_s, call
        self._slots: dict[int, dict[T, None]] = {}
        self._slot_heap: list[int] = []  # a heap of all slots, and of some that are gone
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self, at: float, whom: T) -> int:
        """Call them at this moment of the loop's time; gives what `drop` needs."""
        slot = int(at / self._resolution_s) + 1
        names = self._slots.get(slot)
        if names is None:
            names = self._slots[slot] = {}
            heappush(self._slot_heap, slot)
            if self._slot_heap[0] == slot:
                self._restart_timer()
        names[whom] = None
        return slot

    def cancel(self, slot: int, whom: T) -> None:
        names = self._slots.get(slot)
        if names is not None:
            names.pop(whom, None)
            if not names:
                del self._slots[slot]

    def _next_slot(self) -> int | None:
        """The first slot that somebody is in."""
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
        latest, left = self._loop.time() / self._resolution_s, _CALLBACKS_PER_TURN
        while (slot := self._next_slot()) is not None and slot <= latest:
            left = self._fire_slot(slot, left)
            if not left:
                self._loop.call_soon(self._fire_due)
                return
        self._restart_timer()

    def _fire_slot(self, slot: int, left: int) -> int:
        """So many at most; gives how many more there may be. Who is dropped before their turn is not called."""
        names = self._slots[slot]
        while names and left:
            left -= 1
            whom, _ = names.popitem()
            try:
                self._callback(whom)
            except Exception:
                _log.exception("a mistake of ours: what was due for %r is left undone", whom)
        if not names and self._slots.get(slot) is names:
            del self._slots[slot]
        return left
