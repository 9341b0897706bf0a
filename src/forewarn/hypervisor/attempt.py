"""What was tried with an operator's command, durably: that an attempt began, who runs it, and how it ended."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from forewarn.errors import Rejected
from forewarn.hypervisor.seam import NotTried

_KEEP_S = 30 * 24 * 3600.0  # of lab time; the history has known of the act for long by then
_TABLE = (
    "CREATE TABLE IF NOT EXISTS attempt (act_id TEXT PRIMARY KEY, begun_at REAL NOT NULL, pid INTEGER NOT NULL,"
    " started TEXT NOT NULL, ok INTEGER, note TEXT NOT NULL) WITHOUT ROWID"
)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    act_id: str
    begun_at: float
    pid: int = 0  # of the command; 0: not known to have started
    started: str = ""
    ok: bool | None = None  # None: nobody saw it end
    note: str = ""


class Attempts:
    """A small file; every call is one transaction, synced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(_TABLE)
        except sqlite3.DatabaseError as error:
            raise Rejected(
                f"the ledger of commands {str(path)!r} cannot be used ({error}): move it away, or name another --data"
            ) from error

    def find(self, act_id: str) -> Attempt | None:
        rows = self._run("SELECT act_id, begun_at, pid, started, ok, note FROM attempt WHERE act_id = ?", act_id)
        values = dict(zip(Attempt.__struct_fields__, rows[0], strict=True)) if rows else None
        return msgspec.convert(values, Attempt, strict=False) if values else None

    def begin(self, act_id: str, now: float) -> None:
        """Before the command is run: from here on it may have had its effect."""
        self._run("DELETE FROM attempt WHERE ok IS NOT NULL AND begun_at < ?", now - _KEEP_S)
        self._run("INSERT OR REPLACE INTO attempt VALUES (?, ?, 0, '', NULL, '')", act_id, now)

    def run_by(self, act_id: str, pid: int, started: str) -> None:
        self._run("UPDATE attempt SET pid = ?, started = ? WHERE act_id = ?", pid, started, act_id)

    def end(self, act_id: str, *, ok: bool, note: str) -> None:
        self._run("UPDATE attempt SET ok = ?, note = ? WHERE act_id = ?", ok, note, act_id)

    def close(self) -> None:
        self._connection.close()

    def _run(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise NotTried(f"the ledger of commands {str(self._path)!r} does not answer ({error})") from error
