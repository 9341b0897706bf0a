"""Who begins to ask for events and who falls silent, while somebody looks: polls in between change no page.

That a VM begins is told by the house. That it fell silent is seen when nothing has been heard of it: each VM that asks
is looked at about once in the time of a silence, in stretches, when it could have become silent.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence

from forewarn.console.house import House
from forewarn.core.pace import SILENT_S

LOOK_S = 1.0  # of real time, between two looks at those who could be silent
LINGER_S = 60.0  # for whoever goes from one page to another, with nobody looking in between
LATE_S = 5.0  # what pages show is at most so much older than they know
MOST_SCOPES = 2_000  # that are told one by one, and remembered
_AT_A_STRETCH = 2_000  # VMs

Scopes = frozenset[str] | None  # where somebody began to ask or fell silent; None: it may be anywhere


class Vigil:
    """Begins when somebody looks; ends a little after nobody does any more."""

    def __init__(self, house: House, tell: Callable[[], None]) -> None:
        self._house = house
        self._tell = tell
        self._stop: Callable[[], None] | None = None  # while it lasts
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._watched: set[str] = set()  # keys of the VMs that ask
        self._due: dict[int, list[str]] = {}  # the same by the second in which they could have become silent
        self._left: list[str] | None = None  # VMs that were never looked at; None: all
        self._recent: dict[str, float] = {}  # scope → when something was last told of it; the oldest first
        self._whole_since = math.inf  # since when all is remembered
        self._fresh: dict[str, None] = {}  # scopes that are not told yet

    def begin(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._fresh.clear()  # nobody looked meanwhile, and whoever comes is told what they missed
        if self._stop is None:
            self._stop, self._whole_since = self._house.follow_asking(self._hear), _now()
        self._task = asyncio.create_task(self._watch())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._ending = asyncio.get_running_loop().call_later(LINGER_S, self._forget)

    def take(self) -> Scopes:
        """Where something has changed since the last time."""
        fresh, self._fresh = self._fresh, {}
        return frozenset(fresh) if len(fresh) <= MOST_SCOPES else None

    def missed(self, age_s: float) -> Scopes:
        """Where something has changed in the time that a page is old."""
        since = _now() - age_s - LATE_S
        if since <= self._whole_since:
            return None
        return frozenset(scope_id for scope_id, at in self._recent.items() if at >= since)

    def _forget(self) -> None:
        if self._stop is not None:
            self._stop()
        self._stop, self._ending, self._left = None, None, None
        self._watched, self._due, self._recent, self._fresh = set(), {}, {}, {}

    async def _watch(self) -> None:
        """May be broken off wherever it waits, and goes on with the next who looks."""
        if self._left is None:
            self._left = self._house.control.placement.keys()
        async for key in _taken_off(self._left):
            self._expect(key)
        while True:
            for second in sorted(second for second in self._due if second <= _now()):
                async for key in _taken_off(self._due[second]):
                    self._watched.discard(key)
                    if not self._expect(key):
                        self._note(key)
                del self._due[second]
            await asyncio.sleep(LOOK_S)

    def _expect(self, key: str) -> bool:
        """Look at this VM again when it could be silent; False: it is."""
        pace = self._house.pace(key)
        if pace is None or pace.is_silent:
            return False
        if key not in self._watched:
            self._watched.add(key)
            self._due.setdefault(math.ceil(_now() + max(SILENT_S - pace.silent_s, LOOK_S)), []).append(key)
        return True

    def _hear(self, begun: Sequence[str]) -> None:
        for key in begun:
            self._expect(key)
            self._note(key)

    def _note(self, key: str) -> None:
        try:
            scope_id = self._house.control.placement.scope_of(key)
        except KeyError:
            return  # a VM that was never placed: no page shows it
        self._recent.pop(scope_id, None)
        self._recent[scope_id] = _now()
        if len(self._recent) > MOST_SCOPES:
            self._whole_since = self._recent.pop(next(iter(self._recent)))
        if len(self._fresh) <= MOST_SCOPES:
            self._fresh[scope_id] = None
        self._tell()


def _now() -> float:
    """Real time: silence is no matter of a lab's clock."""
    return asyncio.get_running_loop().time()


async def _taken_off(keys: list[str]) -> AsyncIterator[str]:
    """In stretches, so that nobody else waits; who breaks it off leaves the others on the list."""
    while keys:
        for _ in range(min(len(keys), _AT_A_STRETCH)):
            yield keys.pop()
        await asyncio.sleep(0)
