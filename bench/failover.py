"""How long operators wait when control passes from one control node to the other, in a fleet of 1,000 VMs.

The active node is killed, or resigns, and an approval is sent to the other one until it is acknowledged. Both nodes,
and PostgreSQL with its synchronous standby, run on this machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from bench.figure import Figure, absent
from bench.run_context import RunContext
from bench.sample_statistics import median
from tests.cluster.control_node_processes import ProcessCluster, until
from tests.support.postgres_pair import ServerPair
from tests.support.postgres_server import is_installed
from tests.support.service_process import ServiceProcess

FIGURES = ("failover-time", "failover-worst", "switch-time")
_VMS = 1000
_FLEET = f'[[hosts]]\nname = "h-{{n}}"\ncount = 20\n\n[[vms]]\nname = "vm-{{n}}"\ncount = {_VMS}\n'


def measure(context: RunContext) -> tuple[Figure, ...]:
    if not is_installed():
        return tuple(absent(name, "PostgreSQL is not installed") for name in FIGURES)
    directory = context.directory / "failover"
    directory.mkdir()
    servers = ServerPair(fsync=True)
    try:
        with ProcessCluster(directory, servers.both_url, fleet=_FLEET) as cluster:
            for name in ("c1", "c2"):
                cluster.start(name)
            events = _scheduled_events(cluster.nodes["c1"], 2 * context.runs)
            killed: list[float] = []
            for _ in context.track("the active control node is killed", range(context.runs)):
                killed.append(_kill(cluster, next(events)))
            switched: list[float] = []
            for _ in context.track("the active control node resigns", range(context.runs)):
                switched.append(_switch(cluster, next(events)))
    finally:
        servers.remove()
    note = f"{min(killed):.1f} to {max(killed):.1f} s"
    return (
        Figure(name="failover-time", value=median(killed), note=note, samples={"s": tuple(killed)}),
        Figure(name="failover-worst", value=max(killed)),
        Figure(
            name="switch-time",
            value=statistics.median(switched),
            note=f"{min(switched):.2f} to {max(switched):.2f} s",
            samples={"s": tuple(switched)},
        ),
    )


def _scheduled_events(node: ServiceProcess, count: int) -> Iterator[str]:
    """Schedule restarts of this many VMs; returns the ids of their events."""
    for number in range(count):
        answer = node.api("POST", "/requests", {"operation": "restart", "vms": [f"vm-{number}"]})
        assert answer.status == 202, answer.body
    events = node.api("GET", "/events").json["events"]
    assert len(events) == count, len(events)
    return iter([str(event["id"]) for event in events])


def _kill(cluster: ProcessCluster, event_id: str) -> float:
    active, other = _settled(cluster)
    begin = time.perf_counter()
    active.kill()
    _approve(other, event_id)
    took_s = time.perf_counter() - begin
    active.start()
    return took_s


def _switch(cluster: ProcessCluster, event_id: str) -> float:
    active, other = _settled(cluster)
    begin, term = until(lambda: _resign(active), "the active node knows that the other one follows")
    until(lambda: other.api("GET", "/nodes").json["term"] > term, "the other one is active")
    _approve(other, event_id)
    return time.perf_counter() - float(begin)


def _resign(active: ServiceProcess) -> tuple[float, int] | None:
    """Let the active node resign; returns when it was asked, and its term; None if it refused."""
    begin, answer = time.perf_counter(), active.api("POST", "/nodes/resign")
    return (begin, answer.json["term"]) if answer.status == 200 else None


def _settled(cluster: ProcessCluster) -> tuple[ServiceProcess, ServiceProcess]:
    """Wait until one node is active and the other one follows; returns both."""

    def roles() -> dict[str, str]:
        nodes = cluster.nodes["c1"].api("GET", "/nodes").json["nodes"]
        return {node["role"]: node["name"] for node in nodes if not node["problem"]}

    found = until(lambda: roles() if set(roles()) == {"active", "standby"} else None, "both nodes are ready")
    return cluster.nodes[found["active"]], cluster.nodes[found["standby"]]


def _approve(node: ServiceProcess, event_id: str) -> None:
    until(lambda: node.api("POST", f"/events/{event_id}/approve", {}).status == 200, "the approval is acknowledged")
