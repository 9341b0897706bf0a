"""What a failed host means for acts and events (spec §6.4).

Nothing is performed on a host that has failed. An act in progress there ends as failed, and the event of the
failure moves the VM once, from where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from forewarn.core import lifecycle
from forewarn.core.cause import Verb
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.scope import Scope


def end_acts_on_failed_hosts(scope: Scope, context: DecisionContext, *, names: Collection[str] | None = None) -> Scope:
    """Return the scope with a failed outcome for each act that a host of `context.failed_hosts` prevents."""
    # Such an act brings a VM to the failed host, or it began before the host failed and its VM is still there. An act
    # that began after the failure of its VM's host, which redeploys or removes the VM, continues.
    for started in scope.live_events(EventState.STARTED):
        for act in started.unfinished_acts:
            # Only the VMs that the event redeploys: others may still be on their way.
            if names is not None and act.name not in names:
                continue
            if (problem := _host_problem(scope, act, context)) is not None:
                event = scope.event(started.id)
                assert event is not None
                scope = lifecycle.record_outcome(
                    scope, event, act.id, ActOutcome(ok=False, at=context.now, note=problem)
                )
    return scope


def needs_failed_host(act: Act, vm_host: str, failed_hosts: Set[str]) -> bool:
    """Return whether an unfinished act cannot continue, or begin, because it needs a host that has failed."""
    # An abrupt act does not need the host of its VM: it takes the VM away from there.
    return act.to_host in failed_hosts or (vm_host in failed_hosts and not act.abrupt)


def has_act_on_failed_host(scope: Scope, event: Event, context: DecisionContext) -> bool:
    """Return whether an unfinished act of this event cannot continue because a host has failed."""
    return any(_host_problem(scope, act, context) is not None for act in event.unfinished_acts)


def needs_recovery(scope: Scope, vm: Vm, host: str, failed_hosts: Set[str] = frozenset()) -> bool:
    """Return whether the failure of this host must move the VM: it is there, or is being redeployed to it.

    False if an act that began after the failure already takes the VM away. True even if the VM is on one of
    `failed_hosts` (names) and not being redeployed: its redeployment to this host has ended as failed.
    """
    acts = [act for event in scope.live_events(EventState.STARTED) for act in event.unfinished_acts if act.vm == vm.key]
    is_on_failed_host = vm.host == host or vm.host in failed_hosts
    # An act that takes the VM away does what the failure would do.
    if any(act.verb.rules.leaves_host and (act.abrupt or not is_on_failed_host) for act in acts):
        return False  # it goes on, and then there is nothing to move
    moves = [act for act in acts if act.verb is Verb.REDEPLOY]
    if vm.host == host:
        return not any(act.abrupt and act.to_host != host for act in moves)
    return any(act.to_host == host for act in moves) or (vm.host in failed_hosts and not moves)


def outcome_on_failed_host(act: Act, outcome: ActOutcome, context: DecisionContext) -> ActOutcome:
    """Return the outcome to record for an act that the hypervisor has performed: in general the given one."""
    # A success that brought a VM to a failed host becomes a failure: no event of that host's failure exists for this
    # VM, so it would stay there. A redeployed VM arrives all the same, because the failure of the host moves it on.
    if not outcome.ok or act.verb is Verb.REDEPLOY or act.to_host not in context.failed_hosts:
        return outcome
    return ActOutcome(ok=False, at=outcome.at, note=_lost_destination(act))


def _host_problem(scope: Scope, act: Act, context: DecisionContext) -> str | None:
    vm = scope.vm(act.name)
    vm_host = vm.host if vm is not None else ""
    if not needs_failed_host(act, vm_host, context.failed_hosts):
        return None
    return _lost_destination(act) if act.to_host in context.failed_hosts else f"host {vm_host} failed"


def _lost_destination(act: Act) -> str:
    return f"host {act.to_host} failed while {act.name} was moving to it"
