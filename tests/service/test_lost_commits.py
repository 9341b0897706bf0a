"""A record that has lost commits leads to a new epoch by itself, and is reported. The record is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.cluster.node_roles import can_take_over
from forewarn.core.scope import Scope
from forewarn.service.node_wiring import ControlNodeProcess
from tests.support.control_nodes import MemoryCluster

LOST = "PostgreSQL has lost commits: "
DAY_S = 86400.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with MemoryCluster(tmp_path) as cluster:
        yield cluster


def store_of(process: ControlNodeProcess) -> Any:
    assert process.service is not None
    return process.service.control.store


def scopes(process: ControlNodeProcess) -> dict[str, Scope]:
    return {scope.id: scope for scope in store_of(process).scopes()}


def losses_in_history(process: ControlNodeProcess) -> list[str]:
    if process.service is None:
        return []
    return [entry.text for entry in store_of(process).history() if LOST in entry.text]


def request_reapply(cluster: MemoryCluster, process: ControlNodeProcess, vm: str) -> None:
    assert cluster.call(process, "POST", "/requests", {"operation": "reapply", "vms": [vm]}).status_code == 202


def check_new_epoch(before: dict[str, Scope], after: dict[str, Scope]) -> None:
    """What a VM sees now cannot be taken for anything that it saw before."""
    assert before.keys() == after.keys()
    for id, scope in after.items():
        assert scope.epoch > before[id].epoch
        assert scope.incarnation > before[id].incarnation


def test_a_standby_that_knows_lost_commits_takes_over_in_a_new_epoch_and_reports_it(cluster: MemoryCluster) -> None:
    first = cluster.start("c1")
    cluster.until_active(first)
    second = cluster.start("c2")
    request_reapply(cluster, first, "db")
    cluster.until(lambda: second.node.number == cluster.server.number)
    before, known = scopes(first), second.node.number
    cluster.stop("c1")  # which writes one more
    cluster.until_active(second)
    cluster.stop("c2")
    cluster.server.promote(lost=cluster.server.number - known + 1)

    cluster.later_s += 10.0  # another process may have its name then
    again = cluster.start("c2")
    cluster.until_active(again)
    check_new_epoch(before, scopes(again))
    cluster.until(lambda: losses_in_history(again))
    text = again.node.problem
    assert text.startswith(f"{LOST}control node c2 had group ")
    (told,) = losses_in_history(again)
    assert told.endswith(text.partition(";")[0])
    assert "\nforewarn_record_lost_commits 1.0\n" in cluster.do(again.render_metrics()).decode()
    assert cluster.call(again, "GET", "/nodes/c2").json()["problem"] == text

    follower = cluster.start("c3")
    cluster.until(lambda: follower.node.problem == text)
    assert can_take_over(follower.node.role, follower.node.problem)
    cluster.later_s += DAY_S
    cluster.until(lambda: follower.node.problem == "")


def test_an_active_node_begins_a_new_epoch_when_a_standby_knows_lost_commits(cluster: MemoryCluster) -> None:
    first = cluster.start("c1")
    cluster.until_active(first)
    second = cluster.start("c2")
    cluster.until(lambda: second.node.number == cluster.server.number)
    before, term = scopes(first), first.node.term
    cluster.server.lost = f"{LOST}control node c2 had another group"
    cluster.until(lambda: first.node.takeovers == 2 and losses_in_history(first))
    check_new_epoch(before, scopes(first))
    assert first.node.term > term
    assert cluster.ended == {}
    request_reapply(cluster, first, "db")
    cluster.until(lambda: second.node.number == cluster.server.number)
    assert cluster.server.lost == ""


def test_an_active_node_whose_server_lacks_its_last_group_ends_without_a_write(cluster: MemoryCluster) -> None:
    only = cluster.start("c1")
    cluster.until_active(only)
    cluster.server.promote(lost=1)
    cluster.until(lambda: "c1" in cluster.ended)
    assert "has lost group" in cluster.ended["c1"]


@pytest.mark.parametrize(("ahead", "mark", "is_lost"), [(1, "any", True), (0, "another", True), (0, "", False)])
def test_what_a_host_node_has_shown_and_the_record_lacks_leads_to_a_new_epoch(
    cluster: MemoryCluster, ahead: int, mark: str, is_lost: bool
) -> None:
    active = cluster.start("c1")
    cluster.until_active(active)
    before, position = scopes(active), active.node.record_position
    request_reapply(cluster, active, "db")
    number = active.node.number + 1 if ahead else position.number
    assert cluster.do(active.node.has_group("the node of host h1", position.number, position.hash))
    assert cluster.do(active.node.has_group("the node of host h1", number, mark)) is not is_lost
    if is_lost:
        cluster.until(lambda: active.node.takeovers == 2 and losses_in_history(active))
        assert f"{LOST}the node of host h1 had group {number}, but " in losses_in_history(active)[0]
        check_new_epoch(before, scopes(active))


def test_a_node_is_suspended_while_its_server_demands_no_standby_although_it_did(cluster: MemoryCluster) -> None:
    first = cluster.start("c1")
    cluster.until_active(first)
    cluster.server.is_synchronous = False
    refused = cluster.call(first, "POST", "/requests", {"operation": "reapply", "vms": ["db"]})
    assert refused.status_code == 503, "before the next renewal, too"
    cluster.until(lambda: first.node.role == "suspended")
    assert "forewarn store without-standby" in first.node.problem
    assert not first.node.may_act()

    cluster.server.is_synchronous = True
    cluster.until_active(first)
    request_reapply(cluster, first, "db")
    cluster.stop("c1")
    cluster.server.is_synchronous = False
    second = cluster.start("c2")
    cluster.until(lambda: "synchronous_standby_names" in second.node.problem)
    assert not can_take_over(second.node.role, second.node.problem)
    cluster.server.demands_standby = False
    cluster.until_active(second)
    request_reapply(cluster, second, "web-0")
