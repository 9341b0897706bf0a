"""The agent's data model: configured steps and rules, and the interface of reactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from forewarn.client import ReceivedEvent

Event = ReceivedEvent  # an event as the endpoint lists it
OWN_VM = "own"  # value of a rule's `vms`: events that list the agent's own VM


class StepPhase(StrEnum):
    """Whether a step is done or undone."""

    DO = "do"
    UNDO = "undo"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """One configured step: a reaction, its budget in seconds, and its policies."""

    name: str  # as in [steps.NAME]
    use: str  # name of the reaction in REACTIONS
    budget_s: float
    cut: int | None = None  # steps are cut in this order when time is short, lowest first; None: never
    begin: Literal["at-once", "late"] | None = None  # None: as the rule says
    repeatable: bool = False  # may run again after an interruption
    unclear: Literal["repeat", "skip", "report"] = "report"  # for an interrupted step of unknown outcome
    undo: Literal["when-gone", "never"] = "when-gone"
    undo_budget_s: float = 60.0  # of each try
    undo_tries: int = 3  # at most, the first included
    survives_reboot: bool = True  # False: a reboot undoes it
    shared_by_events: bool = True  # one run for all events that need it; False (notifications): one run for each
    options: Any = None  # the reaction's own options, already validated


class ApproveWhen(StrEnum):
    """When the agent approves an event: never, when its own steps are done, or those of all listed VMs."""

    NEVER = "never"
    DONE = "when-done"
    ALL_DONE = "when-all-done"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """A rule's approval: when, and how long to wait for absent VMs."""

    when: ApproveWhen = ApproveWhen.NEVER
    absent_after_s: float | None = None  # how long to wait for a listed VM without a live agent; None: for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalCheckConfig:
    """The command or webhook that must answer yes before an approval (configuration key `gate`)."""

    command: tuple[str, ...] = ()  # either this or `url`
    url: str = ""
    timeout_s: float = 10.0  # of one try
    every_s: float = 10.0  # between two tries without an answer
    deadline_s: float = 300.0  # from the first try on
    on_silence: Literal["wait", "approve"] = "wait"  # after the deadline; wait: no approval, until NotBefore


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig:
    """The steps and the approval for the events that match all conditions.

    An unknown duration (-1) counts as endless.
    """

    name: str
    steps: tuple[StepConfig, ...] = ()
    kinds: frozenset[str] = frozenset()  # empty: any
    sources: frozenset[str] = frozenset()  # empty: any
    vms: str = OWN_VM  # or a pattern (`web-*`) that at least one listed VM must match
    min_duration_s: float | None = None
    max_duration_s: float | None = None
    min_left_s: float | None = None  # until NotBefore when first seen; an unknown time counts as 0
    max_left_s: float | None = None
    begin: Literal["at-once", "late"] = "at-once"
    margin_s: float = 5.0  # between the end of the last step and NotBefore
    no_time: Literal["essential", "all", "nothing"] = "essential"  # which steps still run once the event has started
    undo_on: frozenset[str] = frozenset({"finished", "withdrawn", "unknown"})  # outcomes after which steps are undone
    approve: ApprovalPolicy = field(default_factory=ApprovalPolicy)
    approval_check: ApprovalCheckConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a reaction receives for one run of a step."""

    event: Event
    vm: str  # name of the agent's own VM
    key: str = ""  # of the event's journal record: its id, with #2 if it was gone and came again
    step: StepConfig
    phase: StepPhase
    folder: Path  # the step's own, durable, the same for `do` and `undo`
    left_s: Callable[[], float]  # seconds until this step's budget ends
    notes: Mapping[str, str] = field(default_factory=dict)  # what `do` saved for `undo`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The result of a reaction: success, a text for people, and notes that the journal keeps."""

    ok: bool
    text: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)


class Reaction(Protocol):
    """Does something for an event and undoes it. A new object is made for each call.

    The agent cancels it when its budget ends; `undo` must work after that too. An exception counts as a failure.
    """

    async def do(self, context: StepContext) -> StepOutcome:
        """Prepares for the event, and returns the outcome; may run again after an interruption."""

    async def undo(self, context: StepContext) -> StepOutcome:
        """Restores the state before `do`, also if `do` failed or was cancelled; retried if it fails."""

    async def check(self, context: StepContext) -> bool | None:
        """Whether `do` is in effect now; None if that cannot be determined.

        The agent asks this after an interruption of `do` or of `undo`.
        """
