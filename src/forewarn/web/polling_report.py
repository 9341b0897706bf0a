"""Reports which VMs of the fleet poll for events, and which have an event that no handler knows of.

Yields to other requests between batches. It reads memory for each VM, and the store only for scopes with pending
events.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from forewarn.control.directory import FleetDirectory
from forewarn.core.event import Event, EventState
from forewarn.core.explain.polling import (
    EventAwareness,
    PollingPace,
    PollingState,
    ScopePoller,
    can_still_prepare,
    event_awareness,
    polling_state,
    vms_given_before_start,
)
from forewarn.core.fleet import PowerState, vm_key_in_scope
from forewarn.core.history import LastPoll
from forewarn.store.interface import Store

PaceLookup = Callable[[str], PollingPace | None]  # by VM key; None for a VM that never polled
PacesByScope = Callable[[], Iterable[tuple[str, PollingPace]]]  # scope id and pace of each VM that ever polled
T = TypeVar("T")
_WORST_FIRST = tuple(EventAwareness)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedEvent:
    """The pending event that a VM knows least of (the earliest, of several), and how far the VM knows of it."""

    event: Event  # scheduled, and listed in documents
    awareness: EventAwareness  # NO_VM is the worst, DELIVERED the best


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingReport:
    """Counts of the fleet's present VMs and of scopes by how they poll, as `polling_report` returns them."""

    vms_by_polling: Mapping[PollingState, int]  # has every PollingState
    enabled_scopes: int  # scopes with Scheduled Events enabled
    polling_scopes: int  # scopes with a VM that polls now
    vms_without_handler: int  # present VMs with a pending event that no VM of their scope was given or is about to get
    unwatched_scopes: int  # scopes with pending events and no VM that polls


async def expected_events(
    store: Store, pace: PaceLookup, live: Iterable[Event] | None = None
) -> dict[str, ExpectedEvent]:
    """Return, by VM key, the pending event that each VM knows least of; VMs without one are left out.

    Call `flush_observations` first. Lets other tasks run between batches.
    """
    found: dict[str, ExpectedEvent] = {}
    known = store.events(statuses=[EventState.SCHEDULED]) if live is None else live
    async for event in iterate_cooperatively([event for event in known if can_still_prepare(event)], 50):
        given = vms_given_before_start(store.deliveries(event_id=event.id))
        scope = {} if given else _pollers_that_see(event, store, pace)
        for name in event.vms:
            key = vm_key_in_scope(event.scope_id, name)
            expected = ExpectedEvent(event=event, awareness=event_awareness(event, key, given=given, scope=scope))
            if key not in found or _severity_rank(expected) < _severity_rank(found[key]):
                found[key] = expected
    return found


async def polling_report(
    directory: FleetDirectory, pace: PaceLookup, paces: PacesByScope, live: Iterable[Event]
) -> PollingReport:
    """Count the VMs and scopes of the whole fleet by how they poll; not filtered for a caller."""
    store = directory.store
    counts: Counter[PollingState] = Counter()
    async for key in iterate_cooperatively(directory.keys(), 2000):
        counts[polling_state(pace(key), is_off=directory.power_of(key) is not PowerState.RUNNING)] += 1
    polling_scope_ids = {
        scope_id
        async for scope_id, scope_pace in iterate_cooperatively(paces(), 2000)
        if polling_state(scope_pace) is PollingState.ACTIVE
    }
    expected = await expected_events(store, pace, live)
    pending_scope_ids = {one.event.scope_id for one in expected.values()}
    return PollingReport(
        vms_by_polling={state: counts[state] for state in PollingState},
        enabled_scopes=store.enabled_scope_count(),
        polling_scopes=len(polling_scope_ids),
        vms_without_handler=sum(
            one.awareness is EventAwareness.NO_VM for key, one in expected.items() if directory.has(key)
        ),
        unwatched_scopes=len(pending_scope_ids - polling_scope_ids),
    )


def silent_seconds(poll: LastPoll, pace: PollingPace | None, now: float) -> float:
    """Return how many seconds ago a VM last polled, in real time, as every page shows it."""
    return pace.silent_s if pace is not None else max(0.0, now - poll.at)


async def iterate_cooperatively(items: Iterable[T], batch_size: int) -> AsyncIterator[T]:
    """Yield the items in order, and let other tasks run once per `batch_size` items."""
    for number, item in enumerate(items):
        if number % batch_size == batch_size - 1:
            await asyncio.sleep(0)
        yield item


def _pollers_that_see(event: Event, store: Store, pace: PaceLookup) -> dict[str, ScopePoller]:
    """The VMs of the event's scope that have polled, by key; with narrow delivery only those that it hits."""
    scope, polls = store.scope(event.scope_id), store.last_polls(scope_id=event.scope_id)
    if scope is not None and scope.is_narrow:
        hit = {vm_key_in_scope(event.scope_id, name) for name in event.vms}
        polls = [polled for polled in polls if polled.vm in hit]
    return {polled.vm: ScopePoller(pace=pace(polled.vm), at=polled.at, version=polled.version) for polled in polls}


def _severity_rank(expected: ExpectedEvent) -> tuple[int, float]:
    return _WORST_FIRST.index(expected.awareness), expected.event.not_before
