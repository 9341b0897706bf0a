"""Builds views of maintenance requests and rollouts: their events, progress, and what they wait for."""

from __future__ import annotations

from typing import Any

from forewarn.control.rollouts import RolloutSnapshot
from forewarn.core.event import Event
from forewarn.core.history import EntryKind
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutState
from forewarn.core.request_state import request_state
from forewarn.core.rollout import remaining_vms
from forewarn.web.context import RequestContext
from forewarn.web.view_builder import ViewBuilder, request_view
from forewarn.web.views import RequestStatusView, RolloutView


def replaced_event_ids(events: list[Event]) -> tuple[str, ...]:
    """The ids of the pending events that these events replaced, in their order."""
    return tuple(event_id for event in events for event_id in event.replaces)


def request_status(context: RequestContext, request: MaintenanceRequest) -> RequestStatusView:
    """The request with its state, its events and sentences about what they wait for.

    The caller must be allowed to see the request.
    """
    events = request_events(context, request)
    planned = context.store.planned(request_id=request.id)
    skipped = (
        any(e.what is EntryKind.SKIPPED for e in context.store.history(request_id=request.id)) if not events else False
    )
    view_builder = ViewBuilder(context)
    return RequestStatusView(
        request=request_view(request),
        state=request_state(events, to_come=bool(planned) or request.is_open, skipped=skipped),
        events=view_builder.events(events),
        replaced=replaced_event_ids(events),
        waits_for=_wait_sentences(view_builder, events),
    )


def request_events(context: RequestContext, request: MaintenanceRequest) -> list[Event]:
    """The events that the request created, oldest first.

    For `perform-maintenance`, the events that it approved, as far as they are still stored.
    """
    if request.ask is not RequestedOperation.PERFORM_MAINTENANCE:
        return context.store.events(request_id=request.id)
    return [event for event in map(context.store.event, request.approves) if event is not None]


def _wait_sentences(view_builder: ViewBuilder, events: list[Event]) -> tuple[str, ...]:
    waits = ((event, view_builder.pending_wait(event)) for event in events)
    sentences = (
        f"{event.rules.kind or event.rules.verb} of {short_vm_list(event)}: {wait.text}"
        for event, wait in waits
        if wait
    )
    return tuple(dict.fromkeys(sentences))


def short_vm_list(event: Event) -> str:
    """The names of the event's VMs in one text: the first three, and how many more."""
    return ", ".join(event.vms[:3]) + (f" and {len(event.vms) - 3} more" if len(event.vms) > 3 else "")


def read_rollouts(context: RequestContext) -> tuple[RolloutView, ...]:
    """All open rollouts, and those among the 10,000 newest requests; oldest first.

    Empty for a caller who does not see everything.
    """
    return tuple(rollout_view(context, request.id) for request in context.list_rollouts())


def rollout_view(context: RequestContext, request_id: str) -> RolloutView:
    """The rollout with this full request id; does not check what the caller may see. Raises NotFound."""
    return RolloutView(**rollout_fields(context, request_id))


def rollout_fields(context: RequestContext, request_id: str) -> dict[str, Any]:
    """The fields of `rollout_view`, for a struct that extends RolloutView. Raises NotFound."""
    request = context.control.requests.rollout(request_id)
    assert request.rollout is not None
    snapshot = None if request.rollout.tally else context.control.rollouts.snapshot_of(request, request.rollout)
    return rollout_fields_from_snapshot(context, request, request.rollout, snapshot)


def rollout_fields_from_snapshot(
    context: RequestContext, request: MaintenanceRequest, rollout: Rollout, snapshot: RolloutSnapshot | None
) -> dict[str, Any]:
    """As `rollout_fields`; `snapshot` is None for a closed rollout, whose tally is stored."""
    return {
        "id": request.id,
        "impact": rollout.impact,
        "hosts": rollout.hosts,
        "scope": rollout.scope_id,
        "progress": rollout.progress,
        "why": rollout.why,
        "closed": rollout.closed,
        "who": request.who,
        "at": request.at,
        "notice_s": request.notice_s,
        "max_failures": rollout.max_failures,
        "tally": context.control.rollouts.tally_of(request, rollout, snapshot),
        "next_update_domains": () if snapshot is None else next_update_domains(context, request, snapshot),
    }


def next_update_domains(
    context: RequestContext, request: MaintenanceRequest, snapshot: RolloutSnapshot
) -> tuple[int, ...]:
    """The lowest update domain that remains in each scope of the rollout, each once, sorted.

    Empty once the rollout has ended or been aborted, and for a request that is no rollout.
    """
    rollout = request.rollout
    if rollout is None or not request.is_open or rollout.progress not in (RolloutState.RUNNING, RolloutState.PAUSED):
        return ()
    planned = context.store.planned(request_id=request.id)
    lowest: dict[str, int] = {}
    for vm in remaining_vms(rollout, snapshot.vms, snapshot.events, planned):
        lowest[vm.scope_id] = min(vm.update_domain, lowest.get(vm.scope_id, vm.update_domain))
    return tuple(sorted(set(lowest.values())))
