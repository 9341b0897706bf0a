"""Applies changes from the endpoint to the open records: events that are new, changed or gone. Pure.

Changes are delivered at least once, so a repeated change has no effect. An event that is listed again after it was
gone gets a new record: its steps were undone, so they are due again. An event that is postponed loses the runs of steps
that were cut for lack of time: there may be time for them now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from forewarn.agent.approval import find_rule, has_started
from forewarn.agent.model import TRIED_STATES, Event, EventRecord, OpenRecords, RuleConfig, StepRun, StepState
from forewarn.client import Change, Gone, Outcome
from forewarn.client.events import event_key


def records_after_changes(
    open_records: OpenRecords,
    changes: Sequence[Change],
    *,
    rules: Sequence[RuleConfig],
    vm: str,
    now: float,
    boot_id: str,
    count_records: Callable[[str], int],
) -> tuple[EventRecord, ...]:
    """Return the records that are new or changed by these changes, in the order of the changes.

    A known event keeps its rule. A later NotBefore removes the runs of steps that were cut, unless a step after them
    was tried. After the event's start only Gone changes its record. `count_records` returns how many records an
    `event_key` has in the journal: if it has one, the new key ends in #2.
    """
    listed = {event_key(record.event): record for record in open_records if record.gone_at is None}
    created: Counter[str] = Counter()  # records of this call, by `event_key`
    records: list[EventRecord] = []
    for change in changes:
        event_id = event_key(change.event)
        known = listed.get(event_id)
        if known is None and not isinstance(change, Gone):
            rule = find_rule(rules, change.event, vm, now)
            key = _record_key(event_id, count_records(event_id) + created[event_id])
            after: EventRecord | None = _new_record(key, change.event, rule, now, boot_id)
            created[event_id] += 1
        else:
            after = _known_record_after(known, change, now)
        if after is None:
            continue
        records.append(after)
        if after.gone_at is None:
            listed[event_id] = after
        else:
            del listed[event_id]
    return tuple(records)


def record_under_new_rules(record: EventRecord, *, rules: Sequence[RuleConfig], vm: str) -> EventRecord | None:
    """Return a copy of the record with its rule and steps under the new `rules`; None if nothing changes."""
    if record.gone_at is not None or record.step_runs or record.rule in {rule.name for rule in rules}:
        return None
    rule = find_rule(rules, record.event, vm, record.seen_at)
    after = replace(record, rule=rule.name if rule else "", plan=_step_names(rule))
    return None if after == record else after


def record_after_reboot(record: EventRecord, boot_id: str) -> EventRecord | None:
    """Return a copy of the record with the current `boot_id`, if its event is listed and not seen started."""
    # A reboot before the start was not caused by the event, so the event is still to be prepared for.
    is_coming = record.gone_at is None and record.started_at is None
    return replace(record, boot_id=boot_id) if is_coming and record.boot_id != boot_id else None


def _step_names(rule: RuleConfig | None) -> tuple[str, ...]:
    return tuple(step.name for step in rule.steps) if rule else ()


def _record_key(event_id: str, earlier_records: int) -> str:
    return f"{event_id}#{earlier_records + 1}" if earlier_records else event_id


def _new_record(key: str, event: Event, rule: RuleConfig | None, now: float, boot_id: str) -> EventRecord:
    return EventRecord(
        key=key,
        event=event,
        seen_at=now,
        boot_id=boot_id,
        not_before=event.not_before,
        rule=rule.name if rule else "",
        plan=_step_names(rule),
        started_at=now if has_started(event) else None,
    )


def _known_record_after(known: EventRecord | None, change: Change, now: float) -> EventRecord | None:
    if known is None:
        return None
    if isinstance(change, Gone):
        return replace(known, gone_at=now, outcome=_final_outcome(known, change))
    is_same = known.event == change.event or known.started_at is not None
    return None if is_same else _changed_record(known, change.event, now)


def _changed_record(record: EventRecord, event: Event, now: float) -> EventRecord:
    known_at, after_at = record.event.not_before, event.not_before
    is_postponed = known_at is not None and after_at is not None and after_at > known_at and not has_started(event)
    return replace(
        record,
        event=event,
        # The estimate of the server's time can go back by a moment; a notice is never shorter than nothing.
        started_at=max(now, record.seen_at) if has_started(event) else None,
        step_runs=_step_runs_when_postponed(record) if is_postponed else record.step_runs,
    )


def _step_runs_when_postponed(record: EventRecord) -> tuple[StepRun, ...]:
    # Steps before one that was tried stay cut, because steps run only in the order of the plan.
    tried = {run.step for run in record.step_runs if run.state in TRIED_STATES}
    before_tried = {name for at, name in enumerate(record.plan) if tried.intersection(record.plan[at:])}
    return tuple(run for run in record.step_runs if run.state is not StepState.CUT or run.step in before_tried)


def _final_outcome(record: EventRecord, change: Gone) -> str:
    """The outcome; an event that was seen started has finished, even if the client could not tell."""
    is_unclear = change.outcome is Outcome.UNKNOWN and record.started_at is not None
    return Outcome.FINISHED.value if is_unclear else change.outcome.value
