"""Pending updates in the ARM facade, starting them now, and canceling a run of a maintenance configuration."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.core.access import Role
from forewarn.core.event import EventState
from forewarn.core.request import Rollout, RolloutImpact
from tests.arm.conftest import COMPUTE, GROUP
from tests.arm.test_maintenance_configurations import NIGHTLY, OF_DB, PROVIDER, a_body, an_assignment

DB = f"{COMPUTE}/virtualMachines/db"
POOL = f"{COMPUTE}/virtualMachineScaleSets/pool"
APPLY_DB = f"{DB}/{PROVIDER}/applyUpdates/default"
FIRST_RUN = f"{NIGHTLY}/{PROVIDER}/applyUpdates/20260106010000"  # 02:00 in Berlin
CANCEL = {"properties": {"status": "Cancel"}}
A_DAY = 86_400.0


def roll_out(arm: Any, *hosts: str, impact: RolloutImpact = RolloutImpact.REBOOT) -> None:
    rollout = Rollout(impact=impact, hosts=hosts or ("h1",))
    arm.world.do(arm.world.control.rollout_requests.start(rollout, who="operator"))
    arm.world.settle()


def the_event(arm: Any, vm: str = "db") -> Any:
    (event,) = [event for event in arm.world.events() if vm in event.vms]
    return event


def test_a_published_event_is_a_pending_update_until_it_is_over(arm: Any) -> None:
    updates = f"{DB}/{PROVIDER}/updates"
    assert arm.get(updates) == {"value": []}
    roll_out(arm)
    assert arm.get(updates) == {
        "value": [
            {
                "maintenanceScope": "Host",
                "impactType": "Restart",
                "status": "Pending",
                "impactDurationInSec": -1,
                "notBefore": "2026-01-05T12:15:00Z",
                "properties": {"resourceId": DB},
            }
        ]
    }
    arm.world.advance(901)
    assert [update["status"] for update in arm.get(updates)["value"]] == ["InProgress"]
    arm.world.advance(600)
    assert arm.get(updates) == {"value": []}


def test_a_restart_by_a_user_is_no_pending_update(arm: Any) -> None:
    arm.call("POST", f"{DB}/restart")
    assert arm.get(f"{DB}/{PROVIDER}/updates") == {"value": []}


def test_a_scale_set_lists_the_updates_of_its_instances(arm: Any) -> None:
    roll_out(arm, impact=RolloutImpact.UPDATE)
    shown = arm.get(f"{POOL}/{PROVIDER}/updates")["value"]
    assert [update["properties"]["resourceId"] for update in shown] == [f"{POOL}/virtualMachines/{n}" for n in (0, 1)]
    assert {(update["impactType"], update["impactDurationInSec"]) for update in shown} == {("Freeze", 9)}
    assert arm.get(f"{POOL}/virtualMachines/1/{PROVIDER}/updates")["value"] == shown[1:]


def test_applying_updates_starts_them_before_their_window(arm: Any) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    arm.call("PUT", OF_DB, an_assignment())
    roll_out(arm, impact=RolloutImpact.MIGRATE)
    applied = arm.call("PUT", APPLY_DB)
    assert applied.status == 201
    name = applied.json["name"]
    assert applied.json == {
        "id": f"{DB}/{PROVIDER}/applyUpdates/{name}",
        "name": name,
        "type": "Microsoft.Maintenance/applyUpdates",
        "properties": {"status": "InProgress", "resourceId": DB, "lastUpdateTime": "2026-01-05T12:00:00Z"},
    }
    assert the_event(arm).status is EventState.STARTED
    arm.world.advance(600)
    shown = arm.get(f"{DB}/{PROVIDER}/applyUpdates/{name}")
    assert shown["properties"]["status"] == "Completed"
    assert arm.get(APPLY_DB) == shown
    for place in (GROUP, "/subscriptions/sub"):
        assert arm.get(f"{place}/{PROVIDER}/applyUpdates") == {"value": [shown]}
    assert arm.holding(Role.READER).get(f"{GROUP}/{PROVIDER}/applyUpdates") == {"value": []}


def test_updates_behind_a_gate_are_pending_until_the_others_of_the_host_are_ready(arm: Any) -> None:
    roll_out(arm)  # db shares its host with the scale set
    applied = arm.call("PUT", APPLY_DB).json
    assert applied["properties"]["status"] == "Pending"
    arm.world.advance(901)
    assert arm.get(applied["id"])["properties"]["status"] == "InProgress"


def test_without_pending_updates_nothing_is_applied(arm: Any) -> None:
    before = arm.stored()
    applied = arm.call("PUT", APPLY_DB)
    assert applied.status == 200
    assert applied.json["properties"]["status"] == "NoUpdatesPending"
    assert arm.get(APPLY_DB)["properties"]["status"] == "NoUpdatesPending"
    assert arm.stored() == before


def test_a_repeated_call_applies_updates_once(arm: Any) -> None:
    roll_out(arm)
    headers = {"x-ms-client-request-id": "one"}
    first = arm.call("PUT", APPLY_DB, headers=headers).json
    assert arm.call("PUT", APPLY_DB, headers=headers).json == first
    assert len(arm.get(f"{GROUP}/{PROVIDER}/applyUpdates")["value"]) == 1


@pytest.mark.parametrize(
    ("resource", "body", "code", "message"),
    [
        (APPLY_DB, CANCEL, "OperationNotAllowed", "only runs of a maintenance configuration can be canceled"),
        (APPLY_DB.replace("default", "mine"), None, "InvalidParameter", "the name of new apply updates is default"),
        (APPLY_DB, {"properties": {"colour": "red"}}, "InvalidParameter", "colour"),
        (APPLY_DB.replace("/db/", "/nobody/"), None, "ResourceNotFound", "VM 'nobody' does not exist"),
        (FIRST_RUN, {}, "InvalidParameter", "can only be canceled: send properties.status Cancel"),
        (
            FIRST_RUN[:-2] + "01",
            CANCEL,
            "ResourceNotFound",
            "has no run '20260106010001': the next one is 20260106010000",
        ),
        (FIRST_RUN.replace("2026", "9999", 1), CANCEL, "ResourceNotFound", "the next one is 20260106010000"),
        (FIRST_RUN.replace("20260106010000", "x"), CANCEL, "ResourceNotFound", "has no run 'x'"),
        (FIRST_RUN.replace("nightly", "none"), CANCEL, "ResourceNotFound", "configuration 'none' does not exist"),
    ],
)
def test_a_bad_call_is_refused_with_a_sentence(arm: Any, resource: str, body: Any, code: str, message: str) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    _, found, told = arm.refused("PUT", resource, body)
    assert found == code
    assert message in told


def test_an_unknown_apply_update_is_not_found(arm: Any) -> None:
    assert arm.refused("GET", APPLY_DB.replace("default", "x"))[:2] == (404, "ResourceNotFound")


def test_a_canceled_run_lets_events_wait_for_the_next_one(arm: Any) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    arm.call("PUT", OF_DB, an_assignment())
    roll_out(arm, impact=RolloutImpact.MIGRATE)
    assert arm.get(FIRST_RUN)["properties"]["status"] == "Pending"
    canceled = arm.call("PUT", FIRST_RUN, CANCEL)
    assert (canceled.status, canceled.json["properties"]["status"]) == (200, "Cancelled")
    assert canceled.json["properties"]["resourceId"] == NIGHTLY
    before = arm.stored()
    assert arm.call("PUT", FIRST_RUN, CANCEL).status == 200
    assert arm.call("PUT", NIGHTLY, arm.get(NIGHTLY)).status == 200
    assert arm.stored() == before
    arm.world.advance(A_DAY)
    assert the_event(arm).status is EventState.SCHEDULED
    arm.world.advance(A_DAY)
    assert the_event(arm).started_at == 1_767_747_600.0  # 2026-01-07 02:00 in Berlin
    entry = "the window of maintenance configuration nightly on Tue 2026-01-06 02:00 CET was canceled"
    assert entry in [found.text for found in arm.world.store.history()]


def test_a_run_is_in_progress_while_the_window_is_open_and_then_over(arm: Any) -> None:
    arm.call("PUT", NIGHTLY, a_body())
    arm.world.advance(13 * 3600 + 60)
    assert arm.get(FIRST_RUN)["properties"]["status"] == "InProgress"
    arm.world.advance(3 * 3600)
    assert arm.get(FIRST_RUN)["properties"]["status"] == "Completed"
    assert arm.refused("PUT", FIRST_RUN, CANCEL) == (
        409,
        "OperationNotAllowed",
        "run 20260106010000 is over: cancel a later one",
    )


def test_the_operations_of_the_provider_are_listed(arm: Any) -> None:
    names = [operation["name"] for operation in arm.get("/providers/Microsoft.Maintenance/operations")["value"]]
    assert "Microsoft.Maintenance/maintenanceConfigurations/write" in names
