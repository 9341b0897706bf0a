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

from forewarn.control.visibility import VisibleDirectory
from forewarn.core.explain.explanation import VmState
from forewarn.core.scope import Scope, scope_name_of_vm
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.export import MAX_EXPORT_ROWS, ExportTable, truncation_note
from forewarn.web.portal.filters import require_choice, require_page
from forewarn.web.portal.fleet_overview import FleetOverview, GroupOverview, VisibleKeys, VmBlock
from forewarn.web.portal.states import vm_state_labels
from forewarn.web.portal.vm_grid import VmBlockView, vm_block_view
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView

MAX_VMS_PER_PAGE = 200
MAX_BLOCKS_PER_PAGE = 40  # scopes, or runs of standalone VMs


@dataclass(frozen=True, slots=True, kw_only=True)
class _VmFilter:
    """A search: VMs in `state` whose name, scope or group contains `text`, or that are in `on_hosts`."""

    text: str = ""  # in lower case; "" matches all
    on_hosts: frozenset[str] = frozenset()  # keys of the VMs on hosts whose name contains `text`
    state: VmState | None = None  # None matches all


@dataclass(frozen=True, slots=True)
class _SelectedBlock:
    group: GroupOverview  # the resource group of the block
    block: VmBlock
    keys: Sequence[str]  # of these VMs, in the order of the block


def _select_blocks(overview: FleetOverview, directory: VisibleDirectory, vm_filter: _VmFilter) -> list[_SelectedBlock]:
    return [
        selected
        for group, visible in overview.visible_groups(directory)
        for selected in _select_in_group(group, visible, vm_filter)
        if selected.keys
    ]


def _select_in_group(group: GroupOverview, visible: VisibleKeys, vm_filter: _VmFilter) -> Iterator[_SelectedBlock]:
    if vm_filter.state in (None, VmState.RUNNING):
        for block in group.blocks.values():
            yield _SelectedBlock(group, block, _filter_keys(group, block, block.keys, visible, vm_filter))
        return
    # Few VMs are in another state, so only their blocks are searched; a block is searched whole to keep its order.
    blocks_with_state = {group.block_of(key) for key, state in group.non_running.items() if state is vm_filter.state}
    for block in filter(blocks_with_state.__contains__, group.blocks.values()):
        keys = [key for key in block.keys if group.state_of(key) is vm_filter.state]
        yield _SelectedBlock(group, block, _filter_keys(group, block, keys, visible, vm_filter))


def _filter_keys(
    group: GroupOverview, block: VmBlock, keys: Sequence[str], visible: VisibleKeys, vm_filter: _VmFilter
) -> Sequence[str]:
    if visible is not None:
        keys = [key for key in keys if key in visible]
    if vm_filter.state is VmState.RUNNING:
        keys = [key for key in keys if key not in group.non_running]
    if vm_filter.text and vm_filter.text not in _without_subscription(block.id.partition(":")[2]):
        start = group.id.index("/") + 1  # a search never matches the subscription id
        keys = [key for key in keys if vm_filter.text in key[start:] or key in vm_filter.on_hosts]
    return keys


def _without_subscription(path: str) -> str:
    return path.partition("/")[2]


PageStart = tuple[int, int]  # the index of a page's first block, and of the first VM within it


@dataclass(frozen=True, slots=True)
class _FleetPagination:
    blocks: Sequence[_SelectedBlock]  # on all pages
    starts: Sequence[PageStart]  # one for each page; empty if there are no VMs
    vm_count: int  # on all pages

    @property
    def page_count(self) -> int:
        return max(1, len(self.starts))

    def blocks_on_page(self, number: int) -> list[_SelectedBlock]:
        if not self.starts:
            return []
        first, start = self.starts[number - 1]
        last, end = self.starts[number] if number < len(self.starts) else (len(self.blocks), 0)
        blocks = []
        for at, selected in enumerate(self.blocks[first : last + 1], first):
            keys = selected.keys[start if at == first else 0 : end if at == last else None]
            blocks.append(_SelectedBlock(selected.group, selected.block, keys))
        return [selected for selected in blocks if selected.keys]

    def first_vms(self, max_vms: int) -> list[_SelectedBlock]:
        blocks: list[_SelectedBlock] = []
        left = max_vms
        for selected in self.blocks:
            keys = selected.keys[:left]
            left -= len(keys)
            step = MAX_VMS_PER_PAGE if selected.block.is_standalone else max(1, len(keys))
            pieces = (keys[start : start + step] for start in range(0, len(keys), step))
            blocks += [_SelectedBlock(selected.group, selected.block, piece) for piece in pieces]
        return blocks


def _paginate_fleet(overview: FleetOverview, directory: VisibleDirectory, vm_filter: _VmFilter) -> _FleetPagination:
    if directory.sees_everything and vm_filter == _VmFilter():
        return overview.cached(_paginate_all, directory)
    return _split_into_pages(_select_blocks(overview, directory, vm_filter))


def _paginate_all(overview: FleetOverview, _directory: VisibleDirectory) -> _FleetPagination:
    groups = overview.all_groups()
    return _split_into_pages(
        [_SelectedBlock(group, block, block.keys) for group in groups for block in group.blocks.values()]
    )


def _split_into_pages(blocks: Sequence[_SelectedBlock]) -> _FleetPagination:
    """Keeps a scope on one page if a page can hold it; standalone VMs fill the rest."""
    starts: list[PageStart] = []
    vms, block_count = MAX_VMS_PER_PAGE, 0  # on the current page; as if full, so that the first block starts one
    for number, selected in enumerate(blocks):
        size, start = len(selected.keys), 0
        is_whole = size <= MAX_VMS_PER_PAGE and not selected.block.is_standalone
        while start < size:
            is_full = block_count == MAX_BLOCKS_PER_PAGE or vms == MAX_VMS_PER_PAGE
            if is_full or (is_whole and vms + size > MAX_VMS_PER_PAGE):
                starts.append((number, start))
                vms, block_count = 0, 0
            taken = min(size - start, MAX_VMS_PER_PAGE - vms)
            vms, block_count, start = vms + taken, block_count + 1, start + taken
    return _FleetPagination(blocks, starts, sum(len(selected.keys) for selected in blocks))


_MAX_HOSTS_SEARCHED = 50  # hosts with a matching name whose VMs a search finds
_SCOPES_PER_BATCH = 50  # scopes read before other tasks run
_CSV_COLUMNS = ("name", "state", "resource group", "scope", "update domain", "fault domain", "host", "key")


class FleetPageQuery(StrictBody, frozen=True, kw_only=True):
    """The query of the fleet page: a search, a state of VMs, and a page number."""

    q: Annotated[str, Meta(max_length=200)] = ""  # searched in name, scope, group and host, ignoring case; "": all
    state: str = ""  # a VmState, such as running, noticed or moving; "": all
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1  # from 1


class ResourceGroupView(BaseView, frozen=True, kw_only=True):
    """A resource group with those of its VMs that are on this page, by block: a scope, or standalone VMs."""

    name: str  # as the first of these VMs spells it
    subscription_id: str  # mostly a GUID
    blocks: tuple[VmBlockView, ...]


class FleetPage(BaseView, frozen=True, kw_only=True):
    """The fleet page: counts by state, and one page of the VMs that match. Field names are JSON keys."""

    counts: dict[str, int]  # of all VMs that the user may see, by VmState (0 included), without gone
    total: int  # all VMs that the user may see
    found: int  # VMs that match
    q: str  # the search; this and `state` are those of the query
    state: str  # the chosen VmState; "": all
    page: int  # its number
    pages: int  # how many there are; an export is one
    is_partial: bool  # this export does not hold all VMs that match
    groups: tuple[ResourceGroupView, ...]  # in the order of the fleet

    @property
    def shown(self) -> int:
        """How many VMs are on this page, or in this export."""
        return sum(len(block.vms) for group in self.groups for block in group.blocks)

    def table(self) -> ExportTable:
        """Return the CSV export: one row per VM on this page, or in this export."""
        cells = ((group, block, cell) for group in self.groups for block in group.blocks for cell in block.vms)
        rows = [
            (c.name, c.state, group.name, block.scope or f"vm:{c.key}", c.update_domain, c.fault_domain, c.host, c.key)
            for group, block, c in cells
        ]
        return ExportTable(
            columns=_CSV_COLUMNS, rows=rows, note=truncation_note(self.is_partial, len(rows), self.found)
        )


async def show_fleet_page(context: PortalContext, call: HandlerCall, query: FleetPageQuery) -> FleetPage:
    """Show one page of the VMs that the user may see and that match a search and a state."""
    counts = context.overview.count_states(context.directory)
    pagination = _paginate_fleet(context.overview, context.directory, _vm_filter(context, query))
    require_page(query.page, pagination.page_count)
    blocks = pagination.first_vms(MAX_EXPORT_ROWS) if call.for_export else pagination.blocks_on_page(query.page)
    return FleetPage(
        counts={str(state): count for state, count in counts.items()},
        total=sum(counts.values()),
        found=pagination.vm_count,
        q=query.q,
        state=query.state,
        page=query.page,
        pages=1 if call.for_export else pagination.page_count,
        is_partial=call.for_export and pagination.vm_count > MAX_EXPORT_ROWS,
        groups=tuple(
            [
                await _resource_group_view(context, list(group_blocks))
                for _, group_blocks in groupby(blocks, key=lambda selected: selected.group.id)
            ]
        ),
    )


def _vm_filter(context: PortalContext, query: FleetPageQuery) -> _VmFilter:
    require_choice("state", query.state, vm_state_labels(), "a state of a VM")
    text = query.q.strip().casefold()
    hosts = [host.name for host in context.control.placement.hosts() if text and text in host.name.casefold()]
    on_hosts = frozenset(vm.key for name in hosts[:_MAX_HOSTS_SEARCHED] for vm in context.store.vms(host=name))
    return _VmFilter(text=text, on_hosts=on_hosts, state=VmState(query.state) if query.state else None)


async def _resource_group_view(context: PortalContext, blocks: list[_SelectedBlock]) -> ResourceGroupView:
    views = [view for selected in blocks if (view := await _selected_block_view(context, selected)) is not None]
    subscription_id, name = blocks[0].group.id.split("/")
    vm = context.store.vm(blocks[0].keys[0])
    return ResourceGroupView(
        name=vm.resource_group if vm is not None else name,
        subscription_id=vm.subscription_id if vm is not None else subscription_id,
        blocks=tuple(views),
    )


async def _selected_block_view(context: PortalContext, selected: _SelectedBlock) -> VmBlockView | None:
    wanted_keys = dict.fromkeys(selected.keys)
    scope_ids = [f"vm:{key}" for key in selected.keys] if selected.block.is_standalone else [selected.block.id]
    scopes: list[Scope] = []
    for number, scope_id in enumerate(scope_ids, 1):
        if (scope := context.store.scope(scope_id)) is not None:
            scopes.append(scope)
        if number % _SCOPES_PER_BATCH == 0:
            await asyncio.sleep(0)
    visible_vms = [vm for scope in scopes for vm in scope.present_vms if context.can_see(vm)]
    vms = [vm for vm in visible_vms if vm.key in wanted_keys]
    visible_keys = {vm.key for vm in visible_vms}
    if not vms:
        return None
    title = "standalone VMs" if selected.block.is_standalone else scope_name_of_vm(vms[0])
    return vm_block_view(scopes, vms, visible_keys, context.dependencies.pace_of, context.overview, title=title)
