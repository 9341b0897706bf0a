"""The agent's status: listed events, maintenance, readiness, problems; as values and as JSON. Pure.

It is computed from the journal's records and not remembered, so that readiness survives a restart of the agent. The
JSON is the page /state, and what `forewarn agent status` shows when no agent runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forewarn.agent.actions import AgentSnapshot, WaitUntil
from forewarn.agent.decision import next_actions, remaining_schedule
from forewarn.agent.explanation import actual_notice_s, promised_notice_s
from forewarn.agent.model import Event, StepConfig, StepPhase
from forewarn.agent.records import TRIED_STATES, ApprovalState, EventRecord, OpenRecords, StepRun, StepState
from forewarn.agent.step_schedule import ScheduledStep
from forewarn.client import lists

READINESS_REACTION_NAME = "readiness"  # the reaction that turns /ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessHold:
    """A step that keeps load balancers away."""

    step: str
    event: str
    kind: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStatus:
    listed: tuple[Event, ...] = ()
    in_maintenance: bool = False
    holds: tuple[ReadinessHold, ...] = ()


def maintenance_status(book: OpenRecords, steps: Mapping[str, StepConfig], vm: str) -> MaintenanceStatus:
    return MaintenanceStatus(
        listed=tuple(record.event for record in book if record.gone_at is None),
        in_maintenance=any(_is_in_maintenance(record, vm) for record in book),
        holds=tuple(hold for record in book for hold in _readiness_holds(record, steps)),
    )


def _is_in_maintenance(record: EventRecord, vm: str) -> bool:
    """From the first step or the start on, until nothing is left to undo."""
    concerns_us = bool(record.rule) or lists(record.event, vm)
    has_begun = record.started_at is not None or any(deed.state in TRIED_STATES for deed in record.step_runs)
    return concerns_us and has_begun and not record.closed


def _readiness_holds(record: EventRecord, steps: Mapping[str, StepConfig]) -> Iterator[ReadinessHold]:
    for deed in record.step_runs:
        step = steps.get(deed.step)
        if (
            step is not None
            and step.use == READINESS_REACTION_NAME
            and _holds_readiness(deed, record.step_run(deed.step, StepPhase.UNDO))
        ):
            yield ReadinessHold(step=deed.step, event=record.key, kind=record.event.kind, since=deed.begun_at)


def _holds_readiness(deed: StepRun, undo: StepRun | None) -> bool:
    return (
        deed.phase is StepPhase.DO
        and deed.state in TRIED_STATES
        and (undo is None or undo.state in (StepState.BEGUN, StepState.FAILED))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    endpoint: str  # "": it is not known yet
    vm: str
    boot_id: str
    now: float  # the server's time
    silent_s: float | None  # since the endpoint's last answer; None: there was none yet
    problems: tuple[str, ...]
    events: tuple[tuple[EventRecord, tuple[ScheduledStep, ...]], ...]  # with the slots of steps that are still to come
    waits: tuple[tuple[str, str], ...] = ()  # by the key of an event: what it waits for


def events_with_schedule(now: AgentSnapshot) -> tuple[tuple[EventRecord, tuple[ScheduledStep, ...]], ...]:
    return tuple((record, remaining_schedule(record, now)) for record in now.open_records)


def open_problems(book: OpenRecords) -> Iterator[str]:
    """What went wrong for the events that are not closed."""
    for record in book:
        for deed in record.step_runs:
            if deed.state is StepState.FAILED:
                what = "could not be undone" if deed.phase is StepPhase.UNDO else "failed"
                yield f"step {deed.step} {what} for event {record.key}: {deed.text}"
            if deed.state is StepState.CUT:
                yield f"step {deed.step} was cut for event {record.key}: {deed.text}"
        if record.approval is not None and record.approval.state is ApprovalState.REFUSED:
            yield f"the approval of event {record.key} was refused: {record.approval.text}"


JsonObject = dict[str, Any]


def state_view(now: AgentSnapshot) -> JsonObject:
    standing = maintenance_status(now.open_records, now.steps, now.vm)
    waits = {move.key: move for move in next_actions(now) if isinstance(move, WaitUntil)}
    return {
        "vm": now.vm,
        "now": now.now,
        "in_maintenance": standing.in_maintenance,
        "ready": not standing.holds,
        "holds": [asdict(hold) for hold in standing.holds],
        "events": [
            event_view(record, remaining_schedule(record, now), now.steps, waits.get(record.key))
            for record in now.open_records
        ],
    }


def event_view(
    record: EventRecord,
    slots: tuple[ScheduledStep, ...],
    steps: Mapping[str, StepConfig],
    wait: WaitUntil | None = None,
) -> JsonObject:
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
        "notice_promised_s": promised_notice_s(record),
        "notice_got_s": actual_notice_s(record),
        "steps": [_step_view(name, record, steps.get(name), coming.get(name)) for name in record.plan],
        "approval": None if record.approval is None else asdict(record.approval),
        "gate": None if record.approval_check is None else asdict(record.approval_check),
        "waits_for": wait.reason if wait else "",
        "waits_until": wait.until if wait else None,
    }


def _step_view(name: str, record: EventRecord, step: StepConfig | None, slot: ScheduledStep | None) -> JsonObject:
    return {
        "name": name,
        "use": step.use if step else "",
        "budget_s": step.budget_s if step else None,
        "due_at": slot.due_at if slot else None,
        "latest_at": slot.latest_at if slot else None,
        "do": _step_run_view(record.step_run(name)),
        "undo": _step_run_view(record.step_run(name, StepPhase.UNDO)),
    }


def _step_run_view(deed: StepRun | None) -> JsonObject | None:
    """Without the notes: they are between a step and its undoing, and may be secret."""
    if deed is None:
        return None
    return {"state": deed.state, "begun_at": deed.begun_at, "ended_at": deed.ended_at, "text": deed.text}
