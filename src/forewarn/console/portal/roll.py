"""The roll call: every VM that somebody sees, those first who will be hit unprepared, then those who stopped asking,
then those who never did. Nothing is read of a VM but what is in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from forewarn.console.portal.context import PortalContext
from forewarn.console.survey import Awaited, awaited, in_stretches
from forewarn.core.attention import Asks, Told, asks
from forewarn.core.fleet import Power

_AT_A_STRETCH = 2000


class Only(StrEnum):
    """Whom one wants to see; "": all."""

    ALL = ""
    UNPREPARED = "unprepared"
    SILENT = "silent"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Called:
    key: str
    asks: Asks
    awaited: Awaited | None

    @property
    def is_unprepared(self) -> bool:
        return self.awaited is not None and self.awaited.told is Told.NOBODY

    def fits(self, only: Only) -> bool:
        match only:
            case Only.UNPREPARED:
                return self.is_unprepared
            case Only.SILENT:
                return self.asks is Asks.STOPPED
            case Only.NEVER:
                return self.asks is Asks.NEVER
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    asks: Mapping[Asks, int]  # of everybody
    unprepared: list[Called]  # of everybody, those first who are hit first
    wanted: list[Called]  # in order


async def call_the_roll(room: PortalContext, *, text: str, only: Only) -> Roll:
    waiting = await awaited(room.store, room.house.pace)
    counts: Counter[Asks] = Counter()
    unprepared: list[Called] = []
    ranks: dict[int, list[Called]] = {}
    async for key in in_stretches(list(room.overview.keys(room.directory)), _AT_A_STRETCH):
        is_off = room.directory.whole.power_of(key) is not Power.RUNNING
        one = Called(key, asks(room.house.pace(key), is_off=is_off), waiting.get(key))
        counts[one.asks] += 1
        if one.is_unprepared:
            unprepared.append(one)
        if one.fits(only) and text in key.partition("/")[2]:
            ranks.setdefault(_rank(one), []).append(one)
    return Roll(
        asks={word: counts[word] for word in Asks},
        unprepared=sorted(unprepared, key=_when),
        wanted=[one for rank in sorted(ranks) for one in _in_order(ranks[rank])],
    )


_RANKS = {Asks.STOPPED: 1, Asks.NEVER: 2, Asks.NOW: 4, Asks.OFF: 5}


def _rank(one: Called) -> int:
    if one.is_unprepared:
        return 0
    rank = _RANKS[one.asks]
    return 3 if one.asks is Asks.NOW and one.awaited is not None else rank


def _in_order(ones: list[Called]) -> list[Called]:
    """Those whom something awaits first, by when; the others as the fleet is listed."""
    return sorted(ones, key=_when) if any(one.awaited for one in ones) else ones


def _when(one: Called) -> float:
    return one.awaited.event.not_before if one.awaited else float("inf")
