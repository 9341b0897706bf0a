"""The story of an event as the journal tells it: the notice it gave, each step and its undoing, the approval. Pure.

Instants stay numbers, for whoever shows them; in the text there are durations only. They are the server's, whose dates
are whole seconds and whose time a lab may hold, so what must have come first is told first, whatever they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from math import inf

from forewarn.agent.budget import Slot, layout
from forewarn.agent.record import Asked, Deed, Record, State
from forewarn.agent.value import Phase, Rule, Step, When
from forewarn.duration import span


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    at: float
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    title: str
    lines: tuple[Line, ...]  # as it happened
    now: str


def story_of(record: Record, rules: Mapping[str, Rule], waits_for: str = "") -> Story:
    doing = _ranked([*_seen(record), *_steps(record, rules, Phase.DO), *_approving(record)], -inf)
    course = _ranked(_course(record), doing[-1][0] if record.approval is not None else record.seen_at)
    undoing = _ranked(_steps(record, rules, Phase.UNDO), course[-1][0] if course else record.seen_at)
    lines = sorted((*doing, *course, *undoing), key=lambda ranked: ranked[0])
    return Story(
        title=f"event {record.key}: {record.event.kind} of {', '.join(record.event.resources) or 'nobody'}",
        lines=tuple(line for _, line in lines),
        now=waits_for or _now(record, rules.get(record.rule)),
    )


def _ranked(lines: Iterable[Line], since: float) -> list[tuple[float, Line]]:
    """Each with the instant it is sorted by: its own, or that of a line that came before it."""
    listed = list(lines)
    ranks = accumulate((line.at for line in listed), max, initial=since)
    return list(zip(islice(ranks, 1, None), listed, strict=True))


def promised_s(record: Record) -> float | None:
    """The notice as it was first seen; None: there was none, or nobody knows."""
    return None if record.not_before is None else max(0.0, record.not_before - record.seen_at)


def got_s(record: Record) -> float | None:
    """From when it was first seen to its start; None if it has not started, or nobody saw it start."""
    return None if record.started_at is None else record.started_at - record.seen_at


def _seen(record: Record) -> Iterator[Line]:
    promised, rule = promised_s(record), f"rule {record.rule!r}" if record.rule else "no rule is about it"
    if record.started_at == record.seen_at:
        notice = "it had started already: no notice"
    elif promised is None:
        notice = "nobody said when it may start"
    else:
        notice = f"a notice of {span(promised)}" if promised else "its notice was over already"
    yield Line(at=record.seen_at, text=f"first seen, {notice}; {rule}", detail=record.event.description)


def _course(record: Record) -> Iterator[Line]:
    promised, got = promised_s(record), got_s(record)
    if record.started_at is not None and got:
        of = "" if promised is None else f" of the {span(promised)} that were promised"
        yield Line(at=record.started_at, text=f"started, after {span(got)}{of}")
    if record.gone_at is not None:
        yield Line(at=record.gone_at, text=f"gone: {record.outcome or 'unknown'}")


def _steps(record: Record, rules: Mapping[str, Rule], phase: Phase) -> Iterator[Line]:
    rule = rules.get(record.rule)
    slots = {slot.step.name: slot for slot in _planned(record, rule)} if rule else {}
    for deed in record.deeds:
        if deed.phase is phase:
            slot = slots.get(deed.step) if phase is Phase.DO else None
            yield from _deed(deed, _promise(slot, record.not_before) if slot else "")


def _planned(record: Record, rule: Rule) -> tuple[Slot, ...]:
    """The slots as they were laid out when the event was first seen."""
    steps = [step for step in rule.steps if step.name in record.plan]
    return layout(steps, record.not_before, record.seen_at, begin=rule.begin, margin_s=rule.margin_s)


def _promise(slot: Slot, not_before: float | None) -> str:
    text = f"budget {span(slot.step.budget_s)}"
    if not_before is None or slot.cut or slot.late:
        return text
    return f"{text}, to begin {span(not_before - slot.latest_at)} before NotBefore at the latest"


def _deed(deed: Deed, promise: str) -> Iterator[Line]:
    name = deed.step if deed.phase is Phase.DO else f"undo of {deed.step}"
    because = f": {deed.text}" if deed.text else ""
    if deed.state in (State.CUT, State.SKIPPED):
        yield Line(at=deed.begun_at, text=f"{name} {deed.state}{because}", detail=promise)
        return
    if deed.is_held:
        yield Line(at=deed.begun_at, text=f"{name} held{because}", detail=promise)
        return
    again = f", try {deed.tries}" if 1 < deed.tries < 1_000 else ""
    yield Line(at=deed.begun_at, text=f"{name} began{again}", detail=promise)
    if deed.ended_at is not None:
        took_s = deed.ended_at - deed.begun_at
        took = f"{took_s:.1f}s" if took_s < 10 else span(took_s)
        yield Line(at=deed.ended_at, text=f"{name} {deed.state} after {took}{because}")


def _approving(record: Record) -> Iterator[Line]:
    consent, approval = record.consent, record.approval
    if consent is not None:
        yield Line(at=consent.first_at, text="the gate was asked")
    if consent is not None and consent.answer:
        yield Line(at=consent.asked_at, text=f"the gate said {consent.answer}", detail=consent.text)
    if approval is not None:
        words = {Asked.ASKED: "approval asked for", Asked.SENT: "approved", Asked.REFUSED: "approval refused"}
        yield Line(at=approval.at, text=words[approval.state] + (f": {approval.text}" if approval.text else ""))


def _now(record: Record, rule: Rule | None) -> str:
    if record.closed:
        failed = [deed.step for deed in record.deeds if deed.phase is Phase.UNDO and deed.state is State.FAILED]
        return (
            f"closed, but not undone: {', '.join(failed)}; see to it by hand" if failed else "closed: nothing is left"
        )
    under_way = [deed for deed in record.deeds if deed.state is State.BEGUN]
    if under_way:
        return "; ".join(f"{'undoing ' if deed.phase is Phase.UNDO else ''}{deed.step} under way" for deed in under_way)
    if record.gone_at is not None:
        return "gone, and being undone"
    return "started" if record.started_at is not None else f"scheduled{_unapproved(record, rule)}"


def _unapproved(record: Record, rule: Rule | None) -> str:
    """Why it will not be approved although its rule says so."""
    lacking = [f"{deed.step} {deed.state}" for deed in record.deeds if deed.state in (State.FAILED, State.CUT)]
    if rule is None or rule.approve.when is When.NEVER or record.approval is not None or not lacking:
        return ""
    return f", and left to its NotBefore without an approval: {', '.join(lacking)}"


def plan_table(rule: Rule, notices_s: tuple[float, ...]) -> list[tuple[Step, list[str]]]:
    """For each step of a rule, when it would begin for each of these notices."""
    plans = [layout(rule.steps, notice, 0.0, begin=rule.begin, margin_s=rule.margin_s) for notice in notices_s]
    return [
        (step, [_cell(plan[place], notice) for plan, notice in zip(plans, notices_s, strict=True)])
        for place, step in enumerate(rule.steps)
    ]


def _cell(slot: Slot, notice_s: float) -> str:
    if slot.cut:
        return "cut"
    if slot.late:
        return "at once, late"
    left = span(notice_s - slot.latest_at)
    return f"at once, by {left} before" if slot.due_at < slot.latest_at else f"{left} before"
