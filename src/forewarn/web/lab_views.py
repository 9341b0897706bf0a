"""Builds views of faults, fault storms and replays."""

from __future__ import annotations

import logging

from forewarn.base.times import timestamp
from forewarn.core.faults import FAULT_DEFINITIONS, Fault, FaultCategory, FaultDefinition, FaultKind, FaultStorm
from forewarn.core.replay import describe_step
from forewarn.core.request import MaintenanceRequest
from forewarn.errors import Unavailable
from forewarn.web.context import RequestContext
from forewarn.web.fault_views import FaultKindView, FaultParameterView, FaultsView, FaultView, StormFaultView, StormView
from forewarn.web.views import ReplayView

log = logging.getLogger(__name__)
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
