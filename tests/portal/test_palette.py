"""The command palette: what it finds, in which order, and for whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.request import RequestedOperation
from forewarn.core.resource_ids import vm_resource_id
from forewarn.store.memory import MemoryStore
from forewarn.web.portal.navigation import NAVIGATION, current_page, pages_for
from forewarn.web.portal.palette import MAX_RESULTS
from tests.portal.conftest import PortalUser
from tests.support.world import LAB_POLICY, a_host, a_vm

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reference" / "portal.md"


def results(portal: PortalUser, text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = portal.get(f"/portal/palette?q={quote(text)}").json["results"]
    return found


def titles(portal: PortalUser, text: str, kind: str = "") -> list[str]:
    return [found["title"] for found in results(portal, text) if kind in ("", found["kind"])]


def test_without_a_text_the_palette_lists_pages_and_actions(portal: PortalUser) -> None:
    found = results(portal, "")
    pages = [result["title"] for result in found if result["kind"] == "page"]
    assert pages == [page.title for page in pages_for(is_cluster=False)]
    assert {"Restart VMs", "Start a rollout"} <= {result["title"] for result in found if result["kind"] == "action"}
    assert len(found) <= MAX_RESULTS


@pytest.mark.parametrize(
    ("text", "kind", "title", "href"),
    [
        ("timel", "page", "Timeline", "/portal/timeline"),
        ("WEB-0", "VM", "web-0", "/portal/vms/sub/lab/web-0"),
        ("h1", "host", "h1", "/portal/hosts/h1"),
        ("web", "scope", "web", "/portal/scopes/set:sub/lab/web"),
        ("advance", "action", "Advance the clock", "/portal/forms/clock-advance"),
        ("restart web-1", "action", "Restart web-1", "/portal/forms/restart?vm=sub%2Flab%2Fweb-1"),
    ],
)
def test_the_palette_finds_each_kind_of_thing(portal: PortalUser, text: str, kind: str, title: str, href: str) -> None:
    assert (kind, title, href) in [(found["kind"], found["title"], found["href"]) for found in results(portal, text)]
    assert portal.request("GET", href).status == 200


def test_the_vm_of_that_name_comes_first(portal_of: Callable[..., PortalUser]) -> None:
    vms = [a_vm(name) for name in ("web-10", "my-web-1", "web-1", "web-11")]
    portal = portal_of(LAB_POLICY, vms=vms, hosts=[a_host("h1")])
    assert titles(portal, "web-1", "VM") == ["web-1", "web-10", "web-11", "my-web-1"]


def test_a_pending_event_is_found_by_its_vm_its_kind_and_its_id(portal: PortalUser) -> None:
    (event,) = portal.api.restart_of("db")
    for text in ("db", "reboot", event["id"][:8], event["id"].lower()):
        (found,) = (result for result in results(portal, text) if result["kind"] == "event")
        assert found["title"] == "Reboot of db"
        assert found["href"] == f"/portal/events/{event['id']}"
        assert found["detail"].startswith("scheduled")


def test_an_event_that_is_over_is_found_by_its_whole_id_only(portal: PortalUser) -> None:
    (event,) = portal.api.restart_of("db")
    portal.world.advance(3_600)
    assert titles(portal, event["id"].lower(), "event") == ["Reboot of db"]
    assert titles(portal, event["id"][:8], "event") == []
    reader = portal.with_role("Reader", vm_resource_id(portal.world.vm("web-0")))
    assert titles(reader, event["id"].lower(), "event") == []


def test_an_event_is_found_among_many_that_the_user_may_not_see(portal_of: Callable[..., PortalUser]) -> None:
    """By its kind and by the beginning of its id, although 200 others are newer."""
    vms = [a_vm(name) for name in ("mine", *(f"other-{n}" for n in range(201)))]
    portal = portal_of(LAB_POLICY, vms=vms, hosts=[a_host("h1")])
    (event,) = portal.api.restart_of("mine")
    portal.world.ask(RequestedOperation.RESTART, *(vm.name for vm in vms[1:]))
    reader = portal.with_role("Reader", vm_resource_id(portal.world.vm("mine")))
    assert titles(reader, "reboot", "event") == ["Reboot of mine"]
    assert titles(reader, event["id"][:8], "event") == ["Reboot of mine"]


class ReadCountingStore(MemoryStore):
    """Counts the reads of VMs and of events."""

    reads = 0

    def vms(self, **conditions: Any) -> list[Vm]:
        self.reads += 1
        return super().vms(**conditions)

    def events(self, **conditions: Any) -> list[Event]:
        self.reads += 1
        return super().events(**conditions)


@pytest.mark.parametrize("text", ["00000000", "reboot", "host-", "pool", "e-"])
def test_a_search_of_a_restricted_user_does_not_read_what_they_may_not_see(
    portal_of: Callable[..., PortalUser], text: str
) -> None:
    store = ReadCountingStore()
    hosts = [a_host(f"host-{n}") for n in range(20)]
    hidden = [a_vm(f"vm-{n}", host=host.name, availability_set=f"pool-{n}") for n, host in enumerate(hosts)]
    portal = portal_of(LAB_POLICY, vms=[a_vm("mine", host="host-7"), *hidden], hosts=hosts, store=store)
    portal.world.ask(RequestedOperation.RESTART, *(vm.name for vm in hidden))
    reader = portal.with_role("Reader", vm_resource_id(portal.world.vm("mine")))
    results(reader, "zzz")  # builds the indexes
    store.reads = 0
    assert titles(reader, text) == (["host-7"] if text == "host-" else [])
    assert store.reads == 0


def test_a_user_finds_the_host_that_a_vm_has_moved_to(portal: PortalUser) -> None:
    vm = portal.world.vm("db")
    reader = portal.with_role("Reader", vm_resource_id(vm))
    assert titles(reader, "h", "host") == [vm.host]
    portal.world.ask(RequestedOperation.REDEPLOY, "db")
    portal.world.advance(3_600)
    moved = portal.world.vm("db").host
    assert moved != vm.host
    assert titles(reader, "h", "host") == [moved]


def test_a_rollout_is_found_by_its_target_and_its_id(portal: PortalUser) -> None:
    rollout = portal.api.post("/rollouts", {"impact": "reboot", "scope": "web"})
    for text in ("web", "rollout", rollout["id"][:8]):
        (found,) = (result for result in results(portal, text) if result["kind"] == "rollout")
        assert found["title"] == "Reboot over web"
        assert found["href"] == f"/portal/rollouts/{rollout['id']}"


def test_there_are_at_most_20_results(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of(
        LAB_POLICY, vms=[a_vm(f"start-{n}", host="start-host") for n in range(100)], hosts=[a_host("start-host")]
    )
    assert 5 < len(results(portal, "s")) <= MAX_RESULTS
    assert 5 < len(results(portal, "start")) <= MAX_RESULTS


def test_nothing_matches_an_unknown_text(portal: PortalUser) -> None:
    assert results(portal, "zzz") == []


def test_a_user_finds_only_what_they_may_see_and_do(portal: PortalUser) -> None:
    portal.api.restart_of("web-0")
    portal.api.post("/rollouts", {"impact": "reboot", "scope": "web"})
    reader = portal.with_role("Reader", vm_resource_id(portal.world.vm("db")))
    assert titles(reader, "db", "VM") == ["db"]
    assert titles(reader, "web") == []
    assert titles(reader, "reboot", "event") == []
    assert titles(reader, "rollout", "rollout") == []
    assert titles(reader, "restart") == []
    assert titles(reader, "restart db", "action") == []
    operator = portal.with_role("Operator", vm_resource_id(portal.world.vm("db")))
    assert "Restart db" in titles(operator, "restart db", "action")
    assert "Restart VMs" in titles(operator, "restart", "action")
    assert titles(operator, "advance", "action") == []
    assert titles(operator, "restart web", "action") == []


def test_a_user_without_a_role_finds_nothing(portal: PortalUser) -> None:
    nobody = portal.with_role("Reader")
    assert nobody.request("GET", "/portal/palette?q=db").status == 403


@pytest.mark.parametrize("query", ["q=a&q=b", f"q={'x' * 201}", "text=db"])
def test_an_invalid_query_is_rejected(portal: PortalUser, query: str) -> None:
    assert portal.request("GET", f"/portal/palette?{query}").status == 400


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/portal/vms/lab/db", "Fleet"),
        ("/portal/scopes/set:sub/lab/web", "Fleet"),
        ("/portal/events/E1", "Timeline"),
        ("/portal/hosts/h1", "Hosts"),
        ("/portal/requests/r1", "Timeline"),
        ("/portal/lab", "Lab"),
    ],
)
def test_a_detail_page_belongs_to_a_page_of_the_header(path: str, title: str) -> None:
    page = current_page(path)
    assert page is not None
    assert page.title == title


def test_no_two_pages_have_the_same_keys() -> None:
    keys = [page.keys for page in NAVIGATION]
    assert len(set(keys)) == len(keys)
    assert all(page.keys.startswith("g ") and page.keys[2:] in page.title.casefold() for page in NAVIGATION)


def test_the_documentation_lists_the_keys_of_every_page() -> None:
    text = DOCUMENTATION.read_text("utf-8")
    for page in NAVIGATION:
        assert " ".join(f"`{key}`" for key in page.keys.split()) in text
