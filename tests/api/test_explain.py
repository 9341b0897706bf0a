"""Explanations of VMs, events, hosts, scopes and requests; tests/explain checks their sentences."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.control.executor import ActLimits
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, EventDelivery, HistoryEntry, LastPoll
from forewarn.machines.simulated import SimulatedBehaviour, UnreachableRule
from tests.support.hanging_hypervisor import HangingHostHypervisor
from tests.support.reporting_hypervisor import ReportingHypervisor


def seen(api: Any, vm_name: str, event: dict[str, Any]) -> None:
    """The VM polls and is given the event."""
    vm, at = api.world.vm(vm_name), api.world.now
    delivery = EventDelivery(
        event_id=event["id"],
        scope_id=vm.scope_id,
        vm=vm.key,
        status="scheduled",
        version="2020-07-01",
        incarnation=2,
        at=at,
    )
    poll = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=at, version="2020-07-01", count=1)
    api.world.do(api.world.store.record_observations([poll], [delivery]))


def test_a_pending_restart_explains_what_it_waits_for_and_which_vms_know(api: Any) -> None:
    (event,) = api.restart_of("web-0")
    seen(api, "web-1", event)
    explanation = api.get(f"/explain/{event['id'][:36].lower()}")
    assert explanation["title"] == "Reboot of web-0: user restart"
    assert [line["text"] for line in explanation["lines"]] == [
        "local user ann requested it: user restart; scheduled with 15 min of notice",
        "delivered to web-1 as Scheduled",
    ]
    assert explanation["lines"][1]["detail"] == "api-version 2020-07-01, incarnation 2"
    assert explanation["now"] == [
        "It is scheduled and waits for an approval, or the end of its notice, at most 15 min.",
        "It was not delivered to web-0 yet.",
        "Scheduled events are enabled for availability set web.",
        "web-1 polls, 2 other VMs do not (the last poll was less than a second ago, api-version 2020-07-01).",
    ]


def test_the_explanation_of_a_rebooted_vm_says_why(api: Any) -> None:
    (event,) = api.restart_of("web-0")
    seen(api, "web-0", event)
    api.world.advance(60)
    api.world.approve("web-0", event["id"])
    api.world.advance(3600)
    explanation = api.get("/explain/lab%2Fweb-0")
    assert explanation["title"] == "web-0, of availability set web"
    (line,) = explanation["lines"]
    assert line["text"] == "Reboot, requested by local user ann (user restart): finished"
    assert line["detail"] == (
        "15 min of notice promised, 1 min given; "
        "delivered to web-0 after less than a second (api-version 2020-07-01); "
        "approved by web-0; reboot of web-0 was performed, 30 s after the start; "
        f"event {event['id']}"
    )


def test_an_explanation_names_a_crash_and_what_it_may_have_lost(api: Any) -> None:
    """Deliveries are written in batches: a crash may lose the last two seconds."""
    (event,) = api.restart_of("db")
    api.world.advance(10)
    entry = HistoryEntry(at=api.world.now, kind=EntryKind.SERVICE, text="service started, version 0.1.0, process 7")
    api.world.do(api.world.store.commit(Commit(entries=(entry,))))
    lines = api.get(f"/explain/{event['id']}")["lines"]
    assert lines[-1]["text"] == "the service started again after a crash"
    assert "two seconds before the crash" in lines[-1]["detail"]


def test_a_restart_waits_for_a_hypervisor_that_does_not_answer(api: Any) -> None:
    """Spec §6.5: the event stays Started until its outcome is known, and the explanation says why."""
    (event,) = api.restart_of("db")
    api.world.hypervisor.set_behaviour(SimulatedBehaviour((UnreachableRule(times=3),)))
    api.world.approve("db", event["id"])
    api.world.advance(2)
    text = "reboot of db is tried again in 2 s: the hypervisor of VM 'db' does not answer"
    of_event, of_vm = api.get(f"/explain/{event['id']}"), api.get("/explain/db")
    assert of_event["lines"][-1]["text"].startswith(text)
    assert of_event["now"][1].startswith(f"1 s ago: {text}")
    assert any(f": 1 s ago: {text}" in line for line in of_vm["now"])


def test_a_vm_that_was_added_again_elsewhere_is_explained_with_the_scope_of_the_time(api: Any) -> None:
    api.post("/fleet/vms", {"name": "x", "availability_set": "One"})
    api.post("/requests", {"operation": "restart", "vms": ["x"]})
    api.call("DELETE", "/fleet/vms/x")
    api.post("/fleet/vms", {"name": "x", "availability_set": "two"})
    explanation = api.get("/explain/x")
    assert explanation["title"] == "x, of availability set two"
    (line,) = explanation["lines"]
    assert "then in availability set one" in line["detail"]
    assert "No maintenance of it is recorded." not in explanation["now"]


def test_a_removed_vm_can_still_be_explained(api: Any) -> None:
    api.restart_of("db")
    api.delete("/fleet/vms/db")
    explanation = api.get("/explain/db")
    assert explanation["now"][0] == "db was removed less than a second ago."
    assert api.refused("GET", "/vms/db")[2] == "VM 'db' was removed: GET /forewarn/v1/explain/db says when and why"
    assert explanation["lines"][0]["text"].startswith("Reboot, requested by local user ann (user restart): withdrawn")


def test_an_explanation_says_that_no_vm_of_the_scope_polls(asleep: Any) -> None:
    """Spec §8.2: while disabled, user operations are done at once."""
    explanation = asleep.get("/explain/db")
    assert explanation["now"] == [
        "db is running on h1.",
        "No maintenance of it is recorded.",
        "Scheduled events are disabled for VM db: none of its VMs has polled within 24 h. "
        "User operations are performed at once.",
        "No client there has polled yet.",
    ]


def test_a_host_is_explained_by_its_health_vms_and_pending_events(api: Any) -> None:
    assert api.get("/explain/H3")["now"] == ["h3 is healthy.", "web-2 is on it.", "Nothing is pending on it."]
    api.post("/hosts/h3/degrade", {"in_s": 7200})
    (event,) = api.get("/events")["events"]
    explanation = api.get("/explain/h3")
    assert explanation["title"] == "host h3, in westeurope"
    assert [line["text"] for line in explanation["lines"]] == [
        "host h3 degraded",
        "Redeploy of web-2, requested by local user ann (predicted failure): scheduled",
    ]
    assert explanation["now"] == [
        "h3 is predicted to fail: its VMs will be moved to other hosts.",
        "web-2 is on it.",
        f"Redeploy of web-2 ({event['id']}): It is scheduled and waits for an approval, or the end of its notice, "
        "at most 2 h. It was not delivered to web-2 yet.",
    ]


def test_a_host_is_explained_by_what_happened_on_it_and_not_elsewhere(api: Any) -> None:
    """The past of a VM stays with the host where it happened, and a move is of both hosts."""
    api.restart_of("web-2")
    api.post("/clock/advance", {"by_s": 3600})
    api.post("/hosts/h3/fail")
    api.post("/clock/advance", {"by_s": 3600})
    api.post("/hosts/h3/repair")
    destination = api.get("/vms/web-2")["host"]
    assert destination != "h3"
    restart, redeploy = "Reboot of web-2, requested by", "Redeploy of web-2, requested by"
    of_h3 = [line["text"] for line in api.get("/explain/h3")["lines"]]
    assert [text.partition(" local user")[0] for text in of_h3] == [
        restart,
        "host h3 failed",
        redeploy,
        "host h3 repaired",
    ]
    of_destination = [line["text"] for line in api.get(f"/explain/{destination}")["lines"]]
    assert [text.partition(" local user")[0] for text in of_destination] == [redeploy]
    assert len(api.get(f"/events?host={destination}&all=true")["events"]) == 1


def test_a_scope_is_explained_by_enablement_polls_and_pending_events(api: Any) -> None:
    (event,) = api.restart_of("web-0")
    seen(api, "web-1", event)
    explanation = api.get("/explain/web")
    assert explanation["title"] == "availability set web"
    assert explanation["now"] == [
        "Scheduled events are enabled for availability set web.",
        "web-1 polls, 2 other VMs do not (the last poll was less than a second ago, api-version 2020-07-01).",
        "web-0, web-1 and web-2 are in it.",
        f"Reboot of web-0 ({event['id']}): It is scheduled and waits for an approval, or the end of its notice, "
        "at most 15 min. It was not delivered to web-0 yet.",
    ]
    assert api.get("/explain/set:sub%2Flab%2Fweb") == explanation


def test_a_rollout_is_explained_by_its_progress_and_what_it_waits_for(api: Any) -> None:
    """Spec §6.2."""
    rollout = api.post("/rollouts", {"impact": "update", "scope": "web"})["id"]
    explanation = api.get(f"/explain/{rollout}")
    assert explanation["title"] == f"Rollout {rollout}, update over web, requested by local user ann"
    assert explanation["now"][:3] == [
        "It is running: 0 of 3 VMs done, 1 scheduled, 2 waiting.",
        "It works on update domain 0 of availability set web.",
        "Next is update domain 1 of its scopes.",
    ]
    assert "waits for an approval" in explanation["now"][3]
    api.post(f"/rollouts/{rollout}/abort")
    assert api.get(f"/explain/{rollout}")["now"] == [
        "It was aborted: 0 of 3 VMs done, 1 withdrawn, 2 never started. Reason: local user ann ended it."
    ]
    (event,) = api.get("/events?all=true")["events"]
    assert "ambiguous, event " in api.refused("GET", f"/explain/{rollout[:30]}")[2]
    first = api.get(f"/explain/{event['id']}")["lines"][0]["text"]
    assert f"as part of rollout {rollout}, update over web;" in first


def test_a_rollout_is_explained_by_an_id_prefix(api: Any) -> None:
    api.post("/fleet/hosts", {"name": "h9", "location": "westeurope"})
    rollout = api.post("/rollouts", {"impact": "update", "hosts": ["h9"]})["id"]
    explanation = api.get(f"/explain/{rollout[:8]}")
    assert explanation["title"] == f"Rollout {rollout}, update over host h9, requested by local user ann"
    assert explanation["now"] == ["It completed: 0 of 0 VMs done."]


def test_a_request_is_explained_by_its_pending_events(api: Any) -> None:
    events = api.restart_of("web-0", "db")
    explanation = api.get(f"/explain/{events[0]['request_id']}")
    assert explanation["title"] == "Restart of web-0 and db, requested by local user ann"
    assert len([text for text in explanation["now"] if "waits for an approval" in text]) == 2
    api.world.advance(3600)
    assert api.get(f"/explain/{events[0]['request_id']}")["now"] == ["It succeeded."]


def test_only_an_operator_learns_which_scope_keeps_a_gate_closed(api: Any) -> None:
    """Spec §6.2 and §7.2: a VM sees events of its own scope only."""
    api.post("/rollouts", {"impact": "reboot", "hosts": ["h1"]})
    (event,) = api.get("/events?vm=db")["events"]
    api.post(f"/events/{event['id']}/approve")
    now = api.get(f"/explain/{event['id']}")["now"][0]
    assert "waits for web-0, pool_0, pool_1 on host h1, which are not ready yet" in now
    assert b"web-0" not in api.world.document("db")
    assert b"pool_0" not in api.world.document("db")


def test_an_unknown_name_cannot_be_explained(api: Any) -> None:
    status, code, message = api.refused("GET", "/explain/nothing")
    assert (status, code) == (404, "NotFound")
    assert message.startswith("'nothing' is not a VM, host, scope, event, rollout or request")


@pytest.mark.parametrize(("wrong", "meant"), [("web0", "web-0"), ("h-1", "h1"), ("pol", "pool")])
def test_an_unknown_name_gets_the_most_similar_one(api: Any, wrong: str, meant: str) -> None:
    _, _, message = api.refused("GET", f"/explain/{wrong}")
    assert f"is not a VM, host, scope, event, rollout or request: did you mean {meant!r}?" in message


def test_performed_maintenance_is_explained_by_the_events_it_approved(api: Any) -> None:
    api.post("/rollouts", {"impact": "reboot", "scope": "db"})
    api.post("/vms/db/perform-maintenance")
    (request,) = [r for r in api.world.store.requests() if r.approves]
    explanation = api.get(f"/explain/{request.id}")
    assert "the reboot of db is in progress" in str(explanation)


def test_a_vm_whose_hypervisor_hangs_is_explained_by_the_missing_answer(api_of: Any) -> None:
    api = api_of(hypervisor=HangingHostHypervisor("h1"), limits=ActLimits(unanswered_after_s=0.001))
    (event,) = api.restart_of("db")
    api.post(f"/events/{event['id']}/approve")
    api.world.advance(60)
    sentence = "The hypervisor has not answered the reboot of db for less than a second of real time."
    assert sentence in api.get(f"/explain/{event['id']}")["now"]
    for thing in ("db", "h1", event["request_id"]):
        assert any(sentence in text for text in api.get(f"/explain/{thing}")["now"])


def test_an_act_that_is_under_way_is_shown_with_what_its_hypervisor_reports(api_of: Any) -> None:
    hypervisor = ReportingHypervisor(note="restarting db: 43 %")
    api = api_of(hypervisor=hypervisor)
    (event,) = api.restart_of("db")
    api.post(f"/events/{event['id']}/approve")
    sentence = "The hypervisor reports for db: restarting db: 43 %."
    assert sentence in api.get(f"/explain/{event['id']}")["now"]
    assert any(sentence in text for text in api.get("/explain/db")["now"])
    assert api.get(f"/events/{event['id']}")["acts"][0]["note"] == "restarting db: 43 %"

    api.world.advance(60)
    assert "43 %" not in str(api.get(f"/explain/{event['id']}"))
    assert api.get(f"/events/{event['id']}")["acts"][0]["note"] == "reboot took 30 s"
