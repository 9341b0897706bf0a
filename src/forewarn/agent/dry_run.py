"""A dry run: what would be done for an event if it were seen now, by an agent that has done nothing yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forewarn.agent.budget import Slot, layout, no_time
from forewarn.agent.rule import has_started, left_s, rule_for
from forewarn.agent.value import Event, Rule, When
from forewarn.client import lists
from forewarn.duration import span

_APPROVAL = {
    When.NEVER: "would not approve it",
    When.DONE: "would approve it when all steps are done",
    When.ALL_DONE: "would approve it when the steps of all listed VMs are done",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    event: Event
    rule: str = ""  # "": nothing would be done
    title: str
    steps: tuple[str, ...] = ()
    approval: str = ""


def rehearse(event: Event, rules: Sequence[Rule], vm: str, now: float) -> Rehearsal:
    rule = rule_for(rules, event, vm, now)
    title = f"event {event.id}: {event.kind} of {', '.join(event.resources) or 'nobody'}, {_left(event, now)}"
    if rule is None:
        why = "no rule matches it" if lists(event, vm) else f"it does not list this VM, {vm!r}"
        return Rehearsal(event=event, title=f"{title}; would do nothing: {why}")
    return Rehearsal(
        event=event,
        rule=rule.name,
        title=f"{title}; rule {rule.name!r}",
        steps=tuple(_would(slot, now) for slot in _slots(event, rule, now)),
        approval=_approval(event, rule),
    )


def _left(event: Event, now: float) -> str:
    left = left_s(event, now)
    if has_started(event):
        return "started"
    return "no time given" if left is None else f"{span(left)} left"


def _slots(event: Event, rule: Rule, now: float) -> tuple[Slot, ...]:
    if has_started(event):
        return no_time(rule.steps, now, rule.no_time)
    return layout(rule.steps, event.not_before, now, begin=rule.begin, margin_s=rule.margin_s)


def _would(slot: Slot, now: float) -> str:
    name = f"{slot.step.name} ({slot.step.use}, {span(slot.step.budget_s)})"
    if slot.cut:
        return f"would cut {name}: there is no time for it"
    wait_s, slack_s = slot.due_at - now, slot.latest_at - now
    when = "at once" if wait_s <= 0 else f"in {span(wait_s)}"
    if slot.late:
        return f"would begin {name} {when}, too late to be sure that it is done in time"
    return f"would begin {name} {when}" + (f", in {span(slack_s)} at the latest" if slack_s > max(0.0, wait_s) else "")


def _approval(event: Event, rule: Rule) -> str:
    if has_started(event):
        return "would not approve it: it has started"
    is_gated = rule.gate is not None and rule.approve.when is not When.NEVER
    return _APPROVAL[rule.approve.when] + (", once the gate says yes" if is_gated else "")
