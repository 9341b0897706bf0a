"""The agent's data model: configured steps and rules, the interface of reactions, and the journal's records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import quote

from forewarn.client import ReceivedEvent

Event = ReceivedEvent  # an event as the endpoint lists it
OWN_VM = "own"  # value of a rule's `vms`: events that list the agent's own VM


class StepPhase(StrEnum):
    """Which half of a step is run."""

    DO = "do"  # prepares for an event while it is listed, usually before it starts
    UNDO = "undo"  # reverts that after the event is gone


MAX_UNDO_TRIES = 1_000  # the highest `undo_tries`; stored as the tries of a failed undo that must not be retried


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """One configured step, a [steps.NAME] table of the agent's file: a reaction, its budget, its policies."""

    name: str  # as in [steps.NAME]
    use: str  # name of the reaction in REACTIONS
    budget_s: float  # seconds that `do` may take; the agent cancels it then, and the step has failed
    cut: int | None = None  # cut (not run) in this order if time is short, lowest first; None: not for lack of time
    begin: Literal["at-once", "late"] | None = None  # late: as late as the budgets allow; None: as the rule says
    repeatable: bool = False  # an interrupted `do` or `undo` is resumed by running it again, without asking its `check`
    unclear: Literal["repeat", "skip", "report"] = "report"  # of an interrupted step, if `check` cannot tell
    undo: Literal["when-gone", "never"] = "when-gone"  # when-gone: once its event is not listed any more
    undo_budget_s: float = 60.0  # seconds of each try of the undo
    undo_tries: int = 3  # at most, the first included; up to MAX_UNDO_TRIES
    survives_reboot: bool = True  # False: a reboot of the VM undoes it, so that no undo is run after one
    shared_by_events: bool = True  # one run for all events that need it; False (notifications): one run for each
    options: Any = None  # what the `read` of its ReactionKind returned; None if that failed


class ApproveWhen(StrEnum):
    """When the agent approves an event, so that the event may start before its NotBefore."""

    NEVER = "never"
    DONE = "when-done"  # when this VM's steps for it are done
    ALL_DONE = "when-all-done"  # when those of all VMs that the event lists are done, by the readiness board


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """A rule's approval: when to approve and, for ALL_DONE, how long to wait for absent VMs."""

    when: ApproveWhen = ApproveWhen.NEVER  # NEVER: the agent approves nothing
    absent_after_s: float | None = None  # seconds to wait for absent VMs once this VM is ready; None: for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalCheckConfig:
    """A command or webhook that must answer yes before the agent approves an event: the key `gate` of a rule."""

    command: tuple[str, ...] = ()  # exit status 0 is yes, 1 is no, others no answer; either this or `url`
    url: str = ""  # gets a POST; 2xx with {"approve": true} is yes, with false no; "": use `command`
    timeout_s: float = 10.0  # of one try
    every_s: float = 10.0  # from the end of a try without an answer to the next
    deadline_s: float = 300.0  # from the first try on
    on_silence: Literal["wait", "approve"] = "wait"  # without an answer by the deadline; wait: never approve the event


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig:
    """The steps and the approval for the events that match all conditions; see `approval.rule_matches`."""

    name: str  # unique among the rules of the file and of its profile; the journal stores it
    steps: tuple[StepConfig, ...] = ()  # in the order in which they run; (): nothing is run
    kinds: frozenset[str] = frozenset()  # the event's type, ignoring case; empty: any but SpotRebalanceRecommendation
    sources: frozenset[str] = frozenset()  # the event's source, such as Platform, ignoring case; empty: any
    vms: str = OWN_VM  # events that list this VM; or a pattern (`web-*`, ignoring case) that a listed VM must match
    min_duration_s: float | None = None  # seconds of impact, at least; an unknown one counts as endless; None: no limit
    max_duration_s: float | None = None  # seconds of impact, at most; the limits are inclusive
    min_left_s: float | None = None  # seconds to NotBefore when first seen; an unknown time counts as 0; None: no limit
    max_left_s: float | None = None  # likewise, at most; None: no limit
    begin: Literal["at-once", "late"] = "at-once"  # for steps that do not say; late: as late as the budgets allow
    margin_s: float = 5.0  # seconds between the end of the last step and NotBefore
    no_time: Literal["essential", "all", "nothing"] = "essential"  # steps to run after the start; essential: `cut` None
    undo_on: frozenset[str] = frozenset({"finished", "withdrawn", "unknown"})  # outcomes after which steps are undone
    approve: ApprovalPolicy = field(default_factory=ApprovalPolicy)  # when to approve
    approval_check: ApprovalCheckConfig | None = None  # None: approve without asking


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a reaction receives for one run of a step; `ActionRunner` makes it."""

    event: Event  # as its latest change, Scheduled or Started, had it
    vm: str  # name of the agent's own VM
    key: str = ""  # the key of the event's journal record: its id in upper case, with #2 if it was gone and came again
    step: StepConfig
    phase: StepPhase  # whether `do` or `undo` runs
    folder: Path  # the step's own, durable, the same for `do` and `undo`, and for events that share the step
    left_s: Callable[[], float]  # real seconds left of the budget, or less than 0; the server's clock may end it sooner
    notes: Mapping[str, str] = field(default_factory=dict)  # the `notes` of the outcome of `do`; {} if it has none yet


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The result of one `do` or `undo` of a reaction; the agent journals it."""

    ok: bool  # True: the step counts as done, False: as failed
    text: str = ""  # what happened, for people
    notes: Mapping[str, str] = field(default_factory=dict)  # added to those of the run in the journal


class Reaction(Protocol):
    """What a step does for an event, and how to undo it; each file in `reactions` implements one.

    The agent makes a new object for each call. It cancels a call when the step's budget ends or the agent stops, and a
    `do` even when the event is gone; it waits 2 s for the call to end, then goes on without it. `undo` must work even
    after that. An exception counts as a failure.
    """

    async def do(self, context: StepContext) -> StepOutcome:
        """Prepare for the event, and return the outcome; it must be safe to run again.

        It may run again in the same folder, to resume after the agent was interrupted, or for another event that needs
        the step. A failed `do` is not tried again for this event, but undone when the event is gone.
        """

    async def undo(self, context: StepContext) -> StepOutcome:
        """Restore the state before `do`, even if `do` failed or was cancelled; return the outcome.

        A failed undo is tried again after 10 seconds, doubled each time up to 5 minutes, at most `undo_tries` times in
        all.
        """

    async def check(self, context: StepContext) -> bool | None:
        """Return whether `do` is in effect now; None if that cannot be determined.

        Unless the step is `repeatable`, the agent calls this before it resumes an interrupted `do` or `undo`. An
        exception or the end of the budget counts as None.
        """


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
