"""Chooses hosts for VMs: the destination of a VM that moves, and hosts for many new VMs at once.

Prefers the healthy host with the fewest VMs, and avoids hosts that hold another update domain of the VM's scope.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Protocol

from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.errors import Refused

_HostLoad = tuple[int, str]  # how many VMs a host had when it was put into the heap, and its name
_DomainsByHost = dict[str, set[int]]  # which update domains of a scope each host holds


class HostAllocator:
    """The healthy hosts and how many VMs are on them. The fewest win; a host with another update domain of the

    VM's scope is taken only where there is no other. Counts only grow, so a heap entry that is out of date is put
    back with its new count when it comes up.
    """

    def __init__(self, hosts: Iterable[Host], tenants: Iterable[Vm] = ()) -> None:
        self._locations = {h.name: (h.location, h.zone) for h in hosts if h.health is HostHealth.HEALTHY}
        self._vm_counts = dict.fromkeys(self._locations, 0)
        self._heaps: dict[tuple[str, str], list[_HostLoad]] = defaultdict(list)
        self._host_counts: dict[tuple[str, str], int] = defaultdict(int)
        self._domains: dict[tuple[str, tuple[str, str]], _DomainsByHost] = defaultdict(dict)
        self._scope_heaps: dict[tuple[str, tuple[str, str], int], list[_HostLoad]] = defaultdict(list)
        for name, place in self._locations.items():
            self._heaps[place].append((0, name))
            self._host_counts[place] += 1
        for heap in self._heaps.values():
            heapify(heap)
        for vm in tenants:
            self.assign(vm, vm.host)

    def choose_host(self, vm: Vm) -> str | None:
        """The best host for the VM; None when its location and zone have no healthy one."""
        heap = self._heaps.get((vm.location, vm.zone))
        if not heap:
            return None
        if _has_own_scope(vm):
            return self._least_loaded(heap)[1]
        own, free = self._same_domain_host(vm), self._host_without_scope(vm, heap)
        if own and free:
            return min(own, free)[1]
        return (own or free or self._least_loaded(heap))[1]

    def assign(self, vm: Vm, host: str) -> None:
        """Count the VM on that host from now on."""
        place = self._locations.get(host)
        if place is None:
            return
        self._vm_counts[host] += 1
        if not _has_own_scope(vm):
            there = self._domains[(vm.scope_id, place)].setdefault(host, set())
            if not there:
                heappush(self._scope_heaps[(vm.scope_id, place, vm.update_domain)], (self._vm_counts[host], host))
            there.add(vm.update_domain)

    def _least_loaded(self, heap: list[_HostLoad]) -> _HostLoad:
        """The first of a heap, brought up to date."""
        while True:
            crowd, name = heap[0]
            if crowd == self._vm_counts[name]:
                return (crowd, name)
            heappop(heap)
            heappush(heap, (self._vm_counts[name], name))

    def _same_domain_host(self, vm: Vm) -> _HostLoad | None:
        """The least crowded host with VMs of this scope, all of them of this update domain."""
        place = (vm.location, vm.zone)
        own, domains = self._scope_heaps[(vm.scope_id, place, vm.update_domain)], self._domains[(vm.scope_id, place)]
        while own:
            crowd, name = self._least_loaded(own)
            if len(domains[name]) == 1:
                return (crowd, name)
            heappop(own)
        return None

    def _host_without_scope(self, vm: Vm, heap: list[_HostLoad]) -> _HostLoad | None:
        """The least crowded host with no VM of this scope."""
        place = (vm.location, vm.zone)
        taken = self._domains[(vm.scope_id, place)]
        if len(taken) == self._host_counts[place]:
            return None
        passed: list[_HostLoad] = []
        while self._least_loaded(heap)[1] in taken:
            passed.append(heappop(heap))
        found = heap[0]
        for crowd in passed:
            heappush(heap, crowd)
        return found


def _has_own_scope(vm: Vm) -> bool:
    """A scope of its own: there is no other update domain to keep apart from."""
    return not (vm.availability_set or vm.scale_set or vm.cloud_service)


class HostOccupancy(Protocol):
    """Who is on which host, as far as choosing a host for one more VM needs to know."""

    def vm_count(self, host: str) -> int: ...

    def has_other_update_domain(self, host: str, vm: Vm) -> bool:
        """Whether the host holds another update domain of this VM's scope."""


def choose_destination(vm: Vm, hosts: Iterable[Host], tenancy: HostOccupancy) -> str | None:
    """The host a VM moves to: healthy, of its location and zone, not its own; least crowded first (spec §6.4).

    A host that holds another update domain of the same scope is taken only where there is no other, so that
    later work on that host stays within one update domain.
    """
    fit = [host.name for host in hosts if is_destination(host, vm)]
    return min(
        fit, key=lambda name: (tenancy.has_other_update_domain(name, vm), tenancy.vm_count(name), name), default=None
    )


def is_destination(host: Host, vm: Vm) -> bool:
    return (
        host.health is HostHealth.HEALTHY
        and host.name != vm.host
        and host.location == vm.location
        and host.zone == vm.zone
    )


def require_destination(vm: Vm, hosts: Iterable[Host]) -> None:
    """Spec §6.4: with no healthy host to move to, the request is refused."""
    if not any(is_destination(host, vm) for host in hosts):
        where = f"location {vm.location!r}" + (f", zone {vm.zone!r}" if vm.zone else "")
        raise Refused(
            f"VM {vm.name!r} cannot move: {where} has no other healthy host than {vm.host!r}; "
            "add or repair a host first"
        )
