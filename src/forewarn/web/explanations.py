"""Calls for the story of a thing: a VM, an event, a host, a scope, a rollout, a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from forewarn.console.call import Call
from forewarn.console.event import events_on, lists
from forewarn.console.fault import story_with_faults
from forewarn.console.maintenance import events_of_request
from forewarn.console.rollout import next_domains
from forewarn.console.room import Room
from forewarn.console.showing import Showing, title_of, title_of_scope
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Host, Vm
from forewarn.core.history import Entry, Sighting, What
from forewarn.core.release import Wait
from forewarn.core.request import Request
from forewarn.core.scope import Scope
from forewarn.core.standing import (
    Course,
    Told,
    called,
    story_of_host,
    story_of_request,
    story_of_rollout,
    story_of_scope,
)
from forewarn.core.story import Asked, Record, Story, story_of_event, story_of_vm
from forewarn.errors import NotFound, Refused

_MOST_EVENTS = 100  # of a VM's life, the newest
_MOST_OVER = 10  # of a host, a scope or a rollout, beside those that are pending
_RECENT = 10_000
T = TypeVar("T")


async def explain(room: Room, call: Call) -> Story:
    """The story of a VM, an event, a host, a scope, a rollout or a request."""
    thing = call.names["thing"]
    await room.house.observe()
    # What the name may mean, the likeliest first.
    if (vm := _found(room.directory.find_any, thing)) is not None:
        return await explain_vm(room, vm)
    if room.sees_everything() and (host := _found(room.host, thing)) is not None:
        return _explain_host(room, host)
    if (scope := _found(room.scope, thing)) is not None:
        return _explain_scope(room, scope)
    if (request := _found(room.request, thing)) is not None:
        return _explain_request(room, request)
    event = _found(room.event, thing)
    rollout = _found(room.rollout, thing) if event is None or not _is_whole(thing, event) else None
    if event is not None and rollout is not None:
        raise Refused(
            f"{thing!r} is ambiguous, event {event.id} and rollout {rollout.id} begin so: give more of the id"
        )
    if event is not None:
        return explain_event(room, event)
    if rollout is not None:
        return _explain_request(room, rollout)
    raise NotFound(
        f"{thing!r} is no VM, host, scope, event, rollout or request: `forewarn fleet show`, "
        "`forewarn events --all` and `forewarn rollout show` list them"
    )


def _is_whole(thing: str, event: Event) -> bool:
    return thing.strip().upper() == event.id


def _found(find: Callable[[str], T], name: str) -> T | None:
    try:
        return find(name)
    except NotFound:
        return None


def _explain_host(room: Room, host: Host) -> Story:
    recent = {event.id: event for event in (*_live(room), *room.store.events(limit=_RECENT))}
    return story_of_host(host, room.store.vms(host=host.name), _told(room, events_on(room, host.name, recent.values())))


def _explain_scope(room: Room, scope: Scope) -> Story:
    told = _told(room, room.store.events(scope_id=scope.id))
    return story_of_scope(_record(room, scope, title_of_scope(scope), [], [], []), told)


def _explain_request(room: Room, request: Request) -> Story:
    events = events_of_request(room, request)
    entries = room.store.history(request_id=request.id)
    rollout = request.rollout
    if rollout is None:
        return story_of_request(request, _told(room, events), entries)
    reach = room.control.rollouts.reach_of(request, rollout)
    tally = room.control.rollouts.tally_of(request, rollout, reach)
    course = Course(tally=tally, next_update_domains=next_domains(room, request, reach))
    return story_of_rollout(request, rollout, course, _told(room, events), entries)


def _live(room: Room) -> list[Event]:
    return room.store.events(statuses=[Status.SCHEDULED, Status.STARTED])


def _told(room: Room, events: Iterable[Event]) -> list[Told]:
    """Those that are pending, and the last ones that are over."""
    listed = list(events)
    over = [event for event in listed if not event.is_live][-_MOST_OVER:]
    return [_told_one(room, event) for event in (*over, *(event for event in listed if event.is_live))]


def _told_one(room: Room, event: Event) -> Told:
    scope = _scope_of(room, event.scope_id)
    sightings = room.store.sightings(event_id=event.id)
    record = _record(room, scope, title_of_scope(scope), [event], _setbacks(room, event), sightings)
    return Told(event=event, record=record)


def _scope_of(room: Room, scope_id: str) -> Scope:
    return room.store.scope(scope_id) or Scope(id=scope_id)


def explain_event(room: Room, event: Event) -> Story:
    scope = _scope_of(room, event.scope_id)
    asked = [entry for entry in room.store.history(request_id=event.request_id) if room.visible.entry(entry)]
    known = {entry.seq: entry for entry in (*asked, *_setbacks(room, event))}
    entries = [*known.values(), *_said_by_service(room)]
    sightings = room.store.sightings(event_id=event.id)
    return story_of_event(event, _record(room, scope, title_of_scope(scope), [event], entries, sightings))


async def explain_vm(room: Room, vm: Vm) -> Story:
    """With the faults that are on for it. The caller has seen to `observe`."""
    return await story_with_faults(room, vm, _explain_vm(room, vm))


def _explain_vm(room: Room, vm: Vm) -> Story:
    scope = _scope_of(room, vm.scope_id)
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
        rollouts=_rollouts(room, events),
    )


def _rollouts(room: Room, events: list[Event]) -> dict[str, str]:
    requests = (room.store.request(request_id) for request_id in {event.request_id for event in events})
    rollouts = ((request, request.rollout) for request in requests if request is not None)
    whole = room.sees_everything()  # its hosts and scopes are others' too
    return {request.id: called(request, of) if whole else "a rollout" for request, of in rollouts if of is not None}


def _waits(room: Room, events: list[Event]) -> dict[str, Wait]:
    showing = Showing(room)
    waits = ((event.id, showing.wait(event)) for event in events)
    return {event_id: wait for event_id, wait in waits if wait is not None}


def _said_by_service(room: Room) -> list[Entry]:
    """What the service said of itself is about no scope, event, request or VM."""
    about_nothing = room.store.history(scope_id="", event_id="", request_id="", vm="")
    return [entry for entry in about_nothing if entry.what is What.SERVICE]
