"""What is to be done next, read off the journal: level, not edge, so that it does not matter how often it is asked,
nor by which process. Pure.

Two rules. A step that has an end is never begun again for its event. What was tried is undone once, after the event is
gone, when no other event needs it any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forewarn.agent.approval import Verdict, all_ready, consented
from forewarn.agent.budget import Slot, layout, no_time
from forewarn.agent.move import Approve, AskGate, Begin, Move, Resume, Settle, Situation, Wait, made
from forewarn.agent.record import HELD, Asked, Deed, Record, State
from forewarn.agent.rule import has_started
from forewarn.agent.sharing import has_lapsed, holder_among, is_held, is_under_way, others_with
from forewarn.agent.undoing import ended, undoing
from forewarn.agent.value import Phase, Rule, Step, When
from forewarn.client.event import key_of

ASK_AGAIN_S = 5.0  # an approval without an answer
LOOK_S = 2.0  # at the board, while others are not ready


def next_moves(now: Situation) -> tuple[Move, ...]:
    """At most one move that leads on per event, each decided as if those before it were made."""
    moves: list[Move] = []
    for record in now.book:
        for move in undoing(record, now) if record.gone_at is not None else _doing(record, now):
            moves.append(move)
            now = replace(now, book=now.book.with_(made(record, move, now=now.now, boot_id=now.boot_id)))
    return tuple(moves)


def slots_of(record: Record, now: Situation) -> tuple[Slot, ...]:
    """When the steps that are still to come are due."""
    steps = [now.steps[name] for name in record.plan if record.deed(name) is None and name in now.steps]
    rule = now.rules.get(record.rule, Rule(name=""))
    if has_started(record.event):
        return no_time(steps, now.now, rule.no_time)
    return layout(steps, record.event.not_before, now.now, begin=rule.begin, margin_s=rule.margin_s)


def is_ready(record: Record, now: Situation) -> bool:
    """Whether all steps are done: what an approval takes. One that failed, was cut, or was undone by a reboot before
    the event started forbids it.
    """
    deeds = [record.deed(name) for name in record.plan]
    if not all(deed is not None and deed.state in (State.DONE, State.SKIPPED) for deed in deeds):
        return False
    steps = (now.steps[name] for name in record.plan if name in now.steps)
    return not any(has_lapsed(record, step, now) for step in steps)


def resumed(step: Step, phase: Phase, is_done: bool | None) -> State | None:
    """The end of a step that was found begun, by what its check says of `do`; None: run it again."""
    if is_done is None:
        return {"repeat": None, "skip": State.DONE, "report": State.FAILED}[step.unclear]
    return State.DONE if is_done == (phase is Phase.DO) else None


def _doing(record: Record, now: Situation) -> Iterator[Move]:
    if any(key == record.key for key, _ in now.busy):
        return
    name = next((name for name in record.plan if _is_open(record, name)), None)
    if name is not None:
        yield _next_step(record, name, now)
    elif is_ready(record, now) and not has_started(record.event):
        yield from _approving(record, now)


def _is_open(record: Record, name: str) -> bool:
    deed = record.deed(name)
    return deed is None or deed.state is State.BEGUN


def _next_step(record: Record, name: str, now: Situation) -> Move:
    deed, step = record.deed(name), now.steps.get(name)
    if has_started(record.event) and record.boot_id != now.boot_id:
        return _after_reboot(record, name, deed, now)
    if step is None:
        return _settled(record, name, State.SKIPPED, now, "the step is no longer configured")
    if deed is not None:
        return Resume(key=record.key, step=step, phase=Phase.DO, ask=not step.repeatable)
    return _fresh(record, step, now)


def _after_reboot(record: Record, name: str, deed: Deed | None, now: Situation) -> Move:
    """The event is still listed for a while after the reboot it announced: nothing is left to prepare."""
    if deed is not None:
        return Settle(key=record.key, deed=ended(deed, State.FAILED, now, "cut off by the reboot"))
    return _settled(record, name, State.SKIPPED, now, "the VM was rebooted before it began")


def _fresh(record: Record, step: Step, now: Situation) -> Move:
    others = others_with(record, step, now)
    held = next((other for other in others if is_held(other, step, now)), None)
    if held is not None:
        return _held(record, held, step, now)
    slot = slots_of(record, now)[0]
    if slot.cut:
        return _settled(record, step.name, State.CUT, now, _why_cut(record, now))
    if now.now < slot.due_at:
        return Wait(key=record.key, until=slot.due_at, why=f"{step.name} begins late")
    if busy := next((other for other in others if is_under_way(other, step)), None):
        return Wait(key=record.key, why=f"{step.name} is under way for event {busy.key}")
    return Begin(key=record.key, step=step, phase=Phase.DO, holder=holder_among(others, step, now))


def _held(record: Record, other: Record, step: Step, now: Situation) -> Settle:
    theirs = other.deed(step.name)
    assert theirs is not None
    return Settle(
        key=record.key,
        deed=Deed(
            step=theirs.step,
            state=State.DONE,
            begun_at=now.now,
            ended_at=now.now,
            boot_id=theirs.boot_id,
            text=f"{HELD} {other.key}",
            notes=theirs.notes,
            holder=other.holder_of(theirs.step),
        ),
    )


def _settled(record: Record, name: str, state: State, now: Situation, text: str) -> Settle:
    deed = Deed(step=name, state=state, begun_at=now.now, ended_at=now.now, boot_id=now.boot_id, text=text)
    return Settle(key=record.key, deed=deed)


def _why_cut(record: Record, now: Situation) -> str:
    if has_started(record.event):
        return "the event has started"
    left = (record.event.not_before or now.now) - now.now
    return f"no time: {max(0.0, left):.0f} s are left"


def _approving(record: Record, now: Situation) -> Iterator[Move]:
    rule, approval = now.rules.get(record.rule), record.approval
    if rule is None or rule.approve.when is When.NEVER:
        return
    if approval is not None and approval.state is not Asked.ASKED:
        return
    if approval is not None:
        due_at = approval.at + ASK_AGAIN_S
        yield Wait(key=record.key, until=due_at, why="asked for approval") if now.now < due_at else _approve(record)
        return
    verdict = _verdict(record, rule, now)
    if not verdict.yes:
        yield Wait(key=record.key, until=verdict.again_at, why=verdict.why)
    elif rule.gate is None:
        yield _approve(record)
    else:
        yield _past_gate(record, rule, now)


def _approve(record: Record) -> Approve:
    return Approve(key=record.key)


def _verdict(record: Record, rule: Rule, now: Situation) -> Verdict:
    if rule.approve.when is not When.ALL_DONE:
        return Verdict(yes=True)
    ends = [deed.ended_at or deed.begun_at for deed in record.deeds]
    verdict = all_ready(
        key_of(record.event),
        record.event.resources,
        now.vm,
        now.board,
        waited_s=now.now - max(ends, default=record.seen_at),
        absent_after_s=rule.approve.absent_after_s,
    )
    return verdict if verdict.yes else Verdict(yes=False, why=verdict.why, again_at=now.now + LOOK_S)


def _past_gate(record: Record, rule: Rule, now: Situation) -> Move:
    assert rule.gate is not None
    verdict = consented(rule.gate, record.consent, now.now)
    if verdict.yes:
        return _approve(record)
    if verdict.again_at is not None and verdict.again_at <= now.now:
        return AskGate(key=record.key, gate=rule.gate)
    return Wait(key=record.key, until=verdict.again_at, why=verdict.why)
