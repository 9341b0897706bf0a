"""Invariants hold in random histories with requests, failures and crashes (spec §4.2, §6, §7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import closing

from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.control.fleet import FleetChange
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Priority, Vm
from forewarn.core.projection import document_for
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.errors import Rejected
from forewarn.machines.simulated import BehaviourRule, FailRule, SimulatedBehaviour, SlowRule, UnreachableRule
from forewarn.protocol.document import Document
from tests.support.world import World, a_host, a_vm

HOSTS = ("h1", "h2", "h3")
DAY = 24 * 3600.0
FOR_VMS = sorted(
    set(RequestedOperation)
    - {
        RequestedOperation.ROLLOUT,
        RequestedOperation.DEGRADE,
        RequestedOperation.FAIL,
        RequestedOperation.REPLAY,
        RequestedOperation.PERFORM_MAINTENANCE,
    }
)
ORDER = list(EventState)


def fleet() -> list[Vm]:
    web = [a_vm(f"web-{n}", host=f"h{n + 1}", availability_set="web", update_domain=n) for n in range(3)]
    pool = [
        a_vm(f"set_{n}", host=f"h{n + 1}", scale_set="set", placement_group="pg", update_domain=1 - n,
             terminate_notice_min=5)
        for n in range(2)
    ]  # fmt: skip
    return [*web, *pool, a_vm("spot", host="h1", priority=Priority.SPOT), a_vm("db", host="h1")]


Step = tuple[str, int, int]
OFTEN = ("ask", "approve", "advance")
ACTIONS = (
    *OFTEN,
    *OFTEN,
    "advance",
    "withdraw",
    "rollout",
    "steer",
    "degrade",
    "fail",
    "repair",
    "remove",
    "hypervisor",
    "crash",
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, 50),
        st.integers(0, 50),
    ),
    max_size=20,
)


class RandomHistory:
    """Tries random steps in a world, ignores rejected ones, and checks all rules after each step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._documents: dict[tuple[str, int, int], Document] = {}
        self._statuses: dict[str, EventState] = {}

    def take(self, step: Step) -> None:
        name, first, second = step
        action: Callable[[int, int], None] = getattr(self, f"do_{name}")
        try:
            action(first, second)
        except Rejected:
            pass
        self.world.settle()
        self.check()

    def do_ask(self, first: int, second: int) -> None:
        vms = self.world.store.vms()
        if vms:
            self.world.ask(FOR_VMS[first % len(FOR_VMS)], vms[second % len(vms)].name)

    def do_approve(self, first: int, _second: int) -> None:
        live = self.world.events(EventState.SCHEDULED)
        if live:
            self.world.do(self.world.control.requests.approve(live[first % len(live)].id, who="ann"))

    def do_withdraw(self, first: int, _second: int) -> None:
        live = self.world.events(EventState.SCHEDULED, EventState.STARTED)
        if live:
            self.world.do(self.world.control.requests.withdraw(live[first % len(live)].id, who="ann"))

    def do_rollout(self, first: int, second: int) -> None:
        impact = list(RolloutImpact)[first % 3]
        scope_id, hosts = ("set:sub/lab/web", ()) if second % 4 == 3 else ("", HOSTS[: second % 4 + 1])
        rollout = Rollout(impact=impact, max_failures=first % 3, scope_id=scope_id, hosts=hosts)
        self.world.do(self.world.control.rollout_requests.start(rollout, who="ops"))

    def do_steer(self, first: int, second: int) -> None:
        rollouts = self.world.store.requests(open_only=True)
        if rollouts:
            progress = [RolloutState.PAUSED, RolloutState.RUNNING, RolloutState.ABORTED][second % 3]
            request = rollouts[first % len(rollouts)]
            self.world.do(self.world.control.rollout_requests.change_state(request.id, progress, who="ops"))

    def do_degrade(self, first: int, _second: int) -> None:
        self.world.do(self.world.control.requests.degrade_host(HOSTS[first % 3], who="ops", notice_s=2 * DAY))

    def do_fail(self, first: int, _second: int) -> None:
        self.world.do(self.world.control.requests.fail_host(HOSTS[first % 3], who="ops"))

    def do_repair(self, first: int, _second: int) -> None:
        self.world.do(self.world.control.requests.repair_host(HOSTS[first % 3], who="ops"))

    def do_remove(self, first: int, second: int) -> None:
        vms = self.world.store.vms()
        if vms and second % 3 == 0:
            gone = (vms[first % len(vms)],)
            self.world.do(self.world.control.fleet.apply_change(FleetChange(removed=gone), who="ops"))

    def do_advance(self, first: int, second: int) -> None:
        self.world.advance([1, 7, 30, 300, 900][second % 5] * (first % 3 + 1))

    def do_hypervisor(self, first: int, second: int) -> None:
        """Change the behaviour of the hypervisor for some VMs."""
        pattern = ["*", "web-*", "*_0", "none"][first % 4]
        rules: list[BehaviourRule] = [
            FailRule(vm=pattern),
            UnreachableRule(vm=pattern, times=first % 7 + 1),
            SlowRule(vm=pattern),
        ]
        self.world.hypervisor.set_behaviour(SimulatedBehaviour((rules[second % 3],)))

    def do_crash(self, first: int, _second: int) -> None:
        clock = self.world.clock
        clock.apply_setting(clock.setting_after_jump(clock.now() + 20 * first))
        self.world.restart()

    def check(self) -> None:
        for scope_id in self.world.store.scope_ids():
            self._check_scope(scope_id)
        for event in self.world.events():
            self._check_event(event)
        gates: dict[str, set[float]] = defaultdict(set)
        for event in self.world.events():
            if event.gate_id and event.started_at is not None:
                gates[event.gate_id].add(event.started_at)
        assert all(len(start_times) == 1 for start_times in gates.values()), "a shared host did not start together"
        wake = self.world.control.reconciler.next_wake_at()
        assert wake is None or wake > self.world.now, "something is due and was not done"
        assert self.world.ledger.repeated_effects == 0, "an act took effect twice"

    def _check_scope(self, scope_id: str) -> None:
        scope = self.world.store.scope(scope_id)
        assert scope is not None
        document = document_for(scope)
        key = (scope.id, scope.epoch, scope.incarnation)
        assert self._documents.setdefault(key, document) == document, "same number, other content"
        started = {event.update_domain for event in scope.live_events(EventState.STARTED) if event.rules.planned}
        assert len(started) <= 1, "two update domains at once"

    def _check_event(self, event: Event) -> None:
        before = self._statuses.get(event.id, EventState.SCHEDULED)
        assert ORDER.index(event.status) >= ORDER.index(before), "an event went back"
        self._statuses[event.id] = event.status
        if event.started_at is not None and event.published_at < event.started_at:
            assert event.approved_at is not None or event.started_at >= event.not_before, (
                "started before its notice ended"
            )

    def check_everything_ends(self) -> None:
        """Check that everything ends, given enough time."""
        for request in self.world.store.requests(open_only=True):
            if request.rollout is not None and request.rollout.progress is RolloutState.PAUSED:
                self.world.do(
                    self.world.control.rollout_requests.change_state(request.id, RolloutState.RUNNING, who="ops")
                )
        self.world.advance(4 * DAY)
        self.check()
        assert not self.world.events(EventState.SCHEDULED, EventState.STARTED), "an event never ended"
        assert not self.world.store.requests(open_only=True), "a rollout never ended"
        assert not self.world.store.planned(), "a planned event was never published"


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_random_histories_keep_the_rules_and_end(steps: list[Step]) -> None:
    with closing(World(hosts=[a_host(name) for name in HOSTS], vms=fleet())) as world:
        history = RandomHistory(world)
        for step in steps:
            history.take(step)
        history.check_everything_ends()
