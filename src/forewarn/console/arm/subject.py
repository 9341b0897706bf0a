"""What an update is about: a VM, an instance or a set, the VMs it consists of, and where it has what can be changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forewarn.console.arm.member import Path
from forewarn.console.arm.route import ArmCall
from forewarn.console.arm.scale_set import vms_in
from forewarn.console.arm.shape import Json, availability_set_json, instance_json, scale_set_json, vm_json
from forewarn.console.arm.target import Absent, instance_called, vm_called
from forewarn.console.room import Room
from forewarn.core.fleet import Vm

TAGS: Path = ("tags",)
_PROFILE: Path = ("properties", "scheduledEventsProfile")
_SET_PROFILE: Path = ("properties", "virtualMachineProfile", "scheduledEventsProfile")
_POLICY: Path = ("properties", "scheduledEventsPolicy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is updated: the VMs it consists of, and what a GET shows of it."""

    vms: Sequence[Vm]
    shown: Json
    called: str  # by the history


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """A sort of resource: how it is found, and where it has what can be changed."""

    find: Callable[[Room, ArmCall], Subject]
    profile: Path | None = None
    policy: Path | None = None

    @property
    def changeable(self) -> frozenset[Path]:
        return frozenset(path for path in (TAGS, self.profile, self.policy) if path is not None)


def _vm(room: Room, call: ArmCall) -> Subject:
    vm = vm_called(room, call)
    return Subject(vms=[vm], shown=vm_json(vm), called=vm.name)


def _instance(room: Room, call: ArmCall) -> Subject:
    vm = instance_called(room, call)
    return Subject(vms=[vm], shown=instance_json(vm), called=vm.name)


def _scale_set(room: Room, call: ArmCall) -> Subject:
    vms = vms_in(room, call.resource)
    if not vms:
        raise _absent(call, "scale set")
    return Subject(vms=vms, shown=scale_set_json(vms), called=vms[0].scale_set)


def _availability_set(room: Room, call: ArmCall) -> Subject:
    vms = vms_in(room, call.resource)
    if not vms:
        raise _absent(call, "availability set")
    shown = availability_set_json(vms, [vm for vm in vms if room.sees(vm)])
    return Subject(vms=vms, shown=shown, called=vms[0].availability_set)


def _absent(call: ArmCall, what: str) -> Absent:
    group = call.names["group"]
    listed = f"`az {'vmss' if what == 'scale set' else 'vm availability-set'} list -g {group}` lists them"
    return Absent(f"{what} {call.names['set']!r} does not exist in resource group {group!r}: {listed}")


def found(sort: Sort, room: Room, call: ArmCall) -> Subject:
    try:
        return sort.find(room, call)
    except Absent as error:
        if call.method != "PUT":
            raise
        made = "what is new comes with a fleet file (`forewarn fleet apply`) or with `forewarn fleet add`"
        raise Absent(f"{str(error).partition(': `')[0]}, and a PUT does not make it: {made}") from error


A_VM = Sort(find=_vm, profile=_PROFILE, policy=_POLICY)
AN_INSTANCE = Sort(find=_instance)
A_SCALE_SET = Sort(find=_scale_set, profile=_SET_PROFILE, policy=_POLICY)
AN_AVAILABILITY_SET = Sort(find=_availability_set, policy=_POLICY)
