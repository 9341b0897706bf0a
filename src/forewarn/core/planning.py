"""Plans the events of a request and publishes them in their scopes (spec §6.3, §6.4, §8.2, §8.4, §9).

`plan_events_for_vms` makes planned events, each within one scope and one update domain. `apply_planned_event` checks
every rule and publishes one of them; applying it again changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from forewarn.base.duration import duration_text, exact_duration_text
from forewarn.core import fault_effects, lifecycle
from forewarn.core.acts import act_to_wait_for, acts_for_event, is_concerned, vm_on_arrival
from forewarn.core.cause import CAUSE_RULES, Cause, CauseRules, verb_noun
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.fleet import PowerState, Priority, Vm
from forewarn.core.host_failure import end_acts_on_failed_hosts, needs_recovery
from forewarn.core.request import MaintenanceRequest, PlannedEvent, RequestedOperation
from forewarn.core.scope import Scope, disable_scope_if_idle, hours_text, scope_title
from forewarn.core.windows import is_open, local_time_text, next_start, window_source
from forewarn.errors import Refused, Rejected, Remedy
from forewarn.protocol.document import Kind

# The cause of a request's events, by the requested operation.
OPERATION_CAUSES: dict[RequestedOperation, Cause] = {
    RequestedOperation.RESTART: Cause.USER_RESTART,
    RequestedOperation.REDEPLOY: Cause.USER_REDEPLOY,
    RequestedOperation.EVICT: Cause.EVICTION,
    RequestedOperation.RECOMMEND_REBALANCE: Cause.REBALANCE,
    RequestedOperation.DELETE: Cause.USER_DELETE,
    RequestedOperation.SCALE_IN: Cause.SCALE_IN,
    RequestedOperation.POWER_OFF: Cause.POWER_OFF,
    RequestedOperation.START: Cause.START,
    RequestedOperation.DEALLOCATE: Cause.DEALLOCATE,
    RequestedOperation.REAPPLY: Cause.REAPPLY,
    RequestedOperation.REIMAGE: Cause.REIMAGE,
    RequestedOperation.DEGRADE: Cause.PREDICTED_FAILURE,
    RequestedOperation.FAIL: Cause.HOST_FAILED,
}

# Which pending events of a VM a new user operation replaces (spec §8.4).
REPLACED_CAUSES: dict[Cause, frozenset[Cause]] = {
    Cause.USER_REDEPLOY: frozenset({Cause.USER_RESTART}),
    Cause.EVICTION: frozenset({Cause.REBALANCE}),
    Cause.USER_DELETE: frozenset({Cause.USER_RESTART, Cause.USER_REDEPLOY, Cause.ANNOUNCED_REIMAGE}),
    Cause.SCALE_IN: frozenset({Cause.USER_RESTART, Cause.USER_REDEPLOY, Cause.ANNOUNCED_REIMAGE}),
}
_USER_OPERATIONS = frozenset({Cause.SCALE_IN, *(cause for cause, rules in CAUSE_RULES.items() if rules.by_user)})
_SPOT_CAUSES = frozenset({Cause.EVICTION, Cause.REBALANCE})

NewId = Callable[[], str]  # returns a new event id


def plan_events_for_vms(
    request: MaintenanceRequest, vms: Iterable[Vm], new_id: NewId, *, host: str = ""
) -> tuple[PlannedEvent, ...]:
    """Return one planned event per VM, in the order of `vms`, for an operation that a request asks for."""
    operation_cause = OPERATION_CAUSES[request.operation]
    return tuple(
        PlannedEvent(
            event_id=new_id(),
            request_id=request.id,
            scope_id=vm.scope_id,
            cause=(cause := _cause_for_vm(operation_cause, vm)),
            requested_by=request.requested_by,
            vms=(vm.name,),
            notice_s=_notice_seconds(request, cause, vm),
            update_domain=vm.update_domain,
            host=host,
        )
        for vm in vms
    )


def _cause_for_vm(cause: Cause, vm: Vm) -> Cause:
    """Return the cause of an operation's event for this VM: its OS image notification announces a reimage."""
    return Cause.ANNOUNCED_REIMAGE if cause is Cause.REIMAGE and vm.os_image_notice_min else cause


def _notice_seconds(request: MaintenanceRequest, cause: Cause, vm: Vm) -> float:
    rules = CAUSE_RULES[cause]
    # The owner of the VM sets the notice of a Terminate; all other kinds have the minimum of their cause.
    minimum = vm.terminate_notice_min * 60 if rules.kind is Kind.TERMINATE else rules.minimum_notice_s
    if cause is Cause.ANNOUNCED_REIMAGE:
        minimum = vm.os_image_notice_min * 60
    if not request.notice_s and not request.short_notice:
        return minimum
    if rules.kind is Kind.TERMINATE and not minimum:
        raise Refused(
            f"VM {vm.name!r} has no terminate notification and would be deleted at once: "
            "leave the notice out, or enable terminate notifications for the VM"
        )
    if rules.kind is None:
        raise Rejected(f"{request.operation} gives no notice, because it is performed at once: leave the notice out")
    return allowed_notice(rules, minimum, notice_s=request.notice_s, short_notice=request.short_notice)


def allowed_notice(rules: CauseRules, minimum_s: float, *, notice_s: float, short_notice: bool) -> float:
    """Return the notice to give in seconds: the requested one, else the minimum (spec §6.3)."""
    # Tests need events that start in seconds: 0 is a notice here, not "the minimum".
    if short_notice:
        return notice_s
    if 0 < notice_s < minimum_s:
        raise Rejected(
            f"notice of {exact_duration_text(notice_s)} is shorter than the {duration_text(minimum_s)} "
            f"a {rules.kind} needs",
            Remedy.ALLOW_SHORT_NOTICE,
            minimum=duration_text(minimum_s),
        )
    return notice_s or minimum_s


def apply_planned_event(scope: Scope, planned: PlannedEvent, context: DecisionContext) -> Scope:
    """Return the scope with the planned event published, started or performed at once.

    It starts, without notice, if its cause is a failed host, a policy approves it or a fault says so; it is performed
    at once if no document would show it; else it is published. An event that a policy approves is only published,
    approved, while its VM is being moved. A failed host also ends acts in progress on its VMs.

    Pending events that it replaces are withdrawn. VMs are left out if they are gone, have left the host that it is
    about, or (unless it crosses update domains) are now in a different update domain from the first remaining VM. A
    scope that has the event already is returned unchanged.
    """
    # A crash after the commit leads here again with the same id: the event is published once.
    if scope.event(planned.event_id) is not None:
        return scope
    scope = disable_scope_if_idle(scope, context.policy, context.now)  # the reconciler may not have come to it yet
    rules = CAUSE_RULES[planned.cause]
    if not rules.has_impact and not context.policy.recommends_rebalancing:
        raise Refused("Spot rebalance recommendations are off: switch the setting preview_versions on")
    vms = [vm for vm in (scope.vm(name) for name in planned.vms) if vm is not None]
    if not vms:
        raise Refused(f"VM {planned.vms[0]!r} no longer exists: there is nothing to {rules.verb}")
    # Time has passed since the request: only what is still true of the VMs counts.
    vms = [vm for vm in vms if _is_concerned(scope, vm, planned, context)]
    if not vms:
        raise Refused(f"VM {planned.vms[0]!r} is no longer on host {planned.host!r}: there is nothing to {rules.verb}")
    # A VM may have been deleted and added in another update domain since this was planned (spec §7.3).
    if not planned.crosses_update_domains:
        vms = [vm for vm in vms if vm.update_domain == vms[0].update_domain]
    for vm in vms:
        _require_applicable(vm_on_arrival(scope, vm, planned.host) or vm, planned.cause)

    # After all checks of the VMs, so that a refused operation withdraws nothing.
    replaced = _replaced_events(scope, planned)
    for event in replaced:
        reason = f"replaced by {planned.cause}"
        ending = Ending.WITHDRAWN if event.rules.has_impact else Ending.NOT_NEEDED
        scope = lifecycle.withdraw(scope, event, by=planned.requested_by, reason=reason, now=context.now, ending=ending)
    event = replace(_new_event(scope, planned, vms, context), replaces=tuple(event.id for event in replaced))
    scope = _announce_or_start(scope, event, vms, context)
    # Last, because the events that it replaces do not count against the limit (spec §8.4).
    if rules.limited:
        _require_within_limit(scope, context.policy.max_user_operations)
    return scope


def may_start_at_once(scope: Scope, planned: PlannedEvent, context: DecisionContext) -> bool:
    """Return whether `apply_planned_event` could start this event at once, so that VMs may move.

    False means that the event would only be published. True does not mean that it will start.
    """
    rules = CAUSE_RULES[planned.cause]
    # A fault may take the notice away, so with any fault the destinations must be chosen before.
    if context.faults or planned.cause is Cause.HOST_FAILED or rules.kind is None:
        return True
    scope = disable_scope_if_idle(scope, context.policy, context.now)
    vms = [vm for vm in (scope.vm(name) for name in planned.vms) if vm is not None]
    # The scope is disabled as `apply_planned_event` will see it, or the two could disagree.
    unlisted = bool(vms) and _unlisted_reason(scope, planned, vms, context.policy.idle_s) is not None
    return unlisted or any(_is_preapproved(planned.cause, [vm]) for vm in vms)


def _is_concerned(scope: Scope, vm: Vm, planned: PlannedEvent, context: DecisionContext) -> bool:
    if planned.cause is Cause.HOST_FAILED and planned.host:
        return needs_recovery(scope, vm, planned.host, context.failed_hosts)
    return is_concerned(scope, vm, CAUSE_RULES[planned.cause], planned.host)


def _new_event(scope: Scope, planned: PlannedEvent, vms: list[Vm], context: DecisionContext) -> Event:
    now, unlisted = context.now, _unlisted_reason(scope, planned, vms, context.policy.idle_s)
    notice_ends = float(math.ceil(now + planned.notice_s))  # whole seconds, as the wire shows them, never less
    not_before = _start_in_window(planned, notice_ends)
    return Event(
        id=planned.event_id,
        scope_id=scope.id,
        request_id=planned.request_id,
        cause=planned.cause,
        requested_by=planned.requested_by,
        vms=tuple(vm.name for vm in vms),
        published_at=now,
        not_before=not_before,
        update_domain=vms[0].update_domain,
        host=planned.host,
        gate_id=planned.gate_id,
        listed=unlisted is None,
        note=unlisted or _arrival_note(planned, vms[0]) or _window_note(planned, notice_ends, not_before),
        calendar=planned.calendar,
    )


def _start_in_window(planned: PlannedEvent, notice_ends: float) -> float:
    """Return when it may start without an approval: in a window, after its notice (spec §13.3)."""
    # If no window follows, that is the end of its notice; `release.start_wait` then waits for an approval.
    start = next_start(planned.calendar, notice_ends) if planned.calendar is not None else notice_ends
    return notice_ends if start is None else float(math.ceil(start))


def _window_note(planned: PlannedEvent, notice_ends: float, not_before: float) -> str:
    if planned.calendar is None or not_before == notice_ends:
        return ""
    when = local_time_text(planned.calendar, not_before)
    if is_open(planned.calendar, not_before):
        return f"its maintenance window{window_source(planned.calendar)} is open from {when}"
    return f"its deadline, {when}, comes before its next maintenance window{window_source(planned.calendar)}"


def _arrival_note(planned: PlannedEvent, vm: Vm) -> str:
    if planned.host in ("", vm.host):
        return ""
    if planned.cause is Cause.HOST_FAILED:
        return f"host {planned.host} failed while {vm.name} was moving to it"
    return f"{vm.name} is being moved to {planned.host}" if planned.cause is Cause.PREDICTED_FAILURE else ""


def _unlisted_reason(scope: Scope, planned: PlannedEvent, vms: list[Vm], idle_s: float) -> str | None:
    """Return why no document shows this event, in words for its requester; None: it is listed."""
    rules = CAUSE_RULES[planned.cause]
    if rules.kind is None:
        return f"a {planned.cause} publishes no event"
    if rules.kind is Kind.TERMINATE and not vms[0].terminate_notice_min:
        return "no terminate notification is set"
    if rules.kind is Kind.TERMINATE and vms[0].priority is Priority.SPOT:  # spec §6.3
        return "a Spot VM has no terminate notification"
    if rules.by_user and not scope.is_enabled:
        return f"no VM of the scope has polled within {hours_text(idle_s)}, so scheduled events are disabled there"
    return None


def _announce_or_start(scope: Scope, event: Event, vms: list[Vm], context: DecisionContext) -> Scope:
    if event.cause is Cause.HOST_FAILED:
        # The redeployment takes the place of what was being done to these VMs, even if the host was repaired meanwhile.
        at_failure = replace(context, failed_hosts=context.failed_hosts | {event.host})
        scope = end_acts_on_failed_hosts(scope, at_failure, names=event.vms)
        return lifecycle.start_without_notice(scope, event, acts_for_event(scope, event, context), context.now)
    # Nothing may begin on a VM that another act is taking off its host (spec §6.4).
    earlier = act_to_wait_for(scope, event)
    if not event.listed:
        if earlier is not None and not earlier.to_host:
            raise Refused(f"the {verb_noun(earlier.verb)} of VM {earlier.name!r} has started: wait until it is done")
        # Its destination was chosen for the host that the VM is about to leave.
        if earlier is not None and event.rules.verb.rules.moves:
            raise Refused(
                f"VM {earlier.name!r} is being moved to host {earlier.to_host!r}: try again when it has arrived"
            )
        return lifecycle.start_without_notice(scope, event, acts_for_event(scope, event, context), context.now)
    if _is_preapproved(event.cause, vms) and (vms[0].approves_all_down or not _stops_last_vm(scope, vms)):
        approved = replace(event, approved_at=context.now, approved_by="policy", note="approved by policy")
        if earlier is not None:
            return lifecycle.announce(scope, approved)  # it starts when the VM has arrived
        return lifecycle.start_without_notice(scope, approved, acts_for_event(scope, approved, context), context.now)
    return (
        fault_effects.announce_with_faults(scope, event, context)
        if context.faults
        else lifecycle.announce(scope, event)
    )


def _is_preapproved(cause: Cause, vms: list[Vm]) -> bool:
    if cause is Cause.USER_RESTART:
        return all(vm.auto_approve.restart for vm in vms)
    return cause is Cause.USER_REDEPLOY and all(vm.auto_approve.redeploy for vm in vms)


def _stops_last_vm(scope: Scope, vms: list[Vm]) -> bool:
    """Return whether no other VM of the scope would run while these are down (spec §14.2)."""
    down = {vm.key for vm in vms}
    # VMs that an event works on are down as well, or two approvals by policy could stop the whole set.
    down.update(act.vm for event in scope.live_events(EventState.STARTED) for act in event.unfinished_acts)
    return all(vm.key in down for vm in scope.present_vms if vm.power is PowerState.RUNNING)


def _replaced_events(scope: Scope, planned: PlannedEvent) -> list[Event]:
    replaced: list[Event] = []
    for event in scope.live_events():
        if not _are_exclusive(event.cause, planned.cause) or not set(event.vms) & set(planned.vms):
            continue
        # What has started cannot be replaced: its VM is being changed already.
        if event.cause not in REPLACED_CAUSES.get(planned.cause, frozenset()) or event.status is EventState.STARTED:
            raise Refused(_busy_message(event))
        replaced.append(event)
    return replaced


def _are_exclusive(pending: Cause, new: Cause) -> bool:
    return any(pending in causes and new in causes for causes in (_USER_OPERATIONS, _SPOT_CAUSES))


def _require_within_limit(scope: Scope, limit: int) -> None:
    scheduled = [e for e in scope.live_events(EventState.SCHEDULED) if e.rules.limited and e.listed]
    if len(scheduled) > limit:
        raise Refused(
            f"{scope_title(scope)} may have at most {limit} user operations scheduled at the same time, "
            "and this would be one more: approve some, wait until they are done, or request fewer"
        )


def _busy_message(event: Event) -> str:
    name = f"the {event.cause} of VM {event.vms[0]!r}"
    if event.status is EventState.STARTED:
        return f"{name} has started: wait until it is done"
    return f"{name} is pending: approve or withdraw event {event.id} first"


def _require_applicable(vm: Vm, cause: Cause) -> None:
    if cause in _SPOT_CAUSES and vm.priority is not Priority.SPOT:
        raise Refused(f"VM {vm.name!r} is not a Spot VM and cannot be evicted: delete or redeploy it instead")
    if cause is Cause.START:
        if vm.power is PowerState.RUNNING:
            raise Refused(f"VM {vm.name!r} is running already: there is nothing to start")
        return
    if vm.power is PowerState.DEALLOCATED and cause not in _ALLOWED_WHEN_DEALLOCATED:
        raise Refused(f"VM {vm.name!r} is deallocated: start it first")
    if vm.power is PowerState.STOPPED and cause is Cause.USER_RESTART:
        raise Refused(f"VM {vm.name!r} is stopped and cannot be restarted: start it instead")


def is_applicable(vm: Vm, cause: Cause) -> bool:
    """Return whether the VM's priority and power state allow this cause; its events are not considered."""
    try:
        _require_applicable(vm, cause)
    except Refused:
        return False
    return True


_ALLOWED_WHEN_DEALLOCATED = frozenset({Cause.USER_DELETE, Cause.SCALE_IN, Cause.DEALLOCATE, Cause.REAPPLY})


def pending_platform_events(scope: Scope, name: str) -> tuple[Event, ...]:
    """Return the scheduled events of planned platform maintenance that list a VM, oldest first."""
    wanted = name.casefold()
    pending = tuple(
        event
        for event in scope.live_events(EventState.SCHEDULED)
        if event.rules.planned and any(vm.casefold() == wanted for vm in event.vms)
    )
    if not pending:
        raise Refused(f"VM {name!r} has no pending maintenance: there is nothing to perform")
    return pending
