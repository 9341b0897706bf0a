"""VMs and their sets as Azure's resources: what a GET shows, and what an update is compared with. Pure.

A set has no record of its own: it is its VMs, and what it shows is what they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from forewarn.core.fleet import Priority, Vm
from forewarn.core.resource import availability_set_resource, instance_id, resource_of, scale_set_resource

Json = dict[str, Any]
VM_TYPE = "Microsoft.Compute/virtualMachines"
SCALE_SET_TYPE = "Microsoft.Compute/virtualMachineScaleSets"
INSTANCE_TYPE = f"{SCALE_SET_TYPE}/virtualMachines"
AVAILABILITY_SET_TYPE = "Microsoft.Compute/availabilitySets"


def vm_json(vm: Vm, view: Json | None = None) -> Json:
    """A VM that is no instance of a set; with its instance view where that was asked for."""
    properties = _machine(vm) | _priority(vm) | scheduled_events(vm)
    if vm.availability_set:
        properties["availabilitySet"] = {"id": availability_set_resource(vm)}
    if policy := scheduled_events_policy(vm):
        properties["scheduledEventsPolicy"] = policy
    return _resource(resource_of(vm), vm.name, VM_TYPE, vm) | {"tags": vm.tags, "properties": _with(properties, view)}


def instance_json(vm: Vm, view: Json | None = None) -> Json:
    """An instance of a scale set."""
    properties = _machine(vm) | {"latestModelApplied": True, "modelDefinitionApplied": "VirtualMachineScaleSet"}
    return _resource(resource_of(vm), vm.name, INSTANCE_TYPE, vm) | {
        "instanceId": instance_id(vm),
        "sku": _sku(vm),
        "tags": vm.tags,
        "properties": _with(properties, view),
    }


def scale_set_json(vms: Sequence[Vm]) -> Json:
    """A scale set, by all its instances. Where they differ in what should be one, the first one's counts."""
    first, resource = vms[0], scale_set_resource(vms[0])
    profile = {"storageProfile": {"osDisk": _os_disk(first)}} | _priority(first) | scheduled_events(first)
    properties = {
        "provisioningState": "Succeeded",
        "uniqueId": str(uuid5(NAMESPACE_URL, resource.casefold())),
        "orchestrationMode": "Uniform",
        "upgradePolicy": {"mode": "Automatic"},
        "singlePlacementGroup": len({vm.placement_group.casefold() for vm in vms}) == 1,
        "platformFaultDomainCount": 1 + max(vm.fault_domain for vm in vms),
        "overprovision": False,
        "virtualMachineProfile": profile,
    }
    if policy := scheduled_events_policy(first):
        properties["scheduledEventsPolicy"] = policy
    shown = _resource(resource, first.scale_set, SCALE_SET_TYPE, first) | {
        "sku": _sku(first) | {"capacity": len(vms)},
        "tags": common_tags(vms),
        "properties": properties,
    }
    zones = sorted({vm.zone for vm in vms if vm.zone})
    return shown | ({"zones": zones} if zones else {})


def availability_set_json(vms: Sequence[Vm], seen: Sequence[Vm]) -> Json:
    """An availability set, by all its VMs; it names those that the caller may read."""
    first = vms[0]
    policy = scheduled_events_policy(first)
    return {
        "id": availability_set_resource(first),
        "name": first.availability_set,
        "type": AVAILABILITY_SET_TYPE,
        "location": first.location,
        "sku": {"name": "Aligned"},
        "tags": common_tags(vms),
        "properties": {
            "platformUpdateDomainCount": 1 + max(vm.update_domain for vm in vms),
            "platformFaultDomainCount": 1 + max(vm.fault_domain for vm in vms),
            "virtualMachines": [{"id": resource_of(vm)} for vm in seen],
            **({"scheduledEventsPolicy": policy} if policy else {}),
        },
    }


def scheduled_events(vm: Vm) -> Json:
    """The member `scheduledEventsProfile`, where its owner wants some notice; nothing otherwise."""
    profile: Json = {}
    if vm.terminate_notice_min:
        profile["terminateNotificationProfile"] = _notice(vm.terminate_notice_min)
    if vm.os_image_notice_min:
        profile["osImageNotificationProfile"] = _notice(vm.os_image_notice_min)
    return {"scheduledEventsProfile": profile} if profile else {}


def scheduled_events_policy(vm: Vm) -> Json:
    """Empty while everything is as it is unasked."""
    approve = vm.auto_approve
    if not (approve.restart or approve.redeploy or vm.publish_outside):
        return {}
    return {
        "userInitiatedReboot": {"automaticallyApprove": approve.restart},
        "userInitiatedRedeploy": {"automaticallyApprove": approve.redeploy},
        "scheduledEventsAdditionalPublishingTargets": {"eventGridAndResourceGraph": {"enable": vm.publish_outside}},
    }


def common_tags(vms: Sequence[Vm]) -> dict[str, str]:
    """Those that all of them have."""
    return {name: text for name, text in vms[0].tags.items() if all(vm.tags.get(name) == text for vm in vms)}


def _resource(resource: str, name: str, kind: str, vm: Vm) -> Json:
    shown: Json = {"id": resource, "name": name, "type": kind, "location": vm.location}
    return shown | ({"zones": [vm.zone]} if vm.zone else {})


def _machine(vm: Vm) -> Json:
    """What VMs and instances have alike. Clients crash without the empty lists, and ask on if these hold anything."""
    return {
        "vmId": vm.vm_id,
        "provisioningState": "Succeeded",
        "hardwareProfile": {"vmSize": vm.size},
        "osProfile": {"computerName": vm.computer_name or vm.name},
        "storageProfile": {"osDisk": _os_disk(vm), "dataDisks": []},
        "networkProfile": {"networkInterfaces": []},
    }


def _os_disk(vm: Vm) -> Json:
    # Clients refuse to send a disk back without its `createOption`.
    return {"osType": vm.os_type, "createOption": "FromImage"}


def _priority(vm: Vm) -> Json:
    spot = {"evictionPolicy": str(vm.eviction_policy)} if vm.priority is Priority.SPOT else {}
    return {"priority": str(vm.priority), **spot}


def _sku(vm: Vm) -> Json:
    return {"name": vm.size, "tier": "Standard"}


def _notice(minutes: int) -> Json:
    return {"enable": True, "notBeforeTimeout": f"PT{minutes}M"}


def _with(properties: Json, view: Json | None) -> Json:
    return properties if view is None else properties | {"instanceView": view}
