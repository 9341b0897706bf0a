"""Decides the actions for an event that is gone: undo its tried steps, last step first. Pure.

A step that ran once for several events is undone once, for the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forewarn.agent.actions import (
    AgentAction,
    AgentSnapshot,
    CloseEvent,
    RecordStepEnd,
    ResumeStep,
    StartStep,
    StopStep,
    WaitUntil,
)
from forewarn.agent.model import StepConfig, StepPhase
from forewarn.agent.records import TRIED_STATES, EventRecord, StepRun, StepState

UNDO_RETRY_S = 10.0  # before the first retry; doubles with each
MAX_UNDO_RETRY_S = 300.0


def undo_actions(record: EventRecord, snapshot: AgentSnapshot) -> Iterator[AgentAction]:
    """Yield the one next action for an event that is gone: undo or end one step, wait, or close."""
    running = [name for key, name in snapshot.running_tasks if key == record.key]
    if running:
        yield from (StopStep(key=record.key, step=name) for name in running if _is_preparing(record, name))
        return
    for run in _tried_steps(record):
        action = _undo_action(record, run, snapshot)
        if action is not None:
            yield action
            return
    if _is_awaited_by_other_event(record, snapshot):
        yield WaitUntil(key=record.key, reason="another event shares a step and is not finished yet")
    else:
        yield CloseEvent(key=record.key)


def _is_awaited_by_other_event(record: EventRecord, snapshot: AgentSnapshot) -> bool:
    """Whether another event that is gone must still read here that their shared step is undone."""
    shared = (
        other
        for run in _tried_steps(record)
        for other in _events_sharing_step(record, run, snapshot)
        if not _has_undo(other, run)
    )
    return any(other.gone_at is not None for other in shared)


def _has_undo(other: EventRecord, run: StepRun) -> bool:
    return other.step_run(run.step, StepPhase.UNDO) is not None


def _is_preparing(record: EventRecord, name: str) -> bool:
    return record.step_run(name, StepPhase.UNDO) is None


def _tried_steps(record: EventRecord) -> list[StepRun]:
    done = [record.step_run(name) for name in reversed(record.plan)]
    return [run for run in done if run is not None and run.state in TRIED_STATES]


def _undo_action(record: EventRecord, run: StepRun, snapshot: AgentSnapshot) -> AgentAction | None:
    if run.state is StepState.BEGUN:
        return RecordStepEnd(
            key=record.key, step_run=ended_step_run(run, StepState.FAILED, snapshot, "interrupted when the agent ended")
        )
    undo, step = record.step_run(run.step, StepPhase.UNDO), snapshot.steps.get(run.step)
    if undo is None:
        return _first_undo(record, run, step, snapshot)
    if step is None or undo.state in (StepState.DONE, StepState.SKIPPED):
        return None
    if undo.state is StepState.BEGUN:
        return ResumeStep(key=record.key, step=step, phase=StepPhase.UNDO, check_first=not step.repeatable)
    return _retry_undo(record, run, undo, step, snapshot)


def _retry_undo(
    record: EventRecord, run: StepRun, undo: StepRun, step: StepConfig, snapshot: AgentSnapshot
) -> AgentAction | None:
    if undo.tries >= step.undo_tries:
        return None
    if reason := _reason_not_to_undo(record, step, snapshot):
        return RecordStepEnd(key=record.key, step_run=_ended_undo_run(run, StepState.SKIPPED, snapshot, reason))
    again_at = (undo.ended_at or snapshot.now) + min(MAX_UNDO_RETRY_S, UNDO_RETRY_S * 2.0 ** (undo.tries - 1))
    if snapshot.now < again_at:
        return WaitUntil(key=record.key, until=again_at, reason=f"the undo of {step.name} failed and will be retried")
    return StartStep(key=record.key, step=step, phase=StepPhase.UNDO, tries=undo.tries + 1)


def _first_undo(record: EventRecord, run: StepRun, step: StepConfig | None, snapshot: AgentSnapshot) -> AgentAction:
    if step is None:
        text = "the step is no longer configured: undo it by hand"
        return RecordStepEnd(key=record.key, step_run=_ended_undo_run(run, StepState.FAILED, snapshot, text))
    if reason := _reason_not_to_undo(record, step, snapshot):
        return RecordStepEnd(key=record.key, step_run=_ended_undo_run(run, StepState.SKIPPED, snapshot, reason))
    for other in _events_sharing_step(record, run, snapshot):
        undo = other.step_run(run.step, StepPhase.UNDO)
        if undo is not None and undo.state is not StepState.SKIPPED:
            if _is_undo_in_progress(undo, step):
                return WaitUntil(key=record.key, reason=f"{step.name} is being undone for event {other.key}")
            text = f"undone with event {other.key}"
            return RecordStepEnd(key=record.key, step_run=_ended_undo_run(run, StepState.SKIPPED, snapshot, text))
    return StartStep(key=record.key, step=step, phase=StepPhase.UNDO)


def _reason_not_to_undo(record: EventRecord, step: StepConfig, snapshot: AgentSnapshot) -> str:
    rule = snapshot.rules.get(record.rule)
    if step.undo == "never":
        return "this step is never undone"
    if rule is not None and record.outcome not in rule.undo_on:
        return f"the rule does not undo it when the event is {record.outcome}"
    if is_undone_by_reboot(record, step, snapshot):
        return "the reboot undid it"
    needing = next((other for other in snapshot.open_records if _needs_step(other, record, step, snapshot)), None)
    return f"still needed by event {needing.key}" if needing is not None else ""


def is_undone_by_reboot(record: EventRecord, step: StepConfig, snapshot: AgentSnapshot) -> bool:
    run = record.step_run(step.name)
    if step.survives_reboot or run is None or run.state not in TRIED_STATES:
        return False
    return run.boot_id != snapshot.boot_id


def _needs_step(other: EventRecord, record: EventRecord, step: StepConfig, snapshot: AgentSnapshot) -> bool:
    """Whether the other event is listed and has tried the step, and no reboot has undone it since."""
    run = other.step_run(step.name)
    is_live = step.shared_by_events and other.key != record.key and other.gone_at is None
    is_tried = run is not None and run.state in TRIED_STATES
    return is_live and is_tried and not is_undone_by_reboot(other, step, snapshot)


def _events_sharing_step(record: EventRecord, run: StepRun, snapshot: AgentSnapshot) -> list[EventRecord]:
    holder = record.holder_of(run.step)
    others = (other for other in snapshot.open_records if other.key != record.key and other.step_run(run.step))
    return [other for other in others if other.holder_of(run.step) == holder]


def _is_undo_in_progress(undo: StepRun, step: StepConfig) -> bool:
    return undo.state is StepState.BEGUN or (undo.state is StepState.FAILED and undo.tries < step.undo_tries)


def ended_step_run(run: StepRun, state: StepState, snapshot: AgentSnapshot, text: str) -> StepRun:
    """Return a copy of the run that has ended at the snapshot's time with this state and text."""
    return replace(run, state=state, ended_at=snapshot.now, text=text)


def _ended_undo_run(run: StepRun, state: StepState, snapshot: AgentSnapshot, text: str) -> StepRun:
    return StepRun(
        step=run.step,
        phase=StepPhase.UNDO,
        state=state,
        begun_at=snapshot.now,
        ended_at=snapshot.now,
        boot_id=snapshot.boot_id,
        text=text,
    )
