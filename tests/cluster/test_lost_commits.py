"""A standby of PostgreSQL is promoted without the last commits, after somebody made replication asynchronous."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_node_processes import ProcessCluster, request_reapply, until
from tests.support.postgres_pair import ServerPair
from tests.support.postgres_server import is_installed, wait_until
from tests.support.service_process import run_forewarn

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),  # for a machine that is busy with other things
    pytest.mark.skipif(not is_installed(), reason="PostgreSQL is not installed: run tests/cluster/install_servers.sh"),
]
LOST = "PostgreSQL has lost commits: control node c"


@pytest.fixture
def servers() -> Iterator[ServerPair]:
    """Servers of this test alone, of which one is lost."""
    pair = ServerPair()
    yield pair
    pair.remove()


@pytest.fixture
def cluster(servers: ServerPair, tmp_path: Path) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path, servers.both_url) as cluster:
        yield cluster


def rows(cluster: ProcessCluster) -> dict[str, Any]:
    """All control nodes by name, as the first one that runs lists them."""
    node = next(node for node in cluster.nodes.values() if node.is_running)
    return {row["name"]: row for row in node.api("GET", "/nodes").json["nodes"]}


def have_same_number(cluster: ProcessCluster) -> bool:
    return len({row["number"] for row in rows(cluster).values()}) == 1


def replicate_asynchronously(servers: ServerPair) -> None:
    """Make the operator's mistake."""
    servers.primary.configure("synchronous_standby_names = ''\n")
    servers.primary.reload()
    shown = "SELECT current_setting('synchronous_standby_names')"
    wait_until(lambda: servers.query(shown, database="postgres") == [("",)], "replication is asynchronous")


def start_ended_nodes(cluster: ProcessCluster) -> None:
    """Start nodes that had to end, as a process supervisor does."""
    for node in cluster.nodes.values():
        if not node.is_running:
            node.kill()
            node.start()


def is_told(cluster: ProcessCluster) -> bool:
    """Whether a node is active, and the nodes, the history and the doctor say what was lost."""
    start_ended_nodes(cluster)
    shown = [row["problem"] for row in rows(cluster).values()]
    if not cluster.active() or not all(any(LOST in text for text in each) for each in (shown, history_texts(cluster))):
        return False
    found = cluster.nodes["c1"].forewarn("doctor")
    return LOST in found.stdout and "run `forewarn store renew`" in found.stdout


def goes_on(cluster: ProcessCluster) -> bool:
    """Whether a request is answered, as the one that was lost."""
    start_ended_nodes(cluster)
    return request_reapply(cluster.nodes["c1"], "after", "web-0").status == 202


def history_texts(cluster: ProcessCluster) -> list[str]:
    answer = cluster.nodes["c1"].api("GET", "/history?limit=1000")
    return [entry["text"] for entry in answer.json["entries"]] if answer.status == 200 else []


def test_lost_commits_are_told_until_the_epochs_are_renewed(servers: ServerPair, cluster: ProcessCluster) -> None:
    for name in ("c1", "c2"):
        cluster.start(name)
    until(lambda: cluster.active() == "c1" and len(rows(cluster)) == 2, "c1 is active")
    assert request_reapply(cluster.nodes["c1"], "kept").status == 202
    replicate_asynchronously(servers)
    servers.standby.kill()
    assert request_reapply(cluster.nodes["c1"], "lost", "web-0").status == 202
    until(partial(have_same_number, cluster), "both copies have what will be lost")
    servers.primary.kill()
    servers.standby.start()
    servers.promote_standby()

    until(partial(is_told, cluster), "nodes, history and doctor say what was lost")
    until(partial(goes_on, cluster), "the service goes on")

    for node in cluster.nodes.values():
        node.stop()
    renewed = run_forewarn(cluster.directory, "store", "renew", cluster.store)
    assert renewed.returncode == 0, renewed.stderr
    for node in cluster.nodes.values():
        node.start()
    until(lambda: cluster.active() and all(not row["problem"] for row in rows(cluster).values()), "all is well again")
