"""Random faults, alone and two at a time, for as long as one likes; all checkers judge after each of them.

make test-cluster-long MINUTES=60 SEED=7
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from tests.cluster.loaded_cluster import CONTROL_NODES, PARTS, LoadedCluster
from tests.support.failover_load import ClusterLoad
from tests.support.nats_server import nats_program
from tests.support.network_parts import ClusterNetwork, why_networks_are_unavailable
from tests.support.postgres_server import is_installed

MINUTES = float(os.environ.get("FOREWARN_TEST_MINUTES", "10"))
SEED = int(os.environ.get("FOREWARN_TEST_SEED", "1"))
pytestmark = [
    pytest.mark.cluster_long,
    pytest.mark.timeout(MINUTES * 60 + 900),
    pytest.mark.skipif(
        nats_program() is None or not is_installed(),
        reason="NATS or PostgreSQL is not installed: run tests/cluster/install_servers.sh",
    ),
]
TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


@dataclass(frozen=True)
class RunningFault:
    """A fault that has begun."""

    text: str
    end: Callable[[], object] = lambda: None  # after the network is whole again


class Faults:
    """The faults that can happen to a cluster. Each method begins one. `chance` chooses among the parts."""

    def __init__(self, cluster: LoadedCluster, chance: random.Random) -> None:
        assert cluster.network is not None
        self._cluster, self._network, self._chance = cluster, cluster.network, chance
        self.load: ClusterLoad  # of the clients at this time

    def kill_control_node(self) -> RunningFault:
        name = self._chance.choice(CONTROL_NODES)
        self._cluster.control.nodes[name].kill()
        return RunningFault(f"kill {name}")

    def stop_control_node(self) -> RunningFault:
        name = self._chance.choice(CONTROL_NODES)
        pid = self._cluster.control.nodes[name].pid

        def go_on() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        os.kill(pid, signal.SIGSTOP)
        return RunningFault(f"stop {name}", go_on)

    def cut_off(self) -> RunningFault:
        control = self._chance.choice(CONTROL_NODES)
        pairs = [(control, "db1"), (control, "db2"), (control, "bus"), ("h1", "bus"), ("db1", "db2")]
        one, other = self._chance.sample(self._chance.choice(pairs), 2)
        is_one_way = self._chance.random() < 0.5
        self._network.drop(one, other)
        if not is_one_way:
            self._network.drop(other, one)
        return RunningFault(f"drop {one} to {other}{'' if is_one_way else ', and back'}")

    def isolate(self) -> RunningFault:
        name = self._chance.choice([*CONTROL_NODES, "db1", "db2", "bus"])
        self._network.separate([name], set(PARTS) - {name, "client"})
        return RunningFault(f"isolate {name}")

    def kill_bus(self) -> RunningFault:
        self._cluster.nats.kill()
        return RunningFault("kill NATS", self._cluster.nats.start)

    def kill_host_node(self) -> RunningFault:
        self.load.host_is_away = True
        self._cluster.host.kill()

        def start() -> None:
            self._cluster.host.start()
            self.load.host_is_away = False

        return RunningFault("kill the host node", start)

    def end_connections(self) -> RunningFault:
        self._cluster.servers.query(TERMINATE, database="postgres")
        return RunningFault("end all connections of PostgreSQL")

    def promote_standby(self) -> RunningFault:
        servers = self._cluster.servers
        servers.primary.kill()
        servers.promote_standby()
        return RunningFault("kill the primary and promote its standby", servers.add_standby)

    def kill_standby(self) -> RunningFault:
        standby = self._cluster.servers.standby
        standby.kill()
        return RunningFault("kill the standby of PostgreSQL", standby.start)

    def choose(self) -> list[Callable[[], RunningFault]]:
        """One fault or two, of which at most one ends a server of PostgreSQL."""
        of_nodes = [self.kill_control_node, self.stop_control_node, self.cut_off, self.isolate, self.kill_bus]
        of_nodes += [self.kill_host_node]
        of_servers = [self.end_connections, self.promote_standby, self.kill_standby, self.cut_off]
        first = self._chance.choice([*of_nodes, *of_servers])
        if self._chance.random() < 0.5:
            return [first]
        return [first, self._chance.choice(of_nodes if first in of_servers else of_servers)]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedCluster]:
    if reason := why_networks_are_unavailable():
        pytest.skip(reason)
    found = LoadedCluster(tmp_path_factory.mktemp("cluster"), ClusterNetwork(PARTS), CONTROL_NODES)
    yield found
    found.close()


def test_a_cluster_keeps_its_promises_through_random_faults(cluster: LoadedCluster) -> None:
    chance = random.Random(SEED)
    faults, ends_at, count, requests = Faults(cluster, chance), time.monotonic() + MINUTES * 60, 0, 0
    while time.monotonic() < ends_at:
        count += 1
        with cluster.load(f"{count}") as faults.load:
            faults.load.wait_for_rounds(1)
            running = [begin() for begin in faults.choose()]
            print(f"{count}: {' + '.join(fault.text for fault in running)}", flush=True)
            time.sleep(chance.uniform(1, 9))  # how long the faults last
            assert cluster.network is not None
            cluster.network.heal()
            for fault in running:
                fault.end()
            cluster.start_ended_nodes()
            faults.load.wait_for_rounds(1)
        cluster.start_ended_nodes()
        cluster.check(faults.load.history)
        requests += len(faults.load.history.requests)
    print(f"seed {SEED}: {count} times one or two faults, {requests} requests, all checks passed")
