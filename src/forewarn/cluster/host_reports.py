"""What a host node reports about its host: free memory, CPUs, and its VMs as the platform lists them.

The active node chooses destinations by the first two, and finds changes that no act explains by the third.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from forewarn.cluster.bus import BusMessage
from forewarn.cluster.messages import CompareCpus, CpuComparison, HostCapacity, VmListing, encode_bus_message
from forewarn.errors import ForewarnError, full_message
from forewarn.machines.capacity import CapacityHypervisor, CpuHypervisor
from forewarn.machines.interface import Hypervisor, ObservingHypervisor

log = logging.getLogger(__name__)
_CAPACITY_REPORTS = 15  # a capacity that has not changed is in every 15th report, for an active node that is new
_MAX_CPUS = 32  # different ones in a report, which must fit into a message
_FOLLOW_AGAIN_S = 5.0  # real time, after the platform's changes could not be followed


class HostReports:
    """What the hypervisor of a host node knows about its host, for the node's reports."""

    def __init__(self, hypervisor: Hypervisor, host: str) -> None:
        self._capacity = hypervisor if isinstance(hypervisor, CapacityHypervisor) else None
        self._cpus = hypervisor if isinstance(hypervisor, CpuHypervisor) else None
        self._observing = _observing_hypervisor(hypervisor)
        self._host = host.casefold()
        self._last: HostCapacity | None = None
        self._reports_since = 0  # reports since the last one with a capacity
        self.changes = -1 if self._observing is None else 0

    def capacity(self) -> HostCapacity | None:
        """Return what the host has free and what its VMs need, for the next report; None if it has not changed.

        Call it once for each report, because it counts them: every 15th has it in any case.
        """
        if self._capacity is None:
            return None
        known = self._capacity
        free = {name.casefold(): mib for name, mib in known.free_mib.items()}
        is_silent = self._host in {name.casefold() for name in known.silent_hosts}
        vm_cpus = {} if self._cpus is None else dict(self._cpus.vm_cpus)
        cpus = tuple(sorted(set(vm_cpus.values()))[:_MAX_CPUS])
        needed = {vm: cpus.index(cpu) for vm, cpu in vm_cpus.items() if cpu in cpus}
        compares_cpus = self._cpus is not None and self._host in free  # before, its own CPU is not known
        found = HostCapacity(free.get(self._host), dict(known.vm_mib), is_silent, cpus, needed, compares_cpus)
        self._reports_since += 1
        if found == self._last and self._reports_since < _CAPACITY_REPORTS:
            return None
        self._last, self._reports_since = found, 0
        return found

    async def follow_changes(self) -> None:
        """Count the changes of VMs that the platform reports about this host, in `changes`, until cancelled."""
        if self._observing is None:
            return
        while True:
            try:
                async with aclosing(self._observing.changed_hosts()) as changed:
                    async for host in changed:
                        self.changes += host.casefold() == self._host
            except Exception:
                log.exception("changes of VMs on this host cannot be followed, trying again")
            await asyncio.sleep(_FOLLOW_AGAIN_S)


def _observing_hypervisor(hypervisor: Hypervisor) -> ObservingHypervisor | None:
    if isinstance(hypervisor, ObservingHypervisor) and hypervisor.observe_interval_s > 0:
        return hypervisor
    return None


async def answer_comparison(hypervisor: Hypervisor, host: str, request: CompareCpus, message: BusMessage) -> None:
    """Answer the active control node's request whether this host can run the CPUs of VMs on other hosts."""
    fits: list[bool | None] = [True] * len(request.cpus)
    if isinstance(hypervisor, CpuHypervisor):
        fits = [await hypervisor.can_run_cpu(host, cpu) for cpu in request.cpus]
    message.respond(encode_bus_message(CpuComparison(tuple(fits))))


async def answer_listing(hypervisor: Hypervisor, host: str, message: BusMessage) -> None:
    """Answer the active control node's request to list the VMs of this host."""
    observing = _observing_hypervisor(hypervisor)
    folded = host.casefold()
    reply = VmListing(text=f"the node of host {host} does not list VMs")
    if observing is not None:
        name = next((each for each in observing.observed_hosts if each.casefold() == folded), host)
        try:
            reply = VmListing(await observing.observe(name))
        except ForewarnError as error:
            reply = VmListing(text=full_message(error))
    message.respond(encode_bus_message(reply))
