"""Whoever asks for much waits for themselves: where all wait in one queue, each person stands in it once."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Turns:
    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # whose, while somebody holds it

    def of(self, who: str) -> asyncio.Lock:
        return self._locks.setdefault(who, asyncio.Lock())
