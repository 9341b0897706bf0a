"""The actions that the agent can take next, and the snapshot that it decides on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forewarn.agent.approval import BoardView
from forewarn.agent.model import (
    ApprovalCheckConfig,
    ApprovalCheckRecord,
    ApprovalRecord,
    ApprovalState,
    EventRecord,
    OpenRecords,
    RuleConfig,
    StepConfig,
    StepPhase,
    StepRun,
)

TaskKey = tuple[str, str]  # key of an event, and a step's name, APPROVAL_CHECK_TASK or APPROVAL_TASK
APPROVAL_CHECK_TASK, APPROVAL_TASK = "(gate)", "(approval)"  # not valid as names of steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSnapshot:
    """The agent's state at one instant: everything that decides its next actions."""

    open_records: OpenRecords  # all records of the journal that are not closed
    rules: Mapping[str, RuleConfig]  # the configured ones, by name
    steps: Mapping[str, StepConfig]  # the configured ones, by name
    vm: str  # this VM's name; "" until it is known
    now: float  # the server's time, in POSIX seconds
    boot_id: str  # the kernel's id of the current boot
    running_tasks: frozenset[TaskKey] = frozenset()  # keys of the tasks that this process runs now
    board: BoardView = field(default_factory=BoardView)  # what all VMs published, this one too; empty: none or not read


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStep:
    """Action: journal a step of an event (phase DO) or its undo (phase UNDO) as begun, then run it."""

    key: str  # the key of the event's record
    step: StepConfig  # the configured step
    phase: StepPhase  # DO: the step itself; UNDO: its undo
    tries: int = 1  # which try this is; more than 1 only for an undo
    holder: str = ""  # of a `do`: key of the event for which the step was tried before, whose folder it uses; "": none


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStep:
    """Action: continue a step (or its undo) that is journalled as begun although no task runs it."""

    key: str  # the key of the event's record
    step: StepConfig
    phase: StepPhase  # DO: the step itself; UNDO: its undo
    check_first: bool  # True: ask its reaction's `check`, and decide by that; False: run the step again at once


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStepEnd:
    """Action: only journal the end of a step (or undo) that was interrupted, or that is not run at all."""

    key: str  # the key of the event's record
    step_run: StepRun  # the run to journal, with state, text and time of its end


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStep:
    """Action: cancel a running task that still prepares for an event, because the event is gone."""

    key: str  # the key of the event's record
    step: str  # the second part of the task's TaskKey: a step's name, APPROVAL_CHECK_TASK or APPROVAL_TASK


@dataclass(frozen=True, slots=True, kw_only=True)
class RunApprovalCheck:
    """Action: journal the try, then run the approval check of the event's rule (command or webhook) once."""

    key: str  # the key of the event's record
    check: ApprovalCheckConfig  # the command or URL, and its times


@dataclass(frozen=True, slots=True, kw_only=True)
class SendApproval:
    """Action: journal the approval of the event as asked, then send it to the endpoint."""

    key: str  # the key of the event's record


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEvent:
    """Action: journal the record of an event as closed: the event is gone, and no undo is left to try."""

    key: str  # the key of the event's record


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitUntil:
    """Says that nothing is to be done for an event before `until`, and what the event waits for."""

    key: str  # the key of the event's record
    until: float | None = None  # server time in POSIX seconds; None: until an event, a task or the board changes
    reason: str = ""  # what the event waits for, for people


AgentAction = (
    StartStep | ResumeStep | RecordStepEnd | StopStep | RunApprovalCheck | SendApproval | CloseEvent | WaitUntil
)


def record_after_action(record: EventRecord, action: AgentAction, *, now: float, boot_id: str) -> EventRecord:
    """Return the record as it must be journalled before the action is carried out.

    A resumed step gets `boot_id`, because a later reboot undoes what it does now. Returns `record` itself for an action
    that is not journalled: a stop, a wait, or a resume in the same boot.
    """
    match action:
        case StartStep():
            return record.with_step_run(
                StepRun(
                    step=action.step.name,
                    phase=action.phase,
                    begun_at=now,
                    boot_id=boot_id,
                    tries=action.tries,
                    holder=action.holder,
                )
            )
        case ResumeStep(step=step, phase=phase):
            begun = record.step_run(step.name, phase)
            if begun is None or begun.boot_id == boot_id:
                return record
            return record.with_step_run(replace(begun, boot_id=boot_id))
        case RecordStepEnd(step_run=run):
            return record.with_step_run(run)
        case RunApprovalCheck():
            first_at = record.approval_check.first_at if record.approval_check else now
            return replace(record, approval_check=ApprovalCheckRecord(first_at=first_at, asked_at=now))
        case SendApproval():
            return replace(record, approval=ApprovalRecord(state=ApprovalState.ASKED, at=now))
        case CloseEvent():
            return replace(record, closed=True)
        case _:
            return record
