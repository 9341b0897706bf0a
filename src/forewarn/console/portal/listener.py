"""One open page, as the channel knows it: what it was not told yet, within bounds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from forewarn.console.portal.news import News
from forewarn.console.portal.vigil import MOST_SCOPES, Scopes

MOST_WAITING = 100  # news for a page that is slow to read; beyond, it reads everything again


@dataclass(kw_only=True)
class Waiting:
    """In the order of the fields is it told."""

    is_lost: bool = False  # there was more than could wait: everything has to be read again
    news: list[News] = field(default_factory=list)
    asking: Scopes = frozenset()
    wants_clock: bool = False
    wants_counts: bool = False
    wants_health: bool = False

    def __bool__(self) -> bool:
        if self.is_lost or self.news or self.asking is None or self.asking:
            return True
        return self.wants_clock or self.wants_counts or self.wants_health


class Listener:
    """The latest of everything but news is enough, so that a page that reads slowly costs no more than others."""

    def __init__(self, who: str) -> None:
        self.who = who
        self._waiting = Waiting()
        self._stirred = asyncio.Event()
        self.is_over = False

    def tell(self, news: News) -> None:
        if len(self._waiting.news) == MOST_WAITING:
            self.lose()
        elif not self._waiting.is_lost:
            self._waiting.news.append(news)
            self._stirred.set()

    def lose(self) -> None:
        self._waiting.news.clear()
        self._waiting.is_lost = True
        self._stirred.set()

    def tell_asking(self, scopes: Scopes) -> None:
        known = self._waiting.asking
        told = None if known is None or scopes is None else known | scopes
        self._waiting.asking = told if told is not None and len(told) <= MOST_SCOPES else None
        self._stirred.set()

    def tell_clock(self) -> None:
        self._waiting.wants_clock = True
        self._stirred.set()

    def tell_counts(self) -> None:
        self._waiting.wants_counts = True
        self._stirred.set()

    def tell_health(self) -> None:
        self._waiting.wants_health = True
        self._stirred.set()

    def end(self) -> None:
        self.is_over = True
        self._stirred.set()

    async def wait(self, within_s: float) -> Waiting:
        """What is to be told by now; nothing, when the time is over or the page is gone."""
        try:
            async with asyncio.timeout(within_s):
                await self._stirred.wait()
        except TimeoutError:
            pass
        self._stirred.clear()
        waiting, self._waiting = self._waiting, Waiting()
        return waiting
