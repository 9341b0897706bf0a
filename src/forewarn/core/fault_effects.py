"""Effects of injected faults on events and scopes (spec §11).

Decisions use this module only while a fault on events is active. A fault applies only where it changes something, so
that a fault with a count is not used up by an event that it leaves unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.core import lifecycle
from forewarn.core.acts import acts_for_event
from forewarn.core.cause import CAUSE_RULES, Cause
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Event
from forewarn.core.faults import EventFault, Fault, FaultKind
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.request import PlannedEvent
from forewarn.core.scope import Scope, scope_title
from forewarn.errors import Refused, Remedy

_FREEZE_CAUSE = Cause.HOST_UPDATE


def announce_with_faults(scope: Scope, event: Event, context: DecisionContext) -> Scope:
    """Return the scope with a new event published; a fault may start it at once or shorten its notice."""
    if (
        _may_start_without_notice(scope, event, context)
        and (fault := _fault_for(FaultKind.NO_NOTICE, scope, event, context)) is not None
    ):
        faulty = _with_fault(event, fault, "no notice")
        return lifecycle.start_without_notice(scope, faulty, acts_for_event(scope, faulty, context), context.now)
    return lifecycle.announce(scope, _with_short_notice(scope, event, context))


def withdraw_after_approval(scope: Scope, event: Event, context: DecisionContext) -> Scope | None:
    """Return the scope with an approved, scheduled event withdrawn by a fault; None if no fault does that."""
    if event.approved_at is None:
        return None
    fault = _fault_for(FaultKind.WITHDRAWN_AFTER_APPROVAL, scope, event, context)
    if fault is None:
        return None
    touched = replace(event, faults=(*event.faults, fault.id))
    reason = f"{fault.title} of {fault.name}"
    return lifecycle.withdraw(scope, touched, by=fault.set_by, reason=reason, now=context.now)


def reset_incarnation(scope: Scope, fault: Fault, now: float) -> Scope:
    """Return the scope at incarnation 1 of a new epoch, as if it was idle for a day and enabled again."""
    if not scope.is_enabled:
        raise Refused(
            f"{scope_title(scope)} has no incarnation to reset, because scheduled events are not enabled for it: "
            "poll from a VM of this scope"
        )
    text = f"{fault.title} set {fault.name} back to incarnation 1, epoch {scope.epoch + 1}"
    entry = HistoryEntry(at=now, kind=EntryKind.FAULT, actor=fault.set_by, text=text, vm=fault.vm_name)
    return replace(scope, epoch=scope.epoch + 1, incarnation=1, enabled_at=now).with_entries(entry)


def plan_freezes(fault: Fault, scope: Scope, ids: Sequence[str]) -> tuple[PlannedEvent, ...]:
    """Return one planned Freeze per event id, each for one running VM of the scope in turn, the fault's VM first."""
    vms = _vms_from_target(fault, scope)
    if not vms:
        raise Refused(
            f"no VM runs in the scope of {scope_title(scope)}, so there is nothing to freeze: start one first"
        )
    return tuple(_planned_freeze(fault, vms[number % len(vms)], event_id) for number, event_id in enumerate(ids))


def plan_neighbour_freeze(fault: Fault, scope: Scope, event_id: str) -> PlannedEvent:
    """Return a planned Freeze, with this event id, of one running VM that is not the fault's VM."""
    running = _vms_from_target(fault, scope)
    spared = fault.vm or (running[0].key if running else "")
    others = [vm for vm in running if vm.key != spared]
    if not others:
        raise Refused(
            f"{fault.name} has no neighbour that runs, so name a VM that shares its scope with others",
            Remedy.LIST_SCOPES,
        )
    return _planned_freeze(fault, others[0], event_id)


def plan_freeze_of_several_update_domains(fault: Fault, scope: Scope, event_id: str) -> PlannedEvent:
    """Return a planned Freeze, with this event id, of running VMs that are in different update domains."""
    # The event is not work on a host, because its VMs may be on several.
    by_domain: dict[int, Vm] = {}
    for vm in _vms_from_target(fault, scope):
        by_domain.setdefault(vm.update_domain, vm)
    chosen = list(by_domain.values())[: int(fault.parameter("domains"))]
    if len(chosen) < 2:
        raise Refused(
            f"the running VMs in the scope of {fault.name} are in fewer than two update domains: name another scope",
            Remedy.LIST_SCOPES,
        )
    first = _planned_freeze(fault, chosen[0], event_id)
    return replace(first, vms=tuple(vm.name for vm in chosen), host="", crosses_update_domains=True)


def _vms_from_target(fault: Fault, scope: Scope) -> list[Vm]:
    """Return the VMs of the scope that run, the fault's VM first if it does."""
    vms = list(scope.present_vms)
    first = next((number for number, vm in enumerate(vms) if vm.key == fault.vm), 0)
    return [vm for vm in vms[first:] + vms[:first] if vm.power is PowerState.RUNNING]


def _planned_freeze(fault: Fault, vm: Vm, event_id: str) -> PlannedEvent:
    return PlannedEvent(
        event_id=event_id,
        request_id=fault.id,
        scope_id=vm.scope_id,
        cause=_FREEZE_CAUSE,
        requested_by=fault.set_by,
        vms=(vm.name,),
        notice_s=CAUSE_RULES[_FREEZE_CAUSE].minimum_notice_s,
        update_domain=vm.update_domain,
        host=vm.host,
    )


def mark_events_with_fault(scope: Scope, fault: Fault, ids: Sequence[str]) -> Scope:
    """Return the scope with the fault's id added to `faults` of the events with these ids, which it made."""
    for event_id in ids:
        event = scope.event(event_id)
        if event is not None and fault.id not in event.faults:
            note = "; ".join(filter(None, (f"made by {fault.title} of {fault.name}", event.note)))
            scope = scope.with_event(replace(event, faults=(*event.faults, fault.id), note=note))
    return scope


def _fault_for(kind: FaultKind, scope: Scope, event: Event, context: DecisionContext) -> Fault | None:
    applying = (active for active in context.faults if _applies_to(active, kind, scope, event, context.now))
    return next((active.fault for active in applying), None)


def _applies_to(active: EventFault, kind: FaultKind, scope: Scope, event: Event, now: float) -> bool:
    """A fault whose count is used up applies only to events that it has affected before."""
    fault = active.fault
    if fault.kind is not kind or not fault.covers_event(scope_id=event.scope_id, names=event.vms):
        return False
    if fault.until is not None and now >= fault.until:
        return False
    if fault.count is None:
        return True
    used_by = active.used_by | {other.id for other in scope.events if fault.id in other.faults}
    return event.id in used_by or len(used_by) < fault.count


def _may_start_without_notice(scope: Scope, event: Event, context: DecisionContext) -> bool:
    """Return whether only its gate would make it wait: update domains stay apart even then (spec §6.2)."""
    wait = start_wait(scope, replace(event, approved_at=context.now), context)
    return wait is None or wait.reason is WaitReason.GATE


def _with_short_notice(scope: Scope, event: Event, context: DecisionContext) -> Event:
    fault = _fault_for(FaultKind.SHORT_NOTICE, scope, event, context)
    if fault is None:
        return event
    not_before = float(math.ceil(context.now + fault.parameter("notice_s")))
    if not_before >= event.not_before:
        return event
    promised = duration_text(event.not_before - context.now)
    return replace(_with_fault(event, fault, f"notice shortened from {promised}"), not_before=not_before)


def _with_fault(event: Event, fault: Fault, how: str) -> Event:
    note = f"{fault.title} of {fault.name}: {how}"
    return replace(event, faults=(*event.faults, fault.id), note=note)
