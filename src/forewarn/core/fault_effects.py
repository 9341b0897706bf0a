"""Effects of injected faults on events and scopes (spec §11).

Asks the decision context for a fault only where it would change something, so that a fault with a count is not used
up by an event that it leaves unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from forewarn.core import lifecycle
from forewarn.core.acts import acts_for_event
from forewarn.core.cause import CAUSE_RULES, Cause
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Event
from forewarn.core.faults import Fault, FaultKind
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.request import PlannedEvent
from forewarn.core.scope import Scope
from forewarn.errors import Refused, Remedy

_FREEZE_CAUSE = Cause.HOST_UPDATE


def announce_with_faults(scope: Scope, event: Event, around: DecisionContext) -> Scope:
    """Publish an event with its notice, unless a fault says otherwise."""
    if (
        _may_start_without_notice(scope, event, around)
        and (fault := around.fault_for(FaultKind.NO_NOTICE, event)) is not None
    ):
        struck = _with_fault(event, fault, "no notice at all")
        return lifecycle.start_without_notice(scope, struck, acts_for_event(scope, struck, around), around.now)
    return lifecycle.announce(scope, _with_short_notice(event, around))


def withdraw_after_approval(scope: Scope, event: Event, around: DecisionContext) -> Scope | None:
    """An approved event that a fault withdraws when it should start; None: it starts."""
    if event.approved_at is None:
        return None
    fault = around.fault_for(FaultKind.WITHDRAWN_AFTER_APPROVAL, event)
    if fault is None:
        return None
    touched = replace(event, faults=(*event.faults, fault.id))
    reason = f"{fault.title} of {fault.name}"
    return lifecycle.withdraw(scope, touched, by=fault.who, reason=reason, now=around.now)


def reset_incarnation(scope: Scope, fault: Fault, now: float) -> Scope:
    """As if the scope had been idle for a day and was enabled again: what is pending stays listed (spec §4.2)."""
    if not scope.is_enabled:
        raise Refused(f"scope {scope.id!r} is not enabled, so it has no incarnation to reset: poll from one of its VMs")
    text = f"{fault.title} set {fault.name} back to incarnation 1, epoch {scope.epoch + 1}"
    entry = HistoryEntry(at=now, what=EntryKind.FAULT, who=fault.who, text=text, vm=fault.vm_name)
    return replace(scope, epoch=scope.epoch + 1, incarnation=1, enabled_at=now).with_entries(entry)


def plan_freezes(fault: Fault, scope: Scope, ids: Sequence[str]) -> tuple[PlannedEvent, ...]:
    """A Freeze per id, over the VMs of the scope in their order, beginning with the one the fault names."""
    vms = _running_vms_from_target(fault, scope)
    if not vms:
        raise Refused(f"scope {scope.id!r} has no VM that runs, so there is nothing to freeze: start one first")
    return tuple(_planned_freeze(fault, vms[number % len(vms)], event_id) for number, event_id in enumerate(ids))


def plan_neighbour_freeze(fault: Fault, scope: Scope, event_id: str) -> PlannedEvent:
    others = [vm for vm in _running_vms_from_target(fault, scope) if vm.key != _own_vm_key(fault, scope)]
    if not others:
        raise Refused(
            f"{fault.name} has no neighbour that runs, so name a VM that shares its scope with others",
            Remedy.LIST_SCOPES,
        )
    return _planned_freeze(fault, others[0], event_id)


def _own_vm_key(fault: Fault, scope: Scope) -> str:
    return fault.vm or next((vm.key for vm in scope.present_vms), "")


def _running_vms_from_target(fault: Fault, scope: Scope) -> list[Vm]:
    vms = list(scope.present_vms)
    first = next((number for number, vm in enumerate(vms) if vm.key == fault.vm), 0)
    return [vm for vm in vms[first:] + vms[:first] if vm.power is not PowerState.DEALLOCATED]


def _planned_freeze(fault: Fault, vm: Vm, event_id: str) -> PlannedEvent:
    return PlannedEvent(
        event_id=event_id,
        request_id=fault.id,
        scope_id=vm.scope_id,
        cause=_FREEZE_CAUSE,
        who=fault.who,
        vms=(vm.name,),
        notice_s=CAUSE_RULES[_FREEZE_CAUSE].minimum_notice_s,
        update_domain=vm.update_domain,
        host=vm.host,
    )


def mark_events_with_fault(scope: Scope, fault: Fault, ids: Sequence[str]) -> Scope:
    """The scope with the fault named on the events that it made."""
    for event_id in ids:
        event = scope.event(event_id)
        if event is not None and fault.id not in event.faults:
            note = "; ".join(filter(None, (f"made by {fault.title} of {fault.name}", event.note)))
            scope = scope.with_event(replace(event, faults=(*event.faults, fault.id), note=note))
    return scope


def _may_start_without_notice(scope: Scope, event: Event, around: DecisionContext) -> bool:
    """Update domains stay apart even so (spec §6.2); the others on its host are not waited for."""
    wait = start_wait(scope, replace(event, approved_at=around.now), around)
    return wait is None or wait.reason is WaitReason.GATE


def _with_short_notice(event: Event, around: DecisionContext) -> Event:
    fault = around.fault_for(FaultKind.SHORT_NOTICE, event)
    if fault is None:
        return event
    not_before = float(math.ceil(around.now + fault.parameter("notice_s")))
    if not_before >= event.not_before:
        return event
    promised = f"{event.not_before - around.now:.0f} s"
    return replace(_with_fault(event, fault, f"notice cut down from {promised}"), not_before=not_before)


def _with_fault(event: Event, fault: Fault, how: str) -> Event:
    note = f"{fault.title} of {fault.name}: {how}"
    return replace(event, faults=(*event.faults, fault.id), note=note)
