"""Checks of single commits: how a scope and its events may change from one commit to the next.

An error that a subscriber raises is only logged, so violations are collected in `violations`, and the state machine
checks them after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from forewarn.core.cause import CAUSE_RULES, Cause
from forewarn.core.decision import Policy
from forewarn.core.event import Event, EventState, Gate
from forewarn.core.fleet import PowerState
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.projection import document_for
from forewarn.core.reconcile import PLATFORM_ACTOR
from forewarn.core.request import ROLLOUT_CAUSES, MaintenanceRequest, RolloutHold
from forewarn.core.scope import Scope
from forewarn.core.windows import next_start
from forewarn.protocol.document import Document, Kind
from forewarn.store.interface import AppliedCommit, Store
from tests.properties.budget_checks import BudgetChecker
from tests.properties.health_checks import HealthChecker

_DOCUMENT_CHANGES = {
    EntryKind.PUBLISHED,
    EntryKind.STARTED,
    EntryKind.FINISHED,
    EntryKind.WITHDRAWN,
    EntryKind.NOT_NEEDED,
}
_USER_OPERATIONS = {Cause.SCALE_IN, *(cause for cause, row in CAUSE_RULES.items() if row.by_user)}
_NEXT_STATES = {
    None: set(EventState),
    EventState.SCHEDULED: set(EventState),
    EventState.STARTED: {EventState.STARTED, EventState.OVER},
    EventState.OVER: set(),
}


class CommitChecker:
    """Subscribes to a store and checks every commit against the specification."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.scopes: dict[str, Scope] = {}
        self.events: dict[str, Event] = {}
        self.hosts: set[str] = set()
        self.resumed_at: float | None = None
        self.violations: list[str] = []
        self.shown: dict[tuple[str, int, int], Document] = {}  # by scope, epoch and incarnation
        self.waves: dict[str, float | None] = {}  # request id → when its current wave began
        self._store: Store
        self.current_hold: Callable[[], RolloutHold | None] = lambda: None
        self.budgets = BudgetChecker(self._report)
        self.health = HealthChecker(self._report)

    def follow(self, store: Store, resumed_at: float | None) -> None:
        """Check the commits of a new process on this store; the state that earlier ones left is known."""
        self._store = store
        self.resumed_at = resumed_at
        self.hosts = {host.name for host in store.hosts()}
        self.budgets.read(store)
        self.health.read(store)
        store.subscribe(self._check_commit)

    def _check_commit(self, applied: AppliedCommit) -> None:
        commit = applied.commit
        self.budgets.check(commit)
        self.health.check(commit)
        self.hosts = (self.hosts | {host.name for host in commit.hosts}) - {host.name for host in commit.removed_hosts}
        for request in commit.requests:
            self._check_wave(request)
        for scope in commit.scopes:
            entries = [entry for entry in commit.entries if entry.scope_id == scope.id]
            for event in commit.events:
                if event.scope_id == scope.id:
                    self._check_event(scope, self.events.get(event.id), event)
                    self.events[event.id] = event
            has_fault = any(entry.kind is EntryKind.FAULT for entry in commit.entries)
            self._check_document(self.scopes.get(scope.id), scope, entries, has_fault=has_fault)
            self._check_scope(scope)
            self.scopes[scope.id] = scope

    def _check_wave(self, request: MaintenanceRequest) -> None:
        """Spec §13.1: a wave begins when all events of the one before are over and it has settled."""
        rollout = request.rollout
        began_at = rollout.wave_began_at if rollout is not None else None
        known, self.waves[request.id] = self.waves.get(request.id), began_at
        if rollout is None or began_at is None or began_at == known:
            return
        events = self._store.events(request_id=request.id)
        if any(event.is_live for event in events):
            self._report("§13.1 a wave begins after the one before", request, events)
        ended = [event.over_at for event in events if event.over_at is not None]
        if ended and began_at < max(ended) + rollout.settle_s:
            self._report("§13.1 a wave begins after the one before has settled", request, events)

    def _report(self, sentence: str, *things: object) -> None:
        self.violations.append(f"{sentence}: {things!r}")

    def _check_document(
        self, old: Scope | None, new: Scope, entries: list[HistoryEntry], *, has_fault: bool = False
    ) -> None:
        """Spec §4.2, DocumentIncarnation."""
        steps = sum(1 for entry in entries if entry.kind in _DOCUMENT_CHANGES and self.events[entry.event_id].listed)
        if old is not None and old.epoch == new.epoch:
            if new.incarnation - old.incarnation != steps:
                self._report("§4.2 the incarnation counts changes", old.incarnation, new.incarnation, entries)
        elif old is not None and not has_fault and (new.epoch != old.epoch + 1 or old.is_enabled or not new.is_enabled):
            self._report("§8.1 only enabling begins an epoch", old.epoch, new.epoch)
        if not new.is_enabled:
            return
        document = document_for(new)
        if self.shown.setdefault((new.id, new.epoch, new.incarnation), document) != document:
            self._report("§4.2 same incarnation, same content", new.id, new.epoch, document)

    def _check_scope(self, scope: Scope) -> None:
        domains = {e.update_domain for e in scope.live_events(EventState.STARTED) if e.rules.planned}
        if len(domains) > 1:
            self._report("§6.2 one update domain at a time", scope.id, domains)
        busy = Counter(name for e in scope.live_events() if e.cause in _USER_OPERATIONS for name in e.vms)
        if any(count > 1 for count in busy.values()):
            self._report("§8.4 one user operation per VM", busy)
        pending = [e for e in scope.live_events(EventState.SCHEDULED) if e.rules.limited and e.listed]
        if len(pending) > self.policy.max_user_operations:
            self._report("§8.4 the limit of user operations", len(pending))
        for vm in scope.present_vms:
            if (vm.power is PowerState.DEALLOCATED) != (vm.host == ""):
                self._report("a VM is on a host unless it is deallocated", vm.name, vm.power, vm.host)
            if vm.host and vm.host not in self.hosts:
                self._report("a VM is on a host that exists", vm.name, vm.host)

    def _check_event(self, scope: Scope, old: Event | None, new: Event) -> None:
        if new.status not in _NEXT_STATES[old.status if old else None]:
            self._report("§6.1 states change in one direction only", old and old.status, new)
        if old is None:
            self._check_new(scope, new)
        else:
            self._check_facts(old, new)
        started_before = old is not None and old.status is not EventState.SCHEDULED
        if new.started_at is not None and not started_before:
            self._check_start(scope, old, new)
        if new.status is EventState.OVER:
            self._check_end(new)

    def _check_new(self, scope: Scope, event: Event) -> None:
        vms = [scope.vm(name) for name in event.vms]
        if not event.vms or len(set(event.vms)) != len(event.vms):
            self._report("an event lists each of its VMs once", event)
        if any(vm is not None and vm.update_domain != event.update_domain for vm in vms):
            self._report("§7.3 Resources stay within one update domain", event)
        if event.not_before != int(event.not_before):
            self._report("§4.2 NotBefore is whole seconds", event)

    def _check_facts(self, old: Event, new: Event) -> None:
        fixed = ("vms", "not_before", "cause", "gate_id", "scope_id", "update_domain", "seq", "published_at", "listed")
        if any(getattr(old, name) != getattr(new, name) for name in fixed):
            self._report("§4.2 what was published never changes", old, new)
        if old.approved_at is not None and (old.approved_at, old.approved_by) != (new.approved_at, new.approved_by):
            self._report("§5.3 an approval is never lost", old, new)
        known = {act.id: act for act in new.acts}
        for act in old.acts:
            if act.outcome is not None and known.get(act.id) != act:
                self._report("an outcome is never lost", act, known.get(act.id))

    def _check_start(self, scope: Scope, old: Event | None, event: Event) -> None:
        """Spec §6.2: when an event starts."""
        assert event.started_at is not None
        if old is None and event.status is not EventState.OVER and event.cause is not Cause.HOST_FAILED:
            if event.listed and event.approved_by != "policy" and not event.faults:
                self._report("§6.1 only failures and policy start with no notice", event)
            return
        if old is None:
            return
        approved = event.approved_at is not None
        if not approved and event.started_at < event.not_before:
            self._report("§6.2 no event starts before it is ready", event)
        gate = self._store.gate(event.gate_id) if event.gate_id else None
        if event.gate_id and (gate is None or gate.released_at is None or gate.released_at > event.started_at):
            self._report("§6.2 events start together, through a released gate", event, gate)
        if not approved and not self._has_started_behind(gate, event):
            self._check_grace(event)
            self._check_calendar_and_hold(event)
        if event.rules.kind is Kind.TERMINATE and scope.is_placement_group and event.started_at < event.not_before:
            left = [e for e in scope.live_events(EventState.SCHEDULED) if e.rules.kind is Kind.TERMINATE]
            if left:
                self._report("§6.2 Terminates of a placement group start together", event, left)

    def _check_grace(self, event: Event) -> None:
        resumed_at = self.resumed_at
        if resumed_at is None or event.not_before > resumed_at or event.started_at is None:
            return
        if event.started_at < resumed_at + self.policy.grace_s:
            self._report("events that came due while no VM could poll wait for the grace period", event, resumed_at)

    def _has_started_behind(self, gate: Gate | None, event: Event) -> bool:
        """Spec §6.2: once an event behind a gate has started, the others follow, whatever comes after."""
        behind = self._store.events(gate_id=gate.id) if gate is not None else []
        return any(other.id != event.id and other.started_at is not None for other in behind)

    def _check_calendar_and_hold(self, event: Event) -> None:
        """Spec §13.3, §13.5."""
        at = event.started_at
        assert at is not None
        if event.calendar is not None and next_start(event.calendar, at) != at:
            self._report("§13.3 no event starts outside of its windows unless it is approved", event, at)
        hold = self.current_hold()
        if hold is not None and event.cause in ROLLOUT_CAUSES and at > hold.set_at:
            self._report("§13.5 no event of a rollout starts during a hold unless it is approved", event, hold)

    def _check_end(self, event: Event) -> None:
        if event.unfinished_acts:
            self._report("§6.5 an event stays until every outcome is known", event)
        known = [act.outcome.at for act in event.acts if act.outcome is not None]
        settle_s = self.policy.settle_s if event.listed else 0
        if known and event.over_at is not None and event.over_at < max(known) + settle_s:
            self._report("§6.5 the settling time", event)
        if event.started_at is None and event.ending is None:
            self._report(f"an event that {PLATFORM_ACTOR} ended has an ending", event)
