"""Steps are scheduled backwards from NotBefore, and cut in the declared order when time is short."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.decision import schedule_after_start, schedule_steps
from forewarn.agent.model import StepConfig
from tests.agent.conftest import step

NOTIFY, DRAIN, SAVE = step("notify", 5, cut=1), step("drain", 20, cut=2), step("save", 30)


def test_steps_end_one_after_the_other_and_the_last_at_not_before() -> None:
    schedule = schedule_steps([NOTIFY, DRAIN, SAVE], 1000, 0)
    assert [scheduled.latest_at for scheduled in schedule] == [945, 950, 970]


def test_a_margin_is_kept_before_not_before() -> None:
    assert schedule_steps([SAVE], 1000, 0, margin_s=10)[0].latest_at == 960


def test_steps_are_due_at_once_unless_they_begin_late() -> None:
    assert [scheduled.due_at for scheduled in schedule_steps([NOTIFY, SAVE], 1000, 7)] == [7, 7]
    assert [scheduled.due_at for scheduled in schedule_steps([NOTIFY, SAVE], 1000, 7, begin="late")] == [965, 970]


def test_a_step_can_begin_at_once_although_the_rule_begins_late() -> None:
    early = step("notify", 5, begin="at-once")
    assert [scheduled.due_at for scheduled in schedule_steps([early, SAVE], 1000, 7, begin="late")] == [7, 970]


@pytest.mark.parametrize(
    ("available_s", "cut"),
    [(55, []), (54, ["notify"]), (50, ["notify"]), (49, ["notify", "drain"]), (30, ["notify", "drain"])],
)
def test_steps_are_cut_in_the_declared_order_until_the_rest_fits(available_s: float, cut: list[str]) -> None:
    schedule = schedule_steps([NOTIFY, DRAIN, SAVE], available_s, 0)
    assert [scheduled.step.name for scheduled in schedule if scheduled.cut] == cut
    assert not any(scheduled.late for scheduled in schedule)


def test_of_two_steps_with_the_same_cut_number_the_later_one_is_cut_first() -> None:
    schedule = schedule_steps([step("a", cut=1), step("b", cut=1), SAVE], 40, 0)
    assert [scheduled.cut for scheduled in schedule] == [False, True, False]


def test_a_step_that_may_not_be_cut_is_due_at_once_even_if_it_is_late() -> None:
    (scheduled,) = schedule_steps([SAVE], 10, 0, begin="late")
    assert (scheduled.due_at, scheduled.cut, scheduled.late) == (0, False, True)


def test_without_a_readable_not_before_all_steps_are_due_at_once_and_none_is_cut() -> None:
    schedule = schedule_steps([NOTIFY, SAVE], None, 7, begin="late")
    assert [(scheduled.due_at, scheduled.cut) for scheduled in schedule] == [(7, False), (7, False)]


@pytest.mark.parametrize(("policy", "cut"), [("essential", ["notify"]), ("all", []), ("nothing", ["notify", "save"])])
def test_once_the_event_has_started_the_rule_decides_which_steps_run(policy: str, cut: list[str]) -> None:
    schedule = schedule_after_start([NOTIFY, SAVE], 7, policy)  # type: ignore[arg-type]
    assert [scheduled.step.name for scheduled in schedule if scheduled.cut] == cut
    assert {scheduled.due_at for scheduled in schedule} == {7}


STEPS = st.lists(st.tuples(st.integers(0, 50), st.none() | st.integers(0, 3)), max_size=6).map(
    lambda drawn: [step(f"s{n}", budget_s, cut=cut) for n, (budget_s, cut) in enumerate(drawn)]
)


@given(steps=STEPS, available_s=st.integers(-20, 200), late=st.booleans())
def test_the_schedule_keeps_its_invariants_for_all_budgets(
    steps: list[StepConfig], available_s: float, late: bool
) -> None:
    schedule = schedule_steps(steps, available_s, 0, begin="late" if late else "at-once")

    kept = [scheduled for scheduled in schedule if not scheduled.cut]
    gone = [scheduled.step for scheduled in schedule if scheduled.cut]
    assert [scheduled.step for scheduled in schedule] == steps
    assert all(step.cut is not None for step in gone)
    assert all(before.latest_at + before.step.budget_s == after.latest_at for before, after in pairwise(kept))
    if kept and not kept[0].late:
        assert kept[-1].latest_at + kept[-1].step.budget_s == available_s
        assert all(0 <= scheduled.due_at <= scheduled.latest_at for scheduled in kept)
    else:
        assert all(scheduled.step.cut is None for scheduled in kept)
    if gone:
        # No step was cut needlessly: with the last one cut, the rest would not have fitted.
        last = max(gone, key=lambda step: (step.cut, -steps.index(step)))
        assert sum(scheduled.step.budget_s for scheduled in kept) + last.budget_s > available_s
        assert all((scheduled.step.cut or 0) >= (last.cut or 0) for scheduled in kept if scheduled.step.cut is not None)
