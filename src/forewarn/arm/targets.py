"""Which VMs a call of Azure's API is about: one VM, one instance of a scale set, some instances or all of them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from forewarn.console.arm.route import ArmCall
from forewarn.console.call import Call
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.fleet import Vm, vm_key
from forewarn.core.resource import group_resource, instance_id, resource_of
from forewarn.errors import NotFound, Rejected

ALL = "*"
T = TypeVar("T", bound=msgspec.Struct)


class Absent(NotFound):
    """Nothing at all is called so."""


class Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No body, or an empty object."""


class Image(Nothing, frozen=True, kw_only=True):
    """What a reimage may say of the new disk. There are no images here, so it changes nothing."""

    temp_disk: bool | None = msgspec.field(name="tempDisk", default=None)
    exact_version: str | None = msgspec.field(name="exactVersion", default=None)
    os_profile: dict[str, Any] | None = msgspec.field(name="osProfile", default=None)
    ephemeral: bool | None = msgspec.field(name="forceUpdateOSDiskForEphemeral", default=None)


class Instances(Nothing, frozen=True, kw_only=True):
    """Left out, or `["*"]`: all of them."""

    ids: tuple[str, ...] | None = msgspec.field(name="instanceIds", default=None)


class Images(Image, frozen=True, kw_only=True):
    ids: tuple[str, ...] | None = msgspec.field(name="instanceIds", default=None)


class Chosen(Nothing, frozen=True, kw_only=True):
    ids: tuple[str, ...] = msgspec.field(name="instanceIds")


def read_body(call: ArmCall, shape: type[T]) -> T:
    try:
        return Call(body=call.body).read_body(shape)
    except RecursionError as error:
        raise Rejected("the body is nested too deeply: send less") from error


def vm_called(room: Room, call: ArmCall) -> Vm:
    """The VM of the path. Instances of scale sets and of cloud services are not found here."""
    name, group = call.names["vm"], call.names["group"]
    vm = room.store.vm(vm_key(call.names["subscription"], group, name))
    if vm is None or vm.removed_at is not None or vm.cloud_service or (vm.scale_set and not room.sees(vm)):
        raise Absent(f"VM {name!r} does not exist in resource group {group!r}: `az vm list -g {group}` lists the VMs")
    if vm.scale_set:
        raise NotFound(f"VM {name!r} is an instance of scale set {vm.scale_set!r}: call {resource_of(vm)}")
    return vm


def instance_called(room: Room, call: ArmCall) -> Vm:
    return _instance(room, call, call.names["instance"])


def means_all(ids: tuple[str, ...] | None) -> bool:
    return ids is None or ids == (ALL,)


def instances_called(room: Room, call: ArmCall, ids: tuple[str, ...]) -> list[Vm]:
    """Those with these ids, each once. One that does not exist refuses the call."""
    if not ids:
        raise Rejected(f"instanceIds is empty: name instances by their ids, or give [{ALL!r}] for all of them")
    if ALL in ids:
        raise Rejected(f"instanceIds has {ALL!r} beside other ids: give it alone")
    return list({vm.key: vm for vm in (_instance(room, call, one) for one in ids)}.values())


def every_instance(room: Room, call: ArmCall) -> list[Vm]:
    vms = [vm for vm in (room.store.vm(one.key) for one in room.directory.within(scale_set_called(call))) if vm]
    if not vms:
        names = call.names
        raise Absent(
            f"scale set {names['set']!r} does not exist in resource group {names['group']!r}: "
            f"`az vmss list -g {names['group']}` lists the scale sets"
        )
    return vms


def scale_set_called(call: ArmCall) -> str:
    group = group_resource(call.names["subscription"], call.names["group"])
    return f"{group}/providers/Microsoft.Compute/virtualMachineScaleSets/{call.names['set']}"


def _instance(room: Room, call: ArmCall, wanted: str) -> Vm:
    names = call.names
    for name in (f"{names['set']}_{wanted}", wanted):
        vm = room.store.vm(vm_key(names["subscription"], names["group"], name))
        if vm is not None and vm.removed_at is None and _is_instance(vm, names["set"], wanted):
            return vm
    raise Absent(
        f"scale set {names['set']!r} has no instance {wanted!r}: "
        f"`az vmss list-instances -g {names['group']} -n {names['set']}` lists them"
    )


def _is_instance(vm: Vm, scale_set: str, wanted: str) -> bool:
    return vm.scale_set.casefold() == scale_set.casefold() and instance_id(vm).casefold() == wanted.casefold()


def instances(room: Room, call: ArmCall, right: Right) -> None:
    """Over the scale set, or over each instance that the body names."""
    if room.principal.may(right, call.resource):
        return
    named = _named(call)
    if not named or ALL in named:
        room.must(right, call.resource)
    for one in named:
        room.must(right, f"{call.resource}/virtualMachines/{one}")


def _named(call: ArmCall) -> tuple[str, ...]:
    try:
        return read_body(call, Images).ids or ()
    except Rejected:
        return ()  # said by the handler, to those who have the right
