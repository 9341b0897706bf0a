"""The page of nodes: control nodes, host nodes, what is wrong with them, takeovers, and live changes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forewarn.base.times import time_text
from forewarn.core.access import owner_principal
from forewarn.core.cause import Verb
from forewarn.core.commit import Commit
from forewarn.core.control_node import NodeRow
from forewarn.core.event import Act
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.machines.interface import ActUnderWay
from forewarn.web.portal import nodes_page
from tests.portal.conftest import Page, PortalUser
from tests.portal.live_stream_client import open_stream, run_scenario
from tests.portal.test_tables_as_cards import assert_cells_are_labelled, tables_of_cards
from tests.support.operator_api import Api
from tests.support.world import World

REAL_TIME = 1_700_000_000.0
ALONE = "This service runs alone on one machine: it has no other control nodes, and no host nodes."


class ControlNodes:
    """The control nodes of a cluster as the active one, c1, knows them."""

    name, active_name, active_term, problem = "c1", "c1", 7, ""
    clock_difference_s = 0.34

    def __init__(self) -> None:
        self.nodes = [
            NodeRow(name="c1", url="https://c1:8443", role="active", version="1.2", number=90),
            NodeRow(name="c2", url="https://c2:8443", role="standby", version="1.2", number=88, last_seen_ago_s=0.4),
        ]

    def resign(self) -> None:
        raise AssertionError("no page lets a node resign")


def host_node(host: str, **facts: Any) -> dict[str, Any]:
    """A host node that answers, as the service describes it, with these facts changed."""
    return {
        "host": host,
        "id": f"id-{host}",
        "version": "1.2",
        "machine": host,
        "pid": 12,
        "hypervisor": "simulated",
        "workers": 0,
        "vms": 3,
        "silent_s": 0.6,
        "term": 7,
        "position": 1234,
        "clock_ahead_s": -0.04,
        "stopped": False,
        **facts,
    }


class Cluster:
    """A world whose service is the active node c1 of a cluster, with the host nodes that the test puts there."""

    def __init__(self, api: Api, *, control: bool = True, bus: bool = True) -> None:
        self.world: World = api.world
        self.control_nodes = ControlNodes()
        self.host_nodes: list[dict[str, Any]] = [host_node(host.name) for host in self.world.store.hosts()]
        api.dependencies = replace(
            api.dependencies,
            control_node=self.control_nodes if control else None,
            host_nodes=(lambda: self.host_nodes) if bus else None,
            real_time=lambda: REAL_TIME,
        )
        self.user = PortalUser(api, owner_principal("local user ann"))

    def get(self, query: str = "") -> Page:
        return self.user.get(f"/portal/nodes{query}")

    def json(self, query: str = "") -> Any:
        return self.get(f"?as=json{query}").json

    def add_entries(self, *texts: str, what: EntryKind = EntryKind.SERVICE) -> None:
        entries = tuple(HistoryEntry(at=self.world.now, kind=what, actor="forewarn", text=text) for text in texts)
        self.world.do(self.world.store.commit(Commit(entries=entries)))


@pytest.fixture
def cluster(api: Api) -> Cluster:
    return Cluster(api)


def test_the_page_of_a_service_that_runs_alone_says_so(portal: PortalUser) -> None:
    page = portal.get("/portal/nodes")
    assert ALONE in page.text
    assert "Takeovers" not in page.text


def test_only_a_cluster_has_its_nodes_in_the_header(portal: PortalUser, api_of: Callable[..., Api]) -> None:
    assert 'href="/portal/nodes"' not in portal.get("/portal/").html
    assert 'href="/portal/nodes"' in Cluster(api_of()).user.get("/portal/").html


def test_the_header_hides_the_nodes_from_users_who_may_not_see_everything(cluster: Cluster) -> None:
    user = cluster.user.with_role("Reader", "/subscriptions/sub/resourceGroups/lab")
    assert 'href="/portal/nodes"' not in user.get("/portal/").html
    assert user.request("GET", "/portal/nodes").status == 403


def test_a_healthy_cluster_shows_its_nodes_and_no_problem(cluster: Cluster) -> None:
    page = cluster.get()
    assert "Control node c1 is active, term 7, and another one can take over. All host nodes answer." in page.text
    assert 'class="message error' not in page.html
    assert [(node["name"], node["role"], node["term"], node["behind"]) for node in cluster.json()["control"]] == [
        ("c1", "active", 7, 0),
        ("c2", "standby", None, 2),
    ]


def test_each_control_node_shows_its_clock_as_far_as_the_active_one_knows_it(cluster: Cluster) -> None:
    assert [node["clock"] for node in cluster.json()["control"]] == ["+0.3 s", "within 2 s"]


def test_a_standby_that_cannot_take_over_says_why(cluster: Cluster) -> None:
    cluster.control_nodes.nodes[1] = NodeRow(
        name="c2",
        url="https://c2:8443",
        role="standby",
        version="1.2",
        status="its clock is 5 s ahead",
        last_seen_ago_s=24.0,
    )
    page = cluster.get()
    assert "No other control node can take over: start one, or repair those below." in page.text
    assert "its clock is 5 s ahead" in page.text
    assert cluster.json()["control"][1]["seen"] == "20 s ago"


def test_a_suspended_node_is_a_problem_of_the_whole_cluster(cluster: Cluster) -> None:
    cluster.control_nodes.nodes[0] = NodeRow(name="c1", url="https://c1:8443", role="suspended", version="1.2")
    assert "Control node c1 is suspended: it changes nothing and begins no act" in cluster.get().text


def test_a_node_of_another_release_is_named(cluster: Cluster) -> None:
    cluster.control_nodes.nodes[1] = NodeRow(name="c2", url="https://c2:8443", role="standby", version="1.1")
    assert cluster.json()["control"][1]["advice"] == (
        "it runs another release than the active node (1.2): upgrade the older one"
    )


@pytest.mark.parametrize(
    ("facts", "state", "since", "advice"),
    [
        ({}, "answering", None, ""),
        ({"clock_ahead_s": 3.21}, "answering", None, "Its clock differs by 3.2 s: let both machines synchronize"),
        ({"silent_s": 40.2}, "silent", REAL_TIME - 40, "If host h1 runs, look at the node's log there"),
        ({"silent_s": 2.0, "stopped": True}, "stopped", REAL_TIME - 2, "It was stopped: start it again on host h1."),
    ],
)
def test_a_host_node_shows_its_state_and_what_to_do(
    cluster: Cluster, facts: dict[str, Any], state: str, since: float | None, advice: str
) -> None:
    cluster.host_nodes[:] = [host_node("h1", **facts)]
    host = next(host for host in cluster.json()["hosts"] if host["host"] == "h1")
    assert (host["state"], host["since"]) == (state, time_text(since))
    assert host["advice"].startswith(advice)
    assert bool(host["advice"]) == bool(advice)


def test_a_host_of_the_fleet_whose_node_has_not_joined_is_listed(cluster: Cluster) -> None:
    cluster.host_nodes[:] = cluster.host_nodes[1:]
    first = cluster.json()["hosts"][0]
    assert (first["host"], first["state"]) == ("h1", "absent")
    assert "None has joined: start one with `forewarn node run --host h1` on that host." in cluster.get().text
    assert "do not answer." in cluster.get().text


def test_acts_that_wait_for_a_host_are_counted(cluster: Cluster) -> None:
    cluster.host_nodes[0]["silent_s"] = 40.0
    progress = cluster.world.control.executor.progress
    for number in range(2):
        act = Act(id=f"act-{number}", event_id="e", vm=f"vm-{number}", name=f"vm-{number}", verb=Verb.REBOOT)
        progress.record(act, ActUnderWay(at=cluster.world.now, waits_for_host="h1"))
    assert cluster.json()["hosts"][0]["waiting_acts"] == 2
    assert "Acts that wait for them: 2." in cluster.get().text


def test_hosts_are_found_by_name_and_state_and_have_pages(cluster: Cluster) -> None:
    cluster.host_nodes[:] = [host_node(f"n{number}") for number in range(60)]
    cluster.host_nodes[7]["silent_s"] = 30.0
    page = cluster.get("?q=n")
    assert "Showing 50 of" in page.text
    assert "Page 1 of 2" in page.text
    assert [host["host"] for host in cluster.json("&state=silent")["hosts"]] == ["n7"]
    assert len(cluster.json("&q=n&state=answering")["hosts"]) == 59
    refused = cluster.user.request("GET", "/portal/nodes?state=nowhere")
    assert refused.status == 400
    assert "is not a state of a host node" in refused.text


def test_the_export_has_a_row_for_each_host_node(cluster: Cluster) -> None:
    rows = list(csv.DictReader(io.StringIO(cluster.get("?as=csv").content.decode())))
    assert {row["host"] for row in rows} == {host.name for host in cluster.world.store.hosts()}
    assert {row["state"] for row in rows} == {"answering"}


def test_takeovers_are_read_from_the_history(cluster: Cluster) -> None:
    cluster.add_entries("control node c2 is active, term 6", "control passed from c2 to c1, term 7, after 3.4 s")
    cluster.add_entries("service started, version 1.2, process 9")
    cluster.add_entries("control passed to nobody", what=EntryKind.UPKEEP)
    assert [entry["text"] for entry in cluster.json()["takeovers"]] == [
        "control passed from c2 to c1, term 7, after 3.4 s",
        "control node c2 is active, term 6",
    ]


def test_every_cell_of_the_page_of_nodes_carries_the_name_of_its_column(cluster: Cluster) -> None:
    tables = tables_of_cards(cluster.get().html)
    assert len(tables) == 2
    for table in tables:
        assert_cells_are_labelled(table)


@pytest.mark.parametrize(
    ("control", "bus", "shown", "hidden"),
    [(True, False, "control-nodes", "host-nodes"), (False, True, "host-nodes", "control-nodes")],
)
def test_a_cluster_shows_only_the_kinds_of_nodes_that_it_has(
    api: Api, control: bool, bus: bool, shown: str, hidden: str
) -> None:
    page = Cluster(api, control=control, bus=bus).get()
    assert f'id="{shown}"' in page.html
    assert f'id="{hidden}"' not in page.html


def test_an_open_page_hears_of_a_node_that_falls_silent(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_page, "_CHECK_INTERVAL_S", 0.01)

    async def scenario() -> None:
        async with open_stream(cluster.user) as stream:
            await stream.next("counts")
            cluster.host_nodes[0]["silent_s"] = 40.0
            assert (await stream.next("nodes"))[0] == "nodes"

    run_scenario(cluster.user, scenario)


def test_a_page_with_the_same_nodes_is_not_told_of_them(cluster: Cluster) -> None:
    before = nodes_page.host_node_rows(cluster.user.api.dependencies)
    for node in cluster.host_nodes:
        node["silent_s"] += 1.0
        node["clock_ahead_s"] += 0.01
    assert nodes_page.host_node_rows(cluster.user.api.dependencies) == before
