"""The actions that the agent can take next, and the snapshot that it decides on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forewarn.agent.approval import BoardView
from forewarn.agent.model import ApprovalCheckConfig, RuleConfig, StepConfig, StepPhase
from forewarn.agent.records import ApprovalCheckRecord, ApprovalRecord, ApprovalState, EventRecord, OpenRecords, StepRun

TaskKey = tuple[str, str]  # key of an event, and a step's name, APPROVAL_CHECK_TASK or APPROVAL_TASK
APPROVAL_CHECK_TASK, APPROVAL_TASK = "(gate)", "(approval)"  # not valid as names of steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSnapshot:
    """Everything a decision depends on, at one instant; `AgentDaemon.snapshot` makes it."""

    open_records: OpenRecords  # the journal's
    rules: Mapping[str, RuleConfig]  # the configured ones, by name
    steps: Mapping[str, StepConfig]  # the configured ones, by name
    vm: str  # this VM's name; "" until it is known
    now: float  # the server's time, in POSIX seconds
    boot_id: str  # of the current boot
    running_tasks: frozenset[TaskKey] = frozenset()  # of this process
    board: BoardView = field(default_factory=BoardView)  # what all VMs published, this one too; empty: none or not read


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStep:
    """Action: journal the step (or its undo) as begun, then run it."""

    key: str  # of the event's record
    step: StepConfig
    phase: StepPhase
    tries: int = 1  # which try this is; more than 1 only for an undo
    holder: str = ""  # of a `do`: key of the event for which the step was tried before, whose folder it uses; "": none


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStep:
    """Action: continue a step (or its undo) that is journalled as begun and that no task runs."""

    key: str  # of the event's record
    step: StepConfig
    phase: StepPhase
    check_first: bool  # run its `check` and decide by that; False: run it again


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStepEnd:
    """Action: journal the end of a step (or undo) that is not run, or was interrupted.

    It was cut (no time), skipped, reused (done already for another event), or interrupted.
    """

    key: str  # of the event's record
    step_run: StepRun  # with state, text and time of the end


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStep:
    """Action: cancel a task that still prepares for an event, because the event is gone."""

    key: str  # of the event's record
    step: str  # the second part of the task's TaskKey: a step's name, APPROVAL_CHECK_TASK or APPROVAL_TASK


@dataclass(frozen=True, slots=True, kw_only=True)
class RunApprovalCheck:
    """Action: journal the try, then run the approval check (the rule's command or webhook) once."""

    key: str  # of the event's record
    check: ApprovalCheckConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SendApproval:
    """Action: journal the approval of the event as asked, then send it to the endpoint."""

    key: str  # of the event's record


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEvent:
    """Action: close the record of an event that is gone, and of which no undo is left to try."""

    key: str  # of the event's record


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitUntil:
    """No action: there is nothing to do for this event before `until`."""

    key: str  # of the event's record
    until: float | None = None  # server time in POSIX seconds; None: until something changes
    reason: str = ""  # what the event waits for, for people


AgentAction = (
    StartStep | ResumeStep | RecordStepEnd | StopStep | RunApprovalCheck | SendApproval | CloseEvent | WaitUntil
)


def record_after_action(record: EventRecord, action: AgentAction, *, now: float, boot_id: str) -> EventRecord:
    """The record to journal before the action is carried out, at server time `now`; `record` is unchanged.

    Adds the begun run of a StartStep, the run of a RecordStepEnd, the try of a RunApprovalCheck, or an approval in
    state ASKED; closes for CloseEvent. A resumed step gets `boot_id`, because a later reboot undoes what it does now.
    Returns the record itself for an action that is not journalled: stop, wait, or a resume in the same boot.
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
