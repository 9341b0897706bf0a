"""What a document changes in the book: events that are new, have changed or are gone. Pure.

An event that is listed again after it was gone gets a record of its own: its steps were undone, so they are due again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from forewarn.agent.record import Book, Record
from forewarn.agent.rule import has_started, rule_for
from forewarn.agent.value import Event, Rule
from forewarn.client.event import key_of

_REBOOTING = frozenset({"Reboot", "Redeploy", "Preempt", "Terminate"})


def sighted(
    book: Book,
    events: Sequence[Event],
    *,
    rules: Sequence[Rule],
    vm: str,
    now: float,
    boot_id: str,
    rounds: Callable[[str], int],
    outcomes: Mapping[str, str],
) -> tuple[Record, ...]:
    """The records that differ now. `rounds` says how often an id was met before, `outcomes` why ids are gone."""
    listed = {key_of(event): event for event in events}
    known = {_id(record): record for record in book if record.gone_at is None}
    changed = [_now_gone(record, now, boot_id, outcomes) for id_, record in known.items() if id_ not in listed]
    for id_, event in listed.items():
        if id_ not in known:
            changed.append(_new(_key(id_, rounds(id_)), event, rule_for(rules, event, vm, now), now, boot_id))
        elif known[id_].event != event:
            changed.append(_changed(known[id_], event, now))
    return tuple(changed)


def _id(record: Record) -> str:
    return record.key.partition("#")[0]


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
        plan=tuple(step.name for step in rule.steps) if rule else (),
        started_at=now if has_started(event) else None,
    )


def _changed(record: Record, event: Event, now: float) -> Record:
    started_at = now if has_started(event) and record.started_at is None else record.started_at
    return replace(record, event=event, started_at=started_at)


def _now_gone(record: Record, now: float, boot_id: str, outcomes: Mapping[str, str]) -> Record:
    return replace(record, gone_at=now, outcome=_outcome(record, boot_id, outcomes))


def _outcome(record: Record, boot_id: str, outcomes: Mapping[str, str]) -> str:
    told = outcomes.get(_id(record), "unknown")
    if told == "unknown" and record.started_at is not None:
        return "finished"
    if told == "unknown" and record.boot_id != boot_id and record.event.kind in _REBOOTING:
        return "finished"  # the reboot that was announced is the likeliest cause of the one that happened
    return told
