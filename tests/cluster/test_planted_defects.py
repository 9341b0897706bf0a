"""Control nodes with a planted defect, as processes: the checkers of clusters find the damage."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forewarn.cluster.postgres_record import open_record
from tests.cluster.control_node_processes import ProcessCluster, request_reapply, until
from tests.support.failover_load import ClientHistory, RecordFacts, check_history
from tests.support.postgres_pair import ServerPair
from tests.support.replication_checks import check_record

pytestmark = pytest.mark.cluster
PROGRAM = Path(__file__).with_name("defective_node.py")


@pytest.fixture
def cluster(servers: ServerPair, tmp_path: Path) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path, servers.url) as cluster:
        yield cluster


def start_pair(cluster: ProcessCluster, *defect: str) -> None:
    """Start c1, which is active and may have a defect, and c2, which follows it."""
    cluster.start("c1", program=(str(PROGRAM), *defect) if defect else ("-m", "forewarn"))
    until(lambda: cluster.active() == "c1", "c1 is active")
    cluster.start("c2")


def requests_of(servers: ServerPair) -> list[str]:
    return [str(row[0]) for row in servers.query("SELECT id FROM requests")]


@pytest.mark.parametrize("defect", [(), ("answered-first",)], ids=["sound", "answered-first"])
def test_requests_that_are_answered_before_they_are_durable_are_found(
    servers: ServerPair, cluster: ProcessCluster, defect: tuple[str, ...]
) -> None:
    start_pair(cluster, *defect)
    history = ClientHistory()
    answer = request_reapply(cluster.nodes["c1"], "one")
    assert answer.status == 202, answer.body
    history.requests["one"].append(answer.json["request"]["id"])
    cluster.nodes["c1"].kill()
    until(lambda: cluster.active() == "c2", "c2 is active")
    facts = RecordFacts(requests=requests_of(servers), approved=(), performed=(), effects=())
    if defect:
        with pytest.raises(AssertionError, match="was answered, but is not in the record"):
            check_history(history, facts)
    else:
        check_history(history, facts)


@pytest.mark.parametrize("defect", [(), ("no-fence",)], ids=["sound", "no-fence"])
def test_writes_of_a_node_without_a_fence_are_found(
    servers: ServerPair, cluster: ProcessCluster, defect: tuple[str, ...]
) -> None:
    start_pair(cluster, *defect)
    first, second = cluster.nodes["c1"], cluster.nodes["c2"]
    assert request_reapply(first, "one").status == 202
    os.kill(first.pid, signal.SIGSTOP)
    until(lambda: second.api("GET", "/nodes").json["active"] == "c2", "c2 is active")
    assert request_reapply(second, "two", "web-0").status == 202
    os.kill(first.pid, signal.SIGCONT)
    with closing(open_record(servers.url)) as record:
        if defect:
            assert request_reapply(first, "three", "web-0").status == 202
            with pytest.raises(AssertionError, match=r"follows term|does not continue|differ from the log"):
                check_record(record)
        else:
            until(lambda: not first.is_running, "the deposed node has ended")
            check_record(record)
