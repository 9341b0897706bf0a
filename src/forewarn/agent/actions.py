"""What the agent may do next, and what it knows when it decides that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forewarn.agent.approval import BoardView
from forewarn.agent.record import Approval, Asked, Book, Consent, Deed, Record
from forewarn.agent.value import Gate, Phase, Rule, Step

Busy = tuple[str, str]  # the key of an event, and what is under way for it: the name of a step, GATE or APPROVAL
GATE, APPROVAL = "(gate)", "(approval)"  # no step is called so


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything a decision depends on."""

    book: Book
    rules: Mapping[str, Rule]
    steps: Mapping[str, Step]
    vm: str
    now: float
    boot_id: str
    busy: frozenset[Busy] = frozenset()  # what this process has under way
    board: BoardView = field(default_factory=BoardView)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Journal the step (or its undo) as begun, then run it."""

    key: str
    step: Step
    phase: Phase
    tries: int = 1
    holder: str = ""  # the event whose unfinished try is gone on with; "": this one begins anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The step was found begun without outcome: run it again, or ask its check first."""

    key: str
    step: Step
    phase: Phase
    ask: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Journal an end that needs no running: cut, skipped, held by another event, cut off."""

    key: str
    deed: Deed


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The event is gone while a step for it is running: end that."""

    key: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskGate:
    key: str
    gate: Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    """Journal that the approval is asked for, then send it."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Nothing is left to do for an event that is gone."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do before `until` for this event; `why` is for people."""

    key: str
    until: float | None = None
    why: str = ""


Move = Begin | Resume | Settle | Stop | AskGate | Approve | Close | Wait


def made(record: Record, move: Move, *, now: float, boot_id: str) -> Record:
    """The record once the move stands in the journal: before anything is run or sent."""
    match move:
        case Begin():
            return record.with_deed(
                Deed(
                    step=move.step.name,
                    phase=move.phase,
                    begun_at=now,
                    boot_id=boot_id,
                    tries=move.tries,
                    holder=move.holder,
                )
            )
        case Settle(deed=deed):
            return record.with_deed(deed)
        case AskGate():
            first_at = record.consent.first_at if record.consent else now
            return replace(record, consent=Consent(first_at=first_at, asked_at=now))
        case Approve():
            return replace(record, approval=Approval(state=Asked.ASKED, at=now))
        case Close():
            return replace(record, closed=True)
        case _:
            return record
