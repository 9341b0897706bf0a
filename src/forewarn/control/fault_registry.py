"""Registry of active faults: saves them before they take effect and counts the events they affect.

The count comes from committed events, so a crash neither loses an event nor counts it twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from forewarn.core.event import Event
from forewarn.core.faults import ActiveFaults, Fault, FaultCategory, FaultKind
from forewarn.store.interface import AppliedCommit, Store

_SAVED_AS = "faults"
FaultListener = Callable[[tuple[Fault, ...]], None]  # gets all active faults


class FaultRegistry:
    """The active faults and storms, kept in memory and in the store. Only `save` writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        raw = store.load(_SAVED_AS)
        self._stored = msgspec.json.decode(raw, type=ActiveFaults) if raw is not None else ActiveFaults()
        self._events: dict[str, set[str]] = defaultdict(set)  # fault id → events it has affected
        self._claims: dict[str, set[tuple[str, str]]] = defaultdict(
            set
        )  # scope id → (fault id, event id), not committed yet
        self._listeners: list[FaultListener] = []
        self.write_lock = asyncio.Lock()  # held while a caller reads `active`, changes it and saves it
        if any(fault.category is FaultCategory.EVENTS for fault in self._stored.faults):
            self._count_events(store.events())

    @property
    def active(self) -> ActiveFaults:
        """The active faults and storms; `touched` of event faults counts the events affected until now."""
        return replace(self._stored, faults=tuple(map(self._with_event_count, self._stored.faults)))

    def subscribe(self, listener: FaultListener) -> None:
        """Call the listener with all active faults, now and after every `save`; not when events are counted."""
        self._listeners.append(listener)
        listener(self._stored.faults)

    async def save(self, active: ActiveFaults) -> None:
        """Replace the active faults and storms: save them durably, then notify listeners.

        Hold `write_lock` from reading `active` until this returns. If it raises, nothing has changed.
        """
        await self._store.save(_SAVED_AS, msgspec.json.encode(active))
        self._stored = active
        for listener in self._listeners:
            listener(active.faults)

    def on_commit(self, applied: AppliedCommit) -> None:
        """Count the events of a commit that faults have affected. Called for every commit, in order."""
        self._count_events(applied.commit.events)

    def find_fault(self, now: float, kind: FaultKind, event: Event) -> Fault | None:
        """Return the fault of this kind that applies to this event, the oldest of several, or None.

        An expired fault applies to no event, one whose count is used up only to events it has affected before. `now`
        is lab time.
        """
        return next((fault for fault in self._stored.faults if self._applies_to(fault, now, kind, event)), None)

    def claim_fault(self, now: float, kind: FaultKind, event: Event) -> Fault | None:
        """As `find_fault`, and count the event already now, so that concurrent decisions respect the limit.

        `release_claims` ends the claim.
        """
        fault = self.find_fault(now, kind, event)
        if fault is not None:
            self._claims[event.scope_id].add((fault.id, event.id))
        return fault

    def release_claims(self, scope_id: str) -> None:
        """Forget the claims of a scope when its decision has ended; committed events are counted by then."""
        self._claims.pop(scope_id, None)

    def _applies_to(self, fault: Fault, now: float, kind: FaultKind, event: Event) -> bool:
        if fault.kind is not kind or not fault.covers_event(scope_id=event.scope_id, names=event.vms):
            return False
        if fault.until is not None and now >= fault.until:
            return False
        taken = self._events[fault.id] | {e for claims in self._claims.values() for f, e in claims if f == fault.id}
        return event.id in taken or fault.count is None or len(taken) < fault.count

    def _count_events(self, events: Iterable[Event]) -> None:
        for event in events:
            for fault_id in event.faults:
                self._events[fault_id].add(event.id)

    def _with_event_count(self, fault: Fault) -> Fault:
        return replace(fault, touched=len(self._events[fault.id])) if fault.category is FaultCategory.EVENTS else fault
