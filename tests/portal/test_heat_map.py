"""The heat map of the fleet: areas, cells, states, links, and its size with many VMs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.core.request import RequestedOperation
from forewarn.web.portal import heat_map
from tests.portal.conftest import PortalUser
from tests.support.world import a_host, a_vm

LAB = "/subscriptions/sub/resourceGroups/lab"


def read_map(user: PortalUser) -> Any:
    return user.get("/portal/?as=json").json["fleet"]


def cells_by_state(data: Any) -> dict[str, int]:
    """How many cells the map draws in each state."""
    counts: dict[str, int] = {}
    for area in data["areas"]:
        for run in area["runs"]:
            counts[run["state"]] = counts.get(run["state"], 0) + run["width"] // 10
    return counts


def test_each_scope_is_an_area_with_its_title_and_link(portal: PortalUser) -> None:
    data = read_map(portal)
    assert [(area["title"], area["size"], area["href"]) for area in data["areas"]] == [
        ("web", 3, "/portal/scopes/set:sub/lab/web"),
        ("standalone VMs of lab", 2, "/portal/fleet?q=lab"),
        ("pool/pg-0", 2, "/portal/scopes/placement:sub/lab/pool/pg-0"),
    ]
    assert data["vms_per_cell"] == 1
    assert cells_by_state(data) == {"running": 7}


def test_a_vm_that_is_not_running_has_its_own_link_and_name(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-1")
    page = portal.get("/portal/")
    assert '<a href="/portal/vms/sub/lab/web-1" tabindex="-1"><title>web-1, event scheduled</title>' in page.html
    assert "web: 3 VMs, 2 running, 1 event scheduled" in page.text
    assert cells_by_state(read_map(portal)) == {"running": 6, "noticed": 1}


def test_every_pattern_that_the_map_uses_is_defined(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-1")
    portal.world.ask(RequestedOperation.POWER_OFF, "db")
    page = portal.get("/portal/").html
    assert set(re.findall(r"url\(#([\w-]+)\)", page)) == set(re.findall(r'<pattern id="([\w-]+)"', page))


def test_with_many_vms_a_cell_stands_for_several(
    portal_of: Callable[..., PortalUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heat_map, "MAX_CELLS", 10)
    user = portal_of(vms=[a_vm(f"v{n}") for n in range(95)], hosts=[a_host("h1")])
    user.world.ask(RequestedOperation.RESTART, *(f"v{n}" for n in range(12)))
    data = read_map(user)
    assert data["vms_per_cell"] == 10
    (area,) = data["areas"]
    assert area["states"] == {"running": 83, "noticed": 12}
    assert [(run["state"], run["share"], run["width"]) for run in area["runs"]][:3] == [
        ("noticed", "most", 10),
        ("noticed", "some", 10),
        ("running", "most", 30),
    ]
    assert sum(cells_by_state(data).values()) == 10
    assert "Each cell is 10 VMs" in user.get("/portal/").text


def test_the_share_of_a_last_cell_is_of_the_vms_that_it_has(
    portal_of: Callable[..., PortalUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heat_map, "MAX_CELLS", 10)
    user = portal_of(vms=[a_vm(f"v{n}") for n in range(95)], hosts=[a_host("h1")])
    user.world.ask(RequestedOperation.RESTART, "v92", "v93", "v94")
    (area,) = read_map(user)["areas"]
    assert (area["runs"][-1]["state"], area["runs"][-1]["share"]) == ("noticed", "most")


@pytest.mark.parametrize("role", ["Owner", "Reader"])
def test_the_layout_is_made_once_until_a_vm_is_added(
    portal: PortalUser, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    made: list[object] = []
    divide = heat_map._divide

    def count_layouts(groups: Any) -> Any:
        made.append(groups)
        return divide(groups)

    monkeypatch.setattr(heat_map, "_divide", count_layouts)
    user = portal if role == "Owner" else portal.with_role(role, LAB)
    assert [sum(cells_by_state(read_map(user)).values()) for _ in range(2)] == [7, 7]
    portal.world.ask(RequestedOperation.RESTART, "web-1")
    assert cells_by_state(read_map(user)) == {"running": 6, "noticed": 1}
    assert len(made) == 1
    portal.api.post("/fleet/vms", {"name": "late", "host": "h1", "resource_group": "lab"})
    assert cells_by_state(read_map(user)) == {"running": 7, "noticed": 1}
    assert len(made) == 2


@pytest.mark.parametrize(
    ("limit", "areas"), [(3, 3), (2, 2), (1, 1)], ids=["scopes", "resource groups", "the whole fleet"]
)
def test_a_map_with_many_scopes_is_divided_by_group_or_not_at_all(
    portal_of: Callable[..., PortalUser], monkeypatch: pytest.MonkeyPatch, limit: int, areas: int
) -> None:
    monkeypatch.setattr(heat_map, "MAX_AREAS", limit)
    vms = [a_vm("w", availability_set="web"), a_vm("v"), a_vm("x", resource_group="other")]
    data = read_map(portal_of(vms=vms, hosts=[a_host("h1")]))
    assert len(data["areas"]) == areas
    assert sum(area["size"] for area in data["areas"]) == 3
    assert cells_by_state(data) == {"running": 3}


def test_a_user_is_shown_visible_vms_only(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-1")
    reader = portal.with_role("Reader", f"{LAB}/providers/Microsoft.Compute/virtualMachines/db")
    data = read_map(reader)
    assert [(area["title"], area["size"]) for area in data["areas"]] == [("standalone VMs of lab", 1)]
    assert cells_by_state(data) == {"running": 1}
    assert "web-1" not in reader.get("/portal/").text


def test_an_added_vm_is_in_the_map(portal: PortalUser) -> None:
    assert cells_by_state(read_map(portal)) == {"running": 7}
    portal.api.post("/fleet/vms", {"name": "late", "host": "h1", "resource_group": "lab"})
    assert cells_by_state(read_map(portal)) == {"running": 8}


def test_the_map_of_a_large_fleet_is_small(portal_of: Callable[..., PortalUser]) -> None:
    """Equal neighbours are one rectangle, so that the page does not grow with the fleet."""
    vms = [a_vm(f"v{n}") for n in range(3_000)]
    page = portal_of(vms=vms, hosts=[a_host("h1")]).get("/portal/")
    assert page.html.count("<rect") < 100
    assert len(page.content) < 40_000
