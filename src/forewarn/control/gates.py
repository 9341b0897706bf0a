"""Gates: start the events of one host together, once all of them are ready (spec §6.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec.structs import replace

from forewarn.control.scope_transactions import ScopeTransactions, group_by_scope, run_concurrently
from forewarn.core.commit import Commit
from forewarn.core.event import Event, Gate
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.reconcile import PLATFORM_ACTOR, reconcile_scope
from forewarn.core.release import start_wait, waits_only_for_gate
from forewarn.errors import Conflict
from forewarn.store.interface import GatedEvents

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
