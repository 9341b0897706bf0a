"""Approval from outside the VM, as Azure spells it: of one event of a VM or of a set, or of several at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from forewarn.console.arm.action import SCALE_SET, VM
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, Handler
from forewarn.console.arm.target import Nothing, every_instance, read_body, vm_called
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.event import Event, Status
from forewarn.errors import NotFound, Refused

_COMPUTE = VM.removesuffix("/virtualMachines/{vm}")
_AVAILABILITY_SET = f"{_COMPUTE}/availabilitySets/{{set}}"
_EVENTS = "providers/Microsoft.Maintenance/scheduledevents"
_APPROVED = {"value": "Successfully Approved"}

Belongs = Callable[[str], bool]  # whether a scope is one whose events may be approved here
Find = Callable[[Room, ArmCall], Belongs]


class Ids(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


def _of_vm(room: Room, call: ArmCall) -> Belongs:
    """Every member of a scope may approve its events (spec §5.3)."""
    own = vm_called(room, call).scope_id
    return lambda scope_id: scope_id == own


def _of_scale_set(room: Room, call: ArmCall) -> Belongs:
    """Each of its placement groups is a scope (spec §7.1)."""
    scopes = {vm.scope_id for vm in every_instance(room, call)}
    return lambda scope_id: scope_id in scopes


def _of_availability_set(room: Room, call: ArmCall) -> Belongs:
    names = call.names
    own = f"set:{names['subscription']}/{names['group']}/{names['set']}".casefold()
    if room.store.scope(own) is None:
        raise NotFound(
            f"availability set {names['set']!r} does not exist in resource group {names['group']!r}: "
            f"`az vm availability-set list -g {names['group']}` lists them"
        )
    return lambda scope_id: scope_id == own


def _one(find: Find) -> Handler:
    async def handler(room: Room, call: ArmCall) -> ArmAnswer:
        read_body(call, Nothing)
        return await _approve(room, find(room, call), (call.names["event"],))

    return handler


def _several(find: Find) -> Handler:
    async def handler(room: Room, call: ArmCall) -> ArmAnswer:
        return await _approve(room, find(room, call), read_body(call, Ids).value)

    return handler


async def _approve(room: Room, belongs: Belongs, ids: tuple[str, ...]) -> ArmAnswer:
    """All of them, or none."""
    await room.house.observe()
    events = {event.id: event for event in (_event(room, belongs, one) for one in ids)}
    fresh = [event for event in events.values() if event.status is Status.SCHEDULED and event.approved_at is None]
    if fresh:
        await room.control.requests.approve_all(fresh, who=room.who)
    await room.catch_up()
    return ArmAnswer(body=_APPROVED)


def _event(room: Room, belongs: Belongs, name: str) -> Event:
    event = room.store.event(name.strip().upper()) if name.isascii() else None
    if event is None or not event.listed or not belongs(event.scope_id):
        raise NotFound(f"event {name!r} is none of this resource: its VMs are told the ids of theirs")
    if not event.is_live and event.approved_at is None:
        raise Refused(f"event {event.id} is over ({event.ending}): there is nothing to approve")
    return event  # one that was approved before counts as approved, so that a retry is harmless (spec §5.2)


def _routes(path: str, find: Find) -> tuple[ArmRoute, ArmRoute]:
    one, several = f"{path}/{_EVENTS}/{{event}}/acknowledge", f"{path}/{_EVENTS}"
    return (
        ArmRoute("POST", one, _one(find), right=Right.APPROVE, summary="approves an event"),
        ArmRoute("POST", several, _several(find), right=Right.APPROVE, summary="approves events, all or none"),
    )


ROUTES: tuple[ArmRoute, ...] = (
    *_routes(VM, _of_vm),
    *_routes(SCALE_SET, _of_scale_set),
    *_routes(_AVAILABILITY_SET, _of_availability_set),
)
