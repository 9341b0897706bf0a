"""Sentences that say what a form would do, for forms for which the API has no preview route.

A preview changes nothing. It raises the same errors as submitting the form would, as far as they are known beforehand:
NotFound for unknown names and ids, Refused if several match, Rejected for values that are not valid.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.base.wording import first_names
from forewarn.core import lifecycle
from forewarn.core.event import Event, EventState
from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, check_parameters, fault_duration_s, parse_fault_kind
from forewarn.core.planning import pending_platform_events
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.scope import Scope, scope_name
from forewarn.core.waves import rollout_target_text
from forewarn.errors import Refused
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import (
    AdvanceClockBody,
    ClearFaultsBody,
    ClockSpeedBody,
    HandlerCall,
    NewFault,
    NewStorm,
)

# Describes the effect of a form in sentences. `call` is the API call that the form would make.
PreviewSentences = Callable[[RequestContext, HandlerCall], list[str]]
_MAX_NAMED = 3
_MAX_EVENTS_READ = 20_000


def preview_perform_maintenance(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return sentences that say when the pending maintenance of a VM would start if it were approved now."""
    vm = context.directory.find(call.path_params["name"])
    scope = context.control.transactions.load(vm.scope_id)
    return [
        sentence
        for event in pending_platform_events(scope, vm.name)
        for sentence in _describe_approval(context, scope, event)
    ]


def preview_approve(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one sentence, in a list, that says when an event would start if it were approved now."""
    event = context.find_event(call.path_params["id"])
    if not event.is_live:
        raise Refused(f"event {event.id} is over ({event.ending}): there is nothing to approve")
    if event.status is EventState.STARTED:
        return [f"{_event_title(event)} has already started: an approval changes nothing."]
    return _describe_approval(context, context.control.transactions.load(event.scope_id), event)


def _describe_approval(context: RequestContext, scope: Scope, event: Event) -> list[str]:
    if event.approved_at is not None:
        return [f"{_event_title(event)} is already approved, by {event.approved_by}."]
    if not event.rules.has_impact:
        return [f"{_event_title(event)} never starts: an approval changes nothing."]
    now = context.now()
    wait = start_wait(scope, replace(event, approved_at=now), context.control.transactions.context_for(scope))
    early = f"{duration_text(event.not_before - now)} before its notice ends" if event.not_before > now else "at once"
    if wait is None:
        return [f"{_event_title(event)} starts now, {early}."]
    until = f", for {duration_text(wait.until - now)} at most" if wait.until is not None and wait.until > now else ""
    if wait.reason is WaitReason.GATE:
        return [
            f"{_event_title(event)} is approved and then waits for the other VMs on host {event.host}: "
            "it starts at once if all of them are ready."
        ]
    return [f"{_event_title(event)} is approved and then waits for {wait.text}{until}."]


def preview_withdraw(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one text, in a list: what withdrawing an event would do, and how many VMs received it."""
    event = context.find_event(call.path_params["id"])
    scope = context.control.transactions.load(event.scope_id)
    lifecycle.withdraw(scope, scope.event(event.id) or event, by=context.caller_name, reason="", now=context.now())
    deliveries = context.store.deliveries(event_id=event.id)
    vms = {delivery.vm for delivery in deliveries}
    received = "1 VM has received it" if len(vms) == 1 else f"{len(vms)} VMs have received it"
    delivered_text = received if vms else "no VM has received it yet"
    return [
        f"{_event_title(event)} is withdrawn. It disappears from the document of its VMs ({delivered_text}), "
        "so that handlers can undo their preparations."
    ]


def rollout_change_preview(effect: str) -> PreviewSentences:
    def preview(context: RequestContext, call: HandlerCall) -> list[str]:
        request = context.find_rollout(call.path_params["id"])
        rollout = request.rollout
        assert rollout is not None
        tally = context.control.rollouts.tally_of(request, rollout)
        target = ", ".join(rollout.hosts[:_MAX_NAMED]) if rollout.hosts else rollout_target_text(rollout)
        done = f"{tally.done} of {tally.total} VMs done, {tally.started} started, {tally.scheduled} scheduled"
        return [f"Rollout {request.id[:8]} ({rollout.impact} over {target}): {done}, {tally.waiting} waiting.", effect]

    return preview


def preview_repair_host(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one sentence, in a list: that a host becomes healthy again. Repairs nothing."""
    host = context.control.requests.host(call.path_params["name"])
    return [f"Host {host.name} is {host.health} and becomes healthy: VMs may move to it again."]


def preview_confirm_down(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return three sentences: what it means to confirm that a host is down. Confirms nothing."""
    host = context.control.requests.host(call.path_params["name"])
    vms = len(context.store.vms(host=host.name))
    its_vms = f"its {vms} VM{'' if vms == 1 else 's'}"
    return [
        f"You state that host {host.name} is certainly down: powered off or cut off, so that nothing runs on it.",
        f"The hypervisor may then start {its_vms} on other hosts, without an answer of {host.name}.",
        "This holds until the host is repaired, and the history names you.",
    ]


def preview_fault(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return sentences on which VMs a fault would affect, what their clients would see, and how long."""
    body = call.parse_body(NewFault)
    kind = parse_fault_kind(body.kind)
    definition, duration_s = FAULT_DEFINITIONS[kind], fault_duration_s(kind, body.count, body.duration_s)
    check_parameters(kind, body.parameters)
    if body.vm:
        target = f"VM {context.directory.find(body.vm).name}"
    else:
        target = scope_name(context.find_scope(body.scope)) if body.scope else "all VMs"
    counted = "requests" if definition.category is FaultCategory.TRANSPORT else "events"
    sentences = [f"{kind} for {target}. Clients see: {definition.symptom.replace('`', '')}."]
    if definition.category is FaultCategory.AT_ONCE:
        return [*sentences, "It happens once, immediately."]
    parts = [f"the next {body.count} {counted}"] if body.count else []
    if duration_s:
        which = "real" if definition.category is FaultCategory.TRANSPORT else "lab"
        parts.append(f"{duration_text(duration_s)} of {which} time")
    return [*sentences, f"It lasts for {' or '.join(parts)}." if parts else "It lasts until you clear it."]


def preview_clear_faults(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one text, in a list: which faults and storms the body of the call would clear."""
    body = call.parse_body(ClearFaultsBody)
    active = context.control.faults.active
    if body.all and not (body.ids or body.kind or body.vm or body.scope):
        return [f"All {len(active.faults)} faults and {len(active.storms)} storms are cleared."]
    parts = [*(f"of kind {body.kind}" for _ in body.kind[:1]), *(f"for {body.vm}" for _ in body.vm[:1])]
    named = ", ".join(body.ids) if body.ids else "faults"
    return [f"This clears {named} {' '.join(parts)}".strip() + ". Faults that a cleared storm has set stay."]


def preview_storm(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one sentence, in a list: which VMs a fault storm would affect, for how long, and its seed."""
    body = call.parse_body(NewStorm)
    vms = [context.directory.find(name).name for name in body.vms]
    target = first_names(vms, _MAX_NAMED) or "all VMs"
    return [f"Faults affect {target} for {duration_text(body.duration_s)} of lab time, with seed {body.seed}."]


def preview_stop_replay(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one text, in a list: after how many of its steps a replay would end, and what follows."""
    replay = context.control.replays.find(call.path_params["id"]).replay
    assert replay is not None
    return [
        f"The replay for {replay.name} ends after {replay.done} of {replay.steps} steps. Its scope receives its own "
        "document again."
    ]


def preview_advance_clock(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return sentences on how far lab time would advance, and how many visible notices end by then."""
    context.control.lab_clock.require_lab_clock("advanced")
    by_s = call.parse_body(AdvanceClockBody).by_s
    until = context.now() + by_s
    scheduled = context.store.events(statuses=[EventState.SCHEDULED], limit=_MAX_EVENTS_READ)
    due = [event for event in scheduled if event.not_before <= until and context.can_see_scope(event.scope_id)]
    sentences = [f"Lab time advances by {duration_text(by_s)}."]
    if not due:
        return [*sentences, "No event's notice ends on the way."]
    first = first_names([_event_title(event) for event in due], _MAX_NAMED)
    return [*sentences, f"The notice of {len(due)} event{'s' if len(due) > 1 else ''} ends on the way: {first}."]


def preview_clock_speed(context: RequestContext, call: HandlerCall) -> list[str]:
    """Return one sentence, in a list, that says how fast lab time would run, or that it would pause."""
    context.control.lab_clock.require_lab_clock("set to another speed")
    speed = call.parse_body(ClockSpeedBody).speed
    if speed == 0:
        return ["Lab time is paused until you set another speed or advance it."]
    return [
        "Lab time runs as fast as real time." if speed == 1 else f"Lab time runs {speed:g} times as fast as real time."
    ]


def _event_title(event: Event) -> str:
    return f"{event.rules.kind or event.rules.verb} of {first_names(event.vms, _MAX_NAMED)}"
