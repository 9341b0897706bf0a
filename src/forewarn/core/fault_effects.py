"""What a fault does to an event or a scope (spec §11); with no fault, what would happen anyway happens.

Whether a fault is on is asked of the circumstances (`Around.befalls`), and only where it would make a difference, so
that a fault for the next event is not spent on one that it leaves as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from forewarn.core import lifecycle
from forewarn.core.cause import CAUSES, Cause
from forewarn.core.event import Event
from forewarn.core.fault import Fault, FaultKind
from forewarn.core.fleet import Power, Vm
from forewarn.core.history import Entry, What
from forewarn.core.impact import acts_of
from forewarn.core.policy import Around
from forewarn.core.release import Reason, waits_for
from forewarn.core.request import Planned
from forewarn.core.scope import Scope
from forewarn.errors import Refused

_FREEZE = Cause.HOST_UPDATE


def announce(scope: Scope, event: Event, around: Around) -> Scope:
    """Publish an event with its notice, unless a fault says otherwise."""
    if _may_start_now(scope, event, around) and (fault := around.befalls(FaultKind.NO_NOTICE, event)) is not None:
        struck = _touched(event, fault, "no notice at all")
        return lifecycle.strike(scope, struck, acts_of(scope, struck, around), around.now)
    return lifecycle.announce(scope, _hurried(event, around))


def take_back(scope: Scope, event: Event, around: Around) -> Scope | None:
    """An approved event that a fault withdraws when it should start; None: it starts."""
    if event.approved_at is None:
        return None
    fault = around.befalls(FaultKind.WITHDRAWN_AFTER_APPROVAL, event)
    if fault is None:
        return None
    touched = replace(event, faults=(*event.faults, fault.id))
    reason = f"{fault.title} of {fault.name}"
    return lifecycle.withdraw(scope, touched, by=fault.who, reason=reason, now=around.now)


def reset(scope: Scope, fault: Fault, now: float) -> Scope:
    """As if the scope had been idle for a day and was enabled again: what is pending stays listed (spec §4.2)."""
    if not scope.is_enabled:
        raise Refused(f"scope {scope.id!r} is not enabled, so it has no incarnation to reset: poll from one of its VMs")
    text = f"{fault.title} set {fault.name} back to incarnation 1, epoch {scope.epoch + 1}"
    entry = Entry(at=now, what=What.FAULT, who=fault.who, text=text, vm=fault.vm_name)
    return replace(scope, epoch=scope.epoch + 1, incarnation=1, enabled_at=now).saying(entry)


def freezes_for(fault: Fault, scope: Scope, ids: Sequence[str]) -> tuple[Planned, ...]:
    """A Freeze per id, over the VMs of the scope in their order, beginning with the one the fault names."""
    vms = _round(fault, scope)
    if not vms:
        raise Refused(f"scope {scope.id!r} has no VM that runs, so there is nothing to freeze: start one first")
    return tuple(_freeze(fault, vms[number % len(vms)], event_id) for number, event_id in enumerate(ids))


def neighbours_freeze(fault: Fault, scope: Scope, event_id: str) -> Planned:
    others = [vm for vm in _round(fault, scope) if vm.key != _own(fault, scope)]
    if not others:
        raise Refused(
            f"{fault.name} has no neighbour that runs: name a VM that shares its scope with others "
            "(`forewarn fleet show` lists the scopes)"
        )
    return _freeze(fault, others[0], event_id)


def _own(fault: Fault, scope: Scope) -> str:
    return fault.vm or next((vm.key for vm in scope.present), "")


def _round(fault: Fault, scope: Scope) -> list[Vm]:
    vms = list(scope.present)
    first = next((number for number, vm in enumerate(vms) if vm.key == fault.vm), 0)
    return [vm for vm in vms[first:] + vms[:first] if vm.power is not Power.DEALLOCATED]


def _freeze(fault: Fault, vm: Vm, event_id: str) -> Planned:
    return Planned(
        event_id=event_id,
        request_id=fault.id,
        scope_id=vm.scope_id,
        cause=_FREEZE,
        who=fault.who,
        vms=(vm.name,),
        notice_s=CAUSES[_FREEZE].minimum_notice_s,
        update_domain=vm.update_domain,
        host=vm.host,
    )


def marked(scope: Scope, fault: Fault, ids: Sequence[str]) -> Scope:
    """The scope with the fault named on the events that it made."""
    for event_id in ids:
        event = scope.event(event_id)
        if event is not None and fault.id not in event.faults:
            note = "; ".join(filter(None, (f"made by {fault.title} of {fault.name}", event.note)))
            scope = scope.with_event(replace(event, faults=(*event.faults, fault.id), note=note))
    return scope


def _may_start_now(scope: Scope, event: Event, around: Around) -> bool:
    """Update domains stay apart even so (spec §6.2); the others on its host are not waited for."""
    wait = waits_for(scope, replace(event, approved_at=around.now), around)
    return wait is None or wait.reason is Reason.GATE


def _hurried(event: Event, around: Around) -> Event:
    fault = around.befalls(FaultKind.SHORT_NOTICE, event)
    if fault is None:
        return event
    not_before = float(math.ceil(around.now + fault.value("notice_s")))
    if not_before >= event.not_before:
        return event
    promised = f"{event.not_before - around.now:.0f} s"
    return replace(_touched(event, fault, f"notice cut down from {promised}"), not_before=not_before)


def _touched(event: Event, fault: Fault, how: str) -> Event:
    note = f"{fault.title} of {fault.name}: {how}"
    return replace(event, faults=(*event.faults, fault.id), note=note)
