"""Which rule an event falls under: the first that matches. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase

from forewarn.agent.value import OWN, Event, Rule
from forewarn.client.event import lists
from forewarn.protocol.document import Status


def rule_for(rules: Iterable[Rule], event: Event, vm: str, now: float) -> Rule | None:
    return next((rule for rule in rules if matches(rule, event, vm, now)), None)


def matches(rule: Rule, event: Event, vm: str, now: float) -> bool:
    return (
        _among(event.kind, rule.kinds)
        and _among(event.source, rule.sources)
        and _concerns(rule, event, vm)
        and _within(_duration_s(event), rule.min_duration_s, rule.max_duration_s)
        and _within(left_s(event, now) or 0.0, rule.min_left_s, rule.max_left_s)
    )


def has_started(event: Event) -> bool:
    return event.status == Status.STARTED


def left_s(event: Event, now: float) -> float | None:
    """Until it may start: 0 once it has started, None if the server named no time that can be read."""
    if has_started(event):
        return 0.0
    return None if event.not_before is None else max(0.0, event.not_before - now)


def _among(word: str, words: frozenset[str]) -> bool:
    return not words or word.casefold() in {each.casefold() for each in words}


def _concerns(rule: Rule, event: Event, vm: str) -> bool:
    if rule.vms == OWN:
        return lists(event, vm)
    return any(fnmatchcase(plain(name), plain(rule.vms)) for name in event.resources)


def plain(name: str) -> str:
    """A VM's name for comparing: without case and without the underscore of 2017 (spec §3)."""
    return name.casefold().removeprefix("_")


def _duration_s(event: Event) -> float:
    """Unknown (-1, or a version that does not say) is endless: a drain too many is better than one too few."""
    return math.inf if event.duration_s is None or event.duration_s < 0 else float(event.duration_s)


def _within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)
