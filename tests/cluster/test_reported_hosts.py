"""What nodes report about their hosts reaches the service: free memory, and VMs that somebody else changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from forewarn.cluster.bus import Subjects
from forewarn.cluster.messages import CpuComparison, HostCapacity, encode_bus_message
from forewarn.cluster.node_registry import ReportedHosts
from forewarn.core.history import EntryKind
from forewarn.core.request import RequestedOperation
from forewarn.core.unannounced import HostObservation, ObservedMachine, ObservedState
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor
from tests.simulation.virtual_loop import VirtualTimeLoop
from tests.support.cluster_world import ClusterWorld, run_cluster
from tests.support.memory_bus import MemoryBroker
from tests.support.world import a_host, a_vm

HOSTS = [a_host(name) for name in ("h1", "h2", "h3")]
WEB = a_vm("web", host="h1", address="10.0.0.1")
RUNNING = ObservedMachine(state=ObservedState.RUNNING, instance="1")


class ListingHypervisor(SimulatedHypervisor):
    """A simulated hypervisor whose host `host` lists `machines`, and has memory; tests change both."""

    def __init__(self, ledger: EffectLedger, host: str) -> None:
        super().__init__(ledger)
        self.host = host
        self.machines: dict[str, ObservedMachine] = {}
        self.free_mib: dict[str, int] = {}
        self.vm_mib: dict[str, int] = {}
        self.size_mib: dict[str, int] = {}
        self.incompatible_hosts: dict[str, frozenset[str]] = {}
        self.silent_hosts: frozenset[str] = frozenset()
        self.vm_cpus: dict[str, str] = {}
        self.unfit_cpus: set[str] = set()  # that its host cannot run
        self.can_compare = True
        self.comparisons: list[str] = []
        self.observed_hosts = (host,)
        self.observe_interval_s = 30.0
        self.listings = 0
        self._changed: asyncio.Queue[str] = asyncio.Queue()

    def change(self, **machines: ObservedMachine) -> None:
        """Let the host list these VMs, and report that."""
        self.machines = machines
        self._changed.put_nowait(self.host)

    async def can_run_cpu(self, host: str, cpu: str) -> bool | None:
        assert host == self.host
        self.comparisons.append(cpu)
        return cpu not in self.unfit_cpus if self.can_compare else None

    async def observe(self, host: str) -> HostObservation:
        self.listings += 1
        return HostObservation(host=host, machines=dict(self.machines))

    async def changed_hosts(self) -> AsyncGenerator[str, None]:
        while True:
            yield await self._changed.get()


@asynccontextmanager
async def listing_nodes(world: ClusterWorld) -> AsyncGenerator[dict[str, ListingHypervisor], None]:
    """Nodes of all hosts, whose hypervisors it yields; the service compares their VMs with the fleet."""
    hypervisors: dict[str, ListingHypervisor] = {}

    def make(host: str) -> ListingHypervisor:
        ledger = world.ledgers.setdefault(host, EffectLedger(None))
        return hypervisors.setdefault(host, ListingHypervisor(ledger, host))

    world.make_hypervisor = make
    for host in HOSTS:
        make(host.name)
    hypervisors["h1"].machines = {"web": RUNNING}
    for host in HOSTS:
        await world.start_node(host.name)
    comparing = asyncio.create_task(world.active.control.unannounced_changes.run())
    try:
        yield hypervisors
    finally:
        comparing.cancel()
        await asyncio.gather(comparing, return_exceptions=True)


def recorded(world: ClusterWorld) -> list[str]:
    return [entry.text for entry in world.store.history() if entry.kind is EntryKind.UNANNOUNCED]


def test_moves_go_to_a_host_whose_node_reports_enough_memory() -> None:
    async def scenario(world: ClusterWorld) -> None:
        async with listing_nodes(world) as hypervisors:
            for host, free_mib in (("h1", 0), ("h2", 100), ("h3", 4000)):
                hypervisors[host].free_mib = {host: free_mib}
            hypervisors["h1"].vm_mib = {"web": 1000}
            hints = world.active.control.transactions.destination_hints
            await world.wait_until(lambda: hints().free_mib == {"h1": 0, "h2": 100, "h3": 4000})
            assert hints().vm_mib == {"web": 1000}
            (event_id,) = await world.ask(RequestedOperation.REDEPLOY, "web")
            await world.active.control.guests.approve(WEB.key, (event_id,))
            await world.wait_until(lambda: any(event.acts for event in world.store.events()))
            assert [act.to_host for event in world.store.events() for act in event.acts] == ["h3"]

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)


def test_live_migrations_go_to_a_host_whose_node_can_run_the_cpu_of_the_vm() -> None:
    async def scenario(world: ClusterWorld) -> None:
        async with listing_nodes(world) as hypervisors:
            for host in hypervisors:
                hypervisors[host].free_mib = {host: 4000}
            hypervisors["h2"].unfit_cpus = {"Skylake"}
            hypervisors["h1"].vm_cpus = {"web": "Skylake", "db": "Skylake", "old": "Nehalem"}
            hints = world.active.control.transactions.destination_hints
            unfit = frozenset({"h2"})
            await world.wait_until(lambda: hints().incompatible == {"web": unfit, "db": unfit})
            await asyncio.sleep(30)
            assert sorted(hypervisors["h3"].comparisons) == ["Nehalem", "Skylake"], "each is compared once"
            hypervisors["h1"].vm_cpus = {}
            await world.wait_until(lambda: hints().incompatible == {})

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)


def test_a_cpu_that_a_host_could_not_compare_is_compared_again() -> None:
    async def scenario(world: ClusterWorld) -> None:
        async with listing_nodes(world) as hypervisors:
            for host in hypervisors:
                hypervisors[host].free_mib = {host: 4000}
            hypervisors["h2"].unfit_cpus, hypervisors["h2"].can_compare = {"Skylake"}, False
            hypervisors["h1"].vm_cpus = {"web": "Skylake"}
            await world.wait_until(lambda: bool(hypervisors["h2"].comparisons))
            await asyncio.sleep(10)
            hints = world.active.control.transactions.destination_hints
            assert (hypervisors["h2"].comparisons, hints().incompatible) == (["Skylake"], {})
            hypervisors["h2"].can_compare = True
            await world.wait_until(lambda: hints().incompatible == {"web": frozenset({"h2"})}, within_s=60)

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)


def test_a_wrong_report_of_one_node_does_not_end_the_comparison_of_cpus(caplog: pytest.LogCaptureFixture) -> None:
    """A node names a CPU that its report does not have, and for a while its report cannot be read at all."""

    async def scenario() -> None:
        right = HostCapacity(free_mib=1, cpus=("Skylake",), vm_cpus={"web": 0, "db": 7, "old": -1}, compares_cpus=True)
        other = HostCapacity(free_mib=1, compares_cpus=True)
        capacities: dict[str, Any] = {"h1": "no report", "h2": other}

        def nodes() -> list[Any]:
            info, is_silent = SimpleNamespace(id="n", boot=1), lambda now: False
            return [
                SimpleNamespace(host=host, info=info, capacity=capacity, is_silent=is_silent)
                for host, capacity in capacities.items()
            ]

        broker = MemoryBroker(Random(0))
        answer = encode_bus_message(CpuComparison((False,)))
        await broker.connect("h2").subscribe(Subjects().act("h2"), lambda message: message.respond(answer))
        reported = ReportedHosts(broker.connect("control"), Subjects(), nodes)
        comparing = asyncio.create_task(reported.compare_cpus())
        await asyncio.sleep(5)
        expected = "CPUs of hosts could not be compared; the next attempt is in 30 s"
        assert [record.message for record in caplog.records] == [expected]
        caplog.clear()
        capacities["h1"] = right
        await asyncio.sleep(60)
        assert reported.incompatible_hosts() == {"web": frozenset({"h2"})}
        assert not caplog.records
        comparing.cancel()
        await asyncio.gather(comparing, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(scenario())


def test_a_host_whose_platform_does_not_answer_its_node_takes_no_vms() -> None:
    async def scenario(world: ClusterWorld) -> None:
        async with listing_nodes(world) as hypervisors:
            hypervisors["h2"].silent_hosts = frozenset({"h2"})
            await world.wait_until(lambda: world.active.cluster.hypervisor.silent_hosts == {"h2"})
            assert "h2" in world.active.control.transactions.destination_hints().unreachable

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)


def test_a_vm_that_somebody_else_moved_is_recorded_and_the_fleet_follows() -> None:
    async def scenario(world: ClusterWorld) -> None:
        async with listing_nodes(world) as hypervisors:
            await world.wait_until(lambda: all(each.listings for each in hypervisors.values()))
            assert recorded(world) == []
            hypervisors["h1"].change()
            hypervisors["h2"].change(web=RUNNING)
            assert await world.wait_until(lambda: world.vm("web").host == "h2") < 10, "before all is compared again"
            (text,) = recorded(world)
            assert "without notice" in text

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)


def test_a_silent_node_is_waited_for_and_its_host_is_compared_again_when_it_is_back() -> None:
    async def scenario(world: ClusterWorld) -> None:
        async with listing_nodes(world) as hypervisors:
            await world.wait_until(lambda: all(each.listings for each in hypervisors.values()))
            (node,) = (each for each in world.nodes if each.hypervisor is hypervisors["h1"])
            await node.kill()
            world.nodes.remove(node)
            await asyncio.sleep(40)
            assert recorded(world) == []
            hypervisors["h1"].machines = {"web": ObservedMachine(state=ObservedState.OFF)}
            await world.start_node("h1")
            await world.wait_until(lambda: bool(recorded(world)))
            assert "web" in recorded(world)[0]

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)


def test_nodes_that_do_not_list_their_vms_are_not_asked() -> None:
    async def scenario(world: ClusterWorld) -> None:
        await world.start_node("h1")
        comparing = asyncio.create_task(world.active.control.unannounced_changes.run())
        await asyncio.sleep(5)
        assert world.active.cluster.hypervisor.observed_hosts == ()
        assert recorded(world) == []
        comparing.cancel()
        await asyncio.gather(comparing, return_exceptions=True)

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)
