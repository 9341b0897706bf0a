"""Reports which VMs of the fleet poll for events, and which have an event that no handler knows of.

Runs in batches, so that other requests are not delayed. It reads memory for each VM, and the store only for scopes
with pending events.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from forewarn.core.event import Event, EventState
from forewarn.core.fleet import PowerState, vm_key_in_scope
from forewarn.explain.polling import (
    EventAwareness,
    PollingPace,
    PollingState,
    ScopePoller,
    can_still_prepare,
    event_awareness,
    polling_state,
    vms_given_before_start,
)
from forewarn.store.interface import Store
from forewarn.web.directory import FleetDirectory

PaceLookup = Callable[[str], PollingPace | None]
PacesByScope = Callable[[], Iterable[tuple[str, PollingPace]]]
T = TypeVar("T")
_WORST_FIRST = tuple(EventAwareness)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedEvent:
    """The event that a VM is worst prepared for, of those that await it; of several, the next."""

    event: Event
    awareness: EventAwareness


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingReport:
    """Of how many VMs what is true."""

    vms_by_polling: Mapping[PollingState, int]
    enabled_scopes: int  # scopes
    polling_scopes: int  # of these, those of which any VM asks
    unprepared_vms: int
    unwatched_scopes: int  # scopes with pending events of which no VM asks


async def expected_events(
    store: Store, pace: PaceLookup, live: Iterable[Event] | None = None
) -> dict[str, ExpectedEvent]:
    """What awaits VMs, by their keys; `live`: the events that are not over, for whoever has them at hand."""
    found: dict[str, ExpectedEvent] = {}
    known = store.events(statuses=[EventState.SCHEDULED]) if live is None else live
    async for event in iterate_cooperatively([event for event in known if can_still_prepare(event)], 50):
        given = vms_given_before_start(store.deliveries(event_id=event.id))
        scope = {} if given else _scope_pollers(store, event.scope_id, pace)
        for name in event.vms:
            key = vm_key_in_scope(event.scope_id, name)
            one = ExpectedEvent(event=event, awareness=event_awareness(event, key, given=given, scope=scope))
            if key not in found or _severity_rank(one) < _severity_rank(found[key]):
                found[key] = one
    return found


async def polling_report(
    directory: FleetDirectory, pace: PaceLookup, paces: PacesByScope, live: Iterable[Event]
) -> PollingReport:
    """Counted over the whole fleet; `paces` are those of all who ever asked, each with its scope."""
    store = directory.store
    counts: Counter[PollingState] = Counter()
    async for key in iterate_cooperatively(directory.keys(), 2000):
        counts[polling_state(pace(key), is_off=directory.power_of(key) is not PowerState.RUNNING)] += 1
    asking = {
        scope_id
        async for scope_id, one in iterate_cooperatively(paces(), 2000)
        if polling_state(one) is PollingState.ACTIVE
    }
    waiting = await expected_events(store, pace, live)
    scopes = {one.event.scope_id for one in waiting.values()}
    return PollingReport(
        vms_by_polling={word: counts[word] for word in PollingState},
        enabled_scopes=store.enabled_scope_count(),
        polling_scopes=len(asking),
        unprepared_vms=sum(
            one.awareness is EventAwareness.NOBODY for key, one in waiting.items() if directory.has(key)
        ),
        unwatched_scopes=len(scopes - asking),
    )


async def iterate_cooperatively(things: Iterable[T], length: int) -> AsyncIterator[T]:
    for number, thing in enumerate(things):
        if number % length == length - 1:
            await asyncio.sleep(0)
        yield thing


def _scope_pollers(store: Store, scope_id: str, pace: PaceLookup) -> dict[str, ScopePoller]:
    polls = store.last_polls(scope_id=scope_id)
    return {polled.vm: ScopePoller(pace=pace(polled.vm), at=polled.at, version=polled.version) for polled in polls}


def _severity_rank(one: ExpectedEvent) -> tuple[int, float]:
    return _WORST_FIRST.index(one.awareness), one.event.not_before
