"""A control plane and host nodes, connected by a bus in memory, on one event loop in virtual time.

async def scenario(world: ClusterWorld) -> None:
    node = await world.start_node("h1")
    assert await world.poll(node, "web-0") == …

run_cluster(scenario, vms=[…], hosts=[…])
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import RealTime
from forewarn.cluster.bus import Subjects
from forewarn.cluster.control_side import ClusterControl
from forewarn.cluster.host_node import HostNode, HostNodeConfig
from forewarn.cluster.messages import NodeInfo, RecordPosition
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.fleet import FleetChange
from forewarn.core.fleet import Host, Vm
from forewarn.core.request import RequestedOperation
from forewarn.core.scope import Scope
from forewarn.machines.interface import Hypervisor
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedBehaviour, SimulatedHypervisor
from forewarn.metadata import MetadataServer
from forewarn.metadata.identity import Caller
from forewarn.metadata.limits import ServingSettings
from forewarn.metadata.listeners import ListenerSpec
from forewarn.metadata.workers.frontend import FrontendConfig
from forewarn.metadata.workers.publisher import GuestBackend, MetadataPublisher, PublisherConfig
from forewarn.store.memory import MemoryStore
from tests.simulation.virtual_loop import START_TIME, VirtualTimeLoop
from tests.support.in_memory_transport import InMemoryTransport
from tests.support.memory_bus import MemoryBroker, MemoryBus
from tests.support.world import LAB_POLICY, NOON, sequential_ids

POLL = "/metadata/scheduledevents?api-version=2020-07-01"


@dataclass(frozen=True, slots=True)
class VmAnswer:
    """What a VM got from its node."""

    status: int
    body: Any = None  # decoded JSON

    @property
    def incarnation(self) -> int:
        return int(self.body["DocumentIncarnation"])

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self.body["Events"])


class ControlNode:
    """One process of the active control node, on a store that outlives it."""

    def __init__(self, world: ClusterWorld, number: int) -> None:
        self.bus = world.broker.connect(f"control-{number}")
        self.store = world.store
        self.cluster = ClusterControl(self.bus, Subjects(), session=f"session-{number}", term=world.term)
        self.control = ControlPlane(
            store=world.store,
            clock=world.clock,
            hypervisor=self.cluster.hypervisor,
            inputs=ControlInputs(
                new_id=lambda: next(world.ids),
                polls=world.store.last_polls,
                real_time=lambda: RealTime(world.loop.time()),
            ),
            policy=LAB_POLICY,
        )
        self.publisher = MetadataPublisher.open(PublisherConfig(), self.control)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        backend = GuestBackend(self.control)
        self.cluster.attach(self.control, self.publisher, backend, ServingSettings())
        await self.publisher.start(backend, make_sink=self.cluster.make_streams)
        self._tasks.append(asyncio.create_task(self.control.reconciler.run()))
        await self.cluster.start()

    async def kill(self) -> None:
        """End the process at once: nothing that it still does reaches the bus or the store."""
        await self.bus.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cluster.close()
        await self.control.close()
        await self.publisher.drain(0.0)


class MemoryTerms:
    """The terms that a host remembers; they outlive its node."""

    def __init__(self) -> None:
        self.terms: dict[str, int] = {}

    def term_of(self, store_tag: str) -> int:
        return self.terms.get(store_tag, 0)

    def store_term(self, store_tag: str, term: int) -> None:
        self.terms[store_tag] = term


@dataclass(slots=True)
class ChangingTerm:
    """A term that tests change."""

    number: int = 1
    is_held: bool = True
    record: RecordPosition = field(default_factory=RecordPosition)
    losses: list[tuple[str, int]] = field(default_factory=list)  # commits that somebody has shown and the record lacks

    marks: dict[int, str] = field(default_factory=dict)  # hashes of earlier commits

    async def has_group(self, by: str, shown: RecordPosition) -> bool:
        marks = {**self.marks, self.record.number: self.record.hash}
        is_lost = shown.number > self.record.number or marks.get(shown.number, shown.hash) != shown.hash
        self.losses += [(by, shown.number)] if is_lost else []
        return not is_lost


class RunningNode:
    """One process of a host node."""

    def __init__(
        self, world: ClusterWorld, host: str, info: NodeInfo, stale_s: float, listeners: tuple[ListenerSpec, ...]
    ) -> None:
        self.bus: MemoryBus = world.broker.connect(info.id)
        frontend = FrontendConfig(listeners=listeners)
        config = HostNodeConfig(host=host, info=info, frontend=frontend, stale_s=stale_s)
        self.serving = asyncio.Event()
        self.hypervisor = world.make_hypervisor(host)
        self.node = HostNode(
            self.bus,
            config,
            on_serving=self.serving.set,
            hypervisor=self.hypervisor,
            terms=world.terms.setdefault(host, MemoryTerms()),
            clock=world.clock,
        )
        self.task = asyncio.create_task(self.node.run())

    async def stop(self) -> None:
        """Stop it in order."""
        self.node.stop()
        await self.task
        await self.bus.close()

    async def kill(self) -> None:
        """End it at once: nothing that it still does reaches the bus."""
        await self.bus.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def server(self) -> MetadataServer:
        assert self.node.frontend is not None
        server = self.node.frontend.server
        assert isinstance(server, MetadataServer)
        return server


class ClusterWorld:
    """The cluster: a broker, a store, the current control node, and host nodes."""

    def __init__(self, chance: Random) -> None:
        self.loop = asyncio.get_running_loop()
        self.broker = MemoryBroker(chance)
        self.clock = LabClock(
            ClockSetting(lab_at=NOON, real_at=RealTime(START_TIME)), real=lambda: RealTime(self.loop.time())
        )
        self.store = MemoryStore()
        self.ids = sequential_ids()
        self.term = ChangingTerm()
        self.ledgers: dict[str, EffectLedger] = {}  # by host; they outlive its node
        self.terms: dict[str, MemoryTerms] = {}
        self.behaviour = SimulatedBehaviour.from_rules([{"then": "take", "seconds": 2.0}])
        self.make_hypervisor: Callable[[str], Hypervisor] = self._simulated
        self.nodes: list[RunningNode] = []
        self._boots: dict[str, int] = {}
        self._controls = 0
        self.active: ControlNode

    async def start_control(self) -> None:
        """Start a new process of the active node; kill the old one first."""
        self._controls += 1
        if self._controls > 1:
            self.store = self.store.copy()
        self.active = ControlNode(self, self._controls)
        await self.active.start()

    def _simulated(self, host: str) -> SimulatedHypervisor:
        ledger = self.ledgers.get(host) or self.ledgers.setdefault(host, EffectLedger(None))
        return SimulatedHypervisor(ledger, self.behaviour)

    async def start_node(
        self,
        host: str,
        *,
        id: str = "",
        protocol: int = 1,
        stale_s: float = 600.0,
        wait: bool = True,
        listeners: tuple[ListenerSpec, ...] = (),
    ) -> RunningNode:
        """Start a node of this host and, if asked, wait until it answers VMs."""
        id = id or f"node-{host}"
        self._boots[id] = self._boots.get(id, 0) + 1
        info = NodeInfo(id, self._boots[id], "0.2.0", protocol, f"machine-{host}", 4711)
        node = RunningNode(self, host, info, stale_s, listeners)
        self.nodes.append(node)
        if wait:
            async with asyncio.timeout(10):
                await node.serving.wait()
        return node

    async def poll(self, node: RunningNode, vm: str) -> VmAnswer:
        """Poll as this VM at this node."""
        return await self.send(node, vm, "GET", POLL)

    async def approve(self, node: RunningNode, vm: str, *event_ids: str) -> VmAnswer:
        """Approve events as this VM at this node."""
        body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]})
        return await self.send(node, vm, "POST", POLL, body)

    async def send(self, node: RunningNode, vm: str, method: str, target: str, body: str = "") -> VmAnswer:
        """Send a request as this VM, known by its address, over a new connection; raises TimeoutError after 30 s."""
        frontend = node.node.frontend
        assert frontend is not None
        address = self.vm(vm).address
        caller = Caller(attachment=address, vm=frontend.callers.vm_at(address), is_loopback=False)
        transport = InMemoryTransport(node.server.add_connection(caller))
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nMetadata: true\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        transport.send(f"{head}\r\n{body}".encode())
        async with asyncio.timeout(30):
            while not transport.is_closed:
                await asyncio.sleep(0.005)
        received, _, text = transport.received.partition(b"\r\n\r\n")
        status = int(received.split()[1])
        return VmAnswer(status, json.loads(text) if text.startswith(b"{") else None)

    async def ask(self, operation: RequestedOperation, *names: str) -> list[str]:
        """Request an operation; returns the ids of the events."""
        control = self.active.control
        receipt = await control.requests.request_for_vms(operation, [self.vm(name) for name in names], who="ann")
        await control.reconciler.catch_up()
        return [event.id for event in self.store.events(request_id=receipt.request.id)]

    def vm(self, name: str) -> Vm:
        return self.active.control.fleet.find_vm(name)

    def scope_of(self, name: str) -> Scope:
        """The scope of this VM, as it is stored."""
        scope = self.store.scope(self.vm(name).scope_id)
        assert scope is not None
        return scope

    async def sleep_until(self, lab_at: float) -> None:
        """Let virtual time pass until this lab time."""
        await asyncio.sleep(lab_at - self.clock.now())

    async def wait_until(self, condition: Callable[[], bool], within_s: float = 30.0) -> float:
        """Wait in virtual time until this holds; returns how long that took."""
        began = self.loop.time()
        while not condition():
            assert self.loop.time() - began < within_s, "the condition did not become true in time"
            await asyncio.sleep(0.01)
        return self.loop.time() - began

    async def close(self) -> None:
        for node in self.nodes:
            await node.kill()
        await self.active.kill()
        for ledger in self.ledgers.values():
            ledger.close()


def run_cluster(
    scenario: Callable[[ClusterWorld], Awaitable[None]],
    *,
    vms: Iterable[Vm],
    hosts: Iterable[Host],
    seed: int = 0,
    setup: Callable[[ClusterWorld], None] = lambda world: None,
) -> None:
    """Run a scenario on a cluster with this fleet, in virtual time."""

    async def run() -> None:
        world = ClusterWorld(Random(seed))
        setup(world)
        await world.start_control()
        change = FleetChange(hosts=tuple(hosts), vms=tuple(vms), text="the fleet")
        await world.active.control.fleet.apply_change(change, who="test")
        try:
            await scenario(world)
        finally:
            await world.close()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())
