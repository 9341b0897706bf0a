"""Runs rollouts: publishes waves, stops after too many failures, withdraws remaining events, closes."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from forewarn.base.times import LabSeconds
from forewarn.control.budgets import BudgetService
from forewarn.control.health_checks import HealthCheckService
from forewarn.control.health_probes import HealthProber
from forewarn.control.rollout_calendars import RolloutCalendars
from forewarn.control.rollout_requests import rollout_vms
from forewarn.control.scope_transactions import ScopeTransactions, group_by_scope
from forewarn.control.standing_order import StandingOrderService
from forewarn.core import lifecycle
from forewarn.core.cause import CAUSE_RULES
from forewarn.core.commit import Commit, SavedValue
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Event, EventState, Gate
from forewarn.core.explain.rollout_plan import RolloutForecast, forecast_rollout
from forewarn.core.fleet import Vm
from forewarn.core.health import CheckOutcome, HealthDecision, HealthVerdict, health_verdict
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.reconcile import PLATFORM_ACTOR, reconcile_scope
from forewarn.core.request import (
    ROLLOUT_CAUSES,
    MaintenanceRequest,
    PlannedEvent,
    Rollout,
    RolloutHold,
    RolloutState,
    RolloutTally,
)
from forewarn.core.rollout import (
    PUBLISHES_NOTHING,
    count_rollout_vms,
    next_batch,
    next_rollout_state,
    rollout_end_reason,
)
from forewarn.core.scope import Scope
from forewarn.core.shared_work import NO_SHARED_WORK, SharedWork, may_share_work, shared_work
from forewarn.core.waves import (
    WavePhase,
    WaveStep,
    begin_wave,
    covers_vm,
    wave_begin_text,
    wave_end_text,
    wave_phase,
)
from forewarn.errors import Conflict, Refused, Rejected
from forewarn.store.interface import ROLLOUT_HOLD_NAME, AppliedCommit, Store

# What the rollout service commits about a rollout: new states, withdrawals, history entries.


def withdraw_decision(event_ids: list[str], rollout: Rollout) -> Callable[[Scope, DecisionContext], Scope]:
    """Return a decision that withdraws these events of a scope together."""
    # All events are withdrawn at once, so that none starts because another no longer blocks it. If a health check
    # paused the rollout, they are only postponed; what the check found stays with the rollout, because readers of a
    # single scope see the reason.
    is_postponed = rollout.has_paused_itself
    reason = f"its rollout was {rollout.progress}" + (" by a health check" if is_postponed else "")

    def decision(scope: Scope, context: DecisionContext) -> Scope:
        for event_id in event_ids:
            event = scope.event(event_id)
            if event is not None and event.status is EventState.SCHEDULED:
                event = replace(event, is_postponed=is_postponed)
                scope = lifecycle.withdraw(scope, event, by=PLATFORM_ACTOR, reason=reason, now=context.now)
        return reconcile_scope(scope, context)

    return decision


def failures_text(events: list[Event]) -> str:
    """Return ` with 3 failed VMs`, or "" if no act of these events failed."""
    failed = sum(len(event.failed_acts) for event in events)
    return f" with {failed} failed {'VM' if failed == 1 else 'VMs'}" if failed else ""


def wave_entry(request: MaintenanceRequest, text: str, now: float) -> HistoryEntry:
    """Return a history entry about a wave that has begun or ended, as `text` says; writes nothing."""
    text = f"rollout {request.id}: {text}"
    return _entry(request, EntryKind.WAVE, text, now)


def ended_entry(request: MaintenanceRequest, rollout: Rollout, failed: str, now: float) -> HistoryEntry:
    """Return the history entry about a rollout that has stopped itself or completed; writes nothing."""
    if rollout.progress is RolloutState.STOPPED:
        text = f"rollout {request.id} stopped: {rollout.reason}; events that have not started are withdrawn"
        return _entry(request, EntryKind.STOPPED, text, now)
    text = f"rollout {request.id} completed{failed}" + (f": {rollout.reason}" if rollout.reason else "")
    return _entry(request, EntryKind.COMPLETED, text, now)


def after_verdict(
    request: MaintenanceRequest, rollout: Rollout, verdict: HealthVerdict, now: float
) -> tuple[Rollout, HistoryEntry | None]:
    """Return the running rollout as the verdict of its health checks changes it, and a history entry."""
    # A wait for measurements that are still to come changes nothing, and neither does another reason for the same wait.
    match verdict.decision:
        case HealthDecision.PAUSE:
            changed = replace(rollout, progress=RolloutState.PAUSED, reason=verdict.why, unclear="")
            text = f"rollout {request.id} paused: {verdict.why}; events that have not started are withdrawn"
            return changed, _entry(request, EntryKind.PAUSED, text, now)
        case HealthDecision.WAIT if not rollout.unclear:
            text = f"rollout {request.id} {PUBLISHES_NOTHING}: {verdict.why}"
            return replace(rollout, unclear=verdict.why), _entry(request, EntryKind.PAUSED, text, now)
        case HealthDecision.GO_ON if rollout.unclear:
            text = f"rollout {request.id} goes on: its checks are clear again"
            return replace(rollout, unclear=""), _entry(request, EntryKind.RESUMED, text, now)
    return rollout, None


def _entry(request: MaintenanceRequest, kind: EntryKind, text: str, now: float) -> HistoryEntry:
    return HistoryEntry(at=now, kind=kind, actor=PLATFORM_ACTOR, text=text, request_id=request.id)


# Holds all rollouts of the fleet, and lifts the hold (spec §13.5).


class RolloutHoldService:
    """Sets and lifts the hold on all rollouts; there is at most one.

    `hold` is the hold in force; None if there is none or it is being lifted. `is_lifting` says whether a hold was
    lifted but `finish_lifting` has not yet checked everything that it held. Every change sets
    `transactions.hold_reason`, for decisions.
    """

    def __init__(
        self, transactions: ScopeTransactions, *, on_lifted: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._on_lifted = on_lifted
        self._wake = wake
        self._lock = asyncio.Lock()  # a new hold waits until the last one is lifted completely
        self.hold: RolloutHold | None = None
        self.is_lifting = False
        self._follow(self._stored())

    def on_commit(self, applied: AppliedCommit) -> None:
        """Take over the hold that a commit has stored, if any. Called for every commit with `saved`, in order."""
        # So the reconciler, which that commit wakes, knows the hold, even if the task that commits it was cancelled.
        for saved in applied.commit.saved:
            if saved.name == ROLLOUT_HOLD_NAME:
                self._follow(_decode(saved.value))

    async def set_hold(self, reason: str, *, who: str) -> RolloutHold:
        """Hold all rollouts, durably, and return the hold. Finishes lifting an earlier hold first.

        Rollouts publish nothing, and none of their events starts without an approval, except behind a gate that is
        released already; Freezes that faults made also wait.
        """
        reason = " ".join(reason.split())
        if not reason:
            raise Rejected("a hold needs a reason, which everybody sees: give one")
        async with self._lock:
            await self._finish_lifting()
            # One reason for all: a second hold would hide why the first was set.
            if self.hold is not None:
                raise Refused(f"all rollouts are on hold already ({self.hold.reason}): lift that hold first")
            hold = RolloutHold(reason=reason, set_by=who, set_at=self._transactions.clock.now())
            # The store writes in order: what was decided before this line is stored before the hold, and every later
            # decision knows the hold. So nothing is published or started after the caller has its answer.
            self._transactions.hold_reason = reason
            try:
                await self._commit_hold(hold, EntryKind.PAUSED, f"all rollouts are on hold: {reason}", who)
            except BaseException:
                if self.hold is None:  # decide again what was held meanwhile
                    self._transactions.hold_reason = ""
                    self.is_lifting = True
                    self._wake()
                raise
        return hold

    async def lift_hold(self, *, who: str) -> RolloutHold:
        """Lift the hold on all rollouts, durably, and return it; the reconciler starts what is due by then."""
        async with self._lock:
            hold = self.hold
            if hold is None:
                raise Refused("rollouts are not on hold: there is nothing to lift")
            text = f"the hold on all rollouts is lifted ({hold.reason})"
            # Not removed yet: who dies before everything is decided again must find it.
            await self._commit_hold(replace(hold, is_lifted=True), EntryKind.RESUMED, text, who)
        return hold

    async def finish_lifting(self) -> bool:
        """Decide all scheduled events of rollouts again after a hold was lifted; return whether one was."""
        # The hold is removed from the store only afterwards, so a crash in between repeats this.
        async with self._lock:
            return await self._finish_lifting()

    async def _finish_lifting(self) -> bool:
        if not self.is_lifting:
            return False
        held = [e for e in self._store.events(statuses=(EventState.SCHEDULED,)) if e.cause in ROLLOUT_CAUSES]
        # Also those that were due all along: no time wakes what waited without an end.
        await self._transactions.reconcile_scopes_of(held)
        self._on_lifted()
        stored = self._stored()
        if stored is not None and stored.is_lifted:  # not if it could not be stored, or is stored only now
            await self._store.save(ROLLOUT_HOLD_NAME, msgspec.json.encode(None))
            stored = None
        self._follow(stored)
        return True

    def _stored(self) -> RolloutHold | None:
        raw = self._store.load(ROLLOUT_HOLD_NAME)
        return _decode(raw) if raw is not None else None

    def _follow(self, stored: RolloutHold | None) -> None:
        self.is_lifting = stored is not None and stored.is_lifted
        self.hold = None if self.is_lifting else stored
        self._transactions.hold_reason = self.hold.reason if self.hold is not None else ""

    async def _commit_hold(self, hold: RolloutHold, kind: EntryKind, text: str, who: str) -> None:
        entry = HistoryEntry(at=self._transactions.clock.now(), kind=kind, actor=who, text=text)
        saved = SavedValue(ROLLOUT_HOLD_NAME, msgspec.json.encode(hold))
        await self._store.commit(Commit(saved=(saved,), entries=(entry,)))


def _decode(raw: bytes) -> RolloutHold | None:
    return msgspec.json.decode(raw, type=RolloutHold | None)


# Finds the work of other rollouts that serves a rollout too (spec §13.6).

_MAX_REQUESTS_READ = 10_000  # the newest ones, of which rollouts are looked for at the start


class SharedWorkIndex:
    """Knows the rollouts, open or lately closed, whose work may also serve another open rollout."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rollouts: dict[str, MaintenanceRequest] = {}
        self._hosts: dict[str, frozenset[str]] = {}  # request id → names of its hosts
        for request in (*store.requests(limit=_MAX_REQUESTS_READ), *store.requests(open_only=True)):
            self.on_request(request)
        self._forget_old()

    def on_request(self, request: MaintenanceRequest) -> None:
        """Remember the newest state of a rollout's request; a request without a rollout is ignored."""
        if request.rollout is None:
            return
        if request.id not in self._hosts:
            self._hosts[request.id] = frozenset(request.rollout.hosts)
        self._rollouts[request.id] = request
        if request.rollout.closed and len(self._rollouts) > 1:
            self._forget_old()

    def _forget_old(self) -> None:
        oldest = min((request.requested_at for request in self._rollouts.values() if request.is_open), default=None)
        for request_id, request in list(self._rollouts.items()):
            rollout = request.rollout
            if rollout is not None and rollout.closed and (oldest is None or (rollout.closed_at or 0.0) < oldest):
                del self._rollouts[request_id], self._hosts[request_id]

    def work_for(
        self, request: MaintenanceRequest, rollout: Rollout, vms: list[Vm], own_events: list[Event]
    ) -> SharedWork:
        """Return what other rollouts do, or have done, to the VMs of a rollout in its place."""
        others = [other for other in self._rollouts.values() if may_share_work(request, other)]
        if not others:
            return NO_SHARED_WORK
        events = [event for other in others for event in self._store.events(request_id=other.id)]
        planned = [item for other in others for item in self._store.planned(request_id=other.id)]
        return shared_work(request, rollout, vms, own_events, events, planned)

    def others_on_host(self, event: Event) -> Iterator[str]:
        """Yield the ids of the open rollouts, without that of the event, that could share its work."""
        for request_id, request in self._rollouts.items():
            rollout, hosts = request.rollout, self._hosts[request_id]
            if rollout is None or request_id == event.request_id or not request.is_open:
                continue
            if rollout.cause is event.cause and (not hosts or event.host in hosts):
                yield request_id

    def open_peers(self, request: MaintenanceRequest) -> list[str]:
        """Return the ids of the other open rollouts that could share work with this one."""
        return [other.id for other in self._rollouts.values() if other.is_open and may_share_work(request, other)]


_END_STATES = {RolloutState.STOPPED, RolloutState.ABORTED, RolloutState.COMPLETED}
_MAX_UNUSED_S: LabSeconds = 10.0  # for which the next wave may wait while acts are due


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSnapshot:
    """The VMs and events of a rollout at one time; read once, because a large rollout has many."""

    vms: list[Vm]  # present and covered by it when it was read, as `rollout_vms` orders them
    events: list[Event]  # all that its request has published, live or over, oldest first
    shared: SharedWork = NO_SHARED_WORK  # what other rollouts do to its VMs in its place; nothing if it is closed


class RolloutService:
    """Advances open rollouts that commits have changed, and reports their progress.

    `budgets` must have seen a commit before `on_commit` is called with it.
    """

    def __init__(
        self,
        *,
        transactions: ScopeTransactions,
        new_id: Callable[[], str],
        budgets: BudgetService,
        calendars: RolloutCalendars,
        prober: HealthProber,
        wake: Callable[[], None],
    ) -> None:
        self._transactions = transactions
        self._budgets = budgets
        self._calendars = calendars
        self._store = transactions.store
        self._shared_work = SharedWorkIndex(self._store)
        self.standing_order: StandingOrderService | None = None  # whose visits it begins; set once, before it is used
        self._new_id = new_id
        self._changed: set[str] = {request.id for request in self._store.requests(open_only=True)}
        self._unblocked: dict[str, float] = {}  # request id → since when more events may be published
        self._with_windows: set[str] = set()  # ids of the open rollouts with maintenance windows
        self._by_host: dict[str, set[str]] = {}  # host → ids of the open rollouts of it
        self._by_property: dict[str, Rollout] = {}  # request id → an open rollout that is not over hosts
        self._settling: dict[str, float] = {}  # request id → when the wave of an open rollout has settled
        for request in self._store.requests(open_only=True):
            self._index_targets(request)
        self.health = HealthCheckService(store=self._store, clock=transactions.clock, prober=prober, wake=wake)
        transactions.held_rollouts = self.health.held_rollouts
        self._awaits_checks: dict[str, str] = {}  # request id → why a rollout's checks let it publish nothing
        self.holds = RolloutHoldService(transactions, on_lifted=self._check_all_open, wake=wake)

    @property
    def hold(self) -> RolloutHold | None:
        """The hold on all rollouts (spec §13.5); None if there is none, also while one is being lifted."""
        return self.holds.hold

    def on_commit(self, applied: AppliedCommit) -> None:
        """Remember which rollouts a commit changed, for `reconcile`. Called for every commit, in order."""
        # An event that is published or starts needs no check, because the rollout has counted its VMs already.
        commit = applied.commit
        if commit.saved:
            self.holds.on_commit(applied)
        if self.standing_order is not None and (commit.saved or self.standing_order.order is not None):
            self.standing_order.on_commit(applied)
        self._calendars.on_commit(applied)
        if self._budgets.waiting:
            self._unblock(self._budgets.take_woken(commit.vms))
        if commit.measurements or any(request.rollout is not None for request in commit.requests):
            self.health.on_commit(applied)
        for measurement in commit.measurements:
            # A good measurement changes nothing unless the rollout waits for it.
            awaits = measurement.request_id in self._awaits_checks or measurement.request_id in self.health.holding
            if measurement.outcome is not CheckOutcome.GOOD or awaits:
                self._changed.add(measurement.request_id)
        for request in commit.requests:
            self._index_targets(request)
            if request.is_open:
                self._changed.add(request.id)
            elif request.rollout is not None:
                self._unblock(self._shared_work.open_peers(request))  # what it has not done remains for them
        if self._by_host:
            for vm in commit.vms:  # a VM that arrives on a host needs an event too
                self._unblock(self._by_host.get(vm.host, ()))
            if any(vm.removed_at is not None for vm in commit.vms):  # those on its host may have waited for its scope
                self._unblock(itertools.chain.from_iterable(self._by_host.values()))
        # A tag or location may have changed, so the VM may be covered now.
        for request_id, rollout in self._by_property.items():
            if any(covers_vm(rollout, vm) for vm in commit.vms):
                self._unblock((request_id,))
        for event in commit.events:
            if not event.rules.planned:
                continue
            if event.failed_acts:
                self._changed.add(event.request_id)  # enough failures stop the rollout
            elif not event.is_live:
                # It may have kept events of rollouts with windows from starting until their last window was over.
                self._unblock((event.request_id, *self._with_windows))
            if not event.is_live or any(act.to_host and act.outcome is not None for act in event.acts):
                self._unblock(self._shared_work.others_on_host(event))  # even when a VM has left their host
        for entry in commit.entries:
            # A planned event that was refused is gone without an event: its VM remains.
            if entry.kind is EntryKind.SKIPPED:
                self._changed.add(entry.request_id)

    def _check_all_open(self) -> None:
        self._changed |= {request.id for request in self._store.requests(open_only=True)}

    def _unblock(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            # The first time counts, or a steady stream of changes would put the check off for ever.
            self._unblocked.setdefault(request_id, self._now())

    def _index_targets(self, request: MaintenanceRequest) -> None:
        rollout = request.rollout
        if request.is_open and rollout is not None and (rollout.calendar is not None or self._calendars.are_used):
            self._with_windows.add(request.id)
        else:
            self._with_windows.discard(request.id)
        if rollout is None:
            return
        self._shared_work.on_request(request)
        if request.is_open and not rollout.hosts:
            self._by_property[request.id] = rollout
        else:
            self._by_property.pop(request.id, None)
        if not request.is_open:
            self._settling.pop(request.id, None)
        for host in rollout.hosts:
            ids = self._by_host.setdefault(host, set())
            if request.is_open:
                ids.add(request.id)
            else:
                ids.discard(request.id)
            if not ids:
                del self._by_host[host]

    async def reconcile(self, *, acts_are_due: bool = False) -> bool:
        """Advance the rollouts that changed; return whether anything was done. A step of the reconciler.

        A running one publishes the next events of its wave, or waits until the wave has settled, or stops after too
        many failures or without a maintenance window left, or completes; a paused one may still stop or complete; one
        that a check has paused withdraws its scheduled events; so does one that has ended, which is closed once no
        event is live. While `acts_are_due`, a rollout whose events ended waits for up to ten seconds, so
        that it is checked once for many events that end together.
        """
        did = False
        if (standing := self.standing_order) is not None and standing.order is not None and self.hold is None:
            did = await standing.reconcile(is_hold_lifted=self.holds.is_lifting)
        self._check_unblocked(acts_are_due)
        if self.health.open_rollouts:
            # Before the rollouts, which decide by the latest measurements.
            did |= await self.health.reconcile()
        if self.holds.is_lifting:
            # Before publishing: what the hold kept waiting may start first.
            did |= await self.holds.finish_lifting()
        if self._calendars.has_changed:
            for checked in await self._calendars.reconcile():
                self._index_targets(checked)
                self._changed.add(checked.id)
        for request_id in self._changed_in_order():
            self._changed.discard(request_id)
            request = self._store.request(request_id)
            if request is None or request.rollout is None or not request.is_open:
                self._budgets.set_waiting(request_id, ())
                continue
            try:
                did |= await self._reconcile_one(request, request.rollout)
            except Conflict:
                self._changed.add(request_id)
                did = True
            except BaseException:
                self._changed.add(request_id)
                raise
        return did

    def next_due_at(self) -> float | None:
        """Return when a wave has settled, or windows, a check or a visit are to be looked at; None if none."""
        due = [self.health.next_due_at() if self.health.open_rollouts else None, *self._settling.values()]
        due.append(self._calendars.next_due_at())
        if (standing := self.standing_order) is not None and standing.order is not None and self.hold is None:
            due.append(standing.next_due_at())
        return min((at for at in due if at is not None), default=None)

    def _changed_in_order(self) -> list[str]:
        """Return the ids of the changed requests, the oldest request first: it gets what budgets allow."""
        ages = {request_id: self._store.request(request_id) for request_id in self._changed}
        return sorted(ages, key=lambda id_: (request.requested_at if (request := ages[id_]) is not None else 0.0, id_))

    def _check_unblocked(self, acts_are_due: bool) -> None:
        now = self._now()
        for request_id in [request_id for request_id, until in self._settling.items() if until <= now]:
            del self._settling[request_id]
            self._changed.add(request_id)
        self._changed |= self._calendars.take_due()
        # Many events that end together are looked at once: each look reads all events of the rollout.
        latest = self._now() - _MAX_UNUSED_S if acts_are_due else math.inf
        for request_id in [request_id for request_id, since in self._unblocked.items() if since <= latest]:
            del self._unblocked[request_id]
            self._changed.add(request_id)

    async def _reconcile_one(self, request: MaintenanceRequest, rollout: Rollout) -> bool:
        # All VMs and events are read on the event loop, which takes 0.7 s of CPU for 96,000 VMs. In the store's reader
        # thread that would not block polls, but a pass, with all starts that are due, would wait behind the figures
        # that are read there, for seconds; and commits in between would make VMs, events and plans of different times.
        # The loop of a service this large answers few polls: workers or host nodes do.
        vms = self.vms_of(rollout)
        events = self._store.events(request_id=request.id)
        planned = self._store.planned(request_id=request.id)
        self._budgets.set_waiting(request.id, ())
        shared = self._shared_work.work_for(request, rollout, vms, events)
        vms = shared.without(vms)

        phase = wave_phase(rollout, vms, events, planned, self._now())
        self._settling.pop(request.id, None)
        unpublished = len(phase.remaining) + len(planned)
        left = unpublished + shared.pending
        waiting = phase.members or phase.remaining
        has_window = not unpublished or self._calendars.has_window(rollout, waiting, self._now() + request.notice_s)
        is_settling = phase.step is WaveStep.SETTLE
        progress = next_rollout_state(
            rollout, events, left, has_window=has_window, now=self._now(), is_settling=is_settling
        )

        if progress is not rollout.progress:
            if progress is RolloutState.COMPLETED and rollout.checks and phase.over_at is not None:
                if rollout.progress is RolloutState.PAUSED:
                    return False  # nothing is measured until a person resumes it
                if (did := await self._follow_checks(request, rollout, events, must_be_good=True)) is not None:
                    return did
            # As a state first: events are withdrawn in a later pass, and a crash in between changes nothing.
            why = rollout_end_reason(rollout, events, progress)
            ended = replace(rollout, progress=progress, reason=why, unclear="")
            await self._save_rollout(request, ended, ended_entry(request, ended, failures_text(events), self._now()))
            return True
        if progress in _END_STATES:
            return await self._wind_down(request, rollout, events, planned)
        if rollout.has_paused_itself:
            return await self._withdraw_unstarted(request, rollout, events, planned)
        if phase.settles_until is not None:
            self._settling[request.id] = phase.settles_until
        if progress is not RolloutState.RUNNING:
            return False
        # Before anything new is published.
        await self._start_held_events(request, events)
        if is_settling and self.hold is None and await self._save_wave_end(request, rollout, phase):
            return True
        begins_wave = phase.step is WaveStep.BEGIN
        if rollout.waves and begins_wave and shared.pending:
            return False  # another rollout works on VMs of the waves before
        if rollout.checks:
            did = await self._follow_checks(request, rollout, events, must_be_good=begins_wave)
            if did is not None:
                return did
        if self.hold is None and has_window and not is_settling:
            return await self._publish_next_batch(request, rollout, phase, vms, events, planned)
        return False

    async def _follow_checks(
        self, request: MaintenanceRequest, rollout: Rollout, events: list[Event], *, must_be_good: bool
    ) -> bool | None:
        """Pause the rollout, or let it wait, if its health checks demand that (spec §13.5)."""
        # Returns None if it goes on, else whether anything was stored. `must_be_good`: a wave is about to begin, or the
        # rollout to complete, so each check must have been good since the last event ended.
        now = self._now()
        ended = [event.over_at for event in events if event.over_at is not None]
        good_since = max(ended, default=0.0) if must_be_good else None
        counting = self.health.counting(request.id, rollout)
        verdict = health_verdict(rollout.checks, counting, now, good_since=good_since)
        changed, entry = after_verdict(request, rollout, verdict, now)
        self._awaits_checks.pop(request.id, None)
        if verdict.decision in (HealthDecision.WAIT, HealthDecision.MEASURE):
            self._awaits_checks[request.id] = verdict.why
        if changed is not rollout:
            await self._save_rollout(request, changed, entry)
            return True
        return None if verdict.decision is HealthDecision.GO_ON else False

    async def _start_held_events(self, request: MaintenanceRequest, events: list[Event]) -> None:
        """Decide the scheduled events again if clear checks no longer hold them."""
        if request.id not in self.health.holding or request.id in self.health.held_rollouts():
            return
        scheduled = [event for event in events if event.status is EventState.SCHEDULED]
        await self._transactions.reconcile_scopes_of(scheduled)
        self.health.holding.discard(request.id)

    def vms_of(self, rollout: Rollout) -> list[Vm]:
        """Return the present VMs that a rollout covers now, also those that are done; [] if there are none."""
        return rollout_vms(self._store, rollout)

    async def _publish_next_batch(
        self,
        request: MaintenanceRequest,
        rollout: Rollout,
        phase: WavePhase,
        vms: list[Vm],
        events: list[Event],
        planned: list[PlannedEvent],
    ) -> bool:
        # From the count to the commit: another rollout must not take the same places meanwhile.
        async with self._budgets.lock:
            gates, ledger = self._closed_gates(events), self._budgets.ledger()
            among, windows = phase.members, self._calendars.windows_at(self._now() + request.notice_s)
            batch = next_batch(
                request, vms, events, planned, self._new_id, gates, among=among, budgets=ledger, windows=windows
            )
            self._budgets.set_waiting(request.id, batch.shortages, vms)
            if not batch.planned:
                return False
            entries: tuple[HistoryEntry, ...] = ()
            if phase.step is WaveStep.BEGIN and rollout.waves:
                rollout = begin_wave(rollout, phase, events, planned, self._now())
                entries = (wave_entry(request, wave_begin_text(rollout, phase), self._now()),)
            elif rollout.wave_over_at is not None:
                rollout = replace(rollout, wave_over_at=None)  # a VM came while the wave settled
            # The request is committed too: its version makes a concurrent abort a Conflict. So does the version of a
            # gate that is released meanwhile.
            request = replace(request, rollout=rollout)
            await self._store.commit(
                Commit(requests=(request,), planned=batch.planned, gates=batch.gates, entries=entries)
            )
            closed = {gate.id for gate in gates.values()}
            self._calendars.has_changed |= any(item.gate_id in closed for item in batch.planned)  # they start together
        return True

    async def _save_wave_end(self, request: MaintenanceRequest, rollout: Rollout, phase: WavePhase) -> bool:
        if rollout.wave_over_at == phase.over_at:
            return False
        settling = replace(rollout, wave_over_at=phase.over_at)
        await self._save_rollout(request, settling, wave_entry(request, wave_end_text(rollout, phase), self._now()))
        return True

    def _closed_gates(self, events: list[Event]) -> dict[str, Gate]:
        waiting = {event.gate_id for event in events if event.gate_id and event.status is EventState.SCHEDULED}
        closed = (gate_id for gate_id in sorted(waiting) if not self._transactions.is_gate_released(gate_id))
        gates = (self._store.gate(gate_id) for gate_id in closed)
        # A void release is taken back by the commit that adds an event behind the gate.
        return {gate.host: replace(gate, released_at=None) for gate in gates if gate is not None}

    async def _withdraw_unstarted(
        self, request: MaintenanceRequest, rollout: Rollout, events: list[Event], planned: list[PlannedEvent]
    ) -> bool:
        if planned:
            # The version of the request makes a batch that is being published conflict.
            await self._store.commit(Commit(requests=(request,), unplanned=tuple(p.event_id for p in planned)))
        scheduled = [event for event in events if event.status is EventState.SCHEDULED]
        for scope_id, members in group_by_scope(scheduled, lambda event: event.scope_id).items():
            await self._transactions.run(scope_id, withdraw_decision([e.id for e in members], rollout))
        return bool(planned or scheduled)

    async def _wind_down(
        self, request: MaintenanceRequest, rollout: Rollout, events: list[Event], planned: list[PlannedEvent]
    ) -> bool:
        await self._withdraw_unstarted(request, rollout, events, planned)
        # One of them may have started before it could be withdrawn.
        if not any(event.is_live for event in self._store.events(request_id=request.id)):
            await self._save_rollout(
                request,
                replace(rollout, closed=True, closed_at=self._now(), tally=self.tally_of(request, rollout)),
                None,
            )
        return True

    def tally_of(
        self, request: MaintenanceRequest, rollout: Rollout, snapshot: RolloutSnapshot | None = None
    ) -> RolloutTally:
        """Return how many VMs of a rollout are done, failed and so on; for a closed one, as stored at its end."""
        if rollout.tally is not None:
            return rollout.tally
        snapshot = snapshot or self.snapshot_of(request, rollout)
        # VMs that a completed rollout would cover now, and that came later, are not part of it.
        vms = [] if rollout.progress is RolloutState.COMPLETED else snapshot.vms
        return count_rollout_vms(vms, snapshot.events, snapshot.shared.states)

    def forecast_of(
        self,
        request: MaintenanceRequest,
        rollout: Rollout,
        snapshot: RolloutSnapshot | None = None,
        *,
        ignores_hold: bool = False,
    ) -> RolloutForecast:
        """Return the sizes and times of the rollout's waves, and when it probably ends, begun or not."""
        now, rules = self._now(), CAUSE_RULES[rollout.cause]
        act_s = float(rules.duration_s) if rules.duration_s >= 0 else rules.verb.rules.usual_duration_s
        snapshot = snapshot or self.snapshot_of(request, rollout)
        return forecast_rollout(
            request,
            [] if rollout.progress in _END_STATES else snapshot.shared.without(snapshot.vms),
            snapshot.events,
            self._store.planned(request_id=request.id),
            now=now,
            act_s=act_s + self._transactions.policy.settle_s,
            goes_on=rollout.progress is RolloutState.RUNNING
            and not rollout.unclear
            and (self.hold is None or ignores_hold),
            budgets=self._budgets.ledger(),
            windows=self._calendars.windows_at(now + request.notice_s),
            shared=snapshot.shared,
        )

    def snapshot_of(self, request: MaintenanceRequest, rollout: Rollout) -> RolloutSnapshot:
        """Read the VMs that a rollout covers now, all its events, and what other rollouts do in its place."""
        vms, events = self.vms_of(rollout), self._store.events(request_id=request.id)
        shared = self._shared_work.work_for(request, rollout, vms, events) if not rollout.closed else NO_SHARED_WORK
        return RolloutSnapshot(vms=vms, events=events, shared=shared)

    def publication_waits(
        self, request: MaintenanceRequest, snapshot: RolloutSnapshot | None = None
    ) -> tuple[str, ...]:
        """Return what keeps a running rollout from publishing more, one clause each for people; () if nothing does."""
        shared = snapshot.shared if snapshot is not None else NO_SHARED_WORK
        waits = [*self._budgets.wait_texts(request.id)]
        waits += [f"rollout {other} does the same work on VMs of it" for other in sorted(shared.request_ids)]
        rollout = request.rollout
        if rollout is not None and rollout.progress is RolloutState.RUNNING:
            # `unclear` is stored and outlives this process; a first measurement is awaited without a write.
            if why := rollout.unclear or self._awaits_checks.get(request.id):
                waits.append(f"for clear health checks ({why})")
            if held := self._transactions.hold_reason:
                waits.append(f"for the end of the hold on all rollouts ({held})")
        return tuple(waits)

    async def _save_rollout(self, request: MaintenanceRequest, rollout: Rollout, entry: HistoryEntry | None) -> None:
        entries = (entry,) if entry is not None else ()
        await self._store.commit(Commit(requests=(replace(request, rollout=rollout),), entries=entries))

    def _now(self) -> float:
        return self._transactions.clock.now()
