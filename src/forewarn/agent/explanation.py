"""Explains an event from its journal record: notice, steps, undo and approval in order. Pure.

Instants stay numbers and the caller formats them; the text contains durations only. Instants are the server's: its
dates are whole seconds and a lab can pause its time, so lines are sorted by cause before time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from math import inf

from forewarn.agent.approval import find_rule, has_started, notice_left_s
from forewarn.agent.decision import ScheduledStep, schedule_after_start, schedule_steps
from forewarn.agent.model import (
    LOST_STEP_TEXT,
    MAX_UNDO_TRIES,
    ApprovalState,
    ApproveWhen,
    Event,
    EventRecord,
    RuleConfig,
    StepConfig,
    StepPhase,
    StepRun,
    StepState,
)
from forewarn.base.duration import format_duration
from forewarn.client import lists

# Dry run: what an agent without history would do for an event if it saw it now.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExplanationLine:
    at: float  # server time in POSIX seconds
    text: str  # a sentence for people
    detail: str = ""  # a second text, such as the event's description; "": none


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExplanation:
    """The explanation of one event for people, from `explain_event`."""

    title: str  # key, kind and VMs of the event
    lines: tuple[AgentExplanationLine, ...]  # in the order in which things happened
    now: str  # the current state, or what is waited for


def explain_event(
    record: EventRecord, rules: Mapping[str, RuleConfig], waits_for: str = "", *, is_agent_running: bool = True
) -> AgentExplanation:
    """Explain from its record what happened to an event: first seen, steps, approval, start, end, undo."""
    preparing = _with_sort_times(
        [*_first_seen_lines(record), *_step_lines(record, rules, StepPhase.DO), *_approval_lines(record)], -inf
    )
    lifecycle = _with_sort_times(
        _start_and_end_lines(record), preparing[-1][0] if record.approval is not None else record.seen_at
    )
    undoing = _with_sort_times(
        _step_lines(record, rules, StepPhase.UNDO), lifecycle[-1][0] if lifecycle else record.seen_at
    )
    lines = sorted((*preparing, *lifecycle, *undoing), key=lambda ranked: ranked[0])
    return AgentExplanation(
        title=f"event {record.key}: {record.event.kind} of {', '.join(record.event.resources) or 'no VM'}",
        lines=tuple(line for _, line in lines),
        now=waits_for or _current_state_text(record, rules.get(record.rule), is_agent_running),
    )


def _with_sort_times(lines: Iterable[AgentExplanationLine], since: float) -> list[tuple[float, AgentExplanationLine]]:
    """Pairs each line with the instant to sort it by: its own, or that of an earlier line if later."""
    listed = list(lines)
    ranks = accumulate((line.at for line in listed), max, initial=since)
    return list(zip(islice(ranks, 1, None), listed, strict=True))


def promised_notice_s(record: EventRecord) -> float | None:
    """Return the seconds from when the event was first seen to the NotBefore given then, at least 0."""
    return None if record.not_before is None else max(0.0, record.not_before - record.seen_at)


def actual_notice_s(record: EventRecord) -> float | None:
    """Return the seconds from when the event was first seen to when it was seen started."""
    return None if record.started_at is None else record.started_at - record.seen_at


def _was_seen_started(record: EventRecord) -> bool:
    # A clock that stands still gives both times the same value; an event with a notice had a NotBefore as well.
    return record.started_at == record.seen_at and record.not_before is None


def _first_seen_lines(record: EventRecord) -> Iterator[AgentExplanationLine]:
    promised, rule = promised_notice_s(record), f"rule {record.rule!r}" if record.rule else "no rule matches"
    if _was_seen_started(record):
        notice = "already started: no notice"
    elif promised is None:
        notice = "no start time given"
    else:
        notice = f"a notice of {format_duration(promised)}" if promised else "its notice had already ended"
    yield AgentExplanationLine(at=record.seen_at, text=f"first seen, {notice}; {rule}", detail=record.event.description)


def _start_and_end_lines(record: EventRecord) -> Iterator[AgentExplanationLine]:
    promised, got = promised_notice_s(record), actual_notice_s(record)
    if record.started_at is not None and got is not None and not _was_seen_started(record):
        of = "" if promised is None else f" of the {format_duration(promised)} announced"
        yield AgentExplanationLine(at=record.started_at, text=f"started, after {format_duration(got)}{of}")
    if record.gone_at is not None:
        yield AgentExplanationLine(at=record.gone_at, text=f"gone: {record.outcome or 'unknown'}")


def _step_lines(
    record: EventRecord, rules: Mapping[str, RuleConfig], phase: StepPhase
) -> Iterator[AgentExplanationLine]:
    rule = rules.get(record.rule)
    schedule = {scheduled.step.name: scheduled for scheduled in _complete_schedule(record, rule)} if rule else {}
    for run in record.step_runs:
        if run.phase is phase:
            scheduled = schedule.get(run.step) if phase is StepPhase.DO else None
            yield from _step_run_lines(run, _schedule_text(scheduled, _latest_not_before(record)) if scheduled else "")


def _complete_schedule(record: EventRecord, rule: RuleConfig) -> tuple[ScheduledStep, ...]:
    """The schedule of all steps from when the event was first seen, by the latest NotBefore that is known."""
    steps = [step for step in rule.steps if step.name in record.plan]
    return schedule_steps(steps, _latest_not_before(record), record.seen_at, begin=rule.begin, margin_s=rule.margin_s)


def _latest_not_before(record: EventRecord) -> float | None:
    """The newest NotBefore; after the start, when documents have none, the first. None if none is known."""
    return record.not_before if record.event.not_before is None else record.event.not_before


def _schedule_text(scheduled: ScheduledStep, not_before: float | None) -> str:
    """Budget and latest begin, both by the present file: the journal keeps only the steps' names."""
    text = f"by the present file: budget {format_duration(scheduled.step.budget_s)}"
    if not_before is None or scheduled.cut or scheduled.late:
        return text
    return f"{text}, to begin {format_duration(not_before - scheduled.latest_at)} before NotBefore at the latest"


def _step_run_lines(run: StepRun, schedule_text: str) -> Iterator[AgentExplanationLine]:
    name = run.step if run.phase is StepPhase.DO else f"undo of {run.step}"
    because = f": {run.text}" if run.text else ""
    if run.state in (StepState.CUT, StepState.SKIPPED):
        yield AgentExplanationLine(at=run.begun_at, text=f"{name} {run.state}{because}", detail=schedule_text)
        return
    if run.is_reused:
        yield AgentExplanationLine(at=run.begun_at, text=f"{name} reused{because}", detail=schedule_text)
        return
    again = f", try {run.tries}" if 1 < run.tries < MAX_UNDO_TRIES else ""
    yield AgentExplanationLine(at=run.begun_at, text=f"{name} began{again}", detail=schedule_text)
    if run.ended_at is not None:
        took_s = run.ended_at - run.begun_at
        took = f"{took_s:.1f}s" if took_s < 10 else format_duration(took_s)
        yield AgentExplanationLine(at=run.ended_at, text=f"{name} {run.state} after {took}{because}")


def _approval_lines(record: EventRecord) -> Iterator[AgentExplanationLine]:
    check, approval = record.approval_check, record.approval
    if check is not None:
        yield AgentExplanationLine(at=check.first_at, text="approval check asked")
    if check is not None and check.answer:
        yield AgentExplanationLine(at=check.asked_at, text=f"approval check answered {check.answer}", detail=check.text)
    if approval is not None:
        texts = {
            ApprovalState.ASKED: "approval asked for",
            ApprovalState.SENT: "approved",
            ApprovalState.REFUSED: "approval refused",
        }
        yield AgentExplanationLine(
            at=approval.at, text=texts[approval.state] + (f": {approval.text}" if approval.text else "")
        )


def _current_state_text(record: EventRecord, rule: RuleConfig | None, is_agent_running: bool) -> str:
    if record.closed:
        return _closed_text(record)
    under_way = [run for run in record.step_runs if run.state is StepState.BEGUN]
    if under_way:
        state = "running" if is_agent_running else "interrupted"
        return "; ".join(f"{'undo of ' if run.phase is StepPhase.UNDO else ''}{run.step} {state}" for run in under_way)
    if record.gone_at is not None:
        return "gone, the undo is in progress"
    return "started" if record.started_at is not None else f"scheduled{_missing_approval_text(record, rule)}"


def _closed_text(record: EventRecord) -> str:
    failed = [run for run in record.step_runs if run.phase is StepPhase.UNDO and run.state is StepState.FAILED]
    not_undone = [run.step for run in failed if run.text != LOST_STEP_TEXT]
    unknown = [run.step for run in failed if run.text == LOST_STEP_TEXT]
    if unknown:
        also = f"not undone: {', '.join(not_undone)}; " if not_undone else ""
        return f"closed, but {also}not known whether undone: {', '.join(unknown)}; if it is not, undo it by hand"
    return (
        f"closed, but not undone: {', '.join(not_undone)}; undo it by hand"
        if not_undone
        else "closed: nothing left to do"
    )


def _missing_approval_text(record: EventRecord, rule: RuleConfig | None) -> str:
    missing = [f"{run.step} {run.state}" for run in record.step_runs if run.state in (StepState.FAILED, StepState.CUT)]
    if rule is None or rule.approve.when is ApproveWhen.NEVER or record.approval is not None or not missing:
        return ""
    return f", will start at its NotBefore without an approval: {', '.join(missing)}"


def step_plan_table(rule: RuleConfig, notices_s: tuple[float, ...]) -> list[tuple[StepConfig, list[str]]]:
    """Return a pair for each step of the rule, in order: the step, and a text for each of `notices_s`."""
    plans = [schedule_steps(rule.steps, notice, 0.0, begin=rule.begin, margin_s=rule.margin_s) for notice in notices_s]
    return [
        (step, [_plan_cell(plan[position], notice) for plan, notice in zip(plans, notices_s, strict=True)])
        for position, step in enumerate(rule.steps)
    ]


def _plan_cell(scheduled: ScheduledStep, notice_s: float) -> str:
    if scheduled.cut:
        return "cut"
    if scheduled.late:
        return "at once, late"
    left = format_duration(notice_s - scheduled.latest_at)
    return f"at once, by {left} before" if scheduled.due_at < scheduled.latest_at else f"{left} before"
