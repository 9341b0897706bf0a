"""Hosts and VMs of a fleet, and the scope that each VM belongs to (spec §7)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

MAX_PLACEMENT_GROUP = 100  # spec §7.1


class HostHealth(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


class PowerState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    DEALLOCATED = "deallocated"


class Priority(StrEnum):
    REGULAR = "Regular"
    SPOT = "Spot"


class EvictionPolicy(StrEnum):
    DEALLOCATE = "Deallocate"
    DELETE = "Delete"


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that runs VMs. Work on it may hit several scopes at once."""

    name: str
    location: str
    zone: str = ""
    health: HostHealth = HostHealth.HEALTHY


class AutoApproval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which user-initiated events need nobody's approval (spec §9)."""

    restart: bool = False
    redeploy: bool = False


class Vm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One virtual machine: what its owner declared, and where and how it is now."""

    name: str
    vm_id: str
    subscription_id: str
    resource_group: str
    location: str
    computer_name: str = ""
    zone: str = ""
    size: str = "Standard_D2s_v5"
    os_type: str = "Linux"
    availability_set: str = ""
    scale_set: str = ""
    placement_group: str = ""
    cloud_service: str = ""
    update_domain: int = 0
    fault_domain: int = 0
    priority: Priority = Priority.REGULAR
    eviction_policy: EvictionPolicy = EvictionPolicy.DEALLOCATE
    terminate_notice_min: int = 0  # 0: no terminate notification
    os_image_notice_min: int = 0  # kept for its owner: replacing an image gives no event (spec §6.4)
    auto_approve: AutoApproval = AutoApproval()
    publish_outside: bool = False  # its owner wants events told beyond the VM
    tags: dict[str, str] = {}
    program: tuple[str, ...] = ()  # what runs inside, where VMs are made of namespaces; () nothing
    environment: dict[str, str] = {}  # of the program, beside the service's own
    directory: str = ""  # in which the program runs; "" the service's own
    address: str = ""  # by which a trusted network knows it
    lab_address: str = ""  # the loopback address that is this VM in a lab; assigned once
    host: str = ""  # "" while deallocated
    power: PowerState = PowerState.RUNNING
    removed_at: float | None = None

    @property
    def key(self) -> str:
        """The one name by which the whole house knows this VM."""
        return vm_key(self.subscription_id, self.resource_group, self.name)

    @property
    def scope_id(self) -> str:
        return scope_id_for(self)


def vm_key(subscription_id: str, resource_group: str, name: str) -> str:
    return f"{subscription_id}/{resource_group}/{name}".casefold()


def vm_key_in_scope(scope_id: str, name: str) -> str:
    """The key of the VM of that name in a scope: a scope lies within one resource group."""
    return f"{resource_group_of_scope(scope_id)}/{name.casefold()}"


def resource_group_of_scope(scope_id: str) -> str:
    """Subscription and resource group, as the keys of its VMs begin."""
    subscription, group, _ = scope_id[scope_id.index(":") + 1 :].split("/", 2)
    return f"{subscription}/{group}"


def scope_id_for(vm: Vm) -> str:
    """Spec §7.1: a set, a placement group or a service is one scope; any other VM is a scope of its own."""
    group = f"{vm.subscription_id}/{vm.resource_group}".casefold()
    if vm.cloud_service:
        return f"service:{group}/{vm.cloud_service.casefold()}"
    if vm.scale_set:
        return f"placement:{group}/{vm.scale_set.casefold()}/{vm.placement_group.casefold()}"
    if vm.availability_set:
        return f"set:{group}/{vm.availability_set.casefold()}"
    return f"vm:{group}/{vm.name.casefold()}"
