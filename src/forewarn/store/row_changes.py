"""Row changes of a group of writes: captured on a SQLite connection, encoded, applied to a copy.

Temporary triggers note the key of every changed row; at the end of the group the rows are read back. So values that
SQLite gave (positions, sequence numbers) are the same in the record and in every copy, and no write is described twice.
Table `polls` is not replicated: each node has its own. An update of a scope that only moves `last_request_at` counts
when it reaches another hour.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Table, UniqueConstraint

from forewarn.store.record import RowChange, SqlValues
from forewarn.store.schema import metadata, polls, record_position, scopes

_LAST_REQUEST_STEP_S = 3600  # `last_request_at` of a scope is replicated once in this time
_CAPTURE_FUNCTION = "capture_change"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[RowChange, ...]).decode


class ReplicatedTable(NamedTuple):
    """A table whose rows are in the record, with the names of its columns."""

    name: str  # of the table
    columns: tuple[str, ...]  # in the order of the rows of `RowChange`; later releases add columns at the end
    key: tuple[str, ...]  # the primary key
    key_places: tuple[int, ...]  # where the columns of the key are in a row
    unique: tuple[str, ...]  # other columns that no two rows have in common

    def key_of(self, row: SqlValues) -> SqlValues:
        """Return the values of the primary key of a row, which has all `columns`, in the order of `key`."""
        return tuple(row[place] for place in self.key_places)


def _describe(table: Table) -> ReplicatedTable:
    columns = tuple(column.name for column in table.columns)
    key = tuple(column.name for column in table.primary_key.columns)
    places = tuple(columns.index(name) for name in key)
    constraints = [constraint for constraint in table.constraints if isinstance(constraint, UniqueConstraint)]
    unique = tuple(column.name for constraint in constraints for column in constraint.columns)
    return ReplicatedTable(table.name, columns, key, places, unique)


_LOCAL_TABLES = (polls, record_position)
REPLICATED_TABLES = {t.name: _describe(t) for t in metadata.sorted_tables if t not in _LOCAL_TABLES}


def encode_changes(changes: Sequence[RowChange]) -> bytes:
    """Return changes as the log stores them, in MessagePack."""
    return _encode(changes)


def decode_changes(body: bytes) -> tuple[RowChange, ...]:
    """Return the changes that `encode_changes` encoded; msgspec.DecodeError if it did not.

    They are in the order in which they were encoded.
    """
    return _decode(body)


def quote(name: str) -> str:
    """Return the name of a table or column in quotes for SQL, because `to`, for example, is a word of SQL."""
    return f'"{name}"'


@cache
def upsert_sql(table: str, width: int, placeholder: str) -> str:
    """Return an insert of the first `width` columns that replaces these of the row with the same key.

    For either engine: `placeholder` is the driver's: "?" or "%s". Rows of an earlier release have fewer columns.
    KeyError if the table is not replicated.
    """
    known = REPLICATED_TABLES[table]
    columns = known.columns[:width]
    names, values = ", ".join(map(quote, columns)), ", ".join([placeholder] * width)
    others = [quote(name) for name in columns if name not in known.key]
    action = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
    key = ", ".join(map(quote, known.key))
    return f"INSERT INTO {quote(table)} ({names}) VALUES ({values}) ON CONFLICT ({key}) DO {action}"


@cache
def delete_sql(table: str, placeholder: str) -> str:
    """Return a delete of the row whose primary key equals the parameters, in the key's order.

    `placeholder` is the driver's: "?" or "%s". KeyError if the table is not replicated.
    """
    key = REPLICATED_TABLES[table].key
    return f"DELETE FROM {quote(table)} WHERE {' AND '.join(f'{quote(name)} = {placeholder}' for name in key)}"


def statements_of(changes: Iterable[RowChange], placeholder: str) -> list[tuple[str, list[SqlValues]]]:
    """Return the statements that apply changes, each with its rows: all deletes, then all upserts.

    Deletes come first because a row may have the unique name of one that was deleted in the same group. `placeholder`
    is that of the database driver, such as `?` or `%s`. There is one pair for each different statement.
    """
    deletes: defaultdict[str, list[SqlValues]] = defaultdict(list)
    upserts: defaultdict[str, list[SqlValues]] = defaultdict(list)
    for change in changes:
        if change.row is None:
            deletes[delete_sql(change.table, placeholder)].append(change.key)
        else:
            upserts[upsert_sql(change.table, len(change.row), placeholder)].append(change.row)
    return [*deletes.items(), *upserts.items()]


def apply_changes(db: sqlite3.Connection, changes: Iterable[RowChange]) -> None:
    """Apply changes to a copy; the caller commits. Raises sqlite3.Error."""
    for sql, rows in statements_of(changes, "?"):
        db.executemany(sql, rows)


def set_last_seq(db: sqlite3.Connection, seq: int) -> None:
    """Let the history of a copy continue after `seq`, if it is not ahead of that; the caller commits.

    The entries up to there may have been pruned, and a number must never be used twice.
    """
    updated = db.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'history'", (seq,))
    if updated.rowcount == 0:
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('history', ?)", (seq,))


class ChangeCapture:
    """Notes which rows the writes on a connection change, and reads them at the end of a group.

    The constructor installs temporary triggers, which end with the connection, on the tables of REPLICATED_TABLES. A
    scope of which only `last_request_at` moves, within the same hour, does not count. Call `reset` at the beginning of
    each transaction and `changes` before its COMMIT. After ROLLBACK TO a savepoint it returns some rows that did not
    change. `db` is the connection that writes.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._keys: dict[tuple[str, SqlValues], bool] = {}  # table and key → whether the row was deleted meanwhile
        db.create_function(_CAPTURE_FUNCTION, -1, self._capture)
        for table in REPLICATED_TABLES.values():
            for statement in _trigger_statements(table):
                db.execute(statement)

    def reset(self) -> None:
        """Forget all changes that were noted so far; the rows stay as they are."""
        self._keys.clear()

    def changes(self) -> tuple[RowChange, ...]:
        """Return the changed rows since `reset`, as they are now; deleted ones first. Forgets nothing.

        A row that was deleted and added again is there twice: as deleted and as it is now.
        """
        deleted: list[RowChange] = []
        written: list[RowChange] = []
        for (table, key), was_deleted in self._keys.items():
            row = self._db.execute(_select_sql(table), key).fetchone()
            if row is None or was_deleted:
                deleted.append(RowChange(table, key, None))
            if row is not None:
                written.append(RowChange(table, key, row))
        return (*deleted, *written)

    def _capture(self, is_deleted: int, table: str, *key: Any) -> None:
        if is_deleted:
            self._keys[table, key] = True
        else:
            self._keys.setdefault((table, key), False)


@cache
def _select_sql(table: str) -> str:
    known = REPLICATED_TABLES[table]
    columns = ", ".join(map(quote, known.columns))
    return f"SELECT {columns} FROM {quote(table)} WHERE {' AND '.join(f'{quote(name)} = ?' for name in known.key)}"


def _trigger_statements(table: ReplicatedTable) -> list[str]:
    """Return the temporary triggers of a table.

    A row whose key or unique name changes is deleted and added again, because another row may have taken its name.
    """
    new, old = (", ".join(f"{version}.{quote(name)}" for name in table.key) for version in ("NEW", "OLD"))
    captured = f"SELECT {_CAPTURE_FUNCTION}(0, '{table.name}', {new});"
    deleted = f"SELECT {_CAPTURE_FUNCTION}(1, '{table.name}', {old});"
    names = [quote(name) for name in (*table.key, *table.unique)]
    is_renamed = f"WHEN {' OR '.join(f'OLD.{name} IS NOT NEW.{name}' for name in names)}"
    events = {
        "insert": ("INSERT", "", captured),
        "update": ("UPDATE", _scope_condition() if table.name == scopes.name else "", captured),
        "rename": (f"UPDATE OF {', '.join(names)}", is_renamed, deleted + captured),
        "delete": ("DELETE", "", deleted),
    }
    return [
        f"CREATE TEMP TRIGGER capture_{name}_{table.name} AFTER {event} ON main.{quote(table.name)} {condition} "
        f"BEGIN {action} END"
        for name, (event, condition, action) in events.items()
    ]


def _scope_condition() -> str:
    """Return a condition for updates of scopes: more than the minutes of `last_request_at` changes."""
    others = [column.name for column in scopes.columns if column is not scopes.c.last_request_at]
    changed = [f"NEW.{quote(name)} IS NOT OLD.{quote(name)}" for name in others]
    hours = [f"CAST({version}.last_request_at / {_LAST_REQUEST_STEP_S} AS INTEGER)" for version in ("NEW", "OLD")]
    return f"WHEN {' OR '.join(changed)} OR {' IS NOT '.join(hours)}"
