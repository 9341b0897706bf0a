"""Checks while a page is open that the store accepts writes, and reports when that changes.

Only a write can show it: a full disk still reads. Each commit counts as a successful check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import msgspec

from forewarn.errors import Unavailable
from forewarn.store.interface import Store

CHECK_INTERVAL_S = 3.0  # of real time, between looks while all is well
FAILING_CHECK_INTERVAL_S = 1.0  # while it is not
WRITE_TIMEOUT_S = 3.0  # a write that takes longer is trouble
_CHECK_KEY = "portal looked"  # under which each look leaves its number


class StoreHealth(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    text: str


HEALTHY = StoreHealth(ok=True, text="")
NOT_WRITABLE = StoreHealth(
    ok=False,
    text="The store cannot be written now: nothing can be asked for, approved or carried out until its disk is seen "
    "to. `forewarn doctor` says more.",
)


class StoreHealthMonitor:
    """Looks after the store while somebody is shown how it is. What it commits shows it well without a look."""

    def __init__(self, store: Store, tell: Callable[[StoreHealth], None]) -> None:
        self._store = store
        self._notify = tell
        self._has_committed = False
        self._check_numbers = count()
        self.health = HEALTHY

    def on_commit(self) -> None:
        """It has committed something."""
        self._has_committed = True
        self._set_health(HEALTHY)

    async def run(self) -> None:
        while True:
            self._has_committed = False
            await asyncio.sleep(CHECK_INTERVAL_S if self.health.ok else FAILING_CHECK_INTERVAL_S)
            if not self._has_committed:
                self._set_health(await self._check_store())

    async def _check_store(self) -> StoreHealth:
        """Only a write can tell, and only one that changes something: a full disk is read as ever."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._store.save(_CHECK_KEY, b"%d" % next(self._check_numbers))
        except (Unavailable, TimeoutError):
            return NOT_WRITABLE
        return HEALTHY

    def _set_health(self, health: StoreHealth) -> None:
        if health != self.health:
            self.health = health
            self._notify(health)
