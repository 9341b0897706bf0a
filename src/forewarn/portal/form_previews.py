"""Sentences that say what a form would do, for forms for which the API has no preview route.

A preview raises the same errors as submitting the form would, as far as they are known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from forewarn.core import lifecycle
from forewarn.core.event import Event, EventState
from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, check_parameters, fault_duration_s, parse_fault_kind
from forewarn.core.planning import pending_platform_events
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.scope import Scope
from forewarn.errors import Refused
from forewarn.explain.phrases import duration_text
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import (
    AdvanceClockBody,
    ClearFaultsBody,
    ClockSpeedBody,
    HandlerCall,
    NewFault,
    NewStorm,
)
from forewarn.web.view_builder import scope_title, scope_title_from_id

PreviewSentences = Callable[[RequestContext, HandlerCall], list[str]]
_MAX_NAMED = 3
_MAX_EVENTS_READ = 20_000  # events


def preview_perform_maintenance(context: RequestContext, call: HandlerCall) -> list[str]:
    vm = context.directory.find(call.path_params["name"])
    scope = context.control.transactions.load(vm.scope_id)
    return [
        sentence
        for event in pending_platform_events(scope, vm.name)
        for sentence in _describe_approval(context, scope, event)
    ]


def preview_approve(context: RequestContext, call: HandlerCall) -> list[str]:
    event = context.find_event(call.path_params["id"])
    if not event.is_live:
        raise Refused(f"event {event.id} is over ({event.ending}): there is nothing to approve")
    if event.status is EventState.STARTED:
        return [f"{_event_title(event)} has started already: an approval changes nothing."]
    return _describe_approval(context, context.control.transactions.load(event.scope_id), event)


def _describe_approval(context: RequestContext, scope: Scope, event: Event) -> list[str]:
    """What it would wait for, were it approved now."""
    if event.approved_at is not None:
        return [f"{_event_title(event)} is approved already, by {event.approved_by}."]
    now = context.now()
    wait = start_wait(scope, replace(event, approved_at=now), context.control.transactions.decision_context())
    early = f"{duration_text(event.not_before - now)} before its notice ends" if event.not_before > now else "at once"
    if wait is None:
        return [f"{_event_title(event)} starts now, {early}."]
    until = f", for {duration_text(wait.until - now)} at most" if wait.until is not None and wait.until > now else ""
    if wait.reason is WaitReason.GATE:
        return [
            f"{_event_title(event)} is approved, and waits for the other VMs on host {event.host}: "
            "it starts at once if all of them are ready."
        ]
    return [f"{_event_title(event)} is approved, and then waits for {wait.text}{until}."]


def preview_withdraw(context: RequestContext, call: HandlerCall) -> list[str]:
    event = context.find_event(call.path_params["id"])
    scope = context.control.transactions.load(event.scope_id)
    lifecycle.withdraw(scope, scope.event(event.id) or event, by=context.caller_name, reason="", now=context.now())
    given = context.store.deliveries(event_id=event.id)
    told = f"{len({sighting.vm for sighting in given})} VMs were given it" if given else "no VM was given it yet"
    return [
        f"{_event_title(event)} does not happen. Its VMs see that it is gone ({told}), and undo what they prepared."
    ]


def rollout_change_preview(what_follows: str) -> PreviewSentences:
    def foresee(context: RequestContext, call: HandlerCall) -> list[str]:
        request = context.find_rollout(call.path_params["id"])
        one = request.rollout
        assert one is not None
        tally = context.control.rollouts.tally_of(request, one)
        over = scope_title_from_id(one.scope_id) if one.scope_id else ", ".join(one.hosts[:_MAX_NAMED])
        done = f"{tally.done} of {tally.total} VMs done, {tally.started} started, {tally.scheduled} scheduled"
        return [f"Rollout {request.id[:8]} ({one.impact} over {over}): {done}, {tally.waiting} waiting.", what_follows]

    return foresee


def preview_repair_host(context: RequestContext, call: HandlerCall) -> list[str]:
    host = context.control.requests.host(call.path_params["name"])
    return [f"Host {host.name} is {host.health}, and would be healthy: VMs may move to it again."]


def preview_fault(context: RequestContext, call: HandlerCall) -> list[str]:
    body = call.parse_body(NewFault)
    kind = parse_fault_kind(body.kind)
    row, lasts_s = FAULT_DEFINITIONS[kind], fault_duration_s(kind, body.count, body.for_s)
    check_parameters(kind, body.parameters)
    if body.vm:
        whom = f"VM {context.directory.find(body.vm).name}"
    else:
        whom = scope_title(context.find_scope(body.scope)) if body.scope else "every VM"
    things = "requests" if row.category is FaultCategory.TRANSPORT else "events"
    sentences = [f"{kind} for {whom}. Clients see: {row.symptom.replace('`', '')}."]
    if row.category is FaultCategory.AT_ONCE:
        return [*sentences, "It happens once, at once."]
    parts = [f"the next {body.count} {things}"] if body.count else []
    parts += (
        [f"{duration_text(lasts_s)} {'of real time' if row.category is FaultCategory.TRANSPORT else 'of lab time'}"]
        if lasts_s
        else []
    )
    return [*sentences, f"It lasts for {' or '.join(parts)}." if parts else "It stays until it is cleared."]


def preview_clear_faults(context: RequestContext, call: HandlerCall) -> list[str]:
    body = call.parse_body(ClearFaultsBody)
    book = context.control.faults.active
    if body.all and not (body.ids or body.kind or body.vm or body.scope):
        return [f"All {len(book.faults)} faults and {len(book.storms)} storms are cleared."]
    parts = [*(f"of kind {body.kind}" for _ in body.kind[:1]), *(f"for {body.vm}" for _ in body.vm[:1])]
    named = f"{', '.join(body.ids)}" if body.ids else "Faults"
    return [f"{named} {' '.join(parts)}".strip() + ": cleared. Storms that have begun leave the faults they have set."]


def preview_storm(context: RequestContext, call: HandlerCall) -> list[str]:
    body = call.parse_body(NewStorm)
    vms = [context.directory.find(name).name for name in body.vms]
    whom = (
        ", ".join(vms[:_MAX_NAMED]) + (f" and {len(vms) - _MAX_NAMED} more" if len(vms) > _MAX_NAMED else "")
        or "every VM"
    )
    return [f"Faults hit {whom} for {duration_text(body.for_s)} of lab time, as seed {body.seed} has it."]


def preview_stop_replay(context: RequestContext, call: HandlerCall) -> list[str]:
    replay = context.control.replays.find(call.path_params["id"]).replay
    assert replay is not None
    return [
        f"The replay for {replay.name} ends, {replay.done} of {replay.steps} steps shown: its scope sees its own again."
    ]


def preview_advance_clock(context: RequestContext, call: HandlerCall) -> list[str]:
    context.control.lab_clock.require_lab_clock("advanced")
    by_s = call.parse_body(AdvanceClockBody).by_s
    until = context.now() + by_s
    scheduled = context.store.events(statuses=[EventState.SCHEDULED], limit=_MAX_EVENTS_READ)
    due = [event for event in scheduled if event.not_before <= until and context.can_see_scope(event.scope_id)]
    sentences = [f"Lab time goes ahead by {duration_text(by_s)}."]
    if not due:
        return [*sentences, "No event's notice ends on the way."]
    first = ", ".join(_event_title(event) for event in due[:_MAX_NAMED])
    more = f" and {len(due) - _MAX_NAMED} more" if len(due) > _MAX_NAMED else ""
    return [*sentences, f"The notice of {len(due)} event{'s' if len(due) > 1 else ''} ends on the way: {first}{more}."]


def preview_clock_speed(context: RequestContext, call: HandlerCall) -> list[str]:
    context.control.lab_clock.require_lab_clock("set to another speed")
    speed = call.parse_body(ClockSpeedBody).speed
    if speed == 0:
        return ["Lab time stands still until it is set going or advanced."]
    return [
        "Lab time runs as real time does." if speed == 1 else f"Lab time runs {speed:g} times as fast as real time."
    ]


def _event_title(event: Event) -> str:
    names = ", ".join(event.vms[:_MAX_NAMED]) + (
        f" and {len(event.vms) - _MAX_NAMED} more" if len(event.vms) > _MAX_NAMED else ""
    )
    return f"{event.rules.kind or event.rules.verb} of {names}"
