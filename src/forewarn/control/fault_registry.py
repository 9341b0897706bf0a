"""Registry of active faults: saved before they take effect, cached, counted from committed events.

The events that a fault has touched are read from commits, so a crash neither loses one nor counts it twice.
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
FaultListener = Callable[[tuple[Fault, ...]], None]


class FaultRegistry:
    def __init__(self, store: Store) -> None:
        self._store = store
        raw = store.load(_SAVED_AS)
        self._stored = msgspec.json.decode(raw, type=ActiveFaults) if raw is not None else ActiveFaults()
        self._events: dict[str, set[str]] = defaultdict(set)  # fault → the events it has touched
        self._claims: dict[str, set[tuple[str, str]]] = defaultdict(set)  # scope → fault and event, not committed yet
        self._listeners: list[FaultListener] = []
        self.write_lock = asyncio.Lock()  # held while a caller reads `active`, changes it and saves it
        if any(fault.category is FaultCategory.EVENTS for fault in self._stored.faults):
            self._count_events(store.events())

    @property
    def active(self) -> ActiveFaults:
        """All that is on, with what it has touched until now."""
        return replace(self._stored, faults=tuple(map(self._with_event_count, self._stored.faults)))

    def subscribe(self, listener: FaultListener) -> None:
        """Tell what is on, now and at every change."""
        self._listeners.append(listener)
        listener(self._stored.faults)

    async def save(self, active: ActiveFaults) -> None:
        """Durable first, then true."""
        await self._store.save(_SAVED_AS, msgspec.json.encode(active))
        self._stored = active
        for listener in self._listeners:
            listener(active.faults)

    def on_commit(self, applied: AppliedCommit) -> None:
        self._count_events(applied.commit.events)

    def find_fault(self, now: float, kind: FaultKind, event: Event) -> Fault | None:
        """The fault of this kind that would touch this event: of several the one that was set first."""
        return next((fault for fault in self._stored.faults if self._applies_to(fault, now, kind, event)), None)

    def claim_fault(self, now: float, kind: FaultKind, event: Event) -> Fault | None:
        """As `peek`, and it counts from now on, so that decisions side by side do not both take the last one."""
        fault = self.find_fault(now, kind, event)
        if fault is not None:
            self._claims[event.scope_id].add((fault.id, event.id))
        return fault

    def release_claims(self, scope_id: str) -> None:
        """A decision about the scope has ended: what came of it is committed and counted."""
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
