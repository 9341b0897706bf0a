"""User operations as Azure spells them: each becomes a request of ours, and its operation can be followed."""

from __future__ import annotations

from collections.abc import Callable

from forewarn.console.arm.operation import follow
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, Handler, Over, own
from forewarn.console.arm.target import (
    Absent,
    Chosen,
    Image,
    Images,
    Instances,
    Nothing,
    every_instance,
    instance_called,
    instances,
    instances_called,
    means_all,
    read_body,
    vm_called,
)
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.fleet import Vm
from forewarn.core.planning import ASK_CAUSE, suits
from forewarn.core.request import Ask
from forewarn.errors import Rejected

_COMPUTE = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute"
VM = f"{_COMPUTE}/virtualMachines/{{vm}}"
SCALE_SET = f"{_COMPUTE}/virtualMachineScaleSets/{{set}}"
INSTANCE = f"{SCALE_SET}/virtualMachines/{{instance}}"

_EVERYWHERE = {
    "restart": Ask.RESTART,
    "redeploy": Ask.REDEPLOY,
    "performMaintenance": Ask.PERFORM_MAINTENANCE,
    "start": Ask.START,
    "powerOff": Ask.POWER_OFF,
    "deallocate": Ask.DEALLOCATE,
    "reimage": Ask.REIMAGE,
}
_OF_VM = {**_EVERYWHERE, "reapply": Ask.REAPPLY}
_OF_SET = {**_EVERYWHERE, "reapply": Ask.REAPPLY, "reimageall": Ask.REIMAGE}
_OF_INSTANCE = {**_EVERYWHERE, "reimageall": Ask.REIMAGE}
Find = Callable[[Room, ArmCall], Vm]


def _asks(ask: Ask, find: Find) -> Handler:
    async def handler(room: Room, call: ArmCall) -> ArmAnswer:
        read_body(call, Image if ask is Ask.REIMAGE else Nothing)
        _must_not_hibernate(call)
        return await _accept(room, call, ask, [find(room, call)])

    return handler


def _asks_set(ask: Ask, shape: type[Instances] | type[Images] | type[Chosen]) -> Handler:
    """Without ids it is meant for the instances that it suits: a start for those that do not run."""

    async def handler(room: Room, call: ArmCall) -> ArmAnswer:
        ids = read_body(call, shape).ids
        _must_not_hibernate(call)
        if ids is None or means_all(ids):
            return await _accept(room, call, ask, _suited(ask, every_instance(room, call)))
        return await _accept(room, call, ask, instances_called(room, call, ids))

    return handler


def _suited(ask: Ask, vms: list[Vm]) -> list[Vm]:
    """With none left all of them, so that the refusal says why."""
    cause = ASK_CAUSE.get(ask)
    fitting = [vm for vm in vms if cause is None or suits(vm, cause)]
    return fitting or vms


def _deletes(find: Callable[[Room, ArmCall], list[Vm]]) -> Handler:
    """Where nothing is left to delete it is done, so that a retry after a lost answer is harmless."""

    async def handler(room: Room, call: ArmCall) -> ArmAnswer:
        read_body(call, Nothing)
        try:
            vms = find(room, call)
        except Absent:
            return ArmAnswer(status=204)
        return await _accept(room, call, Ask.DELETE, vms)

    return handler


def _evicts(find: Find) -> Handler:
    """Answered at once: Azure gives no operation to follow."""

    async def handler(room: Room, call: ArmCall) -> ArmAnswer:
        read_body(call, Nothing)
        await room.control.requests.ask_for_vms(Ask.EVICT, [find(room, call)], who=room.who)
        await room.catch_up()
        return ArmAnswer(status=204)

    return handler


async def _accept(room: Room, call: ArmCall, ask: Ask, vms: list[Vm]) -> ArmAnswer:
    requests = room.control.requests
    if ask is Ask.PERFORM_MAINTENANCE:
        receipt = await requests.perform_maintenance(vms, who=room.who)
    else:
        receipt = await requests.ask_for_vms(ask, vms, who=room.who)
    await room.catch_up()
    return ArmAnswer(status=202, headers=follow(call, vms[0], receipt.request))


def _must_not_hibernate(call: ArmCall) -> None:
    if call.query.get("hibernate", "").casefold() == "true":
        raise Rejected("hibernate=true cannot be: no memory is kept of a VM that is deallocated; leave hibernate out")


def _only(find: Find) -> Callable[[Room, ArmCall], list[Vm]]:
    return lambda room, call: [find(room, call)]


def _operate(method: str, path: str, handler: Handler, summary: str, over: Over = own) -> ArmRoute:
    return ArmRoute(method, path, handler, right=Right.OPERATE, over=over, summary=summary)


def _actions(path: str, table: dict[str, Ask], handler: Callable[[Ask], Handler], over: Over = own) -> list[ArmRoute]:
    return [_operate("POST", f"{path}/{name}", handler(ask), f"asks for {ask}", over) for name, ask in table.items()]


_GONE = "asks for delete; what has a terminate notification gets it, also with forceDeletion"

ROUTES: tuple[ArmRoute, ...] = (
    *_actions(VM, _OF_VM, lambda ask: _asks(ask, vm_called)),
    _operate("POST", f"{VM}/simulateEviction", _evicts(vm_called), "evicts a Spot VM"),
    _operate("DELETE", VM, _deletes(_only(vm_called)), _GONE),
    *_actions(SCALE_SET, _OF_SET, lambda ask: _asks_set(ask, Images if ask is Ask.REIMAGE else Instances), instances),
    _operate("POST", f"{SCALE_SET}/delete", _asks_set(Ask.DELETE, Chosen), "deletes instances", instances),
    _operate("DELETE", SCALE_SET, _deletes(every_instance), _GONE),
    *_actions(INSTANCE, _OF_INSTANCE, lambda ask: _asks(ask, instance_called)),
    _operate("POST", f"{INSTANCE}/simulateEviction", _evicts(instance_called), "evicts a Spot instance"),
    _operate("DELETE", INSTANCE, _deletes(_only(instance_called)), _GONE),
)
