"""The fleet page: search, state filter, counts, and one page of VMs by resource group and scope.

Selection and pagination work on keys in memory; only the VMs in view are read from the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from msgspec import Meta

from forewarn.core.scope import Scope
from forewarn.errors import Rejected
from forewarn.explain.vm_state import VmState
from forewarn.portal.context import PortalContext
from forewarn.portal.export import MAX_EXPORT_ROWS, ExportTable, truncation_note
from forewarn.portal.fleet_overview import FleetOverview, GroupOverview, VisibleKeys, VmBlock
from forewarn.portal.vm_grid import VmBlockView, vm_block_view
from forewarn.web.authorization import VisibleDirectory
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.view_builder import scope_title_of_vm
from forewarn.web.views import BaseView

MAX_VMS_PER_PAGE = 200  # on a page
MAX_BLOCKS_PER_PAGE = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFilter:
    """Whoever is called so, or is on a host that is; and is in this state."""

    text: str = ""  # without case; "" everybody
    on_hosts: frozenset[str] = frozenset()  # keys of the VMs on hosts that are called so
    state: VmState | None = None


@dataclass(frozen=True, slots=True)
class SelectedBlock:
    """Some VMs of a block."""

    group: GroupOverview
    block: VmBlock
    keys: Sequence[str]


def select_blocks(overview: FleetOverview, sees: VisibleDirectory, wish: VmFilter) -> list[SelectedBlock]:
    return [
        one for group, part in overview.visible_groups(sees) for one in _select_in_group(group, part, wish) if one.keys
    ]


def _select_in_group(group: GroupOverview, part: VisibleKeys, wish: VmFilter) -> Iterator[SelectedBlock]:
    if wish.state in (None, VmState.RUNNING):
        for block in group.blocks.values():
            yield SelectedBlock(group, block, _filter_keys(group, block, block.keys, part, wish))
        return
    # Few are otherwise: only where one is, all are looked at, so that they keep their order.
    there = {group.block_of(key) for key, state in group.non_running.items() if state is wish.state}
    for block in filter(there.__contains__, group.blocks.values()):
        keys = [key for key in block.keys if group.state_of(key) is wish.state]
        yield SelectedBlock(group, block, _filter_keys(group, block, keys, part, wish))


def _filter_keys(
    group: GroupOverview, block: VmBlock, keys: Sequence[str], part: VisibleKeys, wish: VmFilter
) -> Sequence[str]:
    if part is not None:
        keys = [key for key in keys if key in part]
    if wish.state is VmState.RUNNING:
        keys = [key for key in keys if key not in group.non_running]
    if wish.text and wish.text not in _without_subscription(block.id.partition(":")[2]):
        start = group.id.index("/") + 1  # what people search for is no part of a subscription's id
        keys = [key for key in keys if wish.text in key[start:] or key in wish.on_hosts]
    return keys


def _without_subscription(path: str) -> str:
    return path.partition("/")[2]


PageStart = tuple[int, int]  # the number of a block, and of the first VM of it


@dataclass(frozen=True, slots=True)
class FleetPagination:
    """What was chosen, cut into pages."""

    blocks: Sequence[SelectedBlock]
    starts: Sequence[PageStart]  # one for each page
    vm_count: int  # VMs

    @property
    def page_count(self) -> int:
        return max(1, len(self.starts))

    def blocks_on_page(self, number: int) -> list[SelectedBlock]:
        """Counted from 1."""
        if not self.starts:
            return []
        first, start = self.starts[number - 1]
        last, end = self.starts[number] if number < len(self.starts) else (len(self.blocks), 0)
        shown = []
        for at, one in enumerate(self.blocks[first : last + 1], first):
            keys = one.keys[start if at == first else 0 : end if at == last else None]
            shown.append(SelectedBlock(one.group, one.block, keys))
        return [one for one in shown if one.keys]

    def first_vms(self, most: int) -> list[SelectedBlock]:
        """The first so many VMs; standalone ones in pieces, so that none is long."""
        shown: list[SelectedBlock] = []
        left = most
        for one in self.blocks:
            keys = one.keys[:left]
            left -= len(keys)
            step = MAX_VMS_PER_PAGE if one.block.is_standalone else max(1, len(keys))
            pieces = (keys[start : start + step] for start in range(0, len(keys), step))
            shown += [SelectedBlock(one.group, one.block, piece) for piece in pieces]
        return shown


def paginate_fleet(overview: FleetOverview, sees: VisibleDirectory, wish: VmFilter) -> FleetPagination:
    """Most people look at everything: that is cut into pages once, until VMs come or go."""
    if sees.sees_everything and wish == VmFilter():
        return overview.cached(_paginate_all)
    return _split_into_pages(select_blocks(overview, sees, wish))


def _paginate_all(overview: FleetOverview) -> FleetPagination:
    groups = overview.all_groups()
    return _split_into_pages(
        [SelectedBlock(group, block, block.keys) for group in groups for block in group.blocks.values()]
    )


def _split_into_pages(blocks: Sequence[SelectedBlock]) -> FleetPagination:
    """A scope stays whole where a page can hold it; standalone VMs fill what is left."""
    starts: list[PageStart] = []
    vms, told = MAX_VMS_PER_PAGE, 0  # on the page that is being filled: the first block begins one
    for number, one in enumerate(blocks):
        size, start = len(one.keys), 0
        is_whole = size <= MAX_VMS_PER_PAGE and not one.block.is_standalone
        while start < size:
            if told == MAX_BLOCKS_PER_PAGE or vms == MAX_VMS_PER_PAGE or (is_whole and vms + size > MAX_VMS_PER_PAGE):
                starts.append((number, start))
                vms, told = 0, 0
            taken = min(size - start, MAX_VMS_PER_PAGE - vms)
            vms, told, start = vms + taken, told + 1, start + taken
    return FleetPagination(blocks, starts, sum(len(one.keys) for one in blocks))


_MAX_HOSTS_SEARCHED = 50  # that a search looks into
_SCOPES_PER_BATCH = 50  # scopes read before others get their turn
_CSV_COLUMNS = ("name", "state", "resource group", "scope", "update domain", "fault domain", "host", "key")


class FleetPageQuery(StrictBody, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] = ""
    state: str = ""
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class ResourceGroupView(BaseView, frozen=True, kw_only=True):
    name: str
    subscription_id: str
    blocks: tuple[VmBlockView, ...]


class FleetPage(BaseView, frozen=True, kw_only=True):
    counts: dict[str, int]
    total: int
    found: int
    q: str
    state: str
    page: int
    pages: int
    is_cut: bool  # a file that does not hold everything
    groups: tuple[ResourceGroupView, ...]

    @property
    def shown(self) -> int:
        return sum(len(block.vms) for group in self.groups for block in group.blocks)

    def table(self) -> ExportTable:
        told = ((group, block, cell) for group in self.groups for block in group.blocks for cell in block.vms)
        rows = [
            (c.name, c.state, group.name, block.scope or f"vm:{c.key}", c.update_domain, c.fault_domain, c.host, c.key)
            for group, block, c in told
        ]
        return ExportTable(columns=_CSV_COLUMNS, rows=rows, note=truncation_note(self.is_cut, len(rows), self.found))


async def show_fleet_page(context: PortalContext, call: HandlerCall, query: FleetPageQuery) -> FleetPage:
    """The fleet, or those of it that are called so or are in a state."""
    counts = context.overview.count_states(context.directory)
    layout = paginate_fleet(context.overview, context.directory, _vm_filter(context, query))
    if query.page > layout.page_count:
        raise Rejected(f"there is no page {query.page}: the last one is {layout.page_count}")
    shown = layout.first_vms(MAX_EXPORT_ROWS) if call.for_export else layout.blocks_on_page(query.page)
    return FleetPage(
        counts={str(state): count for state, count in counts.items()},
        total=sum(counts.values()),
        found=layout.vm_count,
        q=query.q,
        state=query.state,
        page=query.page,
        pages=1 if call.for_export else layout.page_count,
        is_cut=call.for_export and layout.vm_count > MAX_EXPORT_ROWS,
        groups=tuple(
            [await _resource_group_view(context, list(of)) for _, of in groupby(shown, key=lambda one: one.group.id)]
        ),
    )


def _vm_filter(context: PortalContext, query: FleetPageQuery) -> VmFilter:
    if query.state and query.state not in set(VmState):
        raise Rejected(f"{query.state!r} is no state of a VM: say one of {', '.join(VmState)}")
    text = query.q.strip().casefold()
    hosts = [host.name for host in context.control.placement.hosts() if text and text in host.name.casefold()]
    on_hosts = frozenset(vm.key for name in hosts[:_MAX_HOSTS_SEARCHED] for vm in context.store.vms(host=name))
    return VmFilter(text=text, on_hosts=on_hosts, state=VmState(query.state) if query.state else None)


async def _resource_group_view(context: PortalContext, blocks: list[SelectedBlock]) -> ResourceGroupView:
    views = [view for one in blocks if (view := await _selected_block_view(context, one)) is not None]
    subscription_id, name = blocks[0].group.id.split("/")
    vm = context.store.vm(blocks[0].keys[0])
    return ResourceGroupView(
        name=vm.resource_group if vm is not None else name,
        subscription_id=vm.subscription_id if vm is not None else subscription_id,
        blocks=tuple(views),
    )


async def _selected_block_view(context: PortalContext, one: SelectedBlock) -> VmBlockView | None:
    """None: it has just gone."""
    wanted = dict.fromkeys(one.keys)
    scope_ids = [f"vm:{key}" for key in one.keys] if one.block.is_standalone else [one.block.id]
    scopes: list[Scope] = []
    for number, scope_id in enumerate(scope_ids, 1):
        if (scope := context.store.scope(scope_id)) is not None:
            scopes.append(scope)
        if number % _SCOPES_PER_BATCH == 0:
            await asyncio.sleep(0)
    there = [vm for scope in scopes for vm in scope.present_vms if context.can_see(vm)]
    vms = [vm for vm in there if vm.key in wanted]
    seen = {vm.key for vm in there}
    if not vms:
        return None
    title = "standalone VMs" if one.block.is_standalone else scope_title_of_vm(vms[0])
    return vm_block_view(scopes, vms, seen, context.dependencies.pace_of, context.overview, title=title)
