"""Calls about faults: what is on, setting and clearing, storms; and what they add to the story of a VM."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from forewarn.console.body import Clearing, NewFault, NewStorm
from forewarn.console.call import Call
from forewarn.console.room import Room, must_be_told_once
from forewarn.console.showing import title_of_scope
from forewarn.console.views import (
    ClearedView,
    FaultKindView,
    FaultsView,
    FaultView,
    GustView,
    ParameterView,
    StormView,
)
from forewarn.control.faults import Target, Wish
from forewarn.core.fault import FAULTS, Fault, FaultKind, FaultRow, Sphere, Storm, kind_called
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry, What
from forewarn.core.story import Line, Story, span
from forewarn.errors import NotFound, Rejected

_MOST_LINES = 20
_RECENT = 1000  # events among which those that a fault touched are looked for


async def show_all(room: Room, call: Call) -> FaultsView:
    """The faults and storms that are on, and the kinds that there are."""
    return await read_faults(room)


async def read_faults(room: Room) -> FaultsView:
    await _catch_up(room)
    book = room.control.faults.book
    return FaultsView(
        faults=tuple(_view(room, fault) for fault in book.faults),
        storms=tuple(_storm(room, storm) for storm in book.storms),
        kinds=tuple(_kind(kind, row) for kind, row in FAULTS.items()),
    )


async def set_one(room: Room, call: Call, asked: NewFault) -> FaultView:
    """Set a fault."""
    wish = Wish(
        kind=kind_called(asked.kind),
        target=_target(room, asked),
        count=asked.count,
        for_s=asked.for_s,
        parameters=asked.parameters,
    )
    fault = await room.control.faults.set(wish, who=room.who)
    await room.catch_up()
    return _view(room, fault)


async def clear(room: Room, call: Call, asked: Clearing) -> ClearedView:
    """Clear the faults that every given member fits."""
    if not (asked.ids or asked.kind or asked.vm or asked.scope or asked.all):
        raise Rejected("nothing says which faults to clear: give their ids, a kind, a VM, a scope, or all")
    kind = kind_called(asked.kind) if asked.kind else None
    vm = room.directory.find_any(asked.vm) if asked.vm else None
    scope_id = room.scope(asked.scope).id if asked.scope else ""
    for name in asked.ids:
        _must_be_on(room, name)

    def chosen(fault: Fault) -> bool:
        return (
            (not asked.ids or fault.id in asked.ids)
            and (kind is None or fault.kind is kind)
            and (vm is None or fault.vm == vm.key)
            and (not scope_id or (fault.scope_id == scope_id and not fault.vm))
        )

    only_faults = kind is not None or vm is not None or scope_id
    storms = () if only_faults else (asked.ids or tuple(storm.id for storm in room.control.faults.book.storms))
    return await _cleared(room, chosen, storms)


async def clear_one(room: Room, call: Call) -> ClearedView:
    """Clear one fault, or end a storm."""
    fault_id = call.names["id"]
    _must_be_on(room, fault_id)
    return await _cleared(room, lambda fault: fault.id == fault_id, (fault_id,))


async def start_storm(room: Room, call: Call, asked: NewStorm) -> StormView:
    """Start a storm: a schedule of faults that follows from a seed."""
    vms = [room.directory.find(name) for name in asked.vms]
    must_be_told_once(asked.vms, [vm.key for vm in vms])
    storm = await room.control.storms.start(asked.seed, vms or room.store.vms(), for_s=asked.for_s, who=room.who)
    await room.catch_up()
    return _storm(room, next((s for s in room.control.faults.book.storms if s.id == storm.id), storm))


async def story_with_faults(room: Room, vm: Vm, story: Story) -> Story:
    """The VM's story with the faults that are on for it, and what is on record of earlier ones."""
    await _catch_up(room)
    book = room.control.faults.book
    now = [sentence for fault in book.faults if _is_about(fault, vm) for sentence in _sentences(room, fault, vm)]
    told = sorted(_entries(room, vm), key=lambda entry: entry.seq)[-_MOST_LINES:]
    if not now and not told:
        return story
    lines = [*story.lines, *(Line(at=entry.at, text=entry.text) for entry in reversed(told))]
    return replace(story, lines=tuple(sorted(lines, key=lambda line: -line.at)), now=(*story.now, *now))


async def _catch_up(room: Room) -> None:
    await room.house.observe()
    await room.control.faults.expire()


async def _cleared(room: Room, chosen: Callable[[Fault], bool], storms: tuple[str, ...]) -> ClearedView:
    await room.house.observe()
    ended = await room.control.storms.clear(storms, who=room.who)
    cleared = await room.control.faults.clear(chosen, who=room.who)
    return ClearedView(
        cleared=tuple(_view(room, fault) for fault in cleared), storms=tuple(_storm(room, storm) for storm in ended)
    )


def _target(room: Room, asked: NewFault) -> Target:
    if [bool(asked.vm), bool(asked.scope), asked.all].count(True) != 1:
        raise Rejected("a fault is for a VM, a scope or everything: give one of vm, scope and all")
    if asked.vm:
        vm = room.directory.find(asked.vm)
        return Target(name=vm.name, vm=vm)
    if asked.scope:
        scope = room.scope(asked.scope)
        return Target(name=title_of_scope(scope), scope_id=scope.id)
    return Target()


def _must_be_on(room: Room, name: str) -> None:
    book = room.control.faults.book
    if name not in {*(fault.id for fault in book.faults), *(storm.id for storm in book.storms)}:
        raise NotFound(f"fault {name!r} is not on: `forewarn fault list` lists those that are")


def _view(room: Room, fault: Fault) -> FaultView:
    row = FAULTS[fault.kind]
    return FaultView(
        id=fault.id,
        kind=fault.kind,
        strikes=row.sphere,
        target=fault.name,
        vm=fault.vm_name,
        scope=fault.scope_id,
        who=fault.who,
        set_at=fault.set_at,
        parameters={name: fault.value(name) for name in row.parameters},
        count=fault.count,
        left=fault.left,
        left_s=_left_s(room, fault),
        touched=fault.touched,
        touched_at=fault.touched_at,
        events=() if row.sphere is Sphere.TRANSPORT else _events(room, fault),
        seen=row.seen,
    )


def _events(room: Room, fault: Fault) -> tuple[str, ...]:
    """Of those in the last while that it touched."""
    recent = room.store.events(scope_id=fault.scope_id or None, limit=_RECENT)
    return tuple(event.id for event in recent if fault.id in event.faults)


def _left_s(room: Room, fault: Fault) -> float | None:
    if fault.until is None:
        return None
    now = room.control.faults.real_time() if fault.sphere is Sphere.TRANSPORT else room.now()
    return max(0.0, fault.until - now)


def _storm(room: Room, storm: Storm) -> StormView:
    gusts = [
        GustView(
            after_s=gust.after_s,
            kind=gust.kind,
            vm=vm.name if (vm := room.store.vm(gust.vm)) else gust.vm,
            count=gust.count,
            for_s=gust.for_s,
            parameters=gust.parameters,
            is_set=number < storm.gone,
        )
        for number, gust in enumerate(storm.gusts)
    ]
    return StormView(
        id=storm.id, seed=storm.seed, who=storm.who, set_at=storm.set_at, for_s=storm.for_s, gusts=tuple(gusts)
    )


def _kind(kind: FaultKind, row: FaultRow) -> FaultKindView:
    parameters = {
        name: ParameterView(default=value.default, least=value.least, most=value.most)
        for name, value in row.parameters.items()
    }
    return FaultKindView(kind=kind, strikes=row.sphere, seen=row.seen, parameters=parameters, longest_s=row.longest_s)


def _is_about(fault: Fault, vm: Vm) -> bool:
    return fault.covers(scope_id=vm.scope_id, vm=vm.key)


def _sentences(room: Room, fault: Fault, vm: Vm) -> Iterator[str]:
    left_s = _left_s(room, fault)
    parts = [f"it began {span(room.now() - fault.set_at)} ago"]
    parts += [f"it ends in {span(left_s)}"] if left_s is not None else []
    parts += [f"{fault.left} more of {fault.count}"] if fault.count is not None else []
    yield f"Fault {fault.id} ({fault.kind}) is on for {fault.name}, set by {fault.who}: {', '.join(parts)}."
    if fault.sphere is Sphere.TRANSPORT:
        touched = fault.touched_by_vm.get(vm.key, 0)
        last = f", the last {span(room.now() - fault.touched_at)} ago" if fault.touched_at and touched else ""
        yield f"It has touched {touched} request{'' if touched == 1 else 's'} of {vm.name}{last}."
    elif fault.touched:
        yield f"It has touched {fault.touched} event{'' if fault.touched == 1 else 's'}."


def _entries(room: Room, vm: Vm) -> Iterator[Entry]:
    """Entries about faults of this VM, of its scope, and of everything."""
    own = room.store.history(scope_id=vm.scope_id, vm=vm.name)
    shared = room.store.history(scope_id=vm.scope_id, vm="")
    about_nothing = room.store.history(scope_id="", event_id="", request_id="", vm="")
    everybodys = filter(room.visible.entry, about_nothing)
    for entry in (*own, *shared, *everybodys):
        if entry.what is What.FAULT:
            yield entry
