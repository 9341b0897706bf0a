"""One event, whole: what it is and waits for, who was given it, its story, what every api-version shows of it."""

from __future__ import annotations

from collections.abc import Iterator

from forewarn.console.call import Call
from forewarn.console.explanation import explain_event
from forewarn.console.over import named_event
from forewarn.console.portal.axis import Window, iso
from forewarn.console.portal.drawing import LEGEND, Chart, chart_of
from forewarn.console.portal.lane import Lane
from forewarn.console.portal.page import Table
from forewarn.console.portal.timeline import drawn_alone, lane_for
from forewarn.console.portal.wire import OnTheWire, on_the_wire
from forewarn.console.room import Room
from forewarn.console.showing import Showing
from forewarn.console.views import EventView, View
from forewarn.core.access import Right
from forewarn.core.event import Act, Event, Status
from forewarn.core.fleet import key_in_scope
from forewarn.core.history import Sighting
from forewarn.core.resource import EVERYTHING
from forewarn.core.story import Story

_MOST_VMS = 500
_MARGIN = 0.06  # of the bar, on either side
_SHORTEST_S = 60.0


class VmLine(View, frozen=True, kw_only=True):
    """What the event was and is to one VM."""

    name: str
    key: str
    is_hit: bool  # else only told, as a member of the scope
    is_known: bool  # whether the visitor may look at it
    given_at: float | None  # as Scheduled, for the first time
    version: str  # it was first given in
    given_started_at: float | None
    verb: str  # of its act; "": none is owed yet
    ok: bool | None
    performed_at: float | None
    note: str

    @property
    def outcome(self) -> str:
        if not self.verb:
            return ""
        return {None: "under way", True: "performed", False: "failed"}[self.ok]


class EventPage(View, frozen=True, kw_only=True):
    now: float
    event: EventView
    lane: Lane
    faults: tuple[str, ...]  # that touched it, for those who may know
    gate: str  # how it starts with others; "": by itself
    request_path: str  # "": not for the visitor to see
    vms: tuple[VmLine, ...]
    more_vms: int
    story: Story
    wire: OnTheWire
    may_approve: bool
    may_withdraw: bool

    def chart(self) -> Chart:
        return chart_of([self.lane], _window(self.lane, self.now), self.now, banded=False)

    def svg(self) -> str:
        return drawn_alone(chart_of([self.lane], _window(self.lane, self.now), self.now))

    def table(self) -> Table:
        return Table(columns=_COLUMNS, rows=[_row(vm) for vm in self.vms])

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        return LEGEND


async def show(room: Room, call: Call) -> EventPage:
    """An event, by its id or the beginning of it."""
    await room.house.observe()
    event = room.event(call.names["id"])
    showing = Showing(room)
    vms = list(_vm_lines(room, event))
    is_open = event.status is Status.SCHEDULED
    return EventPage(
        now=room.now(),
        event=showing.event(event),
        lane=lane_for(showing, event),
        faults=event.faults if room.sees_everything() else (),
        gate=_gate(room, event),
        request_path=_request_path(room, event),
        vms=tuple(vms[:_MOST_VMS]),
        more_vms=max(0, len(vms) - _MOST_VMS),
        story=explain_event(room, event),
        wire=on_the_wire(event, showing.scope_of(event.scope_id), room.house.rules_for),
        may_approve=is_open and event.approved_at is None and _may_approve(room, event),
        may_withdraw=is_open and room.principal.may(Right.PLATFORM, EVERYTHING),
    )


def _may_approve(room: Room, event: Event) -> bool:
    return room.principal.may_all(Right.APPROVE, named_event(room, Call(names={"id": event.id})))


def _gate(room: Room, event: Event) -> str:
    gate = room.store.gate(event.gate_id) if event.gate_id else None
    if gate is None:
        return ""
    opened = "the gate is closed" if gate.released_at is None else f"the gate opened at {iso(gate.released_at)}"
    return f"together with whatever else is on host {gate.host}; {opened}"


def _request_path(room: Room, event: Event) -> str:
    request = room.store.request(event.request_id)
    if request is None or not room.visible.request(request):
        return ""
    return f"/portal/{'rollouts' if request.rollout is not None else 'requests'}/{request.id}"


def _vm_lines(room: Room, event: Event) -> Iterator[VmLine]:
    """Those that it hits, then those of the scope that were told of it only."""
    there = {vm.key: vm for vm in room.store.vms(scope_id=event.scope_id, removed=True)}
    acts = {act.vm: act for act in event.acts}
    seen: dict[str, list[Sighting]] = {}
    for sighting in sorted(room.store.sightings(event_id=event.id), key=lambda s: s.at):
        seen.setdefault(sighting.vm, []).append(sighting)

    hit = {key_in_scope(event.scope_id, name): name for name in event.vms}
    for key in dict.fromkeys((*hit, *seen)):
        vm = there.get(key)
        name = hit.get(key) or (vm.name if vm else key)
        is_known = vm is not None and room.sees(vm)
        yield _vm_line(name, key, key in hit, is_known, seen.get(key, []), acts.get(key))


def _vm_line(name: str, key: str, is_hit: bool, is_known: bool, seen: list[Sighting], act: Act | None) -> VmLine:
    given = next((s for s in seen if s.status == Status.SCHEDULED), None)
    started = next((s for s in seen if s.status == Status.STARTED), None)
    outcome = act.outcome if act else None
    return VmLine(
        name=name,
        key=key,
        is_hit=is_hit,
        is_known=is_known,
        given_at=given.at if given else None,
        version=seen[0].version if seen else "",
        given_started_at=started.at if started else None,
        verb=act.verb if act else "",
        ok=outcome.ok if outcome else None,
        performed_at=outcome.at if outcome else None,
        note=outcome.note if outcome else "",
    )


def _window(lane: Lane, now: float) -> Window:
    until = max(lane.ends_at(now), lane.not_before)
    margin = max((until - lane.published_at) * _MARGIN, _SHORTEST_S / 2)
    return Window(since=lane.published_at - margin, until=until + margin)


_COLUMNS = ("vm", "hit", "given_at", "version", "given_as_started_at", "act", "outcome", "performed_at", "note")


def _row(vm: VmLine) -> list[object]:
    instants = [None if at is None else iso(at) for at in (vm.given_at, vm.given_started_at, vm.performed_at)]
    return [
        vm.key,
        "yes" if vm.is_hit else "no",
        instants[0],
        vm.version,
        instants[1],
        vm.verb,
        vm.outcome,
        instants[2],
        vm.note,
    ]
