"""The pages of hosts: the list with health and VMs, and one host with its VMs and events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import Meta

from forewarn.control.directory import natural_sort_key
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.core.scope import scope_name_of_vm
from forewarn.web.polling_report import iterate_cooperatively
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.export import MAX_EXPORT_ROWS, ExportTable, truncation_note
from forewarn.web.portal.filters import PageNumber, PageQuery, items_on_page, require_choice
from forewarn.web.portal.form_catalog import FormLink, form_links_for_host
from forewarn.web.portal.status_card import EventStatusCard, next_event_card
from forewarn.web.portal.vm_grid import VmCell, vm_cell
from forewarn.web.queries import events_on_host
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView, EventView, ViewBuilder

_MAX_HOSTS_PER_PAGE = 20
_VMS_PER_PAGE = 15  # on the page of one host
_EVENTS_PER_HOST_PAGE = 10  # live ones
_MAX_CELLS = 24  # VMs per host in the list
_MAX_PAST_EVENTS_READ = 1000  # of the whole fleet, to find those of a host
_MAX_PAST_EVENTS = 20


class HostsPageQuery(StrictBody, frozen=True, kw_only=True):
    """The query of the list of hosts: a search in names, a health, and a page number."""

    q: Annotated[str, Meta(max_length=200)] = ""  # searched in the names of hosts, ignoring letter case; "": all
    health: str = ""  # healthy, degraded or failed; "": all
    page: PageNumber = 1  # from 1


class HostCard(BaseView, frozen=True, kw_only=True):
    """A host in the list of hosts, with its first visible VMs. Field names are JSON keys."""

    name: str  # the name of the host
    location: str  # its name
    zone: str  # "": none
    health: str  # healthy, degraded or failed
    unreachable: bool  # it does not answer the hypervisor
    confirmed_down: bool  # an operator states that it is certainly down
    size: int  # all VMs on it that the user may see
    vms: tuple[VmCell, ...]  # the first 24 of them; in an export all


class HostsPage(BaseView, frozen=True, kw_only=True):
    """The list of hosts: counts by health, and one page of the hosts that match. Names are JSON keys."""

    counts: dict[str, int]  # of all hosts that the user may see, by HostHealth, 0 included
    total: int  # all hosts that the user may see
    found: int  # hosts that match
    q: str  # the search; this and `health` are those of the query
    health: str  # the chosen HostHealth; "": all
    page: int  # its number
    pages: int  # how many there are; an export is one
    is_partial: bool  # this export does not hold all hosts that match
    hosts: tuple[HostCard, ...]  # in natural order of their names

    def table(self) -> ExportTable:
        """Return the CSV export: one row per host of `hosts`."""
        rows = [(host.name, host.location, host.zone, host.health, host.size) for host in self.hosts]
        note = truncation_note(self.is_partial, len(rows), self.found)
        return ExportTable(columns=("name", "location", "zone", "health", "VMs"), rows=rows, note=note)


class HostVmView(BaseView, frozen=True, kw_only=True):
    """A VM on the page of a host: it is on the host, or moves there. Names are JSON keys and CSV columns."""

    key: str  # the key of the VM
    name: str  # the name of the VM
    state: str  # a VmState: running, noticed, started, frozen, rebooting, moving, stopped, deallocated or gone
    scope: str  # its id
    scope_name: str  # such as `web` or `workers/pg-0`
    update_domain: int  # from 0
    fault_domain: int  # from 0
    is_arriving: bool  # it is on another host and moves here


class HostPage(BaseView, frozen=True, kw_only=True):
    """The page of one host. Field names are JSON keys."""

    name: str  # the name of the host
    location: str  # its name
    zone: str  # "": none
    health: str  # healthy, degraded or failed
    unreachable: bool  # it does not answer the hypervisor
    confirmed_down: bool  # an operator states that it is certainly down
    forms: tuple[FormLink, ...]  # that the user may submit for it
    card: EventStatusCard | None  # the live event that matters next; None: there is none
    vms: tuple[HostVmView, ...]  # that the user may see: those on it, then those that move to it; 15 per page
    total: int  # of these VMs, on all pages
    page: int  # its number, from 1
    pages: int  # how many there are; an export is one
    events: tuple[EventView, ...]  # live ones that the user may see, oldest first; 10, in an export all
    more_events: int  # live events that are left out
    over: tuple[EventView, ...]  # past ones, newest first, at most 20

    def table(self) -> ExportTable:
        """Return the CSV export: one row per VM of `vms`; the columns are the fields of HostVmView."""
        columns = HostVmView.__struct_fields__
        return ExportTable(columns=columns, rows=[[getattr(vm, name) for name in columns] for vm in self.vms])


async def show_hosts_page(context: PortalContext, call: HandlerCall, query: HostsPageQuery) -> HostsPage:
    """Show a page of the hosts that match a search and a health, 20 per page, in natural order of names."""
    require_choice("health", query.health, {str(health): str(health) for health in HostHealth}, "a state of a host")
    visible_hosts = sorted(_visible_hosts(context), key=lambda host: natural_sort_key(host.name))
    text = query.q.strip().casefold()
    found = [host for host in visible_hosts if text in host.name.casefold() and query.health in ("", host.health)]
    page_hosts, pages = items_on_page(found, query.page, _MAX_HOSTS_PER_PAGE)
    cards = await _all_cards(context, found) if call.for_export else [_host_card(context, host) for host in page_hosts]
    return HostsPage(
        counts={str(health): sum(host.health is health for host in visible_hosts) for health in HostHealth},
        total=len(visible_hosts),
        found=len(found),
        q=query.q,
        health=query.health,
        page=query.page,
        pages=1 if call.for_export else pages,
        is_partial=call.for_export and len(cards) < len(found),
        hosts=tuple(cards),
    )


def _visible_hosts(context: PortalContext) -> list[Host]:
    hosts = context.control.placement.hosts()
    if context.can_see_everything():
        return hosts
    host_of = context.control.placement.host_of
    names = {host_of(key) for key in context.overview.visible_keys(context.directory)}
    return [host for host in hosts if host.name in names]


async def _all_cards(context: PortalContext, hosts: list[Host]) -> list[HostCard]:
    cards: list[HostCard] = []
    left = MAX_EXPORT_ROWS
    async for host in iterate_cooperatively(hosts, 5):
        if left <= 0:
            break
        cards.append(_host_card(context, host, left))
        left -= cards[-1].size
    return cards


def _host_card(context: PortalContext, host: Host, max_vms: int = _MAX_CELLS) -> HostCard:
    vms = _visible_vms_on(context, host)
    return HostCard(
        name=host.name,
        location=host.location,
        zone=host.zone,
        health=host.health,
        unreachable=host.name in context.control.unreachable_hosts(),
        confirmed_down=host.confirmed_down,
        size=len(vms),
        vms=tuple(vm_cell(vm, context.overview) for vm in vms[:max_vms]),
    )


def _visible_vms_on(context: PortalContext, host: Host) -> list[Vm]:
    return [vm for vm in context.store.vms(host=host.name) if context.can_see(vm)]


async def show_host_page(context: PortalContext, call: HandlerCall, query: PageQuery) -> HostPage:
    """Show one host with its VMs, live events and past events."""
    host = context.find_host(call.path_params["name"])
    vms = [*_visible_vms_on(context, host), *_arriving_vms(context, host)]
    shown, pages = items_on_page(vms, query.page, MAX_EXPORT_ROWS if call.for_export else _VMS_PER_PAGE)
    live_events = _visible_events_on(
        context, host, context.store.events(statuses=[EventState.SCHEDULED, EventState.STARTED])
    )
    max_events = MAX_EXPORT_ROWS if call.for_export else _EVENTS_PER_HOST_PAGE
    past_events = context.store.events(statuses=[EventState.OVER], limit=_MAX_PAST_EVENTS_READ)
    past_on_host = _visible_events_on(context, host, past_events)
    views = ViewBuilder(context)
    return HostPage(
        name=host.name,
        location=host.location,
        zone=host.zone,
        health=host.health,
        unreachable=host.name in context.control.unreachable_hosts(),
        confirmed_down=host.confirmed_down,
        forms=form_links_for_host(context, host),
        card=next_event_card(context, live_events),
        vms=tuple(_host_vm_view(context, vm, is_arriving=vm.host != host.name) for vm in shown),
        total=len(vms),
        page=query.page,
        pages=pages,
        events=views.events(live_events[:max_events]),
        more_events=max(0, len(live_events) - max_events),
        over=views.events(past_on_host[: -_MAX_PAST_EVENTS - 1 : -1]),
    )


def _arriving_vms(context: PortalContext, host: Host) -> Iterator[Vm]:
    for vm in map(context.store.vm, context.control.placement.vms_moving_to(host.name)):
        if vm is not None and vm.host != host.name and context.can_see(vm):
            yield vm


def _visible_events_on(context: PortalContext, host: Host, events: Iterable[Event]) -> list[Event]:
    return [event for event in events_on_host(context, host.name, events) if context.can_see_scope(event.scope_id)]


def _host_vm_view(context: PortalContext, vm: Vm, *, is_arriving: bool) -> HostVmView:
    return HostVmView(
        key=vm.key,
        name=vm.name,
        state=context.overview.state_of(vm.key),
        scope=vm.scope_id,
        scope_name=scope_name_of_vm(vm),
        update_domain=vm.update_domain,
        fault_domain=vm.fault_domain,
        is_arriving=is_arriving,
    )
