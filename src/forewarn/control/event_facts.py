"""What views and explanations read about events: what each waits for, and the facts about its scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from forewarn.control.control_plane import ControlPlane
from forewarn.core.event import Event, EventState
from forewarn.core.explain.explanation import ScopeFacts, VmPoll, vm_name
from forewarn.core.history import EventDelivery, HistoryEntry, LastPoll
from forewarn.core.release import StartWait, WaitReason, describe_gate_wait, start_wait, waits_only_for_gate
from forewarn.core.scope import Scope


class EventWaits:
    """Says what scheduled events wait for. It caches scopes and gates, so make a new one for each request."""

    def __init__(self, control: ControlPlane, can_see_scope: Callable[[str], bool] = lambda scope_id: True) -> None:
        self._store = control.store
        self._context_for = control.transactions.context_for
        self._can_see_scope = can_see_scope
        self.scopes: dict[str, Scope | None] = {}  # that were read, by id
        self._unready_by_gate: dict[str, list[Event]] = {}  # gate id → events that keep it closed

    def pending_wait(self, event: Event) -> StartWait | None:
        """Return what a scheduled event waits for before its start; None if it may start, started or is over."""
        if event.status is not EventState.SCHEDULED or (scope := self.load_scope(event.scope_id)) is None:
            return None
        wait = start_wait(scope, event, self._context_for(scope))
        return self._gate_wait(event) if wait is not None and wait.reason is WaitReason.GATE else wait

    def pending_waits(self, events: Iterable[Event]) -> dict[str, StartWait]:
        """Return what each of these events waits for, by its id; events that wait for nothing are left out."""
        waits = ((event.id, self.pending_wait(event)) for event in events)
        return {event_id: wait for event_id, wait in waits if wait is not None}

    def load_scope(self, scope_id: str) -> Scope | None:
        """Return the scope with this id as it was read first; None if it does not exist."""
        if scope_id not in self.scopes:
            self.scopes[scope_id] = self._store.scope(scope_id)
        return self.scopes[scope_id]

    def _gate_wait(self, event: Event) -> StartWait:
        """Names the scopes that keep the gate closed, unless the caller may not see one of them."""
        unready = self._unready_events(event.gate_id)
        if all(self._can_see_scope(other.scope_id) for other in unready):
            return describe_gate_wait(event, unready)
        return StartWait(reason=WaitReason.GATE, text="another scope on the same host, which is not ready yet")

    def _unready_events(self, gate_id: str) -> list[Event]:
        if gate_id not in self._unready_by_gate:
            behind = self._store.events(gate_id=gate_id, statuses=[EventState.SCHEDULED])
            self._unready_by_gate[gate_id] = [event for event in behind if not self._could_start(event)]
        return self._unready_by_gate[gate_id]

    def _could_start(self, event: Event) -> bool:
        scope = self.load_scope(event.scope_id)
        return scope is None or waits_only_for_gate(scope, event, self._context_for(scope))


def scope_facts(
    control: ControlPlane,
    scope: Scope,
    title: str,
    *,
    entries: Sequence[HistoryEntry],
    deliveries: Sequence[EventDelivery],
    waits: Mapping[str, StartWait],
    describe_poll: Callable[[LastPoll, str], VmPoll],
    rollouts: Mapping[str, str] | None = None,
    hypervisor: str = "",
) -> ScopeFacts:
    """Return what an explanation of this scope or its events needs; `describe_poll` is given a poll and its VM's name.

    `rollouts` has titles by request id. Faults and other owners' scopes are the caller's to leave out of what it gives.
    """
    names = {vm.key: vm.name for vm in control.store.vms(scope_id=scope.id, removed=True)}
    hosts = (control.placement.host(name) for name in control.placement.unreachable_hosts())
    executor = control.executor
    return ScopeFacts(
        now=control.clock.now(),
        scope=scope,
        title=title,
        polls=[describe_poll(poll, vm_name(poll.vm, names)) for poll in control.store.last_polls(scope_id=scope.id)],
        deliveries=deliveries,
        entries=entries,
        waits=waits,
        names=names,
        rollouts=rollouts or {},
        unanswered_s=executor.unanswered_s(),
        blocking_hosts=executor.blocking_hosts(),
        act_notes=executor.progress.notes(),
        awaited_hosts=executor.progress.awaited_hosts(),
        unreachable_since={h.name: h.unreachable_since for h in hosts if h and h.unreachable_since is not None},
        hypervisor=hypervisor,
        idle_s=control.transactions.policy.idle_s,
    )
