"""Rules that are ready to use, by the notice that an application is built for. The user gives the steps. Pure.

All leave a short Freeze alone, which is over before a drain would be. An eviction is not approved, because it may be
taken back, and waiting for it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forewarn.agent.value import Approve, Rule, Step, When
from forewarn.protocol.document import Kind

DAY_S = 86_400.0
_WHEN_DONE = Approve(when=When.DONE)


def _short_freeze() -> Rule:
    return Rule(name="a short freeze", kinds=frozenset({Kind.FREEZE.value}), max_duration_s=10.0)


def fifteen_minutes(steps: tuple[Step, ...]) -> tuple[Rule, ...]:
    return (
        _short_freeze(),
        Rule(name="an eviction", kinds=frozenset({Kind.PREEMPT.value}), steps=steps, margin_s=2.0),
        Rule(name="maintenance", steps=steps, approve=_WHEN_DONE),
    )


def thirty_seconds(steps: tuple[Step, ...]) -> tuple[Rule, ...]:
    return (_short_freeze(), Rule(name="any event", steps=steps, margin_s=2.0))


def seven_days(steps: tuple[Step, ...]) -> tuple[Rule, ...]:
    far = Rule(name="days ahead", min_left_s=DAY_S, steps=steps, begin="late", margin_s=3_600.0, approve=_WHEN_DONE)
    return (_short_freeze(), far, *fifteen_minutes(steps)[1:])


Profile = Callable[[tuple[Step, ...]], tuple[Rule, ...]]
PROFILES: dict[str, Profile] = {
    "fifteen-minutes": fifteen_minutes,
    "thirty-seconds": thirty_seconds,
    "seven-days": seven_days,
}
NOTICE_S = {"fifteen-minutes": 900.0, "thirty-seconds": 30.0, "seven-days": 7 * DAY_S}


def too_long_s(profile: str, steps: Sequence[Step]) -> float:
    """By how much the steps that are never cut exceed the notice that the profile is for; 0 if they fit."""
    margin_s = min(rule.margin_s for rule in PROFILES[profile](()) if rule.name != "a short freeze")
    needed_s = sum(step.budget_s for step in steps if step.cut is None)
    return max(0.0, needed_s + margin_s - NOTICE_S[profile])
