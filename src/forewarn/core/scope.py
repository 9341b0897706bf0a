"""A scope: the VMs that share one document. The unit of delivery, of the incarnation and of every transaction.

A decision is a function Scope → Scope. What happened on the way is collected in `news`, and committed with it.
"""

from __future__ import annotations

import msgspec

from forewarn.core.event import Event, Status
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    version: int = 0  # of the record, for optimistic commits; not the incarnation
    epoch: int = 0
    incarnation: int = 0
    enabled_at: float | None = None
    last_request_at: float | None = None
    next_seq: int = 1
    wakes_at: float | None = None  # when something falls due by itself; set as it is committed
    vms: tuple[Vm, ...] = ()  # in the order they were added, and those removed since loading
    events: tuple[Event, ...] = ()  # live ones in order of publication, and those that ended since loading
    news: tuple[Entry, ...] = ()  # since loading

    @property
    def is_enabled(self) -> bool:
        return self.enabled_at is not None

    @property
    def is_service(self) -> bool:
        """A cloud service: its role names never carried the underscore of 2017."""
        return self.id.startswith("service:")

    @property
    def is_placement_group(self) -> bool:
        return self.id.startswith("placement:")

    @property
    def present(self) -> tuple[Vm, ...]:
        return tuple(vm for vm in self.vms if vm.removed_at is None)

    def vm(self, name: str) -> Vm | None:
        wanted = name.casefold()
        return next((vm for vm in self.vms if vm.removed_at is None and vm.name.casefold() == wanted), None)

    def event(self, event_id: str) -> Event | None:
        return next((event for event in self.events if event.id == event_id), None)

    def live(self, status: Status | None = None) -> tuple[Event, ...]:
        return tuple(e for e in self.events if e.is_live and (status is None or e.status is status))

    def with_event(self, event: Event) -> Scope:
        """The scope with this event put in place of the one with its id, or added at the end."""
        if self.event(event.id) is None:
            numbered = msgspec.structs.replace(event, seq=self.next_seq)
            return msgspec.structs.replace(self, events=(*self.events, numbered), next_seq=self.next_seq + 1)
        return msgspec.structs.replace(self, events=tuple(event if e.id == event.id else e for e in self.events))

    def with_vm(self, vm: Vm) -> Scope:
        """The scope with this VM put in place of the one with its key, or added at the end."""
        if all(v.key != vm.key for v in self.vms):
            return msgspec.structs.replace(self, vms=(*self.vms, vm))
        return msgspec.structs.replace(self, vms=tuple(vm if v.key == vm.key else v for v in self.vms))

    def stepped(self, by: int = 1) -> Scope:
        return msgspec.structs.replace(self, incarnation=self.incarnation + by)

    def saying(self, *entries: Entry) -> Scope:
        placed = tuple(msgspec.structs.replace(entry, scope_id=self.id) for entry in entries)
        return msgspec.structs.replace(self, news=(*self.news, *placed))
