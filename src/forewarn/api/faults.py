"""Fault handlers: list, set and clear faults, and start fault storms."""

from __future__ import annotations

from collections.abc import Callable

from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.faults import Fault, parse_fault_kind
from forewarn.core.scope import scope_title
from forewarn.errors import NotFound, Rejected, Remedy
from forewarn.web.context import RequestContext
from forewarn.web.fault_views import ClearedFaultsView, FaultsView, FaultView, StormView
from forewarn.web.lab_views import fault_view, read_faults, storm_view
from forewarn.web.request_parsing import ClearFaultsBody, HandlerCall, NewFault, NewStorm, reject_duplicates


async def list_faults(context: RequestContext, call: HandlerCall) -> FaultsView:
    """List the active faults and storms, and all kinds of faults.

    First stores, durably, which requests the faults have affected so far, and removes expired faults.
    """
    return await read_faults(context)


async def set_fault(context: RequestContext, call: HandlerCall, body: NewFault) -> FaultView:
    """Set a fault for a VM, a scope or everything.

    Returns the fault as it was set. A fault that happens at once has happened on return, in each scope of its target
    whose state allows it, and is not active. Raises NotFound for an unknown name, Rejected for a bad target, kind,
    limit or parameter, Refused if 1,000 faults are active, a name is ambiguous or no scope allows a fault that happens
    at once, and Unavailable if the store cannot be written; a fault that happens at once may then have happened in some
    scopes. The history gets an entry.
    """
    spec = FaultSpec(
        kind=parse_fault_kind(body.kind),
        target=_resolve_target(context, body),
        count=body.count,
        for_s=body.for_s,
        parameters=body.parameters,
    )
    fault = await context.control.faults.set(spec, who=context.caller_name)
    await context.wait_for_reconciler()
    return fault_view(context, fault)


async def clear_faults(context: RequestContext, call: HandlerCall, body: ClearFaultsBody) -> ClearedFaultsView:
    """Clear the faults that match every given field.

    `vm` and `scope` match only faults that were set for exactly that VM or scope. Storms with the given ids, or all
    storms with `all`, are also cleared, unless a kind, VM or scope is given. Returns what was cleared, which is empty
    if nothing matches. Raises Rejected if no field is given or for an unknown kind, NotFound for an unknown name or an
    id that is not active (then nothing is cleared), Refused for an ambiguous name, and Unavailable if the store cannot
    be written; storms may then have been cleared. What faults did, and faults that a storm has set, stay. The history
    gets an entry for each.
    """
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
    """Clear one fault or storm.

    The path parameter `id` is the full, exact id of the fault or storm. Returns what was cleared. Faults that a storm
    has set stay. Raises NotFound unless the id is active. The history gets an entry.
    """
    fault_id = call.path_params["id"]
    _require_active(context, fault_id)
    return await _clear_matching(context, lambda fault: fault.id == fault_id, (fault_id,))


async def start_fault_storm(context: RequestContext, call: HandlerCall, body: NewStorm) -> StormView:
    """Start a fault storm: faults at times that follow from a seed.

    A storm that names no VM affects all. Equal seeds, VMs and durations give equal faults. Returns the storm with its
    schedule; faults that are due at once are set already. Raises NotFound for an unknown VM, Rejected for a VM named
    twice or a duration over 24 hours or not above 0, Refused if the fleet has no VM or a name is ambiguous, and
    Unavailable if the store cannot be written. The history gets an entry.
    """
    vms = [context.directory.find(name) for name in body.vms]
    reject_duplicates(body.vms, [vm.key for vm in vms])
    storm = await context.control.fault_storms.start(
        body.seed, vms or context.store.vms(), for_s=body.for_s, who=context.caller_name
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
        return FaultTarget(name=scope_title(scope), scope_id=scope.id)
    return FaultTarget()


def _require_active(context: RequestContext, name: str) -> None:
    active = context.control.faults.active
    if name not in {*(fault.id for fault in active.faults), *(storm.id for storm in active.storms)}:
        raise NotFound(f"fault {name!r} is not active", Remedy.LIST_FAULTS)
