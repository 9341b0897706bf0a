"""Rollout handlers: start, plan, preview, show, pause, resume and abort."""

from __future__ import annotations

import asyncio

from forewarn.base.times import Timestamp, timestamp
from forewarn.control.dry_run import dry_run_rollout
from forewarn.control.rollout_plan import plan_rollout
from forewarn.core.explain.polling import PollingState, polling_state
from forewarn.core.explain.preview import Preview, preview_to_confirm
from forewarn.core.explain.rollout_plan import RolloutPlan
from forewarn.core.fleet import Vm
from forewarn.core.limits import Reason
from forewarn.core.request import MaintenanceRequest, RolloutState
from forewarn.errors import Rejected
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.request_views import read_rollouts, rollout_fields, rollout_view
from forewarn.web.rollout_bodies import NewRollout, read_new_rollout
from forewarn.web.rollout_checks import TriedChecksView, tried_check_view
from forewarn.web.rollout_views import RolloutsView, RolloutView, RolloutWithEvents
from forewarn.web.view_builder import ViewBuilder
from forewarn.web.views import BaseView


class NewHold(StrictBody, frozen=True, kw_only=True):
    """A hold to set on all rollouts, with its reason, which everybody sees."""

    reason: Reason  # for people


class HoldView(BaseView, frozen=True, kw_only=True):
    """Whether all rollouts are on hold; if so, why, since when, and who set the hold."""

    is_held: bool  # whether they are on hold now
    reason: str = ""  # as it was given; "": not on hold
    set_by: str = ""  # the name of who set it; "": not on hold
    set_at: Timestamp | None = None  # None: not on hold


async def show_hold(context: RequestContext, call: HandlerCall) -> HoldView:
    """Show whether all rollouts are on hold, and why."""
    hold = context.control.rollouts.hold
    if hold is None:
        return HoldView(is_held=False)
    return HoldView(is_held=True, reason=hold.reason, set_by=hold.set_by, set_at=timestamp(hold.set_at))


async def hold_rollouts(context: RequestContext, call: HandlerCall, body: NewHold) -> HoldView:
    """Hold all rollouts: they publish nothing, and no event of theirs starts without an approval."""
    await context.control.rollouts.holds.set_hold(body.reason, who=context.caller_name)
    return await show_hold(context, call)


async def lift_hold(context: RequestContext, call: HandlerCall) -> HoldView:
    """Lift the hold on all rollouts; events whose notice has ended start."""
    await context.control.rollouts.holds.lift_hold(who=context.caller_name)
    await context.wait_for_reconciler()
    return await show_hold(context, call)


async def start_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> RolloutView:
    """Start a rollout over hosts, a scope, a tag, a location or everything, given by fields or as a file."""
    wanted = read_new_rollout(context, body)
    with wanted.located():
        request = await context.control.rollout_requests.start(
            wanted.rollout,
            who=context.caller_name,
            notice_s=wanted.notice_s,
            short_notice=wanted.short_notice,
            key=call.request_key,
        )
    return await current_rollout_view(context, request)


async def current_rollout_view(context: RequestContext, request: MaintenanceRequest) -> RolloutView:
    """Wait for the reconciler, then return the view of the rollout of this request, as it is now."""
    await context.wait_for_reconciler()
    return rollout_view(context, request.id)


async def list_rollouts(context: RequestContext, call: HandlerCall) -> RolloutsView:
    """List the open rollouts and recent ones."""
    return RolloutsView(rollouts=read_rollouts(context))


async def show_rollout(context: RequestContext, call: HandlerCall) -> RolloutWithEvents:
    """Show one rollout with its events."""
    request = context.find_rollout(call.path_params["id"])
    events = ViewBuilder(context).events(context.store.events(request_id=request.id))
    return RolloutWithEvents(events=events, **rollout_fields(context, request.id))


async def pause_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Pause a rollout: it announces no events until it is resumed."""
    return await _set_progress(context, call, RolloutState.PAUSED)


async def resume_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Resume a paused rollout."""
    return await _set_progress(context, call, RolloutState.RUNNING)


async def abort_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Abort a rollout and withdraw its events that have not started."""
    return await _set_progress(context, call, RolloutState.ABORTED)


async def preview_abort_rollout(context: RequestContext, call: HandlerCall) -> Preview:
    """Preview the abort of a rollout."""
    found = context.find_rollout(call.path_params["id"])
    request = context.control.rollout_requests.check_state_change(found.id, RolloutState.ABORTED)
    assert request.rollout is not None
    tally = context.control.rollouts.tally_of(request, request.rollout)
    counts = f"{tally.done} of {tally.total} VMs are done, {tally.started} started"
    return preview_to_confirm(
        context.now(),
        f"Rollout {request.id} ends: {counts}; its events that have not started ({tally.scheduled} VMs) are withdrawn.",
        "An aborted rollout cannot be resumed: VMs that are not done stay without the maintenance.",
    )


async def _set_progress(context: RequestContext, call: HandlerCall, progress: RolloutState) -> RolloutView:
    request = context.find_rollout(call.path_params["id"])
    await context.control.rollout_requests.change_state(request.id, progress, who=context.caller_name)
    if progress is not RolloutState.PAUSED:  # a pause needs no pass, and one may take long just then
        await context.wait_for_reconciler()
    return rollout_view(context, request.id)


async def preview_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> Preview:
    """Preview a rollout: its events in order and their times if no VM approves."""
    wanted = read_new_rollout(context, body)
    await context.dependencies.flush_observations()
    async with context.dependencies.preview_locks.for_caller(context.principal.id):
        with wanted.located():
            return await dry_run_rollout(
                context.control,
                wanted.rollout,
                who=context.caller_name,
                notice_s=wanted.notice_s,
                short_notice=wanted.short_notice,
            )


async def try_rollout_checks(context: RequestContext, call: HandlerCall, body: NewRollout) -> TriedChecksView:
    """Perform each health check of a rollout once, and show what it finds; starts and stores nothing."""
    wanted = read_new_rollout(context, body)
    if not wanted.rollout.checks:
        raise Rejected("this rollout has no health checks: give some, such as a figure of the service")
    health = context.control.rollouts.health
    checks = wanted.rollout.checks
    found = await asyncio.gather(*(health.try_once(check, wanted.rollout) for check in checks))
    return TriedChecksView(checks=tuple(map(tried_check_view, checks, found)))


async def plan_new_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> RolloutPlan:
    """Plan a rollout: its waves, their VMs, earliest and latest times, and VMs without a polling handler."""
    wanted = read_new_rollout(context, body)
    await context.dependencies.flush_observations()

    def has_handler(vm: Vm) -> bool:
        return polling_state(context.dependencies.pace_of(vm.key)) is PollingState.ACTIVE

    async with context.dependencies.preview_locks.for_caller(context.principal.id):
        with wanted.located():
            return await plan_rollout(
                context.control,
                wanted.rollout,
                who=context.caller_name,
                notice_s=wanted.notice_s,
                short_notice=wanted.short_notice,
                has_handler=has_handler,
            )
