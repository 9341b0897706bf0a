"""One set of tests for two drivers: whatever is asked of a client is asked of the blocking and of the asyncio one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, closing
from itertools import islice
from typing import Any

import pytest

from forewarn.client import AsyncClient, Client


class Blocking:
    """A client that notes its pauses instead of sleeping."""

    def __init__(self, endpoint: str | None, **options: Any) -> None:
        self.naps: list[float] = []
        self.client = Client(endpoint, sleep=self.naps.append, **options)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.client, method)(*arguments)

    def take(self, count: int, method: str, *arguments: Any, handle: Callable[[Any], None] | None = None) -> list[Any]:
        """The first so many; all but the last were handled."""
        taken = []
        with closing(getattr(self.client, method)(*arguments)) as news:
            for one in islice(news, count):
                taken.append(one)
                if handle is not None:
                    handle(one)
        return taken


class Awaiting:
    """The same, in an event loop of its own for each call."""

    def __init__(self, endpoint: str | None, **options: Any) -> None:
        self.naps: list[float] = []
        self.client = AsyncClient(endpoint, sleep=self._nap, **options)

    async def _nap(self, s: float) -> None:
        self.naps.append(s)

    def call(self, method: str, *arguments: Any) -> Any:
        return asyncio.run(getattr(self.client, method)(*arguments))

    def take(self, count: int, method: str, *arguments: Any, handle: Callable[[Any], None] | None = None) -> list[Any]:
        return asyncio.run(self._take(count, method, arguments, handle))

    async def _take(
        self, count: int, method: str, arguments: tuple[Any, ...], handle: Callable[[Any], None] | None
    ) -> list[Any]:
        taken: list[Any] = []
        async with aclosing(getattr(self.client, method)(*arguments)) as news:
            async for one in news:
                taken.append(one)
                if handle is not None:
                    handle(one)
                if len(taken) == count:
                    break
        return taken


Driver = Callable[..., Blocking | Awaiting]


@pytest.fixture(params=[Blocking, Awaiting], ids=["blocking", "asyncio"])
def driver(request: pytest.FixtureRequest) -> Driver:
    made: Driver = request.param
    return made
