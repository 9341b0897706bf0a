"""Which host nodes have joined, and when each was heard last. Without I/O.

A host has one node at a time. A node is known by the id of its data directory, which one process uses at a time, so a
node that is started again takes over at once, and a node elsewhere only when the first one is silent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.cluster.bus import Bus, NoAnswer, Subjects, request_repeatedly
from forewarn.cluster.messages import (
    PROTOCOL,
    CompareCpus,
    DenialReason,
    HostCapacity,
    JoinRequest,
    ListVms,
    NodeDenied,
    NodeInfo,
    SeenReport,
    StreamPosition,
    VmListing,
    decode_cpu_comparison,
    decode_vm_listing,
    encode_bus_message,
)
from forewarn.core.unannounced import HostObservation
from forewarn.errors import Rejected, Unavailable
from forewarn.metadata.request_counters import RequestTotals, sum_totals

log = logging.getLogger(__name__)

_COARSE_AFTER_S = 10.0  # longer silences are shown in steps of this, so that pages do not change all the time
OCCUPIED_S = 3.0  # a node that was heard within this time keeps its host
SILENT_S = 5.0  # a node that was not heard for longer is silent: its VMs may be unable to poll


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """A time in which the active control node did not hear the node of a host, by a monotonic clock."""

    since: float | None  # when it was last heard before, in seconds; None: never
    until: float | None  # when it was heard again; None: it is still silent


@dataclass(slots=True, kw_only=True)
class JoinedNode:
    """A host node that has joined the active control node, with its last report. Times are monotonic."""

    info: NodeInfo  # which process it is
    host: str  # its name in the fleet
    heard_at: float  # when it was heard last
    seen_number: int = 0  # of its last report; 0: none
    position: StreamPosition | None = None  # what it showed in its last report; None: no state, or no report
    vms: int = 0  # how many it knew then
    workers: int = 0  # how many processes answered VMs there; 0: the node itself
    clock_ahead_s: float = 0.0  # how far its clock was ahead of the active node's
    has_left: bool = False  # it stopped, and said so
    capacity: HostCapacity | None = None  # of its host; None: not known
    changes: int = -1  # of VMs there, as its last report counts them; -1: it cannot list them
    silence: NodeSilence | None = None  # the latest that has ended, perhaps of an earlier node; None: there was none
    request_totals: RequestTotals = field(default_factory=RequestTotals)  # since it was started, as of its last report

    def is_silent(self, now: float) -> bool:
        """Return whether the node has left, or was not heard for over 5 s (SILENT_S)."""
        return self.has_left or now - self.heard_at > SILENT_S

    def note_heard(self, now: float) -> None:
        """Record that the node was heard at `now`; if it was silent until then, record that in `silence`."""
        if self.is_silent(now):
            self.silence = NodeSilence(self.heard_at, now)
        self.heard_at = now


class NodeRegistry:
    """The host nodes that have joined this control node, one for each host, with their last reports.

    Hosts are named by key (their name in lower case). A host whose node has not joined counts as silent.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, JoinedNode] = {}
        self._totals_of_replaced = RequestTotals()

    def admit(self, host_key: str, host: str, join: JoinRequest, now: float) -> NodeDenied | None:
        """Let this node serve the host from now on and return None, or return why it must not.

        A later process of the same node (its id) takes over at once; another node only if the present one has left or
        was not heard for 3 s.
        """
        info, current = join.node, self._nodes.get(host_key)
        if info.protocol != PROTOCOL:
            return NodeDenied(
                DenialReason.VERSION,
                f"the node of host {host!r} (forewarn {info.version}) speaks version {info.protocol} of the bus "
                f"protocol, and the service version {PROTOCOL}: install the same release on both",
            )
        # A late message of the process before: the newer one keeps the host.
        if current is not None and current.info.id == info.id and info.boot < current.info.boot:
            return _replaced(host, current)
        if current is not None and current.info.id != info.id and not current.has_left:
            silent_s = now - current.heard_at
            # Two nodes would both answer the VMs: the first must have left, or be silent.
            if silent_s < OCCUPIED_S:
                return NodeDenied(
                    DenialReason.OCCUPIED,
                    f"host {host!r} already has a node ({_process(current)}): stop it first, or give this node "
                    "another host",
                )
        if current is None or (current.info.id, current.info.boot) != (info.id, info.boot):
            silence = self.silence_of(host_key, now)
            if current is not None:
                gone = current.request_totals.without_gauges()
                self._totals_of_replaced = sum_totals(self._totals_of_replaced, gone)
            current = self._nodes[host_key] = JoinedNode(info=info, host=host, heard_at=now)
            # The silence before the restart counts: VMs could not poll while no process ran.
            current.silence = dataclasses.replace(silence, until=silence.until or now) if silence else None
        current.note_heard(now)
        current.has_left = False
        return None

    def check(self, host_key: str, node_id: str, now: float) -> NodeDenied | None:
        """Record that this host's node was heard and return None, or return why this is not its node."""
        current = self._nodes.get(host_key)
        if current is None:
            return NodeDenied(DenialReason.NOT_JOINED, "this node has not joined since the service started: join again")
        if current.info.id != node_id:
            return _replaced(current.host, current)
        current.note_heard(now)
        return None

    def silence_of(self, host_key: str, now: float) -> NodeSilence | None:
        """Return the present silence of this host's node, or its latest if it is heard; None if it had none."""
        node = self._nodes.get(host_key)
        if node is None:
            return NodeSilence(None, None)  # it may have been silent when this control node took over
        return NodeSilence(node.heard_at, None) if node.is_silent(now) else node.silence

    def record_report(self, host_key: str, report: SeenReport) -> bool:
        """Record what a report says about the node of this host; return whether the report is new."""
        node = self._nodes[host_key]
        is_new = node.seen_number != report.number
        node.request_totals = report.report.counted or node.request_totals
        node.seen_number, node.position, node.vms = report.number, report.position, report.vms
        node.workers, node.clock_ahead_s, node.has_left = report.workers, report.clock_ahead_s, report.is_leaving
        # A report without figures means that they have not changed.
        node.capacity, node.changes = report.capacity or node.capacity, report.changes
        return is_new

    def find(self, host_key: str) -> JoinedNode | None:
        """Return the node of this host, even if it is silent or has left; None if none has joined."""
        return self._nodes.get(host_key)

    def nodes(self) -> list[JoinedNode]:
        """Return the node of each host that has one, even if it has left, in a new list."""
        return list(self._nodes.values())

    def request_totals(self) -> RequestTotals:
        """Return the sum of the counts of VMs' requests at all nodes, each since it was started."""
        return sum_totals(self._totals_of_replaced, *(node.request_totals for node in self._nodes.values()))

    def wait_text(self, host_key: str, host: str, now: float) -> str:
        """Return a text for people that says that something waits for the node of this host, and why."""
        node = self._nodes.get(host_key)
        if node is None:
            return f"waits for the node of host {host}, which has not joined"
        if node.has_left:
            return f"waits for the node of host {host}, which was stopped"
        silent_s = now - node.heard_at
        shown_s = silent_s if silent_s < _COARSE_AFTER_S else silent_s - silent_s % _COARSE_AFTER_S
        return f"waits for the node of host {host}, silent for {duration_text(round(shown_s))}"

    def describe(self, now: float) -> list[dict[str, Any]]:
        """Return one dictionary per node, even if it has left, for people and programs, sorted by host key."""
        return [
            {
                "host": node.host,
                "id": node.info.id,
                "version": node.info.version,
                "machine": node.info.machine,
                "pid": node.info.pid,
                "hypervisor": node.info.hypervisor,
                "workers": node.workers,
                "vms": node.vms,
                "silent_s": round(now - node.heard_at, 3),
                "term": node.position.source.term if node.position else None,
                "position": node.position.number if node.position else None,
                "clock_ahead_s": round(node.clock_ahead_s, 3),
                "stopped": node.has_left,
            }
            for _, node in sorted(self._nodes.items())
        ]


def _replaced(host: str, current: JoinedNode) -> NodeDenied:
    return NodeDenied(
        DenialReason.REPLACED, f"host {host!r} has another node now ({_process(current)}): this one is no longer needed"
    )


def _process(node: JoinedNode) -> str:
    where = f" on {node.info.machine}" if node.info.machine else ""
    return f"process {node.info.pid}{where}"


# What host nodes report about their hosts, for the control plane.
#
# Free memory comes with the nodes' reports, and so do the CPUs that VMs need, which the nodes of the other hosts
# compare with theirs. Their VMs are asked for when they are needed, because an old listing would look like a change by
# somebody else after an act.

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
        self._fits: dict[
            tuple[str, str, int], dict[str, bool]
        ] = {}  # `_process_id` of a node → whether it can run a CPU
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
        processes = {_process_id(node) for node, _ in reported}
        self._fits = {process: fits for process, fits in self._fits.items() if process in processes}
        self._ask_again_at = {process: at for process, at in self._ask_again_at.items() if process in processes}
        for node, capacity in reported if needed else ():
            unknown = needed - self._fits.get(_process_id(node), {}).keys()
            if unknown and capacity.compares_cpus:
                await self._compare(node, tuple(sorted(unknown)))
        self._incompatible = self._find_incompatible(reported)

    def _find_incompatible(self, reported: list[tuple[JoinedNode, HostCapacity]]) -> dict[str, frozenset[str]]:
        unfit: dict[str, set[str]] = {}  # CPU → hosts that cannot run it
        for node, _ in reported:
            for cpu, fits in self._fits.get(_process_id(node), {}).items():
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
        now, process = asyncio.get_running_loop().time(), _process_id(node)
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


def _process_id(node: JoinedNode) -> tuple[str, str, int]:
    """Identifies one run of a host node; the CPU of the host stays the same during a run."""
    return node.host, node.info.id, node.info.boot
