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

CHECK_INTERVAL_S = 3.0  # of real time, while the store is healthy
FAILING_CHECK_INTERVAL_S = 1.0  # while it is not
WRITE_TIMEOUT_S = 3.0  # a write that takes longer counts as failed
_CHECK_KEY = "portal looked"  # in the store; must not change


class StoreHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the store accepts writes. Field names are JSON keys of the live stream."""

    ok: bool  # the store accepts writes
    text: str  # what pages show; "" while `ok`


HEALTHY = StoreHealth(ok=True, text="")
NOT_WRITABLE = StoreHealth(
    ok=False,
    text="The service cannot write to its store. Requests and approvals fail, and no event starts, until this is "
    "fixed: ask an administrator to check its disk and its files.",
)


class StoreHealthMonitor:
    """Checks that the store accepts writes, and calls `on_change` with the new health when that changes."""

    def __init__(self, store: Store, on_change: Callable[[StoreHealth], None]) -> None:
        self._store = store
        self._notify = on_change
        self._has_committed = False
        self._check_numbers = count()
        self.health = HEALTHY

    def on_commit(self) -> None:
        """Note a commit: the store is healthy, and the next check is left out."""
        self._has_committed = True
        self._set_health(HEALTHY)

    async def run(self) -> None:
        """Check the store, by writing a small value to it, until cancelled."""
        while True:
            self._has_committed = False
            await asyncio.sleep(CHECK_INTERVAL_S if self.health.ok else FAILING_CHECK_INTERVAL_S)
            if not self._has_committed:
                self._set_health(await self._check_store())

    async def _check_store(self) -> StoreHealth:
        """Writes a new value: reading, or writing the same value, may work on a full disk."""
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
