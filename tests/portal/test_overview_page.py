"""The overview: what needs attention, what happens next and now, rollouts, and who sees what."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.base.times import time_text
from forewarn.core.commit import Commit
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.fleet import HostHealth
from forewarn.core.request import RequestedOperation, RolloutState
from forewarn.machines.simulated import FailRule, SimulatedBehaviour
from forewarn.web.portal.store_monitor import NOT_WRITABLE
from tests.portal.conftest import PortalUser
from tests.portal.test_clients_page import Fleet
from tests.portal.test_event_index import start_rollout
from tests.support.operator_api import Api
from tests.support.world import NOON, a_host, a_vm

LAB = "/subscriptions/sub/resourceGroups/lab"
DB = f"{LAB}/providers/Microsoft.Compute/virtualMachines/db"


@pytest.fixture
def fleet(api: Api) -> Fleet:
    return Fleet(api)


def attention(user: PortalUser) -> dict[str, Any]:
    """The items that need attention, by what they are about."""
    return {item["kind"]: item for item in user.get("/portal/?as=json").json["attention"]}


def links(item: Any) -> dict[str, str]:
    return {link["title"]: link["href"] for link in item["links"]}


def test_a_quiet_fleet_needs_nobody(portal: PortalUser) -> None:
    page = portal.get("/portal/")
    assert "Nothing needs attention All 7 VMs are running. No event is scheduled." in page.text
    assert "No event is in progress." in page.text
    assert "No rollout is running." in page.text


def test_an_empty_fleet_is_explained(portal_of: Any) -> None:
    page = portal_of(vms=[], hosts=[]).get("/portal/")
    assert "There are no VMs that you can see." in page.text
    assert "forewarn fleet add NAME" in page.text


def test_a_prepared_event_needs_nobody(fleet: Fleet) -> None:
    fleet.polls("db")
    fleet.deliver("db", fleet.request_restart("db"))
    assert attention(fleet.user) == {}
    assert (
        "6 of 7 VMs are running. Every scheduled event was delivered to a VM of its scope, or will be at its next poll."
        in (fleet.user.get("/portal/").text)
    )


def test_the_overview_counts_as_many_vms_without_handler_as_the_clients_page(api_of: Callable[..., Api]) -> None:
    names = [f"vm-{number}" for number in range(201)]
    fleet = Fleet(api_of(vms=[a_vm(name, host="h1") for name in names]))
    for name in names:
        fleet.request_restart(name)
    assert attention(fleet.user)["without-handler"]["count"] == fleet.json()["without_handler"] == 201


def test_a_vm_with_an_event_and_no_polling_handler_needs_attention(fleet: Fleet) -> None:
    event = fleet.request_restart("db")
    item = attention(fleet.user)["without-handler"]
    assert (item["is_urgent"], item["count"], item["until"]) == (True, 1, time_text(NOON + 900))
    assert item["text"] == "1 VM has an event scheduled, and no handler is polling: db."
    assert links(item) == {
        "Withdraw": f"/portal/forms/withdraw?event={event}",
        "Show event": f"/portal/events/{event}",
        "Show VMs": "/portal/clients?only=without-handler",
    }
    fleet.request_restart("web-0")
    assert attention(fleet.user)["without-handler"]["text"] == (
        "2 VMs have an event scheduled, and no handler is polling: db, web-0."
    )


def test_a_missing_approval_needs_attention_shortly_before_the_start(fleet: Fleet) -> None:
    fleet.polls("db")
    event = fleet.request_restart("db")
    fleet.deliver("db", event)
    assert attention(fleet.user) == {}
    assert fleet.user.get("/portal/?as=json").json["attention_changes_at"] == time_text(NOON + 600)
    fleet.world.advance(600)
    item = attention(fleet.user)["approval"]
    assert item["text"] == "1 event starts soon without an approval: Reboot of db."
    assert (item["is_urgent"], links(item)["Approve"]) == (False, f"/portal/forms/approve?event={event}")
    assert fleet.user.get("/portal/?as=json").json["attention_changes_at"] is None


def test_a_rebalance_recommendation_needs_no_approval(api_of: Callable[..., Api]) -> None:
    """Spec §14.4: it never starts, so an approval changes nothing."""
    fleet = Fleet(api_of(Policy(enablement=EnablementMode.ALWAYS, recommends_rebalancing=True)))
    fleet.polls("spot")
    [event] = fleet.world.ask(RequestedOperation.RECOMMEND_REBALANCE, "spot")
    fleet.deliver("spot", event.id)
    assert attention(fleet.user) == {}
    (upcoming,) = fleet.user.get("/portal/?as=json").json["upcoming"]
    assert (upcoming["id"], upcoming["may_approve"], upcoming["may_withdraw"]) == (event.id, False, True)


def test_a_failed_act_needs_attention_for_a_day(portal: PortalUser) -> None:
    portal.world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(note="no power"),)))
    [event] = portal.world.ask(RequestedOperation.RESTART, "db")
    portal.world.advance(1_000)
    item = attention(portal)["failed"]
    assert item["text"] == "1 act failed in the last 24 hours, with no success since: reboot of db (no power)."
    assert links(item) == {
        "Try again": "/portal/forms/restart?vm=sub%2Flab%2Fdb",
        "Show event": f"/portal/events/{event.id}",
    }
    portal.world.advance(86_400)
    assert attention(portal) == {}


def test_a_stopped_rollout_needs_attention_with_its_reason(portal: PortalUser) -> None:
    portal.world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(note="no power"),)))
    rollout = start_rollout(portal.world)
    portal.world.advance(1_000)
    item = attention(portal)["stopped"]
    assert item["text"].startswith(f"Rollout {rollout[:8]}, update over web stopped: 1 VM failed")
    assert links(item) == {"Show rollout": f"/portal/rollouts/{rollout}"}


def test_a_paused_rollout_can_be_resumed_where_it_is_shown(portal: PortalUser) -> None:
    rollout = start_rollout(portal.world)
    portal.world.do(portal.world.control.rollout_requests.change_state(rollout, RolloutState.PAUSED, who="bob"))
    assert links(attention(portal)["paused"])["Resume"] == f"/portal/forms/rollout-resume?rollout={rollout}"


def test_failed_and_degraded_hosts_need_attention(portal: PortalUser) -> None:
    portal.api.post("/hosts/h2/degrade", {"in_s": 86_400})
    portal.api.post("/hosts/h3/fail")
    found = attention(portal)
    assert found["host-failed"]["text"].startswith("Host h3 has failed")
    assert found["host-degraded"]["text"].startswith("Host h2 is predicted to fail; ")
    assert links(found["host-failed"]) == {
        "Repair": "/portal/forms/repair?host=h3",
        "Show host": "/portal/hosts/h3",
    }
    assert [item["is_urgent"] for item in found.values()] == sorted(
        (item["is_urgent"] for item in found.values()), reverse=True
    )


def test_many_failed_hosts_are_one_item(portal: PortalUser) -> None:
    hosts = tuple(replace(host, health=HostHealth.FAILED) for host in portal.world.store.hosts())
    portal.world.do(portal.world.store.commit(Commit(hosts=hosts)))
    item = attention(portal)["host-failed"]
    assert item["text"].startswith("3 hosts have failed: h1, h2, h3")
    assert links(item) == {"Show hosts": "/portal/hosts?health=failed"}


def test_a_store_that_rejects_writes_needs_attention(portal: PortalUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forewarn.web.portal.store_monitor.HEALTHY", NOT_WRITABLE)
    item = attention(PortalUser(portal.api, portal.principal))["store"]
    assert (item["is_urgent"], item["text"]) == (True, NOT_WRITABLE.text)


def test_the_next_events_are_shown_with_what_they_wait_for(portal: PortalUser) -> None:
    [later] = portal.world.ask(RequestedOperation.RESTART, "web-0")
    [sooner] = portal.world.ask(RequestedOperation.REDEPLOY, "db")
    page = portal.get("/portal/")
    shown = page.text[page.text.index("Next 2") :]
    assert shown.startswith(
        "Next 2 Advance to the next start in 10 min 12:10:00 Redeploy of db scheduled user redeploy · db "
        "waits for an approval, or the end of its notice Approve Redeploy of db Withdraw Redeploy of db in 15 min"
    )
    assert re.findall(
        r'/portal/forms/(approve|withdraw)\?event=([\w-]+)"', page.html[page.html.index('id="next"') :]
    ) == [
        ("approve", sooner.id),
        ("withdraw", sooner.id),
        ("approve", later.id),
        ("withdraw", later.id),
    ]
    assert "/portal/forms/clock-advance?until=2026-01-05T12%3A10%3A00" in page.html
    assert portal.get("/portal/forms/clock-advance?until=2026-01-05T12%3A10%3A00").status == 200


def test_a_large_request_does_not_hide_other_events(portal: PortalUser) -> None:
    names = ("web-0", "web-1", "web-2", "pool_0", "spot")
    [first, *_] = portal.world.ask(RequestedOperation.RESTART, *names, notice_s=900)
    portal.world.advance(10)
    portal.world.ask(RequestedOperation.RESTART, "db")
    data = portal.get("/portal/?as=json").json
    assert data["scheduled"] == 6
    assert [event["more"] for event in data["upcoming"]] == [0, 0, 2, 0]
    assert f'href="/portal/requests/{first.request_id}">2 more events of this request' in portal.get("/portal/").html


def test_a_started_event_is_in_progress_until_its_acts_are_done(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "db")
    portal.world.advance(905)
    page = portal.get("/portal/")
    assert "In progress 1 for 5 s Reboot of db started user restart · db 0 of 1 VM done" in page.text
    portal.world.advance(600)
    assert "In progress 0 No event is in progress." in portal.get("/portal/").text


def test_a_running_rollout_shows_its_progress_and_its_estimated_end(portal: PortalUser) -> None:
    start_rollout(portal.world)
    page = portal.get("/portal/")
    assert "Update over web in progress Pause the update over web" in page.text
    assert "0 of 3 done, 1 scheduled, 2 waiting" in page.text
    assert "Ends about 12:45:27 , in 45 min 27 s (if nobody approves)" in page.text


def test_a_reader_of_one_vm_sees_nothing_of_the_others(portal: PortalUser) -> None:
    start_rollout(portal.world)
    portal.world.ask(RequestedOperation.RESTART, "db")
    portal.world.ask(RequestedOperation.RESTART, "spot")
    portal.api.post("/hosts/h3/fail")
    reader = portal.with_role("Reader", DB)
    data = reader.get("/portal/?as=json").json
    assert (data["total"], data["scheduled"], data["started"]) == (1, 1, 0)
    assert [event["label"] for event in data["upcoming"]] == ["Reboot of db"]
    assert [item["text"] for item in data["attention"]] == [
        "1 VM has an event scheduled, and no handler is polling: db."
    ]
    page = reader.get("/portal/")
    for hidden in ("web-0", "spot", "h3", "/portal/forms/", "Rollouts 1"):
        assert hidden not in page.html.partition("<main")[2], hidden


def test_a_reader_is_not_told_when_a_hidden_event_needs_an_approval(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "spot")
    reader = portal.with_role("Reader", DB)
    assert portal.get("/portal/?as=json").json["attention_changes_at"] == time_text(NOON + 600)
    assert reader.get("/portal/?as=json").json["attention_changes_at"] is None
    assert 'data-refresh-at=""' in reader.get("/portal/").html


def test_earlier_hidden_events_do_not_hide_the_events_of_a_reader(
    portal: PortalUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forewarn.web.portal.overview_page._MAX_EVENTS_SEARCHED", 2)
    for name in ("spot", "pool_0", "pool_1"):
        portal.world.ask(RequestedOperation.RESTART, name)
    portal.world.advance(10)
    portal.world.ask(RequestedOperation.RESTART, "db")
    reader = portal.with_role("Reader", DB)
    page = reader.get("/portal/")
    assert "Next 1 in 15 min" in page.text
    assert "1 VM has an event scheduled, and no handler is polling: db." in page.text
    assert "No event is scheduled" not in page.text
    portal.world.advance(900)
    data = reader.get("/portal/?as=json").json
    assert (data["scheduled"], data["started"], [event["label"] for event in data["current"]]) == (
        0,
        1,
        ["Reboot of db"],
    )


def test_a_reader_sees_a_failed_host_of_their_vms_among_many(portal_of: Callable[..., PortalUser]) -> None:
    hosts = [a_host(f"h{n}", health=HostHealth.FAILED) for n in range(1, 61)]
    user = portal_of(vms=[a_vm("db", host="h60"), a_vm("web", host="h1")], hosts=hosts)
    item = attention(user.with_role("Reader", DB))["host-failed"]
    assert (item["count"], item["text"]) == (1, "Host h60 has failed.")


def test_reads_of_the_store_do_not_grow_with_hidden_events(portal: PortalUser, monkeypatch: pytest.MonkeyPatch) -> None:
    scopes_read: list[str] = []
    read_vms = portal.world.store.vms

    def count_reads(**query: Any) -> Any:
        scopes_read.append(query.get("scope_id", ""))
        return read_vms(**query)

    for name in ("web-0", "spot", "pool_0"):
        portal.world.ask(RequestedOperation.RESTART, name)
    portal.world.advance(2_000)
    portal.world.ask(RequestedOperation.RESTART, "spot")
    reader = portal.with_role("Reader", DB)
    monkeypatch.setattr(portal.world.store, "vms", count_reads)
    assert reader.get("/portal/?as=json").json["notice"]["columns"] == []
    assert not {"set:sub/lab/web", "vm:sub/lab/spot", "placement:sub/lab/pool/pg-0"} & set(scopes_read)


def test_a_reader_sees_no_actions(portal: PortalUser) -> None:
    start_rollout(portal.world)
    portal.world.ask(RequestedOperation.RESTART, "db")
    page = portal.with_role("Reader", "/").get("/portal/")
    assert "Update over web" in page.text
    assert "/portal/forms/" not in page.html


def test_an_operator_is_offered_what_they_may_do(portal: PortalUser) -> None:
    portal.world.ask(RequestedOperation.RESTART, "db")
    page = portal.with_role("Operator", LAB).get("/portal/").html
    assert 'href="/portal/forms/restart"' in page
    assert "/portal/forms/rollout" not in page
    assert "/portal/forms/clock-advance" not in page


def test_a_user_without_a_role_is_told_whom_to_ask(portal: PortalUser) -> None:
    assert portal.with_role("Reader").request("GET", "/portal/").status == 403


def test_an_unknown_span_of_the_charts_is_answered_in_place(portal: PortalUser) -> None:
    page = portal.request("GET", "/portal/?span=2y")
    assert page.status == 400
    assert "'2y' is not a span of the charts" in page.text
    assert "Nothing needs attention" in page.text


def test_the_charts_show_the_notice_of_past_events(portal: PortalUser) -> None:
    [event] = portal.world.ask(RequestedOperation.RESTART, "db")
    portal.world.advance(60)
    portal.world.approve("db", event.id)
    page = portal.get("/portal/")
    assert (
        "1 event started: 1 after an approval. On average 15 min of notice was promised and 1 min given." in page.text
    )
    assert (
        "Show as a table From (UTC) Events Promised Given Shortest Approved Notice ended 12:00:00 1 15 min" in page.text
    )


def test_the_charts_say_since_when_starts_are_known(portal: PortalUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forewarn.web.portal.event_index._MAX_EVENTS_READ", 1)
    portal.world.ask(RequestedOperation.RESTART, "db")
    portal.world.advance(3_600)
    page = portal.get("/portal/?span=7d")
    assert "Counted from 12:20:00 on: the portal does not keep earlier starts in memory." in page.text


def test_the_overview_is_exported_as_json(portal: PortalUser) -> None:
    page = portal.get("/portal/?as=json")
    assert page.headers["content-disposition"] == 'attachment; filename="forewarn-overview.json"'
    assert page.json["counts"]["running"] == 7
