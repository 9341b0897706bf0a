"""Transactions on one scope: load, decide, commit on the version that was read, retry on conflict."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from forewarn.clock import Clock
from forewarn.control.fault_registry import FaultRegistry
from forewarn.control.placement_index import PlacementIndex
from forewarn.core.commit import Commit, merge_commits, scope_commit
from forewarn.core.decision import DecisionContext, Policy
from forewarn.core.reconcile import with_next_wake
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, NotFound, Remedy
from forewarn.store.interface import AppliedCommit, Store

Decision = Callable[[Scope, DecisionContext], Scope]  # a pure function that returns the changed scope
EMPTY_COMMIT = Commit()  # compared by identity
_MAX_ATTEMPTS = 20
_MAX_CACHED_GATES = 10_000
T = TypeVar("T")


class ScopeTransactions:
    """Runs decisions about scopes against the store. All use cases and the reconciler share one."""

    def __init__(
        self, *, store: Store, clock: Clock, policy: Policy, placement: PlacementIndex, faults: FaultRegistry
    ) -> None:
        self.store = store
        self.clock = clock
        self.policy = policy
        self.placement = placement
        self.faults = faults
        self.resumed_at: float | None = None  # when this process found an earlier one's state; starts the grace period
        # Callers in this process wait for each other per scope; writers in other processes cause Conflicts.
        self._scope_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._gates: dict[str, bool] = {}  # gate id → is released; a bounded cache

    def decision_context(self, *, dry_run: bool = False) -> DecisionContext:
        """Return the context of a decision now; with `dry_run` the decision claims no host and no fault.

        Without it, the caller commits or calls `release_claims` of `placement` and `faults`, as `run` does.
        """
        now = self.clock.now()
        return DecisionContext(
            now=now,
            policy=self.policy,
            resumed_at=self.resumed_at,
            is_gate_released=self._is_gate_released,
            find_destination=self.placement.find_destination if dry_run else self.placement.claim_destination,
            fault_for=partial(self.faults.find_fault if dry_run else self.faults.claim_fault, now),
        )

    def load(self, scope_id: str) -> Scope:
        """Return the committed scope; NotFound if it does not exist."""
        scope = self.store.scope(scope_id)
        if scope is None:
            raise NotFound(f"scope {scope_id!r} does not exist", Remedy.LIST_SCOPES)
        return scope

    async def run(self, scope_id: str, decision: Decision, *, extra_commit: Commit = EMPTY_COMMIT) -> Scope:
        """Decide on the committed scope and commit the result; return the decided scope, durably written.

        It still has the version that was read, and the events that ended by the decision. `extra_commit` is committed
        in the same transaction, even if the scope does not change. On a Conflict the scope is loaded and decided again,
        up to 20 times in all; then Conflict is raised. NotFound without such a scope; errors of the decision pass
        through.
        """
        queue = self._scope_locks.setdefault(scope_id, asyncio.Lock())
        async with queue:
            for _ in range(_MAX_ATTEMPTS):
                scope = self.load(scope_id)
                try:
                    return await self._run_once(scope, decision, extra_commit)
                except Conflict:
                    self.placement.release_claims(scope.vms)
                except BaseException:
                    self.placement.release_claims(scope.vms)
                    raise
                finally:
                    self.faults.release_claims(scope_id)
        raise Conflict(f"scope {scope_id!r} kept changing during {_MAX_ATTEMPTS} attempts to change it: try again")

    async def _run_once(self, scope: Scope, decision: Decision, extra_commit: Commit) -> Scope:
        context = self.decision_context()

        decided = with_next_wake(decision(scope, context), context)

        if decided != scope or extra_commit is not EMPTY_COMMIT:
            change = scope_commit(scope, decided)
            await self.store.commit(change if extra_commit is EMPTY_COMMIT else merge_commits(extra_commit, change))
        return decided

    def on_commit(self, applied: AppliedCommit) -> None:
        """Remember which gates are released. Called for every commit, in order."""
        for gate in applied.commit.gates:
            self._gates[gate.id] = gate.released_at is not None
        while len(self._gates) > _MAX_CACHED_GATES:
            del self._gates[next(iter(self._gates))]

    def _is_gate_released(self, gate_id: str) -> bool:
        known = self._gates.get(gate_id)
        if known is None:
            gate = self.store.gate(gate_id)
            known = self._gates[gate_id] = gate is not None and gate.released_at is not None
        return known


def group_by_scope(items: list[T], scope_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Group items by the scope id that `scope_of` returns; scopes and items keep their order."""
    grouped: dict[str, list[T]] = defaultdict(list)
    for item in items:
        grouped[scope_of(item)].append(item)
    return grouped
