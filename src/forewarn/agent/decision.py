"""Decides the next actions from the journal's open records. Pure and level-triggered.

It gives the same answer however often and by whichever process it is asked. A step that has ended never runs again
for its event; the record of one that was cut is dropped if the event is postponed (`event_tracking`). A step that was
tried is undone once, after the event is gone and no other event needs it. Several events can share one run of a step;
the functions at the end of this file find those events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from forewarn.agent.actions import (
    AgentAction,
    AgentSnapshot,
    CloseEvent,
    RecordStepEnd,
    ResumeStep,
    RunApprovalCheck,
    SendApproval,
    StartStep,
    StopStep,
    WaitUntil,
    record_after_action,
)
from forewarn.agent.approval import ApprovalDecision, decide_by_approval_check, decide_for_all_vms, has_started
from forewarn.agent.model import (
    REUSED_TEXT,
    TRIED_STATES,
    ApprovalState,
    ApproveWhen,
    EventRecord,
    RuleConfig,
    StepConfig,
    StepPhase,
    StepRun,
    StepState,
)
from forewarn.base.duration import exact_duration_text
from forewarn.client.events import event_key
from forewarn.protocol.document import Kind

# Schedules the steps of an event backwards from NotBefore, and cuts steps that do not fit.
#
# A step with a `cut` number may be cut, lowest number first, until the rest fits. Other steps run even if they are
# late. Only the step that is next is cut for good: the steps before it may end early.

StepTiming = Literal["at-once", "late"]  # late: as late as the budgets allow
LateStepPolicy = Literal["essential", "all", "nothing"]  # which steps still run once the event has started


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """A step of an event and when it is to run; `schedule_steps` and `schedule_after_start` make it."""

    step: StepConfig
    due_at: float  # when it begins, if the steps before it are done
    latest_at: float  # if it begins later, the steps may not end by NotBefore less the margin; `now` if that is unknown
    cut: bool = False  # it is not run, for lack of time (unless time is gained) or because the event has started
    late: bool = False  # it is run although the steps may not end in time, or the event has started


def schedule_steps(
    steps: Sequence[StepConfig],
    not_before: float | None,
    now: float,
    *,
    begin: StepTiming = "at-once",
    margin_s: float = 0.0,
) -> tuple[ScheduledStep, ...]:
    """Schedule the steps one after the other, so that their budgets end `margin_s` before `not_before`.

    A step with begin `at-once` is due now, a `late` one at its `latest_at`. If the steps do not fit, those with a `cut`
    number are cut, lowest number first and, of equal numbers, the last step first; if the rest still does not fit, it
    is marked late and scheduled from `now` on. Without a `not_before`, all are due now, and none is cut or late.
    """
    if not_before is None:
        return tuple(ScheduledStep(step=step, due_at=now, latest_at=now) for step in steps)
    end_at = not_before - margin_s
    cut = _steps_to_cut(steps, end_at - now)
    needed_s = sum(step.budget_s for step in steps if step.name not in cut)
    is_late = needed_s > end_at - now
    at = now if is_late else end_at - needed_s

    schedule: list[ScheduledStep] = []
    for step in steps:
        is_cut = step.name in cut
        due_at = now if (step.begin or begin) == "at-once" or is_cut else at
        schedule.append(ScheduledStep(step=step, due_at=due_at, latest_at=at, cut=is_cut, late=is_late and not is_cut))
        at += 0 if is_cut else step.budget_s
    return tuple(schedule)


def schedule_after_start(steps: Sequence[StepConfig], now: float, policy: LateStepPolicy) -> tuple[ScheduledStep, ...]:
    """Schedule the steps of an event that has started; return all of them in their order, due at `now`."""

    def is_cut(step: StepConfig) -> bool:
        return policy == "nothing" or (policy == "essential" and step.cut is not None)

    return tuple(ScheduledStep(step=s, due_at=now, latest_at=now, cut=is_cut(s), late=not is_cut(s)) for s in steps)


def _steps_to_cut(steps: Sequence[StepConfig], available_s: float) -> frozenset[str]:
    """Names of the steps to cut, lowest `cut` first and later before earlier, until the rest fits."""
    needed_s = sum(step.budget_s for step in steps)
    cut: set[str] = set()
    candidates = [(step.cut, -position, step) for position, step in enumerate(steps) if step.cut is not None]
    for _, _, step in sorted(candidates, key=lambda each: each[:2]):
        if needed_s <= available_s:
            break
        cut.add(step.name)
        needed_s -= step.budget_s
    return frozenset(cut)


# Decides the actions for an event that is gone: undo its tried steps, last step first.
#
# A step that ran once for several events is undone once, for the last of them.

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


APPROVAL_RETRY_S = 5.0  # after an approval that was not answered
BOARD_RECHECK_S = 2.0  # while other VMs are not ready


def next_actions(snapshot: AgentSnapshot) -> tuple[AgentAction, ...]:
    """Return the actions to take now, oldest open event first: the next action of each, or a WaitUntil."""
    # Each is decided as if those before it were journalled. After a RecordStepEnd or CloseEvent, call this again.
    actions: list[AgentAction] = []
    for record in snapshot.open_records:
        for action in (
            undo_actions(record, snapshot) if record.gone_at is not None else _preparing_actions(record, snapshot)
        ):
            actions.append(action)
            snapshot = replace(
                snapshot,
                open_records=snapshot.open_records.with_records(
                    record_after_action(record, action, now=snapshot.now, boot_id=snapshot.boot_id)
                ),
            )
    return tuple(actions)


def remaining_schedule(record: EventRecord, snapshot: AgentSnapshot) -> tuple[ScheduledStep, ...]:
    """Return the schedule of the event's steps without a run yet, in their order, at the snapshot's time."""
    steps = [snapshot.steps[name] for name in record.plan if record.step_run(name) is None and name in snapshot.steps]
    rule = snapshot.rules.get(record.rule, RuleConfig(name=""))
    if has_started(record.event):
        return schedule_after_start(steps, snapshot.now, rule.no_time)
    return schedule_steps(steps, record.event.not_before, snapshot.now, begin=rule.begin, margin_s=rule.margin_s)


def is_ready(record: EventRecord, snapshot: AgentSnapshot) -> bool:
    """Return whether all steps of the event are done or skipped, as an approval requires."""
    runs = [record.step_run(name) for name in record.plan]
    if not all(run is not None and run.state in (StepState.DONE, StepState.SKIPPED) for run in runs):
        return False
    steps = (snapshot.steps[name] for name in record.plan if name in snapshot.steps)
    return not any(is_undone_by_reboot(record, step, snapshot) for step in steps)


def resolve_interrupted_step(step: StepConfig, phase: StepPhase, is_done: bool | None) -> StepState | None:
    """Return how an interrupted step or undo counts: DONE, FAILED, or None to run it again."""
    if is_done is None:
        return {"repeat": None, "skip": StepState.DONE, "report": StepState.FAILED}[step.unclear]
    return StepState.DONE if is_done == (phase is StepPhase.DO) else None


def _preparing_actions(record: EventRecord, snapshot: AgentSnapshot) -> Iterator[AgentAction]:
    if any(key == record.key for key, _ in snapshot.running_tasks):
        return
    name = next((name for name in record.plan if _is_step_unfinished(record, name)), None)
    if name is not None:
        yield _next_step_action(record, name, snapshot)
    elif is_ready(record, snapshot) and not has_started(record.event):
        yield from _approval_actions(record, snapshot)


def _is_step_unfinished(record: EventRecord, name: str) -> bool:
    run = record.step_run(name)
    return run is None or run.state is StepState.BEGUN


def _next_step_action(record: EventRecord, name: str, snapshot: AgentSnapshot) -> AgentAction:
    run, step = record.step_run(name), snapshot.steps.get(name)
    if has_started(record.event) and record.boot_id != snapshot.boot_id:
        return _end_step_after_reboot(record, name, run, snapshot)
    if step is None:
        return _end_step(record, name, StepState.SKIPPED, snapshot, "the step is no longer configured")
    if run is not None:
        return ResumeStep(key=record.key, step=step, phase=StepPhase.DO, check_first=not step.repeatable)
    return _begin_step_action(record, step, snapshot)


def _end_step_after_reboot(record: EventRecord, name: str, run: StepRun | None, snapshot: AgentSnapshot) -> AgentAction:
    """Ends a step after the announced reboot: the event is still listed, but nothing is left to prepare."""
    if run is not None:
        return RecordStepEnd(
            key=record.key, step_run=ended_step_run(run, StepState.FAILED, snapshot, "interrupted by the reboot")
        )
    return _end_step(record, name, StepState.SKIPPED, snapshot, "the VM was rebooted before the step began")


def _begin_step_action(record: EventRecord, step: StepConfig, snapshot: AgentSnapshot) -> AgentAction:
    others = _other_events_with_step(record, step, snapshot)
    in_effect = (other for other in others if not _is_undone_with_another(other, others, step))
    sharing = next((other for other in in_effect if _is_step_done_for(other, step, snapshot)), None)
    if sharing is not None:
        return _reuse_step(record, sharing, step, snapshot)
    scheduled = remaining_schedule(record, snapshot)[0]
    if scheduled.cut:
        return _end_step(record, step.name, StepState.CUT, snapshot, _cut_reason(record, snapshot))
    if snapshot.now < scheduled.due_at:
        return WaitUntil(key=record.key, until=scheduled.due_at, reason=f"{step.name} begins late")
    if other_event := next((other for other in others if _is_step_in_progress(other, step)), None):
        return WaitUntil(key=record.key, reason=f"{step.name} is running for event {other_event.key}")
    return StartStep(key=record.key, step=step, phase=StepPhase.DO, holder=_first_tried_event(others, step, snapshot))


def _reuse_step(record: EventRecord, other: EventRecord, step: StepConfig, snapshot: AgentSnapshot) -> RecordStepEnd:
    theirs = other.step_run(step.name)
    assert theirs is not None
    return RecordStepEnd(
        key=record.key,
        step_run=StepRun(
            step=theirs.step,
            state=StepState.DONE,
            begun_at=snapshot.now,
            ended_at=snapshot.now,
            boot_id=theirs.boot_id,
            text=f"{REUSED_TEXT} {other.key}",
            notes=theirs.notes,
            holder=other.holder_of(theirs.step),
        ),
    )


def _end_step(record: EventRecord, name: str, state: StepState, snapshot: AgentSnapshot, text: str) -> RecordStepEnd:
    run = StepRun(
        step=name, state=state, begun_at=snapshot.now, ended_at=snapshot.now, boot_id=snapshot.boot_id, text=text
    )
    return RecordStepEnd(key=record.key, step_run=run)


def _cut_reason(record: EventRecord, snapshot: AgentSnapshot) -> str:
    if has_started(record.event):
        return "the event has started"
    left = (record.event.not_before or snapshot.now) - snapshot.now
    return f"no time: {exact_duration_text(max(0, round(left)))} left"


def _approval_actions(record: EventRecord, snapshot: AgentSnapshot) -> Iterator[AgentAction]:
    rule, approval = snapshot.rules.get(record.rule), record.approval
    if rule is None or rule.approve.when is ApproveWhen.NEVER or record.event.kind == Kind.SPOT_REBALANCE:
        return
    if approval is not None and approval.state is not ApprovalState.ASKED:
        return
    if approval is not None:
        due_at = approval.at + APPROVAL_RETRY_S
        yield (
            WaitUntil(key=record.key, until=due_at, reason="the approval was sent, waiting for the answer")
            if snapshot.now < due_at
            else _send_approval(record)
        )
        return
    decision = _readiness_decision(record, rule, snapshot)
    if not decision.is_approved:
        yield WaitUntil(key=record.key, until=decision.recheck_at, reason=decision.reason)
    elif rule.approval_check is None:
        yield _send_approval(record)
    else:
        yield _action_after_approval_check(record, rule, snapshot)


def _send_approval(record: EventRecord) -> SendApproval:
    return SendApproval(key=record.key)


def _readiness_decision(record: EventRecord, rule: RuleConfig, snapshot: AgentSnapshot) -> ApprovalDecision:
    if rule.approve.when is not ApproveWhen.ALL_DONE:
        return ApprovalDecision(is_approved=True)
    ends = [run.ended_at or run.begun_at for run in record.step_runs]
    decision = decide_for_all_vms(
        event_key(record.event),
        record.event.resources,
        snapshot.vm,
        snapshot.board,
        waited_s=snapshot.now - max(ends, default=record.seen_at),
        absent_after_s=rule.approve.absent_after_s,
    )
    return (
        decision
        if decision.is_approved
        else ApprovalDecision(is_approved=False, reason=decision.reason, recheck_at=snapshot.now + BOARD_RECHECK_S)
    )


def _action_after_approval_check(record: EventRecord, rule: RuleConfig, snapshot: AgentSnapshot) -> AgentAction:
    assert rule.approval_check is not None
    decision = decide_by_approval_check(rule.approval_check, record.approval_check, snapshot.now)
    if decision.is_approved:
        return _send_approval(record)
    if decision.recheck_at is not None and decision.recheck_at <= snapshot.now:
        return RunApprovalCheck(key=record.key, check=rule.approval_check)
    return WaitUntil(key=record.key, until=decision.recheck_at, reason=decision.reason)


def _is_step_done_for(other: EventRecord, step: StepConfig, snapshot: AgentSnapshot) -> bool:
    """True if the step is done for the other event, and neither an undo has begun nor a reboot undone it."""
    run = other.step_run(step.name)
    is_done = run is not None and run.state is StepState.DONE and other.step_run(step.name, StepPhase.UNDO) is None
    return is_done and not is_undone_by_reboot(other, step, snapshot)


def _is_undone_with_another(other: EventRecord, others: list[EventRecord], step: StepConfig) -> bool:
    # Its own record does not say so yet. An undo that ended before the run began concerns an earlier run.
    run = other.step_run(step.name)
    assert run is not None  # as for all of `_other_events_with_step`
    shared = (each for each in others if each.holder_of(step.name) == other.holder_of(step.name))
    undos = (each.step_run(step.name, StepPhase.UNDO) for each in shared)
    return any(
        undo is not None
        and undo.state is not StepState.SKIPPED
        and (undo.ended_at is None or undo.ended_at > run.begun_at)
        for undo in undos
    )


def _is_step_in_progress(other: EventRecord, step: StepConfig) -> bool:
    runs = (other.step_run(step.name, phase) for phase in StepPhase)
    return any(run is not None and run.state is StepState.BEGUN for run in runs)


def _first_tried_event(others: list[EventRecord], step: StepConfig, snapshot: AgentSnapshot) -> str:
    """The key of the event for which the step was first tried and not yet undone; "" if none."""
    # The folder of that event has the undo notes about the original state; a later run must use them.
    undos = (
        (other, other.step_run(step.name, StepPhase.UNDO))
        for other in others
        if not is_undone_by_reboot(other, step, snapshot)
    )
    tried = (other for other, undo in undos if undo is None or undo.state is StepState.FAILED)
    return next((other.holder_of(step.name) for other in tried), "")


def _other_events_with_step(record: EventRecord, step: StepConfig, snapshot: AgentSnapshot) -> list[EventRecord]:
    if not step.shared_by_events:
        return []
    return [other for other in snapshot.open_records if other.key != record.key and _has_tried_step(other, step.name)]


def _has_tried_step(other: EventRecord, name: str) -> bool:
    run = other.step_run(name)
    return run is not None and run.state in TRIED_STATES
