"""Calls that ask for maintenance: of VMs, of hosts."""

from __future__ import annotations

from forewarn.console.body import Asking, Degrading
from forewarn.console.call import Call
from forewarn.console.room import Room, must_be_told_once
from forewarn.console.showing import Showing, request_view
from forewarn.console.views import EventsOnly, HostView, ReceiptView, RequestStanding
from forewarn.core.event import Ending, Event, Status
from forewarn.core.fleet import Vm
from forewarn.core.history import What
from forewarn.core.request import Ask, Request


async def ask(room: Room, call: Call, asked: Asking) -> ReceiptView:
    """Ask for maintenance of VMs: of all of them, or none."""
    receipt = await room.control.requests.ask_for_vms(
        Ask(asked.ask), vms_of(room, asked), who=room.who, notice_s=asked.notice_s, short_notice=asked.short_notice
    )
    return await _receipt(room, receipt.request)


def vms_of(room: Room, asked: Asking) -> list[Vm]:
    """Those that are named, each once."""
    vms = [room.directory.find(name) for name in asked.vms]
    must_be_told_once(asked.vms, [vm.key for vm in vms])
    return vms


async def perform_maintenance(room: Room, call: Call) -> EventsOnly:
    """Take the platform's pending maintenance of a VM now."""
    vm = room.directory.find(call.names["name"])
    receipt = await room.control.requests.perform_maintenance([vm], who=room.who)
    await room.catch_up()
    return EventsOnly(events=Showing(room).events(room.event(event.id) for event in receipt.events))


async def degrade(room: Room, call: Call, asked: Degrading) -> ReceiptView:
    """Predict that a host will fail: its VMs are to leave it."""
    # Two calls about one host would each decide on a health that the other is changing.
    async with room.control.reconciler.driving:
        receipt = await room.control.requests.degrade(
            call.names["name"], who=room.who, notice_s=asked.in_s, short_notice=asked.short_notice
        )
    return await _receipt(room, receipt.request)


async def fail(room: Room, call: Call) -> ReceiptView:
    """Let a host fail without warning."""
    async with room.control.reconciler.driving:
        receipt = await room.control.requests.fail(call.names["name"], who=room.who)
    return await _receipt(room, receipt.request)


async def repair(room: Room, call: Call) -> HostView:
    """Make a host healthy again."""
    async with room.control.reconciler.driving:
        repaired = await room.control.requests.repair(call.names["name"], who=room.who)
    return Showing(room).host(repaired)


async def _receipt(room: Room, request: Request) -> ReceiptView:
    await room.catch_up()
    events = room.store.events(request_id=request.id)
    return ReceiptView(request=request_view(request), events=Showing(room).events(events), replaced=_replaced(events))


def _replaced(events: list[Event]) -> tuple[str, ...]:
    return tuple(event_id for event in events for event_id in event.replaces)


async def show_request(room: Room, call: Call) -> RequestStanding:
    """How far a request is, and what it waits for."""
    return standing_of(room, room.request(call.names["id"]))


def standing_of(room: Room, request: Request) -> RequestStanding:
    events = events_of_request(room, request)
    planned = room.store.planned(request_id=request.id)
    skipped = any(e.what is What.SKIPPED for e in room.store.history(request_id=request.id)) if not events else False
    showing = Showing(room)
    return RequestStanding(
        request=request_view(request),
        state=state_of(events, to_come=bool(planned) or request.is_open, skipped=skipped),
        events=showing.events(events),
        replaced=_replaced(events),
        waits_for=_waits(showing, events),
    )


def events_of_request(room: Room, request: Request) -> list[Event]:
    """Its own, or those of others that it approved."""
    if request.ask is not Ask.PERFORM_MAINTENANCE:
        return room.store.events(request_id=request.id)
    return [event for event in map(room.store.event, request.approves) if event is not None]


def state_of(events: list[Event], *, to_come: bool, skipped: bool) -> str:
    """How far a request is, read off its events (spec §9); `skipped`: part of it no longer made sense."""
    if any(event.status is Status.STARTED for event in events):
        return "started"
    over = [event for event in events if event.status is Status.OVER]
    if to_come or len(over) < len(events):
        return "started" if any(event.ending is not Ending.WITHDRAWN for event in over) else "waiting"
    endings = {event.ending for event in over}
    if Ending.FAILED in endings or (skipped and not events):
        return "failed"
    return "withdrawn" if endings == {Ending.WITHDRAWN} else "finished"


def _waits(showing: Showing, events: list[Event]) -> tuple[str, ...]:
    told = ((event, showing.wait(event)) for event in events)
    sentences = (f"{event.row.kind or event.row.verb} of {_names(event)}: {wait.text}" for event, wait in told if wait)
    return tuple(dict.fromkeys(sentences))


def _names(event: Event) -> str:
    return ", ".join(event.vms[:3]) + (f" and {len(event.vms) - 3} more" if len(event.vms) > 3 else "")
