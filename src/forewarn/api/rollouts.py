"""Rollout handlers: start, preview, show, pause, resume and abort."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from forewarn.control.dry_run import dry_run_rollout
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutImpact, RolloutState
from forewarn.core.windows import make_calendar
from forewarn.errors import Refused, Rejected, Remedy
from forewarn.explain.preview import Preview
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import DurationSeconds, HandlerCall, NonEmptyText, StrictBody, reject_duplicates
from forewarn.web.request_views import read_rollouts, rollout_fields, rollout_view
from forewarn.web.rollout_views import RolloutsView, RolloutView, RolloutWithEvents
from forewarn.web.view_builder import ViewBuilder
from forewarn.web.views import BaseView


class NewRollout(StrictBody, frozen=True, kw_only=True):
    """A rollout over `hosts`, `all_hosts` or a `scope`; stops after `max_failures` failed VMs (0: never).

    Exactly one of the three. `notice_s` is 0 for the minimum, 15 minutes; less than that needs `short_notice`, which
    needs a `notice_s` above 0. Names and ids are in any case. With `windows`, events start without an approval only in
    them, or at the `deadline`; without, at any time.
    """

    impact: RolloutImpact  # update (freezes VMs), migrate or reboot
    hosts: tuple[NonEmptyText, ...] = ()  # names
    all_hosts: bool = False  # every host that the fleet has now
    scope: str = ""  # an id or name, or the name of a VM in it; "": none
    max_failures: Annotated[int, Meta(ge=0)] = 1
    notice_s: DurationSeconds = 0  # lab time
    short_notice: bool = False
    windows: Annotated[tuple[str, ...], Meta(max_length=100)] = ()  # such as `sat,sun 02:00 4h Europe/Berlin`
    blackouts: Annotated[tuple[str, ...], Meta(max_length=100)] = ()  # such as `2026-12-24` or `2026-12-24..2026-12-26`
    deadline: float | None = None  # lab time from which windows no longer matter


class NewHold(StrictBody, frozen=True, kw_only=True):
    """A hold on all rollouts, with its reason, which everybody sees."""

    reason: NonEmptyText


class HoldView(BaseView, frozen=True, kw_only=True):
    """Whether all rollouts are on hold; if so, why, since when, and who set the hold."""

    is_held: bool
    reason: str = ""
    who: str = ""
    at: float | None = None  # lab time


async def show_hold(context: RequestContext, call: HandlerCall) -> HoldView:
    """Show whether all rollouts are on hold, and why."""
    hold = context.control.rollouts.hold
    if hold is None:
        return HoldView(is_held=False)
    return HoldView(is_held=True, reason=hold.reason, who=hold.who, at=hold.at)


async def hold_rollouts(context: RequestContext, call: HandlerCall, body: NewHold) -> HoldView:
    """Hold all rollouts: they publish nothing, and no event of theirs starts without an approval.

    Events that have started go on, and so does what users request. Raises Rejected for an empty reason, Refused if
    there is a hold already. The history gets an entry.
    """
    await context.control.rollouts.set_hold(body.reason, who=context.caller_name)
    return await show_hold(context, call)


async def lift_hold(context: RequestContext, call: HandlerCall) -> HoldView:
    """Lift the hold on all rollouts; events whose notice has ended start.

    Returns after due work was done. Raises Refused if there is no hold. The history gets an entry.
    """
    await context.control.rollouts.lift_hold(who=context.caller_name)
    await context.wait_for_reconciler()
    return await show_hold(context, call)


async def start_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> RolloutView:
    """Start a rollout over hosts or a scope.

    Returns it after due work was done, so its first events may be published. Raises NotFound for an unknown host or
    scope, Rejected unless exactly one kind of target is given, for a host named twice, too short a notice, or windows
    that are wrong or over, Refused if a VM has no host to move to, the hypervisor cannot do it, the fleet has no host
    or a scope's name is ambiguous. The history gets an entry.
    """
    request = await context.control.rollout_requests.start(
        _build_rollout(context, body),
        who=context.caller_name,
        notice_s=body.notice_s,
        short_notice=body.short_notice,
        key=call.request_key,
    )
    return await current_rollout_view(context, request)


async def current_rollout_view(context: RequestContext, request: MaintenanceRequest) -> RolloutView:
    """Waits for the reconciler, then returns the view of the rollout of this request, as it is now.

    Raises NotFound if it is no longer stored, or not a rollout. Does not check what the caller may see.
    """
    await context.wait_for_reconciler()
    return rollout_view(context, request.id)


def _build_rollout(context: RequestContext, body: NewRollout) -> Rollout:
    if body.short_notice and not body.notice_s:
        raise Rejected("a short notice needs a length", Remedy.GIVE_NOTICE)
    if body.all_hosts and body.hosts:
        raise Rejected("a rollout covers all hosts or the given ones: give one of the two")
    hosts = tuple(context.control.requests.host(name).name for name in body.hosts)
    reject_duplicates(body.hosts, list(hosts))
    if body.all_hosts:
        hosts = tuple(host.name for host in context.store.hosts())
        if not hosts:
            raise Refused("a rollout needs a host, and the fleet has none", Remedy.ADD_HOSTS)
    scope_id = context.find_scope(body.scope).id if body.scope else ""
    try:
        calendar = make_calendar(body.windows, body.blackouts, body.deadline)
    except ValueError as error:
        raise Rejected(str(error)) from error
    return Rollout(
        impact=body.impact, hosts=hosts, scope_id=scope_id, max_failures=body.max_failures, calendar=calendar
    )


async def list_rollouts(context: RequestContext, call: HandlerCall) -> RolloutsView:
    """List the open rollouts and recent ones.

    Oldest first; ended ones among the 10,000 newest requests.
    """
    return RolloutsView(rollouts=read_rollouts(context))


async def show_rollout(context: RequestContext, call: HandlerCall) -> RolloutWithEvents:
    """Show one rollout with its events.

    The path parameter `id` is its id or a unique start of it, in any case. Events are oldest first. Raises NotFound, or
    Refused if several ids start so.
    """
    request = context.find_rollout(call.path_params["id"])
    events = ViewBuilder(context).events(context.store.events(request_id=request.id))
    return RolloutWithEvents(events=events, **rollout_fields(context, request.id))


async def pause_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Pause a rollout: it announces no events until it is resumed.

    Events that are published stay and may start. The path parameter `id` is its id or a unique start of it, in any
    case. Returns it after the change. Raises NotFound, Refused unless it is running, or if several ids start so,
    Conflict if it keeps changing. The history gets an entry.
    """
    return await _set_progress(context, call, RolloutState.PAUSED)


async def resume_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Resume a paused rollout.

    The path parameter `id` is its id or a unique start of it, in any case. Returns it after due work was done. Raises
    NotFound, Refused unless it is paused, or if several ids start so, Conflict if it keeps changing. The history gets
    an entry.
    """
    return await _set_progress(context, call, RolloutState.RUNNING)


async def abort_rollout(context: RequestContext, call: HandlerCall) -> RolloutView:
    """Abort a rollout and withdraw its events that have not started.

    The path parameter `id` is its id or a unique start of it, in any case. Started events go on. Returns it after due
    work was done. Raises NotFound, Refused unless it is running or paused, or if several ids start so, Conflict if it
    keeps changing. The history gets an entry.
    """
    return await _set_progress(context, call, RolloutState.ABORTED)


async def _set_progress(context: RequestContext, call: HandlerCall, progress: RolloutState) -> RolloutView:
    request = context.find_rollout(call.path_params["id"])
    await context.control.rollout_requests.change_state(request.id, progress, who=context.caller_name)
    await context.wait_for_reconciler()
    return rollout_view(context, request.id)


async def preview_rollout(context: RequestContext, call: HandlerCall, body: NewRollout) -> Preview:
    """Preview a rollout: its events in order and their times if no VM approves.

    Changes nothing, but stores observed polls first; shows only the first wave of a rollout over more than 2,000 VMs;
    any other simulation ends after 10 seconds of real time at the latest (`is_cut`). Previews run one at a time. Raises
    what `start_rollout` raises, and DryRunTooLarge if its scopes have more than 20,000 VMs.
    """
    rollout = _build_rollout(context, body)
    await context.dependencies.flush_observations()
    async with context.dependencies.preview_locks.for_caller(context.principal.id):
        return await dry_run_rollout(
            context.control, rollout, who=context.caller_name, notice_s=body.notice_s, short_notice=body.short_notice
        )
