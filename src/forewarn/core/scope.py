"""A scope: VMs that share one document, and their live events; enabling and disabling it (spec §8).

The scope is the unit of delivery, of the incarnation and of every transaction. A decision is a function from Scope
to Scope; history entries that it makes are collected in `new_entries` and committed with it.

Stored values are structs with `gc=False`: they are immutable and refer only to values that are older, so they cannot
form a cycle, and the garbage collector need not search the state of the whole fleet.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from forewarn.base.wording import scope_name_from_id
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry

_SCOPE_KINDS = {
    "set": "availability set",
    "placement": "scale set",
    "flexible": "scale set",
    "service": "cloud service",
    "vm": "VM",
}


class Scope(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One scope with its VMs and live events, as a decision reads and returns it.

    A scope is the VMs that share one document: an availability set, a placement group, a flexible scale set, a cloud
    service, or a single VM. The value never changes: methods return a changed copy, which counts once it is committed.
    """

    id: str  # such as `set:SUBSCRIPTION/GROUP/NAME`, in lower case; `scope_id_for` makes it
    version: int = 0  # the version of the stored row, for optimistic commits; not the incarnation
    epoch: int = 0  # grows each time it is enabled or reset; 0: it never was
    incarnation: int = 0  # the incarnation of its document, within the epoch
    enabled_at: float | None = None  # None: scheduled events are disabled
    last_request_at: float | None = None  # of its VMs' latest poll or approval, or when it was enabled; None: neither
    next_seq: int = 1  # of the next event
    wakes_at: float | None = None  # when to reconcile it next, None: not by time alone; set before a commit
    vms: tuple[Vm, ...] = ()  # in the order they were added; with those removed since the scope was loaded
    events: tuple[Event, ...] = ()  # live ones in order of publication; with those that ended since it was loaded
    new_entries: tuple[HistoryEntry, ...] = ()  # to be committed with the scope

    @property
    def is_enabled(self) -> bool:
        """Whether scheduled events are enabled for the scope, because a VM of it polls or the policy says so."""
        return self.enabled_at is not None

    @property
    def is_cloud_service(self) -> bool:
        """Whether the scope is a cloud service; its VM names have no underscore in api-version 2017-03-01."""
        return self.id.startswith("service:")

    @property
    def is_placement_group(self) -> bool:
        """Whether the scope is a placement group of a uniform scale set; a flexible scale set has none."""
        return self.id.startswith("placement:")

    @property
    def is_narrow(self) -> bool:
        """Whether each VM of the scope sees only the events that affect that VM (spec §14.6)."""
        return any(vm.narrow_delivery for vm in self.vms if vm.removed_at is None)

    @property
    def present_vms(self) -> tuple[Vm, ...]:
        """The VMs of the scope that were not removed, in the order they were added."""
        return tuple([vm for vm in self.vms if vm.removed_at is None])

    def vm(self, name: str) -> Vm | None:
        """Return the VM with this name, ignoring letter case; None if there is none or it was removed."""
        wanted = name.casefold()
        for vm in self.vms:
            if vm.removed_at is None and vm.name.casefold() == wanted:
                return vm
        return None

    def event(self, event_id: str) -> Event | None:
        """Return the event with exactly this id. One that ended since the scope was loaded is still found."""
        for event in self.events:
            if event.id == event_id:
                return event
        return None

    def live_events(self, status: EventState | None = None) -> tuple[Event, ...]:
        """Return the events of the scope that are not over, or only those in this state, oldest first."""
        if status is None:
            return tuple([e for e in self.events if e.is_live])
        return tuple([e for e in self.events if e.status is status and e.is_live])

    def with_event(self, event: Event) -> Scope:
        """Return the scope with this event in place of the one with its id, or added with the next `seq`."""
        if self.event(event.id) is None:
            numbered = msgspec.structs.replace(event, seq=self.next_seq)
            return msgspec.structs.replace(self, events=(*self.events, numbered), next_seq=self.next_seq + 1)
        return msgspec.structs.replace(self, events=tuple(event if e.id == event.id else e for e in self.events))

    def with_vm(self, vm: Vm) -> Scope:
        """Return the scope with this VM in place of the one with its key, or added at the end."""
        return self.with_vms((vm,))

    def with_vms(self, vms: Iterable[Vm]) -> Scope:
        """Return the scope with each of these VMs in place of the one with its key, or added at the end."""
        # Scheduled events no longer concern a VM that is removed, nor one that is added under its name.
        changed = {vm.key: vm for vm in vms}
        scope = msgspec.structs.replace(self, vms=tuple(({vm.key: vm for vm in self.vms} | changed).values()))
        removed = {vm.name.casefold() for vm in changed.values() if vm.removed_at is not None}
        for event in self.live_events(EventState.SCHEDULED) if removed else ():
            if gone := tuple(name for name in event.vms if name.casefold() in removed):
                scope = scope.with_event(
                    msgspec.structs.replace(event, removed_vms=tuple(dict.fromkeys((*event.removed_vms, *gone))))
                )
        return scope

    def with_incarnation_increased(self, by: int = 1) -> Scope:
        return msgspec.structs.replace(self, incarnation=self.incarnation + by)

    def with_entries(self, *entries: HistoryEntry) -> Scope:
        """Return the scope with these history entries added to `new_entries`, to be committed with it."""
        placed = tuple(msgspec.structs.replace(entry, scope_id=self.id) for entry in entries)
        return msgspec.structs.replace(self, new_entries=(*self.new_entries, *placed))


def scope_title_of_vm(vm: Vm) -> str:
    """Return the long name of the VM's scope, for `explain`, titles and errors, such as `VM db`."""
    if vm.cloud_service:
        return f"cloud service {vm.cloud_service}"
    if vm.is_flexible:
        return f"scale set {vm.scale_set}"
    if vm.scale_set:
        return f"placement group {vm.placement_group} of scale set {vm.scale_set}"
    return f"availability set {vm.availability_set}" if vm.availability_set else f"VM {vm.name}"


def scope_title(scope: Scope) -> str:
    """Return the long name of the scope, such as `VM db`: from its first VM, else from its id."""
    return scope_title_of_vm(scope.vms[0]) if scope.vms else scope_title_from_id(scope.id)


def scope_title_from_id(scope_id: str) -> str:
    """Return the long name of the scope with this id, such as `VM db`, in lower case; needs no VM of the scope."""
    kind, _, path = scope_id.partition(":")
    match kind, path.split("/")[2:]:
        case "placement", [scale_set, group]:
            return f"placement group {group} of scale set {scale_set}"
        case _, names:
            return f"{_SCOPE_KINDS.get(kind, kind)} {'/'.join(names)}"


def scope_name_of_vm(vm: Vm) -> str:
    """Return the short name of the VM's scope, such as `web`, or `workers/pg-0` for a placement group."""
    if vm.scale_set and not vm.is_flexible:
        return f"{vm.scale_set}/{vm.placement_group}"
    return vm.cloud_service or vm.scale_set or vm.availability_set or vm.name


def scope_name(scope: Scope) -> str:
    """Return the short name of the scope: from its first VM, else from its id."""
    return scope_name_of_vm(scope.vms[0]) if scope.vms else scope_name_from_id(scope.id)


def enable_scope(scope: Scope, *, by: str, now: float) -> Scope:
    """Return the scope enabled, at incarnation 1 of a new epoch. Pending events stay listed (spec §4.2)."""
    if scope.is_enabled:
        return scope
    enabled = replace(
        scope,
        # A new epoch, because a client may have kept an ETag of the numbers before.
        epoch=scope.epoch + 1,
        incarnation=1,
        enabled_at=now,
        last_request_at=max(now, scope.last_request_at or 0),
    )
    return enabled.with_entries(
        HistoryEntry(at=now, kind=EntryKind.ENABLED, actor=by, text=f"scheduled events enabled by {by}")
    )


def hours_text(seconds: float) -> str:
    """Return a duration in hours, such as `24 h` or `0.5 h`."""
    return f"{seconds / 3600:g} h"


def scope_idle_at(scope: Scope, policy: Policy) -> float | None:
    """Return the lab time, perhaps past, at which the scope is disabled if no VM polls until then."""
    if policy.enablement is EnablementMode.ALWAYS or scope.enabled_at is None:
        return None
    # A scope that was just enabled is not idle because of an older poll.
    return max(scope.enabled_at, scope.last_request_at or 0) + policy.idle_s


def disable_scope_if_idle(scope: Scope, policy: Policy, now: float) -> Scope:
    """Return the scope disabled if it is enabled and idle for `policy.idle_s`, else the same (spec §8.2)."""
    at = scope_idle_at(scope, policy)
    if at is None or now < at:
        return scope
    hours = hours_text(policy.idle_s)
    text = f"scheduled events of {scope_name(scope)} disabled: no VM of the scope has polled for {hours}"
    return replace(scope, enabled_at=None).with_entries(
        HistoryEntry(at=now, kind=EntryKind.DISABLED, actor="forewarn", text=text)
    )
