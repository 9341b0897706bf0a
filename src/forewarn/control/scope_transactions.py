"""Transactions on one scope: load, decide, commit on the version that was read, retry on conflict."""

# How a decision becomes a fact.
#
# The invariant. What is committed was decided on exactly what was stored: the scope, the hosts to which it sends VMs,
# the gates and requests that the commit writes. Each carries the version that was read, the store adds one at the
# commit, and a commit that relies on an older version raises Conflict and writes nothing. So of two decisions on the
# same version one wins, and the other one is made again on what the first one left. Locks are not part of that
# argument.
#
# The order within one attempt, and why:
#
# - The scope is loaded after the lock of the scope was taken. The lock only keeps callers of this process from
#   conflicting with each other all the time; it makes conflicts rare, versions make them harmless.
# - The context is read after the scope: time, released gates, failed hosts, faults, hold. It is frozen. A decision is a
#   function of these two values, so it may be repeated, thrown away, or made for a preview.
# - Destinations are chosen before the decision and reserved until the commit has ended, so that concurrent moves spread
#   over hosts. The reservation is in memory and protects nothing; what does is that the commit names the hosts and
#   their versions (`_commit_for`). A host that fails meanwhile makes the commit conflict, and the next attempt chooses
#   another one. A commit that brings a VM to a host does not change the host's version but its count of arrivals, so
#   two moves to one host agree.
# - The next wake-up is computed from the decided scope and is part of the same commit. If the process dies right after,
#   the next one finds the scope due at the right time.
# - `extra_commit` joins the same transaction. Across scopes there is none: a request over several scopes is committed
#   with its planned events, and each scope applies its own later, in one transaction that also deletes the plan. So a
#   planned event is published once, however often a process dies on the way.
# - An unchanged scope is not written. A write wakes the reconciler and the gates of the scope, so a pass would never
#   come to its end.
#
# Attempts end at 20. Conflicts come from commits that write several scopes, such as a change of the fleet, and from
# writers in other processes. Each one means that somebody else made progress; after 20 the caller is told that the
# scope kept changing.
#
# Memory follows commits, never answers. Placement, faults, gates, rollouts and the executor learn what is stored only
# from `on_commit`, which the store calls once for each commit, in their order, before the caller's `await` returns and
# even if the caller was cancelled. A caller must not conclude anything from an error: Unavailable may mean that the
# write is saved later (the store of a cluster stops waiting after some seconds, and the writer goes on). The end of
# `core.release`'s essay tells of code that concluded it all the same.
#
# Two values are known to decisions before they are stored, because a promise is attached to them. A hold is in
# `hold_reason` before its commit, and a pause takes `publication_lock`, which a batch of publications holds: after the
# answer to a hold or a pause nothing more is published. Both can be set too early without harm, because a held event
# only waits.
#
# What a crash leaves. Before the commit: nothing; reservations and locks are gone with the process. After it: the scope
# with its wake-up, history entries, deleted plans and woken gates, all or none. Acts of a started event are in the
# commit, so the next process performs them. Nobody was told anything that the store does not have, because answers
# follow commits.
#
# Gates are cached (`_gates`) as "may its events start". True comes from a release that this process has committed
# itself. For a release that it finds in the store, it asks whether an event behind the gate has started; if none has,
# the release is void (see `core.release`). If nothing starts after a release of our own, `forget_gate` makes that
# question be asked again.
#
# What was tried and taken back:
#
# - Decisions that returned lists of changes: each had to keep what it returned and the scope that it went on with
#   consistent by hand. Now the commit is the difference between two scopes, and a decision cannot forget a write.
# - Decisions that reserved hosts and counted faults while they ran: every caller had to release them after every error.
# - The lock of the reconciler, held by each caller that changed hosts: hosts were plain rows then. With versions, two
#   writers may decide about one host at any time, also in different processes. One lock is left: decisions wait for
#   each other while a fault with a count is set, which only a lab does.

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from forewarn.base.clock import Clock
from forewarn.control.fault_registry import FaultRegistry
from forewarn.control.placement_index import PlacementIndex
from forewarn.core.acts import live_migrations, vms_needing_destination
from forewarn.core.commit import Commit, merge_commits, new_destinations, new_hosts_of_vms, scope_commit
from forewarn.core.decision import DecisionContext, HostSilence, Policy
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.placement import NO_HINTS, DestinationHints
from forewarn.core.planning import may_start_at_once
from forewarn.core.reconcile import reconcile_scope, with_next_wake
from forewarn.core.request import ROLLOUT_CAUSES, PlannedEvent
from forewarn.core.scope import Scope, scope_title_from_id
from forewarn.errors import Conflict, NotFound, Remedy
from forewarn.store.interface import AppliedCommit, Store

Decision = Callable[[Scope, DecisionContext], Scope]  # a pure function that returns the changed scope
EMPTY_COMMIT = Commit()  # compared by identity
_MAX_ATTEMPTS = 20
MAX_CONCURRENT_SCOPES = 256  # scopes decided concurrently, so that the store can commit them together
_MAX_CACHED_GATES = 10_000
T = TypeVar("T")


class ScopeTransactions:
    """Runs decisions about scopes against the store. All use cases and the reconciler share one.

    `run` makes and commits one; decisions about the same scope wait for each other. The owner passes each commit of the
    store to `on_commit` of this object, of `placement` and of `faults`.
    """

    def __init__(
        self, *, store: Store, clock: Clock, policy: Policy, placement: PlacementIndex, faults: FaultRegistry
    ) -> None:
        self.store = store
        self.clock = clock
        self.policy = policy
        self.placement = placement
        self.faults = faults
        self.destination_hints: Callable[[], DestinationHints] = lambda: NO_HINTS  # what the hypervisor knows of hosts
        self.host_silences: Callable[[], Mapping[str, HostSilence]] = dict  # of hosts whose node is or was silent
        self.hold_reason = ""  # why all rollouts are on hold, or will be once it is stored; "": they are not
        self.held_rollouts: Callable[[], frozenset[str]] = frozenset  # request ids; their checks hold their events
        self.publication_lock = asyncio.Lock()  # no rollout publishes while one of them is being paused or aborted
        self.resumed_at: float | None = None  # when this process found an earlier one's state; starts the grace period
        # Callers in this process wait for each other per scope; writers in other processes cause Conflicts.
        self._scope_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._gates: dict[str, bool] = {}  # gate id → may its events start; a bounded cache

    def context_for(self, scope: Scope, planned: Sequence[PlannedEvent] = ()) -> DecisionContext:
        """Return the context of a decision about this scope now, without destinations: no VM could move."""
        gates = [event.gate_id for event in scope.events if event.gate_id]
        # Events that are about to be published may start in the same decision.
        gates += [item.gate_id for item in planned if item.gate_id]
        causes = {event.cause for event in scope.events} | {item.cause for item in planned}
        return DecisionContext(
            now=self.clock.now(),
            policy=self.policy,
            resumed_at=self.resumed_at,
            released_gates=frozenset(filter(self.is_gate_released, gates)),
            failed_hosts=self.placement.failed_hosts(),
            faults=self.faults.event_faults(),
            host_silences=self.host_silences(),
            hold=self.hold_reason,
            # Asked only where it matters: it reads the state of rollouts, and most decisions have none.
            held_rollouts=self.held_rollouts() if causes & ROLLOUT_CAUSES else frozenset(),
        )

    def deciding(self, scope: Scope, planned: Sequence[PlannedEvent] = ()) -> AbstractContextManager[DecisionContext]:
        """Return a context manager with the context of a decision, with destinations for VMs that it may move.

        The destinations are chosen when the `with` block is entered, and reserved until its end; commit within it.
        """
        context = self.context_for(scope, planned)
        starting = [item for item in planned if may_start_at_once(scope, item, context)]
        movers = vms_needing_destination(scope, starting, context.now)
        # Choosing a destination looks at all hosts: 3,000 VMs took seconds when every request did it.
        if not movers:
            return nullcontext(context)
        return self._with_destinations(context, movers, live_migrations(scope, starting, context.now))

    @contextmanager
    def _with_destinations(
        self, context: DecisionContext, movers: Sequence[Vm], live: frozenset[str]
    ) -> Iterator[DecisionContext]:
        with self.placement.reserve_destinations(movers, self.destination_hints(), live=live) as destinations:
            problems = {vm.key: self.placement.destination_problem(vm) for vm in movers if vm.key not in destinations}
            yield replace(context, destinations=destinations, destination_problems=problems)

    def _commit_for(self, old: Scope | None, new: Scope) -> Commit:
        """Return the commit that changes the stored scope `old` (None: not stored) to `new`."""
        # Hosts to which it sends VMs are its `destinations`, so that it conflicts if one of them changes meanwhile.
        change = scope_commit(old, new)
        names = new_destinations(old, change.events) | new_hosts_of_vms(old, change.vms)
        if not names:
            return change
        hosts = tuple(host for host in map(self.placement.host, sorted(names)) if host is not None)
        return replace(change, destinations=hosts)

    def load(self, scope_id: str) -> Scope:
        """Return the committed scope with exactly this id, with its present VMs and live events."""
        scope = self.store.scope(scope_id)
        if scope is None:
            raise NotFound(f"scope {scope_id!r} does not exist", Remedy.LIST_SCOPES)
        return scope

    async def run(
        self,
        scope_id: str,
        decision: Decision,
        *,
        planned: Sequence[PlannedEvent] = (),
        extra_commit: Commit = EMPTY_COMMIT,
    ) -> Scope:
        """Decide on the committed scope and commit the result; return the decided scope, durably written.

        The scope still has the version that was read, and the events that the decision ended. `extra_commit` is
        committed in the same transaction, even if the scope does not change; without it an unchanged scope is not
        written. On a Conflict the scope is loaded and decided again, up to 20 times in all, so `decision` may be called
        several times.
        """

        async def attempt() -> Scope:
            scope = self.load(scope_id)
            with self.deciding(scope, planned) as context:
                decided = with_next_wake(decision(scope, context), context)
                # An unchanged scope is not written, or each pass would wake the next.
                if decided != scope or extra_commit is not EMPTY_COMMIT:
                    change = self._commit_for(scope, decided)
                    merged = change if extra_commit is EMPTY_COMMIT else merge_commits(extra_commit, change)
                    await self.store.commit(merged)
            return decided

        queue = self._scope_locks.setdefault(scope_id, asyncio.Lock())
        async with queue, self.faults.decision_lock():
            return await retry_on_conflict(attempt, scope_title_from_id(scope_id))

    async def reconcile_scopes_of(self, held: list[Event]) -> None:
        """Decide the scopes and gates of these events again, because what has held the events is over."""
        for scope_id, events in group_by_scope(held, lambda event: event.scope_id).items():
            gates = Commit(wake_gates=tuple(sorted({event.gate_id for event in events if event.gate_id})))
            await self.run(scope_id, reconcile_scope, extra_commit=gates)

    def on_commit(self, applied: AppliedCommit) -> None:
        """Remember which gates a commit released, for later contexts. Called for every commit, in order."""
        for gate in applied.commit.gates:
            # By our own commit: it holds until `forget_gate` says that nothing started.
            self._gates[gate.id] = gate.released_at is not None
        while len(self._gates) > _MAX_CACHED_GATES:
            # The one that was asked about first; it is read again when it is needed.
            del self._gates[next(iter(self._gates))]

    def is_gate_released(self, gate_id: str) -> bool:
        """Return whether the events behind a gate may start; False if it does not exist.

        True for a gate that this process has just released. One that was released earlier counts only if an event
        behind it has started: otherwise the release is void, because its events may not be ready any more.
        """
        known = self._gates.get(gate_id)
        if known is None:
            gate = self.store.gate(gate_id)
            known = gate is not None and gate.released_at is not None and self._has_any_started(gate_id)
            self._gates[gate_id] = known
        return known

    def forget_gate(self, gate_id: str) -> None:
        """Drop the cached answer of `is_gate_released` for a gate, so that the store is read again."""
        self._gates.pop(gate_id, None)

    def _has_any_started(self, gate_id: str) -> bool:
        return any(event.started_at is not None for event in self.store.events(gate_id=gate_id))


async def retry_on_conflict(attempt: Callable[[], Awaitable[T]], subject: str) -> T:
    """Call `attempt`, which reads, decides and commits, again while it raises Conflict; return its result."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return await attempt()
        except Conflict:
            continue  # something that the decision relied on has changed: read it again
    raise Conflict(f"{subject} kept changing during {_MAX_ATTEMPTS} attempts to change it: try again")


async def run_concurrently(decisions: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run decisions about different scopes concurrently; the first error is raised after all have ended."""
    waiting = list(decisions)
    failure: BaseException | None = None
    # In parts: the store commits those of one part together, and memory stays bounded.
    for at in range(0, len(waiting), MAX_CONCURRENT_SCOPES):
        results = await asyncio.gather(*waiting[at : at + MAX_CONCURRENT_SCOPES], return_exceptions=True)
        failure = failure or next((r for r in results if isinstance(r, BaseException)), None)
    if failure is not None:
        raise failure


def group_by_scope(items: list[T], scope_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Return scope id → its items, in the order given; `scope_of` returns the scope id of an item."""
    grouped: dict[str, list[T]] = defaultdict(list)
    for item in items:
        grouped[scope_of(item)].append(item)
    return grouped
