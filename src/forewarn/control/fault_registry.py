"""Registry of active faults: saves them before they take effect and counts the events they affect.

The count comes from committed events, so a crash neither loses an event nor counts it twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec
from msgspec.structs import replace

from forewarn.core.commit import Commit, SavedValue
from forewarn.core.event import Event
from forewarn.core.faults import ActiveFaults, EventFault, Fault, FaultCategory
from forewarn.core.history import HistoryEntry
from forewarn.store.interface import AppliedCommit, Store

_SAVED_AS = "faults"
FaultListener = Callable[[tuple[Fault, ...]], None]  # gets all active faults


class FaultRegistry:
    """The active faults and storms of a service, kept in memory and in the store. Only `save` writes.

    The owner passes it every commit (`on_commit`). Changes go through `FaultService` and `FaultStormService`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        raw = store.load(_SAVED_AS)
        self._stored = msgspec.json.decode(raw, type=ActiveFaults) if raw is not None else ActiveFaults()
        self._events: dict[str, set[str]] = defaultdict(set)  # fault id → events it has affected
        self._listeners: list[FaultListener] = []
        self._decision_lock = asyncio.Lock()
        self.write_lock = asyncio.Lock()  # held while a caller reads `active`, changes it and saves it
        if any(fault.category is FaultCategory.EVENTS for fault in self._stored.faults):
            self._count_events(store.events())

    @property
    def active(self) -> ActiveFaults:
        """The active faults and storms, oldest first; some may be over and not removed yet."""
        return replace(self._stored, faults=tuple(map(self._with_event_count, self._stored.faults)))

    def subscribe(self, listener: FaultListener) -> None:
        """Call the listener with all active faults, now and after every `save`; it cannot be removed."""
        self._listeners.append(listener)
        listener(self._stored.faults)

    async def save(self, active: ActiveFaults, entries: Sequence[HistoryEntry] = ()) -> None:
        """Replace the active faults and storms: save them durably with `entries`, then notify listeners.

        Hold `write_lock` from reading `active` until this returns. An error of a listener is raised after they are
        saved.
        """
        saved = SavedValue(_SAVED_AS, msgspec.json.encode(active))
        await self._store.commit(Commit(saved=(saved,), entries=tuple(entries)))
        self._stored = active
        for listener in self._listeners:
            listener(active.faults)

    def on_commit(self, applied: AppliedCommit) -> None:
        """Count the events of a commit that faults have affected, each once per fault; writes nothing."""
        self._count_events(applied.commit.events)

    def event_faults(self) -> tuple[EventFault, ...]:
        """Return the active faults on events, oldest first, as decisions get them; () if there are none."""
        if not self._stored.faults:
            return ()
        return tuple(
            EventFault(fault=fault, used_by=frozenset() if fault.count is None else frozenset(self._events[fault.id]))
            for fault in self._stored.faults
            if fault.category is FaultCategory.EVENTS
        )

    def decision_lock(self) -> AbstractAsyncContextManager[object]:
        """Return the lock to hold, with `async with`, while a decision is made and committed.

        Decisions wait for each other only while a fault on events has a count, because two of them at the same time
        could both use up its last event. Get it anew for each decision.
        """
        counted = any(f.category is FaultCategory.EVENTS and f.count is not None for f in self._stored.faults)
        return self._decision_lock if counted else nullcontext()

    def _count_events(self, events: Iterable[Event]) -> None:
        for event in events:
            for fault_id in event.faults:
                self._events[fault_id].add(event.id)

    def _with_event_count(self, fault: Fault) -> Fault:
        return replace(fault, applied=len(self._events[fault.id])) if fault.category is FaultCategory.EVENTS else fault
