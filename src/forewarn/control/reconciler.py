"""The reconciler: `turn()` does what is due, `run()` calls it when something may be. All of it is read off the store.

Order within a turn matters for one rule only: events start nowhere else, so a gate that finds all its events free
can release them and start them before anything else in their scopes does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from typing import Any

from msgspec.structs import replace

from forewarn.control.desk import Desk, by_scope
from forewarn.control.executor import Executor, Setback
from forewarn.control.faults import Faults
from forewarn.control.replays import Replays
from forewarn.control.rollouts import Rollouts
from forewarn.control.storms import Storms
from forewarn.core.agenda import PLATFORM, record, turn
from forewarn.core.cause import noun
from forewarn.core.change import Commit
from forewarn.core.event import Act, Event, Outcome, Status
from forewarn.core.gate import Gate
from forewarn.core.history import Entry, What
from forewarn.core.planning import apply
from forewarn.core.policy import Around
from forewarn.core.release import is_free, waits_for
from forewarn.core.request import Planned
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, Refused, Unavailable
from forewarn.store.seam import Behind, Committed

log = logging.getLogger(__name__)
_BREATH_S = 1.0  # of real time, before trying again
_AT_ONCE = 256  # scopes decided side by side, so that the store can commit them together
_LOOKS_AT_ONCE = 64  # gates looked at without a break


class Reconciler:
    def __init__(
        self,
        *,
        desk: Desk,
        executor: Executor,
        rollouts: Rollouts,
        replays: Replays,
        faults: Faults,
        storms: Storms,
        woken: asyncio.Event,
    ) -> None:
        self._desk = desk
        self._store = desk.store
        self._executor = executor
        self._rollouts = rollouts
        self._replays = replays
        self._faults = faults
        self._storms = storms
        self._woken = woken
        self._planned_left = True  # what a process before us may have left unapplied
        self.driving = asyncio.Lock()  # held by whoever takes turns: the loop, or an advancing lab clock

    def hear(self, committed: Committed) -> None:
        self._planned_left |= bool(committed.commit.planned)
        for event in committed.commit.events:
            self._executor.owe(event)
        self._rollouts.hear(committed)
        self._replays.hear(committed)
        self._woken.set()

    def resume(self) -> None:
        """Take on what the process before us owed."""
        for event in self._store.events(statuses=[Status.STARTED]):
            self._executor.owe(event)

    async def run(self) -> None:
        while True:
            self._woken.clear()
            try:
                async with self.driving:
                    while await self.turn():
                        pass
            except (Unavailable, Conflict) as error:
                log.warning("the store is out of reach, trying again: %s", error)
                await asyncio.sleep(_BREATH_S)
                continue
            except Exception:
                # A bug met in one scope must not end maintenance for all: what is due is still in the store.
                log.exception("a turn failed, trying again")
                await asyncio.sleep(_BREATH_S)
                continue
            await self._until_something_may_be_due()

    async def catch_up(self) -> None:
        """Turn until nothing is due now; acts at work are not waited for."""
        async with self.driving:
            while await self.turn():
                pass

    async def settle(self) -> None:
        """Turn until everything due now is done, acts at work included."""
        while True:
            if await self.turn():
                continue
            if not self._executor.at_work:
                return
            await self._executor.wait()

    async def turn(self) -> bool:
        """Do what is due now; whether there was anything."""
        did = False
        failure: Exception | None = None
        for step in (
            self._record_setbacks,
            self._record_outcomes,
            self._apply_planned,
            self._turn_rollouts,
            self._replays.turn,
            self._turn_scopes,
            self._turn_gates,
            self._faults.expire,
            self._storms.turn,
        ):
            try:
                did |= await step()
            except Exception as error:
                # What goes wrong in one scope keeps no other from its turn.
                failure = failure or error
        did |= self._executor.begin_due()
        if failure is not None:
            raise failure
        return did

    def next_wake(self) -> float | None:
        others = (self._executor, self._replays, self._faults, self._storms)
        soonest = (self._store.next_wake(), *(other.next_at() for other in others))
        return min((at for at in soonest if at is not None), default=None)

    async def _until_something_may_be_due(self) -> None:
        sleeper = asyncio.create_task(self._desk.clock.sleep_until(self.next_wake()))
        waiter = asyncio.create_task(self._woken.wait())
        try:
            await asyncio.wait({sleeper, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            waiter.cancel()
            await asyncio.gather(sleeper, waiter, return_exceptions=True)

    async def _record_setbacks(self) -> bool:
        setbacks = self._executor.take_setbacks()
        if not setbacks:
            return False
        try:
            await self._store.commit(Commit(entries=tuple(self._retried(setback) for setback in setbacks)))
        except BaseException:
            self._executor.put_back_setbacks(setbacks)
            raise
        return True

    def _retried(self, setback: Setback) -> Entry:
        act = setback.act
        event = self._event_of(act)
        return Entry(
            at=setback.at,
            what=What.RETRIED,
            who=PLATFORM,
            text=f"{noun(act.verb)} of {act.name} is tried again in {setback.again_in_s:g} s: {setback.why}",
            scope_id=event.scope_id,
            event_id=event.id,
            request_id=event.request_id,
            vm=act.name,
        )

    async def _record_outcomes(self) -> bool:
        known = self._executor.take_known()
        grouped = by_scope(known, lambda item: self._event_of(item[0]).scope_id)
        await _side_by_side(self._record(scope_id, items) for scope_id, items in grouped.items())
        return bool(known)

    async def _record(self, scope_id: str, items: list[tuple[Act, Outcome]]) -> None:
        try:
            await self._desk.decide(scope_id, _recording(items))
        except BaseException:
            self._executor.put_back(items)
            raise

    def _event_of(self, act: Act) -> Event:
        event = self._store.event(act.event_id)
        assert event is not None
        return event

    async def _apply_planned(self) -> bool:
        if not self._planned_left:
            return False
        self._planned_left = False  # before reading: what is accepted while we write is left again
        try:
            waiting = by_scope(self._store.planned(), lambda planned: planned.scope_id)
            await _side_by_side(self._desk.decide(s, _applying(p), also=_applied(p)) for s, p in waiting.items())
        except BaseException:
            self._planned_left = True
            raise
        return bool(waiting)

    async def _turn_rollouts(self) -> bool:
        return await self._rollouts.turn(acts_are_due=self._executor.has_due)

    async def _turn_scopes(self) -> bool:
        due = self._store.due_scopes(self._desk.clock.now())
        await _side_by_side(self._desk.decide(scope_id, turn) for scope_id in due)
        return bool(due)

    async def _turn_gates(self) -> bool:
        due = {gate.id: gate for gate in self._store.due_gates(self._desk.clock.now())}
        if not due:
            return False
        behind = self._store.behind(tuple(due))
        is_new = True
        for gates in apart(_scopes_at(due, behind)):
            for at in range(0, len(gates), _LOOKS_AT_ONCE):
                some = {gate_id: due[gate_id] for gate_id in gates[at : at + _LOOKS_AT_ONCE]}
                await self._turn_some(some, behind if is_new else self._store.behind(tuple(some)))
                is_new = False  # others were let through meanwhile
        return True

    async def _turn_some(self, gates: Mapping[str, Gate], behind: Behind) -> None:
        """Most have somebody behind them who is not ready: they go back to sleep together."""
        around = self._desk.around()
        waiting = _at_each(gates, behind)
        sleeps = {
            gate_id: None if gate_id in behind.planned else self._sleeps_until(gate, waiting[gate_id], around)
            for gate_id, gate in gates.items()
        }

        await self._let_sleep([replace(gates[id_], wakes_at=at) for id_, at in sleeps.items() if at is not _FREE])
        ready = [gates[gate_id] for gate_id, at in sleeps.items() if at is _FREE]
        await _side_by_side(self._turn_gate(gate, waiting[gate.id], around) for gate in ready)

    def _sleeps_until(self, gate: Gate, waiting: list[Event], around: Around) -> float | None:
        """_FREE: it does not sleep, since what is behind it can start."""
        if not waiting:
            return None
        return _FREE if gate.released_at is not None else self._unready_until(waiting, around)

    async def _turn_gate(self, gate: Gate, waiting: list[Event], around: Around) -> None:
        try:
            await self._pass_through(gate, waiting, around)
        except Conflict:
            pass  # woken again meanwhile: it is still due

    async def _pass_through(self, gate: Gate, waiting: list[Event], around: Around) -> None:
        if gate.released_at is not None:
            await self._start_through(waiting)
            await self._store.commit(Commit(gates=(replace(gate, wakes_at=None),)))
        else:
            # It stays due until all have started: a crash from here on leaves nobody behind.
            released = replace(gate, released_at=around.now, wakes_at=around.now)
            await self._store.commit(Commit(gates=(released,), entries=(_released(gate, around.now),)))
            await self._start_through(waiting)

    async def _start_through(self, waiting: list[Event]) -> None:
        scopes = dict.fromkeys(event.scope_id for event in waiting)
        await _side_by_side(self._desk.decide(scope_id, turn) for scope_id in scopes)

    async def _let_sleep(self, gates: Sequence[Gate]) -> None:
        """All of them, or, where one was woken again meanwhile and is still due, half and half."""
        if not gates:
            return
        try:
            await self._store.commit(Commit(gates=tuple(gates)))
        except Conflict:
            half = len(gates) // 2
            if half:
                await self._let_sleep(gates[:half])
                await self._let_sleep(gates[half:])

    def _unready_until(self, waiting: list[Event], around: Around) -> float | None:
        """_FREE when every event behind a gate could start; else when time alone may change that, if it may."""
        instants: list[float | None] = []
        for event in waiting:
            scope = self._desk.scope(event.scope_id)
            if not is_free(scope, event, around):
                wait = waits_for(scope, event, around)
                instants.append(wait.until if wait else None)
        if not instants:
            return _FREE
        return max((at for at in instants if at is not None), default=None)


_FREE = -1.0


def _at_each(gates: Iterable[str], behind: Behind) -> dict[str, list[Event]]:
    waiting: dict[str, list[Event]] = {gate_id: [] for gate_id in gates}
    for event in behind.scheduled:
        if event.gate_id in waiting:
            waiting[event.gate_id].append(event)
    return waiting


def _scopes_at(gates: Iterable[str], behind: Behind) -> dict[str, set[str]]:
    return {gate_id: {event.scope_id for event in events} for gate_id, events in _at_each(gates, behind).items()}


def apart(scopes: Mapping[str, Set[str]]) -> list[list[str]]:
    """Gates in rounds, such that those of one round have no scope in common: what one of them starts there decides

    whether another may. Of two that have, the one that comes first has its turn first.
    """
    rounds: list[list[str]] = []
    busy_until: dict[str, int] = {}  # scope → the first round that it is free in
    for gate_id, its in scopes.items():
        number = max((busy_until.get(scope_id, 0) for scope_id in its), default=0)
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(gate_id)
        busy_until.update(dict.fromkeys(its, number + 1))
    return rounds


def _released(gate: Gate, now: float) -> Entry:
    text = f"everything on host {gate.host} is ready: its events start together"
    return Entry(at=now, what=What.RELEASED, who=PLATFORM, text=text, request_id=gate.request_id, host=gate.host)


def _recording(items: list[tuple[Act, Outcome]]) -> Callable[[Scope, Around], Scope]:
    def decision(scope: Scope, around: Around) -> Scope:
        for act, outcome in items:
            scope = record(scope, act, outcome)
        return turn(scope, around)

    return decision


def _applying(planned: list[Planned]) -> Callable[[Scope, Around], Scope]:
    def decision(scope: Scope, around: Around) -> Scope:
        for item in planned:
            try:
                scope = apply(scope, item, around)
            except Refused as error:
                scope = scope.saying(_skipped(item, str(error), around.now))
        return scope

    return decision


def _applied(planned: Sequence[Planned]) -> Commit:
    """Their gates look again: what is refused leaves the others behind a gate to themselves."""
    gates = sorted({item.gate_id for item in planned if item.gate_id})
    return Commit(unplanned=tuple(item.event_id for item in planned), wake_gates=tuple(gates))


def _skipped(planned: Planned, why: str, now: float) -> Entry:
    return Entry(at=now, what=What.SKIPPED, who=PLATFORM, text=why, request_id=planned.request_id, vm=planned.vms[0])


async def _side_by_side(decisions: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run decisions about different scopes together; the first failure is raised once all have ended."""
    waiting = list(decisions)
    failure: BaseException | None = None
    for at in range(0, len(waiting), _AT_ONCE):
        results = await asyncio.gather(*waiting[at : at + _AT_ONCE], return_exceptions=True)
        failure = failure or next((r for r in results if isinstance(r, BaseException)), None)
    if failure is not None:
        raise failure
