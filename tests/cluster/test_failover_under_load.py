"""Control nodes, PostgreSQL and NATS fail while VMs and operators use the cluster; checkers judge what they saw."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from forewarn.service.control_node import MUST_START_AGAIN_EXIT
from forewarn.service.nats_config import host_credentials_path, write_nats_config
from forewarn.store.postgres_record import PostgresRecord, open_record
from tests.cluster.control_node_processes import ProcessCluster, until
from tests.support.failover_load import ClientHistory, ClusterLoad, RecordFacts, check_history
from tests.support.nats_server import NatsServer, nats_program
from tests.support.node_process import NodeProcess
from tests.support.postgres_pair import ServerPair
from tests.support.postgres_server import is_installed
from tests.support.replication_checks import check_record

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        nats_program() is None or not is_installed(),
        reason="NATS or PostgreSQL is not installed: run tests/cluster/install_servers.sh",
    ),
]
VMS = {"web": "127.0.1.1", "db": "127.0.1.2", "queue": "127.0.1.3"}
FLEET = '[[hosts]]\nname = "h1"\n' + "".join(
    f'[[vms]]\nname = "{vm}"\nhost = "h1"\naddress = "{address}"\n' for vm, address in VMS.items()
)
QUICK_ACTS = '[[simulate]]\nthen = "take"\nseconds = 0.2\n'


class LoadedCluster:
    """PostgreSQL with a standby, NATS, two control nodes and the node of one host."""

    def __init__(self, directory: Path) -> None:
        self.servers = ServerPair()
        self.nats = NatsServer(directory)
        self.control = ProcessCluster(directory, self.servers.both_url, bus=self.nats.url, fleet=FLEET)
        self.nats.configure(write_nats_config(self.control.secrets, ["h1"]).read_text(encoding="utf-8"))
        self.nats.start()
        self.control.start("c1")
        self.control.start("c2")
        config = directory / "node.toml"
        credentials = host_credentials_path(self.control.secrets, "h1")
        config.write_text(f'bus_credentials = "{credentials}"\n{QUICK_ACTS}', encoding="utf-8")
        self.host = NodeProcess(
            data=directory / "h1", host="h1", bus=self.nats.url, arguments=("--config", str(config))
        )
        self.host.start()
        self.checked = RecordFacts(requests=(), approved=(), performed=(), effects=())

    def load(self, name: str) -> ClusterLoad:
        return ClusterLoad([*self.control.nodes.values()], self.host, VMS, name)

    def check(self, history: ClientHistory) -> None:
        """Judge what clients saw since the last check, and compare record, log and copies."""
        facts, before = self.facts(), self.checked
        self.checked = facts
        check_history(
            history,
            RecordFacts(
                requests=sorted(set(facts.requests) - set(before.requests)),
                approved=facts.approved,
                performed=facts.performed[len(before.performed) :],
                effects=facts.effects[len(before.effects) :],
            ),
        )
        with closing(open_record(self.control.store)) as record:
            until(lambda: self._is_record_checked(record), "the record was compared while nothing was written")

    def _is_record_checked(self, record: PostgresRecord) -> bool:
        """Compare record and log; returns False if somebody wrote meanwhile, which says nothing."""
        number = record.read_lease().number
        try:
            check_record(record)
        except AssertionError:
            if record.read_lease().number == number:
                raise
            return False
        return True

    def facts(self) -> RecordFacts:
        def column(sql: str) -> list[str]:
            with psycopg.connect(f"{self.control.store}?target_session_attrs=read-write") as db:
                return [str(row[0]) for row in db.execute(sql.encode()).fetchall()]

        until(lambda: not column("SELECT id FROM events WHERE status <> 'over'"), "all events are over")
        with closing(sqlite3.connect(self.host.data / "simulated.db")) as ledger:
            acts = [str(act_id) for (act_id,) in ledger.execute("SELECT act_id FROM effect ORDER BY seq")]
        return RecordFacts(
            requests=column("SELECT id FROM requests"),
            approved=column("SELECT event_id FROM history WHERE what = 'approved'"),
            performed=column("SELECT event_id FROM history WHERE what = 'performed' ORDER BY seq"),
            effects=[act_id.partition(":")[0] for act_id in acts],
        )

    def close(self) -> None:
        self.control.__exit__(None, None, None)
        self.host.kill()
        self.nats.kill()
        self.servers.remove()


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
        cluster.servers.standby.promote()
        load.wait_for_rounds(2)
        nodes = [*cluster.control.nodes.values()]
        until(
            lambda: any(node.is_running and node.api("GET", "/service").status == 200 for node in nodes), "it goes on"
        )
    cluster.check(load.history)
