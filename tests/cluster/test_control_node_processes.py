"""Two real control nodes on a real PostgreSQL: killed, stopped and resumed, resigning, and badly configured."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forewarn.cluster.postgres_record import open_record
from forewarn.service.cluster_secrets import create_cluster_secrets
from forewarn.service.control_node import MUST_START_AGAIN_EXIT
from tests.cluster.control_node_processes import ProcessCluster, printed, request_reapply, until
from tests.support.postgres_pair import ServerPair
from tests.support.replication_checks import check_copy, check_record
from tests.support.service_process import ServiceProcess

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(servers: ServerPair, tmp_path: Path) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path, servers.both_url) as cluster:
        yield cluster


def start_pair(cluster: ProcessCluster) -> tuple[ServiceProcess, ServiceProcess]:
    """Start c1, which becomes active, and its standby c2."""
    first = cluster.start("c1")
    second = cluster.start("c2")
    until(lambda: len(second.api("GET", "/nodes").json["nodes"]) == 2, "both nodes are known")
    until(lambda: cluster.active() == "c1", "c1 is active")
    return first, second


def test_control_passes_from_a_killed_node_and_nothing_acknowledged_is_lost(cluster: ProcessCluster) -> None:
    first, second = start_pair(cluster)
    acknowledged = []
    for number, node in enumerate((first, second)):
        answer = request_reapply(node, f"before {number}", ("web-0", "db")[number])
        assert answer.status == 202, answer.body
        acknowledged.append(answer.json["request"]["id"])
    first.kill()
    killed_at = time.monotonic()
    again = until(lambda: _accepted(second, "before 0", "web-0"), "the standby accepts calls")
    print(f"accepted {time.monotonic() - killed_at:.1f} s after the active node was killed")
    assert again == acknowledged[0]  # the same request as before
    entries = second.api("GET", "/history").json["entries"]
    assert {entry["request_id"] for entry in entries if entry["kind"] == "requested"} == set(acknowledged)
    until(lambda: cluster.active() == "c2", "c2 is active")
    until(lambda: "control passed from c1 to c2, term 2, after " in second.forewarn("history").stdout, "it is recorded")

    first.start()  # its supervisor starts it again, as a standby
    assert first.api("GET", "/nodes").json["active"] == "c2"
    until(lambda: {n["role"] for n in first.api("GET", "/nodes").json["nodes"]} == {"active", "standby"}, "it follows")
    for node in (first, second):
        assert node.stop() == 0
    record = open_record(cluster.store)
    check_record(record)
    for node in (first, second):
        check_copy(node.data / "forewarn.db", record)
    record.close()


def _accepted(node: ServiceProcess, key: str, vm: str) -> str | None:
    answer = request_reapply(node, key, vm)
    return str(answer.json["request"]["id"]) if answer.status == 202 else None


def test_a_node_that_was_stopped_for_longer_than_its_lease_ends(cluster: ProcessCluster) -> None:
    first, second = start_pair(cluster)
    os.kill(first.pid, signal.SIGSTOP)
    until(lambda: _accepted(second, "k1", "db"), "the standby takes over")
    child = first._child
    assert child is not None
    os.kill(first.pid, signal.SIGCONT)
    assert child.wait(60) == MUST_START_AGAIN_EXIT
    assert "another control node has taken the lease" in first.log.read_text(encoding="utf-8")
    until(lambda: cluster.active() == "c2", "c2 is active")


def _roles(node: ServiceProcess) -> list[tuple[str, str]]:
    listed = printed(node.forewarn("--json", "node", "list"))
    return [(other["name"], other["role"]) for other in listed["nodes"]]


def test_the_command_line_works_on_the_standby_and_passes_control(cluster: ProcessCluster) -> None:
    first, second = start_pair(cluster)
    assert "Restart of web-0 is scheduled." in second.forewarn("restart", "web-0").stdout
    # Each node tells the others about itself every few seconds.
    until(lambda: _roles(second) == [("c1", "active"), ("c2", "standby")], "c2 knows the roles")
    until(lambda: second.forewarn("node", "show", "c2").returncode == 0, "c1 knows c2")
    until(lambda: "can take over: c2" in second.forewarn("doctor").stdout, "c1 knows that c2 can take over")
    assert "the record in PostgreSQL is complete" in second.forewarn("doctor").stdout
    assert printed(second.forewarn("--json", "node", "show", "c2"))["name"] == "c2"

    assert printed(second.forewarn("--json", "node", "resign")) == {"from": "c1", "to": "c2", "term": 2}
    until(lambda: cluster.active() == "c2", "c2 is active")
    assert first.is_running
    assert "web-0" in first.forewarn("events").stdout  # forwarded the other way now

    stopped_at = time.monotonic()
    assert second.stop() == 0  # SIGTERM
    assert until(lambda: _accepted(first, "k2", "db"), "c1 is active again")
    print(f"accepted {time.monotonic() - stopped_at:.1f} s after SIGTERM")


def fail_to_start(node: ServiceProcess) -> str:
    """Start a node that cannot start; returns the only line that it printed."""
    with pytest.raises(AssertionError, match="the service did not start"):
        node.start()
    (line,) = [line for line in node.log.read_text(encoding="utf-8").splitlines() if line]
    return line


def test_bad_input_gets_one_sentence_and_does_no_harm(
    cluster: ProcessCluster, servers: ServerPair, tmp_path: Path
) -> None:
    first = cluster.start("c1")
    create_cluster_secrets(tmp_path / "others", time.time())
    servers.query("DROP DATABASE IF EXISTS unmigrated", database="postgres")
    servers.query("CREATE DATABASE unmigrated", database="postgres")
    cases = {
        "other secrets": (cluster.node("c2", secrets=str(tmp_path / "others")), "has other secrets than its cluster"),
        "wrong password": (cluster.node("c3", store=servers.url.replace(":secret@", ":wrong@")), "password"),
        "no server": (cluster.node("c4", store="postgresql://postgres@127.0.0.1:1/forewarn"), "127.0.0.1"),
        "not a URL": (cluster.node("c5", store="nonsense"), "give it as postgresql://USER@HOST/DATABASE"),
        "no tables": (cluster.node("c6", store=servers.primary.url("unmigrated")), "forewarn store migrate"),
        "same name": (cluster.node("c1", data="c7"), "runs at https://localhost:"),
    }
    with ThreadPoolExecutor(len(cases)) as threads:
        sentences = list(threads.map(lambda case: fail_to_start(case[0]), cases.values()))
    for sentence, (case, (_, words)) in zip(sentences, cases.items(), strict=True):
        assert words in sentence, (case, sentence)
    assert first.is_running
    until(lambda: cluster.active() == "c1", "c1 is active")
