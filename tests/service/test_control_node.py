"""Control nodes of one cluster: one is active, the others follow, forward and take over. The record is in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.base.times import parse_time
from forewarn.cluster.node_roles import NodeRole
from forewarn.cluster.record import LEASE_S, RecordGroup
from forewarn.errors import Refused, Rejected
from forewarn.service.cluster_secrets import create_cluster_secrets
from forewarn.service.node_wiring import ControlNodeProcess
from tests.support.control_nodes import MemoryCluster

RESTART = {"operation": "restart", "vms": ["web-0"]}


class Pair:
    """A cluster with an active node c1 and a standby c2."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.first = cluster.start("c1")
        cluster.until_active(self.first)
        self.second = cluster.start("c2")
        cluster.until(lambda: self.second.node.target and len(self.first.node.nodes) == 2)

    def take_over(self) -> None:
        """Stop c1, and wait until c2 is active."""
        self.cluster.stop("c1")
        self.cluster.until_active(self.second)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with MemoryCluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def pair(cluster: MemoryCluster) -> Pair:
    return Pair(cluster)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair for tests that leave both nodes as they are."""
    with MemoryCluster(tmp_path_factory.mktemp("calm")) as cluster:
        pair = Pair(cluster)
        yield pair
        assert (pair.first.node.role, pair.second.node.role, cluster.ended) == ("active", "standby", {})


def bearer(active: ControlNodeProcess) -> str:
    """The header with a token of the administrator for the cluster."""
    assert active.service is not None
    assert active.service.operator_server is not None
    sign_in, client = active.service.operator_server.sign_in, active.service.control.store.client("admin")
    assert client is not None
    return f"Bearer {sign_in.issue_for_client(client, active.settings.api_url, time.time()).token}"


def test_the_first_node_is_active_and_the_second_follows(calm: Pair) -> None:
    first, second = calm.first.node, calm.second.node
    assert (first.role, first.term, second.role, second.term) == ("active", 1, "standby", 0)
    assert second.target == first.url
    assert calm.second.service is None
    calm.cluster.until(lambda: second.number == first.number == calm.cluster.server.number > 0)


def test_a_node_that_resigns_never_shows_the_number_from_before_it_was_active(pair: Pair) -> None:
    first = pair.first.node
    seen = [first.number]

    async def resign() -> None:
        first.resign()
        while first.held is not None:
            seen.append(first.number)
            await asyncio.sleep(0)
        seen.append(first.number)

    pair.cluster.do(resign())
    assert seen[0] > 0
    assert seen == sorted(seen)


def test_calls_on_the_unix_socket_of_the_standby_are_those_of_its_owner(calm: Pair) -> None:
    answer = calm.cluster.call(calm.second, "POST", "/requests", {"operation": "reapply", "vms": ["web-0"]})
    assert answer.status_code == 202
    assert answer.json()["request"]["requested_by"].endswith(" on c2")


def test_calls_at_the_console_of_the_standby_need_the_same_tokens(calm: Pair) -> None:
    calling = calm.cluster.calling_console
    answer = calm.cluster.do(calling(calm.second, "GET", "/access/me", authorization=bearer(calm.first)))
    assert (answer.status_code, answer.json()["name"]) == (200, "client admin")
    assert calm.cluster.do(calling(calm.second, "GET", "/access/me")).status_code == 401


def test_every_node_lists_all_nodes(calm: Pair) -> None:
    for process in (calm.first, calm.second):
        view = calm.cluster.call(process, "GET", "/nodes").json()
        assert (view["active"], view["term"]) == ("c1", 1)
        assert [(node["name"], node["role"], node["problem"]) for node in view["nodes"]] == [
            ("c1", "active", ""),
            ("c2", "standby", ""),
        ]
    assert calm.cluster.call(calm.second, "GET", "/nodes/C2").json()["url"] == calm.second.node.url
    assert calm.cluster.call(calm.second, "GET", "/nodes/c9").status_code == 404


def test_metrics_say_who_holds_the_lease(calm: Pair) -> None:
    for process, held in ((calm.first, 1), (calm.second, 0)):
        text = calm.cluster.do(process.render_metrics()).decode()
        assert f"\nforewarn_lease_held {held}.0\n" in text
        assert f"\nforewarn_lease_takeovers_total {held}.0\n" in text
        assert "\nforewarn_active_node_known 1.0\n" in text
        assert text.count("\nforewarn_build_info{") == 1


def test_a_second_node_with_the_same_name_is_refused(calm: Pair) -> None:
    url = calm.first.node.url
    with pytest.raises(Refused, match=f"control node 'c1' runs at {url} already: give each control node another name"):
        calm.cluster.start("c1", data=str(calm.cluster.directory / "other"))


def test_a_node_with_the_secrets_of_another_cluster_is_refused(calm: Pair, tmp_path: Path) -> None:
    create_cluster_secrets(tmp_path / "others", time.time())
    with pytest.raises(Refused, match="this control node has other secrets than its cluster"):
        calm.cluster.start("c3", secrets=str(tmp_path / "others"))


def test_a_node_without_secrets_says_how_to_get_them(calm: Pair, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"the cluster's secrets are not complete, .*ca.pem' is missing: run `forewarn"):
        calm.cluster.start("c3", secrets=str(tmp_path / "none"))


def test_secrets_are_never_replaced(calm: Pair) -> None:
    with pytest.raises(Refused, match="is not empty"):
        create_cluster_secrets(calm.cluster.secrets, time.time())


def test_nothing_that_was_acknowledged_is_lost_when_a_standby_takes_over(cluster: MemoryCluster, pair: Pair) -> None:
    first, second = pair.first, pair.second
    key, token = {"idempotency_key": "k1"}, bearer(first)
    before = cluster.call(first, "POST", "/requests", RESTART, **key).json()
    pair.take_over()
    assert second.node.term == 2

    repeated = cluster.call(second, "POST", "/requests", RESTART, **key)  # the same request
    assert (repeated.status_code, repeated.json()["request"]) == (202, before["request"])
    assert second.service is not None
    assert [request.id for request in second.service.control.store.requests()] == [before["request"]["id"]]
    assert [event["vms"] for event in cluster.call(second, "GET", "/events").json()["events"]] == [["web-0"]]

    answer = cluster.do(cluster.calling_console(second, "GET", "/fleet", authorization=token))  # the same tokens
    assert answer.status_code == 200
    told = [entry["text"] for entry in cluster.call(second, "GET", "/history").json()["entries"]]
    assert "control node c1 resigns" in told
    assert any(text.startswith("control passed from c1 to c2, term 2, after ") for text in told)
    assert second.service.control.transactions.resumed_at is None  # VMs could poll throughout


def test_control_passes_without_refusing_a_call(cluster: MemoryCluster, pair: Pair) -> None:
    """Both nodes are called all the time; calls that find no active node wait for the next one."""
    first, second = pair.first, pair.second

    async def call_until_passed(process: ControlNodeProcess) -> set[str]:
        refused = set()
        while second.node.role != "active":
            answer = await cluster.calling(process, "GET", "/clock")
            refused |= {answer.text} if answer.status_code != 200 else set()
        return refused

    async def pass_control() -> list[set[str]]:
        calling = [asyncio.create_task(call_until_passed(process)) for process in (first, second)]
        answer = await cluster.calling(second, "POST", "/nodes/resign")
        assert (answer.status_code, answer.json()["active"], answer.json()["term"]) == (200, "c1", 1)
        return await asyncio.gather(*calling)

    assert cluster.do(pass_control()) == [set(), set()]
    cluster.until(lambda: first.node.target == second.node.url)
    assert (first.node.role, second.node.role, cluster.ended) == ("standby", "active", {})
    assert cluster.call(first, "GET", "/nodes").json()["active"] == "c2"


def test_the_holder_of_an_expired_lease_must_end_when_another_node_has_taken_it(
    cluster: MemoryCluster, pair: Pair
) -> None:
    """As after SIGSTOP: the old holder goes on, and finds that it is deposed."""
    first, second = pair.first, pair.second
    assert first.node.held is not None
    first.node.held.stop()  # it renews no more
    cluster.later_s += LEASE_S + 0.1
    cluster.until_active(second)
    assert second.node.term == 2
    assert cluster.call(first, "POST", "/requests", RESTART).status_code == 503
    cluster.until(lambda: "c1" in cluster.ended)


def test_a_node_that_is_suspended_reads_but_neither_writes_nor_acts(cluster: MemoryCluster) -> None:
    only = cluster.start("c1")
    cluster.until_active(only)
    refused = cluster.call(only, "POST", "/nodes/resign")
    assert refused.json()["error"]["message"].startswith("no other control node can take over from c1: start one first")

    cluster.server.stop()
    cluster.until(lambda: only.node.role == "suspended")
    assert not only.node.may_act()
    assert cluster.call(only, "GET", "/fleet").status_code == 200
    refused = cluster.call(only, "POST", "/requests", RESTART)
    assert refused.status_code == 503
    assert "nothing can be changed, because the lease was not renewed" in refused.json()["error"]["message"]
    unsure = cluster.call(only, "POST", "/requests", {"operation": "restart", "vms": ["not in this copy"]})
    assert unsure.status_code == 503
    assert "cannot be sure that it is still the active one" in unsure.json()["error"]["message"]

    cluster.server.start()
    cluster.until_active(only)
    assert cluster.call(only, "POST", "/requests", RESTART).status_code == 202
    with cluster.server.changed:
        cluster.server.term += 1  # another node has taken the lease
    cluster.until(lambda: "c1" in cluster.ended)


def test_a_takeover_that_fails_ends_although_the_record_does_not_answer(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write of the new active node waits for a standby that has just failed."""
    monkeypatch.setattr("forewarn.cluster.replicated_store.WRITE_LIMIT_S", 0.2)
    monkeypatch.setattr("forewarn.service.control_node._ABANDON_AFTER_S", 0.1)
    server, apply = cluster.server, cluster.server.apply

    def apply_and_wait(group: RecordGroup) -> None:
        apply(group)
        server.standby_is_missing = True

    monkeypatch.setattr(server, "apply", apply_and_wait)
    only = cluster.start("c1")
    try:
        cluster.until(lambda: only.node.role == "standby" and "could not become active" in only.node.problem)
    finally:
        monkeypatch.setattr(server, "apply", apply)
        server.add_standby()
    cluster.until_active(only)


def test_only_a_node_whose_clock_is_right_takes_over_and_its_time_never_goes_back(
    cluster: MemoryCluster, pair: Pair
) -> None:
    cluster.stop("c2")
    ahead = cluster.start("c3", real_time=lambda: cluster.now() + 60)
    behind = cluster.start("c4", real_time=lambda: cluster.now() - 1.5)
    cluster.until(lambda: "its clock is" in ahead.node.problem)
    cluster.call(pair.first, "POST", "/requests", RESTART)
    cluster.stop("c1")
    cluster.until_active(behind)
    assert ahead.node.role == "standby"
    (shown,) = [node for node in cluster.call(ahead, "GET", "/nodes").json()["nodes"] if node["name"] == "c3"]
    assert shown["problem"].startswith("its clock is 60.0 s ahead of that of PostgreSQL, so it does not take over")

    times = [parse_time(entry["at"]) for entry in cluster.call(behind, "GET", "/history").json()["entries"]][-4:]
    assert times == sorted(times)
    assert behind.service is not None
    assert behind.service.control.clock.now() >= times[-1] > cluster.now() - 60


def test_a_suspension_that_was_too_short_to_be_reported_ends(cluster: MemoryCluster) -> None:
    node = cluster.start("c1")
    cluster.until_active(node)
    node.node.role = NodeRole.SUSPENDED  # as after a look in the moment before a late renewal arrived
    cluster.until_active(node)


def test_events_wait_for_the_grace_period_only_after_a_long_interruption(cluster: MemoryCluster) -> None:
    for unheld_s, waits in ((0.0, False), (10.0, False), (40.0, True)):
        cluster.later_s += unheld_s
        node = cluster.start("c1")
        cluster.until_active(node)
        assert node.service is not None
        assert (node.service.control.transactions.resumed_at is not None) == waits
        cluster.stop("c1")


def test_the_local_owner_can_list_the_nodes_while_none_is_active(cluster: MemoryCluster) -> None:
    process = cluster.start("c1", real_time=lambda: cluster.now() + 60)  # it cannot take over
    cluster.until(lambda: process.node.nodes)
    view = cluster.call(process, "GET", "/nodes").json()
    assert (view["active"], [(node["name"], node["role"]) for node in view["nodes"]]) == ("", [("c1", "standby")])
