"""How things stand, in short: what is listed, whether this VM is in maintenance, what holds its readiness. Pure.

Read off the journal's records and not remembered, so that a readiness that was held stays so when the agent restarts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forewarn.agent.record import TRIED, Book, Deed, Record, State
from forewarn.agent.value import Event, Phase, Step
from forewarn.client import lists

READINESS = "readiness"  # the reaction that turns /ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A step that keeps load balancers away."""

    step: str
    event: str
    kind: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    listed: tuple[Event, ...] = ()
    in_maintenance: bool = False
    holds: tuple[Hold, ...] = ()


def standing_of(book: Book, steps: Mapping[str, Step], vm: str) -> Standing:
    return Standing(
        listed=tuple(record.event for record in book if record.gone_at is None),
        in_maintenance=any(_is_in_maintenance(record, vm) for record in book),
        holds=tuple(hold for record in book for hold in _holds(record, steps)),
    )


def _is_in_maintenance(record: Record, vm: str) -> bool:
    """From the first step or the start on, until nothing is left to undo."""
    concerns_us = bool(record.rule) or lists(record.event, vm)
    has_begun = record.started_at is not None or any(deed.state in TRIED for deed in record.deeds)
    return concerns_us and has_begun and not record.closed


def _holds(record: Record, steps: Mapping[str, Step]) -> Iterator[Hold]:
    for deed in record.deeds:
        step = steps.get(deed.step)
        if step is not None and step.use == READINESS and _is_held(deed, record.deed(deed.step, Phase.UNDO)):
            yield Hold(step=deed.step, event=record.key, kind=record.event.kind, since=deed.begun_at)


def _is_held(deed: Deed, undo: Deed | None) -> bool:
    return (
        deed.phase is Phase.DO and deed.state in TRIED and (undo is None or undo.state in (State.BEGUN, State.FAILED))
    )
