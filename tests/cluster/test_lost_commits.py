"""A standby of PostgreSQL is promoted while the old primary is alive, with its last commits or without them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.cluster.control_node_processes import until
from tests.cluster.loaded_cluster import VMS, LoadedCluster
from tests.support.nats_server import nats_program
from tests.support.node_process import POLL, NodeProcess
from tests.support.postgres_server import is_installed, wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),  # for a machine that is busy with other things
    pytest.mark.skipif(
        not is_installed() or nats_program() is None,
        reason="PostgreSQL or NATS is not installed: run tests/cluster/install_servers.sh",
    ),
]
LOST = "PostgreSQL has lost commits: "
_NAMES = "SELECT current_setting('synchronous_standby_names')"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LoadedCluster]:
    found = LoadedCluster(tmp_path)
    yield found
    found.close()


class WatchingVms:
    """Polls as every VM until the end of the block, where no document may have misled its VM."""

    def __init__(self, host: NodeProcess) -> None:
        self._host = host
        self.seen: dict[str, list[tuple[int, str, str]]] = {address: [] for address in VMS.values()}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ending.wait(0.01):
            for address, seen in self.seen.items():
                answer = self._host.send(address, "GET", POLL)
                if answer.status == 200:
                    headers = {name.lower(): text for name, text in answer.headers.items()}
                    incarnation = answer.json["DocumentIncarnation"]
                    seen.append((incarnation, headers["etag"], json.dumps(answer.json, sort_keys=True)))

    @property
    def incarnation(self) -> int:
        """The highest that any VM has seen."""
        return max(incarnation for seen in self.seen.values() for incarnation, _, _ in seen)

    def __enter__(self) -> WatchingVms:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        self._thread.join(60)
        if kind is not None:
            return
        for address, seen in self.seen.items():
            numbers = [incarnation for incarnation, _, _ in seen]
            assert numbers == sorted(numbers), f"a document of {address} was older than one before"
            bodies: dict[object, str] = {}
            for incarnation, etag, body in seen:
                for name in (incarnation, etag):
                    assert bodies.setdefault(name, body) == body, f"{name} names two documents of {address}"


def replicate_asynchronously(cluster: LoadedCluster) -> None:
    """Make the operator's mistake, and insist on it."""
    servers = cluster.servers
    servers.primary.configure("synchronous_standby_names = ''\n")
    servers.primary.reload()
    wait_until(lambda: servers.query(_NAMES) == [("",)], "replication is asynchronous")
    until(lambda: role_and_problem(cluster, cluster.active())[0] == "suspended", "the active node is suspended")
    assert "forewarn store without-standby" in role_and_problem(cluster, cluster.active())[1]
    allowed = cluster.control.nodes[cluster.active()].forewarn("store", "without-standby", servers.url)
    assert "go on without a synchronous standby" in allowed.stdout, allowed.stderr
    until(lambda: role_and_problem(cluster, cluster.active())[0] == "active", "it goes on")


def role_and_problem(cluster: LoadedCluster, name: str) -> tuple[str, str]:
    node = next(node for node in cluster.control.nodes.values() if node.is_running)
    row: dict[str, Any] = next(row for row in node.api("GET", "/nodes").json["nodes"] if row["name"] == (name or "c1"))
    return row["role"], row["problem"]


def is_active_again(cluster: LoadedCluster) -> bool:
    """Whether a node is active; starts those that had to end, as a process supervisor does."""
    cluster.start_ended_nodes()
    name = cluster.control.active()
    return bool(name) and role_and_problem(cluster, name)[0] == "active"


def kill_active_node(cluster: LoadedCluster) -> None:
    cluster.start_ended_nodes()
    name = cluster.active()
    cluster.control.nodes[name].kill()
    until(lambda: cluster.control.active() not in ("", name), "the other node is active")
    cluster.start_ended_nodes()


def test_nothing_is_confirmed_beside_a_promoted_standby_and_nothing_lost(cluster: LoadedCluster) -> None:
    servers = cluster.servers
    with WatchingVms(cluster.host), cluster.load("before") as load:
        load.wait_for_rounds(1)
        old = servers.primary
        servers.promote_standby()
        until(lambda: role_and_problem(cluster, cluster.active())[0] == "suspended", "the old primary confirms nothing")
        old.kill()
        until(lambda: "without-standby" in role_and_problem(cluster, "c1")[1], "the new primary demands no standby")
        servers.add_standby()
        until(lambda: is_active_again(cluster), "a node is active with the new standby")
        load.wait_for_rounds(1)
        kill_active_node(cluster)
        load.wait_for_rounds(1)
    assert max(max(seen) for seen in load.history.incarnations.values()) < 1000, "there was no new epoch"
    cluster.check(load.history)


@pytest.mark.parametrize("who_knows", ["control nodes", "host nodes"])
def test_commits_that_the_promoted_standby_lacks_begin_a_new_epoch(cluster: LoadedCluster, who_knows: str) -> None:
    servers = cluster.servers
    with WatchingVms(cluster.host) as vms:
        replicate_asynchronously(cluster)
        with cluster.load("kept") as load:
            load.wait_for_rounds(1)
        servers.standby.kill()  # so that it certainly lacks what follows
        with cluster.load("lost") as load:
            load.wait_for_rounds(1)
        shown = vms.incarnation
        (servers.standby.data / "postgresql.auto.conf").write_text("")  # where pg_basebackup wrote where the primary is
        servers.standby.configure("primary_conninfo = ''\n")  # otherwise it catches up before it is promoted
        servers.standby.start()
        old = servers.primary
        servers.promote_standby()
        if who_knows == "host nodes":
            for node in cluster.control.nodes.values():
                node.kill()
                shutil.rmtree(node.data)
        old.kill()
        until(lambda: is_active_again(cluster), "a node is active on the promoted server")
        until(lambda: vms.incarnation > shown + 1000, "VMs see a new epoch")
        told = f"{LOST}{'control node c' if who_knows == 'control nodes' else 'the node of host h1'}"
        until(lambda: told in role_and_problem(cluster, cluster.active())[1], "the nodes say what was lost")
        active = cluster.control.nodes[cluster.active()]
        assert told in active.forewarn("doctor").stdout
        history = active.api("GET", "/history?limit=1000").json["entries"]
        assert [entry for entry in history if f"because {told}" in entry["text"]]
        servers.add_standby()
        kill_active_node(cluster)
        with cluster.load("after") as load:
            load.wait_for_rounds(1)
