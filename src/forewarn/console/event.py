"""Calls about events: list and show them, approve and withdraw."""

from __future__ import annotations

from forewarn.console import body
from forewarn.console.call import Call
from forewarn.console.room import Room
from forewarn.console.showing import Showing
from forewarn.console.views import EventsView, EventView
from forewarn.core.event import Event, Status


async def show_all(room: Room, call: Call) -> EventsView:
    query = call.read_query(body.EventsQuery)
    statuses = tuple(Status) if query.all else (Status.SCHEDULED, Status.STARTED)
    vm = room.directory.find_any(query.vm) if query.vm else None
    scope_id = room.scope(query.scope).id if query.scope else None

    seq = room.store.last_seq()
    if vm is None:
        events = room.store.events(scope_id=scope_id, statuses=statuses, limit=query.limit)
    elif scope_id not in (None, vm.scope_id):
        events = []
    else:
        of_scope = room.store.events(scope_id=vm.scope_id, statuses=statuses)
        events = [event for event in of_scope if lists(event, vm.name)][-query.limit :]
    return EventsView(events=Showing(room).events(events), seq=seq)


def lists(event: Event, name: str) -> bool:
    wanted = name.casefold()
    return any(vm.casefold() == wanted for vm in event.vms)


async def show(room: Room, call: Call) -> EventView:
    return Showing(room).event(room.event(call.names["id"]))


async def approve(room: Room, call: Call) -> EventView:
    call.read_body(body.Nothing)
    event = room.event(call.names["id"])
    await room.control.requests.approve(event.id, who=room.who)
    await room.catch_up()
    return Showing(room).event(room.event(event.id))


async def withdraw(room: Room, call: Call) -> EventView:
    asked = call.read_body(body.Withdrawing)
    event = room.event(call.names["id"])
    await room.control.requests.withdraw(event.id, who=room.who, reason=asked.reason)
    await room.catch_up()
    return Showing(room).event(room.event(event.id))
