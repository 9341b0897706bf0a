"""How things stand, as JSON: for the page /state, and for `forewarn agent status` when no agent is running. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from forewarn.agent.budget import Slot
from forewarn.agent.decision import next_moves, slots_of
from forewarn.agent.move import Situation, Wait
from forewarn.agent.record import Deed, Record
from forewarn.agent.standing import standing_of
from forewarn.agent.story import got_s, promised_s
from forewarn.agent.value import Phase, Step

View = dict[str, Any]


def state_view(now: Situation) -> View:
    standing = standing_of(now.book, now.steps, now.vm)
    waits = {move.key: move for move in next_moves(now) if isinstance(move, Wait)}
    return {
        "vm": now.vm,
        "now": now.now,
        "in_maintenance": standing.in_maintenance,
        "ready": not standing.holds,
        "holds": [asdict(hold) for hold in standing.holds],
        "events": [event_view(record, slots_of(record, now), now.steps, waits.get(record.key)) for record in now.book],
    }


def event_view(record: Record, slots: tuple[Slot, ...], steps: Mapping[str, Step], wait: Wait | None = None) -> View:
    event, coming = record.event, {slot.step.name: slot for slot in slots}
    return {
        "key": record.key,
        "id": event.id,
        "kind": event.kind,
        "status": "Gone" if record.gone_at is not None else event.status,
        "outcome": record.outcome,
        "vms": list(event.resources),
        "source": event.source,
        "description": event.description,
        "duration_s": event.duration_s,
        "rule": record.rule,
        "seen_at": record.seen_at,
        "not_before": event.not_before or record.not_before,
        "started_at": record.started_at,
        "gone_at": record.gone_at,
        "notice_promised_s": promised_s(record),
        "notice_got_s": got_s(record),
        "steps": [_step(name, record, steps.get(name), coming.get(name)) for name in record.plan],
        "approval": None if record.approval is None else asdict(record.approval),
        "gate": None if record.consent is None else asdict(record.consent),
        "waits_for": wait.why if wait else "",
        "waits_until": wait.until if wait else None,
    }


def _step(name: str, record: Record, step: Step | None, slot: Slot | None) -> View:
    return {
        "name": name,
        "use": step.use if step else "",
        "budget_s": step.budget_s if step else None,
        "due_at": slot.due_at if slot else None,
        "latest_at": slot.latest_at if slot else None,
        "do": _deed(record.deed(name)),
        "undo": _deed(record.deed(name, Phase.UNDO)),
    }


def _deed(deed: Deed | None) -> View | None:
    """Without the notes: they are between a step and its undoing, and may be secret."""
    if deed is None:
        return None
    return {"state": deed.state, "begun_at": deed.begun_at, "ended_at": deed.ended_at, "text": deed.text}
