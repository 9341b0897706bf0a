"""Each confirmation has a slip that is good once: a button pressed twice asks once, and both see what came of it."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable

_KEPT = 300  # of one person, so that nobody crowds out what others have before them

Where = asyncio.Future[str]


class Slips:
    def __init__(self) -> None:
        # Whose, which → where it led.
        self._slips: defaultdict[str, OrderedDict[str, Where | None]] = defaultdict(OrderedDict)

    def new(self, whose: str) -> str:
        slip = secrets.token_urlsafe(16)
        theirs = self._slips[whose]
        theirs[slip] = None
        while len(theirs) > _KEPT:
            theirs.popitem(last=False)
        return slip

    def knows(self, whose: str, slip: str) -> bool:
        return slip in self._slips.get(whose, ())

    async def once(self, whose: str, slip: str, deed: Callable[[], Awaitable[str]]) -> str:
        """Where the deed led: done now, or by whoever came first with this slip."""
        theirs = self._slips[whose]
        if (where := theirs.get(slip)) is not None:
            return await asyncio.shield(where)
        where = theirs[slip] = asyncio.get_running_loop().create_future()
        try:
            where.set_result(await deed())
        except BaseException as error:
            theirs.pop(slip, None)  # nothing was done: it may be tried again
            if isinstance(error, Exception):
                where.set_exception(error)
                where.exception()  # whoever waits is told; where nobody does, it is told here
            else:
                where.cancel()
            raise
        return where.result()
