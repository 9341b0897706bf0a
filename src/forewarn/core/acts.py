"""What an event does to its VMs: the acts it owes once started, and what each leaves behind."""

from __future__ import annotations

from msgspec.structs import replace

from forewarn.core.cause import Cause, Verb
from forewarn.core.event import Act, Event, Outcome, act_id
from forewarn.core.fleet import EvictionPolicy, Power, Vm
from forewarn.core.policy import Around
from forewarn.core.scope import Scope

# A deallocated VM is on no host: these are all that can still be done to it.
_WITHOUT_HOST = frozenset({Verb.DELETE, Verb.START, Verb.REAPPLY, Verb.DEALLOCATE})


def can_hit(vm: Vm, verb: Verb) -> bool:
    return vm.power is not Power.DEALLOCATED or verb in _WITHOUT_HOST


def hit_by(scope: Scope, event: Event) -> tuple[Vm, ...]:
    """The VMs an event would really hit now: listed, still there, and not deallocated meanwhile (spec §4.2)."""
    listed = (scope.vm(name) for name in event.vms)
    return tuple(vm for vm in listed if vm is not None and can_hit(vm, event.row.verb))


def acts_of(scope: Scope, event: Event, around: Around) -> tuple[Act, ...]:
    return tuple(_act(event, vm, around) for vm in hit_by(scope, event))


def _act(event: Event, vm: Vm, around: Around) -> Act:
    row = event.row
    needs_host = row.moves or (row.verb is Verb.START and not vm.host)
    to_host = around.destination(vm) if needs_host else None
    nowhere = Outcome(ok=False, at=around.now, note=f"no healthy host to move to in {vm.location}")
    return Act(
        id=act_id(event.id, vm.name),
        vm=vm.key,
        name=vm.name,
        verb=row.verb,
        event_id=event.id,
        from_host=vm.host,
        to_host=to_host or "",
        duration_s=row.duration_s,
        abrupt=event.cause is Cause.HOST_FAILED,
        keeps_vm=row.verb is not Verb.EVICT or vm.eviction_policy is EvictionPolicy.DEALLOCATE,
        outcome=nowhere if needs_host and to_host is None else None,
    )


def after(vm: Vm, act: Act, at: float) -> Vm:
    """The VM as a performed act leaves it."""
    match act.verb:
        case Verb.MIGRATE | Verb.REDEPLOY:
            return replace(vm, host=act.to_host)
        case Verb.DELETE:
            return replace(vm, removed_at=at, host="")
        case Verb.EVICT if not act.keeps_vm:
            return replace(vm, removed_at=at, host="")
        case Verb.EVICT | Verb.DEALLOCATE:
            return replace(vm, power=Power.DEALLOCATED, host="")
        case Verb.POWER_OFF:
            return replace(vm, power=Power.STOPPED)
        case Verb.START:
            host = act.to_host or vm.host
            return replace(vm, power=Power.RUNNING, host=host) if host else vm
        case _:
            return vm
