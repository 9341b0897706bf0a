"""Base class of the store suites: opens the store under test and runs scenarios on it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from forewarn.core.event import EventState
from forewarn.store.interface import Store

StoreScenario = Callable[[Store], Awaitable[None]]  # one part of a test, run on an open store

LIVE_STATUSES = (EventState.SCHEDULED, EventState.STARTED)


class StoreSuite(ABC):
    """Base class of the conformance tests of a store, without tests of its own; a subclass defines `open`."""

    @abstractmethod
    def open(self) -> Store:
        """Open the store under test, on a running event loop; `run_scenarios` closes it.

        At the first call in a test the store is empty; a later call in the same test must find what was committed.
        """

    def run_scenarios(self, *scenarios: StoreScenario) -> None:
        """Run the scenarios in order, each in a new event loop with a newly opened store; close it after each."""
        for scenario in scenarios:
            asyncio.run(self._run_one(scenario))

    async def _run_one(self, scenario: StoreScenario) -> None:
        store = self.open()
        try:
            await scenario(store)
        finally:
            await store.close()
