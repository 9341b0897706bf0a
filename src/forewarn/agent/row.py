"""Records to rows of the journal and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from forewarn.agent.record import Approval, Asked, Consent, Deed, Record, State
from forewarn.agent.value import Event, Phase
from forewarn.client.event import key_of

Row = dict[str, Any]
_KEYS = {"events": "key", "steps": "event_key, step, phase"}


def event_row(record: Record, number: int) -> Row:
    return {
        "key": record.key,
        "id": key_of(record.event),
        "number": number,
        "kind": record.event.kind,
        "facts": json.dumps(asdict(record.event)),
        "seen_at": record.seen_at,
        "boot_id": record.boot_id,
        "not_before": record.not_before,
        "rule": record.rule,
        "plan": json.dumps(record.plan),
        "started_at": record.started_at,
        "gone_at": record.gone_at,
        "outcome": record.outcome,
        "closed": int(record.closed),
    }


def deed_row(key: str, number: int, deed: Deed) -> Row:
    return {**asdict(deed), "event_key": key, "number": number, "notes": json.dumps(dict(deed.notes))}


def upsert(db: sqlite3.Connection, table: str, row: Row) -> None:
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    changes = ", ".join(f"{name} = excluded.{name}" for name in row)
    key = _KEYS.get(table, "event_key")
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {changes}", row)


def record_from(
    row: sqlite3.Row,
    steps: Sequence[sqlite3.Row],
    approvals: Sequence[sqlite3.Row],
    consents: Sequence[sqlite3.Row],
) -> Record:
    return Record(
        key=row["key"],
        event=_event(row["facts"]),
        seen_at=row["seen_at"],
        boot_id=row["boot_id"],
        not_before=row["not_before"],
        rule=row["rule"],
        plan=tuple(json.loads(row["plan"])),
        started_at=row["started_at"],
        gone_at=row["gone_at"],
        outcome=row["outcome"],
        closed=bool(row["closed"]),
        deeds=tuple(_deed(step) for step in steps),
        approval=_approval(approvals[0]) if approvals else None,
        consent=_consent(consents[0]) if consents else None,
    )


def _event(facts: str) -> Event:
    read = json.loads(facts)
    return Event(**{**read, "resources": tuple(read["resources"])})


def _deed(row: sqlite3.Row) -> Deed:
    return Deed(
        step=row["step"],
        phase=Phase(row["phase"]),
        state=State(row["state"]),
        begun_at=row["begun_at"],
        ended_at=row["ended_at"],
        boot_id=row["boot_id"],
        text=row["text"],
        notes=json.loads(row["notes"]),
        holder=row["holder"],
        tries=row["tries"],
    )


def _approval(row: sqlite3.Row) -> Approval:
    return Approval(state=Asked(row["state"]), at=row["at"], text=row["text"])


def _consent(row: sqlite3.Row) -> Consent:
    return Consent(first_at=row["first_at"], asked_at=row["asked_at"], answer=row["answer"], text=row["text"])
