"""Fault handlers: list, set and clear faults, and start fault storms."""

from __future__ import annotations

import logging
from collections.abc import Callable

from forewarn.base.times import Timestamp, timestamp
from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.core.faults import (
    FAULT_DEFINITIONS,
    Fault,
    FaultCategory,
    FaultDefinition,
    FaultKind,
    FaultStorm,
    parse_fault_kind,
)
from forewarn.core.replay import describe_step
from forewarn.core.request import MaintenanceRequest
from forewarn.core.scope import scope_name
from forewarn.errors import NotFound, Rejected, Remedy, Unavailable
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import ClearFaultsBody, HandlerCall, NewFault, NewStorm, reject_duplicates
from forewarn.web.views import BaseView, ReplayView

log = logging.getLogger(__name__)


class FaultView(BaseView, frozen=True, kw_only=True):
    """A fault, active or just ended: its kind, target, parameters, what is left and what it affected.

    `category` is what the kind affects: requests, events or at once. `symptom` is what VMs notice. `applied` is how
    many requests or events it affected (of a reset, scopes); `events` are the ids of those events, among the 1,000
    newest, oldest first.
    """

    id: str  # such as f1
    kind: str  # a value of FaultKind
    category: str  # what the kind affects: requests, events or at once
    target: str  # in words
    vm: str  # a name; empty for a fault of a scope or of the whole fleet
    scope: str  # an id; empty for a fault of the whole fleet
    set_by: str  # the name of who set it
    set_at: Timestamp
    parameters: dict[str, float]  # by name, with the defaults of the kind
    count: int | None  # it ends after this many requests or events; None: no limit
    remaining: int | None  # of its count; None: no limit
    remaining_s: float | None  # real time for faults on requests, lab time for those on events; None: until cleared
    applied: int  # how many requests or events it affected so far; of a reset, scopes
    last_applied_at: Timestamp | None  # of the last request; None: none so far, or a fault on events
    events: tuple[str, ...]  # ids of the events it affected, among the 1,000 newest, oldest first
    symptom: str  # what VMs notice of it, in words


class StormFaultView(BaseView, frozen=True, kw_only=True):
    """One scheduled fault of a fault storm; `after_s` is lab time since the storm began."""

    after_s: float  # lab time since the storm began
    kind: str  # a value of FaultKind
    vm: str  # its name
    count: int | None  # of requests or events that it affects; None: it happens at once
    duration_s: float | None  # real time for faults on requests, lab time for those on events; None: it happens at once
    parameters: dict[str, float]  # by name; others have the defaults of the kind
    is_set: bool  # it was set already, or skipped, as when the VM was removed


class StormView(BaseView, frozen=True, kw_only=True):
    """A fault storm (a random schedule of faults), active or just ended; `duration_s`: its length in lab time."""

    id: str  # such as s1
    seed: int  # the same seed, VMs and duration give the same schedule
    set_by: str  # the name of who set it
    set_at: Timestamp
    duration_s: float  # its duration, in seconds of lab time
    faults: tuple[StormFaultView, ...]  # its scheduled faults, in order


class FaultParameterView(BaseView, frozen=True, kw_only=True):
    """A parameter of a kind of fault: its default and its bounds, which are allowed themselves."""

    default: float  # seconds if the name of the parameter ends with `_s`, else a count
    minimum: float
    maximum: float


class FaultKindView(BaseView, frozen=True, kw_only=True):
    """A kind of fault: what it affects (`category`), what VMs notice (`symptom`), and its parameters.

    `max_duration_s` is its longest duration, and the default; with None it lasts until it is cleared.
    """

    kind: str  # a value of FaultKind
    category: str  # requests, events or at once
    symptom: str  # what VMs notice of it, in words
    parameters: dict[str, FaultParameterView]  # by name
    max_duration_s: float | None  # real time for faults on requests, lab time for those on events


class FaultsView(BaseView, frozen=True, kw_only=True):
    """The active faults, the active storms, and all kinds of faults that can be set."""

    faults: tuple[FaultView, ...]  # oldest first, also those that a storm has set
    storms: tuple[StormView, ...]  # random schedules of faults that are not all set yet; oldest first
    kinds: tuple[FaultKindView, ...]  # all that can be set


class ClearedFaultsView(BaseView, frozen=True, kw_only=True):
    """The faults and storms that a call ended; empty if none matched."""

    cleared: tuple[FaultView, ...]  # as they were, oldest first
    storms: tuple[StormView, ...]  # as they were, oldest first


_RECENT_EVENTS = 1000  # a fault's events are searched among these


async def read_faults(context: RequestContext) -> FaultsView:
    """Return all active faults and storms, and every kind of fault with its parameters."""
    await refresh_faults(context)
    active = context.control.faults.active
    return FaultsView(
        faults=tuple(fault_view(context, fault) for fault in active.faults),
        storms=tuple(storm_view(context, storm) for storm in active.storms),
        kinds=tuple(_fault_kind_view(kind, row) for kind, row in FAULT_DEFINITIONS.items()),
    )


async def refresh_faults(context: RequestContext) -> None:
    """Store what was observed until now, such as requests that faults affected, and remove expired faults.

    Call it before reading faults. If the store cannot be written, it logs that, and expired faults stay.
    """
    await context.dependencies.flush_observations()
    try:
        await context.control.faults.expire()
    except Unavailable as error:
        log.warning("expired faults could not be removed, will retry: %s", error)


def fault_view(context: RequestContext, fault: Fault) -> FaultView:
    """Return the view of a fault, active or just ended: what is left of it, and the events it affected."""
    row = FAULT_DEFINITIONS[fault.kind]
    return FaultView(
        id=fault.id,
        kind=fault.kind,
        category=row.category,
        target=fault.name,
        vm=fault.vm_name,
        scope=fault.scope_id,
        set_by=fault.set_by,
        set_at=timestamp(fault.set_at),
        parameters={name: fault.parameter(name) for name in row.parameters},
        count=fault.count,
        remaining=fault.remaining,
        remaining_s=fault_remaining_s(context, fault),
        applied=fault.applied,
        last_applied_at=timestamp(fault.last_applied_at),
        events=() if row.category is FaultCategory.TRANSPORT else _touched_events(context, fault),
        symptom=row.symptom,
    )


def _touched_events(context: RequestContext, fault: Fault) -> tuple[str, ...]:
    recent = context.store.events(scope_id=fault.scope_id or None, limit=_RECENT_EVENTS)
    return tuple(event.id for event in recent if fault.id in event.faults)


def fault_remaining_s(context: RequestContext, fault: Fault) -> float | None:
    """Return the seconds until the fault's time limit; None if it has no time limit.

    They are real time for faults on requests of VMs (transport), lab time for faults on events.
    """
    if fault.until is None:
        return None
    now = float(context.control.faults.real_time()) if fault.category is FaultCategory.TRANSPORT else context.now()
    return max(0.0, fault.until - now)


def storm_view(context: RequestContext, storm: FaultStorm) -> StormView:
    """Return the view of a fault storm, active or ended: its schedule, and which faults are done with."""
    faults = [
        StormFaultView(
            after_s=planned.after_s,
            kind=planned.kind,
            vm=vm.name if (vm := context.store.vm(planned.vm)) else planned.vm,
            count=planned.count,
            duration_s=planned.duration_s,
            parameters=planned.parameters,
            is_set=number < storm.gone,
        )
        for number, planned in enumerate(storm.faults)
    ]
    return StormView(
        id=storm.id,
        seed=storm.seed,
        set_by=storm.set_by,
        set_at=timestamp(storm.set_at),
        duration_s=storm.duration_s,
        faults=tuple(faults),
    )


def _fault_kind_view(kind: FaultKind, row: FaultDefinition) -> FaultKindView:
    parameters = {
        name: FaultParameterView(default=value.default, minimum=value.minimum, maximum=value.maximum)
        for name, value in row.parameters.items()
    }
    return FaultKindView(
        kind=kind, category=row.category, symptom=row.symptom, parameters=parameters, max_duration_s=row.max_duration_s
    )


def read_replays(context: RequestContext) -> tuple[ReplayView, ...]:
    """Return all running replays, and the ended ones among the 10,000 newest requests; oldest first."""
    return tuple(replay_view(context, request) for request in context.control.replays.list_replays())


def replay_view(context: RequestContext, request: MaintenanceRequest) -> ReplayView:
    """Return the view of a replay, running or ended, with the step that it shows now."""
    replay = request.replay
    assert replay is not None
    step = context.control.replays.current_step(request)
    return ReplayView(
        id=request.id,
        vm=replay.name,
        scope=replay.scope_id,
        requested_by=request.requested_by,
        requested_at=timestamp(request.requested_at),
        speed=replay.speed,
        loops=replay.loops,
        loop=replay.loop + 1,
        step=replay.done,
        steps=replay.steps,
        shown_document=describe_step(step) if step else "",
        loop_started_at=timestamp(replay.loop_started_at),
        ends_at=timestamp(replay.ends_at),
        outcome=replay.outcome,
        ended_at=timestamp(replay.ended_at),
        reason=replay.reason,
    )


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
