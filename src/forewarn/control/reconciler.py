"""The reconciler: `reconcile()` does all work that is due in the store, `run()` repeats it when woken.

Events start only here. So a gate whose events are all ready can release and start them before any other step changes
their scopes; this is the only reason why the order of the steps matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from msgspec.structs import replace

from forewarn.base.duration import duration_text
from forewarn.control.executor import ActExecutor, FailedAttempt
from forewarn.control.faults import FaultService, FaultStormService
from forewarn.control.replays import ReplayService
from forewarn.control.rollouts import RolloutService
from forewarn.control.scope_transactions import (
    MAX_CONCURRENT_SCOPES,
    ScopeTransactions,
    group_by_scope,
    run_concurrently,
)
from forewarn.core.acts import vms_needing_destination
from forewarn.core.cause import verb_noun
from forewarn.core.commit import Commit
from forewarn.core.decision import DecisionContext
from forewarn.core.event import Act, ActOutcome, Event, EventState, Gate
from forewarn.core.fleet import HostHealth
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.host_failure import outcome_on_failed_host
from forewarn.core.planning import apply_planned_event
from forewarn.core.reconcile import PLATFORM_ACTOR, reconcile_scope, record_act_outcome
from forewarn.core.release import start_wait, waits_only_for_gate
from forewarn.core.request import PlannedEvent, Rollout, RolloutState
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Refused, Unavailable, full_message
from forewarn.store.interface import AppliedCommit, GatedEvents

log = logging.getLogger(__name__)


# Gates: start the events of one host together, once all of them are ready (spec §6.2).

_BATCH_SIZE = 64  # gates decided without letting other tasks run
_READY_NOW = -1.0  # no due time is negative


class GateService:
    """Releases gates whose events are all ready, and starts these events; see `core.release`."""

    def __init__(self, transactions: ScopeTransactions) -> None:
        self._transactions = transactions
        self._store = transactions.store

    async def reconcile(self, gates: Iterable[Gate]) -> None:
        """Decide these gates, which are due: release them, or store when they are due again."""
        # Gates that share no scope are decided together. An error is raised once those decided together with it are
        # done; the gates after them stay due.
        due = {gate.id: gate for gate in gates}
        behind = self._store.events_behind_gates(tuple(due))
        is_first = True
        for gate_ids in independent_rounds(_scopes_by_gate(due, behind)):
            for at in range(0, len(gate_ids), _BATCH_SIZE):
                batch = {gate_id: due[gate_id] for gate_id in gate_ids[at : at + _BATCH_SIZE]}
                await self._reconcile_batch(
                    batch, behind if is_first else self._store.events_behind_gates(tuple(batch))
                )
                is_first = False  # this batch has changed scopes: read again

    async def _reconcile_batch(self, gates: Mapping[str, Gate], behind: GatedEvents) -> None:
        waiting = _events_by_gate(gates, behind)
        wake_times = {
            # An event that is still to be published may make the gate wait: publishing it wakes the gate.
            gate_id: None if gate_id in behind.gates_with_planned else self._wake_at(gate, waiting[gate_id])
            for gate_id, gate in gates.items()
        }
        unready = [replace(gates[id_], wakes_at=at) for id_, at in wake_times.items() if at is not _READY_NOW]
        # A release without a start counts no more once its events wait for something again.
        void = [gate for gate in unready if self._has_void_release(gate, waiting[gate.id])]
        await self._save_unready([gate for gate in unready if gate not in void])
        await run_concurrently(self._take_back(gate) for gate in void)
        ready = [gates[gate_id] for gate_id, at in wake_times.items() if at is _READY_NOW]
        await run_concurrently(self._try_release(gate, waiting[gate.id]) for gate in ready)

    def _wake_at(self, gate: Gate, waiting: list[Event]) -> float | None:
        """Return when to look at the gate again, None for never, or _READY_NOW if its events can start."""
        if not waiting:
            return None
        return _READY_NOW if self._is_open(gate) else self._next_ready_at(waiting)

    def _is_open(self, gate: Gate) -> bool:
        return self._transactions.is_gate_released(gate.id)

    def _has_void_release(self, gate: Gate, waiting: list[Event]) -> bool:
        return gate.released_at is not None and bool(waiting) and not self._is_open(gate)

    async def _take_back(self, gate: Gate) -> None:
        now = self._transactions.clock.now()
        text = f"the events on host {gate.host} must wait again: all were ready, but none has started"
        entry = _gate_entry(gate, text, now)
        try:
            await self._store.commit(Commit(gates=(replace(gate, released_at=None),), entries=(entry,)))
        except Conflict:
            pass  # the gate was woken again meanwhile: it is still due

    async def _try_release(self, gate: Gate, waiting: list[Event]) -> None:
        try:
            await self._release(gate, waiting)
        except Conflict:
            pass  # the gate was woken again meanwhile: it is still due

    async def _release(self, gate: Gate, waiting: list[Event]) -> None:
        now = self._transactions.clock.now()
        if self._is_open(gate):
            await self._start_events(gate, waiting)
            await self._store.commit(Commit(gates=(replace(gate, wakes_at=None),)))
        else:
            # The gate stays due until all its events have started, so that a crash leaves none behind.
            released = replace(gate, released_at=now, wakes_at=now)
            text = f"everything on host {gate.host} is ready: its events start together"
            await self._store.commit(Commit(gates=(released,), entries=(_gate_entry(gate, text, now),)))
            await self._start_events(gate, waiting)

    async def _start_events(self, gate: Gate, waiting: list[Event]) -> None:
        has_started = False

        async def start_in(scope_id: str, events: list[Event]) -> None:
            nonlocal has_started
            scope = await self._transactions.run(scope_id, reconcile_scope)
            decided = (scope.event(event.id) for event in events)
            # As decided and committed, not as hoped: each scope may have refused its start.
            has_started |= any(event is not None and event.started_at is not None for event in decided)

        by_scope = group_by_scope(waiting, lambda event: event.scope_id)
        try:
            await run_concurrently(start_in(scope_id, events) for scope_id, events in by_scope.items())
        finally:
            if not has_started:
                # Nothing has started, so our own release is as void as one of an earlier process.
                self._transactions.forget_gate(gate.id)

    async def _save_unready(self, gates: Sequence[Gate]) -> None:
        """Save these gates in one commit; on a Conflict split them, so that only the changed gates stay due."""
        if not gates:
            return
        try:
            await self._store.commit(Commit(gates=tuple(gates)))
        except Conflict:
            half = len(gates) // 2
            if half:
                await self._save_unready(gates[:half])
                await self._save_unready(gates[half:])

    def _next_ready_at(self, waiting: list[Event]) -> float | None:
        now = self._transactions.clock.now()
        unready = [event.not_before for event in waiting if not event.is_ready(now)]
        if unready and all(event.approved_at is not None or not event.is_ready(now) for event in waiting):
            return max(unready)  # the usual case after an approval, decided without reading any scope
        instants: list[float | None] = []
        for event in waiting:
            # Windows, domains and moves are known to the scope alone.
            scope = self._transactions.load(event.scope_id)
            context = self._transactions.context_for(scope)
            if not waits_only_for_gate(scope, event, context):
                wait = start_wait(scope, event, context)
                instants.append(wait.until if wait else None)
        if not instants:
            return _READY_NOW
        # The last of them opens the gate; looking earlier would find it closed.
        return max((at for at in instants if at is not None), default=None)


def _events_by_gate(gates: Iterable[str], behind: GatedEvents) -> dict[str, list[Event]]:
    waiting: dict[str, list[Event]] = {gate_id: [] for gate_id in gates}
    for event in behind.scheduled:
        if event.gate_id in waiting:
            waiting[event.gate_id].append(event)
    return waiting


def _scopes_by_gate(gates: Iterable[str], behind: GatedEvents) -> dict[str, set[str]]:
    return {gate_id: {event.scope_id for event in events} for gate_id, events in _events_by_gate(gates, behind).items()}


def independent_rounds(scopes: Mapping[str, Set[str]]) -> list[list[str]]:
    """Return the gates in rounds, as lists of gate ids, so that no two gates of a round share a scope."""
    # An event that one gate starts may block another event in the same scope.
    rounds: list[list[str]] = []
    busy_until: dict[str, int] = {}  # scope id → the first round in which it is free
    for gate_id, scope_ids in scopes.items():
        # After every earlier gate that touches one of its scopes, so that their order stays.
        number = max((busy_until.get(scope_id, 0) for scope_id in scope_ids), default=0)
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(gate_id)
        busy_until.update(dict.fromkeys(scope_ids, number + 1))
    return rounds


def _gate_entry(gate: Gate, text: str, now: float) -> HistoryEntry:
    return HistoryEntry(
        at=now, kind=EntryKind.RELEASED, actor=PLATFORM_ACTOR, text=text, request_id=gate.request_id, host=gate.host
    )


_ERROR_BACKOFF_S = 1.0  # real time
_MAX_CATCH_UP_S = 10.0  # real time


class Reconciler:
    """Does due work in passes: publishes, starts and ends events, and performs their acts.

    A pass is level-triggered: it reads what is due from the store, so a crash or a missed wake-up loses nothing.
    Setting `wake_event` makes `run` begin a pass at once. `pass_lock` is held during a pass.
    """

    def __init__(
        self,
        *,
        transactions: ScopeTransactions,
        executor: ActExecutor,
        rollouts: RolloutService,
        replays: ReplayService,
        faults: FaultService,
        fault_storms: FaultStormService,
        wake_event: asyncio.Event,
    ) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._executor = executor
        self._gates = GateService(transactions)
        self._rollouts = rollouts
        self._replays = replays
        self._faults = faults
        self._fault_storms = fault_storms
        self._wake_event = wake_event
        self._is_running = False
        self._catching_up: list[asyncio.Future[None]] = []  # callers of `catch_up` that the next pass concerns
        self._has_unapplied = True  # an earlier process may have left planned events
        self._has_new_failures = True  # an earlier process may have left acts on a host that failed
        self.pass_lock = asyncio.Lock()  # held during passes, by `run` or by the lab clock while it advances

    def on_commit(self, applied: AppliedCommit) -> None:
        """Queue the acts of a commit, pass it to rollouts and replays, and wake `run`."""
        self._has_unapplied |= bool(applied.commit.planned)
        if applied.commit.hosts:
            self._has_new_failures |= any(host.health is HostHealth.FAILED for host in applied.commit.hosts)
        for event in applied.commit.events:
            # The host may have failed after the decision that made these acts.
            self._has_new_failures |= self._needs_failed_host(event)
            self._executor.add_acts(event)
        self._rollouts.on_commit(applied)
        self._replays.on_commit(applied)
        self._wake_event.set()

    def wake(self) -> None:
        """Make `run` begin a pass at once, because something outside the store has changed."""
        self._wake_event.set()

    def resume_unfinished_acts(self) -> None:
        """Queue the unfinished acts of all started events, which an earlier process left; performs none yet."""
        started = self._store.events(statuses=[EventState.STARTED])
        # In the order in which they started, which is that of the acts on one VM.
        for event in sorted(started, key=lambda event: (event.started_at or 0.0, event.seq)):
            self._executor.add_acts(event)

    async def run(self) -> None:
        """Run passes until cancelled: at once when woken, and when the next due time comes."""
        self._is_running = True
        try:
            await self._run_passes()
        finally:
            self._is_running = False
            _resolve_all(self._catching_up)

    async def _run_passes(self) -> None:
        while True:
            self._wake_event.clear()
            # This pass serves the callers that asked before it began; later ones need the next pass.
            catching_up, self._catching_up = self._catching_up, []
            try:
                async with self.pass_lock:
                    while await self.reconcile():
                        pass
            # What is due is still due: the next pass reads it again.
            except (Unavailable, Conflict) as error:
                log.warning("the store is unavailable, trying again: %s", error)
                is_done = False
            except Exception:
                # A bug in one scope must not end maintenance for all; the work that is due is still in the store.
                log.exception("a reconcile pass failed, trying again")
                is_done = False
            else:
                is_done = True
            finally:
                _resolve_all(catching_up)
            await (self._wait_until_due() if is_done else asyncio.sleep(_ERROR_BACKOFF_S))

    async def catch_up(self) -> None:
        """Wake `run`, and return when it has done everything that is due now, apart from running acts.

        Returns at the latest after ten seconds of real time, or after an error, which is not raised: the work stays
        due. If `run` is not running, it runs the passes itself.
        """
        if self._is_running:
            done = asyncio.get_running_loop().create_future()
            self._catching_up.append(done)
            self._wake_event.set()
            await asyncio.wait([done], timeout=_MAX_CATCH_UP_S)
            return
        async with self.pass_lock:
            while await self.reconcile():
                pass

    async def run_until_settled(self) -> None:
        """Run passes until everything due now is done, running acts and health checks included.

        Does not take `pass_lock`: the caller holds it if `run` may be running.
        """
        while True:
            if await self.reconcile():
                continue
            if self._rollouts.health.running:
                await self._rollouts.health.wait_for_any()
            elif self._executor.answering_acts:
                await self._executor.wait_for_any()
            else:
                return

    async def reconcile(self) -> bool:
        """Run one pass: do what is due now, and start acts; return True if there was any: call it again.

        Does not take `pass_lock`: the caller holds it if `run` may be running. A step that fails does not stop the
        others; the first error is raised at the end of the pass.
        """
        did = False
        failure: Exception | None = None
        for step in (
            # Outcomes before plans: what has ended may be what other events wait for.
            self._record_failed_attempts,
            self._record_outcomes,
            self._apply_planned,
            self._end_acts_on_failed_hosts,
            self._reconcile_rollouts,
            self._replays.reconcile,
            self._reconcile_scopes,
            self._reconcile_gates,
            self._faults.expire,
            self._fault_storms.reconcile,
        ):
            try:
                did |= await step()
            except Exception as error:
                # An error in one scope must not block the others.
                failure = failure or error
        # Last, so that acts of events that this pass has started begin at once.
        did |= self._executor.start_due_acts()
        if failure is not None:
            raise failure
        return did or self._has_new_failures  # if a host failed during this pass, the acts there must end

    def next_wake_at(self) -> float | None:
        """Return the lab time, perhaps past, when a scope, gate, act, rollout, check, replay or fault is due."""
        others = (self._executor, self._rollouts, self._replays, self._faults, self._fault_storms)
        # Everything that can become due by time alone; what a commit makes due wakes us by itself.
        soonest = (self._store.next_wake_at(), *(other.next_due_at() for other in others))
        return min((at for at in soonest if at is not None), default=None)

    async def _wait_until_due(self) -> None:
        """Wait for the wake event, and set it when the next due time comes."""
        sleeper = asyncio.create_task(self._transactions.clock.sleep_until(self.next_wake_at()))
        sleeper.add_done_callback(self._wake)
        try:
            await self._wake_event.wait()
            await asyncio.sleep(0)  # so that the caller of the commit can `catch_up` with the next pass
        finally:
            sleeper.remove_done_callback(self._wake)
            sleeper.cancel()

    def _wake(self, _: asyncio.Task[None]) -> None:
        self._wake_event.set()

    async def _record_failed_attempts(self) -> bool:
        failed_attempts = self._executor.take_failed_attempts()
        if not failed_attempts:
            return False
        try:
            await self._store.commit(
                Commit(entries=tuple(self._retry_entry(failed_attempt) for failed_attempt in failed_attempts))
            )
        except BaseException:
            self._executor.return_failed_attempts(failed_attempts)
            raise
        return True

    def _retry_entry(self, attempt: FailedAttempt) -> HistoryEntry:
        act = attempt.act
        event = self._event_of(act)
        return HistoryEntry(
            at=attempt.at,
            kind=EntryKind.RETRIED,
            actor=PLATFORM_ACTOR,
            text=f"{verb_noun(act.verb)} of {act.name} is tried again in {duration_text(attempt.retry_in_s)}: "
            f"{attempt.reason}",
            scope_id=event.scope_id,
            event_id=event.id,
            request_id=event.request_id,
            vm=act.name,
        )

    async def _record_outcomes(self) -> bool:
        known = self._executor.take_outcomes()
        unrecorded = group_by_scope(known, lambda item: self._event_of(item[0]).scope_id)
        try:
            await run_concurrently(self._record_scope_outcomes(scope_id, unrecorded) for scope_id in list(unrecorded))
        finally:  # even if the pass is cancelled before a scope had its turn
            self._executor.return_outcomes([item for items in unrecorded.values() for item in items])
        return bool(known)

    async def _record_scope_outcomes(self, scope_id: str, unrecorded: dict[str, list[tuple[Act, ActOutcome]]]) -> None:
        await self._transactions.run(scope_id, self._recording_decision(unrecorded[scope_id]))
        # Stored now: what is left after an error goes back to the executor.
        del unrecorded[scope_id]

    def _recording_decision(self, items: list[tuple[Act, ActOutcome]]) -> Callable[[Scope, DecisionContext], Scope]:
        def decision(scope: Scope, context: DecisionContext) -> Scope:
            recorded = scope
            for act, outcome in items:
                outcome = outcome_on_failed_host(act, outcome, context)
                recorded = record_act_outcome(recorded, act, outcome, context.failed_hosts)
            # A planned event of a failed host must see the acts to that host before they end. An event that moves a VM
            # on needs a destination that was chosen after the VM has arrived. In both cases the scope stays due.
            if self._has_unapplied or _is_any_moved_on(scope, recorded, context.now):
                return recorded
            return reconcile_scope(recorded, context)

        return decision

    def _event_of(self, act: Act) -> Event:
        event = self._store.event(act.event_id)
        assert event is not None
        return event

    async def _apply_planned(self) -> bool:
        if not self._has_unapplied:
            return False
        self._has_unapplied = False  # before reading, so that requests accepted during the commit set it again
        try:
            waiting = group_by_scope(self._store.planned(), lambda planned: planned.scope_id)
            scopes = list(waiting.items())
            for at in range(0, len(scopes), MAX_CONCURRENT_SCOPES):
                # Per batch, so that a pause waits for one batch only.
                batch = scopes[at : at + MAX_CONCURRENT_SCOPES]
                async with self._transactions.publication_lock:
                    # Read once for the batch: nobody pauses a rollout meanwhile, and one over many hosts is long.
                    requests = map(self._store.request, {item.request_id for _, items in batch for item in items})
                    rollouts = {request.id: request.rollout for request in requests if request and request.rollout}
                    await run_concurrently(
                        self._transactions.run(
                            s, _applying_decision(p, rollouts), planned=p, extra_commit=_applied_commit(p)
                        )
                        for s, p in batch
                    )
        except BaseException:
            self._has_unapplied = True
            raise
        return bool(waiting)

    async def _end_acts_on_failed_hosts(self) -> bool:
        """Reconcile the scopes with acts that need a failed host; their VMs may have no event of the failure."""
        if not self._has_new_failures:
            return False
        self._has_new_failures = False
        try:
            has_failed_hosts = bool(self._transactions.placement.failed_hosts())
            started = self._store.events(statuses=[EventState.STARTED]) if has_failed_hosts else []
            scopes = {event.scope_id for event in started if self._needs_failed_host(event)}
            await run_concurrently(self._transactions.run(scope_id, reconcile_scope) for scope_id in sorted(scopes))
        except BaseException:
            self._has_new_failures = True
            raise
        return bool(scopes)

    def _needs_failed_host(self, event: Event) -> bool:
        placement = self._transactions.placement
        return bool(placement.failed_hosts()) and any(map(placement.needs_failed_host, event.unfinished_acts))

    async def _reconcile_rollouts(self) -> bool:
        return await self._rollouts.reconcile(acts_are_due=self._executor.has_due_acts)

    async def _reconcile_scopes(self) -> bool:
        due = self._store.due_scopes(self._transactions.clock.now())
        await run_concurrently(self._transactions.run(scope_id, reconcile_scope) for scope_id in due)
        return bool(due)

    async def _reconcile_gates(self) -> bool:
        due = self._store.due_gates(self._transactions.clock.now())
        if due:
            await self._gates.reconcile(due)
        return bool(due)


def _applying_decision(
    planned: list[PlannedEvent], rollouts: Mapping[str, Rollout]
) -> Callable[[Scope, DecisionContext], Scope]:
    def decision(scope: Scope, context: DecisionContext) -> Scope:
        for item in planned:
            rollout = rollouts.get(item.request_id)
            # Paused or held since it was planned: the check is part of the transaction that publishes.
            if rollout is not None and (context.hold or rollout.progress is not RolloutState.RUNNING):
                continue  # dropped, not kept: when the rollout goes on, it plans from what is true by then
            try:
                scope = apply_planned_event(scope, item, context)
            except Refused as error:
                # The others of the request go on; the history says why this one did not.
                scope = scope.with_entries(_skipped_entry(item, full_message(error), context.now))
        return scope

    return decision


def _is_any_moved_on(before: Scope, after: Scope, now: float) -> bool:
    ready = ((vm, after.vm(vm.name)) for vm in vms_needing_destination(before, (), now))
    return any(arrived is not None and arrived.host != vm.host for vm, arrived in ready)


def _resolve_all(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _applied_commit(planned: Sequence[PlannedEvent]) -> Commit:
    """Remove the planned events, and wake their gates, which may be ready without a refused event."""
    gates = sorted({item.gate_id for item in planned if item.gate_id})
    return Commit(unplanned=tuple(item.event_id for item in planned), wake_gates=tuple(gates))


def _skipped_entry(planned: PlannedEvent, why: str, now: float) -> HistoryEntry:
    return HistoryEntry(
        at=now, kind=EntryKind.SKIPPED, actor=PLATFORM_ACTOR, text=why, request_id=planned.request_id, vm=planned.vms[0]
    )
