"""Reconciles one scope: does everything that is due now, and computes when to look at it next.

Level-triggered: `reconcile_scope` reads from the scope what must happen, so running it twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from forewarn.core import fault_effects, lifecycle
from forewarn.core.acts import acts_for_event, affected_vms, can_act_on, vm_after_act
from forewarn.core.cause import Cause
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.release import start_wait
from forewarn.core.scope import Scope, disable_scope_if_idle, scope_idle_at

PLATFORM_ACTOR = "platform"


def reconcile_scope(scope: Scope, around: DecisionContext) -> Scope:
    """The scope after everything due now has happened; the same object when nothing was due."""
    while True:
        turned = disable_scope_if_idle(scope, around.policy, around.now)
        for step in (_withdraw_obsolete, _finish_performed, _start_ready):
            turned = step(turned, around)
        if turned is scope:
            return scope
        scope = turned


def next_wake_at(scope: Scope, around: DecisionContext) -> float | None:
    """When something in this scope falls due next; None: only somebody's doing can change it."""
    instants = [at for at in _due_times(scope, around) if at is not None]
    return min(instants, default=None)


def record_act_outcome(scope: Scope, act: Act, outcome: ActOutcome) -> Scope:
    """An act's outcome, and what the act left of its VM."""
    event = scope.event(act.event_id)
    if event is None or all(owed.id != act.id for owed in event.unfinished_acts):
        return scope
    recorded = lifecycle.record_outcome(scope, event, act.id, outcome)
    vm = scope.vm(act.name)
    if vm is None or not outcome.ok or not can_act_on(vm, act.verb):
        return recorded
    return recorded.with_vm(vm_after_act(vm, act, outcome.at))


def start_event(scope: Scope, event: Event, around: DecisionContext) -> Scope:
    """Start an event with the VMs that are still there; with none left it is withdrawn (spec §4.2)."""
    if (without_it := fault_effects.withdraw_after_approval(scope, event, around)) is not None:
        return without_it
    acts = acts_for_event(scope, event, around)
    missed = [name for name in event.vms if all(act.name != name for act in acts)]
    if not acts:
        return lifecycle.withdraw(
            scope, event, by=PLATFORM_ACTOR, reason="none of its VMs is there any more", now=around.now
        )
    return lifecycle.start(scope, event, acts, around.now).with_entries(
        *(_skipped_entry(event, name, around.now) for name in missed)
    )


def _skipped_entry(event: Event, name: str, now: float) -> HistoryEntry:
    text = f"{name} is skipped: it is gone or deallocated"
    return HistoryEntry(
        at=now,
        what=EntryKind.SKIPPED,
        text=text,
        who=PLATFORM_ACTOR,
        event_id=event.id,
        request_id=event.request_id,
        vm=name,
    )


def _start_ready(scope: Scope, around: DecisionContext) -> Scope:
    for scheduled in scope.live_events(EventState.SCHEDULED):
        event = scope.event(scheduled.id)
        assert event is not None
        if event.status is EventState.SCHEDULED and start_wait(scope, event, around) is None:
            scope = start_event(scope, event, around)
    return scope


def _withdraw_obsolete(scope: Scope, around: DecisionContext) -> Scope:
    for event in scope.live_events(EventState.SCHEDULED):
        if (reason := _obsolete_reason(scope, event)) is not None:
            scope = lifecycle.withdraw(scope, event, by=PLATFORM_ACTOR, reason=reason, now=around.now)
    return scope


def _obsolete_reason(scope: Scope, event: Event) -> str | None:
    left = affected_vms(scope, event)
    if not left:
        return "none of its VMs is there any more"
    if event.cause is Cause.PREDICTED_FAILURE and all(vm.host != event.host for vm in left):
        return f"{event.vms[0]} has left host {event.host}"  # spec §6.4: settled
    return None


def _finish_performed(scope: Scope, around: DecisionContext) -> Scope:
    for event in scope.live_events(EventState.STARTED):
        at = _finish_time(event, around)
        if at is not None and around.now >= at:
            scope = lifecycle.finish(scope, event, around.now)
    return scope


def _finish_time(event: Event, around: DecisionContext) -> float | None:
    """Spec §6.5: once every outcome is known, plus the settling time."""
    if event.unfinished_acts:
        return None
    known = [act.outcome.at for act in event.acts if act.outcome is not None]
    return max(known, default=around.now) + (around.policy.settle_s if event.listed else 0)


def _due_times(scope: Scope, around: DecisionContext) -> Iterator[float | None]:
    yield scope_idle_at(scope, around.policy)
    for event in scope.live_events():
        if event.status is EventState.STARTED:
            yield _finish_time(event, around)
        elif _obsolete_reason(scope, event) is not None:
            yield around.now
        else:
            wait = start_wait(scope, event, around)
            yield around.now if wait is None else wait.until


def with_next_wake(scope: Scope, around: DecisionContext) -> Scope:
    """The scope with its next wake-up written on it, ready to be committed."""
    return replace(scope, wakes_at=next_wake_at(scope, around))
