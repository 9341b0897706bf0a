"""Control nodes, PostgreSQL and NATS fail while VMs and operators use the cluster; checkers judge what they saw."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from forewarn.service.control_node import MUST_START_AGAIN_EXIT
from tests.cluster.control_node_processes import until
from tests.cluster.loaded_cluster import LoadedCluster
from tests.support.nats_server import nats_program
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
    found = LoadedCluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


def test_nothing_is_lost_or_done_twice_when_the_active_node_is_killed(cluster: LoadedCluster) -> None:
    active = until(cluster.control.active, "a node is active")
    with cluster.load("kill") as load:
        load.wait_for_rounds(1)
        cluster.control.nodes[active].kill()
        load.wait_for_rounds(2)
        cluster.control.nodes[active].start()
    until(lambda: cluster.control.active() not in ("", active), "the other node is active")
    cluster.check(load.history)


def test_a_node_that_was_stopped_for_longer_than_its_lease_harms_nothing(cluster: LoadedCluster) -> None:
    active = until(cluster.control.active, "a node is active")
    node = cluster.control.nodes[active]
    child = node._child
    assert child is not None
    with cluster.load("stop") as load:
        load.wait_for_rounds(1)
        os.kill(node.pid, signal.SIGSTOP)
        load.wait_for_rounds(1)
        os.kill(node.pid, signal.SIGCONT)
        assert child.wait(60) == MUST_START_AGAIN_EXIT
        node.start()
        load.wait_for_rounds(1)
    until(lambda: cluster.control.active() not in ("", active), "the other node is active")
    cluster.check(load.history)


def test_control_is_passed_on_purpose_without_an_error(cluster: LoadedCluster) -> None:
    active = until(cluster.control.active, "a node is active")
    other = next(node for name, node in cluster.control.nodes.items() if name != active)
    with cluster.load("resign") as load:
        load.wait_for_rounds(1)
        done = other.forewarn("node", "resign")
        assert done.returncode == 0, done.stderr
        load.wait_for_rounds(1)
    until(lambda: cluster.control.active() not in ("", active), "the other node is active")
    cluster.check(load.history)


def test_control_passes_and_operators_are_served_while_nats_is_away(cluster: LoadedCluster) -> None:
    active = until(cluster.control.active, "a node is active")
    other = next(node for name, node in cluster.control.nodes.items() if name != active)
    with cluster.load("no bus") as load:
        load.wait_for_rounds(1)
        cluster.nats.kill()
        assert cluster.control.nodes[active].stop() == 0
        until(lambda: cluster.control.active() not in ("", active), "another node is active without a bus")
        assert other.api("GET", "/fleet").status == 200
        cluster.nats.start()
        cluster.control.nodes[active].start()
        load.wait_for_rounds(1)
    cluster.check(load.history)


def test_nothing_is_lost_with_the_connections_to_postgresql(cluster: LoadedCluster) -> None:
    with cluster.load("terminate") as load:
        for _ in range(3):
            load.wait_for_rounds(1)
            cluster.servers.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        load.wait_for_rounds(2)
    for node in cluster.control.nodes.values():
        if not node.is_running:  # PostgreSQL reported a commit as done that it had not sent to its standby
            assert "cancelled the wait for its standby" in node.log.read_text(encoding="utf-8")
            node.start()
    cluster.check(load.history)


def test_a_promoted_standby_of_postgresql_continues_the_record(cluster: LoadedCluster) -> None:
    with cluster.load("promote") as load:
        load.wait_for_rounds(1)
        cluster.servers.primary.kill()
        cluster.servers.go_on_alone()
        load.wait_for_rounds(2)
        nodes = [*cluster.control.nodes.values()]
        until(
            lambda: any(node.is_running and node.api("GET", "/service").status == 200 for node in nodes), "it goes on"
        )
    cluster.check(load.history)
