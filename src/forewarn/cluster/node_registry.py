"""Which host nodes have joined, and when each was heard last. Without I/O.

A host has one node at a time. A node is known by the id of its data directory, which one process uses at a time, so a
node that is started again takes over at once, and a node elsewhere only when the first one is silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from forewarn.cluster.messages import (
    PROTOCOL,
    DenialReason,
    HostCapacity,
    JoinRequest,
    NodeDenied,
    NodeInfo,
    SeenReport,
    StreamPosition,
)
from forewarn.duration import duration_text
from forewarn.metadata.request_counters import RequestTotals, sum_totals

_COARSE_AFTER_S = 10.0  # longer silences are shown in steps of this, so that pages do not change all the time
OCCUPIED_S = 3.0  # a node that was heard within this time keeps its host
SILENT_S = 5.0  # a node that was not heard for longer is silent: its VMs may be unable to poll


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """A time in which the node of a host was not heard, by a monotonic clock."""

    since: float | None  # when it was last heard before; None: never
    until: float | None  # when it was heard again; None: it is silent


@dataclass(slots=True, kw_only=True)
class JoinedNode:
    """A host node that has joined. Times are of a monotonic clock."""

    info: NodeInfo  # which process it is
    host: str  # the name in the fleet
    joined_at: float  # when this process joined first
    heard_at: float  # when it was heard last
    seen_number: int = 0  # of its last report; 0: none
    position: StreamPosition | None = None  # what it showed in its last report
    vms: int = 0  # that it served then
    workers: int = 0  # that answered VMs there; 0: the node itself
    clock_ahead_s: float = 0.0  # how far its clock was ahead of the active node's
    has_left: bool = False  # it stopped, and said so
    capacity: HostCapacity | None = None  # of its host; None: not known
    changes: int = -1  # of VMs there, as its last report counts them; -1: it cannot list them
    silence: NodeSilence | None = None  # the latest that has ended, perhaps of an earlier node; None: there was none
    request_totals: RequestTotals = field(default_factory=RequestTotals)  # since it was started, as of its last report

    def is_silent(self, now: float) -> bool:
        """Return whether it has left, or was not heard for over 5 s (SILENT_S).

        `now` is the time of a monotonic clock.
        """
        return self.has_left or now - self.heard_at > SILENT_S

    def note_heard(self, now: float) -> None:
        """Record that it was heard at `now`, and in `silence` the silence that this ends, if it was silent.

        `now` is the time of a monotonic clock.
        """
        if self.is_silent(now):
            self.silence = NodeSilence(self.heard_at, now)
        self.heard_at = now


class NodeRegistry:
    """The nodes of all hosts, by the key of the host. `now` is the time of a monotonic clock.

    A host whose node has not joined counts as silent.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, JoinedNode] = {}
        self._totals_of_replaced = RequestTotals()

    def admit(self, host_key: str, host: str, join: JoinRequest, now: float) -> NodeDenied | None:
        """Record that this node serves the host from now on, and was heard; return why not, if it must not.

        None: it serves the host. Denied are a node of another protocol (VERSION), one that is older than the present
        one of the same id (REPLACED), and one of another id while the present one was heard within 3 s and has not left
        (OCCUPIED). `host_key` is the host's name in lower case, `now` the time of a monotonic clock.
        """
        info, current = join.node, self._nodes.get(host_key)
        if info.protocol != PROTOCOL:
            return NodeDenied(
                DenialReason.VERSION,
                f"the node of host {host!r} (forewarn {info.version}) speaks version {info.protocol} of the bus "
                f"protocol, and the service version {PROTOCOL}: install the same release on both",
            )
        if current is not None and current.info.id == info.id and info.boot < current.info.boot:
            return _replaced(host, current)
        if current is not None and current.info.id != info.id and not current.has_left:
            silent_s = now - current.heard_at
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
            current = self._nodes[host_key] = JoinedNode(info=info, host=host, joined_at=now, heard_at=now)
            current.silence = replace(silence, until=silence.until or now) if silence else None
        current.note_heard(now)
        current.has_left = False
        return None

    def check(self, host_key: str, node_id: str, now: float) -> NodeDenied | None:
        """Note that the node with this id was heard; return why it is not served, if it is not the one.

        None: it is the node of this host. Denied if none has joined (NOT_JOINED), or another one has (REPLACED).
        `host_key` is the host's name in lower case, `now` the time of a monotonic clock.
        """
        current = self._nodes.get(host_key)
        if current is None:
            return NodeDenied(DenialReason.NOT_JOINED, "this node has not joined since the service started: join again")
        if current.info.id != node_id:
            return _replaced(current.host, current)
        current.note_heard(now)
        return None

    def silence_of(self, host_key: str, now: float) -> NodeSilence | None:
        """Return the silence of this host's node, if it is silent, else its latest; None if it never was.

        A node that has not joined yet counts as silent. `host_key` is the host's name in lower case, `now` the time of
        a monotonic clock.
        """
        node = self._nodes.get(host_key)
        if node is None:
            return NodeSilence(None, None)  # it may have been silent when this control node took over
        return NodeSilence(node.heard_at, None) if node.is_silent(now) else node.silence

    def record_report(self, host_key: str, report: SeenReport) -> bool:
        """Record what a report says about its node; return False if the last report had the same number.

        It is recorded then, too; without a capacity or counts, those of an earlier report stay. `host_key` is the
        host's name in lower case. KeyError if no node of it has joined: call `check` before.
        """
        node = self._nodes[host_key]
        is_new = node.seen_number != report.number
        node.request_totals = report.report.counted or node.request_totals
        node.seen_number, node.position, node.vms = report.number, report.position, report.vms
        node.workers, node.clock_ahead_s, node.has_left = report.workers, report.clock_ahead_s, report.is_leaving
        node.capacity, node.changes = report.capacity or node.capacity, report.changes
        return is_new

    def find(self, host_key: str) -> JoinedNode | None:
        """Return the node of the host with this key (its name in lower case); None if none has joined."""
        return self._nodes.get(host_key)

    def nodes(self) -> list[JoinedNode]:
        """Return all nodes that have joined, also those that have left, in a new list.

        In the order in which their hosts first had one.
        """
        return list(self._nodes.values())

    def request_totals(self) -> RequestTotals:
        """Return the counts of requests of VMs at all nodes, each since it was started, as of its last report.

        Nodes that were replaced since this registry was made count too.
        """
        return sum_totals(self._totals_of_replaced, *(node.request_totals for node in self._nodes.values()))

    def wait_text(self, host_key: str, host: str, now: float) -> str:
        """Return what an act waits for whose node does not answer, for people.

        It says whether the node has not joined, was stopped, or for how long it is silent. `host_key` is the host's
        name in lower case, `host` its name for the text, `now` the time of a monotonic clock.
        """
        node = self._nodes.get(host_key)
        if node is None:
            return f"waits for the node of host {host}, which has not joined"
        if node.has_left:
            return f"waits for the node of host {host}, which was stopped"
        silent_s = now - node.heard_at
        shown_s = silent_s if silent_s < _COARSE_AFTER_S else silent_s - silent_s % _COARSE_AFTER_S
        return f"waits for the node of host {host}, silent for {duration_text(round(shown_s))}"

    def describe(self, now: float) -> list[dict[str, Any]]:
        """Return one dictionary per node for people and programs, sorted by host; nodes that left, too.

        Its keys: host, id, version, machine, pid, hypervisor, workers, vms, silent_s, term and position (None unless
        its last report had one), clock_ahead_s and left (it was stopped). `now` is the time of a monotonic clock.
        """
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
                "left": node.has_left,
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
