"""`x-ms-client-request-id`: a call that a library repeats is one request; other calls with the same id are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.core.access import Role
from forewarn.web.arm.operations import REPEAT_WINDOW_S
from tests.arm.conftest import COMPUTE, Arm, Caller
from tests.support.operator_api import Answer

DB, POOL = f"{COMPUTE}/virtualMachines/db", f"{COMPUTE}/virtualMachineScaleSets/pool"
SPOT = f"{COMPUTE}/virtualMachines/spot"
ID = {"x-ms-client-request-id": "1f2e3d4c-0000-11ef-9f5e-00155d000001"}
OTHER_ID = {"x-ms-client-request-id": "1f2e3d4c-0000-11ef-9f5e-00155d000002"}

# Calls that create requests: method, path and body.
CREATING = {
    "restart": ("POST", f"{DB}/restart", None),
    "deallocate": ("POST", f"{DB}/deallocate", None),
    "delete": ("DELETE", DB, None),
    "delete of an instance": ("DELETE", f"{POOL}/virtualMachines/0", None),
    "instances": ("POST", f"{POOL}/restart", {"instanceIds": ["0"]}),
    "all instances": ("POST", f"{POOL}/restart", {}),
    "eviction": ("POST", f"{SPOT}/simulateEviction", None),
}


def send(arm: Caller, call: tuple[str, str, Any], headers: dict[str, str] = ID) -> Answer:
    return arm.call(*call, headers)


@pytest.mark.parametrize("call", CREATING.values(), ids=CREATING)
def test_a_call_repeated_with_its_id_is_one_request_with_the_same_response(
    arm: Arm, call: tuple[str, str, Any]
) -> None:
    first, second = send(arm, call), send(arm, call)
    assert first.status in (202, 204), first.content
    assert (second.status, second.headers, second.content) == (first.status, first.headers, first.content)
    assert len(arm.world.store.requests()) == 1


@pytest.mark.parametrize("call", CREATING.values(), ids=CREATING)
def test_calls_at_the_same_time_with_one_id_are_one_request(arm: Arm, call: tuple[str, str, Any]) -> None:
    async def at_once() -> list[Answer]:
        return await asyncio.gather(*(arm.calling(*call, ID, arm.principal) for _ in range(5)))

    answers = arm.world.do(at_once())
    assert {answer.status for answer in answers} <= {202, 204}
    assert len({answer.headers.get("x-ms-request-id") for answer in answers}) == 1
    assert len(arm.world.store.requests()) == 1


def test_a_call_repeated_after_a_restart_is_one_request(arm: Arm) -> None:
    first = send(arm, CREATING["restart"])
    arm.world.restart()
    restarted = Arm(_api_again(arm))
    second = send(restarted, CREATING["restart"])
    assert (first.status, first.headers) == (second.status, second.headers)
    assert len(restarted.world.store.requests()) == 1


def _api_again(arm: Arm) -> Any:
    """The API of the new process of the same world."""
    return type(arm.api)(arm.world)


def test_a_repeated_delete_of_a_vm_that_is_gone_names_the_operation_that_deleted_it(arm: Arm) -> None:
    first = send(arm, CREATING["delete"])
    arm.world.advance(3600)
    second = send(arm, CREATING["delete"])
    assert second.status == 202
    assert second.headers["location"] == first.headers["location"]
    assert arm.get(second.headers["azure-asyncoperation"])["status"] == "Succeeded"
    assert send(arm, CREATING["delete"], OTHER_ID).status == 204


def test_calls_of_one_az_command_share_an_id_and_are_requests_of_their_own(arm: Arm) -> None:
    """`az vm restart --ids …` sends the same id with the call for each VM."""
    calls = [("POST", f"{COMPUTE}/virtualMachines/{name}/restart", None) for name in ("db", "web-0", "web-1")]
    assert [send(arm, call).status for call in calls] == [202, 202, 202]
    assert len(arm.world.store.requests()) == 3


def test_another_body_with_the_same_id_is_another_request(arm: Arm) -> None:
    """A PowerShell cmdlet sends one id for all its calls, which may differ in their instances only."""
    path = f"{POOL}/restart"
    answers = [send(arm, ("POST", path, {"instanceIds": [number]})) for number in ("0", "1")]
    assert [answer.status for answer in answers] == [202, 202]
    assert len(arm.world.store.requests()) == 2


def test_the_same_id_long_afterwards_is_a_new_request(arm_of: Callable[..., Arm]) -> None:
    """A program that always sends the same id must not find its second restart ignored."""
    now = [1_000_000.0]
    arm = arm_of(real_time=lambda: now[0])
    reapply = ("POST", f"{DB}/reapply", None)
    ids = []
    for later_s in (0.0, REPEAT_WINDOW_S, REPEAT_WINDOW_S, 1.0, REPEAT_WINDOW_S + 1):
        now[0] += later_s
        answer = send(arm, reapply)
        assert answer.status == 202
        ids.append(answer.headers["x-ms-request-id"])
        arm.world.advance(3600)
    first, repeated, second, again, third = ids
    assert repeated == first
    assert again == second
    assert len({first, second, third}) == 3


def test_callers_with_the_same_id_make_requests_of_their_own(arm: Arm) -> None:
    other = arm.holding(Role.OPERATOR, "/")
    assert send(arm, CREATING["instances"]).status == 202
    assert send(other, ("POST", f"{POOL}/restart", {"instanceIds": ["1"]})).status == 202
    assert len(arm.world.store.requests()) == 2


def test_a_call_without_an_id_is_never_a_repetition(arm: Arm) -> None:
    first, second = (arm.call("POST", f"{DB}/restart") for _ in range(2))
    assert first.status == 202
    assert second.status == 409


def test_a_refused_call_is_tried_again_when_it_is_repeated(arm: Arm) -> None:
    start = ("POST", f"{DB}/start", None)
    assert send(arm, start).status == 409
    send(arm, CREATING["deallocate"])
    arm.world.advance(3600)
    assert send(arm, start).status == 202
