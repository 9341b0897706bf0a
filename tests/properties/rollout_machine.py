"""The state machine with everything that operators do with rollouts: waves, windows, budgets, holds."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from forewarn.core.budgets import Budget
from forewarn.core.event import EventState
from forewarn.core.request import Rollout, RolloutImpact, RolloutState
from forewarn.core.windows import MaintenanceCalendar, make_calendar
from tests.properties.budget_checks import BUDGETS
from tests.properties.control_machine import NOTICES, PICKS, ControlMachine, chosen
from tests.properties.random_fleets import waved_rollouts

CALENDARS = st.sampled_from(
    [
        *(None, None),
        make_calendar(["02:00 1h"], [], None),
        make_calendar(["12:20 5m", "02:30 30m Europe/Berlin"], ["2026-01-06"], None),
    ]
)
DEADLINES = st.sampled_from([None, None, 1200.0, 20 * 3600.0])  # from now


class RolloutMachine(ControlMachine):
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

    @rule(budget=BUDGETS, remove=st.sampled_from([False, False, False, True]))
    def set_or_remove_budget(self, budget: Budget, remove: bool) -> None:
        budgets = self.world.control.budgets
        self.attempt(budgets.remove_budget(budget.name, who="op") if remove else budgets.set_budget(budget, who="op"))

    @rule(then_wait=st.booleans())
    def hold_or_lift(self, then_wait: bool) -> None:
        rollouts = self.world.control.rollouts
        held = rollouts.hold is not None
        self.attempt(rollouts.lift_hold(who="op") if held else rollouts.set_hold("an incident", who="op"))
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
