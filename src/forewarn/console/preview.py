"""Calls that tell what would come of another call, with its rights and its refusals; nothing is changed."""

from __future__ import annotations

from forewarn.console.body import Asking, Degrading, NewRollout
from forewarn.console.call import Call
from forewarn.console.maintenance import vms_of
from forewarn.console.rollout import rollout_of
from forewarn.console.room import Room
from forewarn.control.control import Control
from forewarn.control.rehearsal import Deed, rehearse, rehearse_rollout
from forewarn.core.preview import Preview
from forewarn.core.request import Ask, Request


async def ask(room: Room, call: Call, asked: Asking) -> Preview:
    """What would come of asking for maintenance of VMs: which events, and when."""
    vms = vms_of(room, asked)
    who = room.who

    async def deed(control: Control) -> Request:
        receipt = await control.requests.ask_for_vms(
            Ask(asked.ask), vms, who=who, notice_s=asked.notice_s, short_notice=asked.short_notice
        )
        return receipt.request

    await room.house.observe()
    async with room.house.turns.of(room.principal.id):
        return await rehearse(room.control, deed, vms)


async def start_rollout(room: Room, call: Call, asked: NewRollout) -> Preview:
    """What would come of a rollout: which events in which order, and when, if nobody approves."""
    rollout = rollout_of(room, asked)
    await room.house.observe()
    async with room.house.turns.of(room.principal.id):
        return await rehearse_rollout(
            room.control, rollout, who=room.who, notice_s=asked.notice_s, short_notice=asked.short_notice
        )


async def degrade(room: Room, call: Call, asked: Degrading) -> Preview:
    """What would come of predicting that a host will fail."""
    name, who = call.names["name"], room.who

    async def deed(control: Control) -> Request:
        receipt = await control.requests.degrade(name, who=who, notice_s=asked.in_s, short_notice=asked.short_notice)
        return receipt.request

    return await _for_host(room, name, deed)


async def fail(room: Room, call: Call) -> Preview:
    """What would come of letting a host fail."""
    name, who = call.names["name"], room.who

    async def deed(control: Control) -> Request:
        return (await control.requests.fail(name, who=who)).request

    return await _for_host(room, name, deed)


async def _for_host(room: Room, name: str, deed: Deed) -> Preview:
    """Those on it, and those on their way to it."""
    host = room.control.requests.host(name)
    bound = map(room.store.vm, room.control.placement.bound_for(host.name))
    vms = [*room.store.vms(host=host.name), *(vm for vm in bound if vm is not None)]
    await room.house.observe()
    async with room.house.turns.of(room.principal.id):
        return await rehearse(room.control, deed, list({vm.key: vm for vm in vms}.values()))
