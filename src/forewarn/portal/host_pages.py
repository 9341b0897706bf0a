"""The pages of hosts: which there are, how they are, and which VMs are on each."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from forewarn.console.body import Strict
from forewarn.console.call import Call
from forewarn.console.event import events_on
from forewarn.console.portal.context import PortalContext
from forewarn.console.portal.formlink import FormLink, forms_for_host
from forewarn.console.portal.page import MOST_TAKEN, Table, cut_note
from forewarn.console.portal.picture import Cell, cell_of
from forewarn.console.register import in_order
from forewarn.console.showing import Showing, title_of
from forewarn.console.survey import in_stretches
from forewarn.console.views import EventView, View
from forewarn.core.event import Status
from forewarn.core.fleet import Health, Host, Vm
from forewarn.errors import Rejected

_MOST_HOSTS = 20  # on a page
_MOST_CELLS = 24  # of a host among others
_RECENT = 1000  # events that are over and looked through
_MOST_OVER = 20


class HostsQuery(Strict, frozen=True, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] = ""
    health: str = ""
    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class HostCard(View, frozen=True, kw_only=True):
    name: str
    location: str
    zone: str
    health: str
    size: int  # VMs on it, as far as they are seen
    vms: tuple[Cell, ...]


class HostsPage(View, frozen=True, kw_only=True):
    counts: dict[str, int]
    total: int
    found: int
    q: str
    health: str
    page: int
    pages: int
    is_cut: bool  # a file that does not hold everything
    hosts: tuple[HostCard, ...]

    def table(self) -> Table:
        rows = [(host.name, host.location, host.zone, host.health, host.size) for host in self.hosts]
        note = cut_note(self.is_cut, len(rows), self.found)
        return Table(columns=("name", "location", "zone", "health", "VMs"), rows=rows, note=note)


class Tenant(View, frozen=True, kw_only=True):
    key: str
    name: str
    state: str
    scope: str
    title_of_scope: str
    update_domain: int
    fault_domain: int
    is_arriving: bool  # on its way here


class HostPage(View, frozen=True, kw_only=True):
    name: str
    location: str
    zone: str
    health: str
    forms: tuple[FormLink, ...]
    vms: tuple[Tenant, ...]
    events: tuple[EventView, ...]
    over: tuple[EventView, ...]  # newest first

    def table(self) -> Table:
        columns = Tenant.__struct_fields__
        return Table(columns=columns, rows=[[getattr(vm, name) for name in columns] for vm in self.vms])


async def show_all(room: PortalContext, call: Call, query: HostsQuery) -> HostsPage:
    """The hosts that the visitor may know of."""
    if query.health and query.health not in set(Health):
        raise Rejected(f"{query.health!r} is no health of a host: say one of {', '.join(Health)}")
    known = sorted(_known(room), key=lambda host: in_order(host.name))
    text = query.q.strip().casefold()
    found = [host for host in known if text in host.name.casefold() and query.health in ("", host.health)]
    pages = max(1, -(-len(found) // _MOST_HOSTS))
    if query.page > pages:
        raise Rejected(f"there is no page {query.page}: the last one is {pages}")
    start = (query.page - 1) * _MOST_HOSTS
    in_view = found[start : start + _MOST_HOSTS]
    cards = await _every_card(room, found) if call.whole else [_card(room, host) for host in in_view]
    return HostsPage(
        counts={str(health): sum(host.health is health for host in known) for health in Health},
        total=len(known),
        found=len(found),
        q=query.q,
        health=query.health,
        page=query.page,
        pages=1 if call.whole else pages,
        is_cut=call.whole and len(cards) < len(found),
        hosts=tuple(cards),
    )


def _known(room: PortalContext) -> list[Host]:
    """As the API shows them: all, or those that a VM of the visitor's is on."""
    hosts = room.control.placement.hosts()
    if room.sees_everything():
        return hosts
    home_of = room.control.placement.home_of
    names = {home_of(key) for key in room.overview.keys(room.directory)}
    return [host for host in hosts if host.name in names]


async def _every_card(room: PortalContext, hosts: list[Host]) -> list[HostCard]:
    """With every VM, as far as a file holds them."""
    cards: list[HostCard] = []
    left = MOST_TAKEN
    async for host in in_stretches(hosts, 5):
        if left <= 0:
            break
        cards.append(_card(room, host, left))
        left -= cards[-1].size
    return cards


def _card(room: PortalContext, host: Host, most: int = _MOST_CELLS) -> HostCard:
    vms = _on(room, host)
    return HostCard(
        name=host.name,
        location=host.location,
        zone=host.zone,
        health=host.health,
        size=len(vms),
        vms=tuple(cell_of(vm, room.overview) for vm in vms[:most]),
    )


def _on(room: PortalContext, host: Host) -> list[Vm]:
    return [vm for vm in room.store.vms(host=host.name) if room.sees(vm)]


async def show(room: PortalContext, call: Call) -> HostPage:
    """One host, with its VMs and what is done there."""
    host = room.host(call.names["name"])
    here = _on(room, host)
    coming = [vm for vm in map(room.store.vm, room.control.placement.bound_for(host.name)) if vm is not None]
    live = room.store.events(statuses=[Status.SCHEDULED, Status.STARTED])
    past = room.store.events(statuses=[Status.OVER], limit=_RECENT)
    over = [event for event in events_on(room, host.name, past) if room.sees_scope(event.scope_id)]
    showing = Showing(room)
    return HostPage(
        name=host.name,
        location=host.location,
        zone=host.zone,
        health=host.health,
        forms=forms_for_host(room, host),
        vms=(
            *(_tenant(room, vm) for vm in here),
            *(_tenant(room, vm, is_arriving=True) for vm in coming if room.sees(vm) and vm.host != host.name),
        ),
        events=showing.events(e for e in events_on(room, host.name, live) if room.sees_scope(e.scope_id)),
        over=showing.events(over[: -_MOST_OVER - 1 : -1]),
    )


def _tenant(room: PortalContext, vm: Vm, *, is_arriving: bool = False) -> Tenant:
    return Tenant(
        key=vm.key,
        name=vm.name,
        state=room.overview.state_of(vm.key),
        scope=vm.scope_id,
        title_of_scope=title_of(vm),
        update_domain=vm.update_domain,
        fault_domain=vm.fault_domain,
        is_arriving=is_arriving,
    )
