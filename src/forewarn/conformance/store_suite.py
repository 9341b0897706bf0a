"""The base of the store suites: opens the store under test and runs steps on it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from forewarn.core.event import EventState
from forewarn.store.interface import Store

StoreSteps = Callable[[Store], Awaitable[None]]

LIVE_STATUSES = (EventState.SCHEDULED, EventState.STARTED)


class StoreSuite(ABC):
    @abstractmethod
    def open(self) -> Store:
        """Yours; opened again within one test, it finds what was committed before."""

    def run_steps(self, *stories: StoreSteps) -> None:
        """Each story on the store opened anew."""
        for story in stories:
            asyncio.run(self._run_one_step(story))

    async def _run_one_step(self, story: StoreSteps) -> None:
        store = self.open()
        try:
            await story(store)
        finally:
            await store.close()
