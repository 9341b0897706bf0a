"""The page of one VM: how it is, where it can be asked from, its events, its story, and what may be asked for."""

from __future__ import annotations

from forewarn.console.call import Call
from forewarn.console.event import lists
from forewarn.console.explanation import explain_vm
from forewarn.console.fault import read_faults
from forewarn.console.keeper import shown as keeper_view
from forewarn.console.portal.formlink import FormLink, forms_for_vm
from forewarn.console.portal.page import Table
from forewarn.console.room import Room
from forewarn.console.showing import Showing
from forewarn.console.views import EventView, FaultView, KeeperView, View, VmView
from forewarn.core.event import Status
from forewarn.core.fleet import Vm
from forewarn.core.resource import resource_of
from forewarn.core.story import Story
from forewarn.core.vmstate import vm_state
from forewarn.protocol.versions import NEWEST

_LOOKED_THROUGH = 500  # events of its scope that are over
_MOST_OVER = 20


class VmPage(View, frozen=True, kw_only=True):
    vm: VmView
    state: str
    resource: str
    removed_at: float | None
    poll: str  # a command that asks as the VM does; "" where that cannot be done from outside
    forms: tuple[FormLink, ...]
    events: tuple[EventView, ...]
    over: tuple[EventView, ...]  # newest first
    faults: tuple[FaultView, ...]  # for those who see everything
    keeper: KeeperView | None
    story: Story

    def table(self) -> Table:
        return events_table((*self.events, *self.over))


async def show(room: Room, call: Call) -> VmPage:
    """One VM, also one that is gone."""
    vm = room.directory.find_any(call.names["name"])
    await room.house.observe()
    story = await explain_vm(room, vm)
    faults = await _faults(room, vm)
    scope = room.store.scope(vm.scope_id)
    showing = Showing(room)
    view = showing.vm(vm)
    live = [event for event in scope.live() if lists(event, vm.name)] if scope is not None else []
    past = room.store.events(scope_id=vm.scope_id, statuses=[Status.OVER], limit=_LOOKED_THROUGH)
    over = [event for event in reversed(past) if lists(event, vm.name)][:_MOST_OVER]
    keeper = room.house.keepers().get(vm.key)
    return VmPage(
        vm=view,
        state=vm_state(vm, scope.live() if scope is not None else ()),
        resource=resource_of(vm),
        removed_at=vm.removed_at,
        poll=_poll(view) if vm.removed_at is None else "",
        forms=forms_for_vm(room, vm, scope),
        events=showing.events(live),
        over=showing.events(over),
        faults=faults,
        keeper=keeper_view(vm.name, keeper) if keeper is not None else None,
        story=story,
    )


def _poll(vm: VmView) -> str:
    return f"curl -H Metadata:true '{vm.url}?api-version={NEWEST}'" if vm.url else ""


async def _faults(room: Room, vm: Vm) -> tuple[FaultView, ...]:
    """Those that are on for it, as the API lists them: for those who may read everything."""
    if not room.sees_everything():
        return ()
    book = room.control.faults.book
    about_it = {fault.id for fault in book.faults if fault.covers(scope_id=vm.scope_id, vm=vm.key)}
    return tuple(one for one in (await read_faults(room)).faults if one.id in about_it) if about_it else ()


def events_table(events: tuple[EventView, ...]) -> Table:
    columns = (
        "id",
        "kind",
        "VMs",
        "status",
        "ending",
        "published at",
        "not before",
        "approved by",
        "started at",
        "over at",
    )
    rows = [
        (
            e.id,
            e.kind or e.verb,
            " ".join(e.vms),
            e.status,
            e.ending,
            e.published_at,
            e.not_before,
            e.approved_by,
            e.started_at,
            e.over_at,
        )
        for e in events
    ]
    return Table(columns=columns, rows=rows)
