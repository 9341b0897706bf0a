"""One timer for thousands: whoever is to be called at a moment is called at it or a grain later, a portion at a time.

A timer each would be most of what a connection at rest keeps in memory, and of what it costs to set one aside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

_CALLS_PER_TURN = 200  # more would make other polls wait

T = TypeVar("T")


class Timetable(Generic[T]):
    def __init__(self, loop: asyncio.AbstractEventLoop, *, grain_s: float, call: Callable[[T], None]) -> None:
        self._loop, self._grain_s, self._call = loop, grain_s, call
        self._slots: dict[int, dict[T, None]] = {}
        self._order: list[int] = []  # a heap of all slots, and of some that are gone
        self._timer: asyncio.TimerHandle | None = None

    def put(self, at: float, whom: T) -> int:
        """Call them at this moment of the loop's time; gives what `drop` needs."""
        slot = int(at / self._grain_s) + 1
        names = self._slots.get(slot)
        if names is None:
            names = self._slots[slot] = {}
            heappush(self._order, slot)
            if self._order[0] == slot:
                self._wind()
        names[whom] = None
        return slot

    def drop(self, slot: int, whom: T) -> None:
        names = self._slots.get(slot)
        if names is not None:
            names.pop(whom, None)
            if not names:
                del self._slots[slot]

    def _next(self) -> int | None:
        """The first slot that somebody is in."""
        while self._order and self._order[0] not in self._slots:
            heappop(self._order)
        return self._order[0] if self._order else None

    def _wind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (slot := self._next()) is not None:
            self._timer = self._loop.call_at(slot * self._grain_s, self._ring)

    def _ring(self) -> None:
        latest, left = self._loop.time() / self._grain_s, _CALLS_PER_TURN
        while (slot := self._next()) is not None and slot <= latest:
            left = self._call_some(slot, left)
            if not left:
                self._loop.call_soon(self._ring)
                return
        self._wind()

    def _call_some(self, slot: int, left: int) -> int:
        """So many at most; gives how many more there may be. Who is dropped before their turn is not called."""
        names = self._slots[slot]
        while names and left:
            left -= 1
            whom, _ = names.popitem()
            try:
                self._call(whom)
            except Exception:
                _log.exception("a mistake of ours: what was due for %r is left undone", whom)
        if not names and self._slots.get(slot) is names:
            del self._slots[slot]
        return left
