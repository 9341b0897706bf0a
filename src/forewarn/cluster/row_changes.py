"""Row changes of a group of writes: captured on a SQLite connection, encoded, applied to a copy.

Temporary triggers note the key of every changed row, in a temporary table, so that SQLite calls no Python while it
writes; at the end of the group the rows are read back, a table at a time. So values that SQLite gave (positions,
sequence numbers) are the same in the record and in every copy, and no write is described twice. Table `polls` is not
replicated: each node has its own. An update of a scope that only moves `last_request_at` counts when it reaches another
hour.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Table, UniqueConstraint

from forewarn.cluster.record import RecordSnapshot, RowChange, SqlValues
from forewarn.store import sqlite_file
from forewarn.store.schema import POLLS, SCOPES, metadata, record_position

_LAST_REQUEST_STEP_S = 3600  # `last_request_at` of a scope is replicated once in this time
_CAPTURED = "captured_changes"  # a temporary table
_CAPTURED_KEY = ("key_1", "key_2", "key_3")  # its columns for the key of a changed row
_READ_TOGETHER_FROM = 3  # changed rows of a table; fewer are read one by one

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[RowChange, ...]).decode


class ReplicatedTable(NamedTuple):
    """A table whose rows are in the record, with the names of its columns."""

    name: str  # the name of the table
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


_LOCAL_TABLES = (POLLS.sql, record_position)
REPLICATED_TABLES = {t.name: _describe(t) for t in metadata.sorted_tables if t not in _LOCAL_TABLES}


def encode_changes(changes: Sequence[RowChange]) -> bytes:
    """Return changes of rows as the record's log stores them, in MessagePack."""
    return _encode(changes)


def decode_changes(body: bytes) -> tuple[RowChange, ...]:
    """Return the changes that `encode_changes` encoded; msgspec.DecodeError if it did not."""
    return _decode(body)


def quote(name: str) -> str:
    """Return the name of a table or column in quotes for SQL, because `to`, for example, is a word of SQL."""
    return f'"{name}"'


@cache
def upsert_sql(table: str, width: int, placeholder: str) -> str:
    """Return SQL that inserts a row, or replaces the columns of the row with the same primary key."""
    names = ", ".join(map(quote, REPLICATED_TABLES[table].columns[:width]))
    values = ", ".join([placeholder] * width)
    return f"INSERT INTO {quote(table)} ({names}) VALUES ({values}) {conflict_action(table, width)}"


def conflict_action(table: str, width: int) -> str:
    """Return the ON CONFLICT clause of an insert that replaces the columns of a row with the same key."""
    known = REPLICATED_TABLES[table]
    others = [quote(name) for name in known.columns[:width] if name not in known.key]
    action = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
    return f"ON CONFLICT ({', '.join(map(quote, known.key))}) DO {action}"


@cache
def delete_sql(table: str, placeholder: str) -> str:
    """Return SQL that deletes the row whose primary key equals the parameters, in the key's order."""
    key = REPLICATED_TABLES[table].key
    return f"DELETE FROM {quote(table)} WHERE {' AND '.join(f'{quote(name)} = {placeholder}' for name in key)}"


class ChangesByTable(NamedTuple):
    """Changes of rows, grouped for SQL statements."""

    # Apply deletes first: a row may have the unique name of one that was deleted in the same group.

    deletes: dict[str, list[SqlValues]]  # table → keys
    upserts: dict[tuple[str, int], list[SqlValues]]  # table and number of columns → rows


def group_changes(changes: Iterable[RowChange]) -> ChangesByTable:
    """Return changes by their table, and rows also by their width, each in the order of the changes."""
    # Of several rows of a table with the same key and width only the last one is there: PostgreSQL refuses a statement
    # that writes a row twice.
    deletes: defaultdict[str, list[SqlValues]] = defaultdict(list)
    upserts: defaultdict[tuple[str, int], dict[SqlValues, SqlValues]] = defaultdict(dict)  # → the row of each key
    for change in changes:
        if change.row is None:
            deletes[change.table].append(change.key)
        else:
            upserts[change.table, len(change.row)][change.key] = change.row
    return ChangesByTable(deletes, {statement: list(rows.values()) for statement, rows in upserts.items()})


def apply_changes(db: sqlite3.Connection, changes: Iterable[RowChange]) -> None:
    """Apply changes of rows to a copy, all deletions first; the caller commits. Raises sqlite3.Error."""
    grouped = group_changes(changes)
    for table, keys in grouped.deletes.items():
        db.executemany(delete_sql(table, "?"), keys)
    for (table, width), rows in grouped.upserts.items():
        db.executemany(upsert_sql(table, width, "?"), rows)


def set_last_seq(db: sqlite3.Connection, seq: int) -> None:
    """Let the history of a copy continue after `seq`, if it is not ahead of that; the caller commits."""
    # The entries up to there may have been pruned, and a number must never be used twice.
    updated = db.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'history'", (seq,))
    # A store without any history yet has no row there.
    if updated.rowcount == 0:
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('history', ?)", (seq,))


class ChangeCapture:
    """Notes which rows the writes on a connection change, and reads them at the end of a group.

    A rollback, even to a savepoint, forgets what it undoes. Call `reset` at the beginning of each transaction and
    `changes` before its COMMIT.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute(f"CREATE TEMP TABLE {_CAPTURED} (name TEXT, is_deleted INTEGER, {', '.join(_CAPTURED_KEY)})")
        for table in REPLICATED_TABLES.values():
            for statement in _trigger_statements(table):
                db.execute(statement)

    def reset(self) -> None:
        """Forget all changes that were noted so far; the rows stay as they are."""
        self._db.execute(f"DELETE FROM {_CAPTURED}")

    def changes(self) -> tuple[RowChange, ...]:
        """Return the changed rows since `reset`, as they are now; deleted ones first. Forgets nothing."""
        deleted: list[RowChange] = []
        written: list[RowChange] = []
        keys = self._captured_keys()
        rows = self._read_rows(keys)
        for (table, key), was_deleted in keys.items():
            row = rows.get((table, key)) or self._db.execute(_select_sql(table), key).fetchone()
            # A row that was deleted and added again is both: others may have had its unique name in between.
            if row is None or was_deleted:
                deleted.append(RowChange(table, key, None))
            if row is not None:
                written.append(RowChange(table, key, row))
        return (*deleted, *written)

    def _captured_keys(self) -> dict[tuple[str, SqlValues], bool]:
        keys: dict[tuple[str, SqlValues], bool] = {}
        for captured in self._db.execute(f"SELECT * FROM {_CAPTURED} ORDER BY rowid"):
            table = captured[0]
            key = captured[2 : 2 + len(REPLICATED_TABLES[table].key)]
            # A deletion is remembered even if the row exists again at the end.
            keys[table, key] = bool(captured[1]) or keys.get((table, key), False)
        return keys

    def _read_rows(self, keys: Iterable[tuple[str, SqlValues]]) -> dict[tuple[str, SqlValues], SqlValues]:
        values_by_table: defaultdict[str, list[Any]] = defaultdict(list)
        for table, key in keys:
            values_by_table[table].append(key[0])
        rows: dict[tuple[str, SqlValues], SqlValues] = {}
        for table, values in values_by_table.items():
            places = REPLICATED_TABLES[table].key_places
            # One statement for a table: each statement of its own costs more than the rows.
            if len(places) == 1 and len(values) >= _READ_TOGETHER_FROM:
                (place,) = places
                for row in self._db.execute(_select_many_sql(table), (_encode_json(values).decode(),)):
                    rows[table, (row[place],)] = row
        return rows


@cache
def _select_sql(table: str) -> str:
    known = REPLICATED_TABLES[table]
    columns = ", ".join(map(quote, known.columns))
    return f"SELECT {columns} FROM {quote(table)} WHERE {' AND '.join(f'{quote(name)} = ?' for name in known.key)}"


@cache
def _select_many_sql(table: str) -> str:
    known = REPLICATED_TABLES[table]
    columns, (key,) = ", ".join(map(quote, known.columns)), map(quote, known.key)
    return f"SELECT {columns} FROM {quote(table)} WHERE {key} IN (SELECT value FROM json_each(?))"


def _trigger_statements(table: ReplicatedTable) -> list[str]:
    # A row whose key or unique name changes is deleted and added again, because another row may have taken its name.
    new, old = (", ".join(f"{version}.{quote(name)}" for name in table.key) for version in ("NEW", "OLD"))
    columns = ", ".join(("name", "is_deleted", *_CAPTURED_KEY[: len(table.key)]))
    captured = f"INSERT INTO {_CAPTURED} ({columns}) VALUES ('{table.name}', 0, {new});"
    deleted = f"INSERT INTO {_CAPTURED} ({columns}) VALUES ('{table.name}', 1, {old});"
    names = [quote(name) for name in (*table.key, *table.unique)]
    is_renamed = f"WHEN {' OR '.join(f'OLD.{name} IS NOT NEW.{name}' for name in names)}"
    events = {
        "insert": ("INSERT", "", captured),
        "update": ("UPDATE", _scope_condition() if table.name == SCOPES.name else "", captured),
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
    others = [column.name for column in SCOPES.c if column is not SCOPES.c.last_request_at]
    changed = [f"NEW.{quote(name)} IS NOT OLD.{quote(name)}" for name in others]
    hours = [f"CAST({version}.last_request_at / {_LAST_REQUEST_STEP_S} AS INTEGER)" for version in ("NEW", "OLD")]
    return f"WHEN {' OR '.join(changed)} OR {' IS NOT '.join(hours)}"


# Digests of tables, which tell whether a copy has the same rows as its record.
#
# The digest of a table is the sum of the digests of its rows, so that their order does not matter: the engines sort
# texts in different ways.

_ROWS_PER_FETCH = 5000
_DIGEST_BYTES = 16
# The record has `last_request_at` of a scope of some hour, the copy of the active node the latest.
_INEXACT = {SCOPES.name: SCOPES.c.keys().index("last_request_at")}


class TableDigest(NamedTuple):
    """The number of rows of a table, and a digest of their contents that does not depend on their order."""

    rows: int  # how many there are
    digest: str  # hexadecimal


def digest_tables(pieces: Iterable[tuple[str, Sequence[SqlValues]]]) -> dict[str, TableDigest]:
    """Return the number of rows and the digest of every replicated table; pieces and rows may come in any order."""
    counts: defaultdict[str, int] = defaultdict(int)
    sums: defaultdict[str, int] = defaultdict(int)
    for table, rows in pieces:
        counts[table] += len(rows)
        sums[table] += sum(_digest_row(row, _INEXACT.get(table)) for row in rows)
    return {
        table: TableDigest(counts[table], f"{sums[table] % 256**_DIGEST_BYTES:0{2 * _DIGEST_BYTES}x}")
        for table in REPLICATED_TABLES
    }


def snapshot_digests(snapshot: RecordSnapshot) -> dict[str, TableDigest]:
    """Return the digests of a record's tables in a snapshot, by table name; blocks while it reads them."""
    return digest_tables(snapshot.tables)


def copy_digests(path: Path) -> dict[str, TableDigest]:
    """Return the digests of the replicated tables of the SQLite store at `path`, by table name."""
    return digest_tables(read_rows(path))


def read_rows(path: Path) -> Iterator[tuple[str, Sequence[SqlValues]]]:
    """Return an iterator over the rows of the replicated tables of the SQLite store at `path`."""
    with closing(sqlite_file.connect(path, mode="ro")) as db:
        db.execute("BEGIN")
        for table in REPLICATED_TABLES.values():
            cursor = db.execute(f"SELECT {', '.join(map(quote, table.columns))} FROM {quote(table.name)}")
            while rows := cursor.fetchmany(_ROWS_PER_FETCH):
                yield table.name, rows


def _digest_row(row: SqlValues, left_out: int | None) -> int:
    compared = row if left_out is None else (*row[:left_out], *row[left_out + 1 :])
    return int.from_bytes(blake2b(_encode(compared), digest_size=_DIGEST_BYTES).digest())
