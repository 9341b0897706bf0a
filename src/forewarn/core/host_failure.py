"""What a failed host means for acts and events (spec §6.4).

Nothing is performed on a host that has failed. An act in progress there ends as failed, and the event of the
failure moves the VM once, from where it is.
"""

from __future__ import annotations

from forewarn.core import lifecycle
from forewarn.core.cause import Verb
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.scope import Scope


def end_acts_on_failed_hosts(scope: Scope, context: DecisionContext) -> Scope:
    """Return the scope with a failed outcome for each act that cannot continue because a host has failed.

    Such an act moves a VM to that host, or its VM is still there. An act that moves a VM away from a failed host, or
    removes it, continues.
    """
    for started in scope.live_events(EventState.STARTED):
        for act in started.unfinished_acts:
            if (problem := _host_problem(scope, act, context)) is not None:
                event = scope.event(started.id)
                assert event is not None
                scope = lifecycle.record_outcome(
                    scope, event, act.id, ActOutcome(ok=False, at=context.now, note=problem)
                )
    return scope


def has_act_on_failed_host(scope: Scope, event: Event, context: DecisionContext) -> bool:
    """Return whether `end_acts_on_failed_hosts` would end an act of this event."""
    return any(_host_problem(scope, act, context) is not None for act in event.unfinished_acts)


def needs_recovery(scope: Scope, vm: Vm, host: str) -> bool:
    """Return whether the failure of this host must move the VM: it is there, or is being redeployed to it.

    A VM that is already being moved away from a failed host, because this one failed before, moves only once.
    """
    moves = [
        act
        for event in scope.live_events(EventState.STARTED)
        for act in event.unfinished_acts
        if act.vm == vm.key and act.verb is Verb.REDEPLOY
    ]
    if vm.host == host:
        return not any(act.abrupt and act.to_host != host for act in moves)
    return any(act.to_host == host for act in moves)


def _host_problem(scope: Scope, act: Act, context: DecisionContext) -> str | None:
    if act.to_host in context.failed_hosts:
        return f"host {act.to_host} failed while {act.name} was moving to it"
    vm = scope.vm(act.name)
    if vm is not None and vm.host in context.failed_hosts and not act.abrupt:
        return f"host {vm.host} failed"
    return None
