"""The pages of one scope, one VM, the hosts and one host."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable

import pytest

from forewarn.core.faults import FaultHits
from forewarn.core.fleet import Orchestration
from forewarn.core.history import LastPoll
from forewarn.core.request import RequestedOperation
from forewarn.errors import Unavailable
from tests.portal.conftest import Page, PortalUser
from tests.portal.form_helpers import confirm, submit_form
from tests.support.operator_api import a_fleet
from tests.support.reporting_hypervisor import ReportingHypervisor
from tests.support.world import a_host, a_vm

LAB = "/subscriptions/sub/resourceGroups/lab"
VMS = f"{LAB}/providers/Microsoft.Compute/virtualMachines"


def forms(page: Page) -> list[str]:
    """The forms that a page links to."""
    return re.findall(r'href="/portal/forms/([^"?]*)\?', page.html)


def rows(page: Page) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(page.content.decode())))


def test_the_scope_page_shows_its_vms_and_their_polls(portal: PortalUser) -> None:
    vm = portal.world.vm("web-0")
    polled = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=portal.world.now, version="2019-08-01", count=7)
    portal.world.do(portal.world.store.record_observations([polled], []))
    portal.world.ask(RequestedOperation.RESTART, "web-1")
    page = portal.get("/portal/scopes/set:sub/lab/web")
    assert 'title="availability set web"' in page.html
    assert "web-0 running 0 0 h1 12:00:00 not in the last minute 2019-08-01 7" in page.text
    assert "web-1 event scheduled 1 0 h2 never — 0" in page.text
    data = rows(portal.get("/portal/scopes/set:sub/lab/web?as=csv"))
    assert [(row["name"], row["state"], row["polls"]) for row in data] == [
        ("web-0", "running", "7"),
        ("web-1", "noticed", "0"),
        ("web-2", "running", "0"),
    ]


def test_the_pages_of_a_flexible_set_show_its_vms_and_what_they_see(portal_of: Callable[..., PortalUser]) -> None:
    """Spec §14.5, §14.6."""
    facts = {"scale_set": "flex", "orchestration": Orchestration.FLEXIBLE, "narrow_delivery": True}
    vms = [a_vm(name, update_domain=n, **facts) for n, name in enumerate(("flex_0a1b2c3d", "flex_9f8e7d6c"))]
    portal = portal_of(vms=vms, hosts=[a_host("h1")])
    scope, vm = portal.get("/portal/scopes/flex"), portal.get("/portal/vms/sub/lab/flex_9f8e7d6c")
    assert 'title="scale set flex">flex</h1>' in scope.html
    assert "flex_0a1b2c3d running 0 0 h1" in scope.text
    assert "with api-version 2020-07-01, each of them only the events that affect it." in scope.text
    assert "Scope flex" in vm.text
    assert "Delivery only the events that affect it" in vm.text
    assert f"{VMS}/flex_9f8e7d6c" in vm.text
    assert 'title="scale set flex">flex</a>' in portal.get("/portal/fleet").html


@pytest.mark.parametrize("name", ["web", "lab/web", "web-2", "sub/lab/web-2", "set:sub/lab/WEB"])
def test_a_scope_is_found_by_any_of_its_names(portal: PortalUser, name: str) -> None:
    assert portal.get(f"/portal/scopes/{name}?as=json").json["id"] == "set:sub/lab/web"


def test_the_scope_page_shows_the_current_document(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "web-1")
    data = portal.get("/portal/scopes/web?as=json").json
    assert json.loads(data["document"]) == json.loads(portal.world.document("web-0", data["api_version"]))
    assert "&#34;EventType&#34;: &#34;Reboot&#34;" in portal.get("/portal/scopes/web").html


def test_the_scope_page_shows_current_and_past_events(portal: PortalUser) -> None:
    (event,) = portal.world.ask(RequestedOperation.RESTART, "web-1")
    portal.world.advance(3600)
    (pending,) = portal.world.ask(RequestedOperation.RESTART, "web-0")
    data = portal.get("/portal/scopes/web?as=json").json
    assert [one["id"] for one in data["events"]] == [pending.id]
    assert [one["id"] for one in data["over"]] == [event.id]
    page = portal.get("/portal/scopes/web")
    assert f'href="/portal/events/{event.id}"' in page.html
    assert "waits for an approval, or the end of its notice" in page.text


def test_the_scope_page_shows_only_members_that_the_user_may_read(portal: PortalUser) -> None:
    reader = portal.with_role("Reader", f"{VMS}/web-1")
    data = reader.get("/portal/scopes/web?as=json").json
    assert [vm["name"] for vm in data["vms"]] == ["web-1"]
    assert data["block"]["size"] == 1
    assert "web-0" not in reader.get("/portal/scopes/web").text
    assert reader.request("GET", "/portal/scopes/pool").status == 404


def test_the_scope_page_shows_removed_vms(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.DELETE, "web-1")
    portal.world.advance(60)
    page = portal.get("/portal/scopes/web")
    assert "Removed VMs web-1 , at 12:00:10" in page.text
    assert [vm["name"] for vm in portal.get("/portal/scopes/web?as=json").json["vms"]] == ["web-0", "web-2"]
    assert portal.with_role("Reader", f"{VMS}/web-0").get("/portal/scopes/web?as=json").json["gone"] == []


def test_the_vm_page_shows_its_facts_and_its_endpoint(portal: PortalUser) -> None:
    page = portal.get("/portal/vms/db")
    assert "curl -H Metadata:true 'http://127.0.0.9:8080/metadata/scheduledevents?api-version=2020-07-01'" in page.text
    assert f"Resource {VMS}/db" in page.text
    assert '<span class="state running" data-vm="sub/lab/db">running</span>' in page.html


@pytest.mark.parametrize("name", ["db", "lab/db", "sub/lab/db", "DB"])
def test_a_vm_is_found_by_any_of_its_names(portal: PortalUser, name: str) -> None:
    assert portal.get(f"/portal/vms/{name}?as=json").json["vm"]["key"] == "sub/lab/db"


def test_the_vm_page_shows_its_events_and_its_explanation(portal: PortalUser) -> None:
    (event,) = portal.world.ask(RequestedOperation.RESTART, "web-1")
    page = portal.get("/portal/vms/web-1")
    assert '<span class="state noticed"' in page.html
    assert "Reboot, requested by ann (user restart): scheduled" in page.text
    assert [row["id"] for row in rows(portal.get("/portal/vms/web-1?as=csv"))] == [event.id]
    data = portal.get("/portal/vms/web-1?as=json").json
    assert data["explanation"] == portal.api.get("/explain/web-1")
    assert portal.get("/portal/vms/web-0?as=json").json["events"] == []


def test_a_removed_vm_still_has_a_page(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.DELETE, "db")
    portal.world.advance(60)
    page = portal.get("/portal/vms/db")
    assert '<span class="state gone"' in page.html
    assert forms(page) == []
    assert "curl" not in page.text


def test_the_vm_page_offers_forms_that_fit_its_state(portal: PortalUser) -> None:
    usual = ["restart", "power-off", "reapply", "fault", "redeploy", "deallocate", "reimage", "delete"]
    assert forms(portal.get("/portal/vms/db")) == usual
    assert "evict" in forms(portal.get("/portal/vms/spot")), "it is a Spot VM"
    assert "scale-in" in forms(portal.get("/portal/vms/pool_0")), "it is an instance of a scale set"
    portal.world.ask(RequestedOperation.DEALLOCATE, "db")
    portal.world.advance(60)
    assert forms(portal.get("/portal/vms/db")) == ["start", "reapply", "fault", "deallocate", "delete"]


def test_the_vm_page_offers_to_perform_pending_maintenance(portal: PortalUser) -> None:
    portal.api.post("/rollouts", {"impact": "reboot", "scope": "web"})
    assert forms(portal.get("/portal/vms/web-0"))[:3] == ["approve", "withdraw", "perform-maintenance"]


def test_form_links_name_the_vm_by_its_key(portal: PortalUser) -> None:
    assert 'href="/portal/forms/restart?vm=sub%2Flab%2Fdb"' in portal.get("/portal/vms/db").html


@pytest.mark.parametrize(("role", "may"), [("Reader", False), ("Operator", True), ("ScheduledEventContributor", False)])
def test_the_vm_page_offers_forms_only_to_users_with_the_right(portal: PortalUser, role: str, may: bool) -> None:
    user = portal.with_role(role, f"{VMS}/db")
    assert bool(forms(user.get("/portal/vms/db"))) is may
    assert user.request("GET", "/portal/vms/web-0").status == 404, "it does not exist for them"


def test_the_vm_page_shows_faults_that_affect_it(portal: PortalUser) -> None:
    fault = portal.api.post("/faults", {"kind": "throttled", "vm": "db"})
    portal.api.post("/faults", {"kind": "reset", "vm": "spot"})
    data = portal.get("/portal/vms/db?as=json").json["faults"]
    assert [one["id"] for one in data] == [fault["id"]]
    page = portal.get("/portal/vms/db")
    assert "throttled for db" in page.text
    assert "reset for" not in page.text
    reader = portal.with_role("Reader", LAB)
    data = reader.get("/portal/vms/db?as=json").json
    assert data["faults"] == []
    assert "throttled" not in str(data["explanation"])
    assert "throttled" not in reader.get("/portal/history").text


def test_the_vm_page_is_shown_although_an_expired_fault_cannot_be_removed(portal: PortalUser) -> None:
    """A reader neither needs the right to remove it nor is named for it."""
    portal.api.post("/faults", {"kind": "throttled", "vm": "db", "count": 1})
    hits = [FaultHits(fault_id="f1", vm=portal.world.vm("db").key, count=1, at=portal.world.now)]
    portal.world.do(portal.world.control.faults.record_hits(hits))
    portal.world.store.fail_next(Unavailable("the disk is full"))  # type: ignore[attr-defined]
    reader = portal.with_role("Reader", "/")
    assert reader.get("/portal/vms/db?as=json").json["vm"]["name"] == "db"
    assert reader.get("/portal/vms/db?as=json").json["faults"] == []
    last = portal.world.store.history()[-1]
    assert (last.actor, last.text) == ("forewarn", "fault f1 (throttled) of db expired: it affected 1 request")


def test_the_list_of_hosts_shows_health_and_vms(portal: PortalUser) -> None:
    portal.api.post("/hosts/h2/degrade", {"in_s": 86400})
    page = portal.get("/portal/hosts")
    assert "h1 4 healthy westeurope web-0 db pool_0 pool_1" in page.text
    assert "h2 2 degraded" in page.text
    assert "healthy 2 degraded 1 failed 0" in page.text
    degraded = portal.get("/portal/hosts?health=degraded&as=json").json
    assert [host["name"] for host in degraded["hosts"]] == ["h2"]
    assert [row["VMs"] for row in rows(portal.get("/portal/hosts?as=csv"))] == ["4", "2", "1"]


def test_the_list_of_hosts_can_be_searched_and_is_paginated(portal_of: Callable[..., PortalUser]) -> None:
    user = portal_of(vms=a_fleet(), hosts=[a_host(f"h{n}") for n in range(1, 61)])
    first = user.get("/portal/hosts?page=1&as=json").json
    assert ([host["name"] for host in first["hosts"]][:3], first["total"]) == (["h1", "h2", "h3"], 60)
    names = [
        host["name"]
        for page in range(1, first["pages"] + 1)
        for host in user.get(f"/portal/hosts?page={page}&as=json").json["hosts"]
    ]
    assert names == [f"h{n}" for n in range(1, 61)]
    assert [host["name"] for host in user.get("/portal/hosts?q=H59&as=json").json["hosts"]] == ["h59"]
    assert 'No results for "nothing"' in user.get("/portal/hosts?q=nothing").text
    assert user.request("GET", "/portal/hosts?health=fine").status == 400
    assert user.request("GET", "/portal/hosts?page=9").status == 400


def test_a_user_sees_the_hosts_of_their_vms_only(portal: PortalUser) -> None:
    reader = portal.with_role("Reader", f"{VMS}/web-1")
    data = reader.get("/portal/hosts?as=json").json
    assert [(host["name"], [vm["name"] for vm in host["vms"]]) for host in data["hosts"]] == [("h2", ["web-1"])]
    assert [vm["name"] for vm in reader.get("/portal/hosts/h2?as=json").json["vms"]] == ["web-1"]
    assert reader.request("GET", "/portal/hosts/h3").status == 404
    assert [host["name"] for host in data["hosts"]] == [
        host["name"] for host in portal.api.holding("Reader", f"{VMS}/web-1").get("/fleet")["hosts"]
    ]


def test_the_empty_list_of_hosts_says_how_to_add_one(portal_of: Callable[..., PortalUser]) -> None:
    assert "forewarn fleet add-host NAME" in portal_of(vms=[], hosts=[]).get("/portal/hosts").text


def test_the_host_page_shows_vms_events_and_forms(portal: PortalUser) -> None:
    assert forms(portal.get("/portal/hosts/h2")) == ["rollout", "degrade", "fail"]
    portal.api.post("/hosts/h2/degrade", {"in_s": 86400})
    page = portal.get("/portal/hosts/h2")
    assert forms(page) == ["approve", "withdraw", "repair", "rollout", "fail"]
    assert "Redeploy" in page.text
    data = portal.get("/portal/hosts/h2?as=json").json
    assert {vm["name"] for vm in data["vms"]} == {"web-1", "spot"}
    assert {name for event in data["events"] for name in event["vms"]} == {"web-1", "spot"}


def test_the_host_page_shows_vms_that_move_there(portal_of: Callable[..., PortalUser]) -> None:
    user = portal_of(vms=[a_vm("db")], hosts=[a_host("h1"), a_host("h2")])
    user.world.ask(RequestedOperation.REDEPLOY, "db")
    user.world.advance(10 * 60)
    assert "db moving here moving" in user.get("/portal/hosts/h2").text
    user.world.advance(10 * 60)
    assert "moving here" not in user.get("/portal/hosts/h2").text


@pytest.mark.parametrize(("role", "may"), [("Reader", False), ("Operator", False), ("Platform", True)])
def test_pages_offer_platform_forms_only_to_users_with_the_right(portal: PortalUser, role: str, may: bool) -> None:
    user = portal.with_role(role, "/")
    assert bool(forms(user.get("/portal/hosts/h1"))) is may
    assert forms(user.get("/portal/scopes/web")) == (["rollout"] if may else [])
    assert ("fault" in forms(user.get("/portal/vms/db"))) is may


def test_an_unreachable_host_is_shown_as_such_and_can_be_confirmed_down(
    portal_of: Callable[..., PortalUser],
) -> None:
    portal = portal_of(hypervisor=ReportingHypervisor(waits_for_host="h1"))
    (event,) = portal.world.ask(RequestedOperation.RESTART, "db")
    portal.world.approve("db", event.id)
    page = portal.get("/portal/hosts/h1")
    assert "healthy unreachable It does not answer the hypervisor, and acts on its VMs wait." in page.text
    assert forms(page)[-2:] == ["fail", "confirm-down"]
    assert "confirm-down" not in forms(portal.get("/portal/hosts/h2"))
    hosts = portal.get("/portal/hosts?as=json").json["hosts"]
    assert [host["name"] for host in hosts if host["unreachable"]] == ["h1"]
    assert "unreachable" in portal.get("/portal/hosts").text

    question = confirm(portal, "confirm-down", {"host": "h1"})
    assert "You state that host h1 is certainly down" in question.text
    assert "its VMs will run twice and damage their disks" in question.text
    page = submit_form(portal, "confirm-down", {"host": "h1"})
    assert "confirmed down" in page.text
    assert "An operator has confirmed that it is down" in portal.get("/portal/hosts/h1").text
    assert "confirm-down" not in forms(portal.get("/portal/hosts/h1"))
    assert "repair" in forms(portal.get("/portal/hosts/h1"))
