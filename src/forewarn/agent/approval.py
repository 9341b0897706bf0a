"""Finds the rule for an event, and decides whether this VM may approve the event now. Pure.

One of the listed VMs approves: the first that is alive by the board. A listed VM counts as ready once it has
published that for this event, even if it has died since. A VM that is alive and not ready blocks the approval. A VM
that is not alive (its heartbeat is old or missing) is absent and blocks too, so that the event waits for its
NotBefore, unless the rule ignores absent VMs after a delay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from forewarn.agent.model import (
    OWN_VM,
    ApprovalCheckConfig,
    ApprovalCheckRecord,
    ApprovalPolicy,
    ApproveWhen,
    Event,
    RuleConfig,
    StepConfig,
)
from forewarn.base.duration import exact_duration_text
from forewarn.client.events import lists
from forewarn.protocol.document import Kind, NoticeStatus

# Rules: the first that matches an event counts.
#
# A profile is a ready-made set of rules for the notice that an application is built for; the user supplies the steps.
# All profiles ignore a short Freeze, which ends before a drain would. They do not approve an eviction: it may be
# withdrawn, and waiting costs nothing.


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


HEARTBEAT_TIMEOUT_S = 15.0  # a VM with an older heartbeat counts as absent


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardView:
    """What the readiness board, a folder shared by the agents of all VMs, showed when it was last read."""

    heartbeat_ages_s: Mapping[str, float] = field(default_factory=dict)  # seconds before this VM's own heartbeat, by VM
    ready_vms: Mapping[str, frozenset[str]] = field(default_factory=dict)  # names of the ready VMs, by `event_key`


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecision:
    """Whether the agent may approve an event now, and if not, why and when to decide again."""

    is_approved: bool  # True: the function that decided has nothing against the approval
    reason: str = ""  # why it is or is not approved, for people; "": nothing prevents it
    recheck_at: float | None = None  # server time in POSIX seconds at which to decide again; None: not set


def approving_vm(resources: Sequence[str], board: BoardView, heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S) -> str:
    """Return the VM that approves an event for all: the first of `resources` that is alive; "" if none is."""
    return next(
        (
            normalize_vm_name(name)
            for name in resources
            if _is_alive(normalize_vm_name(name), board, heartbeat_timeout_s)
        ),
        "",
    )


def decide_for_all_vms(
    event_id: str,
    resources: Sequence[str],
    vm: str,
    board: BoardView,
    *,
    waited_s: float,
    absent_after_s: float | None,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
) -> ApprovalDecision:
    """Decide whether this VM may approve an event now for all VMs that it lists.

    It may if it is their `approving_vm`; every listed VM that is alive is ready; and every other one was ready as well,
    or `waited_s`, the seconds since this VM became ready, has reached `absent_after_s` (None: wait for ever). After a
    refusal, call this again every few seconds, because time alone may change the decision.
    """
    approver = approving_vm(resources, board, heartbeat_timeout_s)
    if approver != normalize_vm_name(vm):
        return ApprovalDecision(
            is_approved=False, reason=f"{approver} approves for all VMs" if approver else "no listed VM is alive"
        )
    missing = [
        normalize_vm_name(name)
        for name in resources
        if normalize_vm_name(name) not in board.ready_vms.get(event_id, frozenset())
    ]
    alive = [name for name in missing if _is_alive(name, board, heartbeat_timeout_s)]
    if alive:
        return ApprovalDecision(is_approved=False, reason=f"{', '.join(alive)} not ready")
    if missing and (absent_after_s is None or waited_s < absent_after_s):
        return ApprovalDecision(is_approved=False, reason=f"{', '.join(missing)} absent")
    return ApprovalDecision(is_approved=True)


def _is_alive(name: str, board: BoardView, heartbeat_timeout_s: float) -> bool:
    return name in board.heartbeat_ages_s and board.heartbeat_ages_s[name] <= heartbeat_timeout_s


def decide_by_approval_check(
    check: ApprovalCheckConfig, record: ApprovalCheckRecord | None, now: float
) -> ApprovalDecision:
    """Decide whether to approve, from the answers of the approval check so far; does not run the check."""
    if record is None:
        return ApprovalDecision(is_approved=False, reason="the approval check has not run yet", recheck_at=now)
    if record.answer:
        return ApprovalDecision(
            is_approved=record.answer == "yes", reason=f"the approval check answered {record.answer}"
        )
    ends_at = record.first_at + check.deadline_s
    if now < ends_at:
        return ApprovalDecision(
            is_approved=False,
            reason="the approval check gave no answer",
            recheck_at=min(ends_at, record.asked_at + check.every_s),
        )
    return ApprovalDecision(
        is_approved=check.on_silence == "approve",
        reason=f"the approval check gave no answer for {exact_duration_text(check.deadline_s)}",
    )
