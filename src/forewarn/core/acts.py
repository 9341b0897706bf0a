"""Acts of an event: which VMs it affects, the acts that its start creates, and the VM after each act."""

from __future__ import annotations

from msgspec.structs import replace

from forewarn.core.cause import Cause, Verb
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Act, ActOutcome, Event, act_id
from forewarn.core.fleet import EvictionPolicy, PowerState, Vm
from forewarn.core.scope import Scope

# A deallocated VM is on no host; only these verbs can still be performed on it.
_VERBS_WITHOUT_HOST = frozenset({Verb.DELETE, Verb.START, Verb.REAPPLY, Verb.DEALLOCATE})


def can_act_on(vm: Vm, verb: Verb) -> bool:
    """Return whether the VM's power state allows the verb.

    A deallocated VM, which is on no host, can only be started, deleted, deallocated or reapplied.
    """
    return vm.power is not PowerState.DEALLOCATED or verb in _VERBS_WITHOUT_HOST


def affected_vms(scope: Scope, event: Event) -> tuple[Vm, ...]:
    """Return the event's VMs that still exist and that its verb can be performed on, in its order."""
    listed = (scope.vm(name) for name in event.vms)
    return tuple(vm for vm in listed if vm is not None and can_act_on(vm, event.rules.verb))


def acts_for_event(scope: Scope, event: Event, context: DecisionContext) -> tuple[Act, ...]:
    """Return one new act per affected VM of the event, with a destination where it needs another host.

    A VM needs one if it moves, or starts and has none. An act that finds none has a failed outcome from the beginning.
    """
    return tuple(_act_for_vm(event, vm, context) for vm in affected_vms(scope, event))


def _act_for_vm(event: Event, vm: Vm, context: DecisionContext) -> Act:
    rules = event.rules
    needs_host = rules.moves_vm or (rules.verb is Verb.START and not vm.host)
    to_host = context.find_destination(vm) if needs_host else None
    nowhere = ActOutcome(ok=False, at=context.now, note=f"no healthy host to move to in {vm.location}")
    return Act(
        id=act_id(event.id, vm.name),
        vm=vm.key,
        name=vm.name,
        verb=rules.verb,
        event_id=event.id,
        from_host=vm.host,
        to_host=to_host or "",
        duration_s=rules.duration_s,
        abrupt=event.cause is Cause.HOST_FAILED,
        keeps_vm=rules.verb is not Verb.EVICT or vm.eviction_policy is EvictionPolicy.DEALLOCATE,
        outcome=nowhere if needs_host and to_host is None else None,
    )


def vm_after_act(vm: Vm, act: Act, at: float) -> Vm:
    """Return the VM after an act on it succeeded: its host, power state or removal (at `at`) changed.

    A freeze, reboot, reapply or reimage leaves it unchanged, and so does a start without a host.
    """
    match act.verb:
        case Verb.MIGRATE | Verb.REDEPLOY:
            return replace(vm, host=act.to_host)
        case Verb.DELETE:
            return replace(vm, removed_at=at, host="")
        case Verb.EVICT if not act.keeps_vm:
            return replace(vm, removed_at=at, host="")
        case Verb.EVICT | Verb.DEALLOCATE:
            return replace(vm, power=PowerState.DEALLOCATED, host="")
        case Verb.POWER_OFF:
            return replace(vm, power=PowerState.STOPPED)
        case Verb.START:
            host = act.to_host or vm.host
            return replace(vm, power=PowerState.RUNNING, host=host) if host else vm
        case _:
            return vm
