"""User operations on scale sets: on all instances, on some, on one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.control.fleet import FleetChange
from forewarn.core.access import Role
from forewarn.core.event import EventState
from forewarn.core.fleet import PowerState, Priority
from forewarn.core.request import RequestedOperation
from tests.support.world import a_vm

COMPUTE = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute"
SETS = f"{COMPUTE}/virtualMachineScaleSets"
POOL, BIG = f"{SETS}/pool", f"{SETS}/big"


@pytest.fixture
def big(arm: Any) -> Any:
    """Adds a scale set of three instances, one of them Spot, in two placement groups."""
    groups = ("pg-0", "pg-0", "pg-1")
    priorities = (Priority.REGULAR, Priority.REGULAR, Priority.SPOT)
    vms = tuple(
        a_vm(f"big_{n}", scale_set="big", placement_group=groups[n], priority=priorities[n], host="h1")
        for n in range(3)
    )
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=vms, text="a big set"), who="test"))
    return arm


def asked(arm: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(request.operation, request.targets) for request in arm.world.store.requests()]


def hit(arm: Any) -> list[str]:
    return sorted(name for event in arm.world.store.events() for name in event.vms)


@pytest.mark.parametrize("body", [None, {}, {"instanceIds": ["*"]}, {"instanceIds": None}], ids=repr)
def test_an_action_without_ids_covers_every_instance_of_all_placement_groups(big: Any, body: Any) -> None:
    assert big.call("POST", f"{BIG}/restart", body).status == 202
    assert asked(big) == [("restart", ("big_0", "big_1", "big_2"))]
    assert hit(big) == ["big_0", "big_1", "big_2"]
    assert len({event.scope_id for event in big.world.store.events()}) == 2


def test_an_action_with_ids_covers_each_named_instance_once(big: Any) -> None:
    assert big.call("POST", f"{BIG}/redeploy", {"instanceIds": ["2", "0", "2"]}).status == 202
    assert asked(big) == [("redeploy", ("big_2", "big_0"))]


@pytest.mark.parametrize(
    ("action", "ask"),
    [
        ("restart", RequestedOperation.RESTART),
        ("redeploy", RequestedOperation.REDEPLOY),
        ("reapply", RequestedOperation.REAPPLY),
        ("poweroff?skipShutdown=false", RequestedOperation.POWER_OFF),
        ("deallocate", RequestedOperation.DEALLOCATE),
        ("reimage", RequestedOperation.REIMAGE),
        ("reimageall", RequestedOperation.REIMAGE),
        ("delete", RequestedOperation.DELETE),
    ],
)
def test_each_action_of_a_set_creates_its_own_request(big: Any, action: str, ask: RequestedOperation) -> None:
    assert big.call("POST", f"{BIG}/{action}", {"instanceIds": ["1"]}).status == 202
    assert asked(big) == [(ask, ("big_1",))]


@pytest.mark.parametrize(
    ("action", "ask"),
    [
        ("restart", RequestedOperation.RESTART),
        ("redeploy", RequestedOperation.REDEPLOY),
        ("powerOff", RequestedOperation.POWER_OFF),
        ("deallocate", RequestedOperation.DEALLOCATE),
        ("reimage", RequestedOperation.REIMAGE),
        ("reimageall", RequestedOperation.REIMAGE),
    ],
)
def test_each_action_of_an_instance_creates_its_own_request(big: Any, action: str, ask: RequestedOperation) -> None:
    assert big.call("POST", f"{BIG}/virtualMachines/1/{action}").status == 202
    assert asked(big) == [(ask, ("big_1",))]


def test_a_spot_instance_is_evicted(big: Any) -> None:
    assert big.call("POST", f"{BIG}/virtualMachines/2/simulateEviction").status == 204
    assert hit(big) == ["big_2"]
    assert big.refused("POST", f"{BIG}/virtualMachines/0/simulateEviction")[0] == 409


def test_a_start_of_the_whole_set_covers_the_stopped_instances(big: Any) -> None:
    big.call("POST", f"{BIG}/poweroff", {"instanceIds": ["1"]})
    big.world.advance(60)
    assert big.call("POST", f"{BIG}/start").status == 202
    assert asked(big)[-1] == ("start", ("big_1",))
    big.world.advance(60)
    assert big.world.vm("big_1").power is PowerState.RUNNING
    assert big.refused("POST", f"{BIG}/start")[2].startswith("VM 'big_0' is running already")


def test_maintenance_of_the_whole_set_is_performed_where_it_is_pending(big: Any) -> None:
    world = big.world
    world.do(world.control.requests.degrade_host("h1", who="operator", notice_s=86400))
    world.settle()
    assert big.call("POST", f"{BIG}/performMaintenance").status == 202
    started = {name for event in world.events(EventState.STARTED) for name in event.vms}
    assert started <= {"big_0", "big_1", "big_2"}
    assert len(world.store.requests()[-1].approves) == 3


def test_deleting_the_set_deletes_every_instance(big: Any) -> None:
    assert big.call("DELETE", BIG).status == 202
    assert asked(big) == [("delete", ("big_0", "big_1", "big_2"))]
    big.world.advance(60)
    assert big.call("DELETE", BIG).status == 204


@pytest.mark.parametrize(
    ("action", "body", "status", "message"),
    [
        ("restart", {"instanceIds": ["0", "7"]}, 404, "has no instance '7'"),
        ("restart", {"instanceIds": ["big_0"]}, 404, "has no instance 'big_0'"),
        ("restart", {"instanceIds": []}, 400, "instanceIds is empty"),
        ("restart", {"instanceIds": ["*", "0"]}, 400, "'*' beside other ids"),
        ("restart", {"instanceIds": "0"}, 400, "instanceIds: Expected"),
        ("restart", {"instanceIds": [0]}, 400, "instanceIds[0]: Expected 'str'"),
        ("restart", {"instances": ["0"]}, 400, "field 'instances' is unknown"),
        ("restart", {"tempDisk": True}, 400, "field 'tempDisk' is unknown"),
        ("delete", None, 400, "missing required field 'instanceIds'"),
        ("delete", {"instanceIds": None}, 400, "instanceIds: Expected"),
        ("deallocate?hibernate=true", None, 400, "hibernate=true is not supported"),
    ],
)
def test_an_invalid_body_rejects_the_whole_call(big: Any, action: str, body: Any, status: int, message: str) -> None:
    refused = big.refused("POST", f"{BIG}/{action}", body)
    assert refused[0] == status
    assert message in refused[2]


def test_one_busy_instance_refuses_the_whole_call(big: Any) -> None:
    big.call("POST", f"{BIG}/virtualMachines/2/restart")
    assert big.refused("POST", f"{BIG}/restart")[:2] == (409, "OperationNotAllowed")


def test_a_set_or_an_instance_that_does_not_exist_is_not_found(big: Any) -> None:
    for target in (f"{SETS}/none/restart", f"{SETS}/none/virtualMachines/0/restart", f"{BIG}/virtualMachines/3/start"):
        assert big.refused("POST", target)[:2] == (404, "ResourceNotFound")


def test_the_right_over_the_named_instances_is_enough(big: Any) -> None:
    operator = big.holding(Role.OPERATOR, f"{BIG}/virtualMachines/0", f"{BIG}/virtualMachines/2")
    bodies: list[Any] = [None, {"instanceIds": ["*"]}, {"instanceIds": ["0", "1"]}, {"instanceIds": []}, b"{"]
    for body in bodies:
        assert operator.refused("POST", f"{BIG}/restart", body)[:2] == (403, "AuthorizationFailed")
    assert operator.call("POST", f"{BIG}/restart", {"instanceIds": ["0", "2"]}).status == 202
    assert operator.refused("DELETE", BIG)[0] == 403
    assert operator.call("POST", f"{BIG}/delete", {"instanceIds": ["2"]}).status == 202


_ids = st.one_of(st.sampled_from(["0", "1", "2", "9", "*", "big_0", "", "0/..", "Ⅸ"]), st.text(max_size=3))
_values = st.recursive(st.none() | st.booleans() | st.integers() | _ids, st.lists, max_leaves=5)
_bodies = (
    st.dictionaries(st.sampled_from(["instanceIds", "tempDisk", "osProfile", "InstanceIds", "x"]), _values) | _values
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(
    action=st.sampled_from(["restart", "reimageall", "delete", "start", "performMaintenance"]),
    body=_bodies.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20),
    over=st.sampled_from([BIG, f"{BIG}/virtualMachines/0", POOL]),
)
def test_a_generated_body_is_accepted_or_rejected_without_a_change(
    big: Any, action: str, body: bytes, over: str
) -> None:
    before = big.stored()
    answer = big.holding(Role.OPERATOR, over).call("POST", f"{BIG}/{action}", body)
    assert answer.status in (202, 400, 403, 404, 409)
    if answer.status != 202:
        assert answer.error[2]
        assert big.stored() == before
