"""The faults that are on: stored before they take effect, held in memory, and counted by the events that name them.

Which events a fault has touched is read off what is committed, so a crash never counts one twice or forgets one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from forewarn.core.event import Event
from forewarn.core.fault import Book, Fault, FaultKind, Sphere
from forewarn.store.seam import Committed, Store

_NAME = "faults"
Follower = Callable[[tuple[Fault, ...]], None]


class FaultBook:
    def __init__(self, store: Store) -> None:
        self._store = store
        raw = store.saved(_NAME)
        self._book = msgspec.json.decode(raw, type=Book) if raw is not None else Book()
        self._events: dict[str, set[str]] = defaultdict(set)  # fault → the events it has touched
        self._claims: dict[str, set[tuple[str, str]]] = defaultdict(set)  # scope → fault and event, not committed yet
        self._followers: list[Follower] = []
        self.writing = asyncio.Lock()  # held from reading the book until what follows from it is adopted
        if any(fault.sphere is Sphere.EVENTS for fault in self._book.faults):
            self._count(store.events())

    @property
    def book(self) -> Book:
        """All that is on, with what it has touched until now."""
        return replace(self._book, faults=tuple(map(self._counted, self._book.faults)))

    def follow(self, hear: Follower) -> None:
        """Tell what is on, now and at every change."""
        self._followers.append(hear)
        hear(self._book.faults)

    async def adopt(self, book: Book) -> None:
        """Durable first, then true."""
        await self._store.save(_NAME, msgspec.json.encode(book))
        self._book = book
        for hear in self._followers:
            hear(book.faults)

    def hear(self, committed: Committed) -> None:
        self._count(committed.commit.events)

    def peek(self, now: float, kind: FaultKind, event: Event) -> Fault | None:
        """The fault of this kind that would touch this event: of several the one that was set first."""
        return next((fault for fault in self._book.faults if self._touches(fault, now, kind, event)), None)

    def claim(self, now: float, kind: FaultKind, event: Event) -> Fault | None:
        """As `peek`, and it counts from now on, so that decisions side by side do not both take the last one."""
        fault = self.peek(now, kind, event)
        if fault is not None:
            self._claims[event.scope_id].add((fault.id, event.id))
        return fault

    def release(self, scope_id: str) -> None:
        """A decision about the scope has ended: what came of it is committed and counted."""
        self._claims.pop(scope_id, None)

    def _touches(self, fault: Fault, now: float, kind: FaultKind, event: Event) -> bool:
        if fault.kind is not kind or not fault.covers_event(scope_id=event.scope_id, names=event.vms):
            return False
        if fault.until is not None and now >= fault.until:
            return False
        taken = self._events[fault.id] | {e for claims in self._claims.values() for f, e in claims if f == fault.id}
        return event.id in taken or fault.count is None or len(taken) < fault.count

    def _count(self, events: Iterable[Event]) -> None:
        for event in events:
            for fault_id in event.faults:
                self._events[fault_id].add(event.id)

    def _counted(self, fault: Fault) -> Fault:
        return replace(fault, touched=len(self._events[fault.id])) if fault.sphere is Sphere.EVENTS else fault
