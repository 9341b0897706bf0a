"""Hosts and VMs of a fleet, and the scope that each VM belongs to (spec §7)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from forewarn.base.times import LabTime

MAX_PLACEMENT_GROUP = 100  # VMs; spec §7.1
MAX_FLEXIBLE_SET = 1000  # VMs of a scale set with flexible orchestration, as on Azure


class HostHealth(StrEnum):
    """The health of a host: healthy, degraded (predicted to fail), failed. VMs move only to healthy ones."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"  # predicted to fail
    FAILED = "failed"


class PowerState(StrEnum):
    """The power state of a VM: running, stopped (stays on its host) or deallocated (is on none)."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEALLOCATED = "deallocated"


class VmCondition(StrEnum):
    """What is unusual about a VM beside its host and power state, as its hosts report it. Stored."""

    NORMAL = "normal"
    PAUSED = "paused"  # not by an act
    CRASHED = "crashed"  # stopped: it is off, and nobody is known to have asked for that; running: halted in memory
    MISSING = "missing"  # no host has it
    DUPLICATE = "duplicate"  # several hosts have it in memory


class LastSeen(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What is kept of the last report of hosts about a VM, to compare the next one with. Stored.

    An act that succeeds replaces it by what its VM should be afterwards; one that fails marks it as uncertain.
    """

    condition: VmCondition = VmCondition.NORMAL
    instance: str = ""  # the host's id of the VM's current start; "": not known, as after an act, until the next report
    is_uncertain: bool = False  # an act on it has failed since then: what hosts report now may be its effect


class Priority(StrEnum):
    """The priority of a VM, Regular or Spot, in Azure's words. Only Spot VMs can be evicted."""

    REGULAR = "Regular"
    SPOT = "Spot"


class EvictionPolicy(StrEnum):
    """What an eviction does to a Spot VM: Deallocate or Delete, in Azure's words."""

    DEALLOCATE = "Deallocate"  # it stays in the fleet, on no host, and can be started again
    DELETE = "Delete"  # it is removed


class Orchestration(StrEnum):
    """How a scale set manages its VMs: Uniform or Flexible, in Azure's words (spec §14.5).

    A uniform set has numbered instances in placement groups, each of them a scope. A flexible set is one scope of
    ordinary VM resources that belong to the set.
    """

    UNIFORM = "Uniform"  # numbered instances below the scale set, in placement groups, each of them a scope
    FLEXIBLE = "Flexible"  # VM resources that belong to the set, which is one scope


class Host(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A machine that runs VMs. Maintenance of it may affect several scopes at once.

    A decision that brings a VM to the host relies on its `version`; one that changes or removes it relies on `arrivals`
    too. So a host cannot fail or be removed while a move to it is being committed.
    """

    name: str  # unique, ignoring case
    location: str  # an Azure region or any other name, such as `westeurope`; its VMs spell it the same way
    zone: str = ""  # "": in no zone
    health: HostHealth = HostHealth.HEALTHY
    confirmed_down: bool = False  # an operator states that it is certainly down, so its VMs may be started elsewhere
    version: int = 0  # the version of the stored row, for optimistic commits; 0: not stored yet
    arrivals: int = 0  # how many commits have brought VMs here, or begun to move them here
    unreachable_since: LabTime | None = None  # since when the hypervisor gets no answer; None: it may answer

    @property
    def id(self) -> str:
        """The host's key in the store: its name in lower case, so that no two names differ only in case."""
        return self.name.casefold()

    @property
    def can_take_vms(self) -> bool:
        """Whether VMs may come to the host: it is healthy, and not confirmed down."""
        return self.health is HostHealth.HEALTHY and not self.confirmed_down


class AutoApproval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which operations of users on a VM are approved in advance, so that they start without notice (spec §9)."""

    restart: bool = False  # True: restarts by users are approved
    redeploy: bool = False  # True: redeploys by users are approved


class Vm(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One virtual machine: what its owner declared, and its current state. A removed VM stays stored."""

    name: str  # unique in its resource group, ignoring letter case
    vm_id: str  # a GUID, given when the VM is added; "" before that
    subscription_id: str  # a GUID, or another text that the fleet file declares as an id
    resource_group: str  # its name
    location: str  # an Azure region or any other name, that of its host
    computer_name: str = ""  # its hostname; "": its name
    zone: str = ""  # "": in no zone
    size: str = "Standard_D2s_v5"  # an Azure VM size; instance metadata shows it, and hypervisors may know its memory
    os_type: str = "Linux"  # or "Windows"
    availability_set: str = ""  # it is in this, in a scale set, in a cloud service, or in none ("")
    scale_set: str = ""  # its name; "": in none
    orchestration: Orchestration = Orchestration.UNIFORM  # of its scale set; without meaning if it is in none
    placement_group: str = ""  # of its scale set; "": it is in none, as in a flexible scale set
    cloud_service: str = ""  # its name; "": in none
    update_domain: int = 0  # its number, from 0
    fault_domain: int = 0  # its number, from 0
    update_domain_count: int = 0  # as declared for its set or service; 0: not known, or the VM is in none
    fault_domain_count: int = 0  # as declared for its set or service; 0: not known, or the VM is in none
    priority: Priority = Priority.REGULAR
    eviction_policy: EvictionPolicy = EvictionPolicy.DEALLOCATE
    terminate_notice_min: int = 0  # minutes; 0: no terminate notification
    os_image_notice_min: int = 0  # minutes; 0: a reimage is performed at once, without an event (spec §14.1)
    auto_approve: AutoApproval = AutoApproval()  # which operations of users its policy approves
    approves_all_down: bool = True  # False: policy approves nothing that stops the last running VM of its scope
    narrow_delivery: bool = False  # the VMs of its set see only the events that affect them; one fault domain only
    publish_outside: bool = False  # its owner wants webhooks to receive its events
    publish_version: str = ""  # the api-version whose form webhooks receive its events in; "": the newest
    tags: dict[str, str] = {}  # name → value
    program: tuple[str, ...] = ()  # command line of the program in a namespace VM; (): none
    environment: dict[str, str] = {}  # of the program, in addition to the service's environment
    directory: str = ""  # working directory of the program; "": the service's
    address: str = ""  # its IP address in a trusted network; "": none
    lab_address: str = ""  # the loopback address that identifies it in a lab; assigned once
    host: str = ""  # the name of its current host; "" while it is deallocated or removed
    power: PowerState = PowerState.RUNNING
    seen: LastSeen | None = None  # None: not compared with its hosts so far
    removed_at: LabTime | None = None  # of its removal; None: it is present

    @property
    def key(self) -> str:
        """The VM's unique key: `subscription id/resource group/name`, lower case; kept when it is added again."""
        return vm_key(self.subscription_id, self.resource_group, self.name)

    @property
    def scope_id(self) -> str:
        """The id of the VM's scope, the VMs that share one document (spec §7.1)."""
        return scope_id_for(self)

    @property
    def is_flexible(self) -> bool:
        """Whether the VM belongs to a flexible scale set, and so is a VM resource of its own."""
        return bool(self.scale_set) and self.orchestration is Orchestration.FLEXIBLE

    @property
    def is_uniform_instance(self) -> bool:
        """Whether the VM is an instance of a uniform scale set, with a resource id below that of the set."""
        return bool(self.scale_set) and self.orchestration is Orchestration.UNIFORM

    @property
    def condition(self) -> VmCondition:
        """What is unusual about the VM, as its hosts last reported it; NORMAL before they were first compared."""
        return self.seen.condition if self.seen is not None else VmCondition.NORMAL

    @property
    def is_stopped_on_purpose(self) -> bool:
        """Whether the VM is stopped and its condition is NORMAL; then it stays off during maintenance."""
        # False for a VM that crashed: a reboot or redeployment boots it.
        return self.power is PowerState.STOPPED and self.condition is VmCondition.NORMAL


def vm_key(subscription_id: str, resource_group: str, name: str) -> str:
    """Return the key of a VM: `subscription id/resource group/name` in lower case."""
    return f"{subscription_id}/{resource_group}/{name}".casefold()


def vm_key_in_scope(scope_id: str, name: str) -> str:
    """Return the key of the VM with this name, in any letter case, in the scope with this id."""
    return f"{resource_group_of_scope(scope_id)}/{name.casefold()}"


def resource_group_of_scope(scope_id: str) -> str:
    """Return `subscription/group` of a scope id, in lower case as ids are."""
    subscription, group, _ = scope_id[scope_id.index(":") + 1 :].split("/", 2)
    return f"{subscription}/{group}"


def scope_id_for(vm: Vm) -> str:
    """Return the id of the scope that a VM belongs to: of its service, scale set or set, else its own.

    It is the first of these that applies (spec §7.1): `service:GROUP/name` of a cloud service, `flexible:GROUP/scale
    set`, `placement:GROUP/scale set/placement group`, `set:GROUP/availability set`, or `vm:GROUP/name`, where GROUP is
    `subscription id/resource group`. All after the colon is in lower case.
    """
    group = f"{vm.subscription_id}/{vm.resource_group}".casefold()
    if vm.cloud_service:
        return f"service:{group}/{vm.cloud_service.casefold()}"
    if vm.is_flexible:
        return f"flexible:{group}/{vm.scale_set.casefold()}"
    if vm.scale_set:
        return f"placement:{group}/{vm.scale_set.casefold()}/{vm.placement_group.casefold()}"
    if vm.availability_set:
        return f"set:{group}/{vm.availability_set.casefold()}"
    return f"vm:{group}/{vm.name.casefold()}"


def is_single_vm_scope(scope_id: str) -> bool:
    """Return whether the scope with this id is that of one VM, in no service, placement group or set."""
    return scope_id.startswith("vm:")
