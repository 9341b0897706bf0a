"""The journal's records as immutable values: each event, its step runs and its approval. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from forewarn.agent.model import Event, StepPhase


class StepState(StrEnum):
    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"  # tried, with no or a bad end: perhaps done in part, so it is undone
    CUT = "cut"  # there was no time for it
    SKIPPED = "skipped"  # nobody tried


TRIED_STATES = frozenset({StepState.BEGUN, StepState.DONE, StepState.FAILED})
REUSED_TEXT = "done already for event"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """A step taken for an event, or its undoing."""

    step: str
    phase: StepPhase = StepPhase.DO
    state: StepState = StepState.BEGUN
    begun_at: float
    ended_at: float | None = None
    boot_id: str = ""
    text: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    holder: str = ""  # the event for which it was first tried; "": this one
    tries: int = 1

    @property
    def is_reused(self) -> bool:
        """Whether nothing was run, because another event had it done already."""
        return bool(self.holder) and self.text.startswith(REUSED_TEXT)


class ApprovalState(StrEnum):
    """How far an approval is. Asked without an answer is asked again: that is harmless (spec §5.2)."""

    ASKED = "asked"
    SENT = "sent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRecord:
    state: ApprovalState
    at: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalCheckRecord:
    """What the gate before an approval has said so far; an empty answer is silence."""

    first_at: float
    asked_at: float
    answer: str = ""  # "yes", "no"
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    key: str  # the event's id; with #2 if it was gone before and came again
    event: Event  # as it was last listed
    seen_at: float
    boot_id: str  # of the boot in which it was last seen to be still to come, or first seen started
    not_before: float | None = None  # as first promised: the wire forgets it at the start (spec §4.2)
    rule: str = ""  # "": no rule is about it
    plan: tuple[str, ...] = ()  # names of steps, in order
    started_at: float | None = None  # when it was first seen started
    gone_at: float | None = None
    outcome: str = ""
    closed: bool = False  # gone, and nothing is left to undo
    step_runs: tuple[StepRun, ...] = ()
    approval: ApprovalRecord | None = None
    approval_check: ApprovalCheckRecord | None = None

    def step_run(self, step: str, phase: StepPhase = StepPhase.DO) -> StepRun | None:
        return next((deed for deed in self.step_runs if deed.step == step and deed.phase == phase), None)

    def with_step_run(self, deed: StepRun) -> EventRecord:
        others = tuple(each for each in self.step_runs if (each.step, each.phase) != (deed.step, deed.phase))
        return replace(self, step_runs=(*others, deed))

    def holder_of(self, step: str) -> str:
        """The event for which this one's step was first tried: its own, unless another held or tried it before."""
        deed = self.step_run(step)
        return deed.holder if deed and deed.holder else self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRecords:
    """The records that are not closed, in the order in which they were first seen."""

    records: tuple[EventRecord, ...] = ()

    def __iter__(self) -> Iterator[EventRecord]:
        return iter(self.records)

    def get(self, key: str) -> EventRecord | None:
        return next((record for record in self.records if record.key == key), None)

    def with_record(self, record: EventRecord) -> OpenRecords:
        """With this record in place of the one of its key, or as the newest; a closed one is let go."""
        if self.get(record.key) is None:
            return self if record.closed else replace(self, records=(*self.records, record))
        swapped = (record if each.key == record.key else each for each in self.records)
        return replace(self, records=tuple(each for each in swapped if not each.closed))
