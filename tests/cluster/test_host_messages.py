"""What the active node sends about a host, as the node of that host reads it."""

from __future__ import annotations

from forewarn.cluster.messages import HostScope
from forewarn.metadata.workers.messages import FaultsUpdate, ScopeUpdate
from tests.support.cluster_world import ClusterWorld, run_cluster
from tests.support.world import a_host, a_vm

HOSTS = ["h1", "h2", "h3"]
VMS = [
    a_vm(f"web-{number}", host=HOSTS[number % 3], address=f"10.0.0.{number + 1}", availability_set="web")
    for number in range(6)
]


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
