"""Maintenance requests: what they print, and waiting for their end."""

import json
from typing import Any

import pytest


def test_a_restart_shows_its_event_its_recipients_and_next_commands(lab: Any) -> None:
    """Spec §6.3, §7.2."""
    text = lab.good("restart", "db-0")
    (event,) = lab.json("events")["events"]
    assert "Restart of db-0 is scheduled." in text
    assert f"event       {event['id']}  Reboot  scheduled" in text
    assert "(in 15m)" in text
    assert "recipients  db-0, db-1 (db)" in text
    assert "waits for   an approval, or the end of its notice (in 15m)" in text
    assert f"forewarn explain {event['id']}" in text
    assert f"forewarn approve {event['id']}" in text


def test_an_event_that_no_vm_received_was_delivered_to_no_vm(lab: Any) -> None:
    event_id = lab.json("restart", "db-0")["events"][0]["id"]
    assert "  delivered to  no VM\n" in lab.good("withdraw", event_id)


def test_a_replacing_event_names_the_replaced_one(lab: Any) -> None:
    """Spec §8.4: a redeploy replaces a pending restart."""
    restart = lab.json("restart", "web")["events"][0]["id"]
    assert f"replaces    the pending restart, event {restart}" in lab.good("redeploy", "web")
    (redeploy,) = lab.json("events")["events"]
    answer = lab.json("delete", "web")
    assert answer["replaced"] == [redeploy["id"]]
    assert lab.json("restart", "db-0")["replaced"] == []


def test_an_eviction_is_called_an_eviction(lab: Any) -> None:
    assert "Eviction of spot is scheduled." in lab.good("evict", "spot")
    assert "requested eviction of spot" in lab.good("history")


def test_an_operation_without_an_event_says_why(lab: Any) -> None:
    """Spec §6.4: power off has no event."""
    text = lab.good("power", "web", "off")
    assert "Power-off of web is carried out at once, with no event." in text
    assert "why at once  " in text
    assert "forewarn approve" not in text


def test_an_event_that_was_approved_by_policy_has_started(lab: Any) -> None:
    """Spec §9."""
    text = lab.good("restart", "quick")
    assert "Restart of quick has started." in text
    assert "not before" not in text


def test_many_events_are_shown_as_a_table(lab: Any) -> None:
    text = lab.good("restart", "web", "db-0", "spot", "quick")
    assert "EVENT " in text
    assert "WAITS FOR" in text


@pytest.mark.parametrize("verb", ["restart", "redeploy", "delete"])
def test_waiting_prints_the_history_and_exits_with_0(lab: Any, verb: str) -> None:
    """Spec §9: the operation stays in progress until the event has started and finished."""
    awaited = "at once" if verb == "delete" else "published"  # with no terminate notification it has no event
    lab.when(awaited, lambda api: api.post("clock", "advance", body={"by_s": 1800}))
    text = lab.good(verb, "web", "--wait")
    assert "requested" in text
    assert text.endswith("Succeeded.\n")


def test_waiting_in_json_prints_one_document_at_the_end(lab: Any) -> None:
    lab.when("published", lambda api: api.post("clock", "advance", body={"by_s": 1800}))
    view = lab.json("restart", "web", "--wait")
    assert view["state"] == "succeeded"
    assert view["events"][0]["ending"] == "finished"


def test_waiting_for_a_withdrawn_event_exits_with_1(lab: Any) -> None:
    """Spec §9: a withdrawn event ends it as cancelled."""
    lab.when("published", withdraw_all)
    result = lab("restart", "web", "--wait")
    assert result.exit_code == 1
    assert result.stderr.endswith("was withdrawn (not today)\n")


def withdraw_all(api: Any) -> None:
    for event in api.get("events")["events"]:
        api.post("events", event["id"], "withdraw", body={"reason": "not today"})


def test_waiting_in_json_for_a_withdrawn_event_prints_the_document_too(lab: Any) -> None:
    lab.when("published", withdraw_all)
    result = lab("restart", "web", "--wait", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["state"] == "canceled"


def test_performing_pending_maintenance_approves_it(lab: Any) -> None:
    """Spec §6.4."""
    lab.good("degrade", "h2")
    lab.when("started", lambda api: api.post("clock", "advance", body={"by_s": 600}))
    text = lab.good("perform-maintenance", "db-1", "--wait")
    assert [line.split()[2] for line in text.splitlines()[:-1]] == [
        "requested",
        "approved",
        "started",
        "performed",
        "finished",
    ]
    assert text.endswith("Succeeded.\n")
    assert lab.json("fleet", "show", "db-1")["host"] != "h2"


def test_a_failing_host_moves_its_vms_at_once(lab: Any) -> None:
    """Spec §6.4: Started with no notice."""
    lab.when("started", lambda api: api.post("clock", "advance", body={"by_s": 600}))
    assert lab.good("fail", "h3", "--wait").endswith("Succeeded.\n")
    assert "say so first with `forewarn fail h1`" in lab.refused("confirm-down", "h1")
    text = lab.good("confirm-down", "h3")
    assert text == "Host h3 is confirmed down: its VMs may be started elsewhere.\n"
    assert "failed, confirmed down" in lab.good("fleet", "show")
    assert "Host h3 is healthy." in lab.good("repair", "h3")


def test_a_host_without_vms_fails_quietly(lab: Any) -> None:
    lab.good("fleet", "add-host", "h9", "--location", "westeurope")
    assert "no VM is affected" in lab.good("fail", "h9")
