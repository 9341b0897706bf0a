"""User operations on VMs: the request that each creates, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.core.access import Role
from forewarn.core.event import EventState
from forewarn.core.fleet import PowerState
from forewarn.core.request import RequestedOperation
from tests.support.world import World, a_vm

BASE = "https://localhost:8443"
COMPUTE = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute"
DB, SPOT = f"{COMPUTE}/virtualMachines/db", f"{COMPUTE}/virtualMachines/spot"
POOL = f"{COMPUTE}/virtualMachineScaleSets/pool"
VERSION = "api-version=2024-07-01"


def asked(arm: Any) -> list[tuple[str, tuple[str, ...], str]]:
    """All requests: operation, targets and requester."""
    return [(request.operation, request.targets, request.requested_by) for request in arm.world.store.requests()]


def test_a_restart_becomes_an_event_and_an_operation_that_can_be_followed(arm: Any) -> None:
    answer = arm.call("POST", f"{DB}/restart?{VERSION}")
    (event,) = arm.world.store.events()
    (request,) = arm.world.store.requests()
    operation = f"{BASE}/subscriptions/sub/providers/Microsoft.Compute/locations/westeurope/operations/{request.id}"

    assert (answer.status, answer.content) == (202, b"")
    assert answer.headers["azure-asyncoperation"] == f"{operation}?{VERSION}"
    assert answer.headers["location"] == f"{operation}?{VERSION}&monitor=true"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-ms-request-id"] == request.id
    assert (event.rules.kind, event.rules.source, event.vms) == ("Reboot", "User", ("db",))
    assert event.status is EventState.SCHEDULED
    assert asked(arm) == [("restart", ("db",), "local user ann")]


@pytest.mark.parametrize(
    ("action", "ask"),
    [
        ("restart", RequestedOperation.RESTART),
        ("redeploy", RequestedOperation.REDEPLOY),
        ("reapply", RequestedOperation.REAPPLY),
        ("powerOff?skipShutdown=true", RequestedOperation.POWER_OFF),
        ("deallocate?hibernate=false", RequestedOperation.DEALLOCATE),
        ("reimage", RequestedOperation.REIMAGE),
        ("RESTART", RequestedOperation.RESTART),
    ],
)
def test_each_vm_action_creates_its_own_request(arm: Any, action: str, ask: RequestedOperation) -> None:
    assert arm.call("POST", f"{DB}/{action}").status == 202
    assert asked(arm) == [(ask, ("db",), "local user ann")]


def test_operation_urls_have_no_api_version_if_the_call_had_none(arm: Any) -> None:
    headers = arm.call("POST", f"{DB}/restart").headers
    assert "?" not in headers["azure-asyncoperation"]
    assert headers["location"].endswith("?monitor=true")


def test_a_vm_that_was_powered_off_is_started(arm: Any) -> None:
    arm.call("POST", f"{DB}/powerOff")
    arm.world.advance(60)
    assert arm.world.vm("db").power is PowerState.STOPPED
    assert arm.call("POST", f"{DB}/start").status == 202
    arm.world.advance(60)
    assert arm.world.vm("db").power is PowerState.RUNNING


def test_pending_maintenance_is_performed(arm: Any) -> None:
    world: World = arm.world
    world.do(world.control.requests.degrade_host("h1", who="operator", notice_s=86400))
    world.settle()
    assert arm.call("POST", f"{DB}/performMaintenance").status == 202
    started = {name for event in world.events(EventState.STARTED) for name in event.vms}
    assert started == {"db"}
    assert asked(arm)[-1] == ("perform-maintenance", ("db",), "local user ann")


def test_without_pending_maintenance_there_is_nothing_to_perform(arm: Any) -> None:
    assert arm.refused("POST", f"{DB}/performMaintenance") == (
        409,
        "OperationNotAllowed",
        "VM 'db' has no pending maintenance: there is nothing to perform",
    )


def test_an_eviction_is_answered_at_once_and_for_spot_vms_only(arm: Any) -> None:
    answer = arm.call("POST", f"{SPOT}/simulateEviction")
    assert (answer.status, answer.content) == (204, b"")
    assert "azure-asyncoperation" not in answer.headers
    assert [event.rules.kind for event in arm.world.store.events()] == ["Preempt"]

    status, code, message = arm.refused("POST", f"{DB}/simulateEviction")
    assert (status, code) == (409, "OperationNotAllowed")
    assert message.startswith("VM 'db' is not a Spot VM")


def test_hibernation_is_rejected_with_a_reason(arm: Any) -> None:
    status, code, message = arm.refused("POST", f"{DB}/deallocate?hibernate=True")
    assert (status, code) == (400, "InvalidParameter")
    assert message.startswith("hibernate=true is not supported")


def test_a_delete_without_terminate_notification_is_done_at_once(arm: Any) -> None:
    assert arm.call("DELETE", f"{DB}?forceDeletion=true").status == 202
    arm.world.advance(60)
    assert arm.world.store.vm("sub/lab/db").removed_at is not None


@pytest.mark.parametrize("force", ["", "?forceDeletion=true"])
def test_a_delete_gives_the_terminate_notice_of_the_profile(arm: Any, force: str) -> None:
    assert arm.call("DELETE", f"{POOL}/virtualMachines/0{force}").status == 202
    (event,) = arm.world.store.events()
    assert (event.rules.kind, event.rules.source, event.vms) == ("Terminate", "User", ("pool_0",))
    assert event.not_before == arm.world.now + 300


@pytest.mark.parametrize(
    "gone", [f"{COMPUTE}/virtualMachines/nobody", f"{POOL}/virtualMachines/9", f"{COMPUTE}/virtualMachineScaleSets/x"]
)
def test_a_delete_of_a_missing_resource_succeeds(arm: Any, gone: str) -> None:
    before = arm.stored()
    answer = arm.call("DELETE", gone)
    assert (answer.status, answer.content) == (204, b"")
    assert arm.stored() == before


def test_a_second_delete_succeeds(arm: Any) -> None:
    arm.call("DELETE", DB)
    arm.world.advance(60)
    assert arm.call("DELETE", DB).status == 204


def test_the_right_is_checked_before_the_resource_is_looked_up(arm: Any) -> None:
    reader = arm.holding(Role.READER, "/subscriptions/sub")
    for method, target in (
        ("POST", f"{DB}/restart"),
        ("POST", f"{COMPUTE}/virtualMachines/nobody/restart"),
        ("DELETE", DB),
        ("DELETE", f"{COMPUTE}/virtualMachines/nobody"),
        ("POST", f"{POOL}/restart"),
        ("POST", f"{SPOT}/simulateEviction"),
    ):
        assert reader.refused(method, target)[:2] == (403, "AuthorizationFailed")


def test_an_operator_of_one_vm_may_operate_that_vm_only(arm: Any) -> None:
    operator = arm.holding(Role.OPERATOR, DB.upper())
    assert operator.call("POST", f"{DB}/restart").status == 202
    assert operator.refused("POST", f"{SPOT}/restart")[0] == 403
    assert asked(arm) == [("restart", ("db",), "client ci")]


def test_a_vm_that_does_not_exist_is_not_found(arm: Any) -> None:
    assert arm.refused("POST", f"{COMPUTE}/virtualMachines/nobody/restart") == (
        404,
        "ResourceNotFound",
        "VM 'nobody' does not exist in resource group 'lab': `az vm list -g lab` lists the VMs",
    )


@pytest.mark.parametrize(("method", "action"), [("POST", "/restart"), ("DELETE", "")])
def test_an_instance_is_not_found_among_the_vms_and_the_message_has_its_path(
    arm: Any, method: str, action: str
) -> None:
    status, _, message = arm.refused(method, f"{COMPUTE}/virtualMachines/pool_1{action}")
    assert status == 404
    assert message.endswith(f"call {POOL}/virtualMachines/1")


def test_a_caller_who_may_not_read_an_instance_does_not_learn_its_path(arm: Any) -> None:
    there = f"{COMPUTE}/virtualMachines/pool_1"
    _, _, message = arm.holding(Role.OPERATOR, there).refused("POST", f"{there}/restart")
    assert message.startswith("VM 'pool_1' does not exist")


def test_a_second_operation_on_a_vm_that_has_one_pending_is_refused(arm: Any) -> None:
    arm.call("POST", f"{DB}/restart")
    (event,) = arm.world.store.events()
    status, code, message = arm.refused("POST", f"{DB}/restart")
    assert (status, code) == (409, "OperationNotAllowed")
    assert message == f"the user restart of VM 'db' is pending: approve or withdraw event {event.id} first"


def test_a_user_operation_beyond_the_limit_of_a_scope_is_refused(arm: Any) -> None:
    """Spec §8.4: the 101st."""
    many = tuple(a_vm(f"crowd-{n}", availability_set="crowd", host="h1") for n in range(101))
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=many, text="a crowd"), who="test"))
    for number in range(100):
        assert arm.call("POST", f"{COMPUTE}/virtualMachines/crowd-{number}/restart").status == 202
    status, code, message = arm.refused("POST", f"{COMPUTE}/virtualMachines/crowd-100/restart")
    assert (status, code) == (409, "OperationNotAllowed")
    assert "at most 100 user operations" in message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", "the body is not JSON"),
        (b"[]", "Expected 'object', got 'array'"),
        (b'{"colour": 1}', "field 'colour' is unknown"),
        (b'{"tempDisk": "yes"}', "tempDisk: Expected 'bool | null', got 'str'"),
        (b'{"osProfile": {"a": ' + b"[" * 30_000 + b"]" * 30_000 + b"}}", "nested too deeply"),
    ],
    ids=["no JSON", "no object", "unknown member", "wrong type", "deep"],
)
def test_an_invalid_body_is_rejected_with_one_sentence(arm: Any, body: bytes, expected: str) -> None:
    status, code, message = arm.refused("POST", f"{DB}/reimage", body)
    assert (status, code) == (400, "InvalidParameter")
    assert expected in message


def test_the_image_parameters_of_a_reimage_are_accepted(arm: Any) -> None:
    image = {"tempDisk": True, "exactVersion": "1.0", "osProfile": {"adminPassword": "x"}}
    assert arm.call("POST", f"{DB}/reimage", image).status == 202


def test_image_parameters_are_rejected_for_other_actions(arm: Any) -> None:
    assert "field 'tempDisk' is unknown" in arm.refused("POST", f"{DB}/restart", {"tempDisk": True})[2]


def test_a_role_instance_of_a_cloud_service_is_not_found_as_a_vm(arm: Any) -> None:
    role = a_vm("worker_IN_0", cloud_service="shop", host="h1")
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=(role,), text="a service"), who="test"))
    assert arm.refused("POST", f"{COMPUTE}/virtualMachines/worker_IN_0/restart")[0] == 404
