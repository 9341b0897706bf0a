"""Exports hold all search results, of which a page shows a part."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import RequestedOperation
from forewarn.core.resource_ids import vm_resource_id
from forewarn.web.portal import clients_page, fleet_page, history_page, host_pages
from tests.portal.conftest import PortalUser
from tests.support.world import a_host, a_vm

SETS, OF_A_SET, ALONE, HOSTS = 20, 12, 450, 30
TOTAL = SETS * OF_A_SET + ALONE
PAGES = {"fleet": fleet_page, "hosts": host_pages, "clients": clients_page, "history": history_page}


@pytest.fixture
def portal(portal_of: Callable[..., PortalUser]) -> PortalUser:
    """The portal of a fleet that does not fit on one page."""
    members = [
        a_vm(f"s{n}-{m}", availability_set=f"s{n}", update_domain=m % 5, host=f"h{(n + m) % HOSTS}")
        for n in range(SETS)
        for m in range(OF_A_SET)
    ]
    alone = [a_vm(f"alone-{n}", resource_group="solo", host=f"h{n % HOSTS}") for n in range(ALONE)]
    return portal_of(vms=[*members, *alone], hosts=[a_host(f"h{n}") for n in range(HOSTS)])


def everyone(portal: PortalUser) -> set[str]:
    return {vm.key for vm in portal.world.store.vms()}


def rows(portal: PortalUser, target: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(portal.get(target).content.decode())))


def commit_entries(portal: PortalUser, count: int, **about: Any) -> None:
    entries = tuple(
        HistoryEntry(at=portal.world.now, kind=EntryKind.UPKEEP, text=f"entry {n}", **about) for n in range(count)
    )
    portal.world.do(portal.world.store.commit(Commit(entries=entries)))


def cells(data: Any) -> list[str]:
    return [vm["key"] for group in data["groups"] for block in group["blocks"] for vm in block["vms"]]


def test_an_export_of_the_fleet_is_complete(portal: PortalUser) -> None:
    data = portal.get("/portal/fleet?as=json").json
    assert (data["found"], data["page"], data["pages"], data["is_partial"]) == (TOTAL, 1, 1, False)
    assert len(cells(data)) == TOTAL
    assert set(cells(data)) == everyone(portal)
    assert [group["name"] for group in data["groups"]] == ["lab", "solo"]
    sizes = [(len(block["vms"]), block["size"]) for block in data["groups"][0]["blocks"]]
    assert sizes == [(OF_A_SET, OF_A_SET)] * SETS
    assert {row["key"] for row in rows(portal, "/portal/fleet?as=csv")} == everyone(portal)


def test_an_export_holds_only_search_results(portal: PortalUser) -> None:
    assert len(cells(portal.get("/portal/fleet?q=alone-&as=json").json)) == ALONE
    assert len(rows(portal, "/portal/clients?q=alone-&as=csv")) == ALONE
    assert len(rows(portal, "/portal/clients?q=alone-&only=without-handler&as=csv")) == 0
    assert {row["name"] for row in rows(portal, "/portal/hosts?q=h2&as=csv")} == {
        "h2",
        *(f"h{n}" for n in range(20, 30)),
    }


def test_an_export_of_the_hosts_is_complete(portal: PortalUser) -> None:
    data = portal.get("/portal/hosts?as=json").json
    assert len(data["hosts"]) == HOSTS
    assert {vm["key"] for one in data["hosts"] for vm in one["vms"]} == everyone(portal)
    assert sum(int(row["VMs"]) for row in rows(portal, "/portal/hosts?as=csv")) == TOTAL


def test_an_export_of_the_clients_is_complete_and_in_the_order_of_the_pages(portal: PortalUser) -> None:
    portal.api.restart_of("alone-400")
    data = [client["key"] for client in portal.get("/portal/clients?as=json").json["clients"]]
    assert set(data) == everyone(portal)
    assert [row["key"] for row in rows(portal, "/portal/clients?as=csv")] == data
    first = [client["key"] for client in portal.get("/portal/clients?page=1&as=json").json["clients"]]
    assert data[: clients_page.CLIENTS_PER_PAGE] == first
    assert data[0].endswith("/alone-400")


@pytest.mark.parametrize("whole", [True, False])
def test_an_export_of_the_history_is_complete_newest_first(portal: PortalUser, whole: bool) -> None:
    vm = portal.world.vm("alone-7")
    commit_entries(portal, 1500)
    commit_entries(portal, 1200, scope_id=vm.scope_id)
    user = portal if whole else portal.with_role("Reader", vm_resource_id(vm))
    every = [e.seq for e in portal.world.store.history() if whole or e.scope_id == vm.scope_id][::-1]
    data = user.get("/portal/history?as=json").json
    assert [entry["seq"] for entry in data["entries"]] == every
    assert (data["older"], data["newer"], data["is_partial"]) == (None, None, False)
    assert [int(row["seq"]) for row in rows(user, "/portal/history?as=csv")] == every
    of_scope = [e.seq for e in portal.world.store.history(scope_id=vm.scope_id)]
    assert len(rows(portal, f"/portal/history?scope={vm.scope_id}&as=csv")) == len(of_scope) > 1200


@pytest.mark.parametrize(
    ("target", "held"),
    [
        ("/portal/fleet?page=2&as=csv", 200),
        ("/portal/hosts?page=2&as=csv", HOSTS - 20),
        ("/portal/clients?page=1&as=csv", clients_page.CLIENTS_PER_PAGE),
        ("/portal/history?limit=3&as=csv", 3),
    ],
)
def test_an_export_of_one_page_holds_that_page(portal: PortalUser, target: str, held: int) -> None:
    commit_entries(portal, 10)
    assert 0 < len(rows(portal, target)) <= held


@pytest.mark.parametrize(
    "target",
    [
        "/portal/fleet?page=2&q=a",
        "/portal/hosts?page=2",
        "/portal/clients?page=2&q=a",
        "/portal/history?before=9&limit=3",
    ],
)
def test_export_links_name_no_page(portal: PortalUser, target: str) -> None:
    commit_entries(portal, 10)
    links = re.findall(r'href="([^"]*as=(?:json|csv))"', portal.get(target).html)
    assert len(links) == 2
    assert not [link for link in links if re.search(r"page=|before=|limit=", link)]
    assert all(("q=a" in link) == ("q=a" in target) for link in links)


@pytest.mark.parametrize("name", ["", "hosts", "clients", "history"])
def test_the_query_cannot_ask_for_all_pages(portal: PortalUser, name: str) -> None:
    assert portal.request("GET", f"/portal/{name}?whole=true").status == 400


@pytest.mark.parametrize("name", PAGES)
def test_an_incomplete_export_says_so(portal: PortalUser, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    commit_entries(portal, 1500)
    monkeypatch.setattr(PAGES[name], "MAX_EXPORT_ROWS", 300)
    path = f"/portal/{name}"
    data = portal.get(f"{path}?as=json").json
    assert data["is_partial"]
    text = portal.get(f"{path}?as=csv").content.decode()
    last = text.strip().splitlines()[-1]
    assert re.fullmatch(r"cut after \d+( of \d+)? rows: use a narrower search", last), last
    if name == "fleet":
        assert len(cells(data)) == 300


def numbers_of(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers_of(inner)
    elif isinstance(value, float):
        yield value


def test_no_page_exports_a_time_as_a_number(portal: PortalUser) -> None:
    """Times of the world have eleven digits as POSIX seconds."""
    (event,) = portal.world.ask(RequestedOperation.RESTART, "alone-1")
    portal.world.advance(20)
    pages = ("", "fleet", "hosts", "clients", "history", "timeline", "rollouts", "lab", "nodes", "standing-order")
    things = (f"events/{event.id}", f"requests/{event.request_id}", "hosts/h1")
    for page in (*pages, *things):
        data = portal.get(f"/portal/{page}?as=json").json
        assert not [number for number in numbers_of(data) if number > 1e9], page
