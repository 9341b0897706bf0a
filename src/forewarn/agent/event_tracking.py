"""What a change that was heard of makes of the book: events that are new, have changed or are gone. Pure.

Changes are told at least once, so one that is told again changes nothing. An event that is listed again after it was
gone gets a record of its own: its steps were undone, so they are due again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from forewarn.agent.record import Book, Record
from forewarn.agent.rule import has_started, rule_for
from forewarn.agent.value import Event, Rule
from forewarn.client import Change, Gone, Outcome
from forewarn.client.event import key_of


def sighted(
    book: Book,
    change: Change,
    *,
    rules: Sequence[Rule],
    vm: str,
    now: float,
    boot_id: str,
    rounds: Callable[[str], int],
) -> Record | None:
    """The record that differs now, if one does. `rounds` says how often an id was met before."""
    id_ = key_of(change.event)
    known = next((record for record in book if key_of(record.event) == id_ and record.gone_at is None), None)
    if isinstance(change, Gone):
        return None if known is None else replace(known, gone_at=now, outcome=_outcome(known, change))
    if known is None:
        rule = rule_for(rules, change.event, vm, now)
        return _new(_key(id_, rounds(id_)), change.event, rule, now, boot_id)
    return None if known.event == change.event or known.started_at is not None else _changed(known, change.event, now)


def reconsidered(record: Record, *, rules: Sequence[Rule], vm: str) -> Record | None:
    """An event for which nothing was done, because no rule was about it or that one is no longer configured, under the
    rule that is about it now; as it was first seen, so that the configuration alone decides.
    """
    if record.gone_at is not None or record.deeds or record.rule in {rule.name for rule in rules}:
        return None
    rule = rule_for(rules, record.event, vm, record.seen_at)
    after = replace(record, rule=rule.name if rule else "", plan=_plan(rule))
    return None if after == record else after


def outlived(record: Record, boot_id: str) -> Record | None:
    """An event that is still to come after a reboot was not the reason for that: it will be prepared for when it is."""
    is_coming = record.gone_at is None and record.started_at is None
    return replace(record, boot_id=boot_id) if is_coming and record.boot_id != boot_id else None


def _plan(rule: Rule | None) -> tuple[str, ...]:
    return tuple(step.name for step in rule.steps) if rule else ()


def _key(id_: str, rounds: int) -> str:
    return f"{id_}#{rounds + 1}" if rounds else id_


def _new(key: str, event: Event, rule: Rule | None, now: float, boot_id: str) -> Record:
    return Record(
        key=key,
        event=event,
        seen_at=now,
        boot_id=boot_id,
        not_before=event.not_before,
        rule=rule.name if rule else "",
        plan=_plan(rule),
        started_at=now if has_started(event) else None,
    )


def _changed(record: Record, event: Event, now: float) -> Record:
    return replace(record, event=event, started_at=now if has_started(event) else None)


def _outcome(record: Record, change: Gone) -> str:
    """An event that was seen started has finished, whoever cannot tell."""
    is_unclear = change.outcome is Outcome.UNKNOWN and record.started_at is not None
    return Outcome.FINISHED.value if is_unclear else change.outcome.value
