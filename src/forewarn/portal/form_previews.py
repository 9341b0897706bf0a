"""What a form would do, in sentences, where no preview of the API tells it. Refuses what would be refused anyway."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from forewarn.console.body import Advancing, Clearing, NewFault, NewStorm, Speed
from forewarn.console.call import Call
from forewarn.console.room import Room
from forewarn.console.showing import title_of_scope, title_of_scope_id
from forewarn.core import lifecycle
from forewarn.core.event import Event, Status
from forewarn.core.fault import FAULTS, Sphere, checked, kind_called, lasting_s
from forewarn.core.planning import pending_platform_events
from forewarn.core.release import Reason, waits_for
from forewarn.core.scope import Scope
from forewarn.core.story import span
from forewarn.errors import Refused

Foresight = Callable[[Room, Call], list[str]]
_NAMED = 3
_LOOKED_THROUGH = 20_000  # events


def of_performing(room: Room, call: Call) -> list[str]:
    vm = room.directory.find(call.names["name"])
    scope = room.control.desk.scope(vm.scope_id)
    return [sentence for event in pending_platform_events(scope, vm.name) for sentence in _approved(room, scope, event)]


def of_approving(room: Room, call: Call) -> list[str]:
    event = room.event(call.names["id"])
    if not event.is_live:
        raise Refused(f"event {event.id} is over ({event.ending}): there is nothing to approve")
    if event.status is Status.STARTED:
        return [f"{_title(event)} has started already: an approval changes nothing."]
    return _approved(room, room.control.desk.scope(event.scope_id), event)


def _approved(room: Room, scope: Scope, event: Event) -> list[str]:
    """What it would wait for, were it approved now."""
    if event.approved_at is not None:
        return [f"{_title(event)} is approved already, by {event.approved_by}."]
    now = room.now()
    wait = waits_for(scope, replace(event, approved_at=now), room.control.desk.around())
    early = f"{span(event.not_before - now)} before its notice ends" if event.not_before > now else "at once"
    if wait is None:
        return [f"{_title(event)} starts now, {early}."]
    until = f", for {span(wait.until - now)} at most" if wait.until is not None and wait.until > now else ""
    if wait.reason is Reason.GATE:
        return [
            f"{_title(event)} is approved, and waits for the other VMs on host {event.host}: "
            "it starts at once if all of them are ready."
        ]
    return [f"{_title(event)} is approved, and then waits for {wait.text}{until}."]


def of_withdrawing(room: Room, call: Call) -> list[str]:
    event = room.event(call.names["id"])
    scope = room.control.desk.scope(event.scope_id)
    lifecycle.withdraw(scope, scope.event(event.id) or event, by=room.who, reason="", now=room.now())
    given = room.store.sightings(event_id=event.id)
    told = f"{len({sighting.vm for sighting in given})} VMs were given it" if given else "no VM was given it yet"
    return [f"{_title(event)} does not happen. Its VMs see that it is gone ({told}), and undo what they prepared."]


def of_steering(what_follows: str) -> Foresight:
    def foresee(room: Room, call: Call) -> list[str]:
        request = room.rollout(call.names["id"])
        one = request.rollout
        assert one is not None
        tally = room.control.rollouts.tally_of(request, one)
        over = title_of_scope_id(one.scope_id) if one.scope_id else ", ".join(one.hosts[:_NAMED])
        done = f"{tally.done} of {tally.total} VMs done, {tally.started} started, {tally.scheduled} scheduled"
        return [f"Rollout {request.id[:8]} ({one.impact} over {over}): {done}, {tally.waiting} waiting.", what_follows]

    return foresee


def of_repairing(room: Room, call: Call) -> list[str]:
    host = room.control.requests.host(call.names["name"])
    return [f"Host {host.name} is {host.health}, and would be healthy: VMs may move to it again."]


def of_fault(room: Room, call: Call) -> list[str]:
    asked = call.read_body(NewFault)
    kind = kind_called(asked.kind)
    row, lasts_s = FAULTS[kind], lasting_s(kind, asked.count, asked.for_s)
    checked(kind, asked.parameters)
    if asked.vm:
        whom = f"VM {room.directory.find(asked.vm).name}"
    else:
        whom = title_of_scope(room.scope(asked.scope)) if asked.scope else "every VM"
    things = "requests" if row.sphere is Sphere.TRANSPORT else "events"
    sentences = [f"{kind} for {whom}. Clients see: {row.seen.replace('`', '')}."]
    if row.sphere is Sphere.AT_ONCE:
        return [*sentences, "It happens once, at once."]
    parts = [f"the next {asked.count} {things}"] if asked.count else []
    parts += (
        [f"{span(lasts_s)} {'of real time' if row.sphere is Sphere.TRANSPORT else 'of lab time'}"] if lasts_s else []
    )
    return [*sentences, f"It lasts for {' or '.join(parts)}." if parts else "It stays until it is cleared."]


def of_clearing(room: Room, call: Call) -> list[str]:
    asked = call.read_body(Clearing)
    book = room.control.faults.book
    if asked.all and not (asked.ids or asked.kind or asked.vm or asked.scope):
        return [f"All {len(book.faults)} faults and {len(book.storms)} storms are cleared."]
    parts = [*(f"of kind {asked.kind}" for _ in asked.kind[:1]), *(f"for {asked.vm}" for _ in asked.vm[:1])]
    named = f"{', '.join(asked.ids)}" if asked.ids else "Faults"
    return [f"{named} {' '.join(parts)}".strip() + ": cleared. Storms that have begun leave the faults they have set."]


def of_storm(room: Room, call: Call) -> list[str]:
    asked = call.read_body(NewStorm)
    vms = [room.directory.find(name).name for name in asked.vms]
    whom = ", ".join(vms[:_NAMED]) + (f" and {len(vms) - _NAMED} more" if len(vms) > _NAMED else "") or "every VM"
    return [f"Faults hit {whom} for {span(asked.for_s)} of lab time, as seed {asked.seed} has it."]


def of_stopping(room: Room, call: Call) -> list[str]:
    replay = room.control.replays.find(call.names["id"]).replay
    assert replay is not None
    return [
        f"The replay for {replay.name} ends, {replay.done} of {replay.steps} steps shown: its scope sees its own again."
    ]


def of_advancing(room: Room, call: Call) -> list[str]:
    room.control.labtime.lab_clock("advanced")
    by_s = call.read_body(Advancing).by_s
    until = room.now() + by_s
    scheduled = room.store.events(statuses=[Status.SCHEDULED], limit=_LOOKED_THROUGH)
    due = [event for event in scheduled if event.not_before <= until and room.sees_scope(event.scope_id)]
    sentences = [f"Lab time goes ahead by {span(by_s)}."]
    if not due:
        return [*sentences, "No event's notice ends on the way."]
    first = ", ".join(_title(event) for event in due[:_NAMED])
    more = f" and {len(due) - _NAMED} more" if len(due) > _NAMED else ""
    return [*sentences, f"The notice of {len(due)} event{'s' if len(due) > 1 else ''} ends on the way: {first}{more}."]


def of_speed(room: Room, call: Call) -> list[str]:
    room.control.labtime.lab_clock("set to another speed")
    speed = call.read_body(Speed).speed
    if speed == 0:
        return ["Lab time stands still until it is set going or advanced."]
    return [
        "Lab time runs as real time does." if speed == 1 else f"Lab time runs {speed:g} times as fast as real time."
    ]


def _title(event: Event) -> str:
    names = ", ".join(event.vms[:_NAMED]) + (f" and {len(event.vms) - _NAMED} more" if len(event.vms) > _NAMED else "")
    return f"{event.row.kind or event.row.verb} of {names}"
