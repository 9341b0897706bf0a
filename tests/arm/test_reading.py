"""Reading through the ARM facade: VMs, scale sets and availability sets in Azure's format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from forewarn.core.access import Role
from forewarn.core.event import EventState
from forewarn.core.fleet import AutoApproval, Priority
from forewarn.core.request import RequestedOperation
from tests.support.world import a_host, a_vm

GROUP = "/subscriptions/sub/resourceGroups/lab"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"
VMS, SETS = f"{COMPUTE}/virtualMachines", f"{COMPUTE}/virtualMachineScaleSets"
ALL = "/subscriptions/sub/providers/Microsoft.Compute"
PROVISIONED = {"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"}
RUNNING = {"code": "PowerState/running", "level": "Info", "displayStatus": "VM running"}


def names(answer: Any) -> list[str]:
    return [one["name"] for one in answer["value"]]


def machine(vm: Any) -> dict[str, Any]:
    return {
        "vmId": vm.vm_id,
        "provisioningState": "Succeeded",
        "hardwareProfile": {"vmSize": "Standard_D2s_v5"},
        "osProfile": {"computerName": vm.computer_name or vm.name},
        "storageProfile": {"osDisk": {"osType": "Linux", "createOption": "FromImage"}, "dataDisks": []},
        "networkProfile": {"networkInterfaces": []},
    }


def test_a_vm_of_an_availability_set_is_shown_with_all_its_settings(arm: Any) -> None:
    assert arm.get(f"{VMS}/web-1?api-version=2026-04-01") == {
        "id": f"{VMS}/web-1",
        "name": "web-1",
        "type": "Microsoft.Compute/virtualMachines",
        "location": "westeurope",
        "tags": {},
        "properties": machine(arm.world.vm("web-1"))
        | {"priority": "Regular", "availabilitySet": {"id": f"{COMPUTE}/availabilitySets/web"}},
    }


def test_the_declared_settings_of_a_vm_are_shown_in_azures_format(arm_of: Callable[..., Any]) -> None:
    arm = arm_with(
        arm_of,
        a_vm("plain", tags={"team": "shop"}, terminate_notice_min=7, os_image_notice_min=15, zone="2", host="z"),
        a_vm("open", auto_approve=AutoApproval(restart=True), publish_outside=True, computer_name="OPEN-1"),
        a_vm("cheap", priority=Priority.SPOT),
    )
    plain, opened, cheap = (arm.get(f"{VMS}/{name}") for name in ("plain", "open", "cheap"))
    assert (plain["tags"], plain["zones"]) == ({"team": "shop"}, ["2"])
    assert plain["properties"]["scheduledEventsProfile"] == {
        "terminateNotificationProfile": {"enable": True, "notBeforeTimeout": "PT7M"},
        "osImageNotificationProfile": {"enable": True, "notBeforeTimeout": "PT15M"},
    }
    assert opened["properties"]["scheduledEventsPolicy"] == {
        "userInitiatedReboot": {"automaticallyApprove": True},
        "userInitiatedRedeploy": {"automaticallyApprove": False},
        "scheduledEventsAdditionalPublishingTargets": {"eventGridAndResourceGraph": {"enable": True}},
    }
    assert opened["properties"]["osProfile"] == {"computerName": "OPEN-1"}
    assert (cheap["properties"]["priority"], cheap["properties"]["evictionPolicy"]) == ("Spot", "Deallocate")
    for unasked in ("scheduledEventsProfile", "scheduledEventsPolicy", "availabilitySet", "zones"):
        assert unasked not in cheap["properties"], unasked
        assert unasked not in cheap


def test_an_instance_view_shows_power_and_placement(arm: Any) -> None:
    view = {"platformUpdateDomain": 1, "platformFaultDomain": 0, "statuses": [PROVISIONED, RUNNING]}
    assert arm.get(f"{VMS}/web-1/instanceView") == view
    assert arm.get(f"{VMS}/web-1?$expand=instanceView")["properties"]["instanceView"] == view
    assert arm.get(f"{VMS}/web-1?$expand=userData,instanceview")["properties"]["instanceView"] == view
    assert "instanceView" not in arm.get(f"{VMS}/web-1?$expand=userData")["properties"]
    for ask, power in (
        (RequestedOperation.POWER_OFF, "stopped"),
        (RequestedOperation.DEALLOCATE, "deallocated"),
        (RequestedOperation.START, "running"),
    ):
        arm.world.ask(ask, "web-1")
        arm.world.advance(3600)
        status = {"code": f"PowerState/{power}", "level": "Info", "displayStatus": f"VM {power}"}
        assert arm.get(f"{VMS}/web-1/instanceView")["statuses"] == [PROVISIONED, status]


def test_an_instance_view_shows_pending_platform_maintenance(arm: Any) -> None:
    arm.api.post("/rollouts", {"impact": "reboot", "hosts": ["h3"]})
    pending = arm.get(f"{VMS}/web-2/instanceView")["maintenanceRedeployStatus"]
    assert pending == {
        "isCustomerInitiatedMaintenanceAllowed": True,
        "preMaintenanceWindowStartTime": "2026-01-05T12:00:00Z",
        "preMaintenanceWindowEndTime": "2026-01-05T12:15:00Z",
        "maintenanceWindowStartTime": "2026-01-05T12:15:00Z",
        "lastOperationResultCode": "None",
    }
    assert "maintenanceRedeployStatus" not in arm.get(f"{VMS}/web-1/instanceView")
    arm.world.advance(20 * 60)
    assert arm.world.events(EventState.SCHEDULED) == []
    assert "maintenanceRedeployStatus" not in arm.get(f"{VMS}/web-2/instanceView")


def test_a_requested_restart_is_not_shown_as_platform_maintenance(arm: Any) -> None:
    arm.world.ask(RequestedOperation.RESTART, "db")
    assert "maintenanceRedeployStatus" not in arm.get(f"{VMS}/db/instanceView")


def test_vms_are_listed_without_the_instances_of_scale_sets(arm: Any) -> None:
    listed = arm.get(f"{VMS}?api-version=2024-07-01")
    assert names(listed) == ["db", "spot", "web-0", "web-1", "web-2"]
    assert listed["value"][0] == arm.get(f"{VMS}/db")
    assert "nextLink" not in listed
    assert arm.get(f"{ALL}/virtualMachines?$filter=x&$select=y") == listed
    viewed = arm.get(f"{ALL}/virtualMachines?statusOnly=true")["value"]
    assert [vm["properties"]["instanceView"]["statuses"][1] for vm in viewed] == [RUNNING] * 5


def test_instances_of_cloud_services_are_not_listed_as_vms(arm_of: Callable[..., Any]) -> None:
    arm = arm_with(arm_of, a_vm("front_IN_0", cloud_service="shop"), a_vm("db"))
    assert names(arm.get(VMS)) == ["db"]
    assert arm.refused("GET", f"{VMS}/front_IN_0")[:2] == (404, "ResourceNotFound")


def test_a_scale_set_is_rendered_from_its_instances(arm: Any) -> None:
    shown = arm.get(f"{SETS}/pool")
    unique = shown["properties"].pop("uniqueId")
    assert shown == {
        "id": f"{SETS}/pool",
        "name": "pool",
        "type": "Microsoft.Compute/virtualMachineScaleSets",
        "location": "westeurope",
        "sku": {"name": "Standard_D2s_v5", "tier": "Standard", "capacity": 2},
        "tags": {},
        "properties": {
            "provisioningState": "Succeeded",
            "orchestrationMode": "Uniform",
            "upgradePolicy": {"mode": "Automatic"},
            "singlePlacementGroup": True,
            "platformFaultDomainCount": 1,
            "overprovision": False,
            "virtualMachineProfile": {
                "storageProfile": {"osDisk": {"osType": "Linux", "createOption": "FromImage"}},
                "priority": "Regular",
                "scheduledEventsProfile": {
                    "terminateNotificationProfile": {"enable": True, "notBeforeTimeout": "PT5M"}
                },
            },
        },
    }
    assert arm.get(f"{SETS}/POOL")["properties"]["uniqueId"] == unique
    assert names(arm.get(SETS)) == names(arm.get(f"{ALL}/virtualMachineScaleSets")) == ["pool"]


def test_a_scale_set_shows_the_tags_and_zones_of_its_instances(arm_of: Callable[..., Any]) -> None:
    facts = {"scale_set": "s", "host": "h1"}
    arm = arm_with(
        arm_of,
        a_vm("s_0", placement_group="a", zone="1", tags={"team": "shop", "n": "0"}, fault_domain=2, **facts),
        a_vm("s_1", placement_group="b", zone="3", tags={"team": "shop", "n": "1"}, **facts),
    )
    shown = arm.get(f"{SETS}/s")
    assert (shown["tags"], shown["zones"]) == ({"team": "shop"}, ["1", "3"])
    assert shown["properties"]["singlePlacementGroup"] is False
    assert shown["properties"]["platformFaultDomainCount"] == 3


def test_a_scale_sets_instance_view_counts_its_instances(arm: Any) -> None:
    arm.world.ask(RequestedOperation.POWER_OFF, "pool_1")
    arm.world.advance(3600)
    assert arm.get(f"{SETS}/pool/instanceView") == {
        "virtualMachine": {
            "statusesSummary": [
                {"code": "ProvisioningState/succeeded", "count": 2},
                {"code": "PowerState/running", "count": 1},
                {"code": "PowerState/stopped", "count": 1},
            ]
        },
        "statuses": [PROVISIONED],
        "orchestrationServices": [],
    }


def test_an_instance_is_found_by_its_number(arm: Any) -> None:
    shown = arm.get(f"{SETS}/pool/virtualMachines/1")
    assert shown == {
        "id": f"{SETS}/pool/virtualMachines/1",
        "name": "pool_1",
        "type": "Microsoft.Compute/virtualMachineScaleSets/virtualMachines",
        "location": "westeurope",
        "instanceId": "1",
        "sku": {"name": "Standard_D2s_v5", "tier": "Standard"},
        "tags": {},
        "properties": machine(arm.world.vm("pool_1"))
        | {"latestModelApplied": True, "modelDefinitionApplied": "VirtualMachineScaleSet"},
    }
    view = arm.get(f"{SETS}/pool/virtualMachines/1/instanceView")
    assert (view["placementGroupId"], view["statuses"]) == ("pg-0", [PROVISIONED, RUNNING])
    listed = arm.get(f"{SETS}/pool/virtualMachines")
    assert [one["instanceId"] for one in listed["value"]] == ["0", "1"]
    assert listed["value"][1] == shown
    expanded = arm.get(f"{SETS}/pool/virtualMachines?$expand=instanceView")["value"][1]
    assert expanded["properties"]["instanceView"] == view


def test_an_availability_set_lists_its_vms(arm: Any) -> None:
    shown = arm.get(f"{COMPUTE}/availabilitySets/web")
    assert shown == {
        "id": f"{COMPUTE}/availabilitySets/web",
        "name": "web",
        "type": "Microsoft.Compute/availabilitySets",
        "location": "westeurope",
        "sku": {"name": "Aligned"},
        "tags": {},
        "properties": {
            "platformUpdateDomainCount": 3,
            "platformFaultDomainCount": 1,
            "virtualMachines": [{"id": f"{VMS}/web-{n}"} for n in range(3)],
        },
    }
    assert arm.get(f"{COMPUTE}/availabilitySets") == {"value": [shown]} == arm.get(f"{ALL}/availabilitySets")


def test_subscriptions_groups_and_locations_are_those_of_the_vms(arm: Any) -> None:
    subscription = {
        "id": "/subscriptions/sub",
        "subscriptionId": "sub",
        "displayName": "sub",
        "state": "Enabled",
        "authorizationSource": "RoleBased",
    }
    assert arm.get("/subscriptions?api-version=2022-12-01") == {"value": [subscription]}
    assert arm.get("/subscriptions/SUB") == subscription
    group = {
        "id": GROUP,
        "name": "lab",
        "type": "Microsoft.Resources/resourceGroups",
        "location": "westeurope",
        "tags": {},
        "properties": {"provisioningState": "Succeeded"},
    }
    assert arm.get("/subscriptions/sub/resourcegroups?api-version=2024-11-01") == {"value": [group]}
    assert arm.get("/subscriptions/sub/resourcegroups/LAB") == group
    assert names(arm.get("/subscriptions/sub/locations")) == ["westeurope"]
    assert arm.get("/tenants") == {"value": []}


@pytest.mark.parametrize(
    "target",
    [
        "/SUBSCRIPTIONS/SUB/resourcegroups/LAB/PROVIDERS/microsoft.compute/virtualmachines/DB",
        f"/{VMS}/db",
        f"{VMS}//db",
        f"{VMS}/db/",
        f"{VMS}/db/?api-version=2022-11-01",
    ],
)
def test_paths_are_matched_without_case_and_with_extra_slashes(arm: Any, target: str) -> None:
    assert arm.get(target) == arm.get(f"{VMS}/db")


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        (f"{VMS}/dc", "ResourceNotFound", "VM 'dc' does not exist in resource group 'lab'"),
        (f"{VMS}/dc/instanceView", "ResourceNotFound", "VM 'dc' does not exist"),
        (f"{VMS}/pool_0", "ResourceNotFound", f"call {SETS}/pool/virtualMachines/0"),
        (f"{SETS}/web", "ResourceNotFound", "scale set 'web' does not exist in resource group 'lab'"),
        (f"{SETS}/web/instanceView", "ResourceNotFound", "scale set 'web' does not exist"),
        (f"{SETS}/web/virtualMachines", "ResourceNotFound", "scale set 'web' does not exist"),
        (f"{SETS}/pool/virtualMachines/7", "ResourceNotFound", "scale set 'pool' has no instance '7'"),
        (f"{SETS}/pool/virtualMachines/7/instanceView", "ResourceNotFound", "has no instance '7'"),
        (f"{COMPUTE}/availabilitySets/pool", "ResourceNotFound", "availability set 'pool' does not exist"),
        ("/subscriptions/other", "SubscriptionNotFound", "subscription 'other' does not exist"),
        ("/subscriptions/other/resourcegroups", "SubscriptionNotFound", "subscription 'other' does not exist"),
        ("/subscriptions/other/locations", "SubscriptionNotFound", "subscription 'other' does not exist"),
        ("/subscriptions/sub/resourceGroups/cellar", "ResourceGroupNotFound", "resource group 'cellar' has no VM"),
        (f"{VMS.replace('lab', 'cellar')}", "ResourceGroupNotFound", "resource group 'cellar' has no VM"),
        (f"{SETS.replace('lab', 'cellar')}", "ResourceGroupNotFound", "resource group 'cellar' has no VM"),
        (f"{VMS.replace('lab', 'cellar')}/db", "ResourceNotFound", "does not exist in resource group 'cellar'"),
        ("/subscriptions/o/providers/Microsoft.Compute/virtualMachines", "SubscriptionNotFound", "'o' does not exist"),
    ],
)
def test_a_missing_resource_is_reported_with_a_sentence(arm: Any, path: str, code: str, message: str) -> None:
    status, text, sentence = arm.refused("GET", path)
    assert (status, text) == (404, code)
    assert message in sentence


def test_a_removed_vm_is_in_no_list(arm: Any) -> None:
    assert arm.get(f"{SETS}/pool")["sku"]["capacity"] == 2
    for name in ("pool_0", "pool_1", "web-1"):
        arm.world.ask(RequestedOperation.DELETE, name)
    arm.world.advance(3600)
    assert names(arm.get(VMS)) == ["db", "spot", "web-0", "web-2"]
    assert arm.get(SETS) == {"value": []}
    assert arm.refused("GET", f"{SETS}/pool")[0] == 404
    assert arm.refused("GET", f"{VMS}/web-1")[0] == 404
    members = arm.get(f"{COMPUTE}/availabilitySets/web")["properties"]["virtualMachines"]
    assert members == [{"id": f"{VMS}/web-0"}, {"id": f"{VMS}/web-2"}]


def test_a_subscription_without_vms_does_not_exist(arm_of: Callable[..., Any]) -> None:
    arm = arm_with(arm_of, a_vm("last"))
    arm.world.ask(RequestedOperation.DELETE, "last")
    arm.world.advance(60)
    assert arm.get("/subscriptions") == {"value": []}
    assert arm.refused("GET", "/subscriptions/sub/resourceGroups/lab")[:2] == (404, "ResourceGroupNotFound")


def test_following_next_links_gives_every_instance_once(arm_of: Callable[..., Any]) -> None:
    arm = arm_with(arm_of, *(a_vm(f"big_{n}", scale_set="big", placement_group=f"{n // 100}") for n in range(250)))
    pages = list(_pages(arm, f"{SETS}/big/virtualMachines?api-version=2024-11-01&$expand=instanceView"))
    assert [len(page) for page in pages] == [100, 100, 50]
    assert [one["instanceId"] for page in pages for one in page] == [str(n) for n in range(250)]
    assert all("instanceView" in one["properties"] for page in pages for one in page)


def test_a_next_link_continues_after_removed_vms(arm_of: Callable[..., Any]) -> None:
    arm = arm_with(arm_of, *(a_vm(f"vm-{n}") for n in range(201)))
    first = arm.get(f"{ALL}/virtualMachines")
    for name in ("vm-3", "vm-99", "vm-150"):
        arm.world.ask(RequestedOperation.DELETE, name)
    arm.world.advance(60)
    rest = [name for page in _pages(arm, first["nextLink"]) for name in page]
    assert [vm["name"] for vm in rest] == [f"vm-{n}" for n in range(100, 201) if n != 150]


def test_lists_of_sets_have_pages_too(arm_of: Callable[..., Any]) -> None:
    arm = arm_with(
        arm_of,
        *(a_vm(f"s{n}_0", scale_set=f"s{n}") for n in range(25)),
        *(a_vm(f"a{n}", availability_set=f"a{n}", resource_group=f"g{n}") for n in range(25)),
    )
    for target, letter in ((SETS, "s"), (f"{ALL}/virtualMachineScaleSets", "s"), (f"{ALL}/availabilitySets", "a")):
        found = [one["name"] for page in _pages(arm, target) for one in page]
        assert sorted(found) == sorted(f"{letter}{n}" for n in range(25)), target


def test_a_next_link_quotes_names(arm_of: Callable[..., Any]) -> None:
    arm = arm_with(arm_of, *(a_vm(f"v-{n}", resource_group="a group (ä)") for n in range(101)))
    first = arm.get(f"{VMS.replace('lab', 'a%20group%20(%C3%A4)')}?x=%26")
    assert first["nextLink"].isascii()
    assert names(arm.get(first["nextLink"])) == ["v-100"]


@pytest.mark.parametrize("token", ["?", "%FF", "AA", "_w==", "OTk5" * 2000])
def test_a_forged_skip_token_is_rejected(arm: Any, token: str) -> None:
    status, code, message = arm.refused("GET", f"{VMS}?$skiptoken={token}")
    assert (status, code) == (400, "InvalidParameter")
    assert "nextLink" in message


def test_a_reader_of_one_vm_sees_that_one(arm: Any) -> None:
    reader = arm.holding(Role.READER, f"{VMS}/WEB-0")
    assert names(reader.get(VMS)) == names(reader.get(f"{ALL}/virtualMachines")) == ["web-0"]
    assert reader.get(f"{VMS}/web-0")["name"] == "web-0"
    assert reader.get(f"{VMS}/web-0/instanceView")["statuses"] == [PROVISIONED, RUNNING]
    assert reader.get(SETS) == reader.get(f"{COMPUTE}/availabilitySets") == {"value": []}
    assert names(reader.get("/subscriptions/sub/resourceGroups")) == ["lab"]
    assert [one["subscriptionId"] for one in reader.get("/subscriptions")["value"]] == ["sub"]
    for path in (f"{VMS}/db", f"{VMS}/none", f"{COMPUTE}/availabilitySets/web", GROUP, f"{SETS}/pool"):
        status, code, message = reader.refused("GET", path)
        assert (status, code) == (403, "AuthorizationFailed"), path
        assert message.startswith(f"client ci does not have the right to read over {path}")


def test_a_reader_of_an_availability_set_is_not_shown_its_vms(arm: Any) -> None:
    reader = arm.holding(Role.READER, f"{COMPUTE}/availabilitySets/web", f"{VMS}/web-2")
    shown = reader.get(f"{COMPUTE}/availabilitySets/web")["properties"]
    assert shown["virtualMachines"] == [{"id": f"{VMS}/web-2"}]
    assert shown["platformUpdateDomainCount"] == 3
    assert names(reader.get(VMS)) == ["web-2"]


def test_a_reader_of_one_instance_sees_that_one_and_not_the_set(arm: Any) -> None:
    reader = arm.holding(Role.READER, f"{SETS}/pool/virtualMachines/1")
    assert names(reader.get(f"{SETS}/pool/virtualMachines")) == ["pool_1"]
    assert reader.get(f"{SETS}/pool/virtualMachines/1")["instanceId"] == "1"
    assert reader.get(SETS) == {"value": []}
    assert reader.refused("GET", f"{SETS}/pool")[0] == 403
    assert reader.refused("GET", f"{SETS}/pool/virtualMachines/0")[0] == 403


def test_a_reader_of_a_group_sees_all_of_it_and_nothing_else(arm_of: Callable[..., Any]) -> None:
    mine = [a_vm("a"), a_vm("s_0", scale_set="s"), a_vm("b", availability_set="b")]
    arm = arm_with(arm_of, *mine, a_vm("c", resource_group="lab2"), a_vm("d", subscription_id="other"))
    reader = arm.holding(Role.READER, GROUP.upper())
    assert names(reader.get(f"{ALL}/virtualMachines")) == ["a", "b"]
    assert names(reader.get(f"{ALL}/virtualMachineScaleSets")) == ["s"]
    assert names(reader.get("/subscriptions/sub/resourceGroups")) == ["lab"]
    assert [one["subscriptionId"] for one in reader.get("/subscriptions")["value"]] == ["sub"]
    assert reader.refused("GET", "/subscriptions/other")[:2] == (404, "SubscriptionNotFound")


def test_a_caller_without_a_role_cannot_learn_what_exists(arm: Any) -> None:
    roleless = arm.holding(Role.READER)
    for path in ("/subscriptions", VMS, f"{ALL}/virtualMachines", SETS, f"{SETS}/pool/virtualMachines"):
        there, not_there = roleless.get(path), roleless.get(path.replace("lab", "cellar").replace("pool", "none"))
        assert there == not_there == {"value": []}
    for name in ("db", "none"):
        status, code, message = roleless.refused("GET", f"{VMS}/{name}")
        assert (status, code) == (403, "AuthorizationFailed")
        assert message.replace(name, "") == roleless.refused("GET", f"{VMS}/x")[2].replace("/x:", "/:")


def test_any_unknown_name_is_not_found_without_a_500(arm: Any) -> None:
    for name in ("%00", "%FF%FE", "..", "%2e%2e", "a" * 5000, "%F0%9F%90%88", "'; drop table vms; --", "7" * 5000):
        for path in (f"{VMS}/{name}", f"{SETS}/{name}/virtualMachines", f"{SETS}/pool/virtualMachines/{name}"):
            assert arm.refused("GET", path.replace(" ", "%20"))[0] == 404, name


def arm_with(arm_of: Callable[..., Any], *vms: Any) -> Any:
    """The ARM facade of this fleet."""
    zones = {vm.zone for vm in vms if vm.zone}
    hosts = [a_host("h1"), *(a_host(f"z{zone}", zone=zone) for zone in sorted(zones))]
    placed = [a_vm(**{**_facts(vm), "host": f"z{vm.zone}" if vm.zone else "h1"}) for vm in vms]
    return arm_of(vms=placed, hosts=hosts)


def _facts(vm: Any) -> dict[str, Any]:
    return {name: getattr(vm, name) for name in vm.__struct_fields__}


def _pages(arm: Any, target: str) -> Any:
    for _ in range(20):
        page = arm.get(target)
        yield page["value"]
        if "nextLink" not in page:
            return
        assert page["nextLink"].startswith("https://localhost:8443/subscriptions/")
        target = page["nextLink"]
    pytest.fail("the list does not end")


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%3Fb", "100%", "a b", "ä", "a;b&c=d+e"])
def test_a_vm_is_found_by_any_valid_name(arm_of: Callable[..., Any], name: str) -> None:
    arm = arm_of(vms=[a_vm(one) for one in sorted({name, "a?b", "a%3Fb"})])
    assert arm.get(f"{VMS}/{quote(name, safe='')}")["name"] == name
