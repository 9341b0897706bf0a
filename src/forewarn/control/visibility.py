"""What one caller may see: the fleet directory and stored values, filtered by the caller's grants.

A caller who may not read a thing gets the same answer as if it did not exist: not found, not listed, not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from forewarn.control.directory import FleetDirectory, IndexedVm
from forewarn.core.access import Grant, Principal, Right, client_principal
from forewarn.core.event import Event
from forewarn.core.faults import hide_faults
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.resource_ids import ROOT_RESOURCE, is_within_resource, vm_resource_id
from forewarn.store.interface import Store


class VisibleDirectory:
    """The fleet directory as one caller, `principal`, sees it: without the VMs that they may not read."""

    def __init__(self, directory: FleetDirectory, principal: Principal) -> None:
        self.unfiltered = directory
        self._principal = principal
        self.sees_everything = principal.may(Right.READ, ROOT_RESOURCE)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The caller's grants; () if there are none. Callers with equal grants see the same directory."""
        return self._principal.grants

    def can_see(self, vm: Vm) -> bool:
        """Return whether the caller may read this VM, which may be a removed one."""
        return self.can_read(vm_resource_id(vm))

    def can_read(self, resource: str) -> bool:
        """Return whether the caller may read the resource with this Azure id, and so everything below it."""
        return self.sees_everything or self._principal.may(Right.READ, resource)

    def find(self, name: str) -> Vm:
        """Return the visible, present VM with this name, `group/name` or key, ignoring letter case."""
        return self.unfiltered.find(name, self.can_see)

    def find_any(self, name: str) -> Vm:
        """Return the visible VM with this name, `group/name` or key, ignoring letter case; it may be removed."""
        return self.unfiltered.find_any(name, self.can_see)

    def vms_within(self, resource: str) -> Sequence[IndexedVm]:
        """Return the visible, present VMs of a subscription, group or set, in natural order of their keys.

        Do not change the list: it may be a cache.
        """
        vms = self.unfiltered.vms_within(resource)
        # An availability set contains VMs whose ids are not below its own: the right to read the set is not enough.
        if self.can_read(resource) and all(is_within_resource(resource, vm.resource) for vm in vms[:1]):
            return vms
        return [vm for vm in vms if self.can_read(vm.resource)]

    def sets_within(self, resource: str) -> list[str]:
        """Return the ids of the sets of a subscription or group. A readable VM does not make its set readable."""
        return [set_id for set_id in self.unfiltered.sets_within(resource) if self.can_read(set_id)]

    def groups(self) -> list[str]:
        """Return the Azure ids of the resource groups with anything the caller may read, in natural order."""
        return [
            group
            for group in self.unfiltered.groups()
            if self.can_read(group) or self.vms_within(group) or self.sets_within(group)
        ]

    def most_common_group(self) -> tuple[str, str] | None:
        """Return subscription id and name of the resource group with the most present VMs, visible or not."""
        return self.unfiltered.most_common_group()

    def subscriptions(self) -> set[str]:
        """Return the subscription ids of all present VMs, visible or not, as the VMs spell them, in a new set."""
        return self.unfiltered.subscriptions()


class Visibility:
    """Decides which VMs, scopes, hosts, requests and history entries one caller, `principal`, may see."""

    def __init__(self, store: Store, directory: FleetDirectory, principal: Principal) -> None:
        self._store = store
        self._directory = directory
        self._principal = principal
        self.sees_everything = principal.may(Right.READ, ROOT_RESOURCE)
        self._scopes: dict[str, bool] = {}
        self._requests: dict[str, bool] = {}

    def can_see_vm(self, vm: Vm) -> bool:
        """Return whether the caller may read this VM, which may be a removed one. Reads no store."""
        return self.sees_everything or self._principal.may(Right.READ, vm_resource_id(vm))

    def can_see_scope(self, scope_id: str) -> bool:
        """Return whether the caller may see this scope: may read any VM of it, present or removed."""
        # One VM is enough, because each VM is shown all events of its scope (spec §7.2).
        if self.sees_everything:
            return True
        if scope_id not in self._scopes:
            self._scopes[scope_id] = any(map(self.can_see_vm, self._scope_vms(scope_id)))
        return self._scopes[scope_id]

    def can_see_host(self, name: str) -> bool:
        """Return whether the caller may see this host: may read any VM that is on it now, or everything."""
        return self.sees_everything or any(map(self.can_see_vm, self._store.vms(host=name)))

    def can_see_request(self, request: MaintenanceRequest) -> bool:
        """Return whether the caller may see a request: may read all its VMs, or made it as one of our clients."""
        # For a request that approved events, the caller must see the scopes of these events instead. Only a caller who
        # sees everything sees rollouts.
        if self.sees_everything:
            return True
        if request.id not in self._requests:
            is_allowed = self._is_requester(request) or self._sees_parts_of(request)
            self._requests[request.id] = request.rollout is None and is_allowed
        return self._requests[request.id]

    def can_see_entry(self, entry: HistoryEntry) -> bool:
        """Return whether the caller may see an entry: its scope decides, else its request, else its VM."""
        if self.sees_everything:
            return True
        if entry.kind is EntryKind.FAULT:
            return False
        if entry.scope_id:
            return self.can_see_scope(entry.scope_id)
        if entry.request_id:
            request = self._store.request(entry.request_id)
            return request is not None and self.can_see_request(request)
        return bool(entry.vm) and self._sees_every_vm_named(entry.vm)

    def visible_entries(self, entries: Iterable[HistoryEntry]) -> list[HistoryEntry]:
        """Return those of the entries that the caller may see, in the same order, as the caller is shown them."""
        return [self.shown_entry(entry) for entry in entries if self.can_see_entry(entry)]

    def shown_entry(self, entry: HistoryEntry) -> HistoryEntry:
        """Return the entry as this caller is shown it: without faults in its text, unless they see everything."""
        # An event that a fault withdrew is then withdrawn by forewarn. Does not check `can_see_entry`.
        text = entry.text if self.sees_everything else hide_faults(entry.text)
        if text == entry.text:
            return entry
        return replace(entry, text=text, actor="forewarn" if entry.kind is EntryKind.WITHDRAWN else entry.actor)

    def shown_event(self, event: Event) -> Event:
        """Return an event as this caller is shown it: without faults in its texts, unless they see everything."""
        if self.sees_everything or not event.faults:
            return event
        return replace(event, note=hide_faults(event.note), reason=hide_faults(event.reason))

    def _is_requester(self, request: MaintenanceRequest) -> bool:
        """Compares names, which are unique for our own clients only."""
        is_client = self._principal.id.startswith(client_principal(""))
        return is_client and request.requested_by == self._principal.name

    def _sees_parts_of(self, request: MaintenanceRequest) -> bool:
        if not request.approves:
            return self._sees_every_vm_of(request)
        approved = [event for event in map(self._store.event, request.approves) if event is not None]
        return bool(approved) and all(self.can_see_scope(event.scope_id) for event in approved)

    def _sees_every_vm_of(self, request: MaintenanceRequest) -> bool:
        """Compares scope and name: another group may have a VM of the same name."""
        affected = {(part.scope_id, name.casefold()) for part in self._parts_of_request(request) for name in part.vms}
        if request.replay is not None:
            affected.add((request.replay.scope_id, request.replay.name.casefold()))
        scope_ids = {scope_id for scope_id, _ in affected}
        visible = {
            (scope_id, vm.name.casefold())
            for scope_id in scope_ids
            for vm in self._scope_vms(scope_id)
            if self.can_see_vm(vm)
        }
        return bool(affected) and affected <= visible

    def _parts_of_request(self, request: MaintenanceRequest) -> Iterator[Event | PlannedEvent]:
        yield from self._store.events(request_id=request.id)
        yield from self._store.planned(request_id=request.id)

    def _sees_every_vm_named(self, name: str) -> bool:
        """An entry with only a VM's name may be about any VM of that name."""
        vms = self._directory.find_all_named(name)
        return bool(vms) and all(map(self.can_see_vm, vms))

    def _scope_vms(self, scope_id: str) -> list[Vm]:
        return self._store.vms(scope_id=scope_id, removed=True)
