"""Renders VMs, instances and sets as Azure resources and instance views. Pure.

A set is not stored: it is rendered from its VMs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Priority, Vm
from forewarn.core.resource_ids import (
    availability_set_resource_id,
    scale_set_instance_id,
    scale_set_resource_id,
    vm_resource_id,
)
from forewarn.protocol.dates import iso_date
from forewarn.web.queries import event_lists_vm

JsonObject = dict[str, Any]
VM_TYPE = "Microsoft.Compute/virtualMachines"
SCALE_SET_TYPE = "Microsoft.Compute/virtualMachineScaleSets"
INSTANCE_TYPE = f"{SCALE_SET_TYPE}/virtualMachines"
AVAILABILITY_SET_TYPE = "Microsoft.Compute/availabilitySets"
_PROVISIONED_STATUS = {
    "code": "ProvisioningState/succeeded",
    "level": "Info",
    "displayStatus": "Provisioning succeeded",
}


def vm_json(vm: Vm, view: JsonObject | None = None) -> JsonObject:
    """Return the Azure resource of a VM that is not an instance of a uniform scale set."""
    properties = _machine_properties(vm) | _priority(vm) | _scheduled_events_profile(vm)
    if vm.availability_set:
        properties["availabilitySet"] = {"id": availability_set_resource_id(vm)}
    if vm.is_flexible:
        properties["virtualMachineScaleSet"] = {"id": scale_set_resource_id(vm)}
        properties["platformFaultDomain"] = vm.fault_domain
    if policy := _scheduled_events_policy(vm):
        properties["scheduledEventsPolicy"] = policy
    return _resource_header(vm_resource_id(vm), vm.name, VM_TYPE, vm) | {
        "tags": vm.tags,
        "properties": _with_instance_view(properties, view),
    }


def flexible_instance_json(vm: Vm) -> JsonObject:
    """Return a VM of a flexible scale set as the list of the set's instances shows it."""
    return vm_json(vm) | {"instanceId": vm.name}


def instance_json(vm: Vm, view: JsonObject | None = None) -> JsonObject:
    """Return the Azure resource of an instance of a uniform scale set, with its instance id."""
    properties = _machine_properties(vm) | {
        "latestModelApplied": True,
        "modelDefinitionApplied": "VirtualMachineScaleSet",
    }
    return _resource_header(vm_resource_id(vm), vm.name, INSTANCE_TYPE, vm) | {
        "instanceId": scale_set_instance_id(vm),
        "sku": _sku(vm),
        "tags": vm.tags,
        "properties": _with_instance_view(properties, view),
    }


def scale_set_json(vms: Sequence[Vm]) -> JsonObject:
    """Return the Azure resource of a scale set, made from `vms`: all its instances, at least one.

    Where the instances differ, it shows the settings of the first, all their zones, and the tags that all have.
    """
    first, resource = vms[0], scale_set_resource_id(vms[0])
    profile = {"storageProfile": {"osDisk": _os_disk(first)}} | _priority(first) | _scheduled_events_profile(first)
    properties = {
        "provisioningState": "Succeeded",
        "uniqueId": str(uuid5(NAMESPACE_URL, resource.casefold())),
        "orchestrationMode": str(first.orchestration),
        "upgradePolicy": {"mode": "Manual" if first.is_flexible else "Automatic"},
        "singlePlacementGroup": not first.is_flexible and len({vm.placement_group.casefold() for vm in vms}) == 1,
        "platformFaultDomainCount": 1 + max(vm.fault_domain for vm in vms),
        "overprovision": False,
        "virtualMachineProfile": profile,
    }
    if policy := _scheduled_events_policy(first):
        properties["scheduledEventsPolicy"] = policy
    document = _resource_header(resource, first.scale_set, SCALE_SET_TYPE, first) | {
        "sku": _sku(first) | {"capacity": len(vms)},
        "tags": _common_tags(vms),
        "properties": properties,
    }
    zones = sorted({vm.zone for vm in vms if vm.zone})
    return document | ({"zones": zones} if zones else {})


def availability_set_json(vms: Sequence[Vm], visible: Sequence[Vm]) -> JsonObject:
    """Return the Azure resource of an availability set, made from `vms`: all its VMs, at least one."""
    first = vms[0]
    policy = _scheduled_events_policy(first)
    return {
        "id": availability_set_resource_id(first),
        "name": first.availability_set,
        "type": AVAILABILITY_SET_TYPE,
        "location": first.location,
        "sku": {"name": "Aligned"},
        "tags": _common_tags(vms),
        "properties": {
            "platformUpdateDomainCount": 1 + max(vm.update_domain for vm in vms),
            "platformFaultDomainCount": 1 + max(vm.fault_domain for vm in vms),
            "virtualMachines": [{"id": vm_resource_id(vm)} for vm in visible],
            **({"scheduledEventsPolicy": policy} if policy else {}),
        },
    }


def _scheduled_events_profile(vm: Vm) -> JsonObject:
    profile: JsonObject = {}
    if vm.terminate_notice_min:
        profile["terminateNotificationProfile"] = _notification_profile(vm.terminate_notice_min)
    if vm.os_image_notice_min:
        profile["osImageNotificationProfile"] = _notification_profile(vm.os_image_notice_min)
    return {"scheduledEventsProfile": profile} if profile else {}


def _scheduled_events_policy(vm: Vm) -> JsonObject:
    """A VM's automatic approvals and publishing as the value of `scheduledEventsPolicy`; empty if all off."""
    approve = vm.auto_approve
    if not (approve.restart or approve.redeploy or vm.publish_outside or vm.publish_version) and vm.approves_all_down:
        return {}
    version = {"scheduledEventsApiVersion": vm.publish_version} if vm.publish_version else {}
    target = {"enable": vm.publish_outside, **version}
    return {
        "userInitiatedReboot": {"automaticallyApprove": approve.restart},
        "userInitiatedRedeploy": {"automaticallyApprove": approve.redeploy},
        **({} if vm.approves_all_down else {"allInstancesDown": {"automaticallyApprove": False}}),
        "scheduledEventsAdditionalPublishingTargets": {"eventGridAndResourceGraph": target},
    }


def _common_tags(vms: Sequence[Vm]) -> dict[str, str]:
    """The tags, value by name, that all these VMs have with the same value; there must be one VM."""
    return {name: text for name, text in vms[0].tags.items() if all(vm.tags.get(name) == text for vm in vms)}


def _resource_header(resource: str, name: str, kind: str, vm: Vm) -> JsonObject:
    header: JsonObject = {"id": resource, "name": name, "type": kind, "location": vm.location}
    return header | ({"zones": [vm.zone]} if vm.zone else {})


def _machine_properties(vm: Vm) -> JsonObject:
    # Clients crash without the empty lists, and would follow the links in others.
    return {
        "vmId": vm.vm_id,
        "provisioningState": "Succeeded",
        "hardwareProfile": {"vmSize": vm.size},
        "osProfile": {"computerName": vm.computer_name or vm.name},
        "storageProfile": {"osDisk": _os_disk(vm), "dataDisks": []},
        "networkProfile": {"networkInterfaces": []},
    }


def _os_disk(vm: Vm) -> JsonObject:
    # Clients cannot send a disk back without its `createOption`.
    return {"osType": vm.os_type, "createOption": "FromImage"}


def _priority(vm: Vm) -> JsonObject:
    spot = {"evictionPolicy": str(vm.eviction_policy)} if vm.priority is Priority.SPOT else {}
    return {"priority": str(vm.priority), **spot}


def _sku(vm: Vm) -> JsonObject:
    return {"name": vm.size, "tier": "Standard"}


def _notification_profile(minutes: int) -> JsonObject:
    return {"enable": True, "notBeforeTimeout": f"PT{minutes}M"}


def _with_instance_view(properties: JsonObject, view: JsonObject | None) -> JsonObject:
    return properties if view is None else properties | {"instanceView": view}


def instance_view(vm: Vm, events: Sequence[Event]) -> JsonObject:
    """Return the instance view of a VM or scale set instance: domains, placement group and power state."""
    placement = {"placementGroupId": vm.placement_group} if vm.placement_group else {}
    maintenance = _maintenance_status(
        [event for event in events if event.rules.planned and event_lists_vm(event, vm.name)]
    )
    return {
        "platformUpdateDomain": vm.update_domain,
        "platformFaultDomain": vm.fault_domain,
        **placement,
        **({"maintenanceRedeployStatus": maintenance} if maintenance else {}),
        "statuses": [_PROVISIONED_STATUS, _power_status(vm)],
    }


def scale_set_instance_view(vms: Sequence[Vm]) -> JsonObject:
    """Return the instance view of a scale set: how many of these instances have each power state."""
    powers = Counter(_power_status(vm)["code"] for vm in vms)
    summary = [{"code": _PROVISIONED_STATUS["code"], "count": len(vms)}]
    summary += [{"code": code, "count": count} for code, count in sorted(powers.items())]
    return {
        "virtualMachine": {"statusesSummary": summary},
        "statuses": [_PROVISIONED_STATUS],
        "orchestrationServices": [],
    }


def _maintenance_status(events: Sequence[Event]) -> JsonObject:
    """The value of `maintenanceRedeployStatus` for these events of a VM; empty if none is scheduled."""
    # From the first publication until the earliest NotBefore, the owner of the VM may start the maintenance.
    pending = [event for event in events if event.status is EventState.SCHEDULED]
    if not pending:
        return {}
    starts_at = iso_date(min(event.not_before for event in pending))
    return {
        "isCustomerInitiatedMaintenanceAllowed": any(event.approved_at is None for event in pending),
        "preMaintenanceWindowStartTime": iso_date(min(event.published_at for event in pending)),
        "preMaintenanceWindowEndTime": starts_at,
        "maintenanceWindowStartTime": starts_at,
        "lastOperationResultCode": "None",
    }


def _power_status(vm: Vm) -> JsonObject:
    return {"code": f"PowerState/{vm.power}", "level": "Info", "displayStatus": f"VM {vm.power}"}
