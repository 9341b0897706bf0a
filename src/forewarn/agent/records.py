"""The journal's records as immutable values: each event, its step runs and its approval. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from forewarn.agent.model import Event, StepPhase


class StepState(StrEnum):
    """The state of one run of a step, or of its undo."""

    BEGUN = "begun"  # running, or interrupted
    DONE = "done"  # it succeeded, or was already done for another event
    FAILED = "failed"  # perhaps done in part, so it is undone
    CUT = "cut"  # not run: there was no time
    SKIPPED = "skipped"  # not run for another reason


TRIED_STATES = frozenset({StepState.BEGUN, StepState.DONE, StepState.FAILED})  # the step may have had an effect
REUSED_TEXT = "done already for event"  # begins the stored text of a reused run
LOST_STEP_TEXT = "the journal was damaged: the outcome is not known"  # the stored text of a run that a repair lost


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """One step of an event, or its undo, as journalled. Times are the server's, in POSIX seconds."""

    step: str
    phase: StepPhase = StepPhase.DO
    state: StepState = StepState.BEGUN
    begun_at: float
    ended_at: float | None = None  # None: not ended
    boot_id: str = ""  # of the boot in which it began
    text: str = ""  # the result, for people
    notes: Mapping[str, str] = field(default_factory=dict)  # what the reaction returned
    holder: str = ""  # key of the event for which it was first tried; "": this event
    tries: int = 1

    @property
    def is_reused(self) -> bool:
        """Whether nothing was run, because the step was already done for another event."""
        return bool(self.holder) and self.text.startswith(REUSED_TEXT)


class ApprovalState(StrEnum):
    """The state of an approval. One that was asked and not answered is sent again; that is harmless."""

    ASKED = "asked"  # about to be sent, or sent without an answer
    SENT = "sent"  # the endpoint accepted it
    REFUSED = "refused"  # the endpoint rejected it; not sent again


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRecord:
    """The approval of an event, as journalled."""

    state: ApprovalState
    at: float  # server time of this state
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalCheckRecord:
    """The answers of the approval check so far."""

    first_at: float  # of the first try
    asked_at: float  # of the latest try, or of its answer
    answer: str = ""  # "yes", "no", or "" if none came
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Everything the agent has journalled about one event."""

    key: str  # the event's id; with #2 if it was gone and came again
    event: Event  # as last listed
    seen_at: float
    boot_id: str  # boot in which it was last seen scheduled, or first seen started
    not_before: float | None = None  # as first announced: documents drop it at the start (spec §4.2)
    rule: str = ""  # "": no rule matches
    plan: tuple[str, ...] = ()  # names of steps, in order
    started_at: float | None = None  # when first seen started
    gone_at: float | None = None  # None: still listed
    outcome: str = ""  # a value of `Outcome` once gone
    closed: bool = False  # gone, and nothing is left to undo
    step_runs: tuple[StepRun, ...] = ()
    approval: ApprovalRecord | None = None
    approval_check: ApprovalCheckRecord | None = None

    def step_run(self, step: str, phase: StepPhase = StepPhase.DO) -> StepRun | None:
        """The run of this step in this phase, also one that was cut or skipped; None if there is none yet."""
        return next((run for run in self.step_runs if run.step == step and run.phase == phase), None)

    def with_step_run(self, run: StepRun) -> EventRecord:
        """A copy in which this run replaces the one of the same step and phase; it becomes the last run."""
        others = tuple(each for each in self.step_runs if (each.step, each.phase) != (run.step, run.phase))
        return replace(self, step_runs=(*others, run))

    def holder_of(self, step: str) -> str:
        """The key of the event for which this event's step was first tried, perhaps this one."""
        run = self.step_run(step)
        return run.holder if run and run.holder else self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRecords:
    """The records that are not closed, in the order in which they were first seen. Immutable."""

    records: tuple[EventRecord, ...] = ()

    def __iter__(self) -> Iterator[EventRecord]:
        return iter(self.records)

    def get(self, key: str) -> EventRecord | None:
        """The record with this key; None if it is not open."""
        return next((record for record in self.records if record.key == key), None)

    def with_record(self, record: EventRecord) -> OpenRecords:
        """A copy with this record replaced or added last; a closed record is removed."""
        if self.get(record.key) is None:
            return self if record.closed else replace(self, records=(*self.records, record))
        swapped = (record if each.key == record.key else each for each in self.records)
        return replace(self, records=tuple(each for each in swapped if not each.closed))
