"""Calls about the record: read it, follow it, prune it, have it explained."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from forewarn.console import body
from forewarn.console.call import Call
from forewarn.console.event import lists
from forewarn.console.fault import story_with_faults
from forewarn.console.room import Room
from forewarn.console.showing import Showing, title_of, title_of_scope
from forewarn.console.views import EntryView, HistoryView, PrunedView
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry, Sighting, What
from forewarn.core.release import Wait
from forewarn.core.scope import Scope
from forewarn.core.story import Asked, Record, Story, story_of_event, story_of_vm
from forewarn.errors import NotFound, Rejected
from forewarn.store.seam import Committed

_DAY_S = 86400  # spec §5.2: events that are over are kept this long at least
_MOST_EVENTS = 100  # of a VM's life, the newest


async def show(room: Room, call: Call) -> HistoryView:
    query = call.read_query(body.HistoryQuery)
    wanted = _wanted(room, query)
    if query.wait_s:
        await _until_newer(room, query, wanted)
    return _page(room, query, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which entries are meant."""

    like: dict[str, Any]  # what they have in common
    shared: tuple[str, ...] = ()  # events of several VMs, one of which is meant: their entries name none


def _wanted(room: Room, query: body.HistoryQuery) -> _Wanted:
    like: dict[str, Any] = {}
    if query.scope:
        like["scope_id"] = room.scope(query.scope).id
    if query.event:
        like["event_id"] = room.event(query.event).id
    if query.request:
        like["request_id"] = room.request(query.request).id
    if not query.vm:
        return _Wanted(like=like)
    vm = room.directory.find_any(query.vm)
    shared = [e.id for e in room.store.events(scope_id=vm.scope_id) if len(e.vms) > 1 and lists(e, vm.name)]
    return _Wanted(like={**like, "vm": vm.name}, shared=tuple(shared[-_MOST_EVENTS:]))


def _read(room: Room, wanted: _Wanted, after: int, limit: int) -> list[Entry]:
    found = room.store.history(after=after, limit=limit, **wanted.like)
    for event_id in wanted.shared:
        if wanted.like.get("event_id", event_id) == event_id:
            alike = {**wanted.like, "event_id": event_id, "vm": ""}
            found += room.store.history(after=after, limit=limit, **alike)
    return sorted(found, key=lambda entry: entry.seq)[-limit:] if wanted.shared else found


def _page(room: Room, query: body.HistoryQuery, wanted: _Wanted) -> HistoryView:
    """With `after` the oldest ones since, so that whoever follows misses none; else the newest ones."""
    seq = room.store.last_seq()
    if query.after is None:
        entries = _read(room, wanted, 0, query.limit)
    else:
        # No more can have been written than there are numbers since.
        entries = _read(room, wanted, query.after, max(seq - query.after, query.limit))
        if len(entries) > query.limit:
            entries = entries[: query.limit]
            seq = entries[-1].seq
    last = max(seq, entries[-1].seq) if entries else seq
    return HistoryView(entries=tuple(EntryView.of(entry) for entry in entries), seq=last)


async def _until_newer(room: Room, query: body.HistoryQuery, wanted: _Wanted) -> None:
    """Until there is something to show, the time is over (real time, spec §12), or the service stops."""
    news = asyncio.Event()

    def hear(committed: Committed) -> None:
        if committed.commit.entries:
            news.set()

    stop = room.store.subscribe(hear)
    closing = asyncio.create_task(room.house.closing.wait())
    try:
        async with asyncio.timeout(query.wait_s):
            while not room.house.closing.is_set() and not _has_newer(room, query, wanted):
                news.clear()
                await _first_of(closing, news)
    except TimeoutError:
        pass
    finally:
        stop()
        closing.cancel()


def _has_newer(room: Room, query: body.HistoryQuery, wanted: _Wanted) -> bool:
    return bool(_read(room, wanted, query.after or 0, 1))


async def _first_of(closing: asyncio.Task[Any], news: asyncio.Event) -> None:
    waiter = asyncio.create_task(news.wait())
    try:
        await asyncio.wait({closing, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def prune(room: Room, call: Call) -> PrunedView:
    asked = call.read_body(body.Pruning)
    if not asked.older_than_s >= _DAY_S:
        raise Rejected(
            f"history of the last {_DAY_S} s is kept, so what is older than {asked.older_than_s:g} s cannot be pruned: "
            f"give {_DAY_S} s or more"
        )
    return PrunedView(pruned=await room.store.prune(room.now() - asked.older_than_s))


async def explain(room: Room, call: Call) -> Story:
    thing = call.names["thing"]
    await room.house.observe()
    try:
        vm = room.directory.find_any(thing)
    except NotFound:
        return _explain_event(room, _event(room, thing))
    return await story_with_faults(room, vm, _explain_vm(room, vm))


def _event(room: Room, thing: str) -> Event:
    try:
        return room.event(thing)
    except NotFound:
        raise NotFound(
            f"{thing!r} is neither a VM nor an event: `forewarn fleet show` and `forewarn events --all` list them"
        ) from None


def _explain_event(room: Room, event: Event) -> Story:
    scope = room.store.scope(event.scope_id) or Scope(id=event.scope_id)
    asked = room.store.history(request_id=event.request_id)
    known = {entry.seq: entry for entry in (*asked, *_setbacks(room, event))}
    entries = [*known.values(), *_said_by_service(room)]
    sightings = room.store.sightings(event_id=event.id)
    return story_of_event(event, _record(room, scope, title_of_scope(scope), [event], entries, sightings))


def _explain_vm(room: Room, vm: Vm) -> Story:
    scope = room.store.scope(vm.scope_id) or Scope(id=vm.scope_id)
    events = [event for event in room.store.events(scope_id=vm.scope_id) if lists(event, vm.name)][-_MOST_EVENTS:]
    sightings = [sighting for event in events for sighting in room.store.sightings(event_id=event.id)]
    setbacks = [entry for event in events if event.status is Status.STARTED for entry in _setbacks(room, event)]
    entries = [*setbacks, *_said_by_service(room)]
    return story_of_vm(vm, events, _record(room, scope, title_of(vm), events, entries, sightings))


def _setbacks(room: Room, event: Event) -> list[Entry]:
    """Where a hypervisor did not do at once what the event owes."""
    return [entry for entry in room.store.history(event_id=event.id) if entry.what is What.RETRIED]


def _record(
    room: Room, scope: Scope, title: str, events: list[Event], entries: list[Entry], sightings: list[Sighting]
) -> Record:
    names = {vm.key: vm.name for vm in room.store.vms(scope_id=scope.id, removed=True)}
    polls = room.store.polls(scope_id=scope.id)
    return Record(
        now=room.now(),
        scope=scope,
        title=title,
        polls=[Asked(vm=names.get(p.vm, p.vm), at=p.at, version=p.version) for p in polls],
        sightings=sightings,
        entries=entries,
        waits=_waits(room, events),
        names=names,
    )


def _waits(room: Room, events: list[Event]) -> dict[str, Wait]:
    showing = Showing(room)
    waits = ((event.id, showing.wait(event)) for event in events)
    return {event_id: wait for event_id, wait in waits if wait is not None}


def _said_by_service(room: Room) -> list[Entry]:
    """What the service said of itself is about no scope, event, request or VM."""
    about_nothing = room.store.history(scope_id="", event_id="", request_id="", vm="")
    return [entry for entry in about_nothing if entry.what is What.SERVICE]
