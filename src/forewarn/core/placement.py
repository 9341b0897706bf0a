"""Which host each new VM gets: the choice of `fleet.destination_for`, made for a hundred thousand VMs in a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from forewarn.core.fleet import Health, Host, Vm

_Crowd = tuple[int, str]  # how many VMs a host had when it was put into the heap, and its name
_Domains = dict[str, set[int]]  # which update domains of a scope each host holds


class Seating:
    """The healthy hosts and how many VMs are on them. The fewest win; a host with another update domain of the

    VM's scope is taken only where there is no other. Counts only grow, so a heap entry that is out of date is put
    back with its new count when it comes up.
    """

    def __init__(self, hosts: Iterable[Host], tenants: Iterable[Vm] = ()) -> None:
        self._place = {h.name: (h.location, h.zone) for h in hosts if h.health is Health.HEALTHY}
        self._crowd = dict.fromkeys(self._place, 0)
        self._heaps: dict[tuple[str, str], list[_Crowd]] = defaultdict(list)
        self._size: dict[tuple[str, str], int] = defaultdict(int)
        self._domains: dict[tuple[str, tuple[str, str]], _Domains] = defaultdict(dict)
        self._own: dict[tuple[str, tuple[str, str], int], list[_Crowd]] = defaultdict(list)
        for name, place in self._place.items():
            self._heaps[place].append((0, name))
            self._size[place] += 1
        for heap in self._heaps.values():
            heapify(heap)
        for vm in tenants:
            self.seat(vm, vm.host)

    def host_for(self, vm: Vm) -> str | None:
        """The best host for the VM; None when its location and zone have no healthy one."""
        heap = self._heaps.get((vm.location, vm.zone))
        if not heap:
            return None
        if _is_alone(vm):
            return self._least(heap)[1]
        own, free = self._own_host(vm), self._free_host(vm, heap)
        if own and free:
            return min(own, free)[1]
        return (own or free or self._least(heap))[1]

    def seat(self, vm: Vm, host: str) -> None:
        """Count the VM on that host from now on."""
        place = self._place.get(host)
        if place is None:
            return
        self._crowd[host] += 1
        if not _is_alone(vm):
            there = self._domains[(vm.scope_id, place)].setdefault(host, set())
            if not there:
                heappush(self._own[(vm.scope_id, place, vm.update_domain)], (self._crowd[host], host))
            there.add(vm.update_domain)

    def _least(self, heap: list[_Crowd]) -> _Crowd:
        """The first of a heap, brought up to date."""
        while True:
            crowd, name = heap[0]
            if crowd == self._crowd[name]:
                return (crowd, name)
            heappop(heap)
            heappush(heap, (self._crowd[name], name))

    def _own_host(self, vm: Vm) -> _Crowd | None:
        """The least crowded host with VMs of this scope, all of them of this update domain."""
        place = (vm.location, vm.zone)
        own, domains = self._own[(vm.scope_id, place, vm.update_domain)], self._domains[(vm.scope_id, place)]
        while own:
            crowd, name = self._least(own)
            if len(domains[name]) == 1:
                return (crowd, name)
            heappop(own)
        return None

    def _free_host(self, vm: Vm, heap: list[_Crowd]) -> _Crowd | None:
        """The least crowded host with no VM of this scope."""
        place = (vm.location, vm.zone)
        taken = self._domains[(vm.scope_id, place)]
        if len(taken) == self._size[place]:
            return None
        passed: list[_Crowd] = []
        while self._least(heap)[1] in taken:
            passed.append(heappop(heap))
        found = heap[0]
        for crowd in passed:
            heappush(heap, crowd)
        return found


def _is_alone(vm: Vm) -> bool:
    """A scope of its own: there is no other update domain to keep apart from."""
    return not (vm.availability_set or vm.scale_set or vm.cloud_service)
