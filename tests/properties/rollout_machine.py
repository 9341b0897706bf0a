"""The state machine with everything that operators do with rollouts.

Waves, windows, budgets and holds; health checks whose outcomes are random; and a standing order.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from msgspec.structs import replace

from forewarn.control.fleet import FleetChange
from forewarn.core.budgets import Budget, make_budget
from forewarn.core.event import EventState
from forewarn.core.fleet import Host, HostHealth, PowerState, Vm
from forewarn.core.health import CheckKind, CheckOutcome, HealthCheck
from forewarn.core.request import Rollout, RolloutImpact, RolloutState
from forewarn.core.standing_order import HostVisit, StandingOrder
from forewarn.core.windows import MaintenanceCalendar, make_calendar
from forewarn.store.interface import STANDING_ORDER_NAME
from tests.properties.budget_checks import BUDGETS
from tests.properties.control_machine import DAY, NOTICES, PICKS, ControlMachine, chosen
from tests.properties.random_fleets import waved_rollouts

CALENDARS = st.sampled_from(
    [
        *(None, None),
        make_calendar(["02:00 1h"], [], None),
        make_calendar(["12:20 5m", "02:30 30m Europe/Berlin"], ["2026-01-06"], None),
    ]
)
DEADLINES = st.sampled_from([None, None, 1200.0, 20 * 3600.0])  # from now
OUTCOMES = st.sampled_from([CheckOutcome.GOOD, CheckOutcome.GOOD, *CheckOutcome])
CHECKS = st.builds(
    HealthCheck,
    name=st.just("shop"),
    kind=st.just(CheckKind.HTTP),
    url=st.just("http://127.0.0.1/health"),
    interval_s=st.just(900.0),
    bad_limit=st.integers(1, 2),
    unclear_limit=st.integers(1, 2),
    error_limit=st.integers(1, 2),
)
VISITS_AT_ONCE = 2
VISITOR = "standing order"  # who asks for visits


UNFINISHED = (RolloutState.RUNNING, RolloutState.PAUSED)


class RolloutMachine(ControlMachine):
    def __init__(self) -> None:
        super().__init__()
        self.visited_at: dict[str, float] = {}  # host → when the standing order last visited it
        self.of_removed_hosts: set[str] = set()  # ids of visits whose host was removed, which the order forgets

    @rule(
        impact=st.sampled_from(RolloutImpact),
        picks=st.lists(PICKS, min_size=1, max_size=3),
        upper_case=st.booleans(),
        max_failures=st.integers(0, 2),
        notice=NOTICES,
    )
    def roll_out_over_hosts(
        self, impact: RolloutImpact, picks: list[int], upper_case: bool, max_failures: int, notice: tuple[float, bool]
    ) -> None:
        names = [self.host(pick).name for pick in picks]
        hosts = tuple(name.upper() if upper_case else name for name in names)
        self.attempt(self._roll_out(Rollout(impact=impact, hosts=hosts, max_failures=max_failures), notice))

    @precondition(lambda self: self.vms())
    @rule(impact=st.sampled_from(RolloutImpact), pick=PICKS, max_failures=st.integers(0, 2), notice=NOTICES)
    def roll_out_over_scope(
        self, impact: RolloutImpact, pick: int, max_failures: int, notice: tuple[float, bool]
    ) -> None:
        rollout = Rollout(impact=impact, scope_id=chosen(self.vms(), pick).scope_id, max_failures=max_failures)
        self.attempt(self._roll_out(rollout, notice))

    @rule(
        impact=st.sampled_from(RolloutImpact),
        picks=st.lists(PICKS, min_size=1, max_size=3),
        calendar=CALENDARS,
        deadline=DEADLINES,
        notice=NOTICES,
    )
    def roll_out_in_windows(
        self,
        impact: RolloutImpact,
        picks: list[int],
        calendar: MaintenanceCalendar | None,
        deadline: float | None,
        notice: tuple[float, bool],
    ) -> None:
        if calendar is not None and deadline is not None:
            calendar = replace(calendar, deadline=self.world.now + deadline)
        hosts = tuple(self.host(pick).name for pick in picks)
        self.attempt(self._roll_out(Rollout(impact=impact, hosts=hosts, max_failures=0, calendar=calendar), notice))

    @rule(rollout=waved_rollouts(CALENDARS), notice=NOTICES)
    def roll_out_in_waves(self, rollout: Rollout, notice: tuple[float, bool]) -> None:
        self.attempt(self._roll_out(rollout, notice))

    @rule(rollout=waved_rollouts(CALENDARS), check=CHECKS, notice=NOTICES, coming=st.lists(OUTCOMES, max_size=3))
    def roll_out_with_a_check(
        self, rollout: Rollout, check: HealthCheck, notice: tuple[float, bool], coming: list[CheckOutcome]
    ) -> None:
        self.prober.coming["shop"] = coming
        self.attempt(self._roll_out(replace(rollout, checks=(check,)), notice))

    @rule(outcome=OUTCOMES, coming=st.lists(OUTCOMES, max_size=3))
    def change_health(self, outcome: CheckOutcome, coming: list[CheckOutcome]) -> None:
        self.prober.outcomes["shop"], self.prober.coming["shop"] = outcome, coming

    @rule(impact=st.sampled_from(RolloutImpact), calendar=CALENDARS, then_wait=st.booleans())
    def give_standing_order(self, impact: RolloutImpact, calendar: MaintenanceCalendar | None, then_wait: bool) -> None:
        order = StandingOrder(
            within_s=2 * DAY,
            impact=impact,
            set_by=VISITOR,
            set_at=self.world.now,
            calendar=calendar,
            at_once=VISITS_AT_ONCE,
        )
        self.attempt(self.world.control.standing_order.set_order(order))
        if then_wait:
            self.advance(3600.0)

    @rule()
    def remove_standing_order(self) -> None:
        self.attempt(self.world.control.standing_order.remove_order(who="op"))

    @invariant()
    def visits_are_neither_lost_nor_too_many(self) -> None:
        hosts = {host.name for host in self.world.store.hosts()}
        open_visits = [
            (request.id, request.rollout.hosts[0])
            for request in self.world.store.requests(open_only=True)
            if request.requested_by == VISITOR
            and request.rollout is not None
            and request.rollout.progress in UNFINISHED
        ]
        self.of_removed_hosts |= {request_id for request_id, host in open_visits if host not in hosts}
        under_way = [host for request_id, host in open_visits if request_id not in self.of_removed_hosts]
        assert len(under_way) <= VISITS_AT_ONCE, f"more visits at once than the order allows: {open_visits}"
        assert len(set(under_way)) == len(under_way), f"two visits of one host: {open_visits}"
        raw = self.world.store.load(STANDING_ORDER_NAME)
        order = msgspec.json.decode(raw, type=StandingOrder) if raw is not None else None
        visits = order.visits if order is not None else {}
        for host, at in self.visited_at.items():
            found = visits.get(host, HostVisit()).visited_at
            assert host not in hosts or (found is not None and found >= at), f"{host} was visited: {order}"
        known = {host: visit.visited_at for host, visit in visits.items() if host in hosts}
        self.visited_at = {host: at for host, at in known.items() if at is not None}

    @rule(budget=BUDGETS, remove=st.sampled_from([False, False, False, True]))
    def set_or_remove_budget(self, budget: Budget, remove: bool) -> None:
        budgets = self.world.control.budgets
        self.attempt(budgets.remove_budget(budget.name, who="op") if remove else budgets.set_budget(budget, who="op"))

    @precondition(lambda self: self.vms())
    @rule(pick=PICKS, tags=st.sampled_from([{}, {"canary": "yes"}]), then_settle=st.booleans())
    def change_tags(self, pick: int, tags: dict[str, str], then_settle: bool) -> None:
        """A VM may leave the rollouts over its tag, or their first wave, or come to them."""
        self.attempt(self._change(FleetChange(vms=(replace(chosen(self.vms(), pick), tags=tags),))))
        if then_settle:
            self.settle()

    @precondition(lambda self: self.vms())
    @rule(pick=PICKS, to=PICKS)
    def move_by_hand(self, pick: int, to: int) -> None:
        """Somebody moves a VM to another host without an event, and the service records that."""
        self._move_by_hand(chosen(self.vms(), pick), self.host(to))
        self.settle()

    def _move_by_hand(self, vm: Vm, host: Host) -> None:
        is_busy = any(act.vm == vm.key for event in self.live() for act in event.unfinished_acts)
        if vm.power is PowerState.RUNNING and host.health is HostHealth.HEALTHY and not is_busy:
            moved = replace(vm, host=host.name)
            run = self.world.control.transactions.run
            self.attempt(run(vm.scope_id, lambda scope, _: scope.with_vm(moved)))

    @precondition(lambda self: self.vms())
    @rule(pick=PICKS, to=PICKS, limit=st.integers(1, 2))
    def leave_a_host_with_too_many_vms(self, pick: int, to: int, limit: int) -> None:
        """VMs of a host go together and may exceed a budget, until one of them leaves."""
        host = self.host(pick)
        self.attempt(self.world.control.budgets.set_budget(make_budget("one", max_vms=limit), who="op"))
        self.attempt(self._roll_out(Rollout(impact=RolloutImpact.REBOOT, hosts=(host.name,)), (0.0, False)))
        self.settle()
        if vms := self.world.store.vms(host=host.name):
            self._move_by_hand(chosen(vms, pick), self.host(to))
        self.restart_at_rest()

    @rule(then_wait=st.booleans())
    def hold_or_lift(self, then_wait: bool) -> None:
        rollouts = self.world.control.rollouts
        held = rollouts.hold is not None
        self.attempt(rollouts.holds.lift_hold(who="op") if held else rollouts.holds.set_hold("an incident", who="op"))
        if then_wait:
            self.let_time_pass(1800.0)

    @precondition(lambda self: self.rollouts)
    @rule(pick=PICKS, progress=st.sampled_from([RolloutState.PAUSED, RolloutState.RUNNING, RolloutState.ABORTED]))
    def change_rollout_state(self, pick: int, progress: RolloutState) -> None:
        self.attempt(self.world.control.rollout_requests.change_state(chosen(self.rollouts, pick), progress, who="op"))

    @rule(impact=st.sampled_from(RolloutImpact), at=PICKS, pick=PICKS, writes=st.integers(1, 8), late=st.booleans())
    def die_while_rolling_out(self, impact: RolloutImpact, at: int, pick: int, writes: int, late: bool) -> None:
        self.attempt(self._roll_out(Rollout(impact=impact, hosts=(self.host(at).name,)), (5.0, True)))
        self.settle()
        if self.world.store.events(statuses=[EventState.SCHEDULED]):
            self.die_when_due(pick, writes, late, 0.0)

    def _run_to_the_end(self) -> None:
        """With good checks and no standing order, rollouts that a check paused are resumed and come to their end."""
        self.failures.dies_in = self.failures.fails_in = None
        self.prober.outcomes.clear()
        self.prober.coming.clear()
        if self.world.control.standing_order.order is not None:
            self.world.do(self.world.control.standing_order.remove_order(who="op"))
        for request in self.world.store.requests(open_only=True):
            if request.rollout is not None and request.rollout.has_paused_itself:
                resume = self.world.control.rollout_requests.change_state(request.id, RolloutState.RUNNING, who="op")
                self.world.do(resume)
        super()._run_to_the_end()
