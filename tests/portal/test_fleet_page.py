"""The fleet page: blocks of VMs as cells, counts, search, filters, pagination."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.base.times import time_text
from forewarn.core.access import owner_principal
from forewarn.core.decision import Policy
from forewarn.core.explain.polling import PollingPace
from forewarn.core.fleet import Vm
from forewarn.core.request import RequestedOperation
from forewarn.core.scope import Scope
from forewarn.store.memory import MemoryStore
from tests.portal.conftest import Page, PortalUser
from tests.support.operator_api import Api
from tests.support.world import NOON, a_host, a_vm

LAB = "/subscriptions/sub/resourceGroups/lab"
ONLY_POOL = f"{LAB}/providers/Microsoft.Compute/virtualMachineScaleSets/pool"


def cells(page: Page) -> list[str]:
    """The labels of the cells, as a screen reader says them."""
    return re.findall(r'<a class="cell [^>]* aria-label="([^"]*)"', page.html)


def block(user: PortalUser, scope: str, target: str = "/portal/fleet") -> dict[str, Any]:
    """One block of the page as JSON."""
    data = user.get(f"{target}{'&' if '?' in target else '?'}as=json").json
    found: dict[str, Any] = next(b for group in data["groups"] for b in group["blocks"] if b["scope"] == scope)
    return found


def test_every_vm_is_a_cell_with_its_name_and_state(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-1")
    page = portal.get("/portal/fleet")
    assert sorted(cells(page)) == [
        "db, running",
        "pool_0, running",
        "pool_1, running",
        "spot, running",
        "web-0, running",
        "web-1, event scheduled",
        "web-2, running",
    ]
    assert 'href="/portal/vms/sub/lab/web-1" data-vm="sub/lab/web-1"' in page.html
    assert "Showing 7 of 7 VMs." in page.text


def test_an_availability_set_is_a_grid_of_update_and_fault_domains(portal_of: Callable[..., PortalUser]) -> None:
    vms = [
        a_vm(f"w{n}", availability_set="web", update_domain=domain, fault_domain=fault)
        for n, (domain, fault) in enumerate([(0, 0), (1, 1), (0, 2), (2, 0), (0, 0)])
    ]
    page = portal_of(vms=vms, hosts=[a_host("h1")]).get("/portal/fleet")
    grid = re.search(r'<table class="by-domain">(.*?)</table>', page.html, re.S)
    assert grid is not None
    assert re.findall(r'<th scope="col"><abbr title="fault domain">FD</abbr> (\d)', grid[1]) == ["0", "1", "2"]
    rows = re.findall(r'<th scope="row"><abbr title="update domain">UD</abbr> (\d).*?</th>(.*?)</tr>', grid[1], re.S)
    places = {int(domain): re.findall(r"<td>(.*?)</td>", row, re.S) for domain, row in rows}
    named = {domain: [re.findall(r'aria-label="(\w+),', place) for place in row] for domain, row in places.items()}
    assert named == {0: [["w0", "w4"], [], ["w2"]], 1: [[], ["w1"], []], 2: [["w3"], [], []]}


def test_a_grid_has_no_columns_if_each_update_domain_is_one_fault_domain(portal_of: Callable[..., PortalUser]) -> None:
    vms = [a_vm(f"w{n}", availability_set="web", update_domain=n % 3, fault_domain=n % 3) for n in range(6)]
    page = portal_of(vms=vms, hosts=[a_host("h1")]).get("/portal/fleet")
    grid = re.search(r'<table class="by-domain">(.*?)</table>', page.html, re.S)
    assert grid is not None
    assert '<th scope="col">' not in grid[1]
    assert "UD 0 FD 0" in page.text
    assert "UD 2 FD 2" in page.text
    places = re.findall(r"<td>(.*?)</td>", grid[1], re.S)
    assert [re.findall(r'aria-label="(\w+),', place) for place in places] == [["w0", "w3"], ["w1", "w4"], ["w2", "w5"]]


def test_a_block_says_which_update_domain_is_under_maintenance(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-2")
    portal.world.advance(15 * 60)
    assert "update domain 2 under maintenance" in portal.get("/portal/fleet").text
    assert block(portal, "set:sub/lab/web")["in_progress"] == [2]
    portal.world.advance(15 * 60)
    assert "under maintenance" not in portal.get("/portal/fleet").text


def test_a_block_shows_pending_events_and_the_next_not_before(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-2")
    portal.world.advance(60)
    portal.world.ask(RequestedOperation.RESTART, "web-0")
    assert "2 pending events, the next not before 12:15:00" in portal.get("/portal/fleet").text
    assert block(portal, "set:sub/lab/web")["next_not_before"] == time_text(NOON + 15 * 60)


PortalWithPolls = Callable[[dict[str, float]], PortalUser]


@pytest.fixture
def portal_with_polls(api: Api) -> PortalWithPolls:
    """Makes the portal of a service whose VMs polled the given number of seconds ago."""

    def make(silent_s: dict[str, float]) -> PortalUser:
        paces = {f"sub/lab/{name}": PollingPace(silent) for name, silent in silent_s.items()}
        api.dependencies = dataclasses.replace(api.dependencies, pace_of=paces.get)
        return PortalUser(api, owner_principal("local user ann"))

    return make


@pytest.mark.parametrize(
    ("silent_s", "data"),
    [
        ({}, "no client has polled yet"),
        ({"web-0": 1, "web-1": 59}, "2 of 3 polled in the last minute"),
        ({"web-0": 1, "web-1": 1, "web-2": 1}, "all polled in the last minute"),
        ({"web-0": 300, "web-1": 120}, "no client polled in the last minute; the last poll was 2 min ago"),
    ],
)
def test_a_block_says_how_many_vms_poll(
    portal_with_polls: PortalWithPolls, silent_s: dict[str, float], data: str
) -> None:
    assert data in portal_with_polls(silent_s).get("/portal/fleet?q=web-").text


def test_polling_is_counted_for_the_whole_scope_even_if_a_part_is_shown(portal_with_polls: PortalWithPolls) -> None:
    assert "1 of 3 polled in the last minute" in portal_with_polls({"web-0": 1}).get("/portal/fleet?q=web-2").text


def test_a_block_says_that_its_scope_is_not_enabled(portal_of: Callable[..., PortalUser]) -> None:
    user = portal_of(Policy())
    assert "not enabled: no client has polled yet" in user.get("/portal/fleet?q=pool").text
    assert "0 of 2 enabled" in user.get("/portal/fleet").text


def test_the_counts_link_to_a_filter_by_state(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-1")
    portal.world.ask(RequestedOperation.POWER_OFF, "db")
    portal.world.advance(20)
    page = portal.get("/portal/fleet")
    assert 'data-count="running">5<' in page.html
    assert 'data-count="stopped">1<' in page.html
    noticed = portal.get("/portal/fleet?state=noticed")
    assert cells(noticed) == ["web-1, event scheduled"]
    assert "1 of 7 VMs match." in noticed.text
    assert len(cells(portal.get("/portal/fleet?state=running"))) == 5
    assert 'data-live="fleet"' in noticed.html, "VMs enter and leave the filter"


def test_a_filter_keeps_the_order_of_the_fleet(portal: PortalUser) -> None:
    for name in ("spot", "web-2", "db", "web-0"):
        portal.world.ask(RequestedOperation.POWER_OFF, name)
    portal.world.advance(20)
    stopped = [cell.partition(",")[0] for cell in cells(portal.get("/portal/fleet?state=stopped"))]
    assert stopped == ["web-0", "web-2", "db", "spot"]


def test_an_unknown_state_is_rejected(portal: PortalUser) -> None:
    page = portal.request("GET", "/portal/fleet?state=fine")
    assert page.status == 400
    assert "'fine' is not a state of a VM. running event scheduled" in page.text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("WEB-1", ["web-1"]),
        ("set", []),
        ("web", ["web-0", "web-1", "web-2"]),
        ("pg-0", ["pool_0", "pool_1"]),
        ("lab/d", ["db"]),
        ("h3", ["web-2"]),
        ("sub", []),
        ("  db ", ["db"]),
    ],
)
def test_a_search_finds_vms_scopes_groups_and_hosts(portal: PortalUser, text: str, names: list[str]) -> None:
    assert [
        cell.partition(",")[0] for cell in cells(portal.get(f"/portal/fleet?q={text.replace(' ', '%20')}"))
    ] == names


def test_a_search_for_a_group_finds_all_its_vms(portal: PortalUser) -> None:
    assert len(cells(portal.get("/portal/fleet?q=lab"))) == 7


def test_a_search_without_results_says_so(portal: PortalUser) -> None:
    page = portal.get("/portal/fleet?q=%3Cb%3Ex&state=noticed")
    assert 'No results for "<b>x" in the state "event scheduled"' in page.text
    assert "<b>x" not in page.html


def test_the_page_of_an_empty_fleet_says_how_to_add_vms(portal_of: Callable[..., PortalUser]) -> None:
    page = portal_of(vms=[], hosts=[]).get("/portal/fleet")
    assert "You cannot see any VMs." in page.text
    assert "forewarn fleet add NAME" in page.text
    assert "forewarn fleet apply FILE" in page.text


def many(count: int, size: int = 7) -> list[Vm]:
    sets = [
        a_vm(f"s{n}-{m}", availability_set=f"s{n}", update_domain=m % 5, fault_domain=m % 3)
        for n in range(count // size // 2)
        for m in range(size)
    ]
    return sets + [a_vm(f"alone-{n}", resource_group="solo") for n in range(count - len(sets))]


def test_a_page_holds_a_bounded_number_of_vms_and_each_vm_is_on_one_page(portal_of: Callable[..., PortalUser]) -> None:
    user = portal_of(vms=many(1500), hosts=[a_host("h1")])
    first = user.get("/portal/fleet?page=1&as=json").json
    assert (first["total"], first["found"], first["page"]) == (1500, 1500, 1)
    seen: list[str] = []
    for number in range(1, first["pages"] + 1):
        data = user.get(f"/portal/fleet?page={number}&as=json").json
        blocks = [block for group in data["groups"] for block in group["blocks"]]
        keys = [vm["key"] for block in blocks for vm in block["vms"]]
        assert 0 < len(keys) <= 200
        assert all(len(block["vms"]) == block["size"] for block in blocks if block["scope"]), "a set is not cut"
        seen += keys
    assert len(seen) == len(set(seen)) == 1500
    page = user.get("/portal/fleet?page=2")
    assert 'rel="prev" href="/portal/fleet?q=&amp;state=&amp;page=1"' in page.html
    assert f"Page 2 of {first['pages']}" in page.text
    assert "running 1,500 " in page.text
    assert re.search(r"Showing \d+ of 1,500 VMs\.", page.text)
    assert "Fleet 1,500" in user.get("/portal/").text


def test_an_unknown_page_number_is_rejected(portal: PortalUser) -> None:
    page = portal.request("GET", "/portal/fleet?page=2")
    assert page.status == 400
    assert "Page 2 does not exist: the last one is 1" in page.text


def test_added_and_removed_vms_change_the_pages(portal: PortalUser) -> None:
    assert portal.get("/portal/fleet?as=json").json["found"] == 7
    portal.api.post("/fleet/vms", {"name": "late"})
    portal.api.delete("/fleet/vms/db")
    page = portal.get("/portal/fleet")
    assert {"late, running", "db, running"} & set(cells(page)) == {"late, running"}
    assert portal.get("/portal/fleet?as=json").json["found"] == 7


class CountingStore(MemoryStore):
    """A store that records what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def scope(self, scope_id: str) -> Scope | None:
        self.read.append(scope_id)
        return super().scope(scope_id)

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        if scope_id is None and host is None:
            self.read.append("every VM")
        return super().vms(scope_id=scope_id, host=host, removed=removed)


def test_a_page_of_a_large_fleet_reads_only_what_it_shows(portal_of: Callable[..., PortalUser]) -> None:
    store = CountingStore()
    user = portal_of(vms=many(3000), hosts=[a_host("h1")], store=store)
    for target in ("/portal/fleet", "/portal/fleet?page=3", "/portal/fleet?q=s12", "/portal/fleet?state=running"):
        store.read.clear()
        user.get(target)
        assert 0 < len(store.read) <= 200
        assert "every VM" not in store.read


def test_the_fleet_page_shows_only_vms_that_the_user_may_read(portal: PortalUser) -> None:
    reader = portal.with_role("Reader", ONLY_POOL)
    page = reader.get("/portal/fleet")
    assert cells(page) == ["pool_0, running", "pool_1, running"]
    assert "Showing 2 of 2 VMs." in page.text
    assert 'data-count="running">2<' in page.html
    assert "web" not in page.text
    assert 'No results for "web-1"' in reader.get("/portal/fleet?q=web-1").text
    assert 'No results for "h3"' in reader.get("/portal/fleet?q=h3").text


def test_a_block_shows_only_the_members_that_the_user_may_read(portal: PortalUser) -> None:
    reader = portal.with_role("Reader", f"{LAB}/providers/Microsoft.Compute/virtualMachines/web-1")
    page = reader.get("/portal/fleet")
    assert cells(page) == ["web-1, running"]
    assert block(reader, "set:sub/lab/web")["size"] == 1


def test_a_user_without_a_role_is_told_so(portal: PortalUser) -> None:
    page = portal.with_role("Reader").request("GET", "/portal/fleet")
    assert page.status == 403
    assert "client ci has no role anywhere" in page.text


def test_the_fleet_page_can_be_exported_as_csv_and_json(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-1")
    rows = list(csv.DictReader(io.StringIO(portal.get("/portal/fleet?as=csv&q=web-").content.decode())))
    assert [(row["name"], row["state"], row["update domain"], row["host"]) for row in rows] == [
        ("web-0", "running", "0", "h1"),
        ("web-1", "noticed", "1", "h2"),
        ("web-2", "running", "2", "h3"),
    ]
    data = portal.get("/portal/fleet?as=json&state=noticed").json
    assert [vm["name"] for group in data["groups"] for block in group["blocks"] for vm in block["vms"]] == ["web-1"]
    assert data["counts"]["noticed"] == 1


EVIL = "<script>alert(1)</script>"


def test_markup_in_names_is_escaped(portal_of: Callable[..., PortalUser]) -> None:
    vms = [
        a_vm("<script>alert(1)<", host="h1", tags={EVIL: '"><img src=x>'}, computer_name=EVIL),
        a_vm('"onload=x', availability_set=EVIL, resource_group="<b>g", host="h1"),
    ]
    user = portal_of(vms=vms, hosts=[a_host("h1")])
    for target in (
        "/portal/",
        "/portal/fleet",
        "/portal/fleet?q=%3Cscript%3E",
        "/portal/vms/%3Cscript%3Ealert(1)%3C",
        "/portal/vms/%22onload=x",
        "/portal/scopes/%22onload=x",
        "/portal/hosts",
        "/portal/hosts/h1",
    ):
        page = user.get(target)
        assert "<script>alert" not in page.html
        assert "<img src=x>" not in page.html
        assert "<b>g" not in page.html
        assert '""onload' not in page.html
    assert EVIL in user.get("/portal/vms/%3Cscript%3Ealert(1)%3C").text


def test_a_vm_whose_name_is_markup_can_be_added(portal: PortalUser) -> None:
    """A name may hold any printable character but a slash."""
    added = portal.api.post("/fleet/vms", {"name": "<script>alert(1)<", "host": "h1"})
    assert added["name"] == "<script>alert(1)<"
    page = portal.get("/portal/fleet?q=%3Cscript%3E")
    assert cells(page) == ["&lt;script&gt;alert(1)&lt;, running"]
    link = re.search(r'<a class="cell [^>]* href="([^"]*)"', page.html)
    assert link is not None
    assert "<script>alert(1)<" in portal.get(link[1]).text
