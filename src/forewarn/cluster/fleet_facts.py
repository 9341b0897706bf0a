"""What the streams of hosts read of the committed fleet: from the store and the placement index."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from forewarn.cluster.host_projection import host_id
from forewarn.control.placement_index import PlacementIndex
from forewarn.core.scope import Scope
from forewarn.metadata import PublishedScope
from forewarn.store.interface import Store


class CommittedFleet:
    """Implements `FleetFacts` on a store. `published` returns what the VMs of a scope see."""

    def __init__(self, store: Store, placement: PlacementIndex, published: Callable[[Scope], PublishedScope]) -> None:
        self.published = published
        self._store = store
        self._placement = placement

    def host_name(self, host_key: str) -> str | None:
        """Return the name of the host with this key; None if the fleet does not have it."""
        return next((host.name for host in self._placement.hosts() if host_id(host.name) == host_key), None)

    def scopes_on(self, host_key: str) -> Iterator[Scope]:
        """Return the scopes with a VM on this host, or with one that an act brings to it, each once.

        Nothing for a host that the fleet does not have. In no particular order.
        """
        name = self.host_name(host_key)
        if name is None:
            return
        keys = [*(vm.key for vm in self._store.vms(host=name)), *self._placement.vms_moving_to(name)]
        for scope_id in dict.fromkeys(self._placement.scope_of(key) for key in keys if self._placement.has_vm(key)):
            scope = self._store.scope(scope_id)
            if scope is not None:
                yield scope

    def scope_of(self, vm_key: str) -> Scope | None:
        """Return the scope of a present VM; None for any other key."""
        return self._store.scope(self._placement.scope_of(vm_key)) if self._placement.has_vm(vm_key) else None
