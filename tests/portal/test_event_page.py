"""The event page: facts, deliveries, explanation, and the documents of all api-versions."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from forewarn.core.decision import Policy
from forewarn.core.history import EventDelivery
from forewarn.core.projection import document_for
from forewarn.core.request import RequestedOperation
from forewarn.core.resource_ids import vm_resource_id
from forewarn.machines.simulated import FailRule, SimulatedBehaviour
from forewarn.protocol.exchange import EndpointRules, PollRequest, poll_response, read_request
from forewarn.protocol.http_message import HttpRequest
from forewarn.protocol.versions import VERSIONS
from tests.portal.conftest import PortalUser
from tests.support.reporting_hypervisor import ReportingHypervisor
from tests.support.world import LAB_POLICY, a_host, a_vm


def poll_text(portal: PortalUser, vm: str, version: str, rules: EndpointRules = EndpointRules()) -> str:
    """The document that the VM receives now, in this version."""
    target = f"/metadata/scheduledevents?api-version={version}"
    poll = read_request(
        HttpRequest(method="GET", target=target, headers=(("metadata", "true"),)), is_known_caller=True, rules=rules
    )
    assert isinstance(poll, PollRequest)
    scope = portal.world.scope(vm)
    document = document_for(scope).narrowed_to(vm) if scope.is_narrow else document_for(scope)
    return poll_response(poll, tag="", document=document, rules=rules).body.decode()


def record_delivery(
    portal: PortalUser, vm_name: str, event_id: str, status: str = "scheduled", version: str = "2020-07-01"
) -> None:
    vm = portal.world.vm(vm_name)
    delivery = EventDelivery(
        event_id=event_id,
        scope_id=vm.scope_id,
        vm=vm.key,
        status=status,
        version=version,
        incarnation=2,
        at=portal.world.now,
    )
    portal.world.do(portal.world.store.record_observations([], [delivery]))


def versions(portal: PortalUser, event_id: str) -> dict[str, dict[str, Any]]:
    wire = portal.get(f"/portal/events/{event_id}?as=json").json["wire"]
    return {rendering["version"]: rendering for rendering in wire["versions"]}


def request_restart(portal: PortalUser, vm: str) -> str:
    (event,) = portal.api.restart_of(vm)
    return str(event["id"])


def test_the_page_of_a_pending_event_shows_all_its_facts(portal: PortalUser) -> None:
    event_id = request_restart(portal, "web-0")
    page = portal.get(f"/portal/events/{event_id}")
    for sentence in (
        "Reboot of web-0: user restart",
        "scheduled Waits for an approval, or the end of its notice.",
        "Starts in 15 min without an approval, at 12:15:00",
        "Requested by local user ann",
        "Notice 15 min promised",
        "Approved no",
        "Waits for an approval, or the end of its notice, until 12:15:00 at the latest",
        "Update domain 0",
        "Source User",
        "local user ann requested it: user restart; scheduled with 15 min of notice",
    ):
        assert sentence in page.text
    event = portal.world.store.event(event_id)
    assert event is not None
    request_id = event.request_id
    assert f'href="/portal/requests/{request_id}"' in page.html
    assert f'data-live="event:{event_id} scope:set:sub/lab/web"' in page.html
    assert "<dt>Started</dt>" not in page.html
    assert "<dt>Ended</dt>" not in page.html
    portal.world.advance(1_800)
    page = portal.get(f"/portal/events/{event_id}")
    assert re.search(r"Started 12:15:00 Ended 12:1\d:\d\d , finished", page.text)


def test_an_event_is_found_by_its_id_in_any_case(portal: PortalUser) -> None:
    event_id = request_restart(portal, "db")
    assert event_id in portal.get(f"/portal/events/{event_id.lower()}").text
    assert portal.request("GET", "/portal/events/FFFFFFFF").status == 404


@pytest.mark.parametrize("version", VERSIONS)
def test_the_document_of_every_version_is_what_a_vm_receives(portal: PortalUser, version: str) -> None:
    portal.api.post("/hosts/h3/degrade", {"in_s": 86400})
    event_id = request_restart(portal, "web-0")
    given = poll_text(portal, "web-1", version)
    assert event_id in given
    rendering = versions(portal, event_id)[version]
    assert rendering == {"version": version, "text": given, "hidden": ""}
    page = portal.get(f"/portal/events/{event_id}")
    as_sent = html.escape(given, quote=True).replace("&quot;", "&#34;")
    assert f'aria-label="{version} as sent">{as_sent}</pre>' in page.html
    part = re.search(rf'<details id="version-{version}".*?<pre [^>]*>(.*?)</pre>', page.html, re.S)
    assert part is not None
    assert json.loads(html.unescape(part[1])) == json.loads(given)


def test_the_document_of_an_event_in_a_narrow_scope_is_that_of_its_vm(portal_of: Callable[..., PortalUser]) -> None:
    """Spec §14.6."""
    facts = {"availability_set": "gpu", "fault_domain_count": 1, "narrow_delivery": True}
    portal = portal_of(vms=[a_vm(f"gpu-{n}", update_domain=n, **facts) for n in (0, 1)], hosts=[a_host("h1")])
    first, second = request_restart(portal, "gpu-0"), request_restart(portal, "gpu-1")
    for vm, own, other in (("gpu-0", first, second), ("gpu-1", second, first)):
        text = versions(portal, own)["2020-07-01"]["text"]
        assert text == poll_text(portal, vm, "2020-07-01")
        assert own in text
        assert other not in text
        page = portal.get(f"/portal/events/{own}").text
        assert f"VM {vm} receives this document now, in each api-version, byte for byte." in page
        assert "Every VM of the scope" not in page


def test_a_version_that_does_not_list_the_kind_says_so(portal: PortalUser) -> None:
    portal.api.post("/requests", {"operation": "evict", "vms": ["spot"]})
    (event,) = portal.world.events()
    renderings = versions(portal, event.id)
    unlisted = [version for version, rendering in renderings.items() if rendering["hidden"]]
    assert unlisted == ["2017-08-01", "2017-03-01"]
    assert renderings["2017-08-01"]["text"] == poll_text(portal, "spot", "2017-08-01")
    assert event.id not in renderings["2017-08-01"]["text"]
    text = portal.get(f"/portal/events/{event.id}").text
    assert "2017-08-01 does not list Preempt events: a VM that polls with it does not receive this one." in text


def test_the_documents_follow_the_rules_of_the_location(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of()
    rules = EndpointRules(versions=("2017-08-01", "2020-07-01"), iso_dates=True)
    portal.api.dependencies = replace(
        portal.api.dependencies, rules_for=lambda location: rules if location == "westeurope" else EndpointRules()
    )
    portal = PortalUser(portal.api, portal.principal)
    event_id = request_restart(portal, "db")
    renderings = versions(portal, event_id)
    assert {version: rendering["text"] for version, rendering in renderings.items()} == {
        version: poll_text(portal, "db", version, rules) for version in rules.versions
    }
    assert "2026-01-05T12:15:00" in renderings["2017-08-01"]["text"]


def test_without_polls_the_page_shows_the_document_of_the_first_poll(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of(Policy())
    portal.api.post("/hosts/h1/degrade", {"in_s": 86400})
    event = next(event for event in portal.world.events() if event.vms == ("db",))
    page = portal.get(f"/portal/events/{event.id}")
    assert "No client polls in this scope, so no VM receives the event." in page.text
    previewed = versions(portal, event.id)["2020-07-01"]["text"]
    portal.world.do(portal.world.control.guests.enable_scope_of(portal.world.vm("db").key))
    assert poll_text(portal, "db", "2020-07-01") == previewed


def test_without_polls_the_page_of_a_narrow_scope_names_the_vm(portal_of: Callable[..., PortalUser]) -> None:
    """Spec §14.6."""
    facts = {"availability_set": "gpu", "fault_domain_count": 1, "narrow_delivery": True}
    vms = [a_vm(f"gpu-{n}", host="h1", update_domain=n, **facts) for n in (0, 1)]
    portal = portal_of(Policy(), vms=vms, hosts=[a_host("h1"), a_host("h2")])
    portal.api.post("/hosts/h1/degrade", {"in_s": 86400})
    event = next(event for event in portal.world.events() if event.vms == ("gpu-0",))
    page = portal.get(f"/portal/events/{event.id}")
    assert "VM gpu-0 will receive this document with its first poll" in page.text


def test_a_past_event_is_shown_as_vms_last_received_it(portal: PortalUser) -> None:
    event_id = request_restart(portal, "db")
    portal.world.approve("db", event_id)
    started = json.loads(poll_text(portal, "db", "2019-08-01"))["Events"][0]
    portal.world.advance(60)
    page = portal.get(f"/portal/events/{event_id}")
    assert "The event is no longer in any document." in page.text
    assert "their incarnation and their other events are unknown" in page.text
    assert json.loads(versions(portal, event_id)["2019-08-01"]["text"]) == started


def test_a_withdrawn_event_was_last_received_as_scheduled(portal: PortalUser) -> None:
    event_id = request_restart(portal, "db")
    scheduled = json.loads(poll_text(portal, "db", "2020-07-01"))["Events"][0]
    portal.api.post(f"/events/{event_id}/withdraw", {"reason": "<i>not needed</i>"})
    page = portal.get(f"/portal/events/{event_id}")
    assert json.loads(versions(portal, event_id)["2020-07-01"]["text"]) == scheduled
    assert "withdrawn: <i>not needed</i>" in page.text
    assert "<i>" not in page.html


def test_an_unlisted_event_was_never_in_a_document(portal: PortalUser) -> None:
    portal.api.post("/requests", {"operation": "power-off", "vms": ["db"]})
    (event,) = portal.world.events()
    page = portal.get(f"/portal/events/{event.id}")
    assert "unlisted" in page.text
    assert "The event was never in a document: it was performed at once, without notice." in page.text
    assert versions(portal, event.id) == {}


def test_each_vm_of_an_event_shows_its_delivery_and_its_act(portal: PortalUser) -> None:
    event_id = request_restart(portal, "web-0")
    portal.world.advance(5)
    record_delivery(portal, "web-0", event_id, version="2019-08-01")
    record_delivery(portal, "web-2", event_id)
    portal.world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(note="no <power>"),)))
    portal.world.advance(55)
    portal.world.approve("web-0", event_id)
    page = portal.get(f"/portal/events/{event_id}")
    assert "web-0 yes 12:00:05 2019-08-01 — reboot failed, 12:01:00 no <power>" in page.text
    assert "web-2 no, informed only 12:00:05 2020-07-01 — —" in page.text
    assert 'href="/portal/vms/sub/lab/web-0"' in page.html
    rows = list(csv.DictReader(io.StringIO(portal.get(f"/portal/events/{event_id}?as=csv").content.decode())))
    assert [(row["vm"], row["affected"], row["outcome"]) for row in rows] == [
        ("sub/lab/web-0", "yes", "failed"),
        ("sub/lab/web-2", "no", ""),
    ]


def test_the_event_of_a_rollout_links_to_it_and_names_its_gate(portal: PortalUser) -> None:
    rollout = portal.api.post("/rollouts", {"impact": "update", "hosts": ["h2"]})["id"]
    event = portal.world.store.events(request_id=rollout)[0]
    page = portal.get(f"/portal/events/{event.id}")
    assert f'href="/portal/rollouts/{rollout}"' in page.html
    assert "together with the other VMs on host h2; the gate is closed" in page.text


def test_an_event_links_to_the_events_that_it_replaces(portal: PortalUser) -> None:
    first = request_restart(portal, "db")
    (event,) = portal.api.post("/requests", {"operation": "redeploy", "vms": ["db"]})["events"]
    assert (
        f'<a href="/portal/events/{first}"><code class="id" title="{first}">{first}</code></a>'
        in portal.get(f"/portal/events/{event['id']}").html
    )


def test_an_event_page_offers_only_what_the_user_may_do(portal: PortalUser) -> None:
    event_id = request_restart(portal, "db")
    approve, withdraw = (f'href="/portal/forms/{name}?event={event_id}"' for name in ("approve", "withdraw"))
    db = vm_resource_id(portal.world.vm("db"))

    def offered(user: PortalUser) -> tuple[bool, bool]:
        page = user.get(f"/portal/events/{event_id}").html
        return approve in page, withdraw in page

    assert offered(portal) == (True, True)
    assert offered(portal.with_role("Reader", db)) == (False, False)
    assert offered(portal.with_role("ScheduledEventContributor", db)) == (True, False)
    assert offered(portal.with_role("Platform", "/")) == (False, True)
    portal.world.approve("db", event_id)
    assert offered(portal) == (False, False)


def test_an_event_of_an_invisible_scope_does_not_exist(portal: PortalUser) -> None:
    event_id = request_restart(portal, "web-0")
    other = portal.with_role("Reader", vm_resource_id(portal.world.vm("db")))
    page = other.request("GET", f"/portal/events/{event_id}")
    assert page.status == 404
    assert "web-0" not in page.html


def test_a_user_who_sees_a_part_of_the_scope_sees_the_event_but_not_its_request(portal: PortalUser) -> None:
    """Spec §7.2: each member of a scope sees all its events."""
    event_id = request_restart(portal, "web-0")
    record_delivery(portal, "web-1", event_id)
    mine = portal.with_role("Reader", vm_resource_id(portal.world.vm("web-1")))
    page = mine.get(f"/portal/events/{event_id}")
    assert "/portal/requests/" not in page.html
    assert 'href="/portal/vms/sub/lab/web-1"' in page.html
    assert 'href="/portal/vms/sub/lab/web-0"' not in page.html


def test_names_on_an_event_page_are_escaped(portal_of: Callable[..., PortalUser]) -> None:
    name = "<script>alert(1)"
    portal = portal_of(LAB_POLICY, vms=[a_vm(name)], hosts=[a_host("h1")])
    requests, vm = portal.world.control.requests, portal.world.vm(name)
    portal.world.do(requests.request_for_vms(RequestedOperation.RESTART, [vm], who="<b>ann"))
    portal.world.settle()
    (event,) = portal.world.events()
    page = portal.get(f"/portal/events/{event.id}")
    assert "<script>alert" not in page.html
    assert "<b>" not in page.html
    assert f"Reboot of {name}: user restart" in page.text


def test_the_chart_of_an_event_can_be_exported(portal: PortalUser) -> None:
    event_id = request_restart(portal, "db")
    drawing = portal.get(f"/portal/events/{event_id}?as=svg")
    assert ElementTree.fromstring(drawing.content).tag.endswith("svg")
    assert f'data-event="{event_id}"' in drawing.html


def test_an_act_under_way_shows_what_its_hypervisor_reports(portal_of: Callable[..., PortalUser]) -> None:
    portal = portal_of(hypervisor=ReportingHypervisor(note="migrating web-0 to h2: 43 %"))
    event_id = request_restart(portal, "web-0")
    portal.world.approve("web-0", event_id)
    page = portal.get(f"/portal/events/{event_id}")
    assert "reboot in progress migrating web-0 to h2: 43 %" in page.text
    assert "The hypervisor reports for web-0: migrating web-0 to h2: 43 %." in page.text
    portal.world.advance(60)
    assert "43 %" not in portal.get(f"/portal/events/{event_id}").text
