"""SQLite journals of hypervisors, and the one of acts on real VMs: which steps each has entered, and how it ended.

A step is durable before it takes effect.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import asdict

from forewarn.base.times import LabSeconds
from forewarn.core.cause import Verb
from forewarn.errors import Rejected, Unavailable
from forewarn.machines.interface import ActNotTried
from forewarn.machines.steps import Enter, MachineActRecord, Step, StepEntry

IN_MEMORY = ":memory:"
_RETENTION_S: LabSeconds = 30 * 24 * 3600.0  # by then the outcome has long been in the history
_SCHEMA = (
    "CREATE TABLE act (act_id TEXT PRIMARY KEY, verb TEXT NOT NULL, vm TEXT NOT NULL, name TEXT NOT NULL,"
    " source TEXT NOT NULL, destination TEXT NOT NULL, is_abrupt INTEGER NOT NULL, is_stopped INTEGER NOT NULL,"
    " keeps_disks INTEGER NOT NULL, hold_s REAL NOT NULL, release TEXT, failure TEXT NOT NULL, detail TEXT NOT NULL,"
    " downtime_ms INTEGER, ok INTEGER, note TEXT NOT NULL, begun_at REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX act_of_vm ON act (vm)",
    "CREATE TABLE step (seq INTEGER PRIMARY KEY, act_id TEXT NOT NULL, step TEXT NOT NULL, lab_at REAL NOT NULL,"
    " real_at REAL NOT NULL)",
    "CREATE INDEX step_of_act ON step (act_id)",
)
_ACT_COLUMNS = tuple(name for name in MachineActRecord.__struct_fields__ if name != "steps")


class SqliteJournal:
    """A SQLite file of a hypervisor, or a database in memory, that begins with a schema of its own.

    Writes are durable on return, or at the end of their `transaction`. Calls block, and are safe from any thread; all
    raise ActNotTried if the database cannot be used.
    """

    title: ClassVar[str]  # what the file is, for people
    schema: ClassVar[tuple[str, ...]]  # the statements that make an empty file one of these
    identity: ClassVar[tuple[int, int]] = (0, 0)  # its `application_id` and `user_version`, which other files lack

    def __init__(self, path: Path | None) -> None:
        """Open the file, created if missing; None: a database in memory."""
        self._name = str(path) if path else IN_MEMORY
        self._lock = threading.RLock()
        try:
            with ExitStack() as undo:
                connection = sqlite3.connect(self._name, timeout=1.0, isolation_level=None, check_same_thread=False)
                undo.callback(connection.close)
                self._create_schema(connection)
                undo.pop_all()
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"{self.title} {self._name!r} cannot be opened ({error}): check its directory, then try again"
            ) from error
        except sqlite3.DatabaseError as error:
            raise Rejected(
                f"file {self._name!r} is not a {self.title}, or is damaged ({error}): restore it or name another --data"
            ) from error
        self._connection = connection
        weakref.finalize(self, connection.close)  # in case its user forgets to

    def _create_schema(self, connection: sqlite3.Connection) -> None:
        """Create the tables in an empty file. Leaves a file of another program untouched."""
        pragmas = tuple(zip(("application_id", "user_version"), self.identity, strict=True))
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            (found,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            is_ours = all(connection.execute(f"PRAGMA {name}").fetchone()[0] == value for name, value in pragmas)
            if found and not is_ours:
                raise Rejected(
                    f"file {self._name!r} is not a {self.title} of this version and was not changed: "
                    "name another --data"
                )
            for statement in () if found else (*self.schema, *(f"PRAGMA {name} = {value}" for name, value in pragmas)):
                connection.execute(statement)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Return a context manager that commits what the block writes at its end, or nothing after an error."""
        with self._lock:
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
                self._execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")

    def _execute(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise ActNotTried(
                    f"{self.title} {self._name!r} cannot be used now ({error}): try again later"
                ) from error

    def close(self) -> None:
        """Close the database; may be called twice. Later calls raise ActNotTried; one in memory is lost."""
        with self._lock:
            self._connection.close()


class MachineJournal(SqliteJournal):
    """The journal of acts on real VMs. Each act has one record, with all its steps.

    For each act, call `begin`, then `enter` for each further step, then `end`.
    """

    title = "journal of acts"
    schema = _SCHEMA
    identity = (0x66776D6A, 1)  # "fwmj"

    def find(self, act_id: str) -> MachineActRecord | None:
        """Return the record of this act; None if it never began, or if its record was deleted as old."""
        rows = self._execute(f"SELECT {', '.join(_ACT_COLUMNS)} FROM act WHERE act_id = ?", act_id)
        return self._record(rows[0]) if rows else None

    def find_unfinished(self, vm: str) -> list[MachineActRecord]:
        """Return the records of the acts on this VM (by key) that have not ended, oldest first."""
        columns = ", ".join(_ACT_COLUMNS)
        rows = self._execute(f"SELECT {columns} FROM act WHERE vm = ? AND ok IS NULL ORDER BY begun_at, act_id", vm)
        return [self._record(row) for row in rows]

    def vms_acted_on(self, since: float) -> frozenset[str]:
        """Return the keys of the VMs with an act that has not ended and entered a step at or after `since`."""
        rows = self._execute(
            "SELECT DISTINCT vm FROM act JOIN step USING (act_id) WHERE ok IS NULL AND real_at >= ?", since
        )
        return frozenset(str(vm) for (vm,) in rows)

    def last_destination(self, vm: str) -> str:
        """Return the host that the latest successful act with a destination brought this VM (by key) to."""
        # Only acts of this journal count: the VM may have been moved since then to a host with another one.
        leaving = [verb for verb in Verb if verb.rules.leaves_host]
        rows = self._execute(
            "SELECT destination FROM act WHERE vm = ? AND ok = 1"
            f" AND (destination != '' OR verb IN ({', '.join('?' * len(leaving))})) ORDER BY begun_at DESC LIMIT 1",
            vm,
            *leaving,
        )
        return str(rows[0][0]) if rows else ""

    def has_begun_since(self, vm: str, suffix: str, lab_at: float) -> bool:
        """Return whether an act on this VM (by key) whose id ends with `suffix` began after this lab time."""
        rows = self._execute(
            "SELECT 1 FROM act WHERE vm = ? AND begun_at > ? AND substr(act_id, -length(?)) = ? LIMIT 1",
            vm,
            lab_at,
            suffix,
            suffix,
        )
        return bool(rows)

    def begin(self, record: MachineActRecord) -> None:
        """Store a new record with its steps so far, at least one. An act that has a record keeps it."""
        before = record.steps[0].lab_at - _RETENTION_S
        values = asdict(record)
        placeholders = ", ".join("?" * (len(_ACT_COLUMNS) + 1))
        with self.transaction():
            old = "SELECT act_id FROM act WHERE ok IS NOT NULL AND begun_at < ?"
            self._execute(f"DELETE FROM step WHERE act_id IN ({old})", before)
            self._execute("DELETE FROM act WHERE ok IS NOT NULL AND begun_at < ?", before)
            inserted = self._execute(
                f"INSERT INTO act ({', '.join(_ACT_COLUMNS)}, begun_at) VALUES ({placeholders})"
                " ON CONFLICT DO NOTHING RETURNING act_id",
                *(values[name] for name in _ACT_COLUMNS),
                record.steps[0].lab_at,
            )
            for entry in record.steps if inserted else ():
                self._insert_step(record.act_id, entry)

    def enter(self, act_id: str, decision: Enter, *, lab_at: float, real_at: float) -> None:
        """Store that the act enters the decision's step, at these times, with the decision's other fields."""
        with self.transaction():
            updated = self._execute(
                "UPDATE act SET release = coalesce(?, release), failure = coalesce(nullif(?, ''), failure),"
                " detail = coalesce(nullif(?, ''), detail), downtime_ms = coalesce(?, downtime_ms)"
                " WHERE act_id = ? AND ok IS NULL RETURNING act_id",
                decision.release,
                decision.failure,
                decision.detail,
                decision.downtime_ms,
                act_id,
            )
            if updated:
                self._insert_step(act_id, StepEntry(step=decision.step, lab_at=lab_at, real_at=real_at))

    def end(self, act_id: str, *, ok: bool, note: str) -> None:
        """Store the outcome of an act; its first outcome stays."""
        self._execute("UPDATE act SET ok = ?, note = ? WHERE act_id = ? AND ok IS NULL", ok, note, act_id)

    def _insert_step(self, act_id: str, entry: StepEntry) -> None:
        self._execute(
            "INSERT INTO step (act_id, step, lab_at, real_at) VALUES (?, ?, ?, ?)",
            act_id,
            Step(entry.step),
            entry.lab_at,
            entry.real_at,
        )

    def _record(self, row: tuple[object, ...]) -> MachineActRecord:
        values = dict(zip(_ACT_COLUMNS, row, strict=True))
        steps = self._execute("SELECT step, lab_at, real_at FROM step WHERE act_id = ? ORDER BY seq", values["act_id"])
        entries = [dict(zip(StepEntry.__struct_fields__, step, strict=True)) for step in steps]
        return msgspec.convert(values | {"steps": entries}, MachineActRecord, strict=False)
