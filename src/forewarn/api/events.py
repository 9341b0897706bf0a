"""Calls about events: list and show them, approve and withdraw."""

from __future__ import annotations

from collections.abc import Iterable

from forewarn.console.body import EventsQuery, Withdrawing
from forewarn.console.call import Call
from forewarn.console.room import Room
from forewarn.console.showing import Showing
from forewarn.console.views import EventsView, EventView
from forewarn.core.event import Event, Status

_LOOKED_THROUGH = 20_000  # events, for somebody who may not see all of them


async def show_all(room: Room, call: Call, query: EventsQuery) -> EventsView:
    """The events under way, or all of them."""
    seq = room.store.last_seq()
    return EventsView(events=Showing(room).events(_listed(room, query)), seq=seq)


def _listed(room: Room, query: EventsQuery) -> list[Event]:
    statuses = tuple(Status) if query.all else (Status.SCHEDULED, Status.STARTED)
    vm = room.directory.find_any(query.vm) if query.vm else None
    scope_id = room.scope(query.scope).id if query.scope else None
    request_id = room.rollout(query.rollout).id if query.rollout else None
    host = room.host(query.host).name if query.host else None

    if vm is not None and scope_id not in (None, vm.scope_id):
        return []
    within = vm.scope_id if vm is not None else scope_id
    picky = vm is not None or host is not None
    looked_through = query.limit if room.sees_everything() else max(query.limit, _LOOKED_THROUGH)
    events = room.store.events(
        scope_id=within, request_id=request_id, statuses=statuses, limit=None if picky else looked_through
    )
    events = [event for event in events if room.sees_scope(event.scope_id)]
    if vm is not None:
        events = [event for event in events if lists(event, vm.name)]
    if host is not None:
        events = events_on(room, host, events)
    return events[-query.limit :]


def events_on(room: Room, host: str, events: Iterable[Event]) -> list[Event]:
    """Those whose work is on this host, and those that hit a VM that is on it now."""
    there = {(vm.scope_id, vm.name.casefold()) for vm in room.store.vms(host=host)}
    return [e for e in events if e.host == host or any((e.scope_id, name.casefold()) in there for name in e.vms)]


def lists(event: Event, name: str) -> bool:
    wanted = name.casefold()
    return any(vm.casefold() == wanted for vm in event.vms)


async def show(room: Room, call: Call) -> EventView:
    """One event, by its id or the beginning of it."""
    await room.house.observe()
    return Showing(room).event(room.event(call.names["id"]))


async def approve(room: Room, call: Call) -> EventView:
    """Say that an event may start."""
    event = room.event(call.names["id"])
    await room.house.observe()
    await room.control.requests.approve(event.id, who=room.who)
    await room.catch_up()
    return Showing(room).event(room.event(event.id))


async def withdraw(room: Room, call: Call, asked: Withdrawing) -> EventView:
    """Take an event back before it starts."""
    event = room.event(call.names["id"])
    await room.house.observe()
    await room.control.requests.withdraw(event.id, who=room.who, reason=asked.reason)
    await room.catch_up()
    return Showing(room).event(room.event(event.id))
