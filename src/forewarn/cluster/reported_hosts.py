"""What host nodes report about their hosts, for the control plane.

Free memory comes with the nodes' reports, and so do the CPUs that VMs need, which the nodes of the other hosts compare
with theirs. Their VMs are asked for when they are needed, because an old listing would look like a change by somebody
else after an act.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable

from msgspec.structs import replace

from forewarn.cluster.bus import Bus, NoAnswer, Subjects, request_repeatedly
from forewarn.cluster.messages import (
    CompareCpus,
    HostCapacity,
    ListVms,
    VmListing,
    decode_cpu_comparison,
    decode_vm_listing,
    encode_bus_message,
)
from forewarn.cluster.node_registry import JoinedNode
from forewarn.core.observation import HostObservation
from forewarn.errors import Rejected, Unavailable

log = logging.getLogger(__name__)
OBSERVE_INTERVAL_S = 30.0  # real time, between comparisons of all VMs of a host with the fleet
_LISTING_S = 10.0  # real time: how long a listing is waited for
_COMPARISON_S = 3.0  # real time: how long a comparison of CPUs is waited for
_LOOK_S = 1.0  # real time, between looks at the reports
_UNKNOWN_S = 30.0  # real time, until a node that could not compare a CPU is asked again


class ReportedHosts:
    """Memory, CPUs and VMs of hosts, as their nodes report them to the active control node."""

    # A node that is silent is waited for: that says nothing about its host.

    def __init__(self, bus: Bus, subjects: Subjects, nodes: Callable[[], Iterable[JoinedNode]]) -> None:
        self._bus, self._subjects, self._nodes = bus, subjects, nodes
        self._fits: dict[tuple[str, str, int], dict[str, bool]] = {}  # `_process` of a node → whether it can run a CPU
        self._ask_again_at: dict[tuple[str, str, int], float] = {}  # of nodes that did not know an answer; loop time
        self._incompatible: dict[str, frozenset[str]] = {}  # VM's name → hosts

    def capacities(self) -> dict[str, HostCapacity]:
        """Return the last reported memory and CPUs of each host, by host name, in a new dict."""
        return {node.host: node.capacity for node in self._nodes() if node.capacity is not None}

    def incompatible_hosts(self) -> dict[str, frozenset[str]]:
        """Return, by VM name, the names of the hosts that cannot run the CPU that the VM needs."""
        return self._incompatible

    async def compare_cpus(self) -> None:
        """Let the nodes of hosts compare their CPUs with those that VMs on other hosts need; never ends."""
        while True:
            pause_s = _LOOK_S
            try:
                await self._compare_all()
            except Exception:
                log.exception("CPUs of hosts could not be compared; the next attempt is in %g s", _UNKNOWN_S)
                pause_s = _UNKNOWN_S
            await asyncio.sleep(pause_s)

    async def _compare_all(self) -> None:
        reported = [(node, node.capacity) for node in self._nodes() if node.capacity is not None]
        needed = {cpu for _, capacity in reported for cpu in capacity.cpus}
        processes = {_process(node) for node, _ in reported}
        self._fits = {process: fits for process, fits in self._fits.items() if process in processes}
        self._ask_again_at = {process: at for process, at in self._ask_again_at.items() if process in processes}
        for node, capacity in reported if needed else ():
            unknown = needed - self._fits.get(_process(node), {}).keys()
            if unknown and capacity.compares_cpus:
                await self._compare(node, tuple(sorted(unknown)))
        self._incompatible = self._find_incompatible(reported)

    def _find_incompatible(self, reported: list[tuple[JoinedNode, HostCapacity]]) -> dict[str, frozenset[str]]:
        unfit: dict[str, set[str]] = {}  # CPU → hosts that cannot run it
        for node, _ in reported:
            for cpu, fits in self._fits.get(_process(node), {}).items():
                if not fits:
                    unfit.setdefault(cpu, set()).add(node.host)
        found: dict[str, frozenset[str]] = {}
        for node, capacity in reported if unfit else ():
            for vm, index in capacity.vm_cpus.items():
                if not 0 <= index < len(capacity.cpus):
                    continue  # of a node with a defect: nothing is known about this VM
                hosts = unfit.get(capacity.cpus[index], set()) - {node.host}
                if hosts:
                    found[vm] = frozenset(hosts)
        return found

    async def _compare(self, node: JoinedNode, cpus: tuple[str, ...]) -> None:
        now, process = asyncio.get_running_loop().time(), _process(node)
        if node.is_silent(now) or now < self._ask_again_at.get(process, now):
            return
        subject, request = self._subjects.act(node.host), encode_bus_message(CompareCpus(cpus))
        try:
            payload = await request_repeatedly(self._bus, subject, request, within_s=_COMPARISON_S)
            comparison = decode_cpu_comparison(payload)
        except (NoAnswer, Rejected):
            return
        found = dict(zip(cpus, comparison.fits, strict=False))
        known = self._fits.setdefault(process, {})
        known |= {cpu: fits for cpu, fits in found.items() if fits is not None}
        if len(found) < len(cpus) or None in found.values():
            self._ask_again_at[process] = now + _UNKNOWN_S

    def observed_hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts whose nodes can list their VMs, in the order of the nodes."""
        return tuple(node.host for node in self._nodes() if node.changes >= 0)

    async def observe(self, host: str) -> HostObservation:
        """Ask the node of this host (its name in the fleet) for its VMs, and return its listing."""
        while True:
            listing = await self._ask(host) if self._can_list(host) else None
            if listing is None:
                await asyncio.sleep(_LOOK_S)
            elif listing.observation is None:
                raise Unavailable(listing.text)
            else:
                return replace(listing.observation, host=host)

    async def changed_hosts(self) -> AsyncGenerator[str, None]:
        """Yield the name of a host whenever its node has reported a change of its VMs. Never ends."""
        known: dict[str, int] = {}
        while True:
            for node in list(self._nodes()):
                if known.setdefault(node.host, node.changes) != node.changes:
                    known[node.host] = node.changes
                    yield node.host
            await asyncio.sleep(_LOOK_S)

    def _can_list(self, host: str) -> bool:
        now = asyncio.get_running_loop().time()
        return any(node.host == host and node.changes >= 0 and not node.is_silent(now) for node in self._nodes())

    async def _ask(self, host: str) -> VmListing | None:
        subject, request = self._subjects.act(host), encode_bus_message(ListVms())
        try:
            return decode_vm_listing(await request_repeatedly(self._bus, subject, request, within_s=_LISTING_S))
        except (NoAnswer, Rejected):
            return None


def _process(node: JoinedNode) -> tuple[str, str, int]:
    """Identifies one run of a host node; the CPU of the host stays the same during a run."""
    return node.host, node.info.id, node.info.boot
