"""Calls about the fleet: show it, check and apply a file, add and remove single VMs and hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from forewarn.console.body import FleetApply, FleetQuery, FleetText, NewHost
from forewarn.console.call import Call
from forewarn.console.keeper import shown as keeper_view
from forewarn.console.newcomer import NewVm, file_for
from forewarn.console.refusal import NotApplicable
from forewarn.console.room import Room
from forewarn.console.showing import Showing, events_of
from forewarn.console.views import (
    AppliedView,
    ChangeView,
    CheckedView,
    DifferenceView,
    FieldView,
    FleetView,
    HostView,
    VmView,
    VmWithEvents,
)
from forewarn.control.fleets import FleetChange
from forewarn.core.access import Right
from forewarn.core.difference import Difference, HostChange, VmChange, compare
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Host, Vm
from forewarn.core.fleetfile.naming import fault_in_plain_name
from forewarn.core.proposal import BadFleet, Problem, Proposal, read_fleet
from forewarn.core.resource import EVERYTHING
from forewarn.errors import Forbidden, Refused, Rejected


async def show(room: Room, call: Call, query: FleetQuery) -> FleetView:
    """The hosts, scopes and VMs that the caller may read."""
    await room.house.observe()
    host = room.host(query.host) if query.host else None
    scope = room.scope(query.scope) if query.scope else None

    everyone = [vm for vm in room.store.vms(host=host.name if host else None) if room.sees(vm)]
    vms = [vm for vm in everyone if scope is None or vm.scope_id == scope.id][: query.limit]
    hosts = [host] if host else room.store.hosts()
    if scope is not None or not room.sees_everything():
        known = {vm.host for vm in (everyone if scope is None else vms)}
        hosts = [host for host in hosts if host.name in known]
    return await Showing(room).fleet(hosts, vms, everyone)


async def show_vm(room: Room, call: Call) -> VmWithEvents:
    """One VM, with its pending events."""
    vm = room.directory.find(call.names["name"])
    await room.house.observe()
    showing = Showing(room)
    live = events_of(room.control.desk.scope(vm.scope_id), vm.name)
    shown = showing.vm(vm)
    facts = {name: getattr(shown, name) for name in shown.__struct_fields__}
    keeper = room.house.keepers().get(vm.key)
    kept = keeper_view(vm.name, keeper) if keeper is not None else None
    return VmWithEvents(events=showing.events(live), keeper=kept, **facts)


async def check(room: Room, call: Call, asked: FleetText) -> CheckedView:
    """What applying a fleet file would change."""
    proposal = await asyncio.to_thread(read_fleet, asked.text, source=asked.source)
    async with room.control.reconciler.driving:
        return CheckedView(difference=_shown(await _difference(room, proposal)))


async def apply(room: Room, call: Call, asked: FleetApply) -> AppliedView:
    """Apply a fleet file: all of it, or nothing."""
    proposal = await asyncio.to_thread(read_fleet, asked.text, source=asked.source)
    # Whoever drives moves VMs: what is decided here must not be overtaken by that.
    async with room.control.reconciler.driving:
        difference = await _difference(room, proposal, resurrect=asked.resurrect)
        if not asked.dry_run:
            await _apply(room, difference, f"fleet applied from {asked.source}: {difference.summary()}")
    if not asked.dry_run:
        await room.catch_up()
    return AppliedView(difference=_shown(difference), applied=not asked.dry_run and not difference.is_empty)


async def add_vm(room: Room, call: Call, asked: NewVm) -> VmView:
    """Add a VM."""
    async with room.control.reconciler.driving:
        proposal = _proposed(room, asked)
        key = proposal.vms[0].key
        known = room.store.vm(key)
        if known is not None and known.removed_at is None:
            raise Refused(f"VM {known.name!r} exists already in {known.resource_group!r}: give another name or group")
        # Whoever adds a VM by name means it, also where one of that name was deleted before.
        difference = await _difference(room, proposal, resurrect=True, remove_missing=False)
        if difference.problems:
            raise Refused(f"VM {asked.name!r} cannot be added: {_told(difference.problems)}")
        await _apply(room, difference, f"VM {asked.name} added")
    return Showing(room).vm(room.directory.find(key))


def _proposed(room: Room, asked: NewVm) -> Proposal:
    try:
        return read_fleet(_file_for(asked, room), source="the VM")
    except BadFleet as error:
        raise Rejected(f"VM {asked.name!r} cannot be added: {_told(error.problems)}") from error


def _file_for(asked: NewVm, room: Room) -> str:
    home, subscriptions = room.directory.commonest_home(), room.directory.subscriptions()
    return file_for(asked, room.store, usual_home=home, subscriptions=subscriptions)


def _told(problems: Sequence[Problem]) -> str:
    return "; ".join(f"{problem.what}: {problem.remedy}" for problem in problems)


async def remove_vm(room: Room, call: Call) -> VmView:
    """Remove a VM."""
    async with room.control.reconciler.driving:
        vm = room.directory.find(call.names["name"])
        change = FleetChange(removed=(vm,), text=f"VM {vm.name} removed")
        await room.control.fleets.change(change, who=room.who)
    await room.catch_up()
    return Showing(room).vm(room.store.vm(vm.key) or vm)


async def add_host(room: Room, call: Call, asked: NewHost) -> HostView:
    """Add a host."""
    if fault := fault_in_plain_name(asked.name, limit=64):
        raise Rejected(f"the host name {asked.name!r} {fault}: give a plain name such as 'host-0'")
    host = Host(name=asked.name, location=asked.location, zone=asked.zone)
    async with room.control.reconciler.driving:
        if any(known.name.casefold() == asked.name.casefold() for known in room.store.hosts()):
            raise Refused(f"host {asked.name!r} exists already: give another name")
        await room.control.fleets.change(FleetChange(hosts=(host,), text=f"host {host.name} added"), who=room.who)
    return Showing(room).host(host)


async def remove_host(room: Room, call: Call) -> HostView:
    """Remove a host that no VM is on."""
    async with room.control.reconciler.driving:
        host = room.control.requests.host(call.names["name"])
        staying = room.store.vms(host=host.name)
        if not staying and room.control.placement.crowd(host.name):
            raise Refused(f"host {host.name!r} is where a VM is moving to: wait until its event is over")
        change = FleetChange(removed_hosts=(host.name,), text=f"host {host.name} removed")
        await room.control.fleets.change(change, who=room.who)
    return Showing(room).host(host, ())


async def _difference(
    room: Room, proposal: Proposal, *, resurrect: bool = False, remove_missing: bool = True
) -> Difference:
    hosts, vms, live = room.store.hosts(), room.store.vms(removed=True), _live(room)
    return await asyncio.to_thread(
        compare, proposal, hosts=hosts, vms=vms, live_events=live, resurrect=resurrect, remove_missing=remove_missing
    )


def _live(room: Room) -> list[Event]:
    return room.store.events(statuses=[Status.SCHEDULED, Status.STARTED])


async def _apply(room: Room, difference: Difference, text: str) -> None:
    if difference.problems:
        raise NotApplicable(difference.problems, source=difference.source)
    if difference.is_empty:
        return
    _must_be_trusted_with(difference.vms_to_set, room)
    change = FleetChange(
        hosts=difference.hosts_to_set,
        removed_hosts=tuple(host.name for host in difference.hosts_removed),
        vms=difference.vms_to_set,
        removed=difference.removed,
        text=text,
    )
    await room.control.fleets.change(change, who=room.who)


def _must_be_trusted_with(vms: Sequence[Vm], room: Room) -> None:
    """What a VM runs, it runs on this machine as the service does: whoever names it could read every secret here."""
    if room.principal.may(Right.ADMINISTER, EVERYTHING):
        return
    known = {_running(vm) for vm in room.store.vms()}
    if fresh := [vm for vm in vms if vm.program and _running(vm) not in known]:
        raise Forbidden(
            f"{room.who} does not have the right to say what runs on the service's machine, as the program of VM "
            f"{fresh[0].name!r} would: leave it out, or let an administrator apply this"
        )


def _running(vm: Vm) -> tuple[object, ...]:
    return vm.program, tuple(sorted(vm.environment.items())), vm.directory


def _shown(difference: Difference) -> DifferenceView:
    return DifferenceView(
        source=difference.source,
        summary=difference.summary(),
        is_empty=difference.is_empty,
        hosts_added=_names(difference.hosts_added),
        hosts_changed=tuple(_change(change) for change in difference.hosts_changed),
        hosts_removed=_names(difference.hosts_removed),
        added=_names(difference.added),
        resurrected=_names(difference.resurrected),
        changed=tuple(_change(change) for change in difference.changed),
        removed=_names(difference.removed),
        stay_deleted=_names(difference.stay_deleted),
        unchanged=len(difference.unchanged),
        problems=difference.problems,
        lines=_lines(difference),
    )


def _lines(difference: Difference) -> tuple[str, ...]:
    """For people; none where there is nothing to tell."""
    *told, summary = difference.lines()
    return tuple(told) if difference.is_empty and not difference.problems else (*told, summary)


def _names(things: tuple[Host, ...] | tuple[Vm, ...]) -> tuple[str, ...]:
    return tuple(thing.name for thing in things)


def _change(change: HostChange | VmChange) -> ChangeView:
    fields = tuple(FieldView(field=told.field, old=told.old, new=told.new) for told in change.fields)
    return ChangeView(name=change.old.name, fields=fields)
