"""Drivers that run the same tests with the blocking and the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, closing
from itertools import islice
from typing import Any

import pytest

from forewarn.client import AsyncClient, Client


class BlockingDriver:
    """A blocking client that records its pauses instead of sleeping."""

    def __init__(self, endpoint: str | None, **options: Any) -> None:
        self.pauses: list[float] = []
        self.client = Client(endpoint, sleep=self.pauses.append, **options)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.client, method)(*arguments)

    def take(self, count: int, method: str, *arguments: Any, handle: Callable[[Any], None] | None = None) -> list[Any]:
        """The first `count` items; all but the last are handled."""
        taken = []
        with closing(getattr(self.client, method)(*arguments)) as items:
            for one in islice(items, count):
                taken.append(one)
                if handle is not None:
                    handle(one)
        return taken


class AsyncDriver:
    """The asyncio client; each call runs in its own event loop."""

    def __init__(self, endpoint: str | None, **options: Any) -> None:
        self.pauses: list[float] = []
        self.client = AsyncClient(endpoint, sleep=self._record_pause, **options)

    async def _record_pause(self, s: float) -> None:
        self.pauses.append(s)

    def call(self, method: str, *arguments: Any) -> Any:
        return asyncio.run(getattr(self.client, method)(*arguments))

    def take(self, count: int, method: str, *arguments: Any, handle: Callable[[Any], None] | None = None) -> list[Any]:
        return asyncio.run(self._take(count, method, arguments, handle))

    async def _take(
        self, count: int, method: str, arguments: tuple[Any, ...], handle: Callable[[Any], None] | None
    ) -> list[Any]:
        taken: list[Any] = []
        async with aclosing(getattr(self.client, method)(*arguments)) as items:
            async for one in items:
                taken.append(one)
                if handle is not None:
                    handle(one)
                if len(taken) == count:
                    break
        return taken


Driver = Callable[..., BlockingDriver | AsyncDriver]


@pytest.fixture(params=[BlockingDriver, AsyncDriver], ids=["blocking", "asyncio"])
def driver(request: pytest.FixtureRequest) -> Driver:
    made: Driver = request.param
    return made
