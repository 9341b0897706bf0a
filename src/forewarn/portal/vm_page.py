"""The page of one VM: facts, how to poll as it does, its events, active faults and explanation."""

from __future__ import annotations

from forewarn.core.event import EventState
from forewarn.core.fleet import Vm
from forewarn.core.resource_ids import vm_resource_id
from forewarn.explain.explanation import Explanation
from forewarn.explain.vm_state import vm_state
from forewarn.portal.export import ExportTable
from forewarn.portal.form_links import FormLink, form_links_for_vm
from forewarn.protocol.versions import NEWEST_VERSION
from forewarn.web.context import RequestContext
from forewarn.web.explanations import explain_vm
from forewarn.web.lab_views import read_faults
from forewarn.web.queries import event_lists_vm
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.view_builder import ViewBuilder
from forewarn.web.view_builder import vm_supervisor_view as keeper_view
from forewarn.web.views import BaseView, EventView, FaultView, VmSupervisorView, VmView

_MAX_PAST_EVENTS_READ = 500  # events of its scope that are over
_MAX_PAST_EVENTS = 20


class VmPage(BaseView, frozen=True, kw_only=True):
    vm: VmView
    state: str
    resource: str
    removed_at: float | None
    poll: str  # a command that asks as the VM does; "" where that cannot be done from outside
    forms: tuple[FormLink, ...]
    events: tuple[EventView, ...]
    over: tuple[EventView, ...]  # newest first
    faults: tuple[FaultView, ...]  # for those who see everything
    keeper: VmSupervisorView | None
    story: Explanation

    def table(self) -> ExportTable:
        return events_export_table((*self.events, *self.over))


async def show_vm_page(context: RequestContext, call: HandlerCall) -> VmPage:
    """One VM, also one that is gone."""
    vm = context.directory.find_any(call.path_params["name"])
    await context.dependencies.flush_observations()
    story = await explain_vm(context, vm)
    faults = await _active_faults(context, vm)
    scope = context.store.scope(vm.scope_id)
    showing = ViewBuilder(context)
    view = showing.vm(vm)
    live = [event for event in scope.live_events() if event_lists_vm(event, vm.name)] if scope is not None else []
    past = context.store.events(scope_id=vm.scope_id, statuses=[EventState.OVER], limit=_MAX_PAST_EVENTS_READ)
    over = [event for event in reversed(past) if event_lists_vm(event, vm.name)][:_MAX_PAST_EVENTS]
    keeper = context.dependencies.vm_supervisors().get(vm.key)
    return VmPage(
        vm=view,
        state=vm_state(vm, scope.live_events() if scope is not None else ()),
        resource=vm_resource_id(vm),
        removed_at=vm.removed_at,
        poll=_poll_command(view) if vm.removed_at is None else "",
        forms=form_links_for_vm(context, vm, scope),
        events=showing.events(live),
        over=showing.events(over),
        faults=faults,
        keeper=keeper_view(vm.name, keeper) if keeper is not None else None,
        story=story,
    )


def _poll_command(vm: VmView) -> str:
    return f"curl -H Metadata:true '{vm.url}?api-version={NEWEST_VERSION}'" if vm.url else ""


async def _active_faults(context: RequestContext, vm: Vm) -> tuple[FaultView, ...]:
    """Those that are on for it, as the API lists them: for those who may read everything."""
    if not context.can_see_everything():
        return ()
    book = context.control.faults.active
    about_it = {fault.id for fault in book.faults if fault.covers_request(scope_id=vm.scope_id, vm=vm.key)}
    return tuple(one for one in (await read_faults(context)).faults if one.id in about_it) if about_it else ()


def events_export_table(events: tuple[EventView, ...]) -> ExportTable:
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
    return ExportTable(columns=columns, rows=rows)
