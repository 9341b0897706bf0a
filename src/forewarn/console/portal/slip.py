"""Each confirmation has a slip that is good once: a button pressed twice asks once, and both see what came of it."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable

_KEPT = 1_000

Where = asyncio.Future[str]


class Slips:
    def __init__(self) -> None:
        self._slips: OrderedDict[tuple[str, str], Where | None] = OrderedDict()  # whose, which → where it led

    def new(self, whose: str) -> str:
        slip = secrets.token_urlsafe(16)
        self._slips[whose, slip] = None
        while len(self._slips) > _KEPT:
            self._slips.popitem(last=False)
        return slip

    def knows(self, whose: str, slip: str) -> bool:
        return (whose, slip) in self._slips

    async def once(self, whose: str, slip: str, deed: Callable[[], Awaitable[str]]) -> str:
        """Where the deed led: done now, or by whoever came first with this slip."""
        if (where := self._slips.get((whose, slip))) is not None:
            return await asyncio.shield(where)
        where = self._slips[whose, slip] = asyncio.get_running_loop().create_future()
        try:
            where.set_result(await deed())
        except BaseException as error:
            self._slips.pop((whose, slip), None)  # nothing was done: it may be tried again
            if isinstance(error, Exception):
                where.set_exception(error)
                where.exception()  # whoever waits is told; where nobody does, it is told here
            else:
                where.cancel()
            raise
        return where.result()
