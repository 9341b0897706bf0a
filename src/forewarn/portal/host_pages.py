"""The pages of hosts: the list with health and VMs, and one host with its VMs and events."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from forewarn.core.event import EventState
from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.errors import Rejected
from forewarn.portal.context import PortalContext
from forewarn.portal.export import MAX_EXPORT_ROWS, ExportTable, truncation_note
from forewarn.portal.form_links import FormLink, form_links_for_host
from forewarn.portal.vm_grid import VmCell, vm_cell
from forewarn.web.directory import natural_sort_key
from forewarn.web.polling_report import iterate_cooperatively
from forewarn.web.queries import events_on_host
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.view_builder import ViewBuilder, scope_title_of_vm
from forewarn.web.views import BaseView, EventView

_MAX_HOSTS_PER_PAGE = 20  # on a page
_MAX_CELLS = 24  # of a host among others
_MAX_PAST_EVENTS_READ = 1000  # events that are over and looked through
_MAX_PAST_EVENTS = 20


class HostsPageQuery(StrictBody, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] = ""
    health: str = ""
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class HostCard(BaseView, frozen=True, kw_only=True):
    name: str
    location: str
    zone: str
    health: str
    size: int  # VMs on it, as far as they are seen
    vms: tuple[VmCell, ...]


class HostsPage(BaseView, frozen=True, kw_only=True):
    counts: dict[str, int]
    total: int
    found: int
    q: str
    health: str
    page: int
    pages: int
    is_cut: bool  # a file that does not hold everything
    hosts: tuple[HostCard, ...]

    def table(self) -> ExportTable:
        rows = [(host.name, host.location, host.zone, host.health, host.size) for host in self.hosts]
        note = truncation_note(self.is_cut, len(rows), self.found)
        return ExportTable(columns=("name", "location", "zone", "health", "VMs"), rows=rows, note=note)


class HostVmView(BaseView, frozen=True, kw_only=True):
    key: str
    name: str
    state: str
    scope: str
    title_of_scope: str
    update_domain: int
    fault_domain: int
    is_arriving: bool  # on its way here


class HostPage(BaseView, frozen=True, kw_only=True):
    name: str
    location: str
    zone: str
    health: str
    forms: tuple[FormLink, ...]
    vms: tuple[HostVmView, ...]
    events: tuple[EventView, ...]
    over: tuple[EventView, ...]  # newest first

    def table(self) -> ExportTable:
        columns = HostVmView.__struct_fields__
        return ExportTable(columns=columns, rows=[[getattr(vm, name) for name in columns] for vm in self.vms])


async def show_hosts_page(context: PortalContext, call: HandlerCall, query: HostsPageQuery) -> HostsPage:
    """The hosts that the visitor may know of."""
    if query.health and query.health not in set(HostHealth):
        raise Rejected(f"{query.health!r} is no health of a host: say one of {', '.join(HostHealth)}")
    known = sorted(_visible_hosts(context), key=lambda host: natural_sort_key(host.name))
    text = query.q.strip().casefold()
    found = [host for host in known if text in host.name.casefold() and query.health in ("", host.health)]
    pages = max(1, -(-len(found) // _MAX_HOSTS_PER_PAGE))
    if query.page > pages:
        raise Rejected(f"there is no page {query.page}: the last one is {pages}")
    start = (query.page - 1) * _MAX_HOSTS_PER_PAGE
    in_view = found[start : start + _MAX_HOSTS_PER_PAGE]
    cards = await _all_cards(context, found) if call.for_export else [_host_card(context, host) for host in in_view]
    return HostsPage(
        counts={str(health): sum(host.health is health for host in known) for health in HostHealth},
        total=len(known),
        found=len(found),
        q=query.q,
        health=query.health,
        page=query.page,
        pages=1 if call.for_export else pages,
        is_cut=call.for_export and len(cards) < len(found),
        hosts=tuple(cards),
    )


def _visible_hosts(context: PortalContext) -> list[Host]:
    """As the API shows them: all, or those that a VM of the visitor's is on."""
    hosts = context.control.placement.hosts()
    if context.can_see_everything():
        return hosts
    home_of = context.control.placement.host_of
    names = {home_of(key) for key in context.overview.visible_keys(context.directory)}
    return [host for host in hosts if host.name in names]


async def _all_cards(context: PortalContext, hosts: list[Host]) -> list[HostCard]:
    """With every VM, as far as a file holds them."""
    cards: list[HostCard] = []
    left = MAX_EXPORT_ROWS
    async for host in iterate_cooperatively(hosts, 5):
        if left <= 0:
            break
        cards.append(_host_card(context, host, left))
        left -= cards[-1].size
    return cards


def _host_card(context: PortalContext, host: Host, most: int = _MAX_CELLS) -> HostCard:
    vms = _visible_vms_on(context, host)
    return HostCard(
        name=host.name,
        location=host.location,
        zone=host.zone,
        health=host.health,
        size=len(vms),
        vms=tuple(vm_cell(vm, context.overview) for vm in vms[:most]),
    )


def _visible_vms_on(context: PortalContext, host: Host) -> list[Vm]:
    return [vm for vm in context.store.vms(host=host.name) if context.can_see(vm)]


async def show_host_page(context: PortalContext, call: HandlerCall) -> HostPage:
    """One host, with its VMs and what is done there."""
    host = context.find_host(call.path_params["name"])
    here = _visible_vms_on(context, host)
    coming = [vm for vm in map(context.store.vm, context.control.placement.vms_moving_to(host.name)) if vm is not None]
    live = context.store.events(statuses=[EventState.SCHEDULED, EventState.STARTED])
    past = context.store.events(statuses=[EventState.OVER], limit=_MAX_PAST_EVENTS_READ)
    over = [event for event in events_on_host(context, host.name, past) if context.can_see_scope(event.scope_id)]
    showing = ViewBuilder(context)
    return HostPage(
        name=host.name,
        location=host.location,
        zone=host.zone,
        health=host.health,
        forms=form_links_for_host(context, host),
        vms=(
            *(_host_vm_view(context, vm) for vm in here),
            *(
                _host_vm_view(context, vm, is_arriving=True)
                for vm in coming
                if context.can_see(vm) and vm.host != host.name
            ),
        ),
        events=showing.events(e for e in events_on_host(context, host.name, live) if context.can_see_scope(e.scope_id)),
        over=showing.events(over[: -_MAX_PAST_EVENTS - 1 : -1]),
    )


def _host_vm_view(context: PortalContext, vm: Vm, *, is_arriving: bool = False) -> HostVmView:
    return HostVmView(
        key=vm.key,
        name=vm.name,
        state=context.overview.state_of(vm.key),
        scope=vm.scope_id,
        title_of_scope=scope_title_of_vm(vm),
        update_domain=vm.update_domain,
        fault_domain=vm.fault_domain,
        is_arriving=is_arriving,
    )
