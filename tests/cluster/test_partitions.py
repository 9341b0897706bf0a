"""Packets between parts of a cluster are lost, also in one direction only, while VMs and operators use it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import psycopg
import pytest

from forewarn.service.control_node import MUST_START_AGAIN_EXIT
from tests.cluster.control_node_processes import until
from tests.cluster.loaded_cluster import CONTROL_NODES, PARTS, VMS, LoadedCluster
from tests.support.nats_server import nats_program
from tests.support.network_parts import ClusterNetwork, why_networks_are_unavailable
from tests.support.postgres_server import is_installed

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        nats_program() is None or not is_installed(),
        reason="NATS or PostgreSQL is not installed: run tests/cluster/install_servers.sh",
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedCluster]:
    if reason := why_networks_are_unavailable():
        pytest.skip(reason)
    found = LoadedCluster(tmp_path_factory.mktemp("cluster"), ClusterNetwork(PARTS), CONTROL_NODES)
    yield found
    found.close()


@pytest.fixture
def network(cluster: LoadedCluster) -> Iterator[ClusterNetwork]:
    """The network, which is whole again at the end; and all control nodes run."""
    assert cluster.network is not None
    yield cluster.network
    cluster.network.heal()
    cluster.start_ended_nodes()


def poll(cluster: LoadedCluster, count: int) -> None:
    """Poll as each VM, this often: every poll must be answered."""
    assert cluster.host.part is not None
    for address in [*VMS.values()] * count:
        assert cluster.host.part.call(cluster.host.poll, address) is not None


@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_another_node_takes_over_from_one_that_cannot_reach_postgresql(
    cluster: LoadedCluster, network: ClusterNetwork, lost: str
) -> None:
    active = cluster.active()
    with cluster.load(f"record {lost}") as load:
        load.wait_for_rounds(1)
        for server in ("db1", "db2"):
            network.drop(*((active, server) if lost == "requests" else (server, active)))
        until(lambda: active_elsewhere(cluster, active), "another node is active")
        load.wait_for_rounds(1)
        network.heal()
        load.wait_for_rounds(1)
    until(lambda: has_ended_or_follows(cluster, active), "the first node has ended, or follows")
    cluster.start_ended_nodes()
    cluster.check(load.history)


def active_elsewhere(cluster: LoadedCluster, name: str) -> bool:
    """Whether the other nodes know an active one that is not this one."""
    others = [node for other, node in cluster.control.nodes.items() if other != name and node.is_running]
    return any(node.api("GET", "/nodes").json["active"] not in ("", name) for node in others)


def has_ended_or_follows(cluster: LoadedCluster, name: str) -> bool:
    node = cluster.control.nodes[name]
    if not node.is_running:
        assert node._child is not None
        return node._child.poll() == MUST_START_AGAIN_EXIT
    return cluster.control.active() not in ("", name)


@pytest.mark.parametrize(("part", "peer"), [("active", "bus"), ("bus", "active"), ("h1", "bus"), ("bus", "h1")])
def test_polls_are_answered_while_a_node_and_nats_do_not_hear_each_other(
    cluster: LoadedCluster, network: ClusterNetwork, part: str, peer: str
) -> None:
    """Approvals and acts wait; control stays where it is, and operators are served."""
    active = cluster.active()
    with cluster.load(f"bus {part} {peer}") as load:
        load.wait_for_rounds(1)
        network.drop(*(active if name == "active" else name for name in (part, peer)))
        poll(cluster, 5)
        assert cluster.control.nodes[active].api("GET", "/fleet").status == 200
        time.sleep(3)  # so that connections are given up, and not only late
        poll(cluster, 5)
        network.heal()
        load.wait_for_rounds(1)
    assert cluster.control.active() == active
    cluster.check(load.history)


@pytest.mark.parametrize(("sender", "receiver"), [("db1", "db2"), ("db2", "db1")])
def test_a_standby_of_postgresql_that_does_not_confirm_suspends_the_active_node_visibly(
    cluster: LoadedCluster, network: ClusterNetwork, sender: str, receiver: str
) -> None:
    active = cluster.active()
    with cluster.load(f"standby {sender}") as load:
        load.wait_for_rounds(1)
        network.drop(sender, receiver)
        for name in CONTROL_NODES:
            until(partial(says_that_standby_is_missing, cluster, active, asked=name), "the reason is shown")
        poll(cluster, 5)
        network.heal()
        load.wait_for_rounds(1)
    cluster.start_ended_nodes()
    cluster.check(load.history)


def says_that_standby_is_missing(cluster: LoadedCluster, name: str, *, asked: str) -> bool:
    """Whether the node that is asked shows another one, or itself, as suspended for want of the standby."""
    listed = cluster.control.nodes[asked].api("GET", "/nodes").json["nodes"]
    (shown,) = [node for node in listed if node["name"] == name]
    return shown["role"] == "suspended" and "waits for its synchronous standby" in shown["problem"]


def test_an_old_primary_behind_a_partition_acknowledges_nothing_after_the_standby_is_promoted(
    cluster: LoadedCluster, network: ClusterNetwork
) -> None:
    """The active node is on the side of the old primary, which is alive until the end."""
    active = cluster.active()
    servers = cluster.servers
    old, old_part = servers.primary, next(name for name in ("db1", "db2") if servers.primary.part is network[name])
    with ThreadPoolExecutor(1) as pool, cluster.load("old primary") as load:
        load.wait_for_rounds(1)
        network.separate({old_part, active}, set(PARTS) - {old_part, active})
        writing = pool.submit(network[active].call, write_directly, old.url("forewarn"))
        servers.promote_standby(alone=True)
        until(lambda: active_elsewhere(cluster, active), "a node on the other side is active")
        load.wait_for_rounds(2)
        assert not writing.done(), "the old primary has confirmed a write that its standby does not have"
        assert says_that_standby_is_missing(cluster, active, asked=active)
        old.kill()
        network.heal()
        load.wait_for_rounds(1)
        assert was_lost(writing)
    servers.add_standby()
    until(lambda: has_ended_or_follows(cluster, active), "the node beside the old primary has ended, or follows")
    cluster.start_ended_nodes()
    cluster.check(load.history)


def write_directly(url: str) -> None:
    """Write to a server as a client that knows nothing of leases; returns once it is confirmed."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE written_directly (number int)")


def was_lost(writing: Future[None]) -> bool:
    """Whether a write has ended without a confirmation."""
    return isinstance(writing.exception(60), psycopg.Error)
