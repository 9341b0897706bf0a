"""Long-running operations: they are in progress until their events are over (spec §9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.core.access import Role
from forewarn.core.commit import Commit
from forewarn.core.decision import Policy
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.history import EntryKind, EventDelivery, HistoryEntry, LastPoll
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.machines.simulated import FailRule, SimulatedBehaviour
from tests.support.world import a_vm

COMPUTE = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute"
VMS, POOL = f"{COMPUTE}/virtualMachines", f"{COMPUTE}/virtualMachineScaleSets/pool"
OPERATIONS = "/subscriptions/sub/providers/Microsoft.Compute/locations/westeurope/operations"
DAY_S = 86_400


class OperationClient:
    """An operation, read at the URLs of its 202 response."""

    def __init__(self, caller: Any, method: str, target: str, body: Any = None) -> None:
        answer = caller.call(method, f"{target}?api-version=2024-07-01", body)
        assert answer.status == 202, answer.content
        self.caller = caller
        self.id: str = answer.headers["x-ms-request-id"]
        self.url, self.monitor = answer.headers["azure-asyncoperation"], answer.headers["location"]

    def show(self, caller: Any = None) -> Any:
        return (caller or self.caller).get(self.url)

    @property
    def status(self) -> str:
        status: str = self.show()["status"]
        return status

    def watch(self) -> Any:
        return self.caller.call("GET", self.monitor)


def the_event(arm: Any) -> Event:
    event: Event = arm.world.store.events()[-1]
    return event


def restarted(arm: Any) -> Any:
    """The same service after a crash and a restart."""
    arm.world.restart()
    return type(arm)(type(arm.api)(arm.world))


def test_an_operation_says_what_it_waits_for_until_its_event_is_over(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{VMS}/db/restart")
    event = the_event(arm)
    answer = arm.call("GET", operation.url)
    assert answer.headers["retry-after"] == "1"
    assert answer.json == {
        "name": operation.id,
        "status": "InProgress",
        "startTime": "2026-01-05T12:00:00Z",
        "properties": {
            "request": "restart",
            "requestedBy": "local user ann",
            "toCome": 0,
            "waitsFor": ["Reboot of db: an approval, or the end of its notice"],
            "skipped": [],
            "events": [
                {
                    "eventId": event.id,
                    "eventType": "Reboot",
                    "eventStatus": "Scheduled",
                    "resources": ["db"],
                    "notBefore": "Mon, 05 Jan 2026 12:15:00 GMT",
                    "notBeforeTime": "2026-01-05T12:15:00Z",
                    "waitsFor": "an approval, or the end of its notice",
                    "approval": {"by": "VM db", "givenTo": [], "lastPolls": {}},
                }
            ],
        },
    }

    arm.world.approve("db", event.id)
    started = operation.show()
    assert (started["status"], started["properties"]["waitsFor"]) == ("InProgress", ["Reboot of db: the reboot of db"])
    assert started["properties"]["events"][0]["eventStatus"] == "Started"
    assert started["properties"]["events"][0]["approvedBy"] == "db"

    arm.world.advance(60)
    over = arm.call("GET", operation.url)
    assert "retry-after" not in over.headers
    assert (over.json["status"], over.json["properties"]["waitsFor"]) == ("Succeeded", [])
    assert over.json["startTime"] < over.json["endTime"] <= "2026-01-05T12:01:00Z"
    assert over.json["properties"]["events"][0]["eventStatus"] == "Completed"
    assert "error" not in over.json


def test_an_operation_ends_without_approval_after_the_notice(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{VMS}/db/redeploy")
    arm.world.advance(9 * 60)
    assert operation.status == "InProgress"
    arm.world.advance(10 * 60)
    assert operation.status == "Succeeded"


def test_an_operation_lists_the_vms_that_were_given_the_event_and_that_poll(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{VMS}/web-0/restart")
    event, world = the_event(arm), arm.world
    key, scope_id = world.vm("web-1").key, event.scope_id
    polled = LastPoll(vm=key, scope_id=scope_id, at=world.now, version="2020-07-01")
    delivery = EventDelivery(
        event_id=event.id, scope_id=scope_id, vm=key, status="Scheduled", version="", incarnation=1, at=world.now
    )
    world.do(world.store.record_observations([polled], [delivery]))
    assert operation.show()["properties"]["events"][0]["approval"] == {
        "by": "any VM of availability set web",
        "givenTo": ["web-1"],
        "lastPolls": {"web-1": "2026-01-05T12:00:00Z"},
    }


def test_the_location_url_answers_with_its_status_only(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{VMS}/db/restart")
    waiting = operation.watch()
    assert (waiting.status, waiting.content, waiting.headers["retry-after"]) == (202, b"", "1")
    assert waiting.headers["location"] == operation.monitor
    arm.world.advance(16 * 60)
    done = operation.watch()
    assert (done.status, done.content) == (200, b"")


def test_a_failed_act_fails_the_operation_with_the_reason_of_each_vm(arm: Any) -> None:
    arm.world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(vm="pool_1", note="the disk did not come back"),)))
    operation = OperationClient(arm, "POST", f"{POOL}/restart")
    arm.world.advance(16 * 60)
    shown = operation.show()
    assert shown["status"] == "Failed"
    assert shown["error"] == {
        "code": "OperationFailed",
        "message": "reboot of pool_1 failed: the disk did not come back",
        "details": [
            {
                "code": "OperationFailed",
                "target": "pool_1",
                "message": "reboot of pool_1 failed: the disk did not come back",
            }
        ],
    }
    assert operation.watch().error == (409, "OperationFailed", shown["error"]["message"])


def test_a_withdrawn_event_cancels_the_operation_with_who_and_why(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{VMS}/db/restart")
    arm.world.do(arm.world.control.requests.withdraw(the_event(arm).id, who="bob", reason="not today"))
    shown = operation.show()
    assert shown["status"] == "Canceled"
    assert shown["error"]["code"] == "OperationCanceled"
    assert shown["error"]["message"] == "Reboot of db was withdrawn by bob: not today"
    assert operation.watch().error[:2] == (409, "OperationCanceled")


def test_the_message_has_the_first_reasons_and_the_details_have_all(arm: Any) -> None:
    many = tuple(a_vm(f"crowd_{n}", scale_set="crowd", host="h1") for n in range(22))
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=many, text="a crowd"), who="test"))
    operation = OperationClient(arm, "POST", f"{COMPUTE}/virtualMachineScaleSets/crowd/restart")
    for event in arm.world.events(EventState.SCHEDULED):
        arm.world.do(arm.world.control.requests.withdraw(event.id, who="bob"))
    error = operation.show()["error"]
    assert error["message"].startswith("Reboot of crowd_0 was withdrawn: taken back by bob; Reboot of crowd_1 was")
    assert error["message"].endswith("; and 2 more")
    assert len(error["details"]) == 22


def test_an_operation_that_was_done_in_part_succeeds(arm: Any) -> None:
    """Spec §9: it is canceled only if none of its events finished."""
    operation = OperationClient(arm, "POST", f"{POOL}/restart", {"instanceIds": ["0", "1"]})
    done, withdrawn = sorted(arm.world.events(EventState.SCHEDULED), key=lambda event: event.vms)
    arm.world.do(arm.world.control.requests.withdraw(withdrawn.id, who="bob", reason="not this one"))
    assert operation.status == "InProgress"
    arm.world.advance(20 * 60)
    assert arm.world.store.event(done.id).ending is Ending.FINISHED
    shown = operation.show()
    assert (shown["status"], "error" in shown) == ("Succeeded", False)
    assert [event["eventStatus"] for event in shown["properties"]["events"]] == ["Completed", "Canceled"]
    assert operation.watch().status == 200


def test_an_operation_with_a_skipped_part_succeeds_and_says_why_it_was_skipped(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{POOL}/restart", {"instanceIds": ["0"]})
    request_id = the_event(arm).request_id
    skipped = HistoryEntry(at=0, kind=EntryKind.SKIPPED, text="pool_9 has no host to go to", request_id=request_id)
    arm.world.do(arm.world.store.commit(Commit(entries=(skipped,))))
    assert operation.status == "InProgress"
    arm.world.advance(20 * 60)
    assert operation.status == "Succeeded"
    assert operation.show()["properties"]["skipped"] == ["pool_9 has no host to go to"]


def test_an_operation_that_became_impossible_is_canceled_with_the_reasons(arm: Any) -> None:
    """Spec §9: what was skipped was withdrawn before it was published."""
    vms = tuple(a_vm(f"big_{n}", scale_set="big", placement_group=f"pg-{n}", host="h1") for n in range(2))
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=vms, text="two groups"), who="test"))
    receipt = arm.world.do(arm.world.control.requests.request_for_vms(RequestedOperation.RESTART, vms, who="ann"))
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(removed=vms, text="gone"), who="test"))
    arm.world.settle()
    operation = arm.get(f"{OPERATIONS}/{receipt.request.id}")
    assert (operation["status"], operation["error"]["code"]) == ("Canceled", "OperationCanceled")
    assert "VM 'big_0' no longer exists" in operation["error"]["message"]


@pytest.mark.parametrize(
    ("method", "action", "by"), [("POST", "/redeploy", "user redeploy"), ("DELETE", "", "user delete")]
)
def test_a_replaced_operation_is_cancelled(arm: Any, method: str, action: str, by: str) -> None:
    first = OperationClient(arm, "POST", f"{VMS}/db/restart")
    second = OperationClient(arm, method, f"{VMS}/db{action}")
    assert first.status == "Canceled"
    assert first.show()["error"]["message"] == f"Reboot of db was withdrawn by local user ann: replaced by {by}"
    arm.world.advance(20 * 60)
    assert second.status == "Succeeded"


def test_an_operation_without_notice_is_over_when_it_is_performed(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{VMS}/db/powerOff")
    arm.world.advance(60)
    shown = operation.show()
    assert shown["status"] == "Succeeded"
    assert shown["properties"]["events"][0]["eventType"] is None
    assert shown["properties"]["events"][0]["note"] == "a power off publishes no event"


def test_a_restart_in_a_disabled_scope_waits_for_no_approval(arm_of: Callable[..., Any]) -> None:
    arm = arm_of(Policy())
    operation = OperationClient(arm, "POST", f"{VMS}/db/restart")
    arm.world.advance(60)
    shown = operation.show()
    assert shown["status"] == "Succeeded"
    assert "disabled" in shown["properties"]["events"][0]["note"]


def test_an_operation_that_performs_maintenance_lasts_as_long_as_its_events(arm: Any) -> None:
    world = arm.world
    world.do(world.control.requests.degrade_host("h1", who="operator", notice_s=DAY_S))
    world.settle()
    operation = OperationClient(arm, "POST", f"{VMS}/db/performMaintenance")
    shown = operation.show()
    assert (shown["status"], shown["properties"]["request"]) == ("InProgress", "perform-maintenance")
    assert [event["resources"] for event in shown["properties"]["events"]] == [["db"]]
    world.advance(10 * 60)
    assert operation.status == "Succeeded"


def test_performing_maintenance_of_a_shared_host_does_not_reveal_its_other_vms(arm: Any) -> None:
    world = arm.world
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h1",))
    world.do(world.control.rollout_requests.start(rollout, who="operator"))
    world.settle()
    operator = arm.holding(Role.OPERATOR, f"{VMS}/db")
    operation = OperationClient(operator, "POST", f"{VMS}/db/performMaintenance")
    (found,) = operation.show()["properties"]["events"]
    assert found["waitsFor"] == "another scope on the same host, which is not ready yet"
    assert "web-0" in operation.show(arm)["properties"]["events"][0]["waitsFor"]


def test_an_operation_outlives_the_service_that_began_it(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{POOL}/restart")
    reborn = restarted(arm)
    assert operation.show(reborn)["status"] == "InProgress"
    for event in reborn.world.events(EventState.SCHEDULED):
        reborn.world.approve("pool_0", event.id)
    reborn = restarted(reborn)
    reborn.world.advance(60)
    assert operation.show(restarted(reborn))["status"] == "Succeeded"


def test_an_operation_with_planned_events_is_in_progress(arm: Any) -> None:
    vms = tuple(a_vm(f"big_{n}", scale_set="big", placement_group=f"pg-{n}", host="h1") for n in range(2))
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=vms, text="two groups"), who="test"))
    receipt = arm.world.do(arm.world.control.requests.request_for_vms(RequestedOperation.RESTART, vms, who="ann"))
    shown = arm.get(f"{OPERATIONS}/{receipt.request.id}")
    assert (shown["status"], shown["properties"]["toCome"], shown["properties"]["events"]) == ("InProgress", 2, [])


def test_an_operation_is_found_in_any_case_of_its_id_and_path(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{VMS}/db/restart")
    assert arm.get(f"{OPERATIONS.upper()}/{operation.id.upper()}")["name"] == operation.id


def test_an_operation_is_not_found_under_another_subscription(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{VMS}/db/restart")
    status, code, message = arm.refused("GET", f"{OPERATIONS.replace('sub/', 'other/')}/{operation.id}")
    assert (status, code) == (404, "ResourceNotFound")
    assert operation.id in message


@pytest.mark.parametrize("name", ["nothing", "%C3%9F", "00000000-0000-4000-8000-000000000001"])
def test_an_unknown_operation_is_not_found(arm: Any, name: str) -> None:
    assert arm.refused("GET", f"{OPERATIONS}/{name}")[:2] == (404, "ResourceNotFound")


def test_a_rollout_is_not_found_as_an_operation(arm: Any) -> None:
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",))
    request = arm.world.do(arm.world.control.rollout_requests.start(rollout, who="operator"))
    assert arm.refused("GET", f"{OPERATIONS}/{request.id}")[0] == 404


def test_an_operation_without_kept_events_is_not_found_and_says_so(arm: Any) -> None:
    operation = OperationClient(arm, "POST", f"{VMS}/db/restart")
    arm.world.advance(DAY_S)
    arm.world.do(arm.world.store.prune(arm.world.now))
    status, _, message = arm.refused("GET", operation.url)
    assert status == 404
    assert "no longer kept" in message


def test_an_operation_is_visible_to_its_requester_and_readers_of_all_its_vms(arm: Any) -> None:
    operation = OperationClient(arm.holding(Role.OPERATOR, POOL, name="client asker"), "POST", f"{POOL}/restart")
    strangers = [arm.holding(Role.READER, *over) for over in ((), (f"{VMS}/db",), (f"{POOL}/virtualMachines/0",))]
    for outsider in strangers:
        assert outsider.call("GET", operation.url).error[0] == 404
    readers = [
        arm.holding(Role.READER, POOL),
        arm.holding(Role.READER, f"{POOL}/virtualMachines/0", f"{POOL}/virtualMachines/1"),
        arm.holding(Role.READER, name="client asker"),
    ]
    for reader in readers:
        assert reader.get(operation.url)["status"] == "InProgress"


def test_an_operation_that_performs_maintenance_is_visible_to_all_who_see_the_scope(arm: Any) -> None:
    """Spec §7.2: every VM of a scope sees its events."""
    vms = tuple(a_vm(f"app-{n}", availability_set="app", host="h1") for n in range(2))
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=vms, text="two on one host"), who="test"))
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h1",))
    arm.world.do(arm.world.control.rollout_requests.start(rollout, who="operator"))
    arm.world.settle()
    operation = OperationClient(arm, "POST", f"{VMS}/app-0/performMaintenance")
    reader = arm.holding(Role.READER, f"{VMS}/app-0")
    assert operation.show(reader)["properties"]["events"][0]["resources"] == ["app-0", "app-1"]


def test_an_operation_can_be_read_after_it_deleted_its_vms(arm: Any) -> None:
    operation = OperationClient(arm, "DELETE", f"{VMS}/db")
    arm.world.advance(60)
    assert arm.holding(Role.READER, f"{VMS}/db").get(operation.url)["status"] == "Succeeded"
