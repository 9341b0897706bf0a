"""A step that several events need: for which of them it is done, under way, or half done. Pure."""

from __future__ import annotations

from forewarn.agent.move import Situation
from forewarn.agent.record import TRIED, Record, State
from forewarn.agent.value import Phase, Step


def is_held(other: Record, step: Step, now: Situation) -> bool:
    """Whether the step is done for the other event, and stays so while any event needs it."""
    deed = other.deed(step.name)
    is_done = deed is not None and deed.state is State.DONE and other.deed(step.name, Phase.UNDO) is None
    return is_done and not has_lapsed(other, step, now)


def has_lapsed(record: Record, step: Step, now: Situation) -> bool:
    """Whether a reboot has undone what was tried for this event."""
    deed = record.deed(step.name)
    return not step.survives_reboot and deed is not None and deed.boot_id != now.boot_id


def is_under_way(other: Record, step: Step) -> bool:
    deeds = (other.deed(step.name, phase) for phase in Phase)
    return any(deed is not None and deed.state is State.BEGUN for deed in deeds)


def holder_among(others: list[Record], step: Step, now: Situation) -> str:
    """The event for which the step was tried, perhaps in part, and not undone: how it found things is known there, and
    whoever goes on from here must undo that too.
    """
    undos = ((other, other.deed(step.name, Phase.UNDO)) for other in others if not has_lapsed(other, step, now))
    tried = (other for other, undo in undos if undo is None or undo.state is State.FAILED)
    return next((other.holder_of(step.name) for other in tried), "")


def others_with(record: Record, step: Step, now: Situation) -> list[Record]:
    if not step.holds:
        return []
    return [other for other in now.book if other.key != record.key and _has_tried(other, step.name)]


def _has_tried(other: Record, name: str) -> bool:
    deed = other.deed(name)
    return deed is not None and deed.state in TRIED
