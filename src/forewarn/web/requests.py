"""Request handlers: create, preview and show requests; views of requests and rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from forewarn.base.times import Timestamp, timestamp
from forewarn.base.wording import first_names
from forewarn.control.control_plane import ControlPlane
from forewarn.control.dry_run import dry_run_request
from forewarn.control.rollouts import RolloutSnapshot
from forewarn.core.cause import verb_noun
from forewarn.core.event import Event, EventState
from forewarn.core.explain.preview import Preview
from forewarn.core.explain.rollout_plan import RolloutForecast
from forewarn.core.faults import hide_faults
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind
from forewarn.core.limits import DurationSeconds, NonEmptyText
from forewarn.core.request import (
    MaintenanceRequest,
    PlannedEvent,
    RequestedOperation,
    Rollout,
    RolloutState,
    RolloutTally,
)
from forewarn.core.request_state import RequestState, request_state
from forewarn.core.resource_ids import vm_resource_id
from forewarn.core.rollout import remaining_vms
from forewarn.core.scope import scope_title, scope_title_from_id
from forewarn.core.waves import rollout_target_text, settles_until, settling_text, wave_specs
from forewarn.core.windows import calendar_text
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, StrictBody, reject_duplicates
from forewarn.web.views import BaseView, EventView, ReceiptView, RequestStatusView, ViewBuilder, request_view


class RolloutView(BaseView, frozen=True, kw_only=True):
    """A platform maintenance rollout: its targets, progress, tally and the update domains that come next."""

    id: str  # the id of its request
    impact: str  # update (freezes VMs), migrate or reboot
    hosts: tuple[str, ...]  # names; (): it covers something else
    scope: str  # an id; "": it covers something else
    scope_title: str  # such as `availability set web`, or `VMs with the tag app=web`; "" if it covers hosts
    progress: str  # running, paused, stopped (by failures, or no window is left), aborted (by a user) or completed
    state: str  # that of any request: in progress, succeeded, failed or canceled
    reason: str  # why it ended, or paused itself; "": neither, or it completed without failures
    closed: bool  # nothing is left to publish, withdraw or wait for
    requested_by: str  # the name of who requested it
    requested_at: Timestamp
    notice_s: float  # the notice of its events, in lab time
    max_failures: int  # 0: failures never stop it
    hold: str  # why all rollouts are on hold; "": they are not, or it has ended
    windows: str  # when its events may start without an approval, for people; "": at any time
    tally: RolloutTally  # how many of its VMs are done, failed, waiting and so on
    next_update_domains: tuple[int, ...]  # each once, ascending; () once it has ended, stopped or been aborted
    waves: tuple[str, ...]  # names, in order; the last is the rest
    wave_vms: tuple[int, ...]  # VMs of each wave, begun or to come; () once it has ended
    wave: int  # number of the wave that it works on, or that settles, from 1
    settle_s: float  # lab time that must pass after the last event of each wave
    settles_until: Timestamp | None  # until when the wave settles; None: it does not
    ends_at: Timestamp | None  # when it probably ends; None: paused, on hold, ended, or it cannot be known
    is_at_pace: bool  # `ends_at` assumes the pace of its events so far; false: that nobody approves
    waits_for: tuple[str, ...]  # what keeps it from publishing more, in clauses: settling, budgets, checks, a hold


class RolloutWithEvents(RolloutView, frozen=True, kw_only=True):
    """The fields of RolloutView, and all events of the rollout, oldest first."""

    events: tuple[EventView, ...]  # live or over, oldest first


class RolloutsView(BaseView, frozen=True, kw_only=True):
    """All open rollouts, and the ended ones among the 10,000 newest requests; the oldest request first.

    The result is empty for a caller who does not see everything.
    """

    rollouts: tuple[RolloutView, ...]


def replaced_event_ids(events: list[Event]) -> tuple[str, ...]:
    """Return the ids of the pending events that these events replaced when they were published."""
    return tuple(event_id for event in events for event_id in event.replaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStatus:
    """A request with its state and its events, and what of it is planned or was skipped."""

    request: MaintenanceRequest
    state: RequestState  # in progress, succeeded, failed or canceled
    events: list[Event]  # that it has published, oldest first; of `perform-maintenance` those that it approved
    planned: tuple[PlannedEvent, ...]  # events that are not published yet; () when it is over
    skip_reasons: tuple[str, ...]  # why parts of it did not become events, in sentences; () until it is over
    publication_waits: tuple[str, ...]  # what keeps a rollout from publishing more, as `rollout_waits` returns it


def read_request_status(context: RequestContext, request: MaintenanceRequest) -> RequestStatus:
    """Read the state, the events and the planned events of a request from the store, and return them."""
    events = request_events(context, request)
    planned = tuple(context.store.planned(request_id=request.id))
    is_over = not planned and not any(event.is_live for event in events)
    skip_reasons = _skip_reasons(context, request) if is_over and request.rollout is None else ()
    return RequestStatus(
        request=request,
        state=request_state(request, events, planned=len(planned), skipped=bool(skip_reasons)),
        events=events,
        planned=planned,
        skip_reasons=skip_reasons,
        publication_waits=rollout_waits(context, request),
    )


def rollout_waits(
    context: RequestContext, request: MaintenanceRequest, snapshot: RolloutSnapshot | None = None
) -> tuple[str, ...]:
    """Return what keeps a rollout from publishing more, as clauses for people; () if none of these does."""
    if not context.can_see_everything() or request.rollout is None:  # the clauses name VMs
        return ()
    settling = settling_text(request.rollout, context.now())
    others = context.control.rollouts.publication_waits(request, snapshot)
    return (*([settling] if settling else []), *others)


def _skip_reasons(context: RequestContext, request: MaintenanceRequest) -> tuple[str, ...]:
    entries = context.store.history(request_id=request.id)
    return tuple(entry.text for entry in entries if entry.kind is EntryKind.SKIPPED and not entry.event_id)


def request_status(context: RequestContext, request: MaintenanceRequest) -> RequestStatusView:
    """Return the view of a request with its state, its events and sentences about what it waits for."""
    status = read_request_status(context, request)
    view_builder = ViewBuilder(context)
    return RequestStatusView(
        request=request_view(request),
        state=status.state,
        events=view_builder.events(status.events),
        replaced=replaced_event_ids(status.events),
        waits_for=wait_sentences(view_builder, status),
        skipped=status.skip_reasons,
    )


def request_events(context: RequestContext, request: MaintenanceRequest) -> list[Event]:
    """Return the events that the request has published so far, live or over, oldest first."""
    if request.operation is not RequestedOperation.PERFORM_MAINTENANCE:
        found = context.store.events(request_id=request.id)
    else:
        found = [event for event in map(context.store.event, request.approves) if event is not None]
    return list(map(context.visibility.shown_event, found))


def wait_sentences(view_builder: ViewBuilder, status: RequestStatus) -> tuple[str, ...]:
    """Return what a request in progress waits for, as sentences for people; () when it is over (spec §9)."""
    return tuple(dict.fromkeys(_waits(view_builder, status)))


def _waits(view_builder: ViewBuilder, status: RequestStatus) -> Iterator[str]:
    for event in filter(lambda event: event.is_live, status.events):
        title = f"{event.rules.kind or event.rules.verb} of {short_vm_list(event)}"
        yield f"{title}: {_event_wait_text(view_builder, event)}"
    if status.planned:
        are = "event that is" if len(status.planned) == 1 else "events that are"
        yield f"{len(status.planned)} {are} not published yet"
    rollout = status.request.rollout
    yield from (f"more events: {wait}" for wait in status.publication_waits)
    if rollout is not None and rollout.has_paused_itself:
        yield f"the rollout has paused itself ({rollout.reason}): it publishes no events until it is resumed"
    elif rollout is not None and rollout.progress is RolloutState.PAUSED:
        yield "the rollout is paused: it publishes no events until it is resumed"


def _event_wait_text(view_builder: ViewBuilder, event: Event) -> str:
    if event.status is EventState.SCHEDULED:
        wait = view_builder.pending_wait(event)
        return "its start, which is due" if wait is None else wait.text
    names = [act.name for act in event.unfinished_acts]
    return f"the {verb_noun(event.rules.verb)} of {first_names(names)}" if names else "the end of the settling time"


def short_vm_list(event: Event) -> str:
    """Return the names of the event's VMs in one text: all of up to four, else as `a, b, c and 4 more`."""
    return first_names(event.vms)


def read_rollouts(context: RequestContext) -> tuple[RolloutView, ...]:
    """Return all open rollouts, and the ended ones among the 10,000 newest requests; oldest first."""
    return tuple(rollout_view(context, request.id) for request in context.list_rollouts())


def rollout_view(context: RequestContext, request_id: str) -> RolloutView:
    """Return the view of the rollout with this full request id, ignoring letter case."""
    return RolloutView(**rollout_fields(context, request_id))


def rollout_fields(context: RequestContext, request_id: str) -> dict[str, Any]:
    """Return the values of the fields of a RolloutView, by field name, for a struct that extends it."""
    request = context.control.rollout_requests.find(request_id)
    assert request.rollout is not None
    snapshot = None if request.rollout.tally else context.control.rollouts.snapshot_of(request, request.rollout)
    return rollout_fields_from_snapshot(context, request, request.rollout, snapshot)


def rollout_fields_from_snapshot(
    context: RequestContext,
    request: MaintenanceRequest,
    rollout: Rollout,
    snapshot: RolloutSnapshot | None,
    forecast: RolloutForecast | None = None,
) -> dict[str, Any]:
    """Return the values of the fields of a RolloutView, by field name, for a rollout that is read already."""
    if forecast is None and snapshot is not None:
        forecast = context.control.rollouts.forecast_of(request, rollout, snapshot)
    sizes = {wave.wave: wave.size for wave in forecast.waves} if forecast is not None and not rollout.closed else {}
    return {
        "id": request.id,
        "impact": rollout.impact,
        "hosts": rollout.hosts,
        "scope": rollout.scope_id,
        "scope_title": _title_of_scope(context, rollout),
        "progress": rollout.progress,
        "state": request_state(request, snapshot.events if snapshot else (), planned=0, skipped=False),
        "reason": rollout.reason,
        "closed": rollout.closed,
        "requested_by": request.requested_by,
        "requested_at": timestamp(request.requested_at),
        "notice_s": request.notice_s,
        "max_failures": rollout.max_failures,
        "hold": "" if rollout.closed else context.control.transactions.hold_reason,
        "windows": calendar_text(rollout.calendar) if rollout.calendar else "",
        "tally": context.control.rollouts.tally_of(request, rollout, snapshot),
        "waves": tuple(spec.name for spec in wave_specs(rollout)),
        "wave_vms": tuple(sizes.get(index, 0) for index in range(len(wave_specs(rollout)))) if sizes else (),
        "wave": rollout.wave + 1,
        "settle_s": rollout.settle_s,
        "settles_until": timestamp(settles_until(rollout, context.now())),
        "ends_at": timestamp(forecast.ends_at) if forecast is not None else None,
        "is_at_pace": forecast is not None and forecast.ends_at is not None and forecast.is_measured,
        "waits_for": rollout_waits(context, request, snapshot),
        "next_update_domains": () if snapshot is None else next_update_domains(context, request, snapshot),
    }


def _title_of_scope(context: RequestContext, rollout: Rollout) -> str:
    if not rollout.scope_id:
        return "" if rollout.hosts else rollout_target_text(rollout)
    scope = context.store.scope(rollout.scope_id)
    return scope_title(scope) if scope is not None else scope_title_from_id(rollout.scope_id)


def next_update_domains(
    context: RequestContext, request: MaintenanceRequest, snapshot: RolloutSnapshot
) -> tuple[int, ...]:
    """Return the numbers of the update domains that the rollout affects next, each once, ascending."""
    rollout = request.rollout
    if rollout is None or not request.is_open or rollout.progress not in (RolloutState.RUNNING, RolloutState.PAUSED):
        return ()
    planned = context.store.planned(request_id=request.id)
    lowest: dict[str, int] = {}
    for vm in remaining_vms(rollout, snapshot.shared.without(snapshot.vms), snapshot.events, planned):
        lowest[vm.scope_id] = min(vm.update_domain, lowest.get(vm.scope_id, vm.update_domain))
    return tuple(sorted(set(lowest.values())))


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
