"""The agent's status: listed events, maintenance, readiness, problems; as values and as JSON. Pure.

It is computed from the journal's records and not remembered, so that readiness survives a restart of the agent. The
JSON is the page /state, and what `forewarn agent status` shows when no agent runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forewarn.agent.actions import AgentSnapshot, WaitUntil
from forewarn.agent.decision import ScheduledStep, next_actions, remaining_schedule
from forewarn.agent.explanation import actual_notice_s, promised_notice_s
from forewarn.agent.model import (
    TRIED_STATES,
    ApprovalCheckRecord,
    ApprovalState,
    Event,
    EventRecord,
    OpenRecords,
    StepConfig,
    StepPhase,
    StepRun,
    StepState,
)
from forewarn.base.times import time_text
from forewarn.client import lists

READINESS_REACTION_NAME = "readiness"  # the reaction that sets /ready to 503


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessHold:
    """A step with the reaction `readiness` that was tried and is not undone: the page /ready answers 503."""

    step: str  # its name
    event: str  # key of the record of the event for which it was run or reused
    kind: str  # the kind of the event, such as Reboot
    since: float  # server time at which the step began or was reused, in POSIX seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStatus:
    """The listed events, whether this VM is in maintenance, and what holds its readiness.

    Maintenance begins with the first step that is run for an event, or with its start if that is earlier. It ends when
    the event is no longer listed and no step is left to undo; an undo that failed for the last time does not prolong
    it.
    """

    listed: tuple[Event, ...] = ()  # all events of the document, also those of other VMs; the first seen first
    in_maintenance: bool = False  # because of an event that a rule was found for, or that lists this VM
    holds: tuple[ReadinessHold, ...] = ()  # `readiness` steps that are not undone; (): this VM is ready


def maintenance_status(open_records: OpenRecords, steps: Mapping[str, StepConfig], vm: str) -> MaintenanceStatus:
    """Compute the status from the open records; `steps` are configured steps by name, `vm` is this VM."""
    return MaintenanceStatus(
        listed=tuple(record.event for record in open_records if record.gone_at is None),
        in_maintenance=any(_is_in_maintenance(record, vm) for record in open_records),
        holds=tuple(hold for record in open_records for hold in _readiness_holds(record, steps)),
    )


def _is_in_maintenance(record: EventRecord, vm: str) -> bool:
    """Whether the event affects this VM, from the first step or the start until all is undone."""
    concerns_us = bool(record.rule) or lists(record.event, vm)
    has_begun = record.started_at is not None or any(run.state in TRIED_STATES for run in record.step_runs)
    return concerns_us and has_begun and not record.closed


def _readiness_holds(record: EventRecord, steps: Mapping[str, StepConfig]) -> Iterator[ReadinessHold]:
    for run in record.step_runs:
        step = steps.get(run.step)
        if (
            step is not None
            and step.use == READINESS_REACTION_NAME
            and _holds_readiness(run, record.step_run(run.step, StepPhase.UNDO))
        ):
            yield ReadinessHold(step=run.step, event=record.key, kind=record.event.kind, since=run.begun_at)


def _holds_readiness(run: StepRun, undo: StepRun | None) -> bool:
    return (
        run.phase is StepPhase.DO
        and run.state in TRIED_STATES
        and (undo is None or undo.state in (StepState.BEGUN, StepState.FAILED))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """A report about a running agent, from `AgentDaemon.report`: endpoint, VM, problems, events and waits."""

    endpoint: str  # the configured URL, or as discovered to ask for this VM's name; "": neither
    vm: str  # this VM's name; "": not known yet
    boot_id: str  # the id of the current boot
    now: float  # the server's time, in POSIX seconds
    silent_s: float | None  # real seconds since the endpoint's last answer; None: no answer yet
    problems: tuple[str, ...]  # sentences: of endpoint, journal and readiness board, then `open_problems`
    events: tuple[tuple[EventRecord, tuple[ScheduledStep, ...]], ...]  # what `events_with_schedule` returns
    waits: tuple[tuple[str, str], ...] = ()  # (key of an event, what it waits for)


def events_with_schedule(snapshot: AgentSnapshot) -> tuple[tuple[EventRecord, tuple[ScheduledStep, ...]], ...]:
    """Return a pair for each open record, oldest first: the record, and the schedule of its steps to come."""
    return tuple((record, remaining_schedule(record, snapshot)) for record in snapshot.open_records)


def open_problems(open_records: OpenRecords) -> Iterator[str]:
    """Yield a sentence for each failed step or undo, cut step and refused approval of the open records."""
    for record in open_records:
        for run in record.step_runs:
            if run.state is StepState.FAILED:
                verb = "could not be undone" if run.phase is StepPhase.UNDO else "failed"
                yield f"step {run.step} {verb} for event {record.key}: {run.text}"
            if run.state is StepState.CUT:
                yield f"step {run.step} was cut for event {record.key}: {run.text}"
        if record.approval is not None and record.approval.state is ApprovalState.REFUSED:
            yield f"the approval of event {record.key} was refused: {record.approval.text}"


JsonObject = dict[str, Any]


def state_view(snapshot: AgentSnapshot) -> JsonObject:
    """Return the JSON object of the agent's page /state. Times are the server's."""
    status = maintenance_status(snapshot.open_records, snapshot.steps, snapshot.vm)
    waits = {action.key: action for action in next_actions(snapshot) if isinstance(action, WaitUntil)}
    return {
        "vm": snapshot.vm,
        "now": time_text(snapshot.now),
        "in_maintenance": status.in_maintenance,
        "ready": not status.holds,
        "holds": [{**asdict(hold), "since": time_text(hold.since)} for hold in status.holds],
        "events": [
            _event_view(record, remaining_schedule(record, snapshot), snapshot.steps, waits.get(record.key))
            for record in snapshot.open_records
        ],
    }


def _event_view(
    record: EventRecord,
    schedule: tuple[ScheduledStep, ...],
    steps: Mapping[str, StepConfig],
    wait: WaitUntil | None = None,
) -> JsonObject:
    """The JSON object of one event, without the notes of its steps, which may be secret."""
    event, coming = record.event, {scheduled.step.name: scheduled for scheduled in schedule}
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
        "seen_at": time_text(record.seen_at),
        "not_before": time_text(event.not_before or record.not_before),
        "started_at": time_text(record.started_at),
        "gone_at": time_text(record.gone_at),
        "notice_promised_s": promised_notice_s(record),
        "notice_given_s": actual_notice_s(record),
        "steps": [_step_view(name, record, steps.get(name), coming.get(name)) for name in record.plan],
        "approval": None
        if (approval := record.approval) is None
        else {**asdict(approval), "at": time_text(approval.at)},
        "gate": None if record.approval_check is None else _approval_check_view(record.approval_check),
        "waits_for": wait.reason if wait else "",
        "waits_until": time_text(wait.until) if wait else None,
    }


def _approval_check_view(check: ApprovalCheckRecord) -> JsonObject:
    return {**asdict(check), "first_at": time_text(check.first_at), "asked_at": time_text(check.asked_at)}


def _step_view(name: str, record: EventRecord, step: StepConfig | None, scheduled: ScheduledStep | None) -> JsonObject:
    return {
        "name": name,
        "use": step.use if step else "",
        "budget_s": step.budget_s if step else None,
        "due_at": time_text(scheduled.due_at) if scheduled else None,
        "latest_at": time_text(scheduled.latest_at) if scheduled else None,
        "do": _step_run_view(record.step_run(name)),
        "undo": _step_run_view(record.step_run(name, StepPhase.UNDO)),
    }


def _step_run_view(run: StepRun | None) -> JsonObject | None:
    """A run as JSON, without its notes, which may be secret."""
    if run is None:
        return None
    begun_at, ended_at = time_text(run.begun_at), time_text(run.ended_at)
    return {"state": run.state, "begun_at": begun_at, "ended_at": ended_at, "text": run.text}
