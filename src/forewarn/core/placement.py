"""Chooses hosts for VMs: the destination of a VM that moves, and hosts for many new VMs at once.

Prefers the healthy host with the fewest VMs, and avoids hosts that hold another update domain of the VM's scope. A
moving VM also avoids hosts with announced maintenance or another fault domain of its scope and, where the hypervisor
knows it, hosts without enough free memory. It is not migrated live to a host that cannot run its CPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Protocol

import msgspec

from forewarn.core.fleet import Host, Vm
from forewarn.errors import Refused

_HostLoad = tuple[int, str]  # the VM count of a host when it was put into the heap, and the host's name
Domains = tuple[int, int]  # the update domain and the fault domain of a VM
_DomainsByHost = dict[str, set[int]]  # the update domains of one scope on each host


class HostAllocator:
    """Chooses hosts for many VMs, one after another, and counts the VMs on each healthy host.

    The host with the fewest VMs wins; among equals, the first by name. A host with another update domain of the VM's
    scope is the last choice. `choose_host` chooses, and `assign` counts.
    """

    def __init__(self, hosts: Iterable[Host], placed_vms: Iterable[Vm] = ()) -> None:
        self._locations = {h.name: (h.location, h.zone) for h in hosts if h.can_take_vms}
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
        for vm in placed_vms:
            self.assign(vm, vm.host)

    def choose_host(self, vm: Vm) -> str | None:
        """Return the name of the best host for the VM; None if none of its location and zone is possible."""
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
        """Count the VM, once per call, on the host with this name; ignored if no VM can come to that host."""
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
        """Return the top of a heap, after outdated entries were put back."""
        while True:
            count, name = heap[0]
            if count == self._vm_counts[name]:
                return (count, name)
            heappop(heap)
            heappush(heap, (self._vm_counts[name], name))

    def _same_domain_host(self, vm: Vm) -> _HostLoad | None:
        place = (vm.location, vm.zone)
        own, domains = self._scope_heaps[(vm.scope_id, place, vm.update_domain)], self._domains[(vm.scope_id, place)]
        while own:
            count, name = self._least_loaded(own)
            if len(domains[name]) == 1:
                return (count, name)
            heappop(own)
        return None

    def _host_without_scope(self, vm: Vm, heap: list[_HostLoad]) -> _HostLoad | None:
        place = (vm.location, vm.zone)
        taken = self._domains[(vm.scope_id, place)]
        if len(taken) == self._host_counts[place]:
            return None
        skipped: list[_HostLoad] = []
        while self._least_loaded(heap)[1] in taken:
            skipped.append(heappop(heap))
        found = heap[0]
        for load in skipped:
            heappush(heap, load)
        return found


def _has_own_scope(vm: Vm) -> bool:
    """Return whether the VM is alone in its scope, which then has one update domain."""
    return not (vm.availability_set or vm.scale_set or vm.cloud_service)


class HostOccupancy(Protocol):
    """Which VMs and which maintenance each host has: what `choose_destination` must know of the fleet."""

    def has_announced_work(self, host: str) -> bool:
        """Return whether planned maintenance of the host is scheduled or started; False if it is unknown."""

    def vm_count(self, host: str) -> int:
        """Return how many VMs are on the host or moving to it, without those moving away; 0 if it is unknown."""

    def domains_on(self, host: str, scope_id: str) -> Collection[Domains]:
        """Return (update domain, fault domain) of the scope's VMs on the host or moving to it, each pair once.

        A scope of a single VM may be left out. The collection may be live: later commits may change it.
        """

    def arriving_vms(self, host: str) -> Iterable[tuple[str, str]]:
        """Return (name, size) of each VM that is being moved to the host and is not there yet."""


class DestinationHints(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the hypervisor knows about possible destinations; without entries, nothing is known.

    It may be some seconds old, so free memory only ranks hosts. Only the CPU excludes a host, and only from live
    migrations, because it does not change.
    """

    free_mib: Mapping[str, int] = {}  # id of a host → memory in MiB that is free for more VMs
    size_mib: Mapping[str, int] = {}  # size of a VM, such as Standard_D2s_v5 → its memory; unknown ones count as 0
    vm_mib: Mapping[str, int] = {}  # name of a VM → its memory, which counts instead of that of its size
    incompatible: Mapping[str, frozenset[str]] = {}  # name of a VM → hosts that it cannot be migrated to live
    unreachable: frozenset[str] = frozenset()  # ids of hosts that do not answer

    def needed_mib(self, name: str, size: str) -> int:
        """Return the memory in MiB that a VM of this name and size needs; 0 if it is not known."""
        return self.vm_mib.get(name, self.size_mib.get(size, 0))


NO_HINTS = DestinationHints()


def choose_destination(
    vm: Vm,
    hosts: Iterable[Host],
    occupancy: HostOccupancy,
    hints: DestinationHints = NO_HINTS,
    *,
    is_live: bool = False,
) -> str | None:
    """Return the name of the host that a VM moves to (spec §6.4); None if no host is possible.

    The possible hosts are healthy, not confirmed down, in the VM's location and zone, and not the one it is on. With
    `is_live`, hosts that cannot run its CPU are not possible.

    Of the possible hosts it prefers those that answer; then those with enough free memory; then hosts without announced
    maintenance, which would soon affect the VM again; then hosts without another update domain of the VM's scope, so
    that later work on a host stays within one update domain; then hosts without another fault domain. Of these it takes
    the host with the most free memory, if that is known of all possible ones, else with the fewest VMs; then the first
    by name. Nothing is reserved.
    """
    unfit = {name.casefold() for name in hints.incompatible.get(vm.name, ())} if is_live else ()
    possible = {host.name: host.id for host in hosts if is_destination(host, vm) and host.id not in unfit}
    knows_all = bool(hints.free_mib) and all(host_id in hints.free_mib for host_id in possible.values())

    scope_id, update_domain, fault_domain = vm.scope_id, vm.update_domain, vm.fault_domain

    def rank(name: str) -> tuple[bool, bool, bool, bool, bool, int, str]:
        free = hints.free_mib.get(possible[name])
        remaining = free - _needed_mib(name, vm, occupancy, hints) if free is not None else 0
        there = occupancy.domains_on(name, scope_id)
        return (
            possible[name] in hints.unreachable,
            remaining < 0,
            occupancy.has_announced_work(name),
            any(domains[0] != update_domain for domains in there),
            any(domains[1] != fault_domain for domains in there),
            -remaining if knows_all else occupancy.vm_count(name),
            name,
        )

    return min(possible, key=rank, default=None)


def _needed_mib(host: str, vm: Vm, occupancy: HostOccupancy, hints: DestinationHints) -> int:
    arriving = sum(hints.needed_mib(name, size) for name, size in occupancy.arriving_vms(host))
    return arriving + hints.needed_mib(vm.name, vm.size)


def no_destination_problem(vm: Vm, hosts: Iterable[Host]) -> str:
    """Return for people why `choose_destination` found no host: none is possible, or none runs its CPU."""
    if any(is_destination(host, vm) for host in hosts):
        return f"no healthy host in {vm.location} has a CPU that it can be migrated to live: redeploy it instead"
    return f"no healthy host to move to in {vm.location}"


def is_destination(host: Host, vm: Vm) -> bool:
    """Return whether the VM can move to the host: healthy, of its location and zone, and not its own."""
    return host.can_take_vms and host.name != vm.host and host.location == vm.location and host.zone == vm.zone


def require_destination(vm: Vm, hosts: Iterable[Host]) -> None:
    """Raise Refused if the VM can move to none of these hosts, else do nothing."""
    if not any(is_destination(host, vm) for host in hosts):
        where = f"location {vm.location!r}" + (f", zone {vm.zone!r}" if vm.zone else "")
        besides = f" besides {vm.host!r}" if vm.host else ""
        raise Refused(f"VM {vm.name!r} cannot move: {where} has no healthy host{besides}; add or repair a host first")
