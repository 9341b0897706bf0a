"""Decides the next actions from the journal's open records. Pure and level-triggered.

It gives the same answer however often and by whichever process it is asked. A step that has ended never runs again
for its event. A step that was tried is undone once, after the event is gone and no other event needs it. Several
events can share one run of a step; the functions at the end of this file find those events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forewarn.agent.actions import (
    AgentAction,
    AgentSnapshot,
    RecordStepEnd,
    ResumeStep,
    RunApprovalCheck,
    SendApproval,
    StartStep,
    WaitUntil,
    record_after_action,
)
from forewarn.agent.approval import ApprovalDecision, decide_by_approval_check, decide_for_all_vms
from forewarn.agent.model import ApproveWhen, RuleConfig, StepConfig, StepPhase
from forewarn.agent.records import REUSED_TEXT, TRIED_STATES, ApprovalState, EventRecord, StepRun, StepState
from forewarn.agent.rules import has_started
from forewarn.agent.step_schedule import ScheduledStep, schedule_after_start, schedule_steps
from forewarn.agent.undo import ended_step_run, undo_actions
from forewarn.client.events import event_key

APPROVAL_RETRY_S = 5.0  # an approval without an answer
BOARD_RECHECK_S = 2.0  # at the board, while others are not ready


def next_actions(now: AgentSnapshot) -> tuple[AgentAction, ...]:
    """At most one move that leads on per event, each decided as if those before it were made."""
    moves: list[AgentAction] = []
    for record in now.open_records:
        for move in undo_actions(record, now) if record.gone_at is not None else _preparing_actions(record, now):
            moves.append(move)
            now = replace(
                now,
                open_records=now.open_records.with_record(
                    record_after_action(record, move, now=now.now, boot_id=now.boot_id)
                ),
            )
    return tuple(moves)


def remaining_schedule(record: EventRecord, now: AgentSnapshot) -> tuple[ScheduledStep, ...]:
    """When the steps that are still to come are due."""
    steps = [now.steps[name] for name in record.plan if record.step_run(name) is None and name in now.steps]
    rule = now.rules.get(record.rule, RuleConfig(name=""))
    if has_started(record.event):
        return schedule_after_start(steps, now.now, rule.no_time)
    return schedule_steps(steps, record.event.not_before, now.now, begin=rule.begin, margin_s=rule.margin_s)


def is_ready(record: EventRecord, now: AgentSnapshot) -> bool:
    """Whether all steps are done: what an approval takes. One that failed, was cut, or was undone by a reboot before
    the event started forbids it.
    """
    deeds = [record.step_run(name) for name in record.plan]
    if not all(deed is not None and deed.state in (StepState.DONE, StepState.SKIPPED) for deed in deeds):
        return False
    steps = (now.steps[name] for name in record.plan if name in now.steps)
    return not any(is_undone_by_reboot(record, step, now) for step in steps)


def resolve_interrupted_step(step: StepConfig, phase: StepPhase, is_done: bool | None) -> StepState | None:
    """The end of a step that was found begun, by what its check says of `do`; None: run it again."""
    if is_done is None:
        return {"repeat": None, "skip": StepState.DONE, "report": StepState.FAILED}[step.unclear]
    return StepState.DONE if is_done == (phase is StepPhase.DO) else None


def _preparing_actions(record: EventRecord, now: AgentSnapshot) -> Iterator[AgentAction]:
    if any(key == record.key for key, _ in now.running_tasks):
        return
    name = next((name for name in record.plan if _is_step_unfinished(record, name)), None)
    if name is not None:
        yield _next_step_action(record, name, now)
    elif is_ready(record, now) and not has_started(record.event):
        yield from _approval_actions(record, now)


def _is_step_unfinished(record: EventRecord, name: str) -> bool:
    deed = record.step_run(name)
    return deed is None or deed.state is StepState.BEGUN


def _next_step_action(record: EventRecord, name: str, now: AgentSnapshot) -> AgentAction:
    deed, step = record.step_run(name), now.steps.get(name)
    if has_started(record.event) and record.boot_id != now.boot_id:
        return _end_step_after_reboot(record, name, deed, now)
    if step is None:
        return _end_step(record, name, StepState.SKIPPED, now, "the step is no longer configured")
    if deed is not None:
        return ResumeStep(key=record.key, step=step, phase=StepPhase.DO, check_first=not step.repeatable)
    return _begin_step_action(record, step, now)


def _end_step_after_reboot(record: EventRecord, name: str, deed: StepRun | None, now: AgentSnapshot) -> AgentAction:
    """The event is still listed for a while after the reboot it announced: nothing is left to prepare."""
    if deed is not None:
        return RecordStepEnd(
            key=record.key, step_run=ended_step_run(deed, StepState.FAILED, now, "cut off by the reboot")
        )
    return _end_step(record, name, StepState.SKIPPED, now, "the VM was rebooted before it began")


def _begin_step_action(record: EventRecord, step: StepConfig, now: AgentSnapshot) -> AgentAction:
    others = other_events_with_step(record, step, now)
    held = next((other for other in others if is_step_done_for(other, step, now)), None)
    if held is not None:
        return _reuse_step(record, held, step, now)
    slot = remaining_schedule(record, now)[0]
    if slot.cut:
        return _end_step(record, step.name, StepState.CUT, now, _cut_reason(record, now))
    if now.now < slot.due_at:
        return WaitUntil(key=record.key, until=slot.due_at, reason=f"{step.name} begins late")
    if busy := next((other for other in others if is_step_in_progress(other, step)), None):
        return WaitUntil(key=record.key, reason=f"{step.name} is under way for event {busy.key}")
    return StartStep(key=record.key, step=step, phase=StepPhase.DO, holder=first_tried_event(others, step, now))


def _reuse_step(record: EventRecord, other: EventRecord, step: StepConfig, now: AgentSnapshot) -> RecordStepEnd:
    theirs = other.step_run(step.name)
    assert theirs is not None
    return RecordStepEnd(
        key=record.key,
        step_run=StepRun(
            step=theirs.step,
            state=StepState.DONE,
            begun_at=now.now,
            ended_at=now.now,
            boot_id=theirs.boot_id,
            text=f"{REUSED_TEXT} {other.key}",
            notes=theirs.notes,
            holder=other.holder_of(theirs.step),
        ),
    )


def _end_step(record: EventRecord, name: str, state: StepState, now: AgentSnapshot, text: str) -> RecordStepEnd:
    deed = StepRun(step=name, state=state, begun_at=now.now, ended_at=now.now, boot_id=now.boot_id, text=text)
    return RecordStepEnd(key=record.key, step_run=deed)


def _cut_reason(record: EventRecord, now: AgentSnapshot) -> str:
    if has_started(record.event):
        return "the event has started"
    left = (record.event.not_before or now.now) - now.now
    return f"no time: {max(0.0, left):.0f} s are left"


def _approval_actions(record: EventRecord, now: AgentSnapshot) -> Iterator[AgentAction]:
    rule, approval = now.rules.get(record.rule), record.approval
    if rule is None or rule.approve.when is ApproveWhen.NEVER:
        return
    if approval is not None and approval.state is not ApprovalState.ASKED:
        return
    if approval is not None:
        due_at = approval.at + APPROVAL_RETRY_S
        yield (
            WaitUntil(key=record.key, until=due_at, reason="asked for approval")
            if now.now < due_at
            else _send_approval(record)
        )
        return
    verdict = _readiness_decision(record, rule, now)
    if not verdict.is_approved:
        yield WaitUntil(key=record.key, until=verdict.recheck_at, reason=verdict.reason)
    elif rule.approval_check is None:
        yield _send_approval(record)
    else:
        yield _action_after_approval_check(record, rule, now)


def _send_approval(record: EventRecord) -> SendApproval:
    return SendApproval(key=record.key)


def _readiness_decision(record: EventRecord, rule: RuleConfig, now: AgentSnapshot) -> ApprovalDecision:
    if rule.approve.when is not ApproveWhen.ALL_DONE:
        return ApprovalDecision(is_approved=True)
    ends = [deed.ended_at or deed.begun_at for deed in record.step_runs]
    verdict = decide_for_all_vms(
        event_key(record.event),
        record.event.resources,
        now.vm,
        now.board,
        waited_s=now.now - max(ends, default=record.seen_at),
        absent_after_s=rule.approve.absent_after_s,
    )
    return (
        verdict
        if verdict.is_approved
        else ApprovalDecision(is_approved=False, reason=verdict.reason, recheck_at=now.now + BOARD_RECHECK_S)
    )


def _action_after_approval_check(record: EventRecord, rule: RuleConfig, now: AgentSnapshot) -> AgentAction:
    assert rule.approval_check is not None
    verdict = decide_by_approval_check(rule.approval_check, record.approval_check, now.now)
    if verdict.is_approved:
        return _send_approval(record)
    if verdict.recheck_at is not None and verdict.recheck_at <= now.now:
        return RunApprovalCheck(key=record.key, check=rule.approval_check)
    return WaitUntil(key=record.key, until=verdict.recheck_at, reason=verdict.reason)


def is_step_done_for(other: EventRecord, step: StepConfig, now: AgentSnapshot) -> bool:
    """Whether the step is done for the other event, and stays so while any event needs it."""
    deed = other.step_run(step.name)
    is_done = deed is not None and deed.state is StepState.DONE and other.step_run(step.name, StepPhase.UNDO) is None
    return is_done and not is_undone_by_reboot(other, step, now)


def is_undone_by_reboot(record: EventRecord, step: StepConfig, now: AgentSnapshot) -> bool:
    """Whether a reboot has undone what was tried for this event."""
    deed = record.step_run(step.name)
    return not step.survives_reboot and deed is not None and deed.boot_id != now.boot_id


def is_step_in_progress(other: EventRecord, step: StepConfig) -> bool:
    deeds = (other.step_run(step.name, phase) for phase in StepPhase)
    return any(deed is not None and deed.state is StepState.BEGUN for deed in deeds)


def first_tried_event(others: list[EventRecord], step: StepConfig, now: AgentSnapshot) -> str:
    """The event for which the step was tried, perhaps in part, and not undone: how it found things is known there, and
    whoever goes on from here must undo that too.
    """
    undos = (
        (other, other.step_run(step.name, StepPhase.UNDO))
        for other in others
        if not is_undone_by_reboot(other, step, now)
    )
    tried = (other for other, undo in undos if undo is None or undo.state is StepState.FAILED)
    return next((other.holder_of(step.name) for other in tried), "")


def other_events_with_step(record: EventRecord, step: StepConfig, now: AgentSnapshot) -> list[EventRecord]:
    if not step.shared_by_events:
        return []
    return [other for other in now.open_records if other.key != record.key and _has_tried_step(other, step.name)]


def _has_tried_step(other: EventRecord, name: str) -> bool:
    deed = other.step_run(name)
    return deed is not None and deed.state in TRIED_STATES
