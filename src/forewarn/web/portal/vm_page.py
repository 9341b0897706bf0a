"""The page of one VM: facts, how to poll as it does, its events, active faults and explanation."""

from __future__ import annotations

import re

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.event import EventState
from forewarn.core.explain.explanation import Explanation, vm_state
from forewarn.core.fleet import Vm
from forewarn.core.resource_ids import vm_resource_id
from forewarn.protocol.versions import NEWEST_VERSION
from forewarn.web.context import RequestContext
from forewarn.web.explain import explain_vm
from forewarn.web.faults import FaultView, read_faults
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.form_catalog import FormLink, form_links_for_vm
from forewarn.web.portal.status_card import EventStatusCard, next_event_card
from forewarn.web.queries import event_lists_vm
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.views import BaseView, EventView, ViewBuilder, VmSupervisorView, VmView, vm_supervisor_view

_MAX_PAST_EVENTS_READ = 500  # of its scope, to find those of the VM
_MAX_PAST_EVENTS = 20
# Sentences of an explanation that the status card and the table of events replace, with a running countdown.
_EVENT_STATE_SENTENCE = re.compile(r"[^(]+\([0-9A-F-]{36}\): It (is scheduled|started)")


class VmPage(BaseView, frozen=True, kw_only=True):
    """The page of one VM, present or removed. Field names are JSON keys."""

    vm: VmView  # its settings, its place and its last poll
    state: str  # a VmState: running, noticed, started, frozen, rebooting, moving, stopped, deallocated or gone
    card: EventStatusCard | None  # the live event that matters next; None: none affects it
    resource: str  # its Azure resource id
    removed_at: Timestamp | None  # None: it exists
    poll: str  # a curl command that polls as the VM does; "" if the VM has no address of its own, or was removed
    forms: tuple[FormLink, ...]  # that the user may submit for it
    events: tuple[EventView, ...]  # live events that affect it, in order of publication
    over: tuple[EventView, ...]  # past ones, newest first, at most 20
    faults: tuple[FaultView, ...]  # active for it; empty for users who may not see everything
    supervisor: VmSupervisorView | None  # the connected supervisor of a namespace VM; None: there is none
    explanation: Explanation  # what happened to it, and whether it polls, in sentences

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the VM now, without those that say that an event is scheduled or has started."""
        return tuple(sentence for sentence in self.explanation.now if not _EVENT_STATE_SENTENCE.match(sentence))

    def table(self) -> ExportTable:
        """Return the CSV export: one row per event of the page, live ones first, at most 20 past ones."""
        return _events_export_table((*self.events, *self.over))


async def show_vm_page(context: RequestContext, call: HandlerCall) -> VmPage:
    """Show one VM, present or removed."""
    vm = context.directory.find_any(call.path_params["name"])
    await context.dependencies.flush_observations()
    explanation = await explain_vm(context, vm)
    faults = await _active_faults(context, vm)
    scope = context.store.scope(vm.scope_id)
    views = ViewBuilder(context)
    view = views.vm(vm)
    live_events = (
        [event for event in scope.live_events() if event_lists_vm(event, vm.name)] if scope is not None else []
    )
    past_events = context.store.events(scope_id=vm.scope_id, statuses=[EventState.OVER], limit=_MAX_PAST_EVENTS_READ)
    over = [event for event in reversed(past_events) if event_lists_vm(event, vm.name)][:_MAX_PAST_EVENTS]
    supervisor = context.dependencies.vm_supervisors().get(vm.key)
    return VmPage(
        vm=view,
        state=vm_state(vm, scope.live_events() if scope is not None else ()),
        card=next_event_card(context, live_events),
        resource=vm_resource_id(vm),
        removed_at=timestamp(vm.removed_at),
        poll=_poll_command(view) if vm.removed_at is None else "",
        forms=form_links_for_vm(context, vm, scope),
        events=views.events(live_events),
        over=views.events(over),
        faults=faults,
        supervisor=vm_supervisor_view(vm.name, supervisor) if supervisor is not None else None,
        explanation=explanation,
    )


def _poll_command(vm: VmView) -> str:
    return f"curl -H Metadata:true '{vm.url}?api-version={NEWEST_VERSION}'" if vm.url else ""


async def _active_faults(context: RequestContext, vm: Vm) -> tuple[FaultView, ...]:
    if not context.can_see_everything():
        return ()
    active = context.control.faults.active.faults
    ids = {fault.id for fault in active if fault.covers_request(scope_id=vm.scope_id, vm=vm.key)}
    return tuple(fault for fault in (await read_faults(context)).faults if fault.id in ids) if ids else ()


def _events_export_table(events: tuple[EventView, ...]) -> ExportTable:
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
