"""The journal's records as immutable values: each event, its step runs and its approval. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from urllib.parse import quote

from forewarn.agent.model import Event, StepPhase


class StepState(StrEnum):
    """The state of one run of a step, or of its undo, in the journal."""

    BEGUN = "begun"  # running, or interrupted
    DONE = "done"  # it succeeded, also as its check found after an interruption, or was done for another event before
    FAILED = "failed"  # perhaps done in part: a step is undone later, an undo may be tried again
    CUT = "cut"  # not run: there was no time, or the event had started; due again if the event is postponed
    SKIPPED = "skipped"  # not run for another reason; of an undo: not needed for this event


TRIED_STATES = frozenset({StepState.BEGUN, StepState.DONE, StepState.FAILED})  # the step may have had an effect
REUSED_TEXT = "done already for event"  # begins the stored text of a reused run
LOST_STEP_TEXT = "the journal was damaged: the outcome is not known"  # the stored text of a run that a repair lost


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """One step of an event, or its undo, as journalled."""

    # A step has at most one run for each phase of an event; a retry of an undo replaces it and counts in `tries`.

    step: str  # its name in the configuration
    phase: StepPhase = StepPhase.DO  # DO: the step itself; UNDO: its undo
    state: StepState = StepState.BEGUN
    begun_at: float  # when this run began
    ended_at: float | None = None  # None: not ended
    boot_id: str = ""  # of the boot in which it began, or was last resumed; if reused, that of the other event's run
    text: str = ""  # the result, for people
    notes: Mapping[str, str] = field(default_factory=dict)  # what the reaction returned
    holder: str = ""  # of a `do`: key of the event for which it was first tried, whose folder it uses; "": this event
    tries: int = 1  # of an undo: how often it was tried (0: lost), or MAX_UNDO_TRIES if it must not be retried

    @property
    def is_reused(self) -> bool:
        """Whether nothing was run for this event, because the step was already done for another one."""
        return bool(self.holder) and self.text.startswith(REUSED_TEXT)


class ApprovalState(StrEnum):
    """The state of the agent's approval of an event, in the journal."""

    ASKED = "asked"  # about to be sent, or sent without an answer
    SENT = "sent"  # the endpoint accepted it
    REFUSED = "refused"  # the endpoint rejected it; not sent again


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRecord:
    """The agent's approval of an event, as journalled: asked, sent (accepted) or refused."""

    state: ApprovalState
    at: float  # server time of this state, in POSIX seconds
    text: str = ""  # why it was refused; "" otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalCheckRecord:
    """What the approval check of an event has answered so far. Times are the server's, in POSIX seconds."""

    first_at: float  # of the first try
    asked_at: float  # of the latest try, or of its answer
    answer: str = ""  # "yes", "no", or "" if none came
    text: str = ""  # the exit status or HTTP answer of the latest try, or why there is none; "" while it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Everything the agent has journalled about one event. Times are the server's, in POSIX seconds."""

    key: str  # what `event_key` returns, the id in upper case; with #2 if it was gone and came again
    event: Event  # as its latest change, Scheduled or Started, had it; so with the newest NotBefore, until it starts
    seen_at: float  # when the agent first saw it
    boot_id: str  # boot in which it was last seen scheduled, or first seen started
    not_before: float | None = None  # as first announced: documents drop it at the start (spec §4.2)
    rule: str = ""  # the name of its rule; "": no rule matches
    plan: tuple[str, ...] = ()  # names of the rule's steps, in the order in which they run
    started_at: float | None = None  # when first seen started; None: not seen started
    gone_at: float | None = None  # when it was first missing from the list; None: still listed
    outcome: str = ""  # "finished", "withdrawn" or "unknown" once gone; "" before
    closed: bool = False  # gone, and no undo is left to try
    step_runs: tuple[StepRun, ...] = ()  # one for each step and phase, the latest saved last
    approval: ApprovalRecord | None = None  # None: not asked for
    approval_check: ApprovalCheckRecord | None = None  # None: not run yet

    def step_run(self, step: str, phase: StepPhase = StepPhase.DO) -> StepRun | None:
        """Return the run of this step in this phase, even one that was cut or skipped; None if there is none."""
        return next((run for run in self.step_runs if run.step == step and run.phase == phase), None)

    def with_step_run(self, run: StepRun) -> EventRecord:
        """Return a copy with this run as the last one, replacing a run of the same step and phase."""
        others = tuple(each for each in self.step_runs if (each.step, each.phase) != (run.step, run.phase))
        return replace(self, step_runs=(*others, run))

    def holder_of(self, step: str) -> str:
        """Return the key of the event for which the step was first tried, and whose step folder it uses."""
        run = self.step_run(step)
        return run.holder if run and run.holder else self.key


_MAX_FOLDER_NAME = 120  # of the 255 bytes that file systems allow


def event_folder_name(key: str) -> str:
    # The name is needed because a server may send any text as id.
    name = quote(key, safe="#").replace(".", "%2E")
    return name if len(name) <= _MAX_FOLDER_NAME else sha256(key.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRecords:
    """The journal's records that are not closed, first seen first; iterable and immutable."""

    records: tuple[EventRecord, ...] = ()  # in the order in which they were first seen

    def __iter__(self) -> Iterator[EventRecord]:
        return iter(self.records)

    def get(self, key: str) -> EventRecord | None:
        """Return the record with exactly this key; None if it is closed or unknown."""
        return next((record for record in self.records if record.key == key), None)

    def with_records(self, *records: EventRecord) -> OpenRecords:
        """Return a copy in which each of these replaces the record with its key, or is added last, in order."""
        by_key = {record.key: record for record in (*self.records, *records)}  # keeps the place of the first
        return replace(self, records=tuple(record for record in by_key.values() if not record.closed))
