"""A hypothesis state machine: any requests to a control plane, with crashes between any two writes.

The machine knows which requests were accepted. `commit_checks` checks every commit, `resting_state_checks` a world at
rest. Calls come one after the other or together, with or without a reconcile pass between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from forewarn.control.fleet import FleetChange
from forewarn.core.cause import Verb
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Host, HostHealth, PowerState, Vm
from forewarn.core.history import EntryKind, LastPoll
from forewarn.core.request import RequestedOperation, Rollout
from forewarn.errors import Conflict, ForewarnError, Rejected, Unavailable
from forewarn.machines.simulated import (
    BehaviourRule,
    DurationRule,
    FailRule,
    SimulatedBehaviour,
    SlowRule,
    UnreachableRule,
)
from forewarn.protocol.versions import NEWEST_VERSION
from tests.properties.commit_checks import CommitChecker
from tests.properties.crashing_stores import CrashingMemoryStore, CrashingStore, CrashingWorld, FailurePlan, ProcessDied
from tests.properties.random_fleets import SmallFleet, small_fleets
from tests.properties.resting_state_checks import LIVE, assert_all_over, assert_at_rest
from tests.support.fake_prober import FakeProber
from tests.support.world import a_host

T = TypeVar("T")
Call = Coroutine[Any, Any, object]
DAY = 24 * 3600.0

_NOT_ON_VMS = {RequestedOperation(name) for name in ("rollout", "degrade", "fail", "replay", "perform-maintenance")}
ASKS = st.sampled_from(sorted(set(RequestedOperation) - _NOT_ON_VMS))
PICKS = st.integers(0, 19)
NOTICES = st.sampled_from([(0.0, False), (0.0, True), (5.0, True), (60.0, False), (3600.0, False)])
DURATIONS = st.sampled_from([0.5, 1.0, 9.0, 31.0, 61.0, 299.0, 601.0, 900.0, 901.0, 3600.0, 25 * 3600.0])
RULES: st.SearchStrategy[BehaviourRule] = st.one_of(
    st.builds(FailRule, vm=st.sampled_from(["*", "a_*", "*_0"]), verb=st.sampled_from([None, *Verb])),
    st.builds(UnreachableRule, vm=st.sampled_from(["*", "a_*", "*_0"]), times=st.integers(1, 6)),
    st.builds(SlowRule, factor=st.sampled_from([0.0, 3.0, 50.0])),
    st.builds(DurationRule, seconds=st.sampled_from([0.0, 1.0, 400.0])),
)


def chosen(things: Sequence[T], pick: int) -> T:
    return things[pick % len(things)]


class ControlMachine(RuleBasedStateMachine):
    enablement: ClassVar[EnablementMode] = EnablementMode.ALWAYS

    def new_store(self) -> CrashingStore:
        return CrashingMemoryStore()

    @initialize(
        fleet=small_fleets(), settle_s=st.sampled_from([0.0, 0.0, 45.0]), max_operations=st.sampled_from([1, 2, 100])
    )
    def begin(self, fleet: SmallFleet, settle_s: float, max_operations: int) -> None:
        policy = Policy(enablement=self.enablement, max_user_operations=max_operations, settle_s=settle_s)
        self.prober = FakeProber()
        self.behaviour = SimulatedBehaviour()
        self.world = CrashingWorld(self.new_store(), policy=policy, prober=self.prober)
        self.checker = CommitChecker(policy)
        self.checker.current_hold = lambda: self.world.control.rollouts.hold
        self.checker.budgets.current = lambda: self.world.control.budgets.budgets()
        self.checker.follow(self.world.store, None)
        self.accepted: dict[str, tuple[str, ...]] = {}  # request → the VMs it is about
        self.rollouts: list[str] = []
        self.approved: set[str] = set()
        self.down_s = 0.0  # how long the next process that dies stays down
        self.attempt(self._change(FleetChange(hosts=fleet.hosts, vms=fleet.vms)))

    # --- running calls ---

    def attempt(self, *calls: Call) -> bool:
        """Run these calls together; return whether all of them succeeded.

        A refused call must change nothing. If the process dies, a new one takes over.
        """
        self.failures.passes = 0
        seq = self.world.store.last_seq()

        async def together() -> list[object]:
            return await asyncio.gather(*calls, return_exceptions=True)

        results = self.world.do(together())

        if any(isinstance(result, ProcessDied) for result in results):
            self._restart_process()
            return False
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Rejected | Unavailable | Conflict):
                raise result
            assert not isinstance(result, ForewarnError) or str(result)
        if len(results) == 1 and isinstance(results[0], Rejected):
            assert self.world.store.last_seq() == seq, f"refused, but something was written: {results[0]}"
        return not any(isinstance(result, BaseException) for result in results)

    def _restart_process(self) -> None:
        if self.down_s:
            self.world.clock.apply_setting(self.world.clock.setting_after_jump(self.world.now + self.down_s))
        self.world.restart_process()
        self.checker.follow(self.world.store, self.world.now)

    @property
    def failures(self) -> FailurePlan:
        return self.world.failures

    # --- picking things ---

    def vms(self) -> list[Vm]:
        return self.world.store.vms()

    def vm(self, pick: int) -> Vm:
        return chosen(self.world.store.vms(removed=True), pick)

    def host(self, pick: int) -> Host:
        return chosen(self.world.store.hosts(), pick)

    def event(self, pick: int) -> Event:
        return chosen(self.world.store.events()[-20:], pick)

    def _unfinished_acts(self) -> set[str]:
        return {act.id for event in self.live() for act in event.unfinished_acts}

    def live(self) -> list[Event]:
        return self.world.store.events(statuses=LIVE)

    # --- calls ---

    async def _ask(self, ask: RequestedOperation, vms: Sequence[Vm], notice: tuple[float, bool]) -> None:
        requests = self.world.control.requests
        receipt = await requests.request_for_vms(ask, vms, who="ann", notice_s=notice[0], short_notice=notice[1])
        self.accepted[receipt.request.id] = tuple(vm.name for vm in vms)

    async def _change(self, change: FleetChange) -> None:
        await self.world.control.fleet.apply_change(change, who="test")

    async def _break_host(self, ask: RequestedOperation, host: Host, notice: tuple[float, bool]) -> None:
        requests = self.world.control.requests
        started = self.world.store.events(statuses=[EventState.STARTED])
        leaving = {act.vm for event in started for act in event.unfinished_acts if act.to_host}  # they need no event
        names = tuple(vm.name for vm in self.world.store.vms(host=host.name) if vm.key not in leaving)
        if ask is RequestedOperation.FAIL:
            receipt = await requests.fail_host(host.name, who="op")
        else:
            receipt = await requests.degrade_host(host.name, who="op", notice_s=notice[0], short_notice=notice[1])
        self.accepted[receipt.request.id] = names

    async def _roll_out(self, rollout: Rollout, notice: tuple[float, bool]) -> None:
        start = self.world.control.rollout_requests.start
        request = await start(rollout, who="op", notice_s=notice[0], short_notice=notice[1])
        self.accepted[request.id] = ()
        self.rollouts.append(request.id)

    async def _approve(self, vm: Vm, event_ids: tuple[str, ...]) -> None:
        unknown = await self.world.control.guests.approve(vm.key, event_ids)
        if unknown is None:
            self.approved.update(event_ids)
        else:
            event = self.world.store.event(unknown)
            assert event is None or event.scope_id != vm.scope_id or not event.listed

    async def _poll(self, vm: Vm) -> None:
        """Do what the metadata server does for a poll: enable the scope, and record the poll."""
        scope = self.world.store.scope(vm.scope_id)
        if scope is not None and not scope.is_enabled:
            await self.world.control.guests.enable_scope_of(vm.key)
        last_poll = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=self.world.now, version=NEWEST_VERSION)
        await self.world.store.record_observations([last_poll], [])

    # --- rules ---

    @rule(ask=ASKS, picks=st.lists(PICKS, min_size=1, max_size=3), notice=NOTICES)
    def ask(self, ask: RequestedOperation, picks: list[int], notice: tuple[float, bool]) -> None:
        vms = [vm for vm in map(self.vm, picks) if vm.removed_at is None]
        self.attempt(self._ask(ask, vms, notice))

    @rule(ask=st.sampled_from([RequestedOperation.DEGRADE, RequestedOperation.FAIL]), pick=PICKS, notice=NOTICES)
    def break_host(self, ask: RequestedOperation, pick: int, notice: tuple[float, bool]) -> None:
        self.attempt(self._break_host(ask, self.host(pick), notice))

    @rule(pick=PICKS)
    def repair(self, pick: int) -> None:
        self.attempt(self.world.control.requests.repair_host(self.host(pick).name, who="op"))

    @rule()
    def restart_at_rest(self) -> None:
        self.failures.dies_in = self.failures.fails_in = None
        self.settle()
        if self.world.control.executor.has_due_acts:
            return
        before, unfinished = {event.id for event in self.world.store.events()}, self._unfinished_acts()
        # The new process tries unfinished acts at once; one that ended would let rollouts go on.
        self.world.hypervisor.set_behaviour(SimulatedBehaviour(rules=(UnreachableRule(times=10_000),)))
        self._restart_process()
        self.settle()
        self.world.hypervisor.set_behaviour(self.behaviour)
        assert self._unfinished_acts() == unfinished
        assert {event.id for event in self.world.store.events()} == before, "the old process left nothing to publish"

    @precondition(lambda self: self.vms() and self.world.store.events())
    @rule(pick=PICKS, picks=st.lists(PICKS, max_size=3), unknown=st.sampled_from([False, False, False, True]))
    def approve_anything(self, pick: int, picks: list[int], unknown: bool) -> None:
        event_ids = tuple(self.event(pick).id for pick in picks) + (("NO-SUCH-EVENT",) if unknown else ())
        seq, approved = self.world.store.last_seq(), set(self.approved)
        self.attempt(self._approve(chosen(self.vms(), pick), event_ids))
        if self.approved == approved and "NO-SUCH-EVENT" in event_ids:
            assert self.world.store.last_seq() == seq, "§5.2 nothing of the request takes effect"

    @precondition(lambda self: self.live())
    @rule(pick=PICKS, everything=st.booleans(), then_settle=st.booleans())
    def approve_what_is_pending(self, pick: int, everything: bool, then_settle: bool) -> None:
        event = chosen(self.live(), pick)
        scope = self.world.store.scope(event.scope_id)
        if scope is not None and scope.present_vms and event.listed:
            wanted = [e.id for e in scope.live_events() if e.listed and (everything or e.id == event.id)]
            self.attempt(self._approve(chosen(scope.present_vms, pick), tuple(wanted)))
        if then_settle:
            self.settle()

    @precondition(lambda self: self.world.store.events())
    @rule(pick=PICKS)
    def approve_from_outside(self, pick: int) -> None:
        self.attempt(self.world.control.requests.approve(self.event(pick).id, who="op"))

    @precondition(lambda self: self.vms())
    @rule(pick=PICKS)
    def perform_maintenance(self, pick: int) -> None:
        self.attempt(self.world.control.requests.perform_maintenance([chosen(self.vms(), pick)], who="ann"))

    @precondition(lambda self: self.world.store.events())
    @rule(pick=PICKS, twice=st.booleans())
    def withdraw(self, pick: int, twice: bool) -> None:
        event = chosen(self.live() or self.world.store.events(), pick)
        calls = [self.world.control.requests.withdraw(event.id, who="op") for _ in range(1 + twice)]
        self.failures.yields = 1
        self.attempt(*calls)
        self.failures.yields = 0

    @precondition(lambda self: self.vms())
    @rule(pick=PICKS)
    def poll(self, pick: int) -> None:
        self.attempt(self._poll(chosen(self.vms(), pick)))

    @rule(rules=st.lists(RULES, max_size=2))
    def change_behaviour(self, rules: list[BehaviourRule]) -> None:
        self.behaviour = SimulatedBehaviour(rules=tuple(rules))
        self.world.hypervisor.set_behaviour(self.behaviour)

    @rule(pick=PICKS, number=st.integers(0, 6), domain=st.integers(0, 3), at=PICKS)
    def add_vm(self, pick: int, number: int, domain: int, at: int) -> None:
        like = self.vm(pick)
        healthy = [host for host in self.world.store.hosts() if host.health is HostHealth.HEALTHY]
        name = f"{like.name.partition('_')[0]}_{number}"
        if not healthy or any(vm.name == name for vm in self.vms()):
            return
        facts = {"vm_id": "", "removed_at": None, "power": PowerState.RUNNING, "host": chosen(healthy, at).name}
        self.attempt(self._change(FleetChange(vms=(replace(like, name=name, update_domain=domain, **facts),))))

    @precondition(lambda self: self.vms())
    @rule(pick=PICKS)
    def remove_vm(self, pick: int) -> None:
        self.attempt(self._change(FleetChange(removed=(chosen(self.vms(), pick),))))

    @rule(number=st.integers(1, 6))
    def add_host(self, number: int) -> None:
        if all(host.name != f"h{number}" for host in self.world.store.hosts()):
            self.attempt(self._change(FleetChange(hosts=(a_host(f"h{number}"),))))

    @precondition(lambda self: len(self.world.store.hosts()) > 1)
    @rule(pick=PICKS)
    def remove_host(self, pick: int) -> None:
        self.attempt(self._change(FleetChange(removed_hosts=(self.host(pick).name,))))

    @precondition(lambda self: self.vms())
    @rule(
        asks=st.lists(st.tuples(ASKS, PICKS, PICKS, NOTICES), min_size=1, max_size=4),
        yields=st.integers(1, 3),
        with_reconciler=st.booleans(),
    )
    def ask_together(
        self, asks: list[tuple[RequestedOperation, int, int, tuple[float, bool]]], yields: int, with_reconciler: bool
    ) -> None:
        """Several callers and the reconciler run concurrently, on a store with slow writes."""
        vms = self.vms()
        calls: list[Call] = [
            self._ask(ask, [vms[n] for n in {one % len(vms), other % len(vms)}], notice)
            for ask, one, other, notice in asks
        ]
        if with_reconciler:
            calls.insert(len(calls) // 2, self.world.control.reconciler.run_until_settled())
        self.failures.yields = yields
        self.attempt(*calls)
        self.failures.yields = 0

    @rule()
    def settle(self) -> None:
        if self.attempt(self.world.control.reconciler.run_until_settled()):
            assert_at_rest(self.world)

    @rule(by_s=DURATIONS)
    def advance(self, by_s: float) -> None:
        if self.attempt(self.world.control.lab_clock.advance(by_s)):
            assert_at_rest(self.world)

    @rule(by_s=st.sampled_from([61.0, 900.0, 25 * 3600.0]))
    def let_time_pass(self, by_s: float) -> None:
        """Skip time without stopping at due times, and without VMs that count as polling."""
        if self.attempt(self.world.control.reconciler.run_until_settled()):
            self.world.clock.apply_setting(self.world.clock.setting_after_jump(self.world.now + by_s))
            self.settle()

    @precondition(lambda self: self.world.store.events(statuses=[EventState.SCHEDULED]))
    @rule(
        pick=PICKS, writes=st.integers(0, 6), late=st.booleans(), down_s=st.sampled_from([0.0, 0.0, 1800.0, 36_000.0])
    )
    def die_when_due(self, pick: int, writes: int, late: bool, down_s: float) -> None:
        """The process dies in the reconcile pass in which an event is due, and stays down for a while."""
        event = chosen(self.world.store.events(statuses=[EventState.SCHEDULED]), pick)
        if (left_s := event.not_before - 0.5 - self.world.now) > 0:
            self.advance(left_s)
        self.die_soon(writes, late)
        self.down_s = down_s
        self.advance(0.5)
        self.failures.dies_in, self.down_s = None, 0.0
        self.settle()

    @precondition(lambda self: self._gated())
    @rule(pick=PICKS)
    def approve_all_but_one_behind_a_gate(self, pick: int) -> None:
        """Approve all but one of the events behind a gate, and withdraw that one."""
        last, *others = [e for e in self._gated() if e.gate_id == chosen(self._gated(), pick).gate_id]
        requests = self.world.control.requests
        for event in others:
            self.attempt(requests.approve(event.id, who="op"))
        self.settle()
        self.attempt(requests.withdraw(last.id, who="op"))
        self.settle()

    def _gated(self) -> list[Event]:
        return [event for event in self.world.store.events(statuses=[EventState.SCHEDULED]) if event.gate_id]

    @precondition(lambda self: self.vms())
    @rule(ask=st.sampled_from([RequestedOperation.DELETE, RequestedOperation.SCALE_IN]), pick=PICKS, first=PICKS)
    def shrink_a_scope(self, ask: RequestedOperation, pick: int, first: int) -> None:
        """Delete two VMs of a scope, and approve one of the two events."""
        scope_id = chosen(self.vms(), pick).scope_id
        self.attempt(self._ask(ask, self.world.store.vms(scope_id=scope_id)[:2], (0.0, False)))
        if pending := self.world.store.events(scope_id=scope_id, statuses=[EventState.SCHEDULED]):
            self.attempt(self.world.control.requests.approve(chosen(pending, first).id, who="op"))
        self.settle()

    @rule(writes=st.integers(0, 8), late=st.booleans())
    def die_soon(self, writes: int, late: bool) -> None:
        self.failures.dies_in, self.failures.dies_late = writes, late

    @rule(writes=st.integers(0, 8))
    def fail_soon(self, writes: int) -> None:
        self.failures.fails_in = writes

    @rule()
    def restart(self) -> None:
        self._restart_process()

    # --- invariants ---

    @invariant()
    def every_commit_was_correct(self) -> None:
        assert not self.checker.violations, "\n".join(self.checker.violations)

    @invariant()
    def nothing_accepted_is_lost(self) -> None:
        for request_id, names in self.accepted.items():
            assert self.world.store.request(request_id) is not None
            assert set(names) <= self._accounted_for(request_id)
        for event_id in self.approved:
            event = self.world.store.event(event_id)
            assert event is not None
            assert event.approved_at is not None or event.status is not EventState.SCHEDULED

    def _accounted_for(self, request_id: str) -> set[str]:
        """Return the VMs that have an event, a planned event, or a history entry that says why not."""
        store = self.world.store
        events = store.events(request_id=request_id)
        listed = {name for event in events for name in event.vms}
        listed |= {name for planned in store.planned(request_id=request_id) for name in planned.vms}
        skipped = {e.vm for e in store.history(request_id=request_id) if e.kind is EntryKind.SKIPPED}
        return listed | skipped

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._run_to_the_end()
        finally:
            self.world.close()

    def _run_to_the_end(self) -> None:
        """With a working hypervisor and no more requests, all events end."""
        self.failures.dies_in = self.failures.fails_in = None
        self.world.hypervisor.set_behaviour(SimulatedBehaviour())
        self.failures.passes = 0
        self.world.settle()
        if self.world.control.rollouts.hold is not None:
            self.world.do(self.world.control.rollouts.holds.lift_hold(who="op"))
            self.world.settle()
        for budget in self.world.control.budgets.budgets():
            self.world.do(self.world.control.budgets.remove_budget(budget.name, who="op"))
        self.world.settle()
        self.every_commit_was_correct()
        assert_at_rest(self.world)
        self.let_time_pass(61.0)
        self.world.advance(30 * DAY)
        self.every_commit_was_correct()
        self.nothing_accepted_is_lost()
        assert_at_rest(self.world)
        assert_all_over(self.world)
