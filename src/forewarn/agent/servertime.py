"""The server's time, which governs everything that events are measured by (spec §12): its latest Date, and what has
passed since. In a lab it jumps, so whoever sleeps looks again at every answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from forewarn.clock import read_real_time

LONGEST_NAP_S = 1.0


class ServerTime:
    """A `Clock` over what a client was told; this machine's own time until the server tells its."""

    def __init__(self, told: Callable[[], float | None], *, own: Callable[[], float] = read_real_time) -> None:
        self._told, self._own = told, own

    def now(self) -> float:
        told = self._told()
        return self._own() if told is None else told

    async def sleep_until(self, at: float | None) -> None:
        while at is None or self.now() < at:
            await asyncio.sleep(LONGEST_NAP_S if at is None else min(LONGEST_NAP_S, at - self.now()))
