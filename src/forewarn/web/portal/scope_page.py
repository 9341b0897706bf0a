"""The page of one scope: its VMs by domain, its events, and the document its VMs receive."""

from __future__ import annotations

import json

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.event import EventState
from forewarn.core.fleet import Vm, resource_group_of_scope
from forewarn.core.history import LastPoll
from forewarn.core.projection import document_for
from forewarn.core.scope import Scope, scope_name
from forewarn.protocol.codec import encode_document
from forewarn.protocol.versions import NEWEST_VERSION
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.export import MAX_EXPORT_ROWS, ExportTable
from forewarn.web.portal.filters import PageQuery, items_on_page
from forewarn.web.portal.form_catalog import FormLink, form_links_for_scope
from forewarn.web.portal.status_card import EventStatusCard, next_event_card
from forewarn.web.portal.vm_grid import VmBlockView, vm_block_view
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.views import BaseView, EventView, ViewBuilder

_MAX_PAST_EVENTS = 20
_MAX_REMOVED_VMS = 20
_VMS_PER_PAGE = 15
_MAX_LIVE_EVENTS = 10


class ScopeMemberView(BaseView, frozen=True, kw_only=True):
    """A present VM of a scope, with its last poll. Field names are JSON keys and CSV columns.

    `is_silent` is true if the VM never polled, or if its last poll or long poll ended over a minute of real time ago;
    after a restart of the service, that minute counts from the restart.
    """

    key: str  # `subscription id/resource group/name` in lower case
    name: str  # the name of the VM
    state: str  # a VmState: running, noticed, started, frozen, rebooting, moving, stopped, deallocated or gone
    update_domain: int  # from 0
    fault_domain: int  # from 0
    host: str  # "": on none
    last_polled_at: Timestamp | None  # None: never
    polled_version: str | None  # the api-version of its last poll; None: it never polled
    polls: int  # how many it has sent so far
    is_silent: bool  # it does not poll now


class RemovedVmView(BaseView, frozen=True, kw_only=True):
    """A VM that was removed from a scope. Field names are JSON keys."""

    key: str  # `subscription id/resource group/name` in lower case
    name: str  # the name of the VM
    removed_at: Timestamp


class ScopePage(BaseView, frozen=True, kw_only=True):
    """The page of one scope. Field names are JSON keys.

    `document` has the events of all VMs, even if `is_narrow`. If the scope is not enabled, the first poll of a VM
    enables it and receives the document, with incarnation 1.
    """

    id: str  # such as `set:SUBSCRIPTION/GROUP/NAME` in lower case
    title: str  # such as `web` or `workers/pg-0`
    card: EventStatusCard | None  # the live event that matters next; None: there is none
    enabled: bool  # whether scheduled events are enabled for it
    enabled_at: Timestamp | None  # None: it is not enabled
    epoch: int  # how often it was enabled or reset
    incarnation: int  # the incarnation of its document, within the epoch
    forms: tuple[FormLink, ...]  # that the user may submit for it
    block: VmBlockView  # all VMs that the user may see as a grid, and how the scope polls
    vms: tuple[ScopeMemberView, ...]  # that the user may see, 15 per page; in an export all
    page: int  # its number, from 1
    pages: int  # how many there are
    gone: tuple[RemovedVmView, ...]  # removed VMs that the user may see, the last removed first, at most 20
    events: tuple[EventView, ...]  # live events, in order of publication; the first 10, in an export all
    more_events: int  # live events that are left out
    over: tuple[EventView, ...]  # past events, newest first, at most 20
    api_version: str  # of `document`
    document: str  # JSON that its VMs receive now, indented
    is_narrow: bool  # each VM receives only the events that affect it

    @property
    def resource_group(self) -> str:
        """The name of the resource group of the scope's VMs, in lower case."""
        return resource_group_of_scope(self.id).partition("/")[2]

    def table(self) -> ExportTable:
        """Return the CSV export: one row per VM of `vms`; the columns are the fields of ScopeMemberView."""
        columns = ScopeMemberView.__struct_fields__
        return ExportTable(columns=columns, rows=[[getattr(vm, name) for name in columns] for vm in self.vms])


async def show_scope_page(context: PortalContext, call: HandlerCall, query: PageQuery) -> ScopePage:
    """Show one scope: its VMs with their polls, its events, and the document that its VMs receive."""
    await context.dependencies.flush_observations()
    scope = context.find_scope(call.path_params["id"])
    polls = {last_poll.vm: last_poll for last_poll in context.store.last_polls(scope_id=scope.id)}
    vms = [vm for vm in scope.present_vms if context.can_see(vm)]
    past_events = context.store.events(scope_id=scope.id, statuses=[EventState.OVER], limit=_MAX_PAST_EVENTS)
    views = ViewBuilder(context)
    title, live_events = scope_name(scope), scope.live_events()
    max_events = MAX_EXPORT_ROWS if call.for_export else _MAX_LIVE_EVENTS
    shown, pages = items_on_page(vms, query.page, MAX_EXPORT_ROWS if call.for_export else _VMS_PER_PAGE)
    return ScopePage(
        id=scope.id,
        title=title,
        card=next_event_card(context, live_events),
        enabled=scope.is_enabled,
        enabled_at=timestamp(scope.enabled_at),
        epoch=scope.epoch,
        incarnation=scope.incarnation,
        forms=form_links_for_scope(context),
        block=vm_block_view(
            [scope], vms, {vm.key for vm in vms}, context.dependencies.pace_of, context.overview, title=title
        ),
        vms=tuple(_member_view(context, vm, polls.get(vm.key)) for vm in shown),
        page=query.page,
        pages=pages,
        gone=_removed_vms(context, scope),
        events=views.events(live_events[:max_events]),
        more_events=max(0, len(live_events) - max_events),
        over=views.events(reversed(past_events)),
        api_version=NEWEST_VERSION,
        document=_document_text(scope),
        is_narrow=scope.is_narrow,
    )


def _member_view(context: PortalContext, vm: Vm, last_poll: LastPoll | None) -> ScopeMemberView:
    pace = context.dependencies.pace_of(vm.key)
    return ScopeMemberView(
        key=vm.key,
        name=vm.name,
        state=context.overview.state_of(vm.key),
        update_domain=vm.update_domain,
        fault_domain=vm.fault_domain,
        host=vm.host,
        last_polled_at=timestamp(last_poll.at if last_poll else None),
        polled_version=last_poll.version if last_poll else None,
        polls=last_poll.count if last_poll else 0,
        is_silent=pace is None or pace.is_silent,
    )


def _removed_vms(context: PortalContext, scope: Scope) -> tuple[RemovedVmView, ...]:
    all_vms = [vm for vm in context.store.vms(scope_id=scope.id, removed=True) if context.can_see(vm)]
    gone = [
        RemovedVmView(key=vm.key, name=vm.name, removed_at=timestamp(vm.removed_at))
        for vm in all_vms
        if vm.removed_at is not None
    ]
    return tuple(sorted(gone, key=lambda vm: vm.removed_at, reverse=True)[:_MAX_REMOVED_VMS])


def _document_text(scope: Scope) -> str:
    return json.dumps(json.loads(encode_document(document_for(scope), NEWEST_VERSION)), indent=2)
