"""Scale sets with flexible orchestration through the ARM facade: VM resources that belong to a set (spec §14.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from forewarn.core.access import Role
from forewarn.core.event import EventState
from forewarn.core.fleet import Orchestration, Priority
from forewarn.web.arm.routes import ROUTES
from forewarn.web.arm.routing import ArmRoute
from tests.support.world import a_host, a_vm

GROUP = "/subscriptions/sub/resourceGroups/lab"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"
VMS, SETS = f"{COMPUTE}/virtualMachines", f"{COMPUTE}/virtualMachineScaleSets"
FLEX, POOL = f"{SETS}/flex", f"{SETS}/pool"
FIRST, SECOND = "flex_0a1b2c3d", "flex_9f8e7d6c"
MAINTENANCE = "providers/Microsoft.Maintenance"
EVENTS = f"{MAINTENANCE}/scheduledevents"


@pytest.fixture
def flexible(arm_of: Callable[..., Any]) -> Any:
    """A flexible set of two VMs, a uniform set of one, and a VM in no set."""
    facts = {"scale_set": "flex", "orchestration": Orchestration.FLEXIBLE}
    return arm_of(
        vms=[
            a_vm(FIRST, **facts, update_domain=0, fault_domain=0, terminate_notice_min=5),
            a_vm(SECOND, **facts, update_domain=1, fault_domain=1, terminate_notice_min=5),
            a_vm("pool_0", scale_set="pool", placement_group="pg-0"),
            a_vm("db"),
        ],
        hosts=[a_host("h1"), a_host("h2")],
    )


def names(answer: Any) -> list[str]:
    return [one["name"] for one in answer["value"]]


def requested(arm: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(request.operation, request.targets) for request in arm.world.store.requests()]


def filtered(resource: str) -> str:
    return f"{VMS}?$filter=" + quote(f"'virtualMachineScaleSet/id' eq '{resource}'")


def test_a_vm_of_a_flexible_set_is_a_vm_resource_that_names_its_set(flexible: Any) -> None:
    shown = flexible.get(f"{VMS}/{SECOND}")
    assert (shown["id"], shown["type"]) == (f"{VMS}/{SECOND}", "Microsoft.Compute/virtualMachines")
    assert shown["properties"]["virtualMachineScaleSet"] == {"id": FLEX}
    assert shown["properties"]["platformFaultDomain"] == 1
    assert "virtualMachineScaleSet" not in flexible.get(f"{VMS}/db")["properties"]
    view = flexible.get(f"{VMS}/{SECOND}/instanceView")
    assert (view["platformUpdateDomain"], "placementGroupId" in view) == (1, False)


def test_the_list_of_vms_has_those_of_flexible_sets_and_can_be_limited_to_one_set(flexible: Any) -> None:
    assert names(flexible.get(VMS)) == ["db", FIRST, SECOND]
    for resource in (FLEX, FLEX.upper()):
        assert names(flexible.get(filtered(resource))) == [FIRST, SECOND]
    assert names(flexible.get(filtered(f"{SETS}/none"))) == []
    every = f"/subscriptions/sub/providers/Microsoft.Compute/virtualMachines?{filtered(FLEX).partition('?')[2]}"
    assert names(flexible.get(every)) == [FIRST, SECOND]
    viewed = flexible.get(f"{filtered(FLEX)}&$expand=instanceView")["value"]
    assert all(vm["properties"]["instanceView"]["statuses"] for vm in viewed)
    status, code, message = flexible.refused("GET", f"{VMS}?$filter={quote('virtualMachineScaleSet/id ne x')}")
    assert (status, code) == (400, "InvalidParameter")
    assert "'virtualMachineScaleSet/id' eq 'ID'" in message


def test_a_flexible_set_is_shown_as_one(flexible: Any) -> None:
    shown = flexible.get(FLEX)
    assert (shown["id"], shown["sku"]["capacity"]) == (FLEX, 2)
    assert shown["properties"]["orchestrationMode"] == "Flexible"
    assert shown["properties"]["singlePlacementGroup"] is False
    assert flexible.get(POOL)["properties"]["orchestrationMode"] == "Uniform"
    assert names(flexible.get(SETS)) == ["flex", "pool"]


def test_the_instances_of_a_flexible_set_are_listed_with_the_ids_of_vms(flexible: Any) -> None:
    listed = flexible.get(f"{FLEX}/virtualMachines")["value"]
    assert [(one["id"], one["instanceId"], one["type"]) for one in listed] == [
        (f"{VMS}/{name}", name, "Microsoft.Compute/virtualMachines") for name in (FIRST, SECOND)
    ]
    assert {one["properties"]["virtualMachineScaleSet"]["id"] for one in listed} == {FLEX}


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("GET", "instanceView", "instanceView.GET"),
        ("GET", "virtualMachines?$expand=instanceView", "virtualMachines.GET"),
        ("GET", f"virtualMachines/{FIRST}", "virtualMachines.GET"),
        ("GET", f"virtualMachines/{FIRST}/instanceView", "virtualMachines.instanceView.GET"),
        ("POST", "restart", "restart.POST"),
        ("POST", "redeploy", "redeploy.POST"),
        ("POST", "performMaintenance", "performMaintenance.POST"),
        ("POST", "start", "start.POST"),
        ("POST", "powerOff", "powerOff.POST"),
        ("POST", "deallocate", "deallocate.POST"),
        ("POST", "reimage", "reimage.POST"),
        ("POST", "reimageall", "reimageall.POST"),
        ("POST", f"virtualMachines/{FIRST}/restart", "virtualMachines.restart.POST"),
        ("POST", f"virtualMachines/{FIRST}/simulateEviction", "virtualMachines.simulateEviction.POST"),
        ("DELETE", f"virtualMachines/{FIRST}", "virtualMachines.DELETE"),
    ],
)
def test_operations_of_uniform_sets_are_refused_as_azure_refuses_them(
    flexible: Any, method: str, path: str, operation: str
) -> None:
    status, code, message = flexible.refused(method, f"{FLEX}/{path}")
    assert (status, code) == (400, "BadRequest")
    refusal = f"Operation 'VirtualMachineScaleSets.{operation}' is not allowed on Virtual Machine Scale Set 'flex'"
    assert message == f"{refusal}, which has flexible orchestration: call its VMs, {VMS}/NAME"


@pytest.mark.parametrize("action", ["restart", "redeploy", "powerOff", "deallocate", "reapply", "reimage"])
def test_operations_on_a_vm_of_a_flexible_set_are_those_of_any_vm(flexible: Any, action: str) -> None:
    assert flexible.call("POST", f"{VMS}/{FIRST}/{action}").status == 202
    ((_, targets),) = requested(flexible)
    assert targets == (FIRST,)


def test_a_restart_of_a_vm_of_a_flexible_set_is_seen_by_the_whole_set(flexible: Any) -> None:
    flexible.call("POST", f"{VMS}/{FIRST}/restart")
    (event,) = flexible.world.events()
    assert event.scope_id == "flexible:sub/lab/flex"
    listed = flexible.get(f"{FLEX}/{EVENTS}")["value"]
    assert [one["name"] for one in listed] == [event.id]
    assert listed == flexible.get(f"{VMS}/{SECOND}/{EVENTS}")["value"]
    assert flexible.call("POST", f"{FLEX}/{EVENTS}/{event.id}/acknowledge").status == 200
    assert flexible.world.store.event(event.id).approved_by == "local user ann"


def test_a_spot_vm_of_a_flexible_set_is_evicted_as_a_vm(arm_of: Callable[..., Any]) -> None:
    spot = a_vm(FIRST, scale_set="flex", orchestration=Orchestration.FLEXIBLE, priority=Priority.SPOT)
    arm = arm_of(vms=[spot], hosts=[a_host("h1")])
    assert arm.call("POST", f"{VMS}/{FIRST}/simulateEviction").status == 204
    assert [event.vms for event in arm.world.events()] == [(FIRST,)]


def test_some_vms_of_a_flexible_set_are_deleted_by_name_each_with_its_own_terminate(flexible: Any) -> None:
    """Spec §14.5: without placement groups, Terminates do not wait for one another."""
    assert flexible.refused("POST", f"{FLEX}/delete", {"instanceIds": ["0a1b2c3d"]})[:2] == (404, "ResourceNotFound")
    assert flexible.call("POST", f"{FLEX}/delete", {"instanceIds": [FIRST, SECOND]}).status == 202
    assert requested(flexible) == [("delete", (FIRST, SECOND))]
    events = flexible.world.events(EventState.SCHEDULED)
    by_vm = {event.vms: event.id for event in events}
    assert set(by_vm) == {(FIRST,), (SECOND,)}
    flexible.world.approve(FIRST, by_vm[FIRST,])
    assert flexible.world.store.event(by_vm[FIRST,]).status is not EventState.SCHEDULED
    assert flexible.world.store.event(by_vm[SECOND,]).status is EventState.SCHEDULED


def test_deleting_a_flexible_set_deletes_its_vms(flexible: Any) -> None:
    assert flexible.call("DELETE", FLEX).status == 202
    assert requested(flexible) == [("delete", (FIRST, SECOND))]
    flexible.world.advance(3600)
    assert flexible.call("GET", FLEX).status == 404
    assert flexible.call("DELETE", FLEX).status == 204


def test_the_settings_of_a_flexible_set_are_changed_as_a_whole(flexible: Any) -> None:
    profile = {"terminateNotificationProfile": {"enable": True, "notBeforeTimeout": "PT9M"}}
    policy = {"userInitiatedReboot": {"automaticallyApprove": True}}
    body = {
        "properties": {"virtualMachineProfile": {"scheduledEventsProfile": profile}, "scheduledEventsPolicy": policy}
    }
    assert flexible.call("PATCH", FLEX, body).status == 200
    for name in (FIRST, SECOND):
        vm = flexible.world.vm(name)
        assert (vm.terminate_notice_min, vm.auto_approve.restart) == (9, True)
    assert flexible.call("PUT", FLEX, flexible.get(FLEX)).status == 200
    status, code, message = flexible.refused(
        "PATCH",
        f"{VMS}/{FIRST}",
        {"properties": {"scheduledEventsPolicy": policy | {"userInitiatedRedeploy": {"automaticallyApprove": True}}}},
    )
    assert (status, code) == (409, "OperationNotAllowed")
    assert "is in scale set 'flex' and has no policy of its own" in message
    status, code, _ = flexible.refused("PATCH", FLEX, {"properties": {"orchestrationMode": "Uniform"}})
    assert (status, code) == (409, "PropertyChangeNotAllowed")


def test_a_right_over_a_flexible_set_alone_is_no_right_over_its_vms(flexible: Any) -> None:
    """Their ids are not below that of the set, as on Azure."""
    over_set = flexible.holding(Role.OPERATOR, FLEX)
    for method, path, body in (
        ("DELETE", FLEX, None),
        ("POST", f"{FLEX}/delete", {"instanceIds": [FIRST]}),
        ("POST", f"{FLEX}/delete", {"instanceIds": ["*"]}),
        ("PATCH", FLEX, {"tags": {"a": "b"}}),
        ("PUT", f"{FLEX}/{MAINTENANCE}/applyUpdates/default", None),
        ("PUT", f"{FLEX}/{MAINTENANCE}/configurationAssignments/a", {}),
        ("DELETE", f"{FLEX}/{MAINTENANCE}/configurationAssignments/a", None),
    ):
        assert over_set.refused(method, path, body)[:2] == (403, "AuthorizationFailed"), path
    approver = flexible.holding(Role.SCHEDULED_EVENT_CONTRIBUTOR, FLEX)
    assert approver.refused("POST", f"{FLEX}/{EVENTS}", {"value": ["E"]})[:2] == (403, "AuthorizationFailed")
    over_first = flexible.holding(Role.OPERATOR, f"{VMS}/{FIRST}")
    assert over_first.refused("POST", f"{FLEX}/delete", {"instanceIds": [FIRST, SECOND]})[0] == 403
    assert over_first.call("POST", f"{FLEX}/delete", {"instanceIds": [FIRST]}).status == 202
    over_all = flexible.holding(Role.OPERATOR, FLEX, f"{VMS}/{FIRST}", f"{VMS}/{SECOND}")
    assert over_all.call("PATCH", FLEX, {"tags": {"a": "b"}}).status == 200


def test_rights_over_a_flexible_set_and_each_of_its_vms_suffice_to_delete_all_of_them(flexible: Any) -> None:
    every_vm = {"instanceIds": ["*"]}
    for over in ((FLEX, f"{VMS}/{FIRST}"), (f"{VMS}/{FIRST}", f"{VMS}/{SECOND}")):
        refused = flexible.holding(Role.OPERATOR, *over).refused("POST", f"{FLEX}/delete", every_vm)
        assert refused[:2] == (403, "AuthorizationFailed")
    over_all = flexible.holding(Role.OPERATOR, FLEX, f"{VMS}/{FIRST}", f"{VMS}/{SECOND}")
    assert over_all.refused("POST", f"{FLEX}/delete", {"instanceIds": ["*", FIRST]})[0] == 400
    assert over_all.call("POST", f"{FLEX}/delete", every_vm).status == 202
    assert requested(flexible) == [("delete", (FIRST, SECOND))]


INSTANCE_ROUTES = [route for route in ROUTES if "{instance}" in route.path]
# These neither name nor change a VM: they say that an assignment of this id does not exist.
ASSIGNMENT_STATUS = {"GET": 404, "DELETE": 204}


def instance_target(route: ArmRoute) -> str:
    """The path of the route for the first VM of the flexible set, as if that were an instance of a uniform one."""
    values = {"subscription": "sub", "group": "lab", "set": "flex", "instance": FIRST}
    return route.path.format_map(values | {"assignment": "a", "update": "default", "event": "E"})


@pytest.mark.parametrize("over", [FLEX, f"{FLEX}/virtualMachines/{FIRST}"], ids=["set", "path-below-the-set"])
@pytest.mark.parametrize(
    "route", INSTANCE_ROUTES, ids=lambda route: f"{route.method} {route.path.partition('{instance}')[2]}"
)
def test_no_path_of_an_instance_reaches_a_vm_of_a_flexible_set(flexible: Any, route: ArmRoute, over: str) -> None:
    """A right over the set, or over a path below it, is no right over a VM, whose id is another one."""
    caller, before = flexible.holding(Role.ADMINISTRATOR, over), flexible.stored()
    answer = caller.call(route.method, instance_target(route), {} if route.method == "PUT" else None)
    if "{assignment}" in route.path and route.method in ASSIGNMENT_STATUS:
        expected = ASSIGNMENT_STATUS[route.method]
    elif over == FLEX:
        expected = 400
    else:
        expected = 204 if route.method == "DELETE" else 404  # this caller may not even read the set
    assert answer.status == expected, answer.content
    assert flexible.stored() == before


def test_a_right_over_a_flexible_set_alone_shows_the_set_and_none_of_its_vms(flexible: Any) -> None:
    over_set = flexible.holding(Role.OPERATOR, FLEX)
    assert over_set.get(FLEX)["sku"]["capacity"] == 2
    assert over_set.get(f"{FLEX}/virtualMachines") == {"value": []}
    assert over_set.get(filtered(FLEX)) == {"value": []}
    for path in (f"{FLEX}/instanceView", f"{FLEX}/virtualMachines?$expand=instanceView"):
        assert over_set.refused("GET", path)[:2] == (400, "BadRequest"), path
    for name in (FIRST, SECOND):
        assert over_set.refused("GET", f"{VMS}/{name}")[0] == 403


def test_a_caller_who_may_read_no_vm_of_a_flexible_set_does_not_learn_of_it(flexible: Any) -> None:
    stranger = flexible.holding(Role.READER, f"{VMS}/db")
    assert stranger.get(f"{FLEX}/virtualMachines") == {"value": []}
    assert stranger.get(f"{FLEX}/virtualMachines?$expand=instanceView") == {"value": []}
    assert names(stranger.get(VMS)) == ["db"]
    assert names(stranger.get(filtered(FLEX))) == []
