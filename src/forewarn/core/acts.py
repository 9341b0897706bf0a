"""Acts of an event: which VMs it affects, the acts that its start creates, and the VM after each act."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from msgspec.structs import replace

from forewarn.core.cause import CAUSE_RULES, Cause, CauseRules, Verb, VmEffect
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Act, ActOutcome, Event, EventState, act_id
from forewarn.core.fleet import EvictionPolicy, LastSeen, PowerState, Vm, VmCondition
from forewarn.core.request import PlannedEvent
from forewarn.core.scope import Scope


def can_act_on(vm: Vm, verb: Verb) -> bool:
    """Return whether the VM's power state allows the verb."""
    # A deallocated VM, which is on no host, can only be started, deleted, deallocated or reapplied.
    return vm.power is not PowerState.DEALLOCATED or not verb.rules.needs_host


def affected_vms(scope: Scope, event: Event) -> tuple[Vm, ...]:
    """Return the VMs that the event would act on now, as they are now, in the order of `event.vms`."""
    rules, affected = event.rules, []
    for name in event.vms:
        vm = scope.vm(name)
        # A VM that was added under the name of a removed one had no notice of this event.
        if vm is not None and name not in event.removed_vms and is_concerned(scope, vm, rules, event.host):
            arriving = vm_on_arrival(scope, vm, event.host)
            if can_act_on(arriving or vm, rules.verb):
                affected.append(vm)
    return tuple(affected)


def is_concerned(scope: Scope, vm: Vm, rules: CauseRules, host: str) -> bool:
    """Return whether work on `host` still concerns the VM: False only if the VM has left that host."""
    return not (host and rules.planned) or vm.host == host or vm_on_arrival(scope, vm, host) is not None


def vm_on_arrival(scope: Scope, vm: Vm, host: str) -> Vm | None:
    """Return the VM as it will be when an act in progress has brought it to this host; None if none does."""
    if not host or vm.host == host:
        return None
    for event in scope.live_events(EventState.STARTED):
        for act in event.unfinished_acts:
            if act.vm == vm.key and act.to_host == host:
                return vm_after_act(vm, act, event.published_at)
    return None


def act_to_wait_for(scope: Scope, event: Event) -> Act | None:
    """Return an unfinished act of another event that must end before this one acts on its VM, or None."""
    # Such an act takes the VM off its host, so that the VM may be gone afterwards, or brings it to one; an event that
    # itself takes the VM off its host need not wait for the latter.
    others = (other for other in scope.live_events(EventState.STARTED) if other.id != event.id)
    acts = [act for other in others for act in other.unfinished_acts if act.name in event.vms]
    leaving = (act for act in acts if act.verb.rules.leaves_host)  # first, because nothing may follow them
    moving = (act for act in acts if act.to_host and not event.rules.verb.rules.leaves_host)
    return next(leaving, None) or next(moving, None)


def with_acts_at_host(scope: Scope, vm: Vm, failed_hosts: Set[str]) -> Scope:
    """Return the scope with the VM's unfinished acts changed to the host that the VM has come to."""
    has_failed = vm.host in failed_hosts
    for event in scope.live_events(EventState.STARTED):
        acts = tuple(
            replace(act, from_host=vm.host, abrupt=has_failed and _is_possible_without_source(act.verb))
            if act.vm == vm.key and act.outcome is None
            else act
            for act in event.acts
        )
        if acts != event.acts:
            scope = scope.with_event(replace(event, acts=acts))
    return scope


def acts_for_event(scope: Scope, event: Event, context: DecisionContext) -> tuple[Act, ...]:
    """Return one new act (operation on one VM) per VM that the event affects now, in the event's order."""
    return tuple(_act_for_vm(event, vm, context) for vm in affected_vms(scope, event))


def _act_for_vm(event: Event, vm: Vm, context: DecisionContext) -> Act:
    rules = event.rules
    needs_host = _needs_destination(vm, rules)
    to_host = context.destinations.get(vm.key) if needs_host else None
    has_failed = vm.host in context.failed_hosts
    problem = ""
    if needs_host and to_host is None:
        problem = context.destination_problems.get(vm.key) or f"no healthy host to move to in {vm.location}"
    # The outcome is known before the act: nobody can perform it on a host that has failed.
    elif has_failed and not _is_possible_without_source(rules.verb):
        problem = f"host {vm.host} has failed"
    return Act(
        id=act_id(event.id, vm.name),
        vm=vm.key,
        name=vm.name,
        verb=rules.verb,
        event_id=event.id,
        from_host=vm.host,
        to_host=to_host or "",
        duration_s=rules.duration_s,
        # Its host has failed, so a move need not wait for it, and may fence it.
        abrupt=event.cause is Cause.HOST_FAILED or has_failed,
        keeps_vm=rules.verb is not Verb.EVICT or vm.eviction_policy is EvictionPolicy.DEALLOCATE,
        is_stopped=vm.is_stopped_on_purpose,
        outcome=ActOutcome(ok=False, at=context.now, note=problem) if problem else None,
    )


def _is_possible_without_source(verb: Verb) -> bool:
    """Whether the verb needs nothing from the host that the VM leaves: possible even if that has failed (spec §6.4)."""
    rules = verb.rules
    return rules.leaves_host or (rules.moves and rules.effect is not VmEffect.PAUSE)


def _needs_destination(vm: Vm, rules: CauseRules) -> bool:
    return rules.verb.rules.moves or (rules.verb is Verb.START and not vm.host)


def vms_needing_destination(scope: Scope, planned: Sequence[PlannedEvent], now: float) -> list[Vm]:
    """Return the VMs of the scope for which a decision at `now` may need a destination host."""
    return list({vm.key: vm for vm, _rules in _moving_vms(scope, planned, now)}.values())


def live_migrations(scope: Scope, planned: Sequence[PlannedEvent], now: float) -> frozenset[str]:
    """Return the keys of the VMs that may now be migrated live, that is with their memory."""
    return frozenset(vm.key for vm, rules in _moving_vms(scope, planned, now) if rules.verb is Verb.MIGRATE)


def _moving_vms(scope: Scope, planned: Sequence[PlannedEvent], now: float) -> Iterator[tuple[Vm, CauseRules]]:
    ready = [event for event in scope.events if event.status is EventState.SCHEDULED and event.is_ready(now)]
    items: list[Event | PlannedEvent] = [*ready, *planned]
    for item in items:
        rules = CAUSE_RULES[item.cause]
        if rules.verb.rules.moves or rules.verb is Verb.START:
            movers = (scope.vm(name) for name in item.vms)
            yield from ((vm, rules) for vm in movers if vm is not None and _needs_destination(vm, rules))


def vm_after_act(vm: Vm, act: Act, at: float) -> Vm:
    """Return the VM as it is after an act on it succeeded; `act.outcome` is ignored."""
    match act.verb:
        case Verb.MIGRATE | Verb.REDEPLOY:
            after = replace(vm, host=act.to_host)
        case Verb.DELETE:
            after = replace(vm, removed_at=at, host="")
        case Verb.EVICT if not act.keeps_vm:
            after = replace(vm, removed_at=at, host="")
        case Verb.EVICT | Verb.DEALLOCATE:
            after = replace(vm, power=PowerState.DEALLOCATED, host="")
        case Verb.POWER_OFF:
            after = replace(vm, power=PowerState.STOPPED)
        case Verb.START:
            host = act.to_host or vm.host
            # A START without a host that ended well has nothing to record: no host could take the VM.
            after = replace(vm, power=PowerState.RUNNING, host=host) if host else vm
        case _:
            after = vm
    return after if vm.seen is None else _expected_after_act(after, act)


def _expected_after_act(vm: Vm, act: Act) -> Vm:
    if act.verb.rules.effect is VmEffect.REBOOT and not act.is_stopped:
        vm = replace(vm, power=PowerState.RUNNING)
    has_crashed = vm.condition is VmCondition.CRASHED and vm.power is PowerState.STOPPED
    stays_crashed = has_crashed and act.verb is not Verb.POWER_OFF
    return replace(vm, seen=LastSeen(condition=VmCondition.CRASHED if stays_crashed else VmCondition.NORMAL))
