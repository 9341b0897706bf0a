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
    """Everything a decision depends on, at one instant."""

    open_records: OpenRecords
    rules: Mapping[str, RuleConfig]  # the configured ones, by name
    steps: Mapping[str, StepConfig]  # the configured ones, by name
    vm: str  # this VM's name
    now: float  # the server's time
    boot_id: str
    running_tasks: frozenset[TaskKey] = frozenset()  # of this process
    board: BoardView = field(default_factory=BoardView)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStep:
    """Journal the step (or its undo) as begun, then run it."""

    key: str
    step: StepConfig
    phase: StepPhase
    tries: int = 1
    holder: str = ""  # key of the event whose failed try this one continues; "": none


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStep:
    """Continue a step that was interrupted: run its check first if `check_first`, else run it again."""

    key: str
    step: StepConfig
    phase: StepPhase
    check_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStepEnd:
    """Journal the end of a step that is not run: cut, skipped, reused or interrupted."""

    key: str
    step_run: StepRun


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStep:
    """Cancel a running step, because its event is gone."""

    key: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunApprovalCheck:
    """Journal the try, then run the approval check."""

    key: str
    check: ApprovalCheckConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SendApproval:
    """Journal the approval as asked, then send it."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEvent:
    """Close the record of an event that is gone and fully undone."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitUntil:
    """Nothing to do for this event before `until` (None: until something changes); `reason` is for people."""

    key: str
    until: float | None = None
    reason: str = ""


AgentAction = (
    StartStep | ResumeStep | RecordStepEnd | StopStep | RunApprovalCheck | SendApproval | CloseEvent | WaitUntil
)


def record_after_action(record: EventRecord, action: AgentAction, *, now: float, boot_id: str) -> EventRecord:
    """The record as it is journalled before the action is carried out, at server time `now`.

    A resumed step belongs to the current boot, because a later reboot undoes what it does now. Returns the record
    itself for an action that is not journalled: stop, wait, or a resume in the same boot.
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
