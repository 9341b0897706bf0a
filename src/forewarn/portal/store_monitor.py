"""Whether the store takes what is written: people who look at a fleet must know when nothing can change any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import msgspec

from forewarn.errors import Unavailable
from forewarn.store.seam import Store

LOOK_S = 3.0  # of real time, between looks while all is well
LOOK_SOONER_S = 1.0  # while it is not
PATIENCE_S = 3.0  # a write that takes longer is trouble
_NAME = "portal looked"  # under which each look leaves its number


class Health(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    text: str


WELL = Health(ok=True, text="")
AWAY = Health(
    ok=False,
    text="The store cannot be written now: nothing can be asked for, approved or carried out until its disk is seen "
    "to. `forewarn doctor` says more.",
)


class Nurse:
    """Looks after the store while somebody is shown how it is. What it commits shows it well without a look."""

    def __init__(self, store: Store, tell: Callable[[Health], None]) -> None:
        self._store = store
        self._tell = tell
        self._has_committed = False
        self._looks = count()
        self.health = WELL

    def hear(self) -> None:
        """It has committed something."""
        self._has_committed = True
        self._find(WELL)

    async def watch(self) -> None:
        while True:
            self._has_committed = False
            await asyncio.sleep(LOOK_S if self.health.ok else LOOK_SOONER_S)
            if not self._has_committed:
                self._find(await self._look())

    async def _look(self) -> Health:
        """Only a write can tell, and only one that changes something: a full disk is read as ever."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._store.save(_NAME, b"%d" % next(self._looks))
        except (Unavailable, TimeoutError):
            return AWAY
        return WELL

    def _find(self, health: Health) -> None:
        if health != self.health:
            self.health = health
            self._tell(health)
