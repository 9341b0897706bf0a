"""Maintenance requests: the response shows what will happen."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forewarn.base.times import parse_time
from forewarn.control.fleet import FleetChange
from forewarn.core.fleet import HostHealth
from forewarn.core.request import RequestedOperation
from forewarn.store.sqlite import SqliteStore
from tests.support.reboot_only_hypervisor import RebootOnlyHypervisor
from tests.support.reporting_hypervisor import ReportingHypervisor


def test_a_restart_is_answered_with_its_event_and_what_it_waits_for(api: Any) -> None:
    """Spec §6.3: a Reboot has 15 minutes of notice; §6.4: a user's restart."""
    answer = api.call("POST", "/requests", {"operation": "restart", "vms": ["WEB-0"]})
    assert answer.status == 202
    request, (event,) = answer.json["request"], answer.json["events"]
    assert request["operation"] == "restart"
    assert request["requested_by"] == "local user ann"
    assert request["targets"] == ["web-0"]
    assert (event["kind"], event["verb"], event["status"], event["source"]) == ("Reboot", "reboot", "scheduled", "User")
    assert parse_time(event["not_before"]) - parse_time(event["published_at"]) == 15 * 60
    assert event["description"] == "Virtual machine is going to be restarted as requested by authorized user."
    assert event["waits_for"] == {
        "reason": "notice",
        "text": "an approval, or the end of its notice",
        "until": event["not_before"],
    }
    assert event["acts"] == []


def test_a_request_over_several_scopes_is_answered_with_all_its_events(api: Any) -> None:
    """The reconciler applies a request over several scopes; the response waits for it."""
    events = api.restart_of("web-0", "db", "web-1")
    assert sorted(event["vms"] for event in events) == [["db"], ["web-0"], ["web-1"]]
    assert {event["status"] for event in events} == {"scheduled"}


def test_a_request_is_refused_as_a_whole_if_one_vm_cannot_do_it(api: Any) -> None:
    """Spec §8.4: one user operation per VM at a time."""
    api.restart_of("db")
    status, code, message = api.refused("POST", "/requests", {"operation": "restart", "vms": ["web-0", "db"]})
    assert (status, code) == (409, "Refused")
    assert "VM 'db'" in message
    assert "approve or withdraw event" in message


def test_an_operation_without_an_event_is_done_at_once_and_says_why(asleep: Any) -> None:
    """Spec §8.2: no VM has polled for events, so a restart happens at once."""
    (event,) = asleep.restart_of("db")
    assert event["kind"] is None
    assert event["listed"] is False
    assert event["status"] == "started"
    assert "disabled there" in event["note"]
    assert event["acts"] == [{"vm": "db", "verb": "reboot", "to_host": "", "ok": None, "at": None, "note": ""}]


BAD = [
    ({"operation": "explode", "vms": ["db"]}, 400, "operation: Invalid enum value 'explode'"),
    ({"operation": "rollout", "vms": ["db"]}, 400, "operation"),
    ({"operation": "restart", "vms": []}, 400, "vms"),
    ({"operation": "restart", "vms": "db"}, 400, "vms: Expected"),
    ({"operation": "restart", "vms": [7]}, 400, "vms[0]"),
    ({"operation": "restart"}, 400, "'vms'"),
    ({"operation": "restart", "vms": ["db"], "notice_s": -1}, 400, "notice_s"),
    ({"operation": "restart", "vms": ["db"], "notice_s": "15m"}, 400, "notice_s"),
    ({"operation": "restart", "vms": ["db"], "notice_s": 60}, 400, "shorter than the 15 min"),
    ({"operation": "restart", "vms": ["db", "lab/DB"]}, 400, "'lab/DB' is named twice"),
    ({"operation": "evict", "vms": ["db"]}, 409, "not a Spot VM"),
    ({"operation": "start", "vms": ["db"]}, 409, "running already"),
    ({"operation": "power-off", "vms": ["db"], "notice_s": 60}, 400, "gives no notice"),
    (
        {"operation": "restart", "vms": ["db", "nobody"]},
        404,
        "VM 'nobody' does not exist: GET /forewarn/v1/fleet lists the VMs",
    ),
    (
        {"operation": "restart", "vms": ["D-B"]},
        404,
        "VM 'D-B' does not exist: did you mean 'db'? GET /forewarn/v1/fleet lists the VMs",
    ),
]


@pytest.mark.parametrize(("body", "status", "words"), BAD, ids=[words for _, _, words in BAD])
def test_an_impossible_request_is_refused_with_a_sentence(api: Any, body: Any, status: int, words: str) -> None:
    shown, _, message = api.refused("POST", "/requests", body)
    assert shown == status
    assert words in message


def test_a_name_in_two_groups_must_be_qualified(api: Any) -> None:
    assert api.post("/fleet/vms", {"name": "db", "resource_group": "prod"})["resource_group"] == "prod"
    status, code, message = api.refused("POST", "/requests", {"operation": "restart", "vms": ["db"]})
    assert (status, code) == (409, "Refused")
    assert message == "VM 'db' is ambiguous: say lab/db or prod/db"
    assert api.get("/vms/prod%2Fdb")["resource_group"] == "prod"


def test_a_shorter_notice_needs_the_flag_short_notice(api: Any) -> None:
    """Spec §6.3: less than the minimum needs a flag, for testing."""
    body = {"operation": "restart", "vms": ["db"], "notice_s": 5, "short_notice": True}
    (event,) = api.post("/requests", body)["events"]
    assert parse_time(event["not_before"]) - parse_time(event["published_at"]) == 5


def test_a_request_can_be_followed_to_its_end(api: Any) -> None:
    """Spec §9: it stays in progress until its event has finished, and says what it waits for."""
    (event,) = api.restart_of("db")
    target = f"/requests/{event['request_id']}"
    waiting = api.get(target)
    assert waiting["state"] == "in progress"
    assert waiting["waits_for"] == ["Reboot of db: an approval, or the end of its notice"]

    api.post(f"/events/{event['id']}/approve")
    started = api.get(target)
    assert (started["state"], started["waits_for"]) == ("in progress", ["Reboot of db: the reboot of db"])

    api.world.advance(60)
    finished = api.get(target)
    assert (finished["state"], finished["waits_for"]) == ("succeeded", [])
    assert finished["events"][0]["acts"][0]["ok"] is True


def test_a_request_whose_event_is_withdrawn_is_canceled(api: Any) -> None:
    """Spec §9."""
    (event,) = api.restart_of("db")
    api.post(f"/events/{event['id']}/withdraw", {"reason": "not today"})
    assert api.get(f"/requests/{event['request_id']}")["state"] == "canceled"


def test_a_degraded_host_announces_redeploys_of_all_its_vms(api: Any) -> None:
    """Spec §6.4: one event per VM, days ahead."""
    answer = api.post("/hosts/h1/degrade", {"in_s": 7 * 86400})
    assert sorted(event["vms"][0] for event in answer["events"]) == ["db", "pool_0", "pool_1", "web-0"]
    assert {event["kind"] for event in answer["events"]} == {"Redeploy"}
    assert api.refused("POST", "/hosts/h1/degrade", {"in_s": 7 * 86400})[0] == 409
    assert api.refused("POST", "/hosts/h1/repair")[0] == 409


def test_the_vms_of_a_failed_host_are_redeployed_at_once_and_the_host_is_repaired(api: Any) -> None:
    """Spec §6.4: Started at once."""
    answer = api.post("/hosts/H1/fail")
    assert {event["status"] for event in answer["events"]} == {"started"}
    assert {event["acts"][0]["to_host"] for event in answer["events"]} <= {"h2", "h3"}
    api.world.advance(600)
    host = api.post("/hosts/h1/repair")
    assert host == {
        "name": "h1",
        "location": "westeurope",
        "zone": "",
        "health": "healthy",
        "unreachable": False,
        "confirmed_down": False,
        "vms": [],
    }


def test_the_second_of_two_calls_about_a_host_sees_the_effect_of_the_first(api_of: Any, tmp_path: Path) -> None:
    """Spec §6.4: a failed host stays failed, even if a failure is predicted at the same moment."""
    api = api_of(store=SqliteStore.open(tmp_path / "forewarn.db"))

    async def both() -> list[int]:
        calls = (api.calling("POST", "/hosts/h1/fail"), api.calling("POST", "/hosts/h1/degrade", {"in_s": 86400}))
        return [answer.status for answer in await asyncio.gather(*calls)]

    assert api.world.do(both()) == [202, 409]
    assert {host.name: host.health for host in api.world.store.hosts()}["h1"] is HostHealth.FAILED

    async def adding() -> list[int]:
        calls = (api.calling("POST", "/fleet/hosts", {"name": n, "location": "westeurope"}) for n in ("h9", "H9"))
        return [answer.status for answer in await asyncio.gather(*calls)]

    assert api.world.do(adding()) == [200, 409]


def test_a_user_starts_pending_maintenance_now(api: Any) -> None:
    """Spec §6.4, last row: approves the VM's pending platform event; with none pending: 409."""
    status, code, message = api.refused("POST", "/vms/web-0/perform-maintenance")
    assert (status, code) == (409, "Refused")
    assert "no pending maintenance" in message
    api.post("/rollouts", {"impact": "migrate", "scope": "web"})
    receipt = api.post("/vms/lab%2Fweb-0/perform-maintenance")
    (event,) = receipt["events"]
    assert (event["status"], event["approved_by"]) == ("started", "local user ann")
    request = receipt["request"]["id"]
    status = api.get(f"/requests/{request}")
    assert (status["state"], [one["id"] for one in status["events"]]) == ("in progress", [event["id"]])
    api.world.advance(600)
    assert api.get(f"/requests/{request}")["state"] == "succeeded"
    shown = [entry["kind"] for entry in api.get(f"/history?request={request}&after=0")["entries"]]
    assert shown == ["requested", "approved", "started", "performed", "finished"]


def test_a_request_that_became_impossible_is_canceled_and_says_why(api: Any) -> None:
    """The VMs are in two scopes, so their events are published after the request was accepted."""
    vms = [api.world.vm(name) for name in ("db", "web-0")]
    receipt = api.world.do(api.world.control.requests.request_for_vms(RequestedOperation.RESTART, vms, who="ann"))
    api.world.do(api.world.control.fleet.apply_change(FleetChange(removed=tuple(vms), text="gone"), who="ann"))
    api.world.settle()
    shown = api.get(f"/requests/{receipt.request.id}")
    assert (shown["state"], len(shown["events"])) == ("canceled", 0)
    assert sorted(shown["skipped"]) == [
        "VM 'db' no longer exists: there is nothing to reboot",
        "VM 'web-0' no longer exists: there is nothing to reboot",
    ]


@pytest.mark.parametrize("path", ["/requests", "/requests/preview"])
def test_an_operation_that_the_hypervisor_cannot_perform_is_refused_with_the_setting_to_add(
    api_of: Any, path: str
) -> None:
    api = api_of(hypervisor=RebootOnlyHypervisor())
    status, code, message = api.refused("POST", path, {"operation": "redeploy", "vms": ["db"]})
    assert (status, code) == (409, "Refused")
    assert message == ("the hypervisor of this service cannot redeploy VMs: its setting [commands.redeploy] adds that")
    assert api.get("/events?all=true")["events"] == []


def test_a_failed_host_is_confirmed_down_until_it_is_repaired(api: Any) -> None:
    status, code, message = api.refused("POST", "/hosts/h1/confirm-down")
    assert (status, code) == (409, "Refused")
    assert message.endswith("if it has failed, say so first with POST /forewarn/v1/hosts/h1/fail")
    api.post("/hosts/h1/fail")
    assert api.post("/hosts/H1/confirm-down")["confirmed_down"] is True
    shown = {host["name"]: host["confirmed_down"] for host in api.get("/fleet")["hosts"]}
    assert [name for name, down in shown.items() if down] == ["h1"]
    assert (
        "An operator has confirmed that it is down: its VMs may be started elsewhere." in api.get("/explain/h1")["now"]
    )
    api.world.advance(600)
    assert api.post("/hosts/h1/repair")["confirmed_down"] is False


def test_only_the_platform_may_confirm_that_a_host_is_down(api: Any) -> None:
    api.post("/hosts/h1/fail")
    status, code, _ = api.holding("Operator", "/").refused("POST", "/hosts/h1/confirm-down")
    assert (status, code) == (403, "Forbidden")


def test_a_host_that_does_not_answer_is_unreachable_and_has_not_failed(api_of: Any) -> None:
    hypervisor = ReportingHypervisor(waits_for_host="h1")
    api = api_of(hypervisor=hypervisor)
    (event,) = api.restart_of("db")
    api.post(f"/events/{event['id']}/approve")
    (host,) = [host for host in api.get("/fleet")["hosts"] if host["name"] == "h1"]
    assert (host["health"], host["unreachable"]) == ("healthy", True)
    assert any("It is unreachable" in sentence for sentence in api.get("/explain/h1")["now"])
    assert any("waits for host h1, which does not answer" in sentence for sentence in api.get("/explain/db")["now"])
    hypervisor.waits_for_host = ""
    api.world.advance(60)
    assert not any(host["unreachable"] for host in api.get("/fleet")["hosts"])
