"""Azure resource ids: building them for VMs, sets and groups, parsing them, and testing containment."""

from __future__ import annotations

import re

from forewarn.core.fleet import Vm
from forewarn.errors import Rejected

ROOT_RESOURCE = "/"  # contains every resource

_PROVIDER = "providers/Microsoft.Compute"
_RESOURCE_ID_PATTERN = re.compile(
    r"/subscriptions/[^/]+"
    r"(/resourceGroups/[^/]+"
    r"(/providers/Microsoft\.Compute/(virtualMachines/[^/]+|availabilitySets/[^/]+"
    r"|virtualMachineScaleSets/[^/]+(/virtualMachines/[^/]+)?|cloudServices/[^/]+(/roleInstances/[^/]+)?))?)?",
    re.IGNORECASE,
)


def vm_resource_id(vm: Vm) -> str:
    """Return the Azure resource id of a VM: below its scale set or cloud service if it is in one."""
    group = group_resource_id(vm.subscription_id, vm.resource_group)
    if vm.cloud_service:
        return f"{group}/{_PROVIDER}/cloudServices/{vm.cloud_service}/roleInstances/{vm.name}"
    if vm.is_uniform_instance:
        return f"{scale_set_resource_id(vm)}/virtualMachines/{scale_set_instance_id(vm)}"
    return f"{group}/{_PROVIDER}/virtualMachines/{vm.name}"


def group_resource_id(subscription_id: str, resource_group: str) -> str:
    """Return the resource id of a resource group: `/subscriptions/ID/resourceGroups/NAME`, as spelled."""
    return f"/subscriptions/{subscription_id}/resourceGroups/{resource_group}"


def scale_set_resource_id(vm: Vm) -> str:
    """Return the Azure resource id of the scale set that this VM belongs to; it must belong to one."""
    return (
        f"{group_resource_id(vm.subscription_id, vm.resource_group)}/{_PROVIDER}/virtualMachineScaleSets/{vm.scale_set}"
    )


def availability_set_resource_id(vm: Vm) -> str:
    group = group_resource_id(vm.subscription_id, vm.resource_group)
    return f"{group}/{_PROVIDER}/availabilitySets/{vm.availability_set}"


def scale_set_instance_id(vm: Vm) -> str:
    """Return the id of an instance within its scale set: `3` for the VM `workers_3` of the set `workers`."""
    if vm.is_flexible:
        return vm.name
    start = f"{vm.scale_set}_"
    rest = vm.name[len(start) :]
    return rest if rest and vm.name.casefold().startswith(start.casefold()) else vm.name


def is_within_resource(over: str, resource: str) -> bool:
    """Return whether the resource id `resource` is `over` or below it, ignoring letter case as Azure does."""
    if over == ROOT_RESOURCE:
        return True
    above, below = over.casefold(), resource.casefold()
    return below == above or below.startswith(f"{above}/")


def parse_resource_id(text: str) -> str:
    """Return a resource id as a user typed it, without blanks around it and slashes at its end."""
    given = text.strip()
    if given == ROOT_RESOURCE:
        return ROOT_RESOURCE
    given = given.rstrip("/")
    if _RESOURCE_ID_PATTERN.fullmatch(given) is None:
        raise Rejected(
            f"{text!r} is not a resource that roles can be granted over: give / for everything, /subscriptions/ID, "
            "/subscriptions/ID/resourceGroups/NAME, or the id of a VM or set within one"
        )
    return given


def scope_resource_id(vm: Vm) -> str:
    """Return the Azure resource id of the VM's scope: its service, scale set, availability set or itself."""
    if vm.cloud_service:
        return vm_resource_id(vm).rpartition("/roleInstances/")[0]
    if vm.scale_set:
        return scale_set_resource_id(vm)
    return availability_set_resource_id(vm) if vm.availability_set else vm_resource_id(vm)
