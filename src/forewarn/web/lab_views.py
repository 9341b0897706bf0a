"""Views of what only a lab has: faults, fault storms and replays."""

from __future__ import annotations

from forewarn.core.faults import FAULT_DEFINITIONS, Fault, FaultCategory, FaultDefinition, FaultKind, FaultStorm
from forewarn.core.replay import describe_step
from forewarn.core.request import MaintenanceRequest
from forewarn.web.context import RequestContext
from forewarn.web.views import (
    FaultKindView,
    FaultParameterView,
    FaultsView,
    FaultView,
    ReplayView,
    StormFaultView,
    StormView,
)

_RECENT_EVENTS = 1000  # events among which those that a fault touched are looked for


async def read_faults(context: RequestContext) -> FaultsView:
    await refresh_faults(context)
    book = context.control.faults.active
    return FaultsView(
        faults=tuple(fault_view(context, fault) for fault in book.faults),
        storms=tuple(storm_view(context, storm) for storm in book.storms),
        kinds=tuple(_fault_kind_view(kind, row) for kind, row in FAULT_DEFINITIONS.items()),
    )


async def refresh_faults(context: RequestContext) -> None:
    await context.dependencies.flush_observations()
    await context.control.faults.expire()


def fault_view(context: RequestContext, fault: Fault) -> FaultView:
    row = FAULT_DEFINITIONS[fault.kind]
    return FaultView(
        id=fault.id,
        kind=fault.kind,
        strikes=row.category,
        target=fault.name,
        vm=fault.vm_name,
        scope=fault.scope_id,
        who=fault.who,
        set_at=fault.set_at,
        parameters={name: fault.parameter(name) for name in row.parameters},
        count=fault.count,
        left=fault.remaining,
        left_s=fault_remaining_s(context, fault),
        touched=fault.touched,
        touched_at=fault.touched_at,
        events=() if row.category is FaultCategory.TRANSPORT else _touched_events(context, fault),
        seen=row.symptom,
    )


def _touched_events(context: RequestContext, fault: Fault) -> tuple[str, ...]:
    """Of those in the last while that it touched."""
    recent = context.store.events(scope_id=fault.scope_id or None, limit=_RECENT_EVENTS)
    return tuple(event.id for event in recent if fault.id in event.faults)


def fault_remaining_s(context: RequestContext, fault: Fault) -> float | None:
    if fault.until is None:
        return None
    now = context.control.faults.real_time() if fault.category is FaultCategory.TRANSPORT else context.now()
    return max(0.0, fault.until - now)


def storm_view(context: RequestContext, storm: FaultStorm) -> StormView:
    gusts = [
        StormFaultView(
            after_s=gust.after_s,
            kind=gust.kind,
            vm=vm.name if (vm := context.store.vm(gust.vm)) else gust.vm,
            count=gust.count,
            for_s=gust.for_s,
            parameters=gust.parameters,
            is_set=number < storm.gone,
        )
        for number, gust in enumerate(storm.gusts)
    ]
    return StormView(
        id=storm.id, seed=storm.seed, who=storm.who, set_at=storm.set_at, for_s=storm.for_s, gusts=tuple(gusts)
    )


def _fault_kind_view(kind: FaultKind, row: FaultDefinition) -> FaultKindView:
    parameters = {
        name: FaultParameterView(default=value.default, least=value.minimum, most=value.maximum)
        for name, value in row.parameters.items()
    }
    return FaultKindView(
        kind=kind, strikes=row.category, seen=row.symptom, parameters=parameters, longest_s=row.max_duration_s
    )


def read_replays(context: RequestContext) -> tuple[ReplayView, ...]:
    return tuple(replay_view(context, request) for request in context.control.replays.list_replays())


def replay_view(context: RequestContext, request: MaintenanceRequest) -> ReplayView:
    replay = request.replay
    assert replay is not None
    step = context.control.replays.current_step(request)
    return ReplayView(
        id=request.id,
        vm=replay.name,
        scope=replay.scope_id,
        who=request.who,
        at=request.at,
        speed=replay.speed,
        loops=replay.loops,
        loop=replay.loop + 1,
        step=replay.done,
        steps=replay.steps,
        shows=describe_step(step) if step else "",
        begun_at=replay.begun_at,
        ends_at=replay.ends_at,
        ended=replay.ended,
        ended_at=replay.ended_at,
        reason=replay.reason,
    )
