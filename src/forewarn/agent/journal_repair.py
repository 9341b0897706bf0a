"""Repairs a damaged journal: moves it aside, keeps what can be read, and names what cannot.

Each row is read on its own, so that one damaged page costs only the rows on it. The indexes of the tables name the
rows whose own pages are damaged. A step whose row is lost counts as failed: it is not run again, and is undone when
its event is gone, unless the event is closed. The damaged file and the step folders of lost events are kept beside the
journal.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forewarn.agent.journal import (
    UNREADABLE_ROW_ERRORS,
    AgentJournal,
    JournalDamaged,
    JournalLock,
    record_from_rows,
    step_run_from_row,
)
from forewarn.agent.model import LOST_STEP_TEXT, EventRecord, StepPhase, StepRun, StepState
from forewarn.agent.runner import file_time_stamp, keys_with_step_folders, stale_step_folders
from forewarn.base.files import sync_to_disk
from forewarn.errors import Rejected

_FILE_SUFFIXES = ("", "-wal", "-shm")  # SQLite's files of one database
_MAX_ROW_ID = 100_000  # the highest row id that is tried if the last one of the table cannot be read
# The columns of each table's primary key, which its index repeats.
_KEYS = {
    "events": ("key",),
    "steps": ("event_key", "step", "phase"),
    "approvals": ("event_key",),
    "consents": ("event_key",),
    "memory": ("name",),
}
RowKey = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRepair:
    """What a repair of the agent's journal kept and what it could not read; `repair_journal` returns it."""

    damaged_copy: Path | None = None  # where the damaged file is kept; None: it is not damaged, nothing was changed
    kept: tuple[str, ...] = ()  # keys of the kept records, open and closed, oldest first; () if nothing was changed
    unreadable: tuple[str, ...] = ()  # texts: each lost row or value with the consequence, and what else may be lost
    step_folders: Path | None = None  # where step folders of lost events are now; None: there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class _SalvagedTable:
    """The readable rows of a table by key, the keys of lost rows, and whether further rows may be lost."""

    rows: dict[RowKey, sqlite3.Row] = field(default_factory=dict)
    lost: tuple[RowKey, ...] = ()
    is_complete: bool = False  # False: rows may be lost whose keys are not known


def repair_journal(path: Path, step_folders: Path, now: float) -> JournalRepair:
    """Replace a damaged journal with a new one that has everything readable; leave an undamaged one alone.

    Holds the journal's lock meanwhile. Keeps a copy of the damaged file beside the journal, and moves the folders of
    lost events aside. Nothing is replaced until the new journal is complete.
    """
    if not path.exists():
        raise Rejected(f"the journal {str(path)!r} does not exist: there is nothing to repair")
    with ExitStack() as held:
        held.callback(JournalLock(path).release)
        try:
            _verify(path)
            return JournalRepair()
        except JournalDamaged:
            pass
        try:
            return _repair(path, step_folders, file_time_stamp(now))
        except OSError as error:
            raise Rejected(
                f"the journal {str(path)!r} cannot be repaired ({error.strerror}): check disk space and permissions"
            ) from error


def _verify(path: Path) -> None:
    journal = AgentJournal(path, readonly=True)
    try:
        journal.verify()
    finally:
        journal.close()


def _repair(path: Path, step_folders: Path, stamp: str) -> JournalRepair:
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    _copy_database(path, aside)
    unreadable: list[str] = []
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".repair-") as folder:
        _copy_database(path, Path(folder) / "damaged.db")
        tables = _salvage_tables(Path(folder) / "damaged.db", unreadable)
        records = tuple(_salvage_records(tables, unreadable))
        new_path = Path(folder) / "new.db"
        _write_journal(new_path, records, _salvage_values(tables["memory"], unreadable))
        moved_folders = _keep_stale_step_folders(step_folders, records, stamp, unreadable)
        for suffix in _FILE_SUFFIXES[1:]:  # they belong to the damaged file
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        os.replace(new_path, path)
    sync_to_disk(path.parent)
    return JournalRepair(
        damaged_copy=aside,
        kept=tuple(record.key for record in records),
        unreadable=tuple(unreadable),
        step_folders=moved_folders,
    )


def _copy_database(path: Path, copy: Path) -> None:
    for suffix in _FILE_SUFFIXES:
        source, target = path.with_name(path.name + suffix), copy.with_name(copy.name + suffix)
        if source.exists():
            shutil.copy2(source, target)
            sync_to_disk(target)
    sync_to_disk(copy.parent)


def _write_journal(path: Path, records: tuple[EventRecord, ...], values: dict[str, Any]) -> None:
    journal = AgentJournal(path)
    try:
        journal.save(*records)
        for name, value in values.items():
            journal.save_value(name, value)
    finally:
        journal.close()
    _verify(path)


def _keep_stale_step_folders(
    root: Path, records: tuple[EventRecord, ...], stamp: str, unreadable: list[str]
) -> Path | None:
    """Moves the folders of lost events away, because the agent would delete them when it starts."""
    stale = list(stale_step_folders(root, keys_with_step_folders(records)))
    if not stale:
        return None
    place = root.with_name(f"{root.name}.damaged-{stamp}")
    place.mkdir(mode=0o700, exist_ok=True)
    for folder in stale:
        folder.rename(place / folder.name)
        steps = ", ".join(sorted(each.name for each in (place / folder.name).iterdir())) or "none"
        unreadable.append(f"the event of the step folder {folder.name}, which has folders of the steps {steps}")
    return place


def _salvage_tables(path: Path, unreadable: list[str]) -> dict[str, _SalvagedTable]:
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA schema_version")
            return {table: _salvage_table(db, table) for table in _KEYS}
    except sqlite3.DatabaseError as error:
        unreadable.append(f"the whole file ({error}): events that are still listed are prepared for again")
        return {table: _SalvagedTable(is_complete=True) for table in _KEYS}


def _salvage_table(db: sqlite3.Connection, table: str) -> _SalvagedTable:
    columns = ", ".join(_KEYS[table])
    index = f"{table} INDEXED BY sqlite_autoindex_{table}_1"
    rows: dict[RowKey, sqlite3.Row] = {}
    has_failed = False
    for row_id in range(1, _last_row_id(db, table, index) + 1):
        try:
            row = db.execute(f"SELECT * FROM {table} WHERE rowid = ?", (row_id,)).fetchone()
            if row is not None:
                rows[tuple(str(row[name]) for name in _KEYS[table])] = row
        except sqlite3.DatabaseError:
            has_failed = True
    listed: dict[RowKey, None] = {}
    is_complete = not has_failed
    for order in ("", "DESC"):  # from both ends: a damaged page may be in the middle
        try:
            descending = ", ".join(f"{name} {order}" for name in _KEYS[table])
            for found in db.execute(f"SELECT {columns} FROM {index} ORDER BY {descending}"):
                listed[tuple(map(str, found))] = None
            is_complete = True
        except sqlite3.DatabaseError:
            continue
    return _SalvagedTable(rows=rows, lost=tuple(key for key in listed if key not in rows), is_complete=is_complete)


def _last_row_id(db: sqlite3.Connection, table: str, index: str) -> int:
    for source in (table, index):
        try:
            return int(db.execute(f"SELECT coalesce(max(rowid), 0) FROM {source}").fetchone()[0])
        except sqlite3.DatabaseError:
            continue
    return _MAX_ROW_ID


def _salvage_records(tables: dict[str, _SalvagedTable], unreadable: list[str]) -> Iterator[EventRecord]:
    """Yields the readable records, oldest first, and adds what is lost to `unreadable`."""
    for table, salvaged in tables.items():
        if not salvaged.is_complete:
            unreadable.append(f"perhaps further rows of the table {table}: its damaged pages do not show them")
    runs, lost_steps = _salvage_step_runs(tables["steps"])
    kept: set[str] = set()
    rows = {key[0]: row for key, row in tables["events"].rows.items()}
    for key, row in sorted(rows.items(), key=lambda each: _number(each[1])):
        approvals, checks = (_rows_of_event(tables[name], key) for name in ("approvals", "consents"))
        try:
            record = record_from_rows(row, (), approvals, checks)
        except UNREADABLE_ROW_ERRORS:
            continue
        kept.add(key)
        record = replace(record, step_runs=tuple(runs[key]))
        lost_runs = tuple(_lost_step_runs(record, lost_steps[key], unreadable))
        yield replace(record, step_runs=(*record.step_runs, *lost_runs))
    for key in dict.fromkeys((*(lost[0] for lost in tables["events"].lost), *rows, *runs, *lost_steps)):
        if key not in kept:
            unreadable.append(_lost_event_text(key, runs[key], lost_steps[key]))
    for table, what in (("approvals", "it is sent again if it is due"), ("consents", "the approval check runs again")):
        unreadable.extend(f"the row of event {key} in {table}: {what}" for (key,) in tables[table].lost)


def _salvage_step_runs(
    steps: _SalvagedTable,
) -> tuple[defaultdict[str, list[StepRun]], defaultdict[str, list[RowKey]]]:
    """The readable runs in their order, and the keys of the lost ones; both by event."""
    runs: defaultdict[str, list[StepRun]] = defaultdict(list)
    lost: defaultdict[str, list[RowKey]] = defaultdict(list)
    for key in steps.lost:
        lost[key[0]].append(key)
    for key, row in sorted(steps.rows.items(), key=lambda each: _number(each[1])):
        try:
            runs[key[0]].append(step_run_from_row(row))
        except UNREADABLE_ROW_ERRORS:
            lost[key[0]].append(key)
    return runs, lost


def _number(row: sqlite3.Row) -> int:
    return row["number"] if isinstance(row["number"], int) else 0


def _rows_of_event(table: _SalvagedTable, key: str) -> list[sqlite3.Row]:
    return [table.rows[(key,)]] if (key,) in table.rows else []


def _lost_step_runs(record: EventRecord, keys: list[RowKey], unreadable: list[str]) -> Iterator[StepRun]:
    for _, step, phase in keys:
        if phase not in list(StepPhase):
            unreadable.append(f"a row of step {step} of event {record.key}, whose phase {phase!r} is unknown")
            continue
        follows = _consequence(record, step, StepPhase(phase))
        unreadable.append(f"the {phase} of step {step} of event {record.key}: it counts as failed; {follows}")
        yield StepRun(
            step=step,
            phase=StepPhase(phase),
            state=StepState.FAILED,
            begun_at=record.seen_at,
            ended_at=record.seen_at,
            boot_id=record.boot_id,
            text=LOST_STEP_TEXT,
            tries=0 if phase == StepPhase.UNDO else 1,  # the agent tries the undo even if `undo_tries` is 1
        )


def _consequence(record: EventRecord, step: str, phase: StepPhase) -> str:
    if record.closed and phase is StepPhase.UNDO:
        return "the event is closed, so the agent does not try it again: if the step is not undone, undo it by hand"
    if record.closed:
        return "the event is closed, so the agent does nothing more for it"
    if phase is StepPhase.UNDO:
        return "the undo is tried again"
    undo = record.step_run(step, StepPhase.UNDO)
    if undo is not None and undo.state in (StepState.DONE, StepState.SKIPPED):
        return f"its undo is {undo.state}, so the agent does nothing more for it"
    return "it is undone when the event is gone"


def _lost_event_text(key: str, runs: list[StepRun], lost: list[RowKey]) -> str:
    steps = [f"{run.phase} {run.step} {run.state}" for run in runs] + [f"{phase} {step}" for _, step, phase in lost]
    known = f"; its steps: {', '.join(steps)}" if steps else ""
    return f"event {key}: if it is still listed, it is prepared for again, else undo its steps by hand{known}"


def _salvage_values(memory: _SalvagedTable, unreadable: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for (name,), row in memory.rows.items():
        try:
            values[name] = json.loads(row["value"])
        except UNREADABLE_ROW_ERRORS:
            unreadable.append(f"the value {name!r}: the agent asks for it again")
    unreadable.extend(f"the value {name!r}: the agent asks for it again" for (name,) in memory.lost)
    return values
