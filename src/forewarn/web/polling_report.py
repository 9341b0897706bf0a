"""A look over the whole fleet at who asks for events and who will be hit unprepared, in stretches, so that nobody else
waits for it. What is read of every VM is in memory; the store is asked about scopes with pending events only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from forewarn.console.directory import Directory
from forewarn.core.attention import Asks, Neighbour, Told, asks, awaits, given_to, told
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Power, key_in_scope
from forewarn.core.pace import Pace
from forewarn.store.seam import Store

PaceOf = Callable[[str], Pace | None]
Paces = Callable[[], Iterable[tuple[str, Pace]]]
T = TypeVar("T")
_WORST = tuple(Told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """The event that a VM is worst prepared for, of those that await it; of several, the next."""

    event: Event
    told: Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """Of how many VMs what is true."""

    asks: Mapping[Asks, int]
    enabled: int  # scopes
    asking: int  # of these, those of which any VM asks
    unprepared: int
    unwatched: int  # scopes with pending events of which no VM asks


async def awaited(store: Store, pace: PaceOf, live: Iterable[Event] | None = None) -> dict[str, Awaited]:
    """What awaits VMs, by their keys; `live`: the events that are not over, for whoever has them at hand."""
    found: dict[str, Awaited] = {}
    known = store.events(statuses=[Status.SCHEDULED]) if live is None else live
    async for event in in_stretches([event for event in known if awaits(event)], 50):
        given = given_to(store.sightings(event_id=event.id))
        scope = {} if given else _neighbours(store, event.scope_id, pace)
        for name in event.vms:
            key = key_in_scope(event.scope_id, name)
            one = Awaited(event=event, told=told(event, key, given=given, scope=scope))
            if key not in found or _badness(one) < _badness(found[key]):
                found[key] = one
    return found


async def attendance(directory: Directory, pace: PaceOf, paces: Paces, live: Iterable[Event]) -> Attendance:
    """Counted over the whole fleet; `paces` are those of all who ever asked, each with its scope."""
    store = directory.store
    counts: Counter[Asks] = Counter()
    async for key in in_stretches(directory.keys(), 2000):
        counts[asks(pace(key), is_off=directory.power_of(key) is not Power.RUNNING)] += 1
    asking = {scope_id async for scope_id, one in in_stretches(paces(), 2000) if asks(one) is Asks.NOW}
    waiting = await awaited(store, pace, live)
    scopes = {one.event.scope_id for one in waiting.values()}
    return Attendance(
        asks={word: counts[word] for word in Asks},
        enabled=store.enabled(),
        asking=len(asking),
        unprepared=sum(one.told is Told.NOBODY for key, one in waiting.items() if directory.has(key)),
        unwatched=len(scopes - asking),
    )


async def in_stretches(things: Iterable[T], length: int) -> AsyncIterator[T]:
    for number, thing in enumerate(things):
        if number % length == length - 1:
            await asyncio.sleep(0)
        yield thing


def _neighbours(store: Store, scope_id: str, pace: PaceOf) -> dict[str, Neighbour]:
    polls = store.polls(scope_id=scope_id)
    return {polled.vm: Neighbour(pace=pace(polled.vm), at=polled.at, version=polled.version) for polled in polls}


def _badness(one: Awaited) -> tuple[int, float]:
    return _WORST.index(one.told), one.event.not_before
