"""What is to be done for an event that is gone: what was tried for it is undone, last step first. Pure.

A step that was done once for several events is undone once, for the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forewarn.agent.move import Begin, Close, Move, Resume, Settle, Situation, Stop, Wait
from forewarn.agent.record import TRIED, Deed, Record, State
from forewarn.agent.value import Phase, Step

RETRY_S = 10.0
LONGEST_RETRY_S = 300.0


def undoing(record: Record, now: Situation) -> Iterator[Move]:
    running = [name for key, name in now.busy if key == record.key]
    if running:
        yield from (Stop(key=record.key, step=name) for name in running if _is_doing(record, name))
        return
    for deed in _tried(record):
        move = _undo(record, deed, now)
        if move is not None:
            yield move
            return
    if _is_awaited(record, now):
        yield Wait(key=record.key, why="another event shares a step and is not settled yet")
    else:
        yield Close(key=record.key)


def _is_awaited(record: Record, now: Situation) -> bool:
    """Whether another event has still to read here that a step which they shared is undone."""
    shared = (other for deed in _tried(record) for other in _sharers(record, deed, now) if not _has_undo(other, deed))
    return any(other.gone_at is not None for other in shared)


def _has_undo(other: Record, deed: Deed) -> bool:
    return other.deed(deed.step, Phase.UNDO) is not None


def _is_doing(record: Record, name: str) -> bool:
    return record.deed(name, Phase.UNDO) is None


def _tried(record: Record) -> list[Deed]:
    """What was tried, in the opposite order of the plan."""
    done = [record.deed(name) for name in reversed(record.plan)]
    return [deed for deed in done if deed is not None and deed.state in TRIED]


def _undo(record: Record, deed: Deed, now: Situation) -> Move | None:
    """None: this step needs nothing more."""
    if deed.state is State.BEGUN:
        return Settle(key=record.key, deed=ended(deed, State.FAILED, now, "cut off when the agent ended"))
    undo, step = record.deed(deed.step, Phase.UNDO), now.steps.get(deed.step)
    if undo is None:
        return _first(record, deed, step, now)
    if step is None or undo.state in (State.DONE, State.SKIPPED):
        return None
    if undo.state is State.BEGUN:
        return Resume(key=record.key, step=step, phase=Phase.UNDO, ask=not step.repeatable)
    return _again(record, deed, undo, step, now)


def _again(record: Record, deed: Deed, undo: Deed, step: Step, now: Situation) -> Move | None:
    """After an undo that failed."""
    if undo.tries >= step.undo_tries:
        return None
    if why_not := _why_not(record, deed, step, now):
        return Settle(key=record.key, deed=_undone(deed, State.SKIPPED, now, why_not))
    again_at = (undo.ended_at or now.now) + min(LONGEST_RETRY_S, RETRY_S * 2.0 ** (undo.tries - 1))
    if now.now < again_at:
        return Wait(key=record.key, until=again_at, why=f"the undo of {step.name} failed and is tried again")
    return Begin(key=record.key, step=step, phase=Phase.UNDO, tries=undo.tries + 1)


def _first(record: Record, deed: Deed, step: Step | None, now: Situation) -> Move:
    if step is None:
        text = "the step is no longer configured: undo it by hand"
        return Settle(key=record.key, deed=_undone(deed, State.FAILED, now, text))
    if why_not := _why_not(record, deed, step, now):
        return Settle(key=record.key, deed=_undone(deed, State.SKIPPED, now, why_not))
    for other in _sharers(record, deed, now):
        undo = other.deed(deed.step, Phase.UNDO)
        if undo is not None and undo.state is not State.SKIPPED:
            if _is_under_way(undo, step):
                return Wait(key=record.key, why=f"{step.name} is being undone for event {other.key}")
            text = f"undone with event {other.key}"
            return Settle(key=record.key, deed=_undone(deed, State.SKIPPED, now, text))
    return Begin(key=record.key, step=step, phase=Phase.UNDO)


def _why_not(record: Record, deed: Deed, step: Step, now: Situation) -> str:
    rule = now.rules.get(record.rule)
    if step.undo == "never":
        return "this step is never undone"
    if rule is not None and record.outcome not in rule.undo_on:
        return f"not to be undone when the event is {record.outcome}"
    if not step.survives_reboot and deed.boot_id != now.boot_id:
        return "the reboot has undone it"
    needing = next((other for other in now.book if _needs(other, record, step)), None)
    return f"still needed by event {needing.key}" if needing is not None else ""


def _needs(other: Record, record: Record, step: Step) -> bool:
    deed = other.deed(step.name)
    is_live = step.holds and other.key != record.key and other.gone_at is None
    return is_live and deed is not None and deed.state in TRIED


def _sharers(record: Record, deed: Deed, now: Situation) -> list[Record]:
    """Other events for which the same doing of this step counts."""
    holder = record.holder_of(deed.step)
    others = (other for other in now.book if other.key != record.key and other.deed(deed.step))
    return [other for other in others if other.holder_of(deed.step) == holder]


def _is_under_way(undo: Deed, step: Step) -> bool:
    return undo.state is State.BEGUN or (undo.state is State.FAILED and undo.tries < step.undo_tries)


def ended(deed: Deed, state: State, now: Situation, text: str) -> Deed:
    return replace(deed, state=state, ended_at=now.now, text=text)


def _undone(deed: Deed, state: State, now: Situation, text: str) -> Deed:
    return Deed(
        step=deed.step,
        phase=Phase.UNDO,
        state=state,
        begun_at=now.now,
        ended_at=now.now,
        boot_id=now.boot_id,
        text=text,
    )
