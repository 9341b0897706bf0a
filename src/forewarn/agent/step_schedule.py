"""Schedules the steps of an event backwards from NotBefore, and cuts steps that do not fit. Pure.

A step with a `cut` number may be cut, lowest number first, until the rest fits. Other steps run even if they are
late. Only the step that is next is cut for good: the steps before it may end early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forewarn.agent.model import StepConfig

StepTiming = Literal["at-once", "late"]  # late: as late as the budgets allow
LateStepPolicy = Literal["essential", "all", "nothing"]  # which steps still run once the event has started


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """A step and its times, in the server's time."""

    step: StepConfig
    due_at: float  # when it begins, if the steps before it are done
    latest_at: float  # if it begins later, it may not end by NotBefore
    cut: bool = False  # it is not run, unless time is gained
    late: bool = False  # it may not end by NotBefore, and must not be cut


def schedule_steps(
    steps: Sequence[StepConfig],
    not_before: float | None,
    now: float,
    *,
    begin: StepTiming = "at-once",
    margin_s: float = 0.0,
) -> tuple[ScheduledStep, ...]:
    """Schedules the steps in their order for a notice that ends at `not_before`; None: end unknown.

    The last step ends `margin_s` before it. `begin` applies to steps without a setting of their own. Steps that are
    cut are in the result. With an unknown end all steps are due now, and none is cut.
    """
    if not_before is None:
        return tuple(ScheduledStep(step=step, due_at=now, latest_at=now) for step in steps)
    end_at = not_before - margin_s
    cut = _steps_to_cut(steps, end_at - now)
    needed_s = sum(step.budget_s for step in steps if step.name not in cut)
    is_late = needed_s > end_at - now
    at = now if is_late else end_at - needed_s

    schedule: list[ScheduledStep] = []
    for step in steps:
        is_cut = step.name in cut
        due_at = now if (step.begin or begin) == "at-once" or is_cut else at
        schedule.append(ScheduledStep(step=step, due_at=due_at, latest_at=at, cut=is_cut, late=is_late and not is_cut))
        at += 0 if is_cut else step.budget_s
    return tuple(schedule)


def schedule_after_start(steps: Sequence[StepConfig], now: float, policy: LateStepPolicy) -> tuple[ScheduledStep, ...]:
    """Schedules the steps of an event that has started: the policy cuts some, the rest is due at once."""

    def is_cut(step: StepConfig) -> bool:
        return policy == "nothing" or (policy == "essential" and step.cut is not None)

    return tuple(ScheduledStep(step=s, due_at=now, latest_at=now, cut=is_cut(s), late=not is_cut(s)) for s in steps)


def _steps_to_cut(steps: Sequence[StepConfig], available_s: float) -> frozenset[str]:
    """Names of the steps to cut, lowest `cut` first and later before earlier, until the rest fits."""
    needed_s = sum(step.budget_s for step in steps)
    cut: set[str] = set()
    candidates = [(step.cut, -position, step) for position, step in enumerate(steps) if step.cut is not None]
    for _, _, step in sorted(candidates, key=lambda each: each[:2]):
        if needed_s <= available_s:
            break
        cut.add(step.name)
        needed_s -= step.budget_s
    return frozenset(cut)
