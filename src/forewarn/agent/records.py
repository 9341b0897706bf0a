"""What the journal holds, as values: of each event, what was done for it. Pure; a change is a new record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from forewarn.agent.value import Event, Phase


class State(StrEnum):
    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"  # tried, with no or a bad end: perhaps done in part, so it is undone
    CUT = "cut"  # there was no time for it
    SKIPPED = "skipped"  # nobody tried


TRIED = frozenset({State.BEGUN, State.DONE, State.FAILED})
HELD = "done already for event"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """A step taken for an event, or its undoing."""

    step: str
    phase: Phase = Phase.DO
    state: State = State.BEGUN
    begun_at: float
    ended_at: float | None = None
    boot_id: str = ""
    text: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    holder: str = ""  # the event for which it was first tried; "": this one
    tries: int = 1

    @property
    def is_held(self) -> bool:
        """Whether nothing was run, because another event had it done already."""
        return bool(self.holder) and self.text.startswith(HELD)


class Asked(StrEnum):
    """How far an approval is. Asked without an answer is asked again: that is harmless (spec §5.2)."""

    ASKED = "asked"
    SENT = "sent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    state: Asked
    at: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """What the gate before an approval has said so far; an empty answer is silence."""

    first_at: float
    asked_at: float
    answer: str = ""  # "yes", "no"
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
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
    deeds: tuple[Deed, ...] = ()
    approval: Approval | None = None
    consent: Consent | None = None

    def deed(self, step: str, phase: Phase = Phase.DO) -> Deed | None:
        return next((deed for deed in self.deeds if deed.step == step and deed.phase == phase), None)

    def with_deed(self, deed: Deed) -> Record:
        others = tuple(each for each in self.deeds if (each.step, each.phase) != (deed.step, deed.phase))
        return replace(self, deeds=(*others, deed))

    def holder_of(self, step: str) -> str:
        """The event for which this one's step was first tried: its own, unless another held or tried it before."""
        deed = self.deed(step)
        return deed.holder if deed and deed.holder else self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """The records that are not closed, in the order in which they were first seen."""

    records: tuple[Record, ...] = ()

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def get(self, key: str) -> Record | None:
        return next((record for record in self.records if record.key == key), None)

    def with_(self, record: Record) -> Book:
        """With this record in place of the one of its key, or as the newest; a closed one is let go."""
        if self.get(record.key) is None:
            return self if record.closed else replace(self, records=(*self.records, record))
        swapped = (record if each.key == record.key else each for each in self.records)
        return replace(self, records=tuple(each for each in swapped if not each.closed))
