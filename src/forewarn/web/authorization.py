"""What one caller may see: the fleet directory and stored values, filtered by the caller's grants.

To a caller, what they may not read does not exist: it is neither found, listed nor counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forewarn.core.access import Grant, Principal, Right, client_principal
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.history import HistoryEntry
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.resource_ids import ROOT_RESOURCE, is_within_resource, vm_resource_id
from forewarn.store.interface import Store
from forewarn.web.directory import FleetDirectory, IndexedVm


class VisibleDirectory:
    """The directory, without the VMs that a caller may not read: to them these do not exist."""

    def __init__(self, directory: FleetDirectory, principal: Principal) -> None:
        self.unfiltered = directory
        self._principal = principal
        self.sees_everything = principal.may(Right.READ, ROOT_RESOURCE)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What the outlook follows from: who has the same sees the same."""
        return self._principal.grants

    def can_see(self, vm: Vm) -> bool:
        return self.can_read(vm_resource_id(vm))

    def can_read(self, resource: str) -> bool:
        """And all that lies within it."""
        return self.sees_everything or self._principal.may(Right.READ, resource)

    def find(self, name: str) -> Vm:
        return self.unfiltered.find(name, self.can_see)

    def find_any(self, name: str) -> Vm:
        return self.unfiltered.find_any(name, self.can_see)

    def vms_within(self, resource: str) -> Sequence[IndexedVm]:
        every = self.unfiltered.vms_within(resource)
        # VMs of an availability set are in it, but not under its id: who may read the one may not read the others.
        if self.can_read(resource) and all(is_within_resource(resource, one.resource) for one in every[:1]):
            return every
        return [one for one in every if self.can_read(one.resource)]

    def sets_within(self, resource: str) -> list[str]:
        """A set that the caller may not read is not shown, even where they may read a VM of it."""
        return [one for one in self.unfiltered.sets_within(resource) if self.can_read(one)]

    def groups(self) -> list[str]:
        """Those that hold anything that the caller may read."""
        return [
            one
            for one in self.unfiltered.groups()
            if self.can_read(one) or self.vms_within(one) or self.sets_within(one)
        ]

    def most_common_group(self) -> tuple[str, str] | None:
        return self.unfiltered.most_common_group()

    def subscriptions(self) -> set[str]:
        return self.unfiltered.subscriptions()


class Visibility:
    """Asked within one call: what was read once is not read again. Who sees everything causes no reads."""

    def __init__(self, store: Store, directory: FleetDirectory, principal: Principal) -> None:
        self._store = store
        self._directory = directory
        self._principal = principal
        self.sees_everything = principal.may(Right.READ, ROOT_RESOURCE)
        self._scopes: dict[str, bool] = {}
        self._requests: dict[str, bool] = {}

    def can_see_vm(self, vm: Vm) -> bool:
        return self.sees_everything or self._principal.may(Right.READ, vm_resource_id(vm))

    def can_see_scope(self, scope_id: str) -> bool:
        """Each member of a scope sees all its events (spec §7.2), so whoever may read one may read them."""
        if self.sees_everything:
            return True
        if scope_id not in self._scopes:
            self._scopes[scope_id] = any(map(self.can_see_vm, self._scope_vms(scope_id)))
        return self._scopes[scope_id]

    def can_see_host(self, name: str) -> bool:
        """A host is known to those who have a VM on it."""
        return self.sees_everything or any(map(self.can_see_vm, self._store.vms(host=name)))

    def can_see_request(self, request: MaintenanceRequest) -> bool:
        """Whoever asked for it, or may read every VM that it is about. Rollouts belong to no owner of VMs."""
        if self.sees_everything:
            return True
        if request.id not in self._requests:
            own = self._is_requester(request) or self._sees_every_vm_of(request)
            self._requests[request.id] = request.rollout is None and own
        return self._requests[request.id]

    def can_see_entry(self, entry: HistoryEntry) -> bool:
        """By what it is about, the narrowest first; what is about no VM (the service, its clock) is for few."""
        if self.sees_everything:
            return True
        if entry.scope_id:
            return self.can_see_scope(entry.scope_id)
        if entry.request_id:
            request = self._store.request(entry.request_id)
            return request is not None and self.can_see_request(request)
        return bool(entry.vm) and self._sees_every_vm_named(entry.vm)

    def _is_requester(self, request: MaintenanceRequest) -> bool:
        """Only a client has a name that nobody else can have, or take."""
        is_client = self._principal.id.startswith(client_principal(""))
        return is_client and request.who == self._principal.name

    def _sees_every_vm_of(self, request: MaintenanceRequest) -> bool:
        """Names alone would not do: in another group they may be somebody else's."""
        hit = {(part.scope_id, name.casefold()) for part in self._parts_of_request(request) for name in part.vms}
        if request.replay is not None:
            hit.add((request.replay.scope_id, request.replay.name.casefold()))
        scopes = {scope_id for scope_id, _ in hit}
        seen = {(of, vm.name.casefold()) for of in scopes for vm in self._scope_vms(of) if self.can_see_vm(vm)}
        return bool(hit) and hit <= seen

    def _parts_of_request(self, request: MaintenanceRequest) -> Iterator[Event | PlannedEvent]:
        yield from self._store.events(request_id=request.id)
        yield from self._store.planned(request_id=request.id)
        yield from (event for event in map(self._store.event, request.approves) if event is not None)

    def _sees_every_vm_named(self, name: str) -> bool:
        """An entry that has only a VM's name may be about any VM of that name."""
        alike = self._directory.find_all_named(name)
        return bool(alike) and all(map(self.can_see_vm, alike))

    def _scope_vms(self, scope_id: str) -> list[Vm]:
        return self._store.vms(scope_id=scope_id, removed=True)
