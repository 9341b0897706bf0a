"""Prunes a SQLite store: deletes old rows that nothing refers to, and returns their space.

It works in transactions of at most ROWS_PER_TRANSACTION rows, so that a commit never waits long for it. Space is
returned by incremental vacuum, also in small transactions: VACUUM would block all writes while it copies the store,
and needs space for the copy.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from forewarn.core.event import EventState
from forewarn.store import sqlite_file
from forewarn.store.interface import REPLAY_SCRIPT_PREFIX
from forewarn.store.writer_thread import WriterThread

ROWS_PER_TRANSACTION = 500
_PAGES_PER_TRANSACTION = 1000  # of 4 KiB

# An open rollout learns from its events which VMs are done, so they stay.
_IS_OLD_EVENT = f"""
    events.status = '{EventState.OVER}' AND events.over_at < :before
    AND events.request_id NOT IN (SELECT id FROM requests WHERE is_open = 1)"""
# Events of a replay are in no row of `events`: their first delivery says how old they are.
_OLD_DELIVERY_EVENTS = f"""
    SELECT number FROM (
        SELECT number FROM events CROSS JOIN delivery_events ON delivery_events.event_id = events.id
        WHERE {_IS_OLD_EVENT}
        UNION ALL
        SELECT number FROM delivery_events
        WHERE first_at < :before AND NOT EXISTS (SELECT 1 FROM events WHERE events.id = delivery_events.event_id)
    ) LIMIT :limit"""
_LISTS_VM = "listed.value = json_extract(CAST(vms.body AS TEXT), '$.name')"

# Parameters: `before` and `limit`, or the key `row_id` of a row that is deleted.
PRUNE_HISTORY = "DELETE FROM history WHERE seq IN (SELECT seq FROM history WHERE at < :before LIMIT :limit)"
PRUNE_DELIVERIES = f"""
    DELETE FROM deliveries WHERE (event, vm, status) IN
    (SELECT event, vm, status FROM deliveries WHERE event IN ({_OLD_DELIVERY_EVENTS}) LIMIT :limit)"""
PRUNE_DELIVERY_EVENTS = f"""
    DELETE FROM delivery_events WHERE number IN ({_OLD_DELIVERY_EVENTS})
    AND NOT EXISTS (SELECT 1 FROM deliveries WHERE deliveries.event = delivery_events.number)"""
PRUNE_EVENTS = f"""
    DELETE FROM events WHERE position IN
    (SELECT position FROM events WHERE {_IS_OLD_EVENT}
     AND NOT EXISTS (SELECT 1 FROM delivery_events WHERE delivery_events.event_id = events.id) LIMIT :limit)"""
OLD_REQUESTS = """
    SELECT id FROM requests WHERE at < :before AND +is_open = 0
    AND NOT EXISTS (SELECT 1 FROM events WHERE events.request_id = requests.id)
    AND NOT EXISTS (SELECT 1 FROM planned WHERE planned.request_id = requests.id)
    AND NOT EXISTS (SELECT 1 FROM history WHERE history.request_id = requests.id) LIMIT :limit"""
PRUNE_REQUEST = "DELETE FROM requests WHERE id = :row_id"
PRUNE_REPLAY_SCRIPT = f"DELETE FROM saved WHERE name = '{REPLAY_SCRIPT_PREFIX}' || :row_id"
PRUNE_MEASUREMENTS = "DELETE FROM measurements WHERE request_id = :row_id"
PRUNE_GATES = """
    DELETE FROM gates WHERE request_id = :row_id
    AND NOT EXISTS (SELECT 1 FROM events WHERE events.gate_id = gates.id)
    AND NOT EXISTS (SELECT 1 FROM planned WHERE planned.gate_id = gates.id)"""
OLD_VMS = f"""
    SELECT key FROM vms WHERE removed_at < :before
    AND NOT EXISTS (SELECT 1 FROM events CROSS JOIN json_each(CAST(events.body AS TEXT), '$.vms') AS listed
                    WHERE events.scope_id = vms.scope_id AND {_LISTS_VM})
    AND NOT EXISTS (SELECT 1 FROM planned CROSS JOIN json_each(CAST(planned.body AS TEXT), '$.vms') AS listed
                    WHERE planned.scope_id = vms.scope_id AND {_LISTS_VM})
    AND NOT EXISTS (SELECT 1 FROM delivery_vms CROSS JOIN deliveries ON deliveries.vm = delivery_vms.number
                    WHERE delivery_vms.vm = vms.key) LIMIT :limit"""
PRUNE_VM = "DELETE FROM vms WHERE key = :row_id"
PRUNE_POLL = "DELETE FROM polls WHERE vm = :row_id"
PRUNE_DELIVERY_VM = "DELETE FROM delivery_vms WHERE vm = :row_id"


async def prune_store(writer: WriterThread, path: Path, before: float) -> int:
    """Delete what is older than `before` from a store; return how many history entries it deleted."""
    entries = await _repeat(writer, partial(_prune_history, before=before))
    # In this order: a request goes once its events are gone, a VM once nothing lists it.
    for step in (_prune_events, _prune_requests, _prune_vms):
        await _repeat(writer, partial(step, before=before))
    await _repeat(writer, release_pages)
    with sqlite_file.file_errors_as_unavailable(path, "written"):
        await asyncio.to_thread(_truncate_file, path)
    return entries


async def _repeat(writer: WriterThread, step: Callable[[sqlite3.Connection], int]) -> int:
    total = 0
    # In small transactions, so that approvals do not wait behind them.
    while count := await writer.write(step):
        total += count
    return total


def _prune_history(db: sqlite3.Connection, *, before: float) -> int:
    return db.execute(PRUNE_HISTORY, _slice(before)).rowcount


def _prune_events(db: sqlite3.Connection, *, before: float) -> int:
    """Delete deliveries first, then the events that have none left."""
    # Deliveries first: they name their event by a number that goes with it.
    statements = (PRUNE_DELIVERIES, PRUNE_DELIVERY_EVENTS, PRUNE_EVENTS)
    return sum(db.execute(statement, _slice(before)).rowcount for statement in statements)


def _prune_requests(db: sqlite3.Connection, *, before: float) -> int:
    statements = (PRUNE_GATES, PRUNE_MEASUREMENTS, PRUNE_REPLAY_SCRIPT, PRUNE_REQUEST)
    return _prune_found(db, OLD_REQUESTS, before, statements)


def _prune_vms(db: sqlite3.Connection, *, before: float) -> int:
    return _prune_found(db, OLD_VMS, before, (PRUNE_POLL, PRUNE_DELIVERY_VM, PRUNE_VM))


def _prune_found(db: sqlite3.Connection, find: str, before: float, statements: tuple[str, ...]) -> int:
    found = [{"row_id": row_id} for (row_id,) in db.execute(find, _slice(before)).fetchall()]
    for statement in statements:
        db.executemany(statement, found)
    return len(found)


def _slice(before: float) -> dict[str, float]:
    return {"before": before, "limit": ROWS_PER_TRANSACTION}


def release_pages(db: sqlite3.Connection) -> int:
    """Give up to 1000 free pages of 4 KiB of the database back; return how many, 0 if none is free."""
    free = _free_pages(db)
    for _ in range(min(free, _PAGES_PER_TRANSACTION)):
        db.execute("PRAGMA incremental_vacuum(1)")  # Python ends the statement after one page, for any number
    return free - _free_pages(db)


def _free_pages(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA freelist_count").fetchone()[0])


def _truncate_file(path: Path) -> None:
    """Write the log to the database, which then becomes shorter, and empty the log."""
    with closing(sqlite_file.connect(path, mode="rw")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
