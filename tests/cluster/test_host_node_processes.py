"""Real processes: a service with a bus, two host nodes and a NATS server, killed and started again."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_server import NatsServer, nats_program
from tests.support.node_process import NodeProcess, wait_until
from tests.support.service_process import ServiceProcess, run_forewarn

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(nats_program() is None, reason="NATS is not installed: run tests/cluster/install_servers.sh"),
]
FLEET = """
[[hosts]]
name = "h1"

[[hosts]]
name = "h2"

[[vms]]
name = "web"
host = "h1"
address = "127.0.1.1"

[[vms]]
name = "db"
host = "h2"
address = "127.0.1.2"
"""
WEB, DB = "127.0.1.1", "127.0.1.2"
QUICK_ACTS = """
[[simulate]]
vm = "db"
verb = "reboot"
then = "take"
seconds = 3

[[simulate]]
then = "take"
seconds = 0.5
"""


class RealCluster:
    """A NATS server, a service and the nodes of two hosts."""

    def __init__(self, directory: Path) -> None:
        self.nats = NatsServer(directory)
        self.nats.start()
        self.service = ServiceProcess(data=directory / "service", fleet=FLEET, command="serve", bus=self.nats.url)
        self.service.start()
        config = directory / "node.toml"
        config.write_text(QUICK_ACTS, encoding="utf-8")
        options = ("--config", str(config))
        self.h1 = NodeProcess(data=directory / "h1", host="h1", bus=self.nats.url, arguments=options)
        self.h2 = NodeProcess(
            data=directory / "h2", host="h2", bus=self.nats.url, arguments=(*options, "--workers", "2")
        )
        self.h1.start()
        self.h2.start()

    def node_of(self, vm: str) -> NodeProcess:
        """The node of the host that the fleet has for this VM."""
        vms = {known["name"]: known for known in self.service.api("GET", "/fleet").json["vms"]}
        return {"h1": self.h1, "h2": self.h2}[vms[vm]["host"]]

    def request(self, operation: str, vm: str) -> str:
        """Request an operation on a VM; returns the id of its event."""
        answer = self.service.api("POST", "/requests", {"operation": operation, "vms": [vm]})
        assert answer.status in (200, 201, 202), answer.body
        wait_until(lambda: self.live_events(vm))
        return str(self.live_events(vm)[-1]["id"])

    def roll_out(self, impact: str, host: str, vm: str) -> str:
        """Request maintenance of a host; returns the id of the event of a VM on it."""
        answer = self.service.api("POST", "/rollouts", {"impact": impact, "hosts": [host]})
        assert answer.status in (200, 201, 202), answer.body
        wait_until(lambda: self.live_events(vm))
        return str(self.live_events(vm)[-1]["id"])

    def live_events(self, vm: str) -> list[dict[str, Any]]:
        events = self.service.api("GET", "/events").json["events"]
        return [event for event in events if vm in event["vms"] and event["status"] != "over"]

    def close(self) -> None:
        for node in (self.h1, self.h2):
            node.kill()
        self.service.kill()
        self.nats.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    found = RealCluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


def effects(node: NodeProcess) -> list[str]:
    """The ids of the acts in the ledger of a node."""
    with closing(sqlite3.connect(node.data / "simulated.db")) as ledger:
        return [act_id for (act_id,) in ledger.execute("SELECT act_id FROM effect ORDER BY seq")]


class Poller:
    """Polls as a VM, at all nodes of the cluster, until it is stopped; remembers failures, gaps and old documents."""

    def __init__(self, address: str, *nodes: NodeProcess) -> None:
        self.failures: list[str] = []
        self.went_back: list[tuple[int, int]] = []
        self.longest_gap_s = 0.0
        self.answers = 0
        self._address, self._nodes = address, nodes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        newest, gap_began = 0, 0.0
        while not self._stopping.is_set():
            began, answers = time.monotonic(), self.answers
            for node in self._nodes:
                try:
                    document = node.poll(self._address)
                except (OSError, AssertionError) as error:
                    self.failures.append(repr(error))
                    continue
                if document is None:
                    continue
                self.answers += 1
                incarnation = document["DocumentIncarnation"]
                if incarnation < newest:
                    self.went_back.append((newest, incarnation))
                newest = max(newest, incarnation)
            gap_began = 0.0 if self.answers > answers else gap_began or began
            self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - gap_began if gap_began else 0.0)
            time.sleep(0.02)


def shows(node: NodeProcess, address: str, event_id: str) -> bool:
    document = node.poll(address)
    return document is not None and any(event["EventId"] == event_id for event in document["Events"])


@pytest.mark.parametrize("vm", ["web", "db"], ids=["node without workers", "node with workers"])
def test_a_vm_polls_approves_and_is_acted_on_at_the_node_of_its_host(cluster: RealCluster, vm: str) -> None:
    address = {"web": WEB, "db": DB}[vm]
    node = cluster.node_of(vm)
    other = cluster.h2 if node is cluster.h1 else cluster.h1
    before = effects(node)
    assert node.poll(address)["Events"] == []
    assert other.poll(address) is None
    event_id = cluster.request("restart", vm)
    wait_until(lambda: shows(node, address, event_id))
    assert node.approve(address, event_id) == 200
    wait_until(lambda: not cluster.live_events(vm))
    assert len(effects(node)) == len(before) + 1
    assert event_id in effects(node)[-1]


def test_the_service_shows_its_nodes_and_the_polls_of_their_vms(cluster: RealCluster) -> None:
    nodes = cluster.service.api("GET", "/service").json["nodes"]
    assert [(node["host"], node["hypervisor"], node["workers"]) for node in nodes] == [
        ("h1", "simulated", 0),
        ("h2", "simulated", 2),
    ]
    assert all(node["silent_s"] < 10 for node in nodes)
    cluster.node_of("web").poll(WEB)
    said = run_forewarn(cluster.service.data, "--json", "explain", "web").stdout
    assert "has never polled" not in said


def test_no_poll_fails_while_nats_is_killed_for_five_seconds(cluster: RealCluster) -> None:
    with Poller(WEB, cluster.node_of("web")) as poller:
        cluster.nats.kill()
        event_id = cluster.request("restart", "web")
        time.sleep(5)
        assert not shows(cluster.node_of("web"), WEB, event_id)
        cluster.nats.start()
        wait_until(lambda: shows(cluster.node_of("web"), WEB, event_id))  # `make bench` measures how soon
    assert poller.failures == []
    assert poller.went_back == []
    assert cluster.node_of("web").approve(WEB, event_id) == 200
    wait_until(lambda: not cluster.live_events("web"))


def test_a_node_that_is_killed_answers_again_after_its_start_and_performs_its_act_once(cluster: RealCluster) -> None:
    node = cluster.node_of("web")
    event_id = cluster.request("restart", "web")
    wait_until(lambda: shows(node, WEB, event_id))
    node.kill()
    assert cluster.service.forewarn("approve", event_id).returncode == 0
    wait_until(lambda: "waits for the node of host" in cluster.service.forewarn("explain", "web").stdout)
    began = time.monotonic()
    node.start()
    assert node.poll(WEB) is not None
    assert time.monotonic() - began < 20
    wait_until(lambda: not cluster.live_events("web"))
    assert sum(event_id in act_id for act_id in effects(node)) == 1


def test_a_node_that_is_killed_in_the_middle_of_an_act_performs_it_once(cluster: RealCluster) -> None:
    node = cluster.node_of("db")
    event_id = cluster.request("restart", "db")
    wait_until(lambda: shows(node, DB, event_id))
    assert node.approve(DB, event_id) == 200
    wait_until(lambda: any(event_id in act_id for act_id in effects(node)))
    node.kill()
    node.start()
    wait_until(lambda: not cluster.live_events("db"), within_s=60)
    assert sum(event_id in act_id for act_id in effects(node)) == 1
    with closing(sqlite3.connect(node.data / "simulated.db")) as ledger:
        assert ledger.execute("SELECT coalesce(sum(repeats), 0), max(performs) > 1 FROM act").fetchone() == (0, 1)


def test_polls_go_on_while_the_service_is_killed_and_an_approval_waits_for_it(cluster: RealCluster) -> None:
    node = cluster.node_of("web")
    event_id = cluster.request("restart", "web")
    wait_until(lambda: shows(node, WEB, event_id))
    statuses: list[int] = []
    with Poller(WEB, node) as poller:
        cluster.service.kill()
        approving = threading.Thread(target=lambda: statuses.append(approve_until_accepted(node, WEB, event_id)))
        approving.start()
        cluster.service.start()
        approving.join()
        wait_until(lambda: not cluster.live_events("web"))
    assert statuses == [200]
    assert poller.failures == []
    assert poller.went_back == []


def approve_until_accepted(node: NodeProcess, address: str, event_id: str) -> int:
    """Approve as clients do: again after each 503."""
    deadline = time.monotonic() + 60
    while (status := node.approve(address, event_id)) == 503 and time.monotonic() < deadline:
        pass
    return status


@pytest.mark.parametrize("operation", ["migrate", "redeploy"])
def test_a_move_hands_a_vm_over_from_one_node_to_the_other(cluster: RealCluster, operation: str) -> None:
    source = cluster.node_of("web")
    destination = cluster.h2 if source is cluster.h1 else cluster.h1
    if operation == "migrate":
        event_id = cluster.roll_out(operation, source.host, "web")
    else:
        event_id = cluster.request(operation, "web")
    wait_until(lambda: shows(source, WEB, event_id))
    with Poller(WEB, source, destination) as poller:
        assert source.approve(WEB, event_id) == 200
        wait_until(lambda: source.poll(WEB) is None and destination.poll(WEB) is not None)
        wait_until(lambda: not cluster.live_events("web"))
    assert cluster.node_of("web") is destination
    assert poller.failures == []
    assert poller.went_back == []
    assert poller.longest_gap_s < 2.0
    ids = [*effects(source), *effects(destination)]
    assert sum(act_id.endswith("/release") and event_id in act_id for act_id in ids) == 1
    assert sum(event_id in act_id and "/" not in act_id.partition(":")[2] for act_id in ids) == 1


def test_a_second_node_of_a_host_ends_with_one_sentence(cluster: RealCluster, tmp_path: Path) -> None:
    second = NodeProcess(data=tmp_path / "second", host="h1", bus=cluster.nats.url)
    second.start(wait=False)
    assert second.wait() == 2
    assert "host 'h1' already has a node (process" in second.log.read_text()
    assert cluster.h1.is_running


def test_a_node_in_a_data_directory_that_is_in_use_ends_with_one_sentence(cluster: RealCluster) -> None:
    second = NodeProcess(data=cluster.h1.data, host="h1", bus=cluster.nats.url)
    second.log = cluster.h1.data / "second.log"
    second.start(wait=False)
    assert second.wait() == 2
    assert "is in use by another service (process" in second.log.read_text()


def test_a_stopped_node_says_so_and_ends_with_success(cluster: RealCluster) -> None:
    assert cluster.h2.stop() == 0
    (stopped,) = (n for n in cluster.service.api("GET", "/service").json["nodes"] if n["host"] == "h2")
    assert stopped["stopped"]
    cluster.h2.start()


def test_a_node_without_permissions_ends_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("h1:secret\n", encoding="utf-8")
    (tmp_path / "node.toml").write_text(f'bus_credentials = "{tmp_path / "credentials"}"\n', encoding="utf-8")
    config = 'authorization { users = [ {user: "h1", password: "secret", permissions: {subscribe: ["x"]}} ] }'
    with NatsServer(tmp_path, config=config) as nats:
        node = NodeProcess(
            data=tmp_path / "h1", host="h1", bus=nats.url, arguments=("--config", str(tmp_path / "node.toml"))
        )
        node.start(wait=False)
        assert node.wait() == 2
    assert "NATS does not permit 'node of host h1' to subscribe to" in node.log.read_text()
