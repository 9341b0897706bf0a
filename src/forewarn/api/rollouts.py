"""Rollout handlers: start, plan, preview, show, pause, resume and abort."""

from __future__ import annotations

import asyncio

from forewarn.api.rollout_bodies import NewRollout, read_new_rollout
from forewarn.api.rollout_checks import TriedChecksView, tried_check_view
from forewarn.control.dry_run import dry_run_rollout
from forewarn.control.rollout_plan import plan_rollout
from forewarn.core.fleet import Vm
from forewarn.core.limits import Reason
from forewarn.core.request import MaintenanceRequest, RolloutState
from forewarn.errors import Rejected
from forewarn.explain.polling import PollingState, polling_state
from forewarn.explain.preview import Preview, preview_to_confirm
from forewarn.explain.rollout_plan import RolloutPlan
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.request_views import read_rollouts, rollout_fields, rollout_view
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
    who: str = ""  # the name of who set it; "": not on hold
    at: float | None = None  # lab time; None: not on hold


async def show_hold(context: RequestContext, call: HandlerCall) -> HoldView:
    """Show whether all rollouts are on hold, and why.

    Without a hold, `is_held` is false and the other fields are empty.
    """
    hold = context.control.rollouts.hold
    if hold is None:
        return HoldView(is_held=False)
    return HoldView(is_held=True, reason=hold.reason, who=hold.who, at=hold.at)


async def hold_rollouts(context: RequestContext, call: HandlerCall, body: NewHold) -> HoldView:
    """Hold all rollouts: they publish nothing, and no event of theirs starts without an approval.

    Events that have started go on, and so do events behind a gate that is released, and operations of users. Freezes
    that faults made also wait. Raises Rejected for an empty reason, Refused if there is a hold already, or Unavailable
    if the store cannot be written. The history gets an entry.
    """
    await context.control.rollouts.holds.set_hold(body.reason, who=context.caller_name)
    return await show_hold(context, call)


async def lift_hold(context: RequestContext, call: HandlerCall) -> HoldView:
    """Lift the hold on all rollouts; events whose notice has ended start.

    Returns after the reconciler has done what is due. Raises Refused if there is no hold, or Unavailable if the store
    cannot be written. The history gets an entry.
    """
    await context.control.rollouts.holds.lift_hold(who=context.caller_name)
    await context.wait_for_reconciler()
    return await show_hold(context, call)


async def start_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> RolloutView:
    """Start a rollout over hosts, a scope, a tag, a location or everything, given by fields or as a file.

    Returns the rollout after the reconciler has done what is due, so its first events may be published. Raises NotFound
    for an unknown host or scope, Rejected unless exactly one kind of target is given, for a host named twice, a tag or
    location without VMs, wrong waves, too short a notice, windows that are wrong or over, or health checks that cannot
    be used (with the line of the file), Refused if a VM has no host to move to, the hypervisor cannot do it, the fleet
    has no host, a scope's name is ambiguous or a check is a command and the service runs none, Forbidden for a health
    check that runs a command if the caller is not an administrator, and Unavailable if the store cannot be written. The
    history gets an entry.
    """
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
    """Wait for the reconciler, then return the view of the rollout of this request, as it is now.

    Waits for ten seconds of real time at most. Raises NotFound if the request is no longer stored, or is not a rollout.
    Does not check what the caller may see.
    """
    await context.wait_for_reconciler()
    return rollout_view(context, request.id)


async def list_rollouts(context: RequestContext, call: HandlerCall) -> RolloutsView:
    """List the open rollouts and recent ones.

    Rollouts are listed oldest first. Ended ones are listed if they are among the 10,000 newest requests of any kind.
    For a caller who may not see the whole fleet the list is empty.
    """
    return RolloutsView(rollouts=read_rollouts(context))


async def show_rollout(context: RequestContext, call: HandlerCall) -> RolloutWithEvents:
    """Show one rollout with its events.

    The path parameter `id` is the rollout's id or a unique start of it, ignoring letter case. All events are shown,
    even those that are over, oldest first. Raises NotFound, or Refused if several ids start with it.
    """
    request = context.find_rollout(call.path_params["id"])
    events = ViewBuilder(context).events(context.store.events(request_id=request.id))
    return RolloutWithEvents(events=events, **rollout_fields(context, request.id))


async def pause_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Pause a rollout: it announces no events until it is resumed.

    Events that are published stay and may start. The path parameter `id` is the rollout's id or a unique start of it,
    ignoring letter case. Returns the rollout after the change. Raises NotFound, Refused if it is not running or several
    ids start with it, Conflict if it keeps changing, or Unavailable if the store cannot be written. The history gets an
    entry.
    """
    return await _set_progress(context, call, RolloutState.PAUSED)


async def resume_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Resume a paused rollout.

    The path parameter `id` is the rollout's id or a unique start of it, ignoring letter case. Earlier measurements of
    its health checks no longer count. Returns the rollout after the reconciler has done what is due. Raises NotFound,
    Refused if it is not paused or several ids start with it, Conflict if it keeps changing, or Unavailable if the store
    cannot be written. The history gets an entry.
    """
    return await _set_progress(context, call, RolloutState.RUNNING)


async def abort_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Abort a rollout and withdraw its events that have not started.

    The path parameter `id` is the rollout's id or a unique start of it, ignoring letter case. Started events go on, and
    the rollout cannot be resumed. Returns the rollout after the reconciler has done what is due. Raises NotFound,
    Refused if it is neither running nor paused or several ids start with it, Conflict if it keeps changing, or
    Unavailable if the store cannot be written. The history gets an entry.
    """
    return await _set_progress(context, call, RolloutState.ABORTED)


async def preview_abort_rollout(context: RequestContext, call: HandlerCall) -> Preview:
    """Preview the abort of a rollout."""
    found = context.find_rollout(call.path_params["id"])
    request = context.control.rollout_requests.check_state_change(found.id, RolloutState.ABORTED)
    assert request.rollout is not None
    tally = context.control.rollouts.tally_of(request, request.rollout)
    counts = f"{tally.done} of {tally.total} VMs are done and {tally.started} have started"
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
    """Preview a rollout: its events in order and their times if no VM approves.

    Leaves out health checks and a hold on rollouts. Changes nothing, except that it first stores the polls observed so
    far. For a rollout over more than 2,000 VMs it shows only the first events to be published; any other simulation
    ends after at most 10 seconds of real time (`is_cut` of the preview). The plans and previews of a caller run one at
    a time. Raises NotFound, Rejected, Refused and Forbidden as its start would, and DryRunTooLarge if its scopes have
    more than 20,000 VMs.
    """
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
    """Perform each health check of a rollout once, and show what it finds; starts and stores nothing.

    The checks run at the same time, and really call their addresses and run their commands; the result has their order.
    A check that fails is a result, not an error. Raises Rejected for a body that cannot be a rollout or has no checks,
    or an address that the service may not call, NotFound for an unknown target, Refused for a command if the service
    runs none, and Forbidden for a command if the caller is not an administrator.
    """
    wanted = read_new_rollout(context, body)
    if not wanted.rollout.checks:
        raise Rejected("this rollout has no health checks: give some, such as a figure of the service")
    health = context.control.rollouts.health
    checks = wanted.rollout.checks
    found = await asyncio.gather(*(health.try_once(check, wanted.rollout) for check in checks))
    return TriedChecksView(checks=tuple(map(tried_check_view, checks, found)))


async def plan_new_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> RolloutPlan:
    """Plan a rollout: its waves, their VMs, earliest and latest times, and VMs without a polling handler.

    Starts and changes nothing, except that it first stores the polls observed so far. The earliest times assume that
    each event is approved when it is published, the latest ones that nobody approves. A rollout over more than 2,000
    VMs gets no times, and a simulation ends after at most 10 seconds of real time (`is_cut`). The plans and previews of
    a caller run one at a time. Raises NotFound, Rejected, Refused and Forbidden as its start would, and DryRunTooLarge
    if its scopes have more than 20,000 VMs.
    """
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
