"""Request handlers: create, preview and show requests, start a VM's pending platform maintenance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from forewarn.control.control_plane import ControlPlane
from forewarn.control.dry_run import dry_run_request
from forewarn.core.explain.preview import Preview
from forewarn.core.faults import hide_faults
from forewarn.core.fleet import Vm
from forewarn.core.limits import DurationSeconds, NonEmptyText
from forewarn.core.request import MaintenanceRequest, RequestedOperation
from forewarn.core.resource_ids import vm_resource_id
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, StrictBody, reject_duplicates
from forewarn.web.request_views import replaced_event_ids, request_events, request_status
from forewarn.web.view_builder import ViewBuilder, request_view
from forewarn.web.views import ReceiptView, RequestStatusView


class NewMaintenanceRequest(StrictBody, frozen=True, kw_only=True):
    """An `operation` on VMs, each named once.

    `notice_s` is in seconds of lab time. 0 means the minimum or, with `short_notice`, no notice; a notice shorter than
    the minimum needs `short_notice`. The minimum is 15 minutes for a restart, 10 for a redeploy, 30 seconds for an
    eviction; for delete and scale-in it is the VM's terminate notification, for a reimage its OS image notification,
    and a VM without one is deleted or reimaged at once. A rebalance recommendation has no impact, and needs no notice.
    All other operations are performed at once. An operation that is performed at once is refused with `notice_s` or
    `short_notice`. While scheduled events are disabled in a scope, operations of users are performed at once there. The
    letter case of names is ignored.
    """

    operation: Literal[
        "restart",
        "redeploy",
        "evict",
        "recommend-rebalance",
        "delete",
        "scale-in",
        "power-off",
        "start",
        "deallocate",
        "reapply",
        "reimage",
    ]
    vms: Annotated[tuple[NonEmptyText, ...], Meta(min_length=1, max_length=10_000)]  # name, `group/name` or key
    notice_s: DurationSeconds = 0  # lab time; 0: the minimum or, with `short_notice`, none
    short_notice: bool = False  # allow a notice below the minimum


def vms_asked_for(context: RequestContext, call: HandlerCall) -> Iterable[str]:
    """Return the resource ids of the VMs that the body of the call, a NewMaintenanceRequest, names."""
    context.require_any_role()
    return [vm_resource_id(context.directory.find(name)) for name in call.parse_body(NewMaintenanceRequest).vms]


async def create_request(context: RequestContext, call: HandlerCall, body: NewMaintenanceRequest) -> ReceiptView:
    """Request an operation on VMs: it is accepted for all of them or for none."""
    receipt = await context.control.requests.request_for_vms(
        RequestedOperation(body.operation),
        _named_vms(context, body),
        who=context.caller_name,
        notice_s=body.notice_s,
        short_notice=body.short_notice,
        key=call.request_key,
    )
    return await receipt_view(context, receipt.request)


def _named_vms(context: RequestContext, body: NewMaintenanceRequest) -> list[Vm]:
    vms = [context.directory.find(name) for name in body.vms]
    reject_duplicates(body.vms, [vm.key for vm in vms])
    return vms


async def perform_maintenance(context: RequestContext, call: HandlerCall) -> ReceiptView:
    """Start the pending platform maintenance of a VM now."""
    vm = context.directory.find(call.path_params["name"])
    receipt = await context.control.requests.perform_maintenance([vm], who=context.caller_name, key=call.request_key)
    return await receipt_view(context, receipt.request)


async def receipt_view(context: RequestContext, request: MaintenanceRequest) -> ReceiptView:
    """Wait for the reconciler, then return the view of a request with its published or approved events."""
    await context.wait_for_reconciler()
    events, view_builder = request_events(context, request), ViewBuilder(context)
    replaced = replaced_event_ids(events)
    return ReceiptView(
        request=request_view(request),
        events=view_builder.events(events),
        scopes=view_builder.scopes_of(events),
        replaced=replaced,
        replaced_events=view_builder.events(event for event in map(context.store.event, replaced) if event is not None),
    )


async def show_request(context: RequestContext, call: HandlerCall) -> RequestStatusView:
    """Show the state of a request, its events and what they wait for."""
    return request_status(context, context.find_request(call.path_params["id"]))


async def preview_request(context: RequestContext, call: HandlerCall, body: NewMaintenanceRequest) -> Preview:
    """Preview a request: its events and their times."""
    vms = _named_vms(context, body)
    who = context.caller_name

    async def operation(control: ControlPlane) -> MaintenanceRequest:
        receipt = await control.requests.request_for_vms(
            RequestedOperation(body.operation), vms, who=who, notice_s=body.notice_s, short_notice=body.short_notice
        )
        return receipt.request

    await context.dependencies.flush_observations()
    async with context.dependencies.preview_locks.for_caller(context.principal.id):
        preview = await dry_run_request(context.control, operation, vms)
    return preview if context.can_see_everything() else _without_faults(preview)


def _without_faults(preview: Preview) -> Preview:
    """The preview for a caller who may not list faults."""
    events = tuple(replace(e, note=hide_faults(e.note), reason=hide_faults(e.reason)) for e in preview.events)
    return replace(
        preview,
        events=events,
        summary=tuple(map(hide_faults, preview.summary)),
        confirm=tuple(map(hide_faults, preview.confirm)),
    )
