"""What one caller may see of a house where others live too. What they may not see does not exist to them."""

from __future__ import annotations

from collections.abc import Iterator

from forewarn.console.directory import Directory
from forewarn.core.access import Principal, Right, client_principal
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry
from forewarn.core.request import Planned, Request
from forewarn.core.resource import EVERYTHING, resource_of
from forewarn.store.seam import Store


class Visibility:
    """Asked within one call: what was read once is not read again. Who sees everything causes no reads."""

    def __init__(self, store: Store, directory: Directory, principal: Principal) -> None:
        self._store = store
        self._directory = directory
        self._principal = principal
        self.is_whole = principal.may(Right.READ, EVERYTHING)
        self._scopes: dict[str, bool] = {}
        self._requests: dict[str, bool] = {}

    def vm(self, vm: Vm) -> bool:
        return self.is_whole or self._principal.may(Right.READ, resource_of(vm))

    def scope(self, scope_id: str) -> bool:
        """Each member of a scope sees all its events (spec §7.2), so whoever may read one may read them."""
        if self.is_whole:
            return True
        if scope_id not in self._scopes:
            self._scopes[scope_id] = any(map(self.vm, self._members(scope_id)))
        return self._scopes[scope_id]

    def host(self, name: str) -> bool:
        """A host is known to those who have a VM on it."""
        return self.is_whole or any(map(self.vm, self._store.vms(host=name)))

    def request(self, request: Request) -> bool:
        """Whoever asked for it, or may read every VM that it is about. Rollouts belong to no owner of VMs."""
        if self.is_whole:
            return True
        if request.id not in self._requests:
            own = self._asked(request) or self._all_of(request)
            self._requests[request.id] = request.rollout is None and own
        return self._requests[request.id]

    def entry(self, entry: Entry) -> bool:
        """By what it is about, the narrowest first; what is about no VM (the service, its clock) is for few."""
        if self.is_whole:
            return True
        if entry.scope_id:
            return self.scope(entry.scope_id)
        if entry.request_id:
            request = self._store.request(entry.request_id)
            return request is not None and self.request(request)
        return bool(entry.vm) and self._all_called(entry.vm)

    def _asked(self, request: Request) -> bool:
        """Only a client has a name that nobody else can have, or take."""
        is_client = self._principal.id.startswith(client_principal(""))
        return is_client and request.who == self._principal.name

    def _all_of(self, request: Request) -> bool:
        """Names alone would not do: in another group they may be somebody else's."""
        hit = {(part.scope_id, name.casefold()) for part in self._parts_of(request) for name in part.vms}
        if request.replay is not None:
            hit.add((request.replay.scope_id, request.replay.name.casefold()))
        scopes = {scope_id for scope_id, _ in hit}
        seen = {(of, vm.name.casefold()) for of in scopes for vm in self._members(of) if self.vm(vm)}
        return bool(hit) and hit <= seen

    def _parts_of(self, request: Request) -> Iterator[Event | Planned]:
        yield from self._store.events(request_id=request.id)
        yield from self._store.planned(request_id=request.id)
        yield from (event for event in map(self._store.event, request.approves) if event is not None)

    def _all_called(self, name: str) -> bool:
        """An entry that has only a VM's name may be about any VM of that name."""
        alike = self._directory.called(name)
        return bool(alike) and all(map(self.vm, alike))

    def _members(self, scope_id: str) -> list[Vm]:
        return self._store.vms(scope_id=scope_id, removed=True)
