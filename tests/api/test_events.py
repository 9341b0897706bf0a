"""Events: listed, found by id prefix, approved and withdrawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forewarn.core.decision import EnablementMode, Policy


def test_live_events_are_listed_and_past_ones_on_demand(api: Any) -> None:
    (first,) = api.restart_of("db")
    (second,) = api.restart_of("web-0")
    api.post(f"/events/{first['id']}/withdraw")
    listed = api.get("/events")
    assert [event["id"] for event in listed["events"]] == [second["id"]]
    assert listed["seq"] == api.world.store.last_seq()
    everything = api.get("/events?all=true")["events"]
    assert [event["id"] for event in everything] == [first["id"], second["id"]]
    assert [event["id"] for event in api.get("/events?all=true&limit=1")["events"]] == [second["id"]]


def test_events_are_filtered_by_vm_or_scope(api: Any) -> None:
    api.restart_of("db", "web-0", "web-1")
    assert [event["vms"] for event in api.get("/events?vm=web-1")["events"]] == [["web-1"]]
    assert [event["vms"] for event in api.get("/events?scope=web")["events"]] == [["web-0"], ["web-1"]]
    assert api.get("/events?scope=web&vm=db")["events"] == []
    assert len(api.get("/events?scope=web&vm=web-0")["events"]) == 1


def test_events_are_filtered_by_host_or_rollout(api: Any) -> None:
    api.restart_of("db", "web-1")
    rollout = api.post("/rollouts", {"impact": "update", "hosts": ["h3"]})["id"]
    assert [event["vms"] for event in api.get("/events?host=H1")["events"]] == [["db"]]
    assert [event["vms"] for event in api.get("/events?host=h3")["events"]] == [["web-2"]]
    assert [event["vms"] for event in api.get(f"/events?rollout={rollout}")["events"]] == [["web-2"]]
    assert api.get(f"/events?rollout={rollout}&vm=db")["events"] == []
    assert len(api.get("/events?vm=db&host=h1")["events"]) == 1
    assert api.refused("GET", "/events?host=h9")[0] == 404
    assert api.refused("GET", "/events?rollout=nothing")[0] == 404


def test_the_events_of_a_removed_vm_are_still_found(api: Any) -> None:
    (event,) = api.restart_of("db")
    api.delete("/fleet/vms/db")
    assert [found["id"] for found in api.get("/events?all=true&vm=db")["events"]] == [event["id"]]


def test_an_event_is_found_by_its_id_in_any_case_and_by_a_unique_prefix(api: Any) -> None:
    """Spec §4.2: ids are compared without case."""
    (event,) = api.restart_of("db")
    assert api.get(f"/events/{event['id'].lower()}")["id"] == event["id"]
    assert api.get(f"/events/{event['id'][:4]}")["id"] == event["id"]
    assert api.refused("GET", f"/events/{event['id'][:3]}")[:2] == (404, "NotFound")
    api.restart_of("web-0")
    status, code, message = api.refused("GET", f"/events/{event['id'][:8]}")
    assert (status, code) == (409, "Refused")
    assert "2 ids start with it" in message


def test_an_approval_by_an_operator_starts_the_event(api: Any) -> None:
    (event,) = api.restart_of("db")
    approved = api.post(f"/events/{event['id'][:36]}/approve", {})
    assert (approved["status"], approved["approved_by"]) == ("started", "local user ann")
    assert approved["waits_for"] is None
    api.world.advance(60)
    assert api.refused("POST", f"/events/{event['id']}/approve")[0] == 409


def test_an_approved_event_that_must_wait_says_for_what_it_waits(api: Any) -> None:
    """Spec §6.2: events of one host start together."""
    api.post("/rollouts", {"impact": "reboot", "hosts": ["h1"]})
    (event,) = api.get("/events?vm=db")["events"]
    approved = api.post(f"/events/{event['id']}/approve")
    assert approved["status"] == "scheduled"
    assert approved["waits_for"] == {
        "reason": "gate",
        "text": "web-0, pool_0, pool_1 on host h1, which are not ready yet",
        "until": None,
    }


def test_a_withdrawn_event_says_why_and_cannot_be_withdrawn_again(api: Any) -> None:
    (event,) = api.restart_of("db")
    withdrawn = api.post(f"/events/{event['id']}/withdraw", {"reason": "release day"})
    assert (withdrawn["status"], withdrawn["ending"], withdrawn["reason"]) == ("over", "withdrawn", "release day")
    assert api.refused("POST", f"/events/{event['id']}/withdraw")[0] == 409


def test_a_started_event_cannot_be_withdrawn(api: Any) -> None:
    """Spec §6.2: withdrawal is possible until the event has started."""
    (event,) = api.restart_of("db")
    api.post(f"/events/{event['id']}/approve")
    status, _, message = api.refused("POST", f"/events/{event['id']}/withdraw", {"reason": "late"})
    assert status == 409
    assert "has started" in message


def test_several_events_are_approved_in_one_call_also_if_one_is_refused(api: Any) -> None:
    first, second = api.restart_of("db", "web-0")
    api.post(f"/events/{first['id']}/withdraw")
    changed = api.post("/events/approve", {"ids": [first["id"], second["id"].lower(), "nothing"]})
    assert [(event["id"], event["status"]) for event in changed["events"]] == [(second["id"], "started")]
    assert [scope["vms"] for scope in changed["scopes"]] == [["web-0", "web-1", "web-2"]]
    assert [(one["event"], one["code"]) for one in changed["refused"]] == [
        (first["id"], "Refused"),
        ("nothing", "NotFound"),
    ]
    assert "GET /forewarn/v1/events?all=true lists them" in changed["refused"][1]["message"]


def test_the_pending_events_of_a_vm_host_or_rollout_are_approved_or_withdrawn(api: Any) -> None:
    db, web = api.restart_of("db", "web-1")
    changed = api.post("/events/approve", {"vm": "db"})
    assert [event["id"] for event in changed["events"]] == [db["id"]]
    rollout = api.post("/rollouts", {"impact": "update", "hosts": ["h3"]})["id"]
    assert [event["vms"] for event in api.post("/events/approve", {"rollout": rollout})["events"]] == [["web-2"]]
    changed = api.post("/events/withdraw", {"host": "h2", "reason": "not today"})
    assert [(event["id"], event["reason"]) for event in changed["events"]] == [(web["id"], "not today")]
    assert api.post("/events/withdraw", {"host": "h2"}) == {"events": [], "scopes": [], "refused": []}


def test_a_recommendation_is_not_among_the_events_of_a_vm_to_approve(api_of: Callable[..., Any]) -> None:
    """Spec §14.4: it has no impact, so it cannot be approved."""
    api = api_of(Policy(enablement=EnablementMode.ALWAYS, recommends_rebalancing=True))
    api.post("/requests", {"operation": "recommend-rebalance", "vms": ["spot"]})
    assert api.post("/events/approve", {"vm": "spot"})["events"] == []
    assert len(api.post("/events/withdraw", {"vm": "spot"})["events"]) == 1


def test_events_are_selected_by_ids_or_names(api: Any) -> None:
    for body in ({}, {"ids": ["E"], "vm": "db"}):
        status, _, message = api.refused("POST", "/events/approve", body)
        assert status == 400
        assert message.endswith("give one of the two")


def test_an_approver_approves_only_the_events_of_their_vms(api: Any) -> None:
    db, web = api.restart_of("db", "web-0")
    approver = api.holding(
        "ScheduledEventContributor",
        "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/db",
    )
    changed = approver.post("/events/approve", {"ids": [db["id"], web["id"]]})
    assert [event["id"] for event in changed["events"]] == [db["id"]]
    assert [one["code"] for one in changed["refused"]] == ["NotFound"]
    reader = api.holding("Reader", "/")
    assert [one["code"] for one in reader.post("/events/approve", {"ids": [web["id"]]})["refused"]] == ["Forbidden"]
    assert api.get(f"/events/{web['id']}")["approved_at"] is None
