"""Finds the rule for an event (the first that matches), and defines the ready-made profiles. Pure.

A profile is a set of rules for the notice that an application is built for; the user supplies the steps. All
profiles ignore a short Freeze, which ends before a drain would. They do not approve an eviction: it may be
withdrawn, and waiting costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from forewarn.agent.model import OWN_VM, ApprovalPolicy, ApproveWhen, Event, RuleConfig, StepConfig
from forewarn.client.events import lists
from forewarn.protocol.document import Kind, NoticeStatus


def find_rule(rules: Iterable[RuleConfig], event: Event, vm: str, now: float) -> RuleConfig | None:
    """Return the first of the rules that matches the event at `now`, the server's time; None if none does."""
    return next((rule for rule in rules if rule_matches(rule, event, vm, now)), None)


def rule_matches(rule: RuleConfig, event: Event, vm: str, now: float) -> bool:
    """Return whether the event meets all conditions of the rule at `now`, the server's time."""
    # A SpotRebalanceRecommendation has no impact, so only a rule that names this kind matches it (spec §14.4).
    return (
        _matches_any(event.kind, rule.kinds)
        and (bool(rule.kinds) or event.kind.casefold() != Kind.SPOT_REBALANCE.casefold())
        and _matches_any(event.source, rule.sources)
        and _matches_vms(rule, event, vm)
        and _is_between(_impact_duration_s(event), rule.min_duration_s, rule.max_duration_s)
        and _is_between(notice_left_s(event, now) or 0.0, rule.min_left_s, rule.max_left_s)
    )


def has_started(event: Event) -> bool:
    """Return whether the event's status is Started; False for Scheduled and for an unknown status."""
    return event.status == NoticeStatus.STARTED


def notice_left_s(event: Event, now: float) -> float | None:
    """Return the seconds from `now` (server time) until NotBefore; 0 after it or after the event's start."""
    if has_started(event):
        return 0.0
    return None if event.not_before is None else max(0.0, event.not_before - now)


def _matches_any(word: str, words: frozenset[str]) -> bool:
    return not words or word.casefold() in {each.casefold() for each in words}


def _matches_vms(rule: RuleConfig, event: Event, vm: str) -> bool:
    if rule.vms == OWN_VM:
        return lists(event, vm)
    return any(fnmatchcase(normalize_vm_name(name), normalize_vm_name(rule.vms)) for name in event.resources)


def normalize_vm_name(name: str) -> str:
    """Return a VM's name for comparisons: lower case, without one leading underscore (of 2017, spec §3)."""
    return name.casefold().removeprefix("_")


def _impact_duration_s(event: Event) -> float:
    """The event's duration in seconds; an unknown one is endless, because an extra drain is safer."""
    return math.inf if event.duration_s is None or event.duration_s < 0 else float(event.duration_s)


def _is_between(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


DAY_S = 86_400.0
_APPROVE_WHEN_DONE = ApprovalPolicy(when=ApproveWhen.DONE)


def _short_freeze_rule() -> RuleConfig:
    return RuleConfig(name="a short freeze", kinds=frozenset({Kind.FREEZE.value}), max_duration_s=10.0)


def _fifteen_minutes_rules(steps: tuple[StepConfig, ...]) -> tuple[RuleConfig, ...]:
    return (
        _short_freeze_rule(),
        RuleConfig(name="an eviction", kinds=frozenset({Kind.PREEMPT.value}), steps=steps, margin_s=2.0),
        RuleConfig(name="maintenance", steps=steps, approve=_APPROVE_WHEN_DONE),
    )


def _thirty_seconds_rules(steps: tuple[StepConfig, ...]) -> tuple[RuleConfig, ...]:
    return (_short_freeze_rule(), RuleConfig(name="any event", steps=steps, margin_s=2.0))


def _seven_days_rules(steps: tuple[StepConfig, ...]) -> tuple[RuleConfig, ...]:
    """Rules for days of notice: those of `_fifteen_minutes_rules`, and two for events days ahead."""
    far = RuleConfig(
        name="days ahead", min_left_s=DAY_S, steps=steps, begin="late", margin_s=3_600.0, approve=_APPROVE_WHEN_DONE
    )
    eviction = replace(
        far, name="an eviction days ahead", kinds=frozenset({Kind.PREEMPT.value}), approve=ApprovalPolicy()
    )
    return (_short_freeze_rule(), eviction, far, *_fifteen_minutes_rules(steps)[1:])


ProfileRules = Callable[[tuple[StepConfig, ...]], tuple[RuleConfig, ...]]  # builds the rules for these steps
PROFILES: dict[str, ProfileRules] = {  # by the value of `profile`
    "fifteen-minutes": _fifteen_minutes_rules,
    "thirty-seconds": _thirty_seconds_rules,
    "seven-days": _seven_days_rules,
}
# The notice that each profile is made for.
PROFILE_NOTICE_S = {"fifteen-minutes": 900.0, "thirty-seconds": 30.0, "seven-days": 7 * DAY_S}


def excess_budget_s(profile: str, steps: Sequence[StepConfig]) -> float:
    """Return the seconds by which steps that are never cut, with the margin, exceed the profile's notice."""
    margin_s = min(rule.margin_s for rule in PROFILES[profile](()) if rule.name != "a short freeze")
    needed_s = sum(step.budget_s for step in steps if step.cut is None)
    return max(0.0, needed_s + margin_s - PROFILE_NOTICE_S[profile])
