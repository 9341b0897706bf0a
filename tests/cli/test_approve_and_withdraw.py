"""Approving and withdrawing several events at once."""

import json
from typing import Any


def restarted(lab: Any, *vms: str) -> list[str]:
    return [event["id"] for event in lab.json("restart", *vms)["events"]]


def test_several_events_are_approved_and_each_says_what_happened(lab: Any) -> None:
    web, spot = restarted(lab, "web", "spot")
    assert lab.good("approve", web, spot[:36].lower()).splitlines() == [
        f"{web}  Reboot of web is approved, and has started.",
        f"{spot}  Reboot of spot is approved, and has started.",
    ]


def test_a_refused_event_does_not_keep_others_from_being_approved(lab: Any) -> None:
    web, spot = restarted(lab, "web", "spot")
    lab.good("approve", web)
    result = lab("withdraw", web, "nosuch", spot, "--reason", "later")
    assert result.exit_code == 2
    assert result.stdout == f"{spot}  Reboot of spot is withdrawn.\n"
    assert "has started and can no longer be withdrawn" in result.stderr.splitlines()[0]
    assert result.stderr.splitlines()[1].startswith("event 'nosuch' does not exist")


def test_json_lists_approved_and_refused_events(lab: Any) -> None:
    web, spot = restarted(lab, "web", "spot")
    one = lab.json("approve", web)
    assert ([event["id"] for event in one["events"]], one["refused"]) == ([web], [])
    result = lab("withdraw", web, spot, "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 2
    assert [event["id"] for event in answer["events"]] == [spot]
    assert [(refused["event"], refused["code"]) for refused in answer["refused"]] == [(web, "Refused")]
    assert json.loads(result.stderr)["error"]["message"] == "1 of 2 events could not be withdrawn"


def test_pending_events_are_selected_by_vm_host_or_rollout(lab: Any) -> None:
    (spot,) = restarted(lab, "spot")
    assert f"{spot}  Reboot of spot is withdrawn." in lab.good("withdraw", "--vm", "spot")
    rollout = lab.json("rollout", "start", "--host", "h1", "--impact", "reboot", "--no-wait")["id"]
    lab.api.get("history", query={"after": 0, "wait_s": 5, "vm": "db-0"})
    assert len(lab.json("events", "--rollout", rollout)["events"]) == len(lab.json("events", "--host", "h1")["events"])
    approved = lab.json("approve", "--rollout", rollout)["events"]
    assert sorted(vm for event in approved for vm in event["vms"]) == ["db-0", "web"]
    assert lab.good("approve", "--host", "h1") == "No event of host h1 is pending without an approval.\n"
    assert lab.good("withdraw", "--host", "h3") == "No event of host h3 is pending.\n"


def test_approve_needs_either_ids_or_a_selection(lab: Any) -> None:
    assert lab.refused("approve").startswith("no event is given: give event ids")
    assert lab.refused("withdraw", "abcd", "--vm", "web").startswith("give event ids or a selection, not both")
