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
    """A step of an event and when it is to run; `schedule_steps` and `schedule_after_start` make it."""

    step: StepConfig
    due_at: float  # when it begins, if the steps before it are done
    latest_at: float  # if it begins later, the steps may not end by NotBefore less the margin; `now` if that is unknown
    cut: bool = False  # it is not run, for lack of time (unless time is gained) or because the event has started
    late: bool = False  # it is run although the steps may not end in time, or the event has started


def schedule_steps(
    steps: Sequence[StepConfig],
    not_before: float | None,
    now: float,
    *,
    begin: StepTiming = "at-once",
    margin_s: float = 0.0,
) -> tuple[ScheduledStep, ...]:
    """Schedule the steps one after the other, so that their budgets end `margin_s` before `not_before`.

    A step with begin `at-once` is due now, a `late` one at its `latest_at`. If the steps do not fit, those with a `cut`
    number are cut, lowest number first and, of equal numbers, the last step first; if the rest still does not fit, it
    is marked late and scheduled from `now` on. Without a `not_before`, all are due now, and none is cut or late.
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
    """Schedule the steps of an event that has started; return all of them in their order, due at `now`."""

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
