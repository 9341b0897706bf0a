"""Work that two rollouts want on the same host is done once (spec §13.6).

Two rollouts want the same work if they have the same impact and cover the same VM on the same host. An event of the
other one then serves both, if it is live, or has ended since this rollout was requested. What the other one withdraws
or fails to do remains for this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.request import MaintenanceRequest, PlannedEvent, Rollout
from forewarn.core.rollout import handled_vms, rollout_vm_states

VmInScope = tuple[str, str]  # scope id and name of a VM


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWork:
    """Which VMs of a rollout other rollouts maintain, or have maintained, in its place (spec §13.6)."""

    states: dict[VmInScope, str] = field(default_factory=dict)  # (scope id, name) → `scheduled`, `started` or `done`
    request_ids: frozenset[str] = frozenset()  # of the other rollouts whose work is not over
    events: tuple[Event, ...] = ()  # that maintain, or have maintained, these VMs
    planned: tuple[PlannedEvent, ...] = ()  # that will maintain some of them

    @property
    def pending(self) -> int:
        """How many of the shared VMs another rollout works on, or has planned to; those done do not count."""
        return sum(state != "done" for state in self.states.values())

    def without(self, vms: Iterable[Vm]) -> list[Vm]:
        """Return the VMs among `vms` that no other rollout maintains or has maintained in place of this one."""
        if not self.states:
            return list(vms)
        return [vm for vm in vms if (vm.scope_id, vm.name) not in self.states]


NO_SHARED_WORK = SharedWork()


def may_share_work(request: MaintenanceRequest, other: MaintenanceRequest) -> bool:
    """Return whether events of `other`, another rollout, could do the work of the rollout of `request`."""
    mine, others = request.rollout, other.rollout
    if mine is None or others is None or request.id == other.id or mine.cause is not others.cause:
        return False
    if others.closed and (others.closed_at is None or others.closed_at < request.requested_at):
        return False
    return not (mine.hosts and others.hosts) or not set(mine.hosts).isdisjoint(others.hosts)


def shared_work(
    request: MaintenanceRequest,
    rollout: Rollout,
    vms: Iterable[Vm],
    own_events: Sequence[Event],
    events: Iterable[Event],
    planned: Iterable[PlannedEvent],
) -> SharedWork:
    """Return which of `vms`, the VMs of a rollout, other rollouts maintain in its place, and their states.

    Only events of the same cause on the VM's current host count, which are live or have ended since `request` was made,
    and were neither withdrawn nor failed on the VM. A VM that an event in `own_events` handles is left out: the rollout
    has seen to it itself. A VM whose own event a health check withdrew is not left out, so that a rollout that resumes
    does not repeat what another did meanwhile.
    """
    own = handled_vms(rollout, own_events, ())
    hosts = {(vm.scope_id, vm.name): vm.host for vm in vms if (vm.scope_id, vm.name) not in own}
    states: dict[VmInScope, str] = {}
    busy: set[str] = set()
    serving: dict[str, Event] = {}
    to_come: dict[str, PlannedEvent] = {}
    for event in events:
        if event.cause is not rollout.cause:
            continue
        for name, state in _states_in(event, request.requested_at):
            if hosts.get((event.scope_id, name)) == event.host:
                states[event.scope_id, name] = state
                serving[event.id] = event
                if state != "done":
                    busy.add(event.request_id)
    for item in planned:
        if item.cause is rollout.cause:
            for name in item.vms:
                if hosts.get((item.scope_id, name)) == item.host:
                    states[item.scope_id, name] = "scheduled"
                    to_come[item.event_id] = item
                    busy.add(item.request_id)
    return SharedWork(
        states=states,
        request_ids=frozenset(busy),
        events=tuple(serving.values()),
        planned=tuple(to_come.values()),
    )


def _states_in(event: Event, since: float) -> Iterable[tuple[str, str]]:
    if event.status is EventState.OVER and (event.over_at is None or event.over_at < since):
        return []
    return [(name, state) for name, state in rollout_vm_states(event) if state in ("scheduled", "started", "done")]
