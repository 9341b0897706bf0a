"""What falls due by itself in a scope: doing it (`turn`), and when to look next (`wakes_at`).

`turn` is level, not edge: it reads off the scope what must happen now, does all of it, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from forewarn.core import lifecycle, mishap
from forewarn.core.cause import Cause
from forewarn.core.enablement import disable_if_idle, idle_at
from forewarn.core.event import Act, Event, Outcome, Status
from forewarn.core.history import Entry, What
from forewarn.core.impact import acts_of, after, can_hit, hit_by
from forewarn.core.policy import Around
from forewarn.core.release import waits_for
from forewarn.core.scope import Scope

PLATFORM = "platform"


def turn(scope: Scope, around: Around) -> Scope:
    """The scope after everything due now has happened; the same object when nothing was due."""
    while True:
        turned = disable_if_idle(scope, around.policy, around.now)
        for step in (_withdraw_pointless, _finish_performed, _start_ready):
            turned = step(turned, around)
        if turned is scope:
            return scope
        scope = turned


def wakes_at(scope: Scope, around: Around) -> float | None:
    """When something in this scope falls due next; None: only somebody's doing can change it."""
    instants = [at for at in _instants(scope, around) if at is not None]
    return min(instants, default=None)


def record(scope: Scope, act: Act, outcome: Outcome) -> Scope:
    """An act's outcome, and what the act left of its VM."""
    event = scope.event(act.event_id)
    if event is None or all(owed.id != act.id for owed in event.owed):
        return scope
    recorded = lifecycle.perform(scope, event, act.id, outcome)
    vm = scope.vm(act.name)
    if vm is None or not outcome.ok or not can_hit(vm, act.verb):
        return recorded
    return recorded.with_vm(after(vm, act, outcome.at))


def start(scope: Scope, event: Event, around: Around) -> Scope:
    """Start an event with the VMs that are still there; with none left it is withdrawn (spec §4.2)."""
    if (without_it := mishap.take_back(scope, event, around)) is not None:
        return without_it
    acts = acts_of(scope, event, around)
    missed = [name for name in event.vms if all(act.name != name for act in acts)]
    if not acts:
        return lifecycle.withdraw(scope, event, by=PLATFORM, reason="none of its VMs is there any more", now=around.now)
    return lifecycle.start(scope, event, acts, around.now).saying(*(_skip(event, name, around.now) for name in missed))


def _skip(event: Event, name: str, now: float) -> Entry:
    text = f"{name} is skipped: it is gone or deallocated"
    return Entry(
        at=now,
        what=What.SKIPPED,
        text=text,
        who=PLATFORM,
        event_id=event.id,
        request_id=event.request_id,
        vm=name,
    )


def _start_ready(scope: Scope, around: Around) -> Scope:
    for scheduled in scope.live(Status.SCHEDULED):
        event = scope.event(scheduled.id)
        assert event is not None
        if event.status is Status.SCHEDULED and waits_for(scope, event, around) is None:
            scope = start(scope, event, around)
    return scope


def _withdraw_pointless(scope: Scope, around: Around) -> Scope:
    for event in scope.live(Status.SCHEDULED):
        if (reason := _pointless(scope, event)) is not None:
            scope = lifecycle.withdraw(scope, event, by=PLATFORM, reason=reason, now=around.now)
    return scope


def _pointless(scope: Scope, event: Event) -> str | None:
    left = hit_by(scope, event)
    if not left:
        return "none of its VMs is there any more"
    if event.cause is Cause.PREDICTED_FAILURE and all(vm.host != event.host for vm in left):
        return f"{event.vms[0]} has left host {event.host}"  # spec §6.4: settled
    return None


def _finish_performed(scope: Scope, around: Around) -> Scope:
    for event in scope.live(Status.STARTED):
        at = _finishes_at(event, around)
        if at is not None and around.now >= at:
            scope = lifecycle.finish(scope, event, around.now)
    return scope


def _finishes_at(event: Event, around: Around) -> float | None:
    """Spec §6.5: once every outcome is known, plus the settling time."""
    if event.owed:
        return None
    known = [act.outcome.at for act in event.acts if act.outcome is not None]
    return max(known, default=around.now) + (around.policy.settle_s if event.listed else 0)


def _instants(scope: Scope, around: Around) -> Iterator[float | None]:
    yield idle_at(scope, around.policy)
    for event in scope.live():
        if event.status is Status.STARTED:
            yield _finishes_at(event, around)
        elif _pointless(scope, event) is not None:
            yield around.now
        else:
            wait = waits_for(scope, event, around)
            yield around.now if wait is None else wait.until


def stamped(scope: Scope, around: Around) -> Scope:
    """The scope with its next wake-up written on it, ready to be committed."""
    return replace(scope, wakes_at=wakes_at(scope, around))
