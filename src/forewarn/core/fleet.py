"""What a fleet consists of: hosts, VMs, and which scope a VM belongs to (spec §7)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol

import msgspec

from forewarn.errors import Refused

MAX_PLACEMENT_GROUP = 100  # spec §7.1


class Health(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


class Power(StrEnum):
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
    health: Health = Health.HEALTHY


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
    power: Power = Power.RUNNING
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


def key_in_scope(scope_id: str, name: str) -> str:
    """The key of the VM of that name in a scope: a scope lies within one resource group."""
    return f"{group_of_scope(scope_id)}/{name.casefold()}"


def group_of_scope(scope_id: str) -> str:
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


class Tenancy(Protocol):
    """Who is on which host, as far as choosing a host for one more VM needs to know."""

    def crowd(self, host: str) -> int: ...

    def mixes(self, host: str, vm: Vm) -> bool:
        """Whether the host holds another update domain of this VM's scope."""


def destination_for(vm: Vm, hosts: Iterable[Host], tenancy: Tenancy) -> str | None:
    """The host a VM moves to: healthy, of its location and zone, not its own; least crowded first (spec §6.4).

    A host that holds another update domain of the same scope is taken only where there is no other, so that
    later work on that host stays within one update domain.
    """
    fit = [host.name for host in hosts if is_destination(host, vm)]
    return min(fit, key=lambda name: (tenancy.mixes(name, vm), tenancy.crowd(name), name), default=None)


def is_destination(host: Host, vm: Vm) -> bool:
    return (
        host.health is Health.HEALTHY and host.name != vm.host and host.location == vm.location and host.zone == vm.zone
    )


def must_have_destination(vm: Vm, hosts: Iterable[Host]) -> None:
    """Spec §6.4: with no healthy host to move to, the request is refused."""
    if not any(is_destination(host, vm) for host in hosts):
        where = f"location {vm.location!r}" + (f", zone {vm.zone!r}" if vm.zone else "")
        raise Refused(
            f"VM {vm.name!r} cannot move: {where} has no other healthy host than {vm.host!r}; "
            "add or repair a host first"
        )
