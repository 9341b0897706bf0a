"""Explains an event from its journal record: notice, steps, undo and approval in order. Pure.

Instants stay numbers and the caller formats them; the text contains durations only. Instants are the server's: its
dates are whole seconds and a lab can pause its time, so lines are sorted by cause before time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from math import inf

from forewarn.agent.model import ApproveWhen, RuleConfig, StepConfig, StepPhase
from forewarn.agent.records import ApprovalState, EventRecord, StepRun, StepState
from forewarn.agent.step_schedule import ScheduledStep, schedule_steps
from forewarn.duration import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExplanationLine:
    at: float
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExplanation:
    title: str
    lines: tuple[AgentExplanationLine, ...]  # as it happened
    now: str


def explain_event(record: EventRecord, rules: Mapping[str, RuleConfig], waits_for: str = "") -> AgentExplanation:
    doing = _with_sort_times(
        [*_first_seen_lines(record), *_step_lines(record, rules, StepPhase.DO), *_approval_lines(record)], -inf
    )
    course = _with_sort_times(
        _start_and_end_lines(record), doing[-1][0] if record.approval is not None else record.seen_at
    )
    undoing = _with_sort_times(_step_lines(record, rules, StepPhase.UNDO), course[-1][0] if course else record.seen_at)
    lines = sorted((*doing, *course, *undoing), key=lambda ranked: ranked[0])
    return AgentExplanation(
        title=f"event {record.key}: {record.event.kind} of {', '.join(record.event.resources) or 'nobody'}",
        lines=tuple(line for _, line in lines),
        now=waits_for or _current_state_text(record, rules.get(record.rule)),
    )


def _with_sort_times(lines: Iterable[AgentExplanationLine], since: float) -> list[tuple[float, AgentExplanationLine]]:
    """Each with the instant it is sorted by: its own, or that of a line that came before it."""
    listed = list(lines)
    ranks = accumulate((line.at for line in listed), max, initial=since)
    return list(zip(islice(ranks, 1, None), listed, strict=True))


def promised_notice_s(record: EventRecord) -> float | None:
    """The notice as it was first seen; None: there was none, or nobody knows."""
    return None if record.not_before is None else max(0.0, record.not_before - record.seen_at)


def actual_notice_s(record: EventRecord) -> float | None:
    """From when it was first seen to its start; None if it has not started, or nobody saw it start."""
    return None if record.started_at is None else record.started_at - record.seen_at


def _first_seen_lines(record: EventRecord) -> Iterator[AgentExplanationLine]:
    promised, rule = promised_notice_s(record), f"rule {record.rule!r}" if record.rule else "no rule is about it"
    if record.started_at == record.seen_at:
        notice = "it had started already: no notice"
    elif promised is None:
        notice = "nobody said when it may start"
    else:
        notice = f"a notice of {format_duration(promised)}" if promised else "its notice was over already"
    yield AgentExplanationLine(at=record.seen_at, text=f"first seen, {notice}; {rule}", detail=record.event.description)


def _start_and_end_lines(record: EventRecord) -> Iterator[AgentExplanationLine]:
    promised, got = promised_notice_s(record), actual_notice_s(record)
    if record.started_at is not None and got:
        of = "" if promised is None else f" of the {format_duration(promised)} that were promised"
        yield AgentExplanationLine(at=record.started_at, text=f"started, after {format_duration(got)}{of}")
    if record.gone_at is not None:
        yield AgentExplanationLine(at=record.gone_at, text=f"gone: {record.outcome or 'unknown'}")


def _step_lines(
    record: EventRecord, rules: Mapping[str, RuleConfig], phase: StepPhase
) -> Iterator[AgentExplanationLine]:
    rule = rules.get(record.rule)
    slots = {slot.step.name: slot for slot in _initial_schedule(record, rule)} if rule else {}
    for deed in record.step_runs:
        if deed.phase is phase:
            slot = slots.get(deed.step) if phase is StepPhase.DO else None
            yield from _step_run_lines(deed, _schedule_text(slot, record.not_before) if slot else "")


def _initial_schedule(record: EventRecord, rule: RuleConfig) -> tuple[ScheduledStep, ...]:
    """The slots as they were laid out when the event was first seen."""
    steps = [step for step in rule.steps if step.name in record.plan]
    return schedule_steps(steps, record.not_before, record.seen_at, begin=rule.begin, margin_s=rule.margin_s)


def _schedule_text(slot: ScheduledStep, not_before: float | None) -> str:
    text = f"budget {format_duration(slot.step.budget_s)}"
    if not_before is None or slot.cut or slot.late:
        return text
    return f"{text}, to begin {format_duration(not_before - slot.latest_at)} before NotBefore at the latest"


def _step_run_lines(deed: StepRun, promise: str) -> Iterator[AgentExplanationLine]:
    name = deed.step if deed.phase is StepPhase.DO else f"undo of {deed.step}"
    because = f": {deed.text}" if deed.text else ""
    if deed.state in (StepState.CUT, StepState.SKIPPED):
        yield AgentExplanationLine(at=deed.begun_at, text=f"{name} {deed.state}{because}", detail=promise)
        return
    if deed.is_reused:
        yield AgentExplanationLine(at=deed.begun_at, text=f"{name} held{because}", detail=promise)
        return
    again = f", try {deed.tries}" if 1 < deed.tries < 1_000 else ""
    yield AgentExplanationLine(at=deed.begun_at, text=f"{name} began{again}", detail=promise)
    if deed.ended_at is not None:
        took_s = deed.ended_at - deed.begun_at
        took = f"{took_s:.1f}s" if took_s < 10 else format_duration(took_s)
        yield AgentExplanationLine(at=deed.ended_at, text=f"{name} {deed.state} after {took}{because}")


def _approval_lines(record: EventRecord) -> Iterator[AgentExplanationLine]:
    consent, approval = record.approval_check, record.approval
    if consent is not None:
        yield AgentExplanationLine(at=consent.first_at, text="the gate was asked")
    if consent is not None and consent.answer:
        yield AgentExplanationLine(at=consent.asked_at, text=f"the gate said {consent.answer}", detail=consent.text)
    if approval is not None:
        words = {
            ApprovalState.ASKED: "approval asked for",
            ApprovalState.SENT: "approved",
            ApprovalState.REFUSED: "approval refused",
        }
        yield AgentExplanationLine(
            at=approval.at, text=words[approval.state] + (f": {approval.text}" if approval.text else "")
        )


def _current_state_text(record: EventRecord, rule: RuleConfig | None) -> str:
    if record.closed:
        failed = [
            deed.step for deed in record.step_runs if deed.phase is StepPhase.UNDO and deed.state is StepState.FAILED
        ]
        return (
            f"closed, but not undone: {', '.join(failed)}; see to it by hand" if failed else "closed: nothing is left"
        )
    under_way = [deed for deed in record.step_runs if deed.state is StepState.BEGUN]
    if under_way:
        return "; ".join(
            f"{'undoing ' if deed.phase is StepPhase.UNDO else ''}{deed.step} under way" for deed in under_way
        )
    if record.gone_at is not None:
        return "gone, and being undone"
    return "started" if record.started_at is not None else f"scheduled{_missing_approval_text(record, rule)}"


def _missing_approval_text(record: EventRecord, rule: RuleConfig | None) -> str:
    """Why it will not be approved although its rule says so."""
    lacking = [
        f"{deed.step} {deed.state}" for deed in record.step_runs if deed.state in (StepState.FAILED, StepState.CUT)
    ]
    if rule is None or rule.approve.when is ApproveWhen.NEVER or record.approval is not None or not lacking:
        return ""
    return f", and left to its NotBefore without an approval: {', '.join(lacking)}"


def step_plan_table(rule: RuleConfig, notices_s: tuple[float, ...]) -> list[tuple[StepConfig, list[str]]]:
    """For each step of a rule, when it would begin for each of these notices."""
    plans = [schedule_steps(rule.steps, notice, 0.0, begin=rule.begin, margin_s=rule.margin_s) for notice in notices_s]
    return [
        (step, [_plan_cell(plan[place], notice) for plan, notice in zip(plans, notices_s, strict=True)])
        for place, step in enumerate(rule.steps)
    ]


def _plan_cell(slot: ScheduledStep, notice_s: float) -> str:
    if slot.cut:
        return "cut"
    if slot.late:
        return "at once, late"
    left = format_duration(notice_s - slot.latest_at)
    return f"at once, by {left} before" if slot.due_at < slot.latest_at else f"{left} before"
