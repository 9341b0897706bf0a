"""Reconciles one scope: does everything that is due now, and computes when to look at it next.

Level-triggered: `reconcile_scope` reads from the scope what must happen, so running it twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec.structs import replace

from forewarn.base.wording import first_names
from forewarn.core import fault_effects, lifecycle
from forewarn.core.acts import acts_for_event, affected_vms, can_act_on, vm_after_act, with_acts_at_host
from forewarn.core.cause import RECOMMENDATION_S
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Act, ActOutcome, Ending, Event, EventState
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.host_failure import end_acts_on_failed_hosts, has_act_on_failed_host
from forewarn.core.release import start_wait
from forewarn.core.scope import Scope, disable_scope_if_idle, scope_idle_at

PLATFORM_ACTOR = "platform"  # who history entries name when the service itself acts


def reconcile_scope(scope: Scope, context: DecisionContext) -> Scope:
    """Return the scope after all that is due now; the same object if nothing is due.

    An idle scope is disabled; acts that need a failed host end as failed; events that affect no VM any more, and
    recommendations after ten minutes, are withdrawn; events whose outcomes are all known end after their settling time;
    and scheduled events that wait for nothing start. This is repeated in this order until nothing is due. Acts of
    events that start are made, but not performed.
    """
    while True:
        reconciled = disable_scope_if_idle(scope, context.policy, context.now)
        # Ends before starts: what is over may be what another event waits for.
        for step in (
            end_acts_on_failed_hosts,
            _end_recommendations,
            _withdraw_obsolete,
            _finish_performed,
            _start_ready,
        ):
            reconciled = step(reconciled, context)
        # Until nothing changes: each step may make another one due at the same instant.
        if reconciled is scope:
            return scope
        scope = reconciled


def next_wake_at(scope: Scope, context: DecisionContext) -> float | None:
    """Return the lab time at which something in this scope is due next; it may be now or in the past.

    None if nothing is due until a change, such as a request, an approval or an outcome.
    """
    due_times = [at for at in _due_times(scope, context) if at is not None]
    return min(due_times, default=None)


def record_act_outcome(scope: Scope, act: Act, outcome: ActOutcome, failed_hosts: Set[str] = frozenset()) -> Scope:
    """Return the scope with the outcome of an act, and with its VM changed if the act succeeded."""
    # Whether the act's destination has failed meanwhile is not checked: see `outcome_on_failed_host`.
    event = scope.event(act.event_id)
    # It has an outcome already, for instance because its host failed: the first one counts.
    if event is None or all(unfinished.id != act.id for unfinished in event.unfinished_acts):
        return scope
    recorded = lifecycle.record_outcome(scope, event, act.id, outcome)
    vm = scope.vm(act.name)
    # The act was done, but the VM was removed or deallocated meanwhile: what happened last stays true.
    if vm is None or not outcome.ok or not can_act_on(vm, act.verb):
        return recorded
    after = vm_after_act(vm, act, outcome.at)
    recorded = recorded.with_vm(after)
    return with_acts_at_host(recorded, after, failed_hosts) if after.host not in ("", vm.host) else recorded


def _start_event(scope: Scope, event: Event, context: DecisionContext) -> Scope:
    # It is withdrawn instead if no VM is left, or by a fault.
    if context.faults and (without_it := fault_effects.withdraw_after_approval(scope, event, context)) is not None:
        return without_it
    acts = acts_for_event(scope, event, context)
    skipped = [name for name in event.vms if all(act.name != name for act in acts)]
    if not acts:
        return _withdraw_without_vms(scope, event, context.now)
    return lifecycle.start(scope, event, acts, context.now).with_entries(
        *(_skipped_entry(event, name, context.now) for name in skipped)
    )


def _skipped_entry(event: Event, name: str, now: float) -> HistoryEntry:
    reason = f"it is no longer on {event.host}" if _is_work_on_host(event) else "it was removed or deallocated"
    if name in event.removed_vms:
        reason = "it was removed"
    text = f"{name} is skipped: {reason}"
    return HistoryEntry(
        at=now,
        kind=EntryKind.SKIPPED,
        text=text,
        actor=PLATFORM_ACTOR,
        event_id=event.id,
        request_id=event.request_id,
        vm=name,
    )


def _start_ready(scope: Scope, context: DecisionContext) -> Scope:
    for scheduled in scope.live_events(EventState.SCHEDULED):
        # Read again: a start before this one may have withdrawn or changed it.
        event = scope.event(scheduled.id)
        assert event is not None
        if event.status is EventState.SCHEDULED and start_wait(scope, event, context) is None:
            scope = _start_event(scope, event, context)
    return scope


def _end_recommendations(scope: Scope, context: DecisionContext) -> Scope:
    """End events without impact ten minutes after their publication (spec §14.4)."""
    for event in scope.live_events(EventState.SCHEDULED):
        if not event.rules.has_impact and context.now >= event.published_at + RECOMMENDATION_S:
            scope = lifecycle.withdraw(
                scope,
                event,
                by=PLATFORM_ACTOR,
                reason="it was listed for ten minutes",
                now=context.now,
                ending=Ending.NOT_NEEDED,
            )
    return scope


def _withdraw_obsolete(scope: Scope, context: DecisionContext) -> Scope:
    for event in scope.live_events(EventState.SCHEDULED):
        if not affected_vms(scope, event):
            scope = _withdraw_without_vms(scope, event, context.now)
    return scope


def _withdraw_without_vms(scope: Scope, event: Event, now: float) -> Scope:
    """Withdraw an event that affects no VM; if its VMs have left its host, it is not needed (spec §6.4)."""
    reason, ending = "none of its VMs exists any more", Ending.WITHDRAWN
    if _is_work_on_host(event):
        ending = Ending.NOT_NEEDED
        # A VM that was added again under its name is on that host, perhaps, and another one.
        if not all(name in event.removed_vms and scope.vm(name) for name in event.vms):
            reason = f"{first_names(event.vms)} {'is' if len(event.vms) == 1 else 'are'} no longer on {event.host}"
    return lifecycle.withdraw(scope, event, by=PLATFORM_ACTOR, reason=reason, now=now, ending=ending)


def _is_work_on_host(event: Event) -> bool:
    return bool(event.host) and event.rules.planned


def _finish_performed(scope: Scope, context: DecisionContext) -> Scope:
    for event in scope.live_events(EventState.STARTED):
        at = _finish_time(event, context)
        if at is not None and context.now >= at:
            scope = lifecycle.finish(scope, event, context.now)
    return scope


def _finish_time(event: Event, context: DecisionContext) -> float | None:
    """Return when the event ends: last outcome plus settling time (spec §6.5); None: not known yet."""
    if event.unfinished_acts:
        return None
    # An unlisted event was never shown, so nobody needs the settling time to see that it is over.
    known = [act.outcome.at for act in event.acts if act.outcome is not None]
    return max(known, default=context.now) + (context.policy.settle_s if event.listed else 0)


def _due_times(scope: Scope, context: DecisionContext) -> Iterator[float | None]:
    yield scope_idle_at(scope, context.policy)
    for event in scope.live_events():
        if event.status is EventState.STARTED:
            if has_act_on_failed_host(scope, event, context):
                yield context.now
            yield _finish_time(event, context)
        elif not affected_vms(scope, event):
            yield context.now
        else:
            wait = start_wait(scope, event, context)
            # A wait without an end is over by a commit, which brings the scope back here.
            yield context.now if wait is None else wait.until


def with_next_wake(scope: Scope, context: DecisionContext) -> Scope:
    """Return the scope with `wakes_at` set, ready to be committed: when something in it is due next."""
    return replace(scope, wakes_at=next_wake_at(scope, context))
