"""The page of one scope: its VMs by update and fault domain, its events, and the document that they are given."""

from __future__ import annotations

import json

from forewarn.console.call import Call
from forewarn.console.portal.context import PortalContext
from forewarn.console.portal.formlink import FormLink, forms_for_scope
from forewarn.console.portal.page import Table
from forewarn.console.portal.picture import BlockView, block_view
from forewarn.console.showing import Showing, title_of_scope
from forewarn.console.views import EventView, View
from forewarn.core.event import Status
from forewarn.core.fleet import Vm
from forewarn.core.projection import document_for
from forewarn.core.scope import Scope
from forewarn.protocol.codec import encode
from forewarn.protocol.versions import NEWEST
from forewarn.store.seam import Polled

_MOST_OVER = 20
_MOST_GONE = 20


class Member(View, frozen=True, kw_only=True):
    key: str
    name: str
    state: str
    update_domain: int
    fault_domain: int
    host: str
    last_polled_at: float | None
    polled_version: str | None
    polls: int
    is_silent: bool  # it has not asked in the last minute


class Departed(View, frozen=True, kw_only=True):
    key: str
    name: str
    removed_at: float


class ScopePage(View, frozen=True, kw_only=True):
    id: str
    title: str
    enabled: bool
    enabled_at: float | None
    epoch: int
    incarnation: int
    forms: tuple[FormLink, ...]
    block: BlockView
    vms: tuple[Member, ...]
    gone: tuple[Departed, ...]  # the last ones first
    events: tuple[EventView, ...]
    over: tuple[EventView, ...]  # newest first
    api_version: str
    document: str  # as its VMs see it now

    def table(self) -> Table:
        columns = Member.__struct_fields__
        return Table(columns=columns, rows=[[getattr(vm, name) for name in columns] for vm in self.vms])


async def show(room: PortalContext, call: Call) -> ScopePage:
    """One scope, by its id, its name or a VM of it."""
    await room.house.observe()
    scope = room.scope(call.names["id"])
    polls = {polled.vm: polled for polled in room.store.polls(scope_id=scope.id)}
    vms = [vm for vm in scope.present if room.sees(vm)]
    over = room.store.events(scope_id=scope.id, statuses=[Status.OVER], limit=_MOST_OVER)
    showing = Showing(room)
    title = title_of_scope(scope)
    return ScopePage(
        id=scope.id,
        title=title,
        enabled=scope.is_enabled,
        enabled_at=scope.enabled_at,
        epoch=scope.epoch,
        incarnation=scope.incarnation,
        forms=forms_for_scope(room),
        block=block_view([scope], vms, {vm.key for vm in vms}, room.house.pace, room.overview, title=title),
        vms=tuple(_member(room, vm, polls.get(vm.key)) for vm in vms),
        gone=_gone(room, scope),
        events=showing.events(scope.live()),
        over=showing.events(reversed(over)),
        api_version=NEWEST,
        document=_document(scope),
    )


def _member(room: PortalContext, vm: Vm, polled: Polled | None) -> Member:
    pace = room.house.pace(vm.key)
    return Member(
        key=vm.key,
        name=vm.name,
        state=room.overview.state_of(vm.key),
        update_domain=vm.update_domain,
        fault_domain=vm.fault_domain,
        host=vm.host,
        last_polled_at=polled.at if polled else None,
        polled_version=polled.version if polled else None,
        polls=polled.count if polled else 0,
        is_silent=pace is None or pace.is_silent,
    )


def _gone(room: PortalContext, scope: Scope) -> tuple[Departed, ...]:
    once = [vm for vm in room.store.vms(scope_id=scope.id, removed=True) if room.sees(vm)]
    gone = [Departed(key=vm.key, name=vm.name, removed_at=vm.removed_at) for vm in once if vm.removed_at is not None]
    return tuple(sorted(gone, key=lambda vm: vm.removed_at, reverse=True)[:_MOST_GONE])


def _document(scope: Scope) -> str:
    """Its members and their order are those of the answer; only the layout is for readers."""
    return json.dumps(json.loads(encode(document_for(scope), NEWEST)), indent=2)
