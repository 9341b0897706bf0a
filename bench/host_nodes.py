"""How fast 300 host nodes show what the active node has committed, and how they catch up after NATS was away.

Three nodes are processes that VMs poll; the others have all their messages and their connection to NATS, in three
processes. Every change concerns ten hosts. All of them share the cores of this machine. In turn with the changes,
plain messages of the same size and number go over the same connections: the difference is what forewarn adds to NATS.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.figure import Figure, absent
from bench.node_tasks import PLAIN_DIGITS, ShownDocument, TaskResult, collect_rarely, plain_subject
from bench.node_watchers import WatchedNode, WatchResult
from bench.process import cpu_ns
from bench.run_context import RunContext
from bench.sample_statistics import median, percentile
from forewarn.base.clock import SystemClock
from forewarn.cluster.bus import Subjects
from forewarn.cluster.control_side import ClusterControl
from forewarn.cluster.nats_bus import NatsBus, NatsSettings
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.fleet import FleetChange
from forewarn.core.decision import DecisionContext
from forewarn.core.fleet import Vm
from forewarn.core.scope import Scope
from forewarn.metadata.limits import ServingSettings
from forewarn.metadata.workers.publisher import GuestBackend, MetadataPublisher, PublisherConfig
from forewarn.store import SqliteStore
from forewarn.store.interface import AppliedCommit
from tests.support.nats_server import NatsServer, nats_program
from tests.support.node_process import NodeProcess
from tests.support.world import a_host, a_vm

HOSTS = 300
HOSTS_PER_CHANGE = 10
CHANGES_PER_S = 350
REAL_NODES = 3
_TASK_PROCESSES = 3
_AWAY_S = 5.0
_CATCH_UP_S = 10.0
_JOIN_S = 300.0
_PLAIN_BYTES = 1000  # about what an update of one scope with one VM takes
FIGURES = ("nodes-shown", "nodes-shown-overhead", "nodes-caught-up")


def measure(context: RunContext) -> tuple[Figure, ...]:
    if nats_program() is None:
        return tuple(absent(name, "NATS is not installed") for name in FIGURES)
    with asyncio.Runner() as runner:
        return runner.run(_measure(context))


@dataclass(slots=True)
class _Samples:
    """What the runs have measured; latencies are in milliseconds."""

    plain: list[float] = field(default_factory=list)  # publish → the last of ten subscribers
    shown: list[float] = field(default_factory=list)  # commit → shown by the last of ten nodes
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # per change, by process

    def shown_figure(self, hosts: int) -> Figure:
        cpu = ", ".join(f"{name} {median(each):,.0f}" for name, each in self.cpu_us.items())
        return Figure(
            name="nodes-shown",
            value=percentile(self.shown, 0.99),
            note=f"p50 {median(self.shown):.1f} ms, {len(self.shown):,} changes, {hosts} nodes; us of CPU each: {cpu}",
            samples={
                "p50_ms": (median(self.shown),),
                "p95_ms": (percentile(self.shown, 0.95),),
                "worst_ms": (max(self.shown),),
                **{f"{name}_cpu_us": tuple(each) for name, each in self.cpu_us.items()},
            },
        )

    def overhead_figure(self) -> Figure:
        """How much slower than plain messages; the runs alternate, so the load of the machine hardly counts."""
        shown, plain = percentile(self.shown, 0.99), percentile(self.plain, 0.99)
        return Figure(
            name="nodes-shown-overhead",
            value=shown / plain,
            note=f"p99 of plain messages {plain:.1f} ms, p50 {median(self.plain):.1f} ms",
            samples={"plain_p50_ms": (median(self.plain),), "plain_p99_ms": (plain,)},
        )


async def _measure(context: RunContext) -> tuple[Figure, ...]:
    directory = context.directory / "host-nodes"
    directory.mkdir()
    hosts = max(30, context.scaled(HOSTS))
    samples, caught_up = _Samples(), []
    plain_sent: dict[int, float] = {}
    with NatsServer(directory) as nats:
        async with _active_node(directory, nats, hosts) as active:
            nodes = _HostNodes(directory, nats, hosts)
            try:
                await asyncio.to_thread(nodes.start)
                await _joined(active, hosts)
                await asyncio.to_thread(nodes.watch)
                collect_rarely()
                for _ in context.track("commit → shown by the last of ten hosts", range(context.runs)):
                    await active.send_plain(CHANGES_PER_S, context.run_s, nodes.task_hosts, plain_sent)
                    await asyncio.sleep(1.0)
                    before = nodes.cpu_ns(nats)
                    await active.change_scopes(CHANGES_PER_S, context.run_s)
                    await asyncio.sleep(1.0)
                    for name, after in nodes.cpu_ns(nats).items():
                        changes = int(CHANGES_PER_S * context.run_s)
                        samples.cpu_us[name].append((after - before[name]) / 1e3 / changes)
                changes_made = dict(active.committed)
                outages = [
                    await _outage(nats, active, nodes)
                    for _ in context.track("NATS is away for 5 s", range(1 if context.is_quick else 3))
                ]
                plain_got = await asyncio.to_thread(nodes.stop)
            finally:
                nodes.kill()
    found = _ShownTimes(nodes.shown, nodes.real_hosts)
    for (scope_id, incarnation), at in changes_made.items():
        samples.shown.append((found.by_all(active.hosts_of[scope_id], scope_id, incarnation) - at) * 1e3)
    samples.plain += [(plain_got.get(number, math.inf) - at) * 1e3 for number, at in plain_sent.items()]
    for began_at, last in outages:
        ends = [found.by_all(active.hosts_of[scope], scope, incarnation) for scope, incarnation in last]
        caught_up.append(max(ends) - began_at)
    return (
        samples.shown_figure(hosts),
        samples.overhead_figure(),
        Figure(
            name="nodes-caught-up",
            value=max(caught_up) if not nodes.watched.failed_polls else math.inf,
            note=f"{nodes.watched.failed_polls} of {nodes.watched.polls:,} polls failed",
            samples={"s": tuple(caught_up)},
        ),
    )


class _ActiveNode:
    """The control plane with its streams, on a store that syncs every commit."""

    def __init__(self, control: ControlPlane, cluster: ClusterControl, bus: NatsBus, hosts: int) -> None:
        self._control, self._cluster, self._bus = control, cluster, bus
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

    async def send_plain(self, per_s: float, seconds: float, hosts: Sequence[str], sent: dict[int, float]) -> None:
        """Send plain messages at this rate, each to ten of these hosts; `sent` gets the time of each number."""
        began = time.monotonic()
        for number in range(int(per_s * seconds)):
            await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))
            payload = f"{len(sent):0{PLAIN_DIGITS}}".ljust(_PLAIN_BYTES).encode()
            sent[len(sent)] = time.monotonic()
            for place in range(HOSTS_PER_CHANGE):
                host = hosts[(number + place * (len(hosts) // HOSTS_PER_CHANGE)) % len(hosts)]
                self._bus.publish(plain_subject(host), payload)

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
    cluster.attach(control, publisher, backend, ServingSettings())
    await publisher.start(backend, make_sink=cluster.make_streams)
    await cluster.start()
    try:
        yield _ActiveNode(control, cluster, bus, hosts)
    finally:
        await cluster.close()
        await publisher.drain(0.0)
        await control.close()
        await store.close()
        await bus.close()


def _fleet(hosts: int) -> Iterator[Vm]:
    """As many scopes as hosts, each with a VM on ten of them."""
    for scope in range(hosts):
        for place in range(HOSTS_PER_CHANGE):
            host = (scope + place * (hosts // HOSTS_PER_CHANGE)) % hosts
            number = scope * HOSTS_PER_CHANGE + place
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
        await active.change_scopes(CHANGES_PER_S, len(active.hosts_of) / CHANGES_PER_S)
        await asyncio.sleep(_AWAY_S)
        await asyncio.to_thread(nats.start)
        began_at = time.monotonic()
        await asyncio.sleep(_CATCH_UP_S)
    return began_at, {key: at for key, at in active.committed.items() if key not in before}


class _HostNodes:
    """The processes with host nodes, and one that polls the real ones. `start`, `watch` and `stop` block."""

    def __init__(self, directory: Path, nats: NatsServer, hosts: int) -> None:
        real = [number * (hosts // REAL_NODES) for number in range(REAL_NODES)]
        self.real_hosts = {f"h{number}" for number in real}
        self.task_hosts = [f"h{number}" for number in range(hosts) if number not in real]
        self.shown: list[ShownDocument] = []
        self.watched = WatchResult([])
        self._real = [NodeProcess(data=directory / host, host=host, bus=nats.url) for host in sorted(self.real_hosts)]
        self._vms = {vm.host: vm for vm in _fleet(hosts) if vm.host in self.real_hosts}  # one of each
        self._url = nats.url
        self._files = [directory / f"shown-{number}.json" for number in range(_TASK_PROCESSES)]
        self._tasks: list[subprocess.Popen[bytes]] = []
        self._watched_file = directory / "watched.json"
        self._watcher: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start all processes, and return once the real nodes answer VMs."""
        for number, file in enumerate(self._files):
            hosts = ",".join(self.task_hosts[number::_TASK_PROCESSES])
            self._tasks.append(_python("bench.node_tasks", self._url, str(file), hosts))
        for node in self._real:
            node.start()

    def watch(self) -> None:
        """Begin to poll the real nodes, after all have joined."""
        for task in self._tasks:
            _send_line(task, "joined")
        watched = [
            WatchedNode(node.host, node.port, self._vms[node.host].address, self._vms[node.host].scope_id)
            for node in self._real
        ]
        nodes = msgspec.json.encode(watched).decode()
        self._watcher = _python("bench.node_watchers", str(self._watched_file), nodes)

    def cpu_ns(self, nats: NatsServer) -> dict[str, int]:
        """The CPU time so far of the active node, of NATS, of a task process on average, and of a real node."""
        return {
            "active": cpu_ns(os.getpid()),
            "nats": cpu_ns(nats.pid),
            "tasks": sum(cpu_ns(task.pid) for task in self._tasks),
            "real": sum(cpu_ns(node.pid) for node in self._real),
        }

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Count polls, and those that fail, at the real nodes meanwhile."""
        assert self._watcher is not None
        _send_line(self._watcher, "count")
        try:
            yield
        finally:
            _send_line(self._watcher, "wait")

    def stop(self) -> dict[int, float]:
        """Stop polling and the processes with many nodes; sets `shown` and `watched`.

        Returns when the last receiver got each plain message.
        """
        assert self._watcher is not None
        _end_input(self._watcher)
        self.watched = msgspec.json.decode(self._watched_file.read_bytes(), type=WatchResult)
        self.shown += self.watched.shown
        plain: dict[int, float] = {}
        for task, file in zip(self._tasks, self._files, strict=True):
            _end_input(task)
            result = msgspec.json.decode(file.read_bytes(), type=TaskResult)
            self.shown += result.shown
            for number, at in result.plain.items():
                plain[number] = max(at, plain.get(number, at))
        return plain

    def kill(self) -> None:
        """End everything that still runs."""
        for child in (*self._tasks, *([self._watcher] if self._watcher else [])):
            child.kill()
            child.wait()
        for node in self._real:
            node.kill()


def _python(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE)


def _send_line(child: subprocess.Popen[bytes], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{line}\n".encode())
    child.stdin.flush()


def _end_input(child: subprocess.Popen[bytes]) -> None:
    """Let a process end in order, and wait for it."""
    assert child.stdin is not None
    child.stdin.close()
    child.wait(timeout=120)


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
