"""Fault handlers: list, set and clear faults, and start fault storms."""

from __future__ import annotations

from collections.abc import Callable

from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.faults import Fault, parse_fault_kind
from forewarn.core.scope import scope_name
from forewarn.errors import NotFound, Rejected, Remedy
from forewarn.web.context import RequestContext
from forewarn.web.fault_views import ClearedFaultsView, FaultsView, FaultView, StormView
from forewarn.web.lab_views import fault_view, read_faults, storm_view
from forewarn.web.request_parsing import ClearFaultsBody, HandlerCall, NewFault, NewStorm, reject_duplicates


async def list_faults(context: RequestContext, call: HandlerCall) -> FaultsView:
    """List the active faults and storms, and all kinds of faults."""
    return await read_faults(context)


async def set_fault(context: RequestContext, call: HandlerCall, body: NewFault) -> FaultView:
    """Set a fault for a VM, a scope or everything."""
    spec = FaultSpec(
        kind=parse_fault_kind(body.kind),
        target=_resolve_target(context, body),
        count=body.count,
        duration_s=body.duration_s,
        parameters=body.parameters,
    )
    fault = await context.control.faults.set(spec, who=context.caller_name)
    await context.wait_for_reconciler()
    return fault_view(context, fault)


async def clear_faults(context: RequestContext, call: HandlerCall, body: ClearFaultsBody) -> ClearedFaultsView:
    """Clear the faults that match every given field."""
    if not (body.ids or body.kind or body.vm or body.scope or body.all):
        raise Rejected("no faults are named: give their ids, a kind, a VM, a scope, or all")
    kind = parse_fault_kind(body.kind) if body.kind else None
    vm = context.directory.find_any(body.vm) if body.vm else None
    scope_id = context.find_scope(body.scope).id if body.scope else ""
    for name in body.ids:
        _require_active(context, name)

    def matches(fault: Fault) -> bool:
        return (
            (not body.ids or fault.id in body.ids)
            and (kind is None or fault.kind is kind)
            and (vm is None or fault.vm == vm.key)
            and (not scope_id or (fault.scope_id == scope_id and not fault.vm))
        )

    only_faults = kind is not None or vm is not None or scope_id
    storms = () if only_faults else (body.ids or tuple(storm.id for storm in context.control.faults.active.storms))
    return await _clear_matching(context, matches, storms)


async def clear_fault(context: RequestContext, call: HandlerCall) -> ClearedFaultsView:
    """Clear one fault or storm."""
    fault_id = call.path_params["id"]
    _require_active(context, fault_id)
    return await _clear_matching(context, lambda fault: fault.id == fault_id, (fault_id,))


async def start_fault_storm(context: RequestContext, call: HandlerCall, body: NewStorm) -> StormView:
    """Start a fault storm: faults at times that follow from a seed."""
    vms = [context.directory.find(name) for name in body.vms]
    reject_duplicates(body.vms, [vm.key for vm in vms])
    storm = await context.control.fault_storms.start(
        body.seed, vms or context.store.vms(), for_s=body.duration_s, who=context.caller_name
    )
    await context.wait_for_reconciler()
    return storm_view(context, next((s for s in context.control.faults.active.storms if s.id == storm.id), storm))


async def _clear_matching(
    context: RequestContext, matches: Callable[[Fault], bool], storms: tuple[str, ...]
) -> ClearedFaultsView:
    await context.dependencies.flush_observations()
    ended = await context.control.fault_storms.clear(storms, who=context.caller_name)
    cleared = await context.control.faults.clear(matches, who=context.caller_name)
    return ClearedFaultsView(
        cleared=tuple(fault_view(context, fault) for fault in cleared),
        storms=tuple(storm_view(context, storm) for storm in ended),
    )


def _resolve_target(context: RequestContext, body: NewFault) -> FaultTarget:
    if [bool(body.vm), bool(body.scope), body.all].count(True) != 1:
        raise Rejected("a fault is for a VM, a scope or everything: give one of vm, scope and all")
    if body.vm:
        vm = context.directory.find(body.vm)
        return FaultTarget(name=vm.name, vm=vm)
    if body.scope:
        scope = context.find_scope(body.scope)
        return FaultTarget(name=scope_name(scope), scope_id=scope.id)
    return FaultTarget()


def _require_active(context: RequestContext, name: str) -> None:
    active = context.control.faults.active
    if name not in {*(fault.id for fault in active.faults), *(storm.id for storm in active.storms)}:
        raise NotFound(f"fault {name!r} is not active", Remedy.LIST_FAULTS)
