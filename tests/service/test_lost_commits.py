"""Control nodes whose record has lost commits say so until its epochs are renewed. The record is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.core.commit import Commit
from forewarn.errors import Unavailable
from forewarn.service.node_roles import can_take_over
from forewarn.service.node_wiring import ControlNodeProcess
from tests.support.control_nodes import MemoryCluster

LOST = "PostgreSQL has lost commits: "


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with MemoryCluster(tmp_path) as cluster:
        yield cluster


def losses_in_history(cluster: MemoryCluster, process: ControlNodeProcess) -> list[str]:
    assert process.service is not None
    return [entry.text for entry in process.service.control.store.history() if entry.text.startswith(LOST)]


def test_commits_that_a_standby_knows_and_the_record_has_lost_are_told_once_and_until_the_end(
    cluster: MemoryCluster,
) -> None:
    first = cluster.start("c1")
    cluster.until_active(first)
    second = cluster.start("c2")
    assert cluster.call(first, "POST", "/requests", {"ask": "reapply", "vms": ["db"]}).status_code == 202
    cluster.until(lambda: second.node.number == cluster.server.number)
    known = second.node.number
    cluster.server.promote(lost=1)
    cluster.until(lambda: second.node.problem.startswith(f"{LOST}control node c2 had group {known}, but the record"))
    assert can_take_over(second.node.role, second.node.problem)

    cluster.stop("c1")
    cluster.until_active(second)
    cluster.until(lambda: losses_in_history(cluster, second))
    told = losses_in_history(cluster, second)
    assert second.node.problem in told
    assert "\nforewarn_record_lost_commits 1.0\n" in cluster.do(second.render_metrics()).decode()
    assert cluster.call(second, "GET", "/nodes/c2").json()["problem"] == second.node.problem

    cluster.stop("c2")
    cluster.later_s += 10.0  # another process may have its name then
    again = cluster.start("c2")
    cluster.until_active(again)
    assert again.node.problem.startswith(LOST), "the loss is remembered on disk"
    cluster.until(lambda: len(again.node.nodes) > 1)
    assert losses_in_history(cluster, again) == told


def test_commits_that_a_host_node_knows_and_the_record_has_lost_are_told(cluster: MemoryCluster) -> None:
    active = cluster.start("c1")
    cluster.until_active(active)
    active.node.note_lost_commits("the node of host h1", 900)
    cluster.until(lambda: losses_in_history(cluster, active))
    (text,) = losses_in_history(cluster, active)
    assert text.startswith(f"{LOST}the node of host h1 had group 900, but the record ended at group ")
    assert active.node.problem == text


def test_a_loss_whose_entry_could_not_be_written_is_told_later(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = cluster.start("c1")
    cluster.until_active(active)
    assert active.service is not None
    store = active.service.control.store
    failed: list[Commit] = []
    commit_to_store = store.commit

    async def fail_first(commit: Commit) -> int:
        if not failed and any(entry.text.startswith(LOST) for entry in commit.entries):
            failed.append(commit)
            raise Unavailable("the record is gone")
        return await commit_to_store(commit)

    monkeypatch.setattr(store, "commit", fail_first)
    active.node.note_lost_commits("the node of host h1", 900)
    cluster.until(lambda: losses_in_history(cluster, active))
    assert len(failed) == 1
    assert losses_in_history(cluster, active) == [active.node.problem]
