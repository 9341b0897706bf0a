"""Applies a change from the endpoint to the open records: events that are new, changed or gone. Pure.

Changes are delivered at least once, so a repeated change has no effect. An event that is listed again after it was
gone gets a new record: its steps were undone, so they are due again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from forewarn.agent.model import Event, RuleConfig
from forewarn.agent.records import EventRecord, OpenRecords
from forewarn.agent.rules import find_rule, has_started
from forewarn.client import Change, Gone, Outcome
from forewarn.client.events import event_key


def record_after_change(
    book: OpenRecords,
    change: Change,
    *,
    rules: Sequence[RuleConfig],
    vm: str,
    now: float,
    boot_id: str,
    rounds: Callable[[str], int],
) -> EventRecord | None:
    """The record that differs now, if one does. `rounds` says how often an id was met before."""
    id_ = event_key(change.event)
    known = next((record for record in book if event_key(record.event) == id_ and record.gone_at is None), None)
    if isinstance(change, Gone):
        return None if known is None else replace(known, gone_at=now, outcome=_final_outcome(known, change))
    if known is None:
        rule = find_rule(rules, change.event, vm, now)
        return _new_record(_record_key(id_, rounds(id_)), change.event, rule, now, boot_id)
    return (
        None
        if known.event == change.event or known.started_at is not None
        else _changed_record(known, change.event, now)
    )


def record_under_new_rules(record: EventRecord, *, rules: Sequence[RuleConfig], vm: str) -> EventRecord | None:
    """An event for which nothing was done, because no rule was about it or that one is no longer configured, under the
    rule that is about it now; as it was first seen, so that the configuration alone decides.
    """
    if record.gone_at is not None or record.step_runs or record.rule in {rule.name for rule in rules}:
        return None
    rule = find_rule(rules, record.event, vm, record.seen_at)
    after = replace(record, rule=rule.name if rule else "", plan=_step_names(rule))
    return None if after == record else after


def record_after_reboot(record: EventRecord, boot_id: str) -> EventRecord | None:
    """An event that is still to come after a reboot was not the reason for that: it will be prepared for when it is."""
    is_coming = record.gone_at is None and record.started_at is None
    return replace(record, boot_id=boot_id) if is_coming and record.boot_id != boot_id else None


def _step_names(rule: RuleConfig | None) -> tuple[str, ...]:
    return tuple(step.name for step in rule.steps) if rule else ()


def _record_key(id_: str, rounds: int) -> str:
    return f"{id_}#{rounds + 1}" if rounds else id_


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


def _changed_record(record: EventRecord, event: Event, now: float) -> EventRecord:
    return replace(record, event=event, started_at=now if has_started(event) else None)


def _final_outcome(record: EventRecord, change: Gone) -> str:
    """An event that was seen started has finished, whoever cannot tell."""
    is_unclear = change.outcome is Outcome.UNKNOWN and record.started_at is not None
    return Outcome.FINISHED.value if is_unclear else change.outcome.value
