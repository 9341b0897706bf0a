"""The agent's journal in SQLite: schema, lock, rows, and reading and writing of event records.

Every write is on disk before it returns. One agent has one journal; a second agent is rejected. `PRAGMA
user_version` numbers the schema; released migrations never change.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forewarn.agent.model import (
    ApprovalCheckRecord,
    ApprovalRecord,
    ApprovalState,
    Event,
    EventRecord,
    OpenRecords,
    StepPhase,
    StepRun,
    StepState,
)
from forewarn.client.events import event_key
from forewarn.errors import Rejected, Unavailable

# Each raises the schema by one version. Released ones never change.
MIGRATIONS = (
    """
    CREATE TABLE events (
      key TEXT PRIMARY KEY, id TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, facts TEXT NOT NULL,
      seen_at REAL NOT NULL, boot_id TEXT NOT NULL, not_before REAL, rule TEXT NOT NULL, plan TEXT NOT NULL,
      started_at REAL, gone_at REAL, outcome TEXT NOT NULL, closed INTEGER NOT NULL) STRICT;
    CREATE INDEX events_by_id ON events (id);
    CREATE INDEX events_open ON events (number) WHERE closed = 0;
    CREATE TABLE steps (
      event_key TEXT NOT NULL REFERENCES events (key) ON DELETE CASCADE, step TEXT NOT NULL, phase TEXT NOT NULL,
      number INTEGER NOT NULL, state TEXT NOT NULL, begun_at REAL NOT NULL, ended_at REAL, boot_id TEXT NOT NULL,
      text TEXT NOT NULL, notes TEXT NOT NULL, holder TEXT NOT NULL, tries INTEGER NOT NULL,
      PRIMARY KEY (event_key, step, phase)) STRICT;
    CREATE TABLE approvals (
      event_key TEXT PRIMARY KEY REFERENCES events (key) ON DELETE CASCADE,
      state TEXT NOT NULL, at REAL NOT NULL, text TEXT NOT NULL) STRICT;
    CREATE TABLE consents (
      event_key TEXT PRIMARY KEY REFERENCES events (key) ON DELETE CASCADE,
      first_at REAL NOT NULL, asked_at REAL NOT NULL, answer TEXT NOT NULL, text TEXT NOT NULL) STRICT;
    CREATE TABLE memory (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    """,
)


class JournalLock:
    """An exclusive lock on the journal at `path`; creating the object takes the lock, or is rejected at once."""

    def __init__(self, path: Path) -> None:
        lock_path = path.with_name(f"{path.name}.lock")
        try:
            lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _cannot_open_error(path, error) from error
        try:
            _lock_exclusively(self._fd)
        except OSError as error:
            os.close(self._fd)
            raise Rejected(
                f"the journal {str(path)!r} is in use by another agent: stop that agent, or set another `state`"
            ) from error

    def release(self) -> None:
        """Release the lock, and leave its file; call it once."""
        os.close(self._fd)


_SHARED_LOCK_WAIT_S = 5.0  # `is_journal_locked` shares the lock for microseconds


def _lock_exclusively(fd: int) -> None:
    """Locks the file; raises BlockingIOError if another process has locked it exclusively."""
    deadline = time.monotonic() + _SHARED_LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises, unless all other locks are shared
            fcntl.flock(fd, fcntl.LOCK_UN)
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
        else:
            return


def is_journal_locked(path: Path) -> bool:
    """Return whether an agent or a repair, in any process, has locked the journal at `path`."""
    try:
        fd = os.open(path.with_name(f"{path.name}.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _open_journal(path: Path, config_file: Path | None = None) -> sqlite3.Connection:
    """Opens the journal for writing, and migrates it if needed. Take the lock first."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # only the owner may read the notes
    except OSError as error:
        raise _cannot_open_error(path, error) from error
    db = _connect(path, "rw")
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            db.execute(f"PRAGMA {pragma}")
        version = _schema_version(db, path, config_file)
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            db.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
    except sqlite3.DatabaseError as error:
        db.close()
        raise unusable_journal_error(path, error, config_file) from error
    except Rejected:
        db.close()
        raise
    return db


def _open_journal_readonly(path: Path, config_file: Path | None = None) -> sqlite3.Connection:
    if not path.exists():
        raise Rejected(f"the journal {str(path)!r} does not exist: start the agent once")
    db = _connect(path, "ro")
    try:
        version = _schema_version(db, path, config_file)
        if version == 0:
            raise _no_version_error(db, path, config_file)
        if version < len(MIGRATIONS):
            raise Rejected(
                f"the journal {str(path)!r} was written by an older forewarn: start the agent once to update it"
            )
    except Rejected:
        db.close()
        raise
    return db


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=5.0)
    except sqlite3.OperationalError as error:
        raise _cannot_open_error(path, error) from error
    db.row_factory = sqlite3.Row
    return db


def _schema_version(db: sqlite3.Connection, path: Path, config_file: Path | None) -> int:
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise unusable_journal_error(path, error, config_file) from error
    if version > len(MIGRATIONS):
        raise Rejected(f"the journal {str(path)!r} was written by a newer forewarn: use that version")
    return int(version)


def _no_version_error(db: sqlite3.Connection, path: Path, config_file: Path | None) -> Rejected:
    """The error for version 0, which no forewarn wrote: the journal is empty, or it is damaged."""
    try:
        (count,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        return unusable_journal_error(path, error, config_file)
    if count:
        return unusable_journal_error(path, sqlite3.DatabaseError("it has no version"), config_file)
    return Rejected(
        f"the journal {str(path)!r} is empty: put back its file '{path}-wal' if that was removed,"
        " else start the agent once, which begins a new journal"
    )


def _cannot_open_error(path: Path, error: Exception) -> Rejected:
    why = getattr(error, "strerror", None) or str(error)
    return Rejected(f"the journal {str(path)!r} cannot be opened ({why}): set another directory with `state`")


def _repair_remedy(config_file: Path | None) -> str:
    option = "" if config_file is None else f" --config {shlex.quote(str(config_file))}"
    return f"stop the agent and run `forewarn agent repair{option}`, which keeps what can be read"


class JournalDamaged(Rejected):
    """The file is not a readable journal; `AgentJournal` raises it. `forewarn agent repair` repairs it."""


def unusable_journal_error(path: Path, error: Exception, config_file: Path | None = None) -> Rejected:
    """Return the error to raise for an error while the journal at `path` was read or opened."""
    if isinstance(error, sqlite3.OperationalError) and not _is_about_content(error):
        return _cannot_open_error(path, error)
    return JournalDamaged(f"the journal {str(path)!r} is damaged ({error}): {_repair_remedy(config_file)}")


def _is_about_content(error: sqlite3.OperationalError) -> bool:
    """Whether the file can be read, but tables of the journal are missing or a text in them is not UTF-8."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR or "decode" in str(error)


SqlRow = dict[str, Any]  # values by column
UNREADABLE_ROW_ERRORS = (ValueError, KeyError, TypeError, AttributeError)  # of `record_from_rows`
_CONFLICT_COLUMNS = {"events": "key", "steps": "event_key, step, phase"}


def _event_row(record: EventRecord, number: int) -> SqlRow:
    return {
        "key": record.key,
        "id": event_key(record.event),
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


def _step_run_row(key: str, number: int, run: StepRun) -> SqlRow:
    return {**asdict(run), "event_key": key, "number": number, "notes": json.dumps(dict(run.notes))}


def _upsert(db: sqlite3.Connection, table: str, row: SqlRow) -> None:
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    changes = ", ".join(f"{name} = excluded.{name}" for name in row)
    key = _CONFLICT_COLUMNS.get(table, "event_key")
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {changes}", row)


def record_from_rows(
    row: sqlite3.Row,
    steps: Sequence[sqlite3.Row],
    approvals: Sequence[sqlite3.Row],
    checks: Sequence[sqlite3.Row],
) -> EventRecord:
    """Build a record from its rows of the tables events, steps, approvals and consents (`checks`)."""
    return EventRecord(
        key=row["key"],
        event=_event_from_json(row["facts"]),
        seen_at=row["seen_at"],
        boot_id=row["boot_id"],
        not_before=row["not_before"],
        rule=row["rule"],
        plan=tuple(json.loads(row["plan"])),
        started_at=row["started_at"],
        gone_at=row["gone_at"],
        outcome=row["outcome"],
        closed=bool(row["closed"]),
        step_runs=tuple(step_run_from_row(step) for step in steps),
        approval=_approval_from_row(approvals[0]) if approvals else None,
        approval_check=_approval_check_from_row(checks[0]) if checks else None,
    )


def _event_from_json(facts: str) -> Event:
    read = json.loads(facts)
    return Event(**{**read, "resources": tuple(read["resources"])})


def step_run_from_row(row: sqlite3.Row) -> StepRun:
    """Build a step run from its row of the table `steps`; the row's notes are JSON."""
    return StepRun(
        step=row["step"],
        phase=StepPhase(row["phase"]),
        state=StepState(row["state"]),
        begun_at=row["begun_at"],
        ended_at=row["ended_at"],
        boot_id=row["boot_id"],
        text=row["text"],
        notes=json.loads(row["notes"]),
        holder=row["holder"],
        tries=row["tries"],
    )


def _approval_from_row(row: sqlite3.Row) -> ApprovalRecord:
    return ApprovalRecord(state=ApprovalState(row["state"]), at=row["at"], text=row["text"])


def _approval_check_from_row(row: sqlite3.Row) -> ApprovalCheckRecord:
    return ApprovalCheckRecord(
        first_at=row["first_at"], asked_at=row["asked_at"], answer=row["answer"], text=row["text"]
    )


MAX_CLOSED_EVENTS = 1000  # older closed events are deleted


class AgentJournal:
    """One agent's journal: an SQLite file with a record for each event; `open_records` has the open ones.

    Opening it takes the lock, and creates or migrates the file. With `readonly` it does neither, and `open_records` is
    as of the opening. Use it in one thread; close it.
    """

    def __init__(self, path: Path, *, readonly: bool = False, config_file: Path | None = None) -> None:
        self._path, self._config_file = path, config_file
        with ExitStack() as opened:
            if not readonly:
                opened.callback(JournalLock(path).release)
            self._db = (_open_journal_readonly if readonly else _open_journal)(path, config_file)
            opened.callback(self._db.close)
            self.open_records = OpenRecords(records=tuple(self._read_records("WHERE closed = 0")))
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the database and release the lock, if it is held; may be called twice."""
        self._opened.close()

    def save(self, *records: EventRecord) -> None:
        """Add the records, or update those with the same keys, in one transaction; durable when it returns."""
        # An update keeps the stored step runs (except cut ones), approval and approval check that the new record lacks.
        with self._transaction():
            next_number = self._db.execute("SELECT coalesce(max(number), 0) + 1 FROM events").fetchone()[0]
            for record in records:
                next_number += self._write_record(record, next_number)
        self.open_records = self.open_records.with_records(*records)

    def count_records(self, event_id: str) -> int:
        """Return how many records, open and closed, have this `event_key`."""
        ((count,),) = self._select("SELECT count(*) FROM events WHERE id = ?", event_id)
        return int(count)

    def keys(self) -> tuple[str, ...]:
        """Return the keys of all records, open and closed, first saved first."""
        return tuple(row[0] for row in self._select("SELECT key FROM events ORDER BY number"))

    def records(self, limit: int = MAX_CLOSED_EVENTS) -> tuple[EventRecord, ...]:
        """Return the `limit` newest records (-1: all), open or closed, newest first; Rejected if unreadable."""
        return tuple(self._read_records("WHERE 1 ORDER BY number DESC LIMIT ?", limit))

    def find_by_prefix(self, prefix: str) -> tuple[EventRecord, ...]:
        """Return the records, open and closed, whose key begins with `prefix` (ignoring case), oldest first."""
        pattern = prefix.upper().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        return tuple(self._read_records("WHERE key LIKE ? ESCAPE '\\' ORDER BY number", pattern))

    def load_value(self, name: str) -> Any:
        """Return the value that `save_value` stored under this name; None if there is none."""
        rows = self._select("SELECT value FROM memory WHERE name = ?", name)
        try:
            return json.loads(rows[0][0]) if rows else None
        except ValueError as error:
            raise self._unusable_error(error) from error

    def save_value(self, name: str, value: Any) -> None:
        """Store a value as JSON under a name, over an earlier one; durable when it returns."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO memory VALUES (?, ?)", (name, json.dumps(value)))

    def verify(self) -> None:
        """Check SQLite's pages and read every record, open and closed, and every stored value."""
        problems = [row[0] for row in self._select("PRAGMA integrity_check(1)") if row[0] != "ok"]
        if problems:
            raise self._unusable_error(sqlite3.DatabaseError(problems[0]))
        self.records(limit=-1)
        for row in self._select("SELECT name FROM memory"):
            self.load_value(row[0])

    def prune(self, keep: int = MAX_CLOSED_EVENTS) -> None:
        """Delete all closed records except the newest `keep`, with their step runs and approvals."""
        with self._transaction():
            self._db.execute(
                "DELETE FROM events WHERE closed = 1 AND key NOT IN"
                " (SELECT key FROM events WHERE closed = 1 ORDER BY number DESC LIMIT ?)",
                (keep,),
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            is_full = isinstance(error, sqlite3.OperationalError)
            remedy = "free disk space" if is_full else _repair_remedy(self._config_file)
            raise Unavailable(f"the journal {str(self._path)!r} cannot be written ({error}): {remedy}") from error
        finally:
            if self._db.in_transaction:  # even when COMMIT failed
                self._db.rollback()

    def _unusable_error(self, error: Exception) -> Rejected:
        return unusable_journal_error(self._path, error, self._config_file)

    def _write_record(self, record: EventRecord, next_number: int) -> bool:
        known = self._db.execute("SELECT number FROM events WHERE key = ?", (record.key,)).fetchone()
        _upsert(self._db, "events", _event_row(record, next_number if known is None else known[0]))
        self._db.execute("DELETE FROM steps WHERE event_key = ? AND state = ?", (record.key, StepState.CUT))
        for position, run in enumerate(record.step_runs):
            _upsert(self._db, "steps", _step_run_row(record.key, position, run))
        if record.approval is not None:
            _upsert(self._db, "approvals", {"event_key": record.key, **asdict(record.approval)})
        if record.approval_check is not None:
            _upsert(self._db, "consents", {"event_key": record.key, **asdict(record.approval_check)})
        return known is None

    def _read_records(self, which: str, *values: Any) -> Iterator[EventRecord]:
        order = "" if "ORDER" in which else " ORDER BY number"
        for row in self._select(f"SELECT * FROM events {which}{order}", *values):
            key = row["key"]
            try:
                yield record_from_rows(
                    row, self._rows_of("steps", key), self._rows_of("approvals", key), self._rows_of("consents", key)
                )
            except UNREADABLE_ROW_ERRORS as error:
                raise self._unusable_error(error) from error

    def _rows_of(self, table: str, key: str) -> Sequence[sqlite3.Row]:
        order = " ORDER BY number" if table == "steps" else ""
        return self._select(f"SELECT * FROM {table} WHERE event_key = ?{order}", key)

    def _select(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._unusable_error(error) from error
