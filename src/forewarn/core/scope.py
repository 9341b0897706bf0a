"""A scope: VMs that share one document, and their live events; enabling and disabling it (spec §8).

The scope is the unit of delivery, of the incarnation and of every transaction. A decision is a function from Scope
to Scope; history entries that it makes are collected in `new_entries` and committed with it.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry


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
    new_entries: tuple[HistoryEntry, ...] = ()  # since loading

    @property
    def is_enabled(self) -> bool:
        return self.enabled_at is not None

    @property
    def is_cloud_service(self) -> bool:
        """A cloud service: its role names never carried the underscore of 2017."""
        return self.id.startswith("service:")

    @property
    def is_placement_group(self) -> bool:
        return self.id.startswith("placement:")

    @property
    def present_vms(self) -> tuple[Vm, ...]:
        return tuple(vm for vm in self.vms if vm.removed_at is None)

    def vm(self, name: str) -> Vm | None:
        wanted = name.casefold()
        return next((vm for vm in self.vms if vm.removed_at is None and vm.name.casefold() == wanted), None)

    def event(self, event_id: str) -> Event | None:
        return next((event for event in self.events if event.id == event_id), None)

    def live_events(self, status: EventState | None = None) -> tuple[Event, ...]:
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

    def with_incarnation_increased(self, by: int = 1) -> Scope:
        return msgspec.structs.replace(self, incarnation=self.incarnation + by)

    def with_entries(self, *entries: HistoryEntry) -> Scope:
        placed = tuple(msgspec.structs.replace(entry, scope_id=self.id) for entry in entries)
        return msgspec.structs.replace(self, new_entries=(*self.new_entries, *placed))


def enable_scope(scope: Scope, *, by: str, now: float) -> Scope:
    """The scope with a new epoch at incarnation 1; what is pending is listed from the start (spec §4.2)."""
    if scope.is_enabled:
        return scope
    enabled = replace(
        scope,
        epoch=scope.epoch + 1,
        incarnation=1,
        enabled_at=now,
        last_request_at=max(now, scope.last_request_at or 0),
    )
    return enabled.with_entries(
        HistoryEntry(at=now, what=EntryKind.ENABLED, who=by, text=f"scheduled events enabled by {by}")
    )


def scope_idle_at(scope: Scope, policy: Policy) -> float | None:
    """When this scope will have been silent for too long; None: never."""
    if policy.enablement is EnablementMode.ALWAYS or scope.enabled_at is None:
        return None
    return max(scope.enabled_at, scope.last_request_at or 0) + policy.idle_s


def disable_scope_if_idle(scope: Scope, policy: Policy, now: float) -> Scope:
    at = scope_idle_at(scope, policy)
    if at is None or now < at:
        return scope
    text = f"scheduled events disabled: no VM of the scope asked for {policy.idle_s / 3600:g} h"
    return replace(scope, enabled_at=None).with_entries(
        HistoryEntry(at=now, what=EntryKind.DISABLED, who="forewarn", text=text)
    )
