"""The actions that the agent can take next, and the snapshot that it decides on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forewarn.agent.approval import BoardView
from forewarn.agent.model import ApprovalCheckConfig, RuleConfig, StepConfig, StepPhase
from forewarn.agent.records import ApprovalCheckRecord, ApprovalRecord, ApprovalState, EventRecord, OpenRecords, StepRun

TaskKey = tuple[str, str]  # the key of an event, and what is under way for it: the name of a step, GATE or APPROVAL
APPROVAL_CHECK_TASK, APPROVAL_TASK = "(gate)", "(approval)"  # no step is called so


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSnapshot:
    """Everything a decision depends on."""

    open_records: OpenRecords
    rules: Mapping[str, RuleConfig]
    steps: Mapping[str, StepConfig]
    vm: str
    now: float
    boot_id: str
    running_tasks: frozenset[TaskKey] = frozenset()  # what this process has under way
    board: BoardView = field(default_factory=BoardView)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStep:
    """Journal the step (or its undo) as begun, then run it."""

    key: str
    step: StepConfig
    phase: StepPhase
    tries: int = 1
    holder: str = ""  # the event whose unfinished try is gone on with; "": this one begins anew


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStep:
    """The step was found begun without outcome: run it again, or ask its check first."""

    key: str
    step: StepConfig
    phase: StepPhase
    check_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStepEnd:
    """Journal an end that needs no running: cut, skipped, held by another event, cut off."""

    key: str
    step_run: StepRun


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStep:
    """The event is gone while a step for it is running: end that."""

    key: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunApprovalCheck:
    key: str
    check: ApprovalCheckConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SendApproval:
    """Journal that the approval is asked for, then send it."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEvent:
    """Nothing is left to do for an event that is gone."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitUntil:
    """Nothing to do before `until` for this event; `why` is for people."""

    key: str
    until: float | None = None
    reason: str = ""


AgentAction = (
    StartStep | ResumeStep | RecordStepEnd | StopStep | RunApprovalCheck | SendApproval | CloseEvent | WaitUntil
)


def record_after_action(record: EventRecord, move: AgentAction, *, now: float, boot_id: str) -> EventRecord:
    """The record once the move stands in the journal: before anything is run or sent."""
    match move:
        case StartStep():
            return record.with_step_run(
                StepRun(
                    step=move.step.name,
                    phase=move.phase,
                    begun_at=now,
                    boot_id=boot_id,
                    tries=move.tries,
                    holder=move.holder,
                )
            )
        case RecordStepEnd(step_run=deed):
            return record.with_step_run(deed)
        case RunApprovalCheck():
            first_at = record.approval_check.first_at if record.approval_check else now
            return replace(record, approval_check=ApprovalCheckRecord(first_at=first_at, asked_at=now))
        case SendApproval():
            return replace(record, approval=ApprovalRecord(state=ApprovalState.ASKED, at=now))
        case CloseEvent():
            return replace(record, closed=True)
        case _:
            return record
