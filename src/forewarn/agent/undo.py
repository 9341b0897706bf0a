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

UNDO_RETRY_S = 10.0
MAX_UNDO_RETRY_S = 300.0


def undo_actions(record: EventRecord, now: AgentSnapshot) -> Iterator[AgentAction]:
    running = [name for key, name in now.running_tasks if key == record.key]
    if running:
        yield from (StopStep(key=record.key, step=name) for name in running if _is_preparing(record, name))
        return
    for deed in _tried_steps(record):
        move = _undo_action(record, deed, now)
        if move is not None:
            yield move
            return
    if _is_awaited_by_other_event(record, now):
        yield WaitUntil(key=record.key, reason="another event shares a step and is not settled yet")
    else:
        yield CloseEvent(key=record.key)


def _is_awaited_by_other_event(record: EventRecord, now: AgentSnapshot) -> bool:
    """Whether another event has still to read here that a step which they shared is undone."""
    shared = (
        other
        for deed in _tried_steps(record)
        for other in _events_sharing_step(record, deed, now)
        if not _has_undo(other, deed)
    )
    return any(other.gone_at is not None for other in shared)


def _has_undo(other: EventRecord, deed: StepRun) -> bool:
    return other.step_run(deed.step, StepPhase.UNDO) is not None


def _is_preparing(record: EventRecord, name: str) -> bool:
    return record.step_run(name, StepPhase.UNDO) is None


def _tried_steps(record: EventRecord) -> list[StepRun]:
    """What was tried, in the opposite order of the plan."""
    done = [record.step_run(name) for name in reversed(record.plan)]
    return [deed for deed in done if deed is not None and deed.state in TRIED_STATES]


def _undo_action(record: EventRecord, deed: StepRun, now: AgentSnapshot) -> AgentAction | None:
    """None: this step needs nothing more."""
    if deed.state is StepState.BEGUN:
        return RecordStepEnd(
            key=record.key, step_run=ended_step_run(deed, StepState.FAILED, now, "cut off when the agent ended")
        )
    undo, step = record.step_run(deed.step, StepPhase.UNDO), now.steps.get(deed.step)
    if undo is None:
        return _first_undo(record, deed, step, now)
    if step is None or undo.state in (StepState.DONE, StepState.SKIPPED):
        return None
    if undo.state is StepState.BEGUN:
        return ResumeStep(key=record.key, step=step, phase=StepPhase.UNDO, check_first=not step.repeatable)
    return _retry_undo(record, deed, undo, step, now)


def _retry_undo(
    record: EventRecord, deed: StepRun, undo: StepRun, step: StepConfig, now: AgentSnapshot
) -> AgentAction | None:
    """After an undo that failed."""
    if undo.tries >= step.undo_tries:
        return None
    if why_not := _reason_not_to_undo(record, deed, step, now):
        return RecordStepEnd(key=record.key, step_run=_ended_undo_run(deed, StepState.SKIPPED, now, why_not))
    again_at = (undo.ended_at or now.now) + min(MAX_UNDO_RETRY_S, UNDO_RETRY_S * 2.0 ** (undo.tries - 1))
    if now.now < again_at:
        return WaitUntil(key=record.key, until=again_at, reason=f"the undo of {step.name} failed and is tried again")
    return StartStep(key=record.key, step=step, phase=StepPhase.UNDO, tries=undo.tries + 1)


def _first_undo(record: EventRecord, deed: StepRun, step: StepConfig | None, now: AgentSnapshot) -> AgentAction:
    if step is None:
        text = "the step is no longer configured: undo it by hand"
        return RecordStepEnd(key=record.key, step_run=_ended_undo_run(deed, StepState.FAILED, now, text))
    if why_not := _reason_not_to_undo(record, deed, step, now):
        return RecordStepEnd(key=record.key, step_run=_ended_undo_run(deed, StepState.SKIPPED, now, why_not))
    for other in _events_sharing_step(record, deed, now):
        undo = other.step_run(deed.step, StepPhase.UNDO)
        if undo is not None and undo.state is not StepState.SKIPPED:
            if _is_undo_in_progress(undo, step):
                return WaitUntil(key=record.key, reason=f"{step.name} is being undone for event {other.key}")
            text = f"undone with event {other.key}"
            return RecordStepEnd(key=record.key, step_run=_ended_undo_run(deed, StepState.SKIPPED, now, text))
    return StartStep(key=record.key, step=step, phase=StepPhase.UNDO)


def _reason_not_to_undo(record: EventRecord, deed: StepRun, step: StepConfig, now: AgentSnapshot) -> str:
    rule = now.rules.get(record.rule)
    if step.undo == "never":
        return "this step is never undone"
    if rule is not None and record.outcome not in rule.undo_on:
        return f"not to be undone when the event is {record.outcome}"
    if not step.survives_reboot and deed.boot_id != now.boot_id:
        return "the reboot has undone it"
    needing = next((other for other in now.open_records if _needs_step(other, record, step)), None)
    return f"still needed by event {needing.key}" if needing is not None else ""


def _needs_step(other: EventRecord, record: EventRecord, step: StepConfig) -> bool:
    deed = other.step_run(step.name)
    is_live = step.shared_by_events and other.key != record.key and other.gone_at is None
    return is_live and deed is not None and deed.state in TRIED_STATES


def _events_sharing_step(record: EventRecord, deed: StepRun, now: AgentSnapshot) -> list[EventRecord]:
    """Other events for which the same doing of this step counts."""
    holder = record.holder_of(deed.step)
    others = (other for other in now.open_records if other.key != record.key and other.step_run(deed.step))
    return [other for other in others if other.holder_of(deed.step) == holder]


def _is_undo_in_progress(undo: StepRun, step: StepConfig) -> bool:
    return undo.state is StepState.BEGUN or (undo.state is StepState.FAILED and undo.tries < step.undo_tries)


def ended_step_run(deed: StepRun, state: StepState, now: AgentSnapshot, text: str) -> StepRun:
    return replace(deed, state=state, ended_at=now.now, text=text)


def _ended_undo_run(deed: StepRun, state: StepState, now: AgentSnapshot, text: str) -> StepRun:
    return StepRun(
        step=deed.step,
        phase=StepPhase.UNDO,
        state=state,
        begun_at=now.now,
        ended_at=now.now,
        boot_id=now.boot_id,
        text=text,
    )
