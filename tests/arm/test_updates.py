"""PUT and PATCH: what they change, keep and reject."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.core.access import Role
from forewarn.core.fleet import Priority, Vm
from forewarn.core.history import EntryKind
from forewarn.core.request import RequestedOperation
from forewarn.errors import Conflict, Unavailable
from tests.support.world import a_vm

COMPUTE = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute"
DB = f"{COMPUTE}/virtualMachines/db"
SPOT = f"{COMPUTE}/virtualMachines/spot"
WEB_0 = f"{COMPUTE}/virtualMachines/web-0"
POOL = f"{COMPUTE}/virtualMachineScaleSets/pool"
POOL_1 = f"{POOL}/virtualMachines/1"
WEB = f"{COMPUTE}/availabilitySets/web"
EVERY = (DB, SPOT, WEB_0, POOL, POOL_1, WEB)

AUTOMATIC = {
    "userInitiatedReboot": {"automaticallyApprove": True},
    "userInitiatedRedeploy": {"automaticallyApprove": True},
    "scheduledEventsAdditionalPublishingTargets": {"eventGridAndResourceGraph": {"enable": True}},
}


def notice(timeout: Any = "PT10M", **more: Any) -> dict[str, Any]:
    return {"scheduledEventsProfile": {"terminateNotificationProfile": {"notBeforeTimeout": timeout, **more}}}


def of_vm(**properties: Any) -> dict[str, Any]:
    return {"properties": properties}


def of_set(**profile: Any) -> dict[str, Any]:
    return {"properties": {"virtualMachineProfile": profile}}


def update(arm: Any, method: str, target: str, body: Any) -> Any:
    """The response of an update; it equals what a GET shows then."""
    answer = arm.call(method, target, body)
    assert answer.status == 200, answer.content
    assert answer.json == arm.get(target)
    return answer.json


def fleet_entries(arm: Any) -> list[str]:
    return [entry.text for entry in arm.world.store.history() if entry.kind is EntryKind.FLEET][1:]


@pytest.mark.parametrize("target", EVERY)
def test_putting_back_what_a_get_shows_changes_nothing(arm: Any, target: str) -> None:
    before = arm.stored()
    assert update(arm, "PUT", target, arm.get(target)) == arm.get(target)
    assert arm.stored() == before


@pytest.mark.parametrize("target", EVERY)
def test_a_client_may_leave_out_members_and_send_null(arm: Any, target: str) -> None:
    whole = arm.get(target)
    kept = {name: whole[name] for name in ("location", "tags")}
    nulls: dict[str, Any] = {"identity": None, "plan": None, "zones": None, "extendedLocation": {}, "resources": []}
    properties = {
        name: whole["properties"][name]
        for name in ("virtualMachineProfile", "scheduledEventsProfile", "scheduledEventsPolicy")
        if name in whole["properties"]
    }
    before = arm.stored()
    update(arm, "PUT", target, {**kept, **nulls, "properties": {**properties, "userData": None, "licenseType": None}})
    assert arm.stored() == before


def test_an_instance_view_that_is_sent_back_is_ignored(arm: Any) -> None:
    whole = arm.get(f"{DB}?$expand=instanceView")
    whole["properties"]["instanceView"]["statuses"] = []
    before = arm.stored()
    update(arm, "PUT", DB, whole)
    assert arm.stored() == before


def test_the_terminate_notice_of_a_vm_is_set(arm: Any) -> None:
    shown = update(arm.holding(Role.OPERATOR, DB), "PATCH", DB, of_vm(**notice(enable=True)))
    profile = {"enable": True, "notBeforeTimeout": "PT10M"}
    assert shown["properties"]["scheduledEventsProfile"] == {"terminateNotificationProfile": profile}
    assert arm.world.vm("db").terminate_notice_min == 10
    assert fleet_entries(arm) == ["client ci set the terminate notice of db to 10 min"]

    (event,) = arm.world.ask(RequestedOperation.DELETE, "db")
    assert event.not_before - arm.world.now == 600


@pytest.mark.parametrize(
    ("profile", "minutes"),
    [
        ({"enable": True}, 5),
        ({"enable": True, "notBeforeTimeout": "PT5M"}, 5),
        ({"enable": True, "notBeforeTimeout": "PT15M"}, 15),
        ({"enable": True, "notBeforeTimeout": "PT900S"}, 15),
        ({"enable": True, "notBeforeTimeout": "PT0H6M0S"}, 6),
        ({"enable": True, "notBeforeTimeout": "P0DT7M"}, 7),
        ({"notBeforeTimeout": "PT8M"}, 8),
        ({"enable": False, "notBeforeTimeout": "PT8M"}, 0),
        ({"enable": False}, 0),
        ({"enable": None, "notBeforeTimeout": None}, 0),
        ({}, 0),
        (None, 0),
    ],
    ids=str,
)
def test_a_notice_may_be_any_iso_duration_of_whole_minutes(arm: Any, profile: Any, minutes: int) -> None:
    whole = arm.get(DB)
    whole["properties"]["scheduledEventsProfile"] = {"terminateNotificationProfile": profile}
    update(arm, "PUT", DB, whole)
    assert arm.world.vm("db").terminate_notice_min == minutes


@pytest.mark.parametrize(
    "timeout",
    ["PT4M", "PT16M", "PT5M30S", "PT1H", "10", "", "P", "PT", "PT-5M", "5M", "PT5.5M", "PT٥M", "PT" + "9" * 5000 + "M"],
)
@pytest.mark.parametrize("enable", [True, False])
def test_an_invalid_notice_is_rejected_with_the_allowed_range(arm: Any, timeout: str, enable: bool) -> None:
    status, code, message = arm.refused("PATCH", DB, of_vm(**notice(timeout, enable=enable)))
    assert (status, code) == (400, "InvalidParameter")
    where = "properties.scheduledEventsProfile.terminateNotificationProfile.notBeforeTimeout"
    assert message.startswith(f'{where} is "{timeout[:20]}')
    assert message.endswith("give PT5M to PT15M, in whole minutes")
    assert len(message) < 300


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (of_vm(scheduledEventsProfile=5), "properties.scheduledEventsProfile"),
        (of_vm(scheduledEventsProfile=[]), "properties.scheduledEventsProfile"),
        (of_vm(**notice(enable="yes")), "properties.scheduledEventsProfile.terminateNotificationProfile.enable"),
        (of_vm(**notice(10)), "properties.scheduledEventsProfile.terminateNotificationProfile.notBeforeTimeout"),
        (of_vm(**notice(soon=1)), "properties.scheduledEventsProfile.terminateNotificationProfile"),
        (of_vm(scheduledEventsPolicy={"userInitiatedReboot": 5}), "properties.scheduledEventsPolicy.userInitiatedReb"),
        (of_vm(scheduledEventsPolicy={"userInitiatedFreeze": {"x": 1}}), "properties.scheduledEventsPolicy"),
        ({"tags": []}, "tags"),
        ({"tags": {"team": 5}}, "tags"),
        ({"tags": {"": "x"}}, "tags."),
        ({"tags": {"a" * 513: "x"}}, "tags." + "a" * 70),
        ({"tags": {"a": "x" * 257}}, "tags.a"),
        ({"tags": {f"t{n}": "" for n in range(51)}}, "tags"),
        ({"tags": {"Team": "a", "team": "b"}}, "tags"),
        ({"properties": 5}, "properties"),
        ({"properties": {"userData": "aGk="}}, "properties.userData"),
        ({"nonsense": 1}, "nonsense"),
    ],
)  # fmt: skip
def test_an_invalid_member_is_rejected_by_its_path(arm: Any, body: Any, where: str) -> None:
    answer = arm.call("PATCH", DB, body)
    assert answer.error[:2] == (400, "InvalidParameter")
    assert answer.error[2].startswith(where)
    assert answer.json["error"]["target"].startswith(where)
    arm.refused("PATCH", DB, body)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"5", b"null", b"\xff", b'{"a":' * 100_000, b'"\\ud800"'], ids=lambda b: b[:9]
)
def test_a_body_that_is_not_an_object_is_rejected(arm: Any, body: bytes) -> None:
    for method in ("PUT", "PATCH"):
        assert arm.refused(method, DB, body)[:2] == (400, "InvalidParameter")


def test_a_patch_keeps_what_it_leaves_out(arm: Any) -> None:
    update(
        arm,
        "PATCH",
        DB,
        {"tags": {"team": "shop"}, **of_vm(**notice(), scheduledEventsPolicy=AUTOMATIC)},
    )
    update(arm, "PATCH", DB, of_vm(scheduledEventsProfile={"osImageNotificationProfile": {"enable": True}}))
    vm = arm.world.vm("db")
    assert (vm.terminate_notice_min, vm.os_image_notice_min) == (10, 15)
    assert (vm.auto_approve.restart, vm.auto_approve.redeploy, vm.publish_outside) == (True, True, True)
    assert vm.tags == {"team": "shop"}

    update(arm, "PATCH", DB, {})
    update(arm, "PATCH", DB, None)
    update(arm, "PATCH", DB, {"properties": None})
    assert arm.world.vm("db") == vm


def test_a_patch_removes_members_that_are_null(arm: Any) -> None:
    update(
        arm,
        "PATCH",
        DB,
        {"tags": {"team": "shop"}, **of_vm(**notice(), scheduledEventsPolicy=AUTOMATIC)},
    )
    fewer = {"userInitiatedReboot": None, "scheduledEventsAdditionalPublishingTargets": None}
    update(arm, "PATCH", DB, of_vm(scheduledEventsPolicy=fewer))
    assert arm.world.vm("db").auto_approve.redeploy
    assert not arm.world.vm("db").auto_approve.restart
    shown = update(arm, "PATCH", DB, {"tags": None, **of_vm(scheduledEventsProfile=None, scheduledEventsPolicy=None)})
    assert not {"scheduledEventsProfile", "scheduledEventsPolicy"} & shown["properties"].keys()
    assert shown["tags"] == {}


def test_a_patch_that_enables_a_notification_keeps_its_time(arm: Any) -> None:
    update(arm, "PATCH", DB, of_vm(**notice("PT12M")))
    update(arm, "PATCH", DB, of_vm(scheduledEventsProfile={"terminateNotificationProfile": {"enable": True}}))
    assert arm.world.vm("db").terminate_notice_min == 12


def test_a_put_removes_what_it_leaves_out(arm: Any) -> None:
    update(
        arm,
        "PATCH",
        DB,
        {"tags": {"team": "shop"}, **of_vm(**notice(), scheduledEventsPolicy=AUTOMATIC)},
    )
    shown = update(arm, "PUT", DB, {"location": "West Europe"})
    assert not {"scheduledEventsProfile", "scheduledEventsPolicy"} & shown["properties"].keys()
    assert shown["tags"] == {}
    assert fleet_entries(arm)[-1] == (
        "local user ann set the terminate notice of db to none, the automatic approval of restarts to off, "
        "the automatic approval of redeploys to off, the publishing of events outside to off, the tags to none"
    )


def test_a_put_without_a_location_is_rejected(arm: Any) -> None:
    bodies: list[dict[str, Any] | None] = [{}, {"location": None, "tags": {}}, None]
    for body in bodies:
        assert arm.refused("PUT", DB, body)[:2] == (400, "LocationRequired")


def test_tags_are_replaced_as_a_whole(arm: Any) -> None:
    update(arm, "PATCH", DB, {"tags": {"team": "shop", "stage": "test"}})
    assert update(arm, "PATCH", DB, {"tags": {"team": "bank", "gone": None}})["tags"] == {"team": "bank"}
    assert fleet_entries(arm) == [
        "local user ann set the tags of db to team=shop stage=test",
        "local user ann set the tags of db to team=bank",
    ]


def test_the_policy_of_a_vm_makes_its_restarts_start_at_once(arm: Any) -> None:
    update(
        arm, "PATCH", DB, of_vm(scheduledEventsPolicy={**AUTOMATIC, "allInstancesDown": {"automaticallyApprove": True}})
    )
    (event,) = arm.world.ask(RequestedOperation.RESTART, "db")
    assert event.status == "started"
    assert arm.world.vm("db").publish_outside


def test_a_changed_setting_does_not_affect_pending_events(arm: Any) -> None:
    (event,) = arm.world.ask(RequestedOperation.RESTART, "db")
    document = arm.world.document("db")
    update(arm, "PATCH", DB, {"tags": {"a": "b"}, **of_vm(**notice(), scheduledEventsPolicy=AUTOMATIC)})
    assert arm.world.store.event(event.id) == event
    assert arm.world.document("db") == document


def test_an_update_of_a_scale_set_changes_all_its_instances(arm: Any) -> None:
    policy = {"scheduledEventsPolicy": AUTOMATIC}
    body = {"properties": {"virtualMachineProfile": notice("PT12M", enable=True), **policy}}
    shown = update(arm.holding(Role.OPERATOR, POOL), "PATCH", POOL, body)
    profile = shown["properties"]["virtualMachineProfile"]["scheduledEventsProfile"]
    assert profile == {"terminateNotificationProfile": {"enable": True, "notBeforeTimeout": "PT12M"}}
    for name in ("pool_0", "pool_1"):
        vm = arm.world.vm(name)
        assert (vm.terminate_notice_min, vm.auto_approve.restart, vm.publish_outside) == (12, True, True)
    (text,) = fleet_entries(arm)
    assert text.startswith("client ci set the terminate notice of pool to 12 min, the automatic approval of restarts")


def test_the_history_shows_a_change_to_its_author(arm: Any) -> None:
    ci = arm.holding(Role.OPERATOR, POOL)
    update(ci, "PATCH", POOL, {"tags": {"a": "b"}})
    entries = ci.get("/forewarn/v1/history")["entries"]
    assert [entry["text"] for entry in entries if entry["kind"] == "fleet"] == ["client ci set the tags of pool to a=b"]


def test_the_scale_set_that_az_puts_is_accepted(arm: Any) -> None:
    whole = arm.get(POOL)
    for found in ("id", "name", "type"):
        del whole[found]
    del whole["properties"]["provisioningState"], whole["properties"]["uniqueId"]
    profile = whole["properties"]["virtualMachineProfile"]
    profile["scheduledEventsProfile"] = {
        "terminateNotificationProfile": {"enable": True, "notBeforeTimeout": "PT10M"},
        "osImageNotificationProfile": {"enable": True},
    }
    update(arm, "PUT", POOL, whole)
    assert {(vm.terminate_notice_min, vm.os_image_notice_min) for vm in map(arm.world.vm, ("pool_0", "pool_1"))} == {
        (10, 15)
    }


def test_an_os_image_notice_other_than_15_min_is_rejected(arm: Any) -> None:
    profile = {"osImageNotificationProfile": {"enable": True, "notBeforeTimeout": "PT10M"}}
    message = arm.refused("PATCH", DB, of_vm(scheduledEventsProfile=profile))[2]
    assert message.endswith('is "PT10M": give PT15M')


def test_a_set_shows_the_tags_that_all_its_vms_share(arm: Any) -> None:
    update(arm, "PUT", POOL_1, {**arm.get(POOL_1), "tags": {"number": "1"}})
    assert arm.get(POOL)["tags"] == {}
    assert update(arm, "PATCH", POOL, {"tags": {"team": "shop"}})["tags"] == {"team": "shop"}
    assert arm.world.vm("pool_0").tags == {"team": "shop"}
    assert arm.world.vm("pool_1").tags == {"number": "1", "team": "shop"}
    assert update(arm, "PATCH", POOL, {"tags": {"stage": "test"}})["tags"] == {"stage": "test"}
    assert arm.world.vm("pool_1").tags == {"number": "1", "stage": "test"}


def test_an_availability_set_has_tags_and_a_policy_for_all_its_vms(arm: Any) -> None:
    shown = update(arm, "PATCH", WEB, {"tags": {"team": "shop"}, **of_vm(scheduledEventsPolicy=AUTOMATIC)})
    assert shown["properties"]["scheduledEventsPolicy"] == AUTOMATIC
    for name in ("web-0", "web-1", "web-2"):
        assert arm.world.vm(name).auto_approve.restart
        assert arm.world.vm(name).tags == {"team": "shop"}


def test_a_vm_of_a_set_has_no_policy_of_its_own(arm: Any) -> None:
    status, code, message = arm.refused("PATCH", WEB_0, of_vm(scheduledEventsPolicy=AUTOMATIC))
    assert (status, code) == (409, "OperationNotAllowed")
    assert (
        message == "VM 'web-0' is in availability set 'web' and has no policy of its own: change the policy of the set"
    )
    update(arm, "PATCH", WEB_0, {"tags": {"a": "b"}, **of_vm(**notice())})
    assert arm.world.vm("web-0").terminate_notice_min == 10


def test_an_instance_has_tags_and_no_profile_of_its_own(arm: Any) -> None:
    whole = arm.get(POOL_1)
    whole["properties"] |= notice()
    assert arm.refused("PUT", POOL_1, whole)[:2] == (400, "InvalidParameter")
    assert arm.call("PATCH", POOL_1, {}).status == 405


def test_a_spot_vm_gets_no_terminate_notification(arm_of: Callable[..., Any]) -> None:
    """Spec §6.3."""
    arm = arm_of()
    status, code, message = arm.refused("PATCH", SPOT, of_vm(**notice()))
    assert (status, code) == (409, "OperationNotAllowed")
    assert message.startswith("VM 'spot' is Spot and gets no terminate notification")
    update(arm, "PATCH", SPOT, of_vm(**notice(enable=False)))
    update(arm, "PUT", SPOT, {**arm.get(SPOT), "tags": {"a": "b"}})


@pytest.mark.parametrize(
    ("target", "path", "value", "instead"),
    [
        (DB, "location", "northeurope", "fleet file"),
        (DB, "name", "other", "fleet file"),
        (DB, "properties.hardwareProfile.vmSize", "Standard_D4s_v5", "fleet file"),
        (DB, "properties.priority", "Spot", "fleet file"),
        (DB, "properties.networkProfile.networkInterfaces", [{"id": "/x"}], "fleet file"),
        (POOL, "sku.capacity", 1, "az vmss delete-instances"),
        (POOL, "sku.capacity", 3, "forewarn fleet add"),
        (POOL, "sku.capacity", "3", "fleet file"),
        (POOL, "properties.singlePlacementGroup", 1, "fleet file"),
        (POOL, "properties.upgradePolicy.mode", "Manual", "fleet file"),
        (POOL, "properties.virtualMachineProfile.priority", "Spot", "fleet file"),
        (POOL_1, "instanceId", "7", "fleet file"),
        (WEB, "properties.platformUpdateDomainCount", 9, "fleet file"),
        (WEB, "properties.virtualMachines", [], "fleet file"),
    ],
)
def test_an_update_cannot_change_what_the_fleet_file_declares(
    arm: Any, target: str, path: str, value: Any, instead: str
) -> None:
    whole = copy.deepcopy(arm.get(target))
    *above, name = path.split(".")
    place = whole
    for one in above:
        place = place[one]
    place[name] = value
    status, code, message = arm.refused("PUT", target, {**whole, "tags": {"never": "set"}})
    assert (status, code) == (409, "PropertyChangeNotAllowed")
    assert message.startswith(f"{path} is ")
    assert instead in message
    assert arm.call("PUT", target, whole).json["error"]["target"] == path


def test_names_and_sizes_are_compared_without_case(arm: Any) -> None:
    whole = arm.get(DB)
    whole |= {"id": whole["id"].upper(), "name": "DB", "location": "West Europe"}
    whole["properties"]["hardwareProfile"]["vmSize"] = "STANDARD_d2s_V5"
    update(arm, "PUT", DB.replace("virtualMachines", "virtualmachines"), whole)


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (f"{COMPUTE}/virtualMachines/new", "VM 'new' does not exist"),
        (f"{COMPUTE}/virtualMachineScaleSets/new", "scale set 'new' does not exist"),
        (f"{POOL}/virtualMachines/9", "scale set 'pool' has no instance '9'"),
        (f"{COMPUTE}/availabilitySets/new", "availability set 'new' does not exist"),
        (f"{COMPUTE}/virtualMachines/pool_1", "VM 'pool_1' is an instance of scale set 'pool'"),
    ],
)
def test_a_put_creates_nothing(arm: Any, target: str, what: str) -> None:
    status, code, message = arm.refused("PUT", target, {"location": "westeurope"})
    assert (status, code) == (404, "ResourceNotFound")
    assert message.startswith(what)
    if "instance of" not in what:
        assert "forewarn fleet add" in message


def test_a_reader_changes_nothing(arm: Any) -> None:
    for target in EVERY:
        assert arm.holding(Role.READER, "/").refused("PUT", target, {})[:2] == (403, "AuthorizationFailed")


def test_an_update_of_an_availability_set_needs_the_right_over_each_vm(arm: Any) -> None:
    alone = arm.holding(Role.OPERATOR, WEB, WEB_0)
    status, code, message = alone.refused("PATCH", WEB, {"tags": {"a": "b"}})
    assert (status, code) == (403, "AuthorizationFailed")
    assert "web-1" not in message
    vms = [f"{COMPUTE}/virtualMachines/web-{n}" for n in range(3)]
    update(arm.holding(Role.OPERATOR, WEB, *vms), "PATCH", WEB, {"tags": {"a": "b"}})


def test_instances_in_several_placement_groups_change_together_or_not_at_all(arm: Any) -> None:
    add(arm, a_vm("pool_2", scale_set="pool", placement_group="pg-1", priority=Priority.SPOT))
    assert arm.refused("PATCH", POOL, of_set(**notice()))[:2] == (409, "OperationNotAllowed")
    add(arm, a_vm("pool_2", scale_set="pool", placement_group="pg-1"))
    update(arm, "PATCH", POOL, {"tags": {"a": "b"}, **of_set(**notice())})
    assert {arm.world.vm(f"pool_{n}").terminate_notice_min for n in range(3)} == {10}
    assert len(fleet_entries(arm)) == 3


def test_a_put_of_tags_keeps_other_differences_between_instances(arm: Any) -> None:
    add(arm, a_vm("pool_2", scale_set="pool", placement_group="pg-0", terminate_notice_min=15))
    update(arm, "PUT", POOL, {**arm.get(POOL), "tags": {"a": "b"}})
    assert arm.world.vm("pool_2").terminate_notice_min == 15
    update(arm, "PATCH", POOL, of_set(**notice("PT5M")))
    assert arm.world.vm("pool_2").terminate_notice_min == 5


def add(arm: Any, vm: Vm) -> None:
    arm.world.do(arm.world.control.fleet.apply_change(FleetChange(vms=(vm,)), who="test"))


def test_a_concurrent_change_is_not_lost(arm: Any) -> None:
    arm.world.store.fail_next(Conflict("somebody was quicker"))
    update(arm, "PATCH", DB, {"tags": {"a": "b"}})
    assert fleet_entries(arm) == ["local user ann set the tags of db to a=b"]


def test_an_unavailable_store_changes_nothing_and_sends_retry_after(arm: Any) -> None:
    arm.world.store.fail_next(Unavailable("the disk is full: make room"))
    assert arm.refused("PATCH", DB, {"tags": {"a": "b"}})[:2] == (503, "ServiceUnavailable")


def test_newer_members_of_the_policy_are_stored_and_shown(arm: Any) -> None:
    """Spec §14.2, §14.3."""
    target = {"eventGridAndResourceGraph": {"enable": True, "scheduledEventsApiVersion": "2019-08-01"}}
    down = {"automaticallyApprove": False}
    policy = {"allInstancesDown": down, "scheduledEventsAdditionalPublishingTargets": target}
    shown = update(arm, "PATCH", DB, of_vm(scheduledEventsPolicy=policy))["properties"]["scheduledEventsPolicy"]
    assert (shown["allInstancesDown"], shown["scheduledEventsAdditionalPublishingTargets"]) == (down, target)
    update(arm, "PATCH", DB, of_vm(scheduledEventsPolicy={"userInitiatedReboot": {"automaticallyApprove": True}}))
    vm = arm.world.vm("db")
    assert (vm.approves_all_down, vm.publish_version, vm.auto_approve.restart) == (False, "2019-08-01", True)
    update(arm, "PATCH", DB, of_vm(scheduledEventsPolicy=None))
    vm = arm.world.vm("db")
    assert (vm.approves_all_down, vm.publish_version) == (True, "")


def test_a_scheduled_events_version_that_does_not_exist_is_rejected(arm: Any) -> None:
    target = {"eventGridAndResourceGraph": {"scheduledEventsApiVersion": "2018-01-01"}}
    body = of_vm(scheduledEventsPolicy={"scheduledEventsAdditionalPublishingTargets": target})
    status, code, message = arm.refused("PATCH", DB, body)[:3]
    assert (status, code) == (400, "InvalidParameter")
    assert 'is "2018-01-01": give one of 2017-03-01' in message
