"""How the agent stands, for people and their tools. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forewarn.agent.budget import Slot
from forewarn.agent.decision import slots_of
from forewarn.agent.move import Situation
from forewarn.agent.record import Asked, Book, Record, State
from forewarn.agent.value import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    endpoint: str  # "": it is not known yet
    vm: str
    boot_id: str
    now: float  # the server's time
    silent_s: float | None  # since the endpoint's last answer; None: there was none yet
    problems: tuple[str, ...]
    events: tuple[tuple[Record, tuple[Slot, ...]], ...]  # with the slots of steps that are still to come
    waits: tuple[tuple[str, str], ...] = ()  # by the key of an event: what it waits for


def events_of(now: Situation) -> tuple[tuple[Record, tuple[Slot, ...]], ...]:
    return tuple((record, slots_of(record, now)) for record in now.book)


def problems_of(book: Book) -> Iterator[str]:
    """What went wrong for the events that are not closed."""
    for record in book:
        for deed in record.deeds:
            if deed.state is State.FAILED:
                what = "could not be undone" if deed.phase is Phase.UNDO else "failed"
                yield f"step {deed.step} {what} for event {record.key}: {deed.text}"
            if deed.state is State.CUT:
                yield f"step {deed.step} was cut for event {record.key}: {deed.text}"
        if record.approval is not None and record.approval.state is Asked.REFUSED:
            yield f"the approval of event {record.key} was refused: {record.approval.text}"
