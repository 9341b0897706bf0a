"""Every part of a cluster is replaced, one after the other, while VMs and operators use it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest

from tests.cluster.control_node_processes import until
from tests.cluster.loaded_cluster import CONTROL_NODES, PARTS, LoadedCluster
from tests.support.failover_load import ClusterLoad
from tests.support.nats_server import nats_program
from tests.support.network_parts import ClusterNetwork, why_networks_are_unavailable
from tests.support.postgres_server import is_installed

SEED = int(os.environ.get("FOREWARN_TEST_SEED", "1"))
LONG_ROUNDS = 4  # how often everything is replaced in the long run
pytestmark = pytest.mark.skipif(
    nats_program() is None or not is_installed(),
    reason="NATS or PostgreSQL is not installed: run tests/cluster/install_servers.sh",
)
_NUMBERS = count(1)


def replace_control_node(cluster: LoadedCluster, load: ClusterLoad, name: str) -> None:
    """Start a new node with a data directory of its own, and stop this one when the new one can take over."""
    new_name = f"{name.partition('-')[0]}-{next(_NUMBERS)}"
    node = cluster.control.start(new_name)
    cluster.serving.append(node)
    until(partial(is_ready, cluster, new_name), "the new node can take over")
    old = cluster.control.nodes.pop(name)
    cluster.serving.remove(old)
    assert old.stop() == 0
    until(lambda: cluster.control.active() not in ("", name), "another node is active")


def is_ready(cluster: LoadedCluster, name: str) -> bool:
    listed = cluster.control.nodes[name].api("GET", "/nodes").json["nodes"]
    (row,) = [node for node in listed if node["name"] == name]
    return row["role"] in ("active", "standby") and not row["problem"] and row["number"] > 0


def replace_host_node(cluster: LoadedCluster, load: ClusterLoad) -> None:
    """Stop the node of the host and start it again, as for an upgrade; its ledger stays."""
    load.host_is_away = True
    assert cluster.host.stop() == 0
    cluster.host.start()
    load.host_is_away = False


def replace_bus(cluster: LoadedCluster, load: ClusterLoad) -> None:
    cluster.nats.kill()
    cluster.nats.start()


def replace_standby(cluster: LoadedCluster, load: ClusterLoad) -> None:
    """Replace the standby of PostgreSQL by a new one, made with pg_basebackup; writes wait meanwhile."""
    cluster.servers.add_standby()


def switch_over(cluster: LoadedCluster, load: ClusterLoad) -> None:
    """Stop the primary, promote its standby, and replace the old primary by a new standby.

    The new primary has the settings of the old one: it waits for a synchronous standby until it has one.
    """
    cluster.servers.primary.stop()
    cluster.servers.promote_standby()
    cluster.servers.add_standby()


def check(cluster: LoadedCluster, load: ClusterLoad) -> None:
    cluster.start_ended_nodes()
    cluster.check(load.history)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedCluster]:
    found = LoadedCluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


@pytest.mark.cluster
@pytest.mark.timeout(900)  # for a machine that is busy with other things
def test_nothing_is_lost_or_done_twice_while_every_part_is_replaced(cluster: LoadedCluster) -> None:
    steps: list[Callable[[LoadedCluster, ClusterLoad], None]] = [
        replace_host_node,
        replace_bus,
        replace_standby,
        switch_over,
    ]
    with cluster.load("replace") as load:
        load.wait_for_rounds(1)
        for name in tuple(cluster.control.nodes):
            replace_control_node(cluster, load, name)
            load.wait_for_rounds(1)
        for step in steps:
            step(cluster, load)
            load.wait_for_rounds(1)
    check(cluster, load)


@pytest.fixture
def wide_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedCluster]:
    if reason := why_networks_are_unavailable():
        pytest.skip(reason)
    found = LoadedCluster(tmp_path_factory.mktemp("cluster"), ClusterNetwork(PARTS), CONTROL_NODES)
    yield found
    found.close()


@pytest.mark.cluster_long
@pytest.mark.timeout(1800)
def test_parts_are_replaced_again_and_again_in_any_order(wide_cluster: LoadedCluster) -> None:
    cluster, chance = wide_cluster, random.Random(SEED)
    for number in range(LONG_ROUNDS):
        steps: list[Callable[[LoadedCluster, ClusterLoad], None]] = [
            replace_host_node,
            replace_bus,
            replace_standby,
            switch_over,
            *(partial(replace_control_node, name=name) for name in cluster.control.nodes),
        ]
        chance.shuffle(steps)
        with cluster.load(f"replace {number}") as load:
            for step in steps:
                step(cluster, load)
                load.wait_for_rounds(1)
        check(cluster, load)
