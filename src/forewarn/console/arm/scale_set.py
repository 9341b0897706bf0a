"""Reading scale sets and their instances. A set is its instances: it exists while it has one."""

from __future__ import annotations

from forewarn.console.arm.paging import PAGE_OF_SETS, paged
from forewarn.console.arm.place import GROUP, PROVIDER, SUBSCRIPTION, known, must_exist
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, listing
from forewarn.console.arm.shape import scale_set_json
from forewarn.console.arm.target import instance_called
from forewarn.console.arm.view import scale_set_view
from forewarn.console.arm.vm import Looking
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.fleet import Vm
from forewarn.errors import NotFound

_SORT = "/virtualMachineScaleSets/".casefold()


async def list_scale_sets(room: Room, call: ArmCall) -> ArmAnswer:
    must_exist(room, call)
    sets = [one for one in room.directory.sets_within(call.resource) if _SORT in one.casefold()]
    return paged(call, sets, lambda resource: scale_set_json(vms_in(room, resource)), PAGE_OF_SETS)


async def show_scale_set(room: Room, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=scale_set_json(_called(room, call)))


async def show_scale_set_view(room: Room, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=scale_set_view(_called(room, call)))


async def list_instances(room: Room, call: ArmCall) -> ArmAnswer:
    instances = room.directory.within(call.resource)
    if not instances and room.principal.may(Right.READ, call.resource):
        raise _no_scale_set(call)
    looking = Looking(room, call)
    return paged(call, [one.key for one in instances], lambda key: looking.instance(known(room, key)))


async def show_instance(room: Room, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=Looking(room, call).instance(instance_called(room, call)))


async def show_instance_view(room: Room, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=Looking(room, call).view(instance_called(room, call)))


def vms_in(room: Room, resource: str) -> list[Vm]:
    """All VMs of a set, also those that the caller may not read: a set that is shown is shown as it is."""
    return [known(room, one.key) for one in room.directory.whole.within(resource)]


def _called(room: Room, call: ArmCall) -> list[Vm]:
    if vms := vms_in(room, call.resource):
        return vms
    raise _no_scale_set(call)


def _no_scale_set(call: ArmCall) -> NotFound:
    name, group = call.names["set"], call.names["group"]
    return NotFound(
        f"scale set {name!r} does not exist in resource group {group!r}: `az vmss list -g {group}` lists the scale sets"
    )


_SETS = f"{PROVIDER}/virtualMachineScaleSets"
_SET = f"{GROUP}/{_SETS}/{{set}}"
_INSTANCES = f"{_SET}/virtualMachines"
_INSTANCE = f"{_INSTANCES}/{{instance}}"

SCALE_SET_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", f"{SUBSCRIPTION}/{_SETS}", list_scale_sets, over=listing, summary="scale sets of a subscription"),
    ArmRoute("GET", f"{GROUP}/{_SETS}", list_scale_sets, over=listing, summary="scale sets of a resource group"),
    ArmRoute("GET", _SET, show_scale_set, summary="a scale set"),
    ArmRoute("GET", f"{_SET}/instanceView", show_scale_set_view, summary="how a scale set is just now"),
    ArmRoute("GET", _INSTANCES, list_instances, over=listing, summary="instances of a scale set"),
    ArmRoute("GET", _INSTANCE, show_instance, summary="an instance"),
    ArmRoute("GET", f"{_INSTANCE}/instanceView", show_instance_view, summary="how an instance is just now"),
)
