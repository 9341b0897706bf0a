"""How fast 300 host nodes show what the active node has committed, and how they catch up after NATS was away.

Three nodes are processes that VMs poll; the others have all their messages and their connection to NATS, in three
processes. Every change concerns ten hosts. All of them share the cores of this machine.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.figure import Figure, absent
from bench.node_tasks import ShownDocument
from bench.run_context import RunContext
from bench.sample_statistics import median, percentile
from forewarn.clock import SystemClock
from forewarn.cluster.bus import Subjects
from forewarn.cluster.control_side import ClusterControl
from forewarn.cluster.nats_bus import NatsBus, NatsSettings
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.fleet import FleetChange
from forewarn.core.decision import DecisionContext
from forewarn.core.fleet import Vm
from forewarn.core.scope import Scope
from forewarn.store import SqliteStore
from forewarn.store.interface import AppliedCommit
from forewarn.workers.publisher import GuestBackend, MetadataPublisher, PublisherConfig
from tests.support.nats_server import NatsServer, nats_program
from tests.support.node_process import POLL, NodeProcess
from tests.support.world import a_host, a_vm

_HOSTS = 300
_HOSTS_PER_CHANGE = 10
_CHANGES_PER_S = 350
_REAL_NODES = 3
_TASK_PROCESSES = 3
_AWAY_S = 5.0
_CATCH_UP_S = 10.0
_JOIN_S = 120.0
FIGURES = ("nodes-shown", "nodes-caught-up")


def measure(context: RunContext) -> tuple[Figure, ...]:
    if nats_program() is None:
        return tuple(absent(name, "NATS is not installed") for name in FIGURES)
    with asyncio.Runner() as runner:
        return runner.run(_measure(context))


async def _measure(context: RunContext) -> tuple[Figure, ...]:
    directory = context.directory / "host-nodes"
    directory.mkdir()
    hosts = max(30, context.scaled(_HOSTS))
    latencies: list[float] = []
    caught_up: list[float] = []
    with NatsServer(directory) as nats:
        async with _active_node(directory, nats, hosts) as active:
            nodes = _HostNodes(directory, nats, hosts)
            try:
                await asyncio.to_thread(nodes.start)
                await _joined(active, hosts)
                for _ in context.track("commit → shown by the last of ten hosts", range(context.runs)):
                    await active.change_scopes(_CHANGES_PER_S, context.run_s)
                    await asyncio.sleep(1.0)
                changes = dict(active.committed)
                outages = [
                    await _outage(nats, active, nodes)
                    for _ in context.track("NATS is away for 5 s", range(1 if context.is_quick else 3))
                ]
                shown = await asyncio.to_thread(nodes.stop)
            finally:
                nodes.kill()
    found = _ShownTimes(shown, nodes.real_hosts)
    for (scope_id, incarnation), at in changes.items():
        latencies.append((found.by_all(active.hosts_of[scope_id], scope_id, incarnation) - at) * 1e3)
    for began_at, last in outages:
        ends = [found.by_all(active.hosts_of[scope], scope, incarnation) for scope, incarnation in last]
        caught_up.append(max(ends) - began_at)
    failures = nodes.failed_polls
    return (
        Figure(
            name="nodes-shown",
            value=percentile(latencies, 0.99),
            note=f"p50 {median(latencies):.1f} ms, {len(latencies):,} changes, {hosts} nodes",
            samples={"p50_ms": (median(latencies),), "worst_ms": (max(latencies),)},
        ),
        Figure(
            name="nodes-caught-up",
            value=max(caught_up) if not failures else math.inf,
            note=f"{failures} of {nodes.polls:,} polls failed",
            samples={"s": tuple(caught_up)},
        ),
    )


class _ActiveNode:
    """The control plane with its streams, on a store that syncs every commit."""

    def __init__(self, control: ControlPlane, cluster: ClusterControl, hosts: int) -> None:
        self._control, self._cluster = control, cluster
        self.committed: dict[tuple[str, int], float] = {}  # (scope id, incarnation) → when it was durable
        self.hosts_of = {scope.id: sorted({vm.host for vm in scope.present_vms}) for scope in control.store.scopes()}
        assert len(self.hosts_of) == hosts
        control.store.subscribe(self._on_commit)

    def _on_commit(self, applied: AppliedCommit) -> None:
        now = time.monotonic()
        for scope in applied.commit.scopes:
            self.committed.setdefault((scope.id, scope.incarnation), now)

    def joined(self) -> int:
        return sum(node["silent_s"] < 5 for node in self._cluster.describe_nodes())

    async def change_scopes(self, per_s: float, seconds: float) -> None:
        """Change documents at this rate, one scope after the other."""
        scopes, began = list(self.hosts_of), time.monotonic()
        tasks = set()
        for number in range(int(per_s * seconds)):
            await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))
            tasks.add(asyncio.create_task(self.change(scopes[number % len(scopes)])))
        await asyncio.gather(*tasks)

    async def change(self, scope_id: str) -> None:
        """Commit a new incarnation of the document of a scope."""

        def decide(scope: Scope, context: DecisionContext) -> Scope:
            return replace(scope, incarnation=scope.incarnation + 1)

        await self._control.transactions.run(scope_id, decide)


@asynccontextmanager
async def _active_node(directory: Path, nats: NatsServer, hosts: int) -> AsyncIterator[_ActiveNode]:
    subjects = Subjects()
    bus = await NatsBus.connect(NatsSettings(url=nats.url), name="bench", inbox=subjects.inbox("bench"))
    store = SqliteStore.open(directory / "forewarn.db")
    cluster = ClusterControl(bus, subjects, session="bench")
    ids = iter(range(1_000_000_000))
    control = ControlPlane(
        store=store,
        clock=SystemClock(),
        hypervisor=cluster.hypervisor,
        inputs=ControlInputs(new_id=lambda: f"id-{next(ids)}", polls=store.last_polls),
    )
    change = FleetChange(
        hosts=tuple(a_host(f"h{number}") for number in range(hosts)), vms=tuple(_fleet(hosts)), text="bench"
    )
    await control.fleet.apply_change(change, who="bench")
    publisher = MetadataPublisher.open(PublisherConfig(), control)
    backend = GuestBackend(control)
    cluster.attach(control, publisher, backend, PublisherConfig())
    await publisher.start(backend, make_sink=cluster.make_streams)
    await cluster.start()
    try:
        yield _ActiveNode(control, cluster, hosts)
    finally:
        await cluster.close()
        await publisher.drain(0.0)
        await control.close()
        await store.close()
        await bus.close()


def _fleet(hosts: int) -> Iterator[Vm]:
    """As many scopes as hosts, each with a VM on ten of them."""
    for scope in range(hosts):
        for place in range(_HOSTS_PER_CHANGE):
            host = (scope + place * (hosts // _HOSTS_PER_CHANGE)) % hosts
            number = scope * _HOSTS_PER_CHANGE + place
            yield a_vm(
                f"vm-{number}",
                host=f"h{host}",
                availability_set=f"set-{scope}",
                update_domain=place,
                address=f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}",
            )


async def _joined(active: _ActiveNode, hosts: int) -> None:
    deadline = time.monotonic() + _JOIN_S
    while active.joined() < hosts:
        assert time.monotonic() < deadline, f"{active.joined()} of {hosts} nodes have joined"
        await asyncio.sleep(0.1)
    await asyncio.sleep(2.0)


async def _outage(
    nats: NatsServer, active: _ActiveNode, nodes: _HostNodes
) -> tuple[float, dict[tuple[str, int], float]]:
    """Kill NATS, change every document, and start it again; return when, and the changes."""
    before = set(active.committed)
    with nodes.polling():
        nats.kill()
        await active.change_scopes(_CHANGES_PER_S, len(active.hosts_of) / _CHANGES_PER_S)
        await asyncio.sleep(_AWAY_S)
        await asyncio.to_thread(nats.start)
        began_at = time.monotonic()
        await asyncio.sleep(_CATCH_UP_S)
    return began_at, {key: at for key, at in active.committed.items() if key not in before}


class _HostNodes:
    """The processes with host nodes, and a client for each of the real ones. `start` and `stop` block."""

    def __init__(self, directory: Path, nats: NatsServer, hosts: int) -> None:
        self.failed_polls = self.polls = 0
        real = [number * (hosts // _REAL_NODES) for number in range(_REAL_NODES)]
        self.real_hosts = {f"h{number}" for number in real}
        self._real = [NodeProcess(data=directory / host, host=host, bus=nats.url) for host in sorted(self.real_hosts)]
        self._vms = {vm.host: vm for vm in _fleet(hosts) if vm.host in self.real_hosts}  # one of each
        self._others = [f"h{number}" for number in range(hosts) if number not in real]
        self._url = nats.url
        self._files = [directory / f"shown-{number}.json" for number in range(_TASK_PROCESSES)]
        self._tasks: list[subprocess.Popen[bytes]] = []
        self._shown: list[ShownDocument] = []
        self._is_polling = threading.Event()
        self._is_stopping = threading.Event()
        self._watchers: list[threading.Thread] = []

    def start(self) -> None:
        """Start all processes, and return once the real nodes answer VMs."""
        for number, file in enumerate(self._files):
            hosts = ",".join(self._others[number::_TASK_PROCESSES])
            command = [sys.executable, "-m", "bench.node_tasks", self._url, str(file), hosts]
            self._tasks.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        for node in self._real:
            node.start()
            self._watchers.append(threading.Thread(target=self._watch, args=(node,)))
            self._watchers[-1].start()

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Count polls, and those that fail, at the real nodes meanwhile."""
        self._is_polling.set()
        try:
            yield
        finally:
            self._is_polling.clear()

    def _watch(self, node: NodeProcess) -> None:
        """Poll as one VM of the node's host, with long polls, and note when each document is shown."""
        vm, etag = self._vms[node.host], ""
        while not self._is_stopping.is_set():
            is_counted = self._is_polling.is_set()
            headers = {"Metadata": "true"}
            if etag and not is_counted:
                headers |= {"If-None-Match": etag, "Prefer": "wait=1"}
            try:
                answer = node.send(vm.address, "GET", POLL, headers=headers)
                is_good = answer.status in (200, 304)
            except OSError:
                is_good = False
            else:
                if answer.status == 200:
                    etag = {name.lower(): text for name, text in answer.headers.items()}.get("etag", "")
                    incarnation = answer.json["DocumentIncarnation"]
                    self._shown.append(ShownDocument(node.host, vm.scope_id, incarnation, time.monotonic()))
            if is_counted:
                self.polls += 1
                self.failed_polls += not is_good
                time.sleep(0.02)

    def stop(self) -> list[ShownDocument]:
        """Stop polling and the processes with many nodes; returns what was shown when."""
        self._is_stopping.set()
        for watcher in self._watchers:
            watcher.join()
        for task, file in zip(self._tasks, self._files, strict=True):
            assert task.stdin is not None
            task.stdin.close()
            task.wait(timeout=60)
            self._shown += msgspec.json.decode(file.read_bytes(), type=list[ShownDocument])
        return self._shown

    def kill(self) -> None:
        """End everything that still runs."""
        self._is_stopping.set()
        for task in self._tasks:
            task.kill()
            task.wait()
        for node in self._real:
            node.kill()


class _ShownTimes:
    """When each host showed a document of a scope with at least a given incarnation."""

    def __init__(self, shown: Sequence[ShownDocument], real_hosts: set[str]) -> None:
        self._real_hosts = real_hosts
        self._times: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        for each in sorted(shown, key=lambda document: document.at):
            times = self._times[each.host, each.scope_id]
            if not times or each.incarnation > times[-1][0]:
                times.append((each.incarnation, each.at))

    def by_all(self, hosts: Sequence[str], scope_id: str, incarnation: int) -> float:
        """Return when the last of these hosts showed it; infinite if one never did.

        A real host counts for the scope that is polled there only.
        """
        last = -math.inf
        for host in hosts:
            times = self._times.get((host, scope_id))
            if times is None:
                if host not in self._real_hosts:
                    return math.inf
                continue
            at = bisect_left(times, (incarnation, -math.inf))
            last = max(last, times[at][1] if at < len(times) else math.inf)
        return last
