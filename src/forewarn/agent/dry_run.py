"""Dry run: what an agent without history would do for an event if it saw it now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forewarn.agent.model import ApproveWhen, Event, RuleConfig
from forewarn.agent.rules import find_rule, has_started, notice_left_s
from forewarn.agent.step_schedule import ScheduledStep, schedule_after_start, schedule_steps
from forewarn.base.duration import format_duration
from forewarn.client import lists

_APPROVAL_TEXTS = {
    ApproveWhen.NEVER: "would not approve it",
    ApproveWhen.DONE: "would approve it when all steps are done",
    ApproveWhen.ALL_DONE: "would approve it when the steps of all listed VMs are done",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What the agent would do for one event, as texts for people; `dry_run_event` makes it."""

    event: Event  # the event that would be handled
    rule: str = ""  # the name of the rule that matches; "": none does, nothing would be done
    title: str  # one line: the event, the time left, and the rule or why nothing would be done
    steps: tuple[str, ...] = ()  # one text for each step of the rule in order: when it would begin, or that it is cut
    approval: str = ""  # whether and when it would approve; "" without a rule


def dry_run_event(event: Event, rules: Sequence[RuleConfig], vm: str, now: float) -> DryRun:
    """Return what an agent on `vm` with these rules would do for the event at `now`, the server's time."""
    rule = find_rule(rules, event, vm, now)
    title = f"event {event.id}: {event.kind} of {', '.join(event.resources) or 'no VM'}, {_time_left_text(event, now)}"
    if rule is None:
        why = "no rule matches it" if lists(event, vm) else f"it does not list this VM, {vm!r}"
        return DryRun(event=event, title=f"{title}; would do nothing: {why}")
    return DryRun(
        event=event,
        rule=rule.name,
        title=f"{title}; rule {rule.name!r}",
        steps=tuple(_step_text(scheduled, now) for scheduled in _step_schedule(event, rule, now)),
        approval=_approval_text(event, rule),
    )


def _time_left_text(event: Event, now: float) -> str:
    left = notice_left_s(event, now)
    if has_started(event):
        return "started"
    return "no time given" if left is None else f"{format_duration(left)} left"


def _step_schedule(event: Event, rule: RuleConfig, now: float) -> tuple[ScheduledStep, ...]:
    if has_started(event):
        return schedule_after_start(rule.steps, now, rule.no_time)
    return schedule_steps(rule.steps, event.not_before, now, begin=rule.begin, margin_s=rule.margin_s)


def _step_text(scheduled: ScheduledStep, now: float) -> str:
    name = f"{scheduled.step.name} ({scheduled.step.use}, {format_duration(scheduled.step.budget_s)})"
    if scheduled.cut:
        return f"would cut {name}: no time for it"
    wait_s, slack_s = scheduled.due_at - now, scheduled.latest_at - now
    when = "at once" if wait_s <= 0 else f"in {format_duration(wait_s)}"
    if scheduled.late:
        return f"would begin {name} {when}, maybe too late to end in time"
    return f"would begin {name} {when}" + (
        f", in {format_duration(slack_s)} at the latest" if slack_s > max(0.0, wait_s) else ""
    )


def _approval_text(event: Event, rule: RuleConfig) -> str:
    if has_started(event):
        return "would not approve it: it has started"
    has_check = rule.approval_check is not None and rule.approve.when is not ApproveWhen.NEVER
    return _APPROVAL_TEXTS[rule.approve.when] + (", once the approval check answers yes" if has_check else "")
