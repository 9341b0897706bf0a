"""The agent's data model: configured steps and rules, and the interface of reactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from forewarn.client import ReceivedEvent

Event = ReceivedEvent
OWN_VM = "own"  # of a rule's `vms`: events that list the VM the agent runs in


class StepPhase(StrEnum):
    DO = "do"
    UNDO = "undo"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """One configured reaction."""

    name: str  # as in [steps.NAME]
    use: str  # which reaction, as REACTIONS names it
    budget_s: float
    cut: int | None = None  # when time is short steps go in this order, lowest first; None: never cut
    begin: Literal["at-once", "late"] | None = None  # None: as the rule says
    repeatable: bool = False  # may run again when found begun without outcome
    unclear: Literal["repeat", "skip", "report"] = "report"  # if neither repeatable nor its check can tell
    undo: Literal["when-gone", "never"] = "when-gone"
    undo_budget_s: float = 60.0
    undo_tries: int = 3
    survives_reboot: bool = True  # False: a reboot undoes it, nobody else has to
    shared_by_events: bool = True  # done once for all events that need it at a time; False (telling): done for each
    options: Any = None  # the reaction's own settings, already checked


class ApproveWhen(StrEnum):
    """When an event is approved."""

    NEVER = "never"
    DONE = "when-done"
    ALL_DONE = "when-all-done"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    when: ApproveWhen = ApproveWhen.NEVER
    absent_after_s: float | None = None  # how long to wait for a listed VM without an agent; None: for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalCheckConfig:
    """Who must say yes before an event is approved: a command or a webhook."""

    command: tuple[str, ...] = ()
    url: str = ""
    timeout_s: float = 10.0  # for one answer
    every_s: float = 10.0  # between two questions while nobody answers
    deadline_s: float = 300.0  # from the first question on
    on_silence: Literal["wait", "approve"] = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig:
    """For which events which steps are taken. A duration of -1 (unknown) counts as endless."""

    name: str
    steps: tuple[StepConfig, ...] = ()
    kinds: frozenset[str] = frozenset()  # empty: any
    sources: frozenset[str] = frozenset()
    vms: str = OWN_VM  # or a pattern (`web-*`) that one of the listed VMs must match
    min_duration_s: float | None = None
    max_duration_s: float | None = None
    min_left_s: float | None = None
    max_left_s: float | None = None
    begin: Literal["at-once", "late"] = "at-once"
    margin_s: float = 5.0  # between the end of the last step and NotBefore
    no_time: Literal["essential", "all", "nothing"] = "essential"  # of the steps, when the event has started
    undo_on: frozenset[str] = frozenset({"finished", "withdrawn", "unknown"})
    approve: ApprovalPolicy = field(default_factory=ApprovalPolicy)
    approval_check: ApprovalCheckConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a reaction is given."""

    event: Event
    vm: str  # the agent's own
    key: str = ""  # of the event in the journal: its id, with #2 if it was gone before and came again
    step: StepConfig
    phase: StepPhase
    folder: Path  # its own, durable, the same for `do` and `undo`
    left_s: Callable[[], float]  # until this step's time is over
    notes: Mapping[str, str] = field(default_factory=dict)  # what `do` left for `undo`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    ok: bool
    text: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)


class Reaction(Protocol):
    """Does something for an event, and undoes it. It is cancelled when its time is over, and `undo` must work then."""

    async def do(self, case: StepContext) -> StepOutcome: ...

    async def undo(self, case: StepContext) -> StepOutcome: ...

    async def check(self, case: StepContext) -> bool | None:
        """Was `do` done? None: cannot be told."""
