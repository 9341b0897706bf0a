"""The journal: what the agent has seen and done, durably. SQLite, and every write is on disk before it returns.

One agent has one journal; a second one is refused. The schema grows by `PRAGMA user_version`, a step at a time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forewarn.agent.ledger import Lock, look_into, open_file, unusable
from forewarn.agent.record import Book, Record
from forewarn.agent.row import deed_row, event_row, record_from, upsert
from forewarn.errors import Unavailable

KEPT = 1000  # closed events; older ones are forgotten


class Journal:
    """Open it once; `book` is always what stands on disk. With `readonly`, somebody else's journal is looked at."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path
        self._lock = None if readonly else Lock(path)
        self._db = look_into(path) if readonly else open_file(path)
        try:
            self.book = Book(records=tuple(self._read("WHERE closed = 0")))
        except sqlite3.DatabaseError as error:
            self.close()
            raise unusable(path, error) from error

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            self._lock.release()

    def put(self, *records: Record) -> None:
        """Write these records as they are now; all or none."""
        with self._writing():
            for record in records:
                self._write(record)
        for record in records:
            self.book = self.book.with_(record)

    def rounds(self, id_: str) -> int:
        """How often an event of this id was met."""
        (count,) = self._db.execute("SELECT count(*) FROM events WHERE id = ?", (id_,)).fetchone()
        return int(count)

    def records(self, limit: int = KEPT) -> tuple[Record, ...]:
        """All that are remembered, newest first."""
        return tuple(self._read("WHERE 1 ORDER BY number DESC LIMIT ?", limit))

    def find(self, start: str) -> tuple[Record, ...]:
        """Those whose event's id begins so."""
        pattern = start.upper().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        return tuple(self._read("WHERE key LIKE ? ESCAPE '\\' ORDER BY number", pattern))

    def recall(self, name: str) -> Any:
        """What was last remembered under this name; None if nothing was."""
        row = self._db.execute("SELECT value FROM memory WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def remember(self, name: str, value: Any) -> None:
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO memory VALUES (?, ?)", (name, json.dumps(value)))

    def prune(self, keep: int = KEPT) -> None:
        with self._writing():
            self._db.execute(
                "DELETE FROM events WHERE closed = 1 AND key NOT IN"
                " (SELECT key FROM events WHERE closed = 1 ORDER BY number DESC LIMIT ?)",
                (keep,),
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise Unavailable(
                f"the journal {str(self._path)!r} cannot be written ({error}): make room for it"
            ) from error
        finally:
            if self._db.in_transaction:  # also when the end of it failed
                self._db.rollback()

    def _write(self, record: Record) -> None:
        known = self._db.execute("SELECT number FROM events WHERE key = ?", (record.key,)).fetchone()
        number = known or self._db.execute("SELECT coalesce(max(number), 0) + 1 FROM events").fetchone()
        upsert(self._db, "events", event_row(record, number[0]))
        for place, deed in enumerate(record.deeds):
            upsert(self._db, "steps", deed_row(record.key, place, deed))
        if record.approval is not None:
            upsert(self._db, "approvals", {"event_key": record.key, **asdict(record.approval)})
        if record.consent is not None:
            upsert(self._db, "consents", {"event_key": record.key, **asdict(record.consent)})

    def _read(self, which: str, *values: Any) -> Iterator[Record]:
        order = "" if "ORDER" in which else " ORDER BY number"
        for row in self._db.execute(f"SELECT * FROM events {which}{order}", values).fetchall():
            key = row["key"]
            yield record_from(row, self._of("steps", key), self._of("approvals", key), self._of("consents", key))

    def _of(self, table: str, key: str) -> Sequence[sqlite3.Row]:
        order = " ORDER BY number" if table == "steps" else ""
        return self._db.execute(f"SELECT * FROM {table} WHERE event_key = ?{order}", (key,)).fetchall()
