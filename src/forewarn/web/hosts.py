"""Host handlers: add, remove, degrade, fail, confirm down and repair a host; previews of some."""

from __future__ import annotations

from forewarn.base.wording import first_names
from forewarn.control.control_plane import ControlPlane
from forewarn.control.dry_run import RequestAction, dry_run_request
from forewarn.control.fleet import FleetChange
from forewarn.control.scope_transactions import retry_on_conflict
from forewarn.core.explain.preview import Preview, preview_to_confirm
from forewarn.core.fleet import Host
from forewarn.core.fleetfile.tables import plain_name_error
from forewarn.core.limits import DurationSeconds, Name, NonEmptyText
from forewarn.core.request import MaintenanceRequest
from forewarn.errors import Refused, Rejected
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.requests import receipt_view
from forewarn.web.views import HostView, ReceiptView, ViewBuilder


class NewHost(StrictBody, frozen=True, kw_only=True):
    """A host to add; it is healthy and has no VMs."""

    name: NonEmptyText  # at most 64 printable characters, without slashes, backslashes and braces, no blanks around it
    location: NonEmptyText  # such as westeurope
    zone: Name = ""  # "": none


class DegradeHostBody(StrictBody, frozen=True, kw_only=True):
    """In how many seconds a host is predicted to fail; the events that move its VMs away have this notice.

    A notice below the minimum of 10 minutes needs `short_notice`.
    """

    in_s: DurationSeconds  # seconds of lab time from now; 0: the minimum (10 min) or, with `short_notice`, no notice
    short_notice: bool = False  # allow a notice below the minimum


async def add_host(context: RequestContext, call: HandlerCall, body: NewHost) -> HostView:
    """Add a host to the fleet."""
    if problem := plain_name_error(body.name, limit=64):
        raise Rejected(f"the host name {body.name!r} {problem}: give a plain name such as 'host-0'")
    host = Host(name=body.name, location=body.location, zone=body.zone)

    async def attempt() -> None:
        versions = context.control.fleet.versions()
        if body.name.casefold() in map(str.casefold, versions.hosts):
            raise Refused(f"host {body.name!r} exists already: give another name")
        change = FleetChange(hosts=(host,), text=f"host {host.name} added", decided_on=versions)
        await context.control.fleet.apply_change(change, who=context.caller_name)

    await retry_on_conflict(attempt, f"host {body.name!r}")
    return ViewBuilder(context).host(host)


async def remove_host(context: RequestContext, call: HandlerCall) -> HostView:
    """Remove a host without VMs."""
    host = context.control.requests.host(call.path_params["name"])
    change = FleetChange(removed_hosts=(host.name,), text=f"host {host.name} removed")
    await context.control.fleet.apply_change(change, who=context.caller_name)
    return ViewBuilder(context).host(host, ())


async def degrade_host(context: RequestContext, call: HandlerCall, body: DegradeHostBody) -> ReceiptView:
    """Predict that a host will fail, so that its VMs are moved away."""
    receipt = await context.control.requests.degrade_host(
        call.path_params["name"],
        who=context.caller_name,
        notice_s=body.in_s,
        short_notice=body.short_notice,
        key=call.request_key,
    )
    return await receipt_view(context, receipt.request)


async def fail_host(context: RequestContext, call: HandlerCall) -> ReceiptView:
    """Fail a host without notice."""
    receipt = await context.control.requests.fail_host(
        call.path_params["name"], who=context.caller_name, key=call.request_key
    )
    return await receipt_view(context, receipt.request)


async def repair_host(context: RequestContext, call: HandlerCall) -> HostView:
    """Mark a host as healthy again."""
    repaired = await context.control.requests.repair_host(call.path_params["name"], who=context.caller_name)
    return ViewBuilder(context).host(repaired)


async def confirm_host_down(context: RequestContext, call: HandlerCall) -> HostView:
    """State that a host is certainly down, so that its VMs may be started elsewhere."""
    confirmed = await context.control.host_statements.confirm_down(call.path_params["name"], who=context.caller_name)
    return ViewBuilder(context).host(confirmed)


async def preview_degrade_host(context: RequestContext, call: HandlerCall, body: DegradeHostBody) -> Preview:
    """Preview the events of predicting that a host will fail."""
    name, who = call.path_params["name"], context.caller_name

    async def operation(control: ControlPlane) -> MaintenanceRequest:
        receipt = await control.requests.degrade_host(name, who=who, notice_s=body.in_s, short_notice=body.short_notice)
        return receipt.request

    return await _preview_for_host(context, name, operation)


async def preview_fail_host(context: RequestContext, call: HandlerCall) -> Preview:
    """Preview the events of failing a host."""
    name, who = call.path_params["name"], context.caller_name

    async def operation(control: ControlPlane) -> MaintenanceRequest:
        return (await control.requests.fail_host(name, who=who)).request

    return await _preview_for_host(context, name, operation)


async def preview_remove_host(context: RequestContext, call: HandlerCall) -> Preview:
    """Preview the removal of a host."""
    host = context.control.requests.host(call.path_params["name"])
    await context.control.fleet.check_change(FleetChange(removed_hosts=(host.name,)))
    return preview_to_confirm(context.now(), f"Host {host.name} is removed from the fleet at once.")


async def preview_confirm_host_down(context: RequestContext, call: HandlerCall) -> Preview:
    """Preview the statement that a host is certainly down."""
    host = context.control.host_statements.check_confirm_down(call.path_params["name"])
    names = [vm.name for vm in context.store.vms(host=host.name)]
    vms = f"These VMs may then be started elsewhere: {first_names(names)}." if names else "It has no VMs."
    return preview_to_confirm(
        context.now(), vms, f"If host {host.name} still runs, its VMs will run twice and damage their disks."
    )


async def _preview_for_host(context: RequestContext, name: str, operation: RequestAction) -> Preview:
    """Runs the operation on a copy, for the VMs on the host and those moving to it."""
    host = context.control.requests.host(name)
    moving = map(context.store.vm, context.control.placement.vms_moving_to(host.name))
    vms = [*context.store.vms(host=host.name), *(vm for vm in moving if vm is not None)]
    await context.dependencies.flush_observations()
    async with context.dependencies.preview_locks.for_caller(context.principal.id):
        return await dry_run_request(context.control, operation, list({vm.key: vm for vm in vms}.values()))
