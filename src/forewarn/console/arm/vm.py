"""Reading VMs: lists of a subscription or a group, one VM, and how it is just now."""

from __future__ import annotations

from forewarn.console.arm.paging import paged
from forewarn.console.arm.place import GROUP, PROVIDER, SUBSCRIPTION, known, must_exist
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, listing
from forewarn.console.arm.shape import Json, instance_json, vm_json
from forewarn.console.arm.target import vm_called
from forewarn.console.arm.view import instance_view
from forewarn.console.room import Room
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Vm


class Looking:
    """Shows VMs to one caller. The events of a scope are read once, and only where instance views are asked for."""

    def __init__(self, room: Room, call: ArmCall) -> None:
        self._store = room.store
        self._events: dict[str, list[Event]] = {}
        expanded = call.query.get("$expand", "").casefold().split(",")
        self._closely = "instanceview" in expanded or call.query.get("statusOnly", "").casefold() == "true"

    def vm(self, vm: Vm) -> Json:
        return vm_json(vm, self._if_asked(vm))

    def instance(self, vm: Vm) -> Json:
        return instance_json(vm, self._if_asked(vm))

    def view(self, vm: Vm) -> Json:
        return instance_view(vm, self._live(vm.scope_id))

    def _if_asked(self, vm: Vm) -> Json | None:
        return self.view(vm) if self._closely else None

    def _live(self, scope_id: str) -> list[Event]:
        if scope_id not in self._events:
            live = self._store.events(scope_id=scope_id, statuses=[Status.SCHEDULED, Status.STARTED])
            self._events[scope_id] = live
        return self._events[scope_id]


async def list_vms(room: Room, call: ArmCall) -> ArmAnswer:
    """Instances of scale sets are listed with their set."""
    must_exist(room, call)
    alone = [one.key for one in room.directory.within(call.resource) if one.is_alone]
    looking = Looking(room, call)
    return paged(call, alone, lambda key: looking.vm(known(room, key)))


async def show_vm(room: Room, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=Looking(room, call).vm(vm_called(room, call)))


async def show_view(room: Room, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=Looking(room, call).view(vm_called(room, call)))


_VMS = f"{PROVIDER}/virtualMachines"
_VM = f"{GROUP}/{_VMS}/{{vm}}"

VM_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", f"{SUBSCRIPTION}/{_VMS}", list_vms, over=listing, summary="VMs of a subscription"),
    ArmRoute("GET", f"{GROUP}/{_VMS}", list_vms, over=listing, summary="VMs of a resource group"),
    ArmRoute("GET", _VM, show_vm, summary="a VM"),
    ArmRoute("GET", f"{_VM}/instanceView", show_view, summary="how a VM is just now"),
)
