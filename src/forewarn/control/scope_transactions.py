"""One scope on the desk at a time: load it, let a decision be made, commit it on the version it was made on."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from forewarn.clock import Clock
from forewarn.control.faultbook import FaultBook
from forewarn.control.placement import Placement
from forewarn.core.agenda import stamped
from forewarn.core.change import Commit, difference, together
from forewarn.core.policy import Around, Policy
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, NotFound
from forewarn.store.seam import Committed, Store

Decision = Callable[[Scope, Around], Scope]
NOTHING_ELSE = Commit()
_TRIES = 20
_GATES_KNOWN = 10_000
T = TypeVar("T")


class Desk:
    def __init__(self, *, store: Store, clock: Clock, policy: Policy, placement: Placement, faults: FaultBook) -> None:
        self.store = store
        self.clock = clock
        self.policy = policy
        self.placement = placement
        self.faults = faults
        self.resumed_at: float | None = None
        # Callers in this process queue per scope instead of colliding; other processes still meet as Conflicts.
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._gates: dict[str, bool] = {}  # whether each lets its events start, of those that were asked for lately

    def around(self, *, rehearsal: bool = False) -> Around:
        """The circumstances of a decision; of a rehearsed one nothing stays behind."""
        now = self.clock.now()
        return Around(
            now=now,
            policy=self.policy,
            resumed_at=self.resumed_at,
            is_released=self._is_released,
            destination=self.placement.destination if rehearsal else self.placement.claim,
            befalls=partial(self.faults.peek if rehearsal else self.faults.claim, now),
        )

    def scope(self, scope_id: str) -> Scope:
        scope = self.store.scope(scope_id)
        if scope is None:
            raise NotFound(f"scope {scope_id!r} does not exist: `forewarn fleet show` lists them")
        return scope

    async def decide(self, scope_id: str, decision: Decision, *, also: Commit = NOTHING_ELSE) -> Scope:
        """The scope as decided and durably written. `also` is committed with it, whatever the decision."""
        queue = self._queues.setdefault(scope_id, asyncio.Lock())
        async with queue:
            for _ in range(_TRIES):
                scope = self.scope(scope_id)
                try:
                    return await self._decide_once(scope, decision, also)
                except Conflict:
                    self.placement.give_back(scope.vms)
                except BaseException:
                    self.placement.give_back(scope.vms)
                    raise
                finally:
                    self.faults.release(scope_id)
        raise Conflict(f"scope {scope_id!r} changed {_TRIES} times while it was decided upon: ask again")

    async def _decide_once(self, scope: Scope, decision: Decision, also: Commit) -> Scope:
        around = self.around()

        decided = stamped(decision(scope, around), around)

        if decided != scope or also is not NOTHING_ELSE:
            change = difference(scope, decided)
            await self.store.commit(change if also is NOTHING_ELSE else together(also, change))
        return decided

    def hear(self, committed: Committed) -> None:
        for gate in committed.commit.gates:
            self._gates[gate.id] = gate.released_at is not None
        while len(self._gates) > _GATES_KNOWN:
            del self._gates[next(iter(self._gates))]

    def _is_released(self, gate_id: str) -> bool:
        known = self._gates.get(gate_id)
        if known is None:
            gate = self.store.gate(gate_id)
            known = self._gates[gate_id] = gate is not None and gate.released_at is not None
        return known


def by_scope(items: list[T], scope_of: Callable[[T], str]) -> dict[str, list[T]]:
    grouped: dict[str, list[T]] = defaultdict(list)
    for item in items:
        grouped[scope_of(item)].append(item)
    return grouped
