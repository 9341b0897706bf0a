"""Whole clusters on a bus that loses, repeats, delays and reorders, with restarts of every process."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from forewarn.cluster.host_projection import vms_by_host
from forewarn.cluster.messages import HostScope
from forewarn.core.request import RequestedOperation
from forewarn.errors import ForewarnError
from forewarn.workers.messages import FaultsUpdate, ScopeUpdate
from tests.support.cluster_world import ClusterWorld, RunningNode, run_cluster
from tests.support.memory_bus import BusFaults
from tests.support.world import a_host, a_vm

HOSTS = ["h1", "h2", "h3"]
VMS = [
    a_vm(
        f"web-{number}",
        host=HOSTS[number % 3],
        address=f"10.0.0.{number + 1}",
        availability_set="" if number > 5 else "web",
        update_domain=number % 2,
    )
    for number in range(9)
]
OPERATIONS = [RequestedOperation.RESTART, RequestedOperation.REDEPLOY]


def location(world: ClusterWorld, name: str) -> str:
    """The host where a VM runs, by the ledgers of the hosts; "" after its source released it, until it arrives."""
    changes = [(-1.0, next(vm.host for vm in VMS if vm.name == name))]
    for host, ledger in world.ledgers.items():
        for effect in ledger.effects(world.vm(name).key):
            if effect.act_id.endswith("/release"):
                changes.append((effect.ends_at, ""))
            elif effect.to_host == host:
                changes.append((effect.ends_at, host))
    return max(change for change in changes if change[0] <= world.clock.now())[1]


class Clients:
    """The VMs: what each has seen, over all its connections and nodes."""

    def __init__(self) -> None:
        self.incarnations: dict[str, int] = {}
        self.answers = 0

    async def poll(self, world: ClusterWorld, nodes: dict[str, RunningNode], name: str) -> None:
        node = nodes.get(location(world, name))
        if node is None or not node.node.is_serving:
            return
        answer = await world.poll(node, name)
        if answer.status == 404:
            return  # its host was started again, or its stream is late
        assert answer.status == 200
        self.answers += 1
        assert answer.incarnation >= self.incarnations.get(name, 0), f"{name} was shown an older document"
        self.incarnations[name] = answer.incarnation


async def disturb(world: ClusterWorld, nodes: dict[str, RunningNode], chance: Random) -> None:
    """Do one thing to the cluster."""
    match chance.choice(["request"] * 3 + ["approve"] * 3 + ["faults", "bus", "node", "control", "cut"]):
        case "request":
            try:
                await world.ask(chance.choice(OPERATIONS), chance.choice(VMS).name)
            except ForewarnError:
                pass  # too many for this VM
        case "approve":
            name = chance.choice(VMS).name
            node = nodes.get(location(world, name))
            if node is not None and node.node.is_serving:
                listed = await world.poll(node, name)
                if listed.status == 200:
                    answer = await world.approve(node, name, *(event["EventId"] for event in listed.events[:2]))
                    assert answer.status in (200, 400, 404, 503)
        case "faults":
            world.broker.faults = BusFaults(chance.choice([0, 0.1, 0.5]), 0.2, chance.choice([0, 0.1, 0.6]))
        case "bus":
            world.broker.stop()
            await asyncio.sleep(chance.random() * 3)
            world.broker.start()
        case "node":
            host = chance.choice(HOSTS)
            await nodes[host].kill()
            world.nodes.remove(nodes[host])
            nodes[host] = await world.start_node(host, wait=False)
        case "control":
            await world.active.kill()
            await world.start_control()
        case "cut":
            name = f"node-{chance.choice(HOSTS)}"
            world.broker.cut_off(name)
            await asyncio.sleep(chance.random() * 2)
            world.broker.heal(name)


def expected_facts(world: ClusterWorld, host: str) -> dict[str, tuple[int, set[str]]]:
    """Scope id → document's incarnation and VMs, as the node of this host must show them."""
    found = {}
    for scope in world.store.scopes():
        vms = vms_by_host(scope).get(host, ())
        if vms:
            found[scope.id] = (scope.incarnation, set(vms))
    return found


def shown_facts(node: RunningNode) -> dict[str, tuple[int, set[str]]]:
    scopes = node.node.facts.scopes.values()
    return {each.update.scope_id: (each.update.document.incarnation, set(each.update.vms)) for each in scopes}


def shows_everything(world: ClusterWorld, nodes: dict[str, RunningNode]) -> bool:
    return all(shown_facts(node) == expected_facts(world, host) for host, node in nodes.items())


def check_effects(world: ClusterWorld) -> None:
    """Each act has one effect, where its VM is then, if it succeeded, and at most one otherwise."""
    found = Counter(effect.act_id for ledger in world.ledgers.values() for effect in ledger.effects())
    acts = [act for event in world.store.events() for act in event.acts]
    assert acts
    for act in acts:
        assert act.outcome is not None
        assert found[act.id] == 1 if act.outcome.ok else found[act.id] <= 1
    assert set(found.values()) <= {1}
    assert all(ledger.repeated_effects == 0 for ledger in world.ledgers.values())


@pytest.mark.parametrize("seed", range(8))
def test_no_vm_sees_an_older_document_and_every_node_catches_up(seed: int) -> None:
    async def scenario(world: ClusterWorld) -> None:
        chance, clients = Random(seed), Clients()
        nodes = {host: await world.start_node(host) for host in HOSTS}
        for _ in range(60):
            await disturb(world, nodes, chance)
            for _ in range(3):
                await clients.poll(world, nodes, chance.choice(VMS).name)
            await asyncio.sleep(chance.random())
        world.broker.faults = BusFaults()
        await world.active.control.reconciler.catch_up()
        await world.wait_until(lambda: shows_everything(world, nodes), within_s=8.0)
        assert clients.answers > 50
        await world.wait_until(lambda: not any(event.unfinished_acts for event in world.store.events()), within_s=60.0)
        check_effects(world)

    run_cluster(scenario, vms=VMS, hosts=[a_host(name) for name in HOSTS], seed=seed)


def test_the_facts_of_a_host_are_encoded_and_read_back() -> None:
    """The dictionaries without defaults that are sent become proper facts again."""

    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        scope = next(iter(node.node.facts.scopes.values()))
        assert isinstance(scope, HostScope)
        assert isinstance(scope.update, ScopeUpdate)
        assert {vm.rpartition("/")[2]: facts.name for vm, facts in scope.update.vms.items()} == {
            "web-0": "web-0",
            "web-3": "web-3",
        }
        assert set(scope.addresses.values()) == {"10.0.0.1", "10.0.0.4"}
        assert node.node.facts.faults == FaultsUpdate(())

    run_cluster(scenario, vms=VMS, hosts=[a_host(name) for name in HOSTS])
