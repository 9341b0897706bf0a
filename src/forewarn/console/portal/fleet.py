"""The page of the whole fleet: how many VMs are how, and a page of them as cells."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Annotated

from msgspec import Meta

from forewarn.console.body import Strict
from forewarn.console.call import Call
from forewarn.console.portal.context import PortalContext
from forewarn.console.portal.page import MOST_TAKEN, Table, cut_note
from forewarn.console.portal.picture import BlockView, block_view
from forewarn.console.portal.selection import Chosen, Wish, layout_for
from forewarn.console.showing import title_of
from forewarn.console.views import View
from forewarn.core.scope import Scope
from forewarn.core.vmstate import VmState
from forewarn.errors import Rejected

_MOST_HOSTS = 50  # that a search looks into
_AT_A_STRETCH = 50  # scopes read before others get their turn
_COLUMNS = ("name", "state", "resource group", "scope", "update domain", "fault domain", "host", "key")


class FleetQuery(Strict, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] = ""
    state: str = ""
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class GroupView(View, frozen=True, kw_only=True):
    name: str
    subscription_id: str
    blocks: tuple[BlockView, ...]


class FleetPage(View, frozen=True, kw_only=True):
    counts: dict[str, int]
    total: int
    found: int
    q: str
    state: str
    page: int
    pages: int
    is_cut: bool  # a file that does not hold everything
    groups: tuple[GroupView, ...]

    @property
    def shown(self) -> int:
        return sum(len(block.vms) for group in self.groups for block in group.blocks)

    def table(self) -> Table:
        told = ((group, block, cell) for group in self.groups for block in group.blocks for cell in block.vms)
        rows = [
            (c.name, c.state, group.name, block.scope or f"vm:{c.key}", c.update_domain, c.fault_domain, c.host, c.key)
            for group, block, c in told
        ]
        return Table(columns=_COLUMNS, rows=rows, note=cut_note(self.is_cut, len(rows), self.found))


async def show(room: PortalContext, call: Call, query: FleetQuery) -> FleetPage:
    """The fleet, or those of it that are called so or are in a state."""
    counts = room.overview.counts(room.directory)
    layout = layout_for(room.overview, room.directory, _wish(room, query))
    if query.page > layout.pages:
        raise Rejected(f"there is no page {query.page}: the last one is {layout.pages}")
    shown = layout.whole(MOST_TAKEN) if call.whole else layout.page(query.page)
    return FleetPage(
        counts={str(state): count for state, count in counts.items()},
        total=sum(counts.values()),
        found=layout.size,
        q=query.q,
        state=query.state,
        page=query.page,
        pages=1 if call.whole else layout.pages,
        is_cut=call.whole and layout.size > MOST_TAKEN,
        groups=tuple([await _group(room, list(of)) for _, of in groupby(shown, key=lambda one: one.group.id)]),
    )


def _wish(room: PortalContext, query: FleetQuery) -> Wish:
    if query.state and query.state not in set(VmState):
        raise Rejected(f"{query.state!r} is no state of a VM: say one of {', '.join(VmState)}")
    text = query.q.strip().casefold()
    hosts = [host.name for host in room.control.placement.hosts() if text and text in host.name.casefold()]
    on_hosts = frozenset(vm.key for name in hosts[:_MOST_HOSTS] for vm in room.store.vms(host=name))
    return Wish(text=text, on_hosts=on_hosts, state=VmState(query.state) if query.state else None)


async def _group(room: PortalContext, blocks: list[Chosen]) -> GroupView:
    views = [view for one in blocks if (view := await _block(room, one)) is not None]
    subscription_id, name = blocks[0].group.id.split("/")
    vm = room.store.vm(blocks[0].keys[0])
    return GroupView(
        name=vm.resource_group if vm is not None else name,
        subscription_id=vm.subscription_id if vm is not None else subscription_id,
        blocks=tuple(views),
    )


async def _block(room: PortalContext, one: Chosen) -> BlockView | None:
    """None: it has just gone."""
    wanted = dict.fromkeys(one.keys)
    scope_ids = [f"vm:{key}" for key in one.keys] if one.block.is_of_standalone else [one.block.id]
    scopes: list[Scope] = []
    for number, scope_id in enumerate(scope_ids, 1):
        if (scope := room.store.scope(scope_id)) is not None:
            scopes.append(scope)
        if number % _AT_A_STRETCH == 0:
            await asyncio.sleep(0)
    there = [vm for scope in scopes for vm in scope.present if room.sees(vm)]
    vms = [vm for vm in there if vm.key in wanted]
    seen = {vm.key for vm in there}
    if not vms:
        return None
    title = "standalone VMs" if one.block.is_of_standalone else title_of(vms[0])
    return block_view(scopes, vms, seen, room.house.pace, room.overview, title=title)
