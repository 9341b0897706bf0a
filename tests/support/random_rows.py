"""Random writes to the replicated tables of a store, with values at the limits of what the engines accept."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st
from sqlalchemy import Column, Float, LargeBinary, String
from sqlalchemy.types import TypeEngine

from forewarn.cluster.record import SqlValues
from forewarn.cluster.row_changes import REPLICATED_TABLES, delete_sql, quote, upsert_sql
from forewarn.store.schema import metadata

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
INTEGERS = st.sampled_from([0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]) | st.integers(0, 3)
FLOATS = st.sampled_from([0.0, -0.0, 0.1, 1e308, 5e-324, float("inf"), 2_051_222_400.123456]) | st.floats(
    allow_nan=False
)
SMALL_KEYS = {"text": st.sampled_from(["a", "b", "ü"]), "integer": st.sampled_from([1, 2, 2**40])}


class RowWrite(NamedTuple):
    """One statement on a replicated table."""

    table: str
    key: SqlValues
    row: SqlValues | None  # None: delete the row
    undone: bool  # rolled back with its savepoint


def _values_of(column: Column[Any], *, in_key: bool) -> st.SearchStrategy[Any]:
    kind: TypeEngine[Any] = column.type
    values: st.SearchStrategy[Any]
    if isinstance(kind, Float):
        values = FLOATS
    elif isinstance(kind, LargeBinary):
        values = st.binary(max_size=5)
    elif isinstance(kind, String):
        values = SMALL_KEYS["text"] if in_key else TEXTS
    else:
        values = SMALL_KEYS["integer"] if in_key else INTEGERS
    return st.none() | values if column.nullable else values


@st.composite
def row_writes(draw: st.DrawFn) -> RowWrite:
    """Return a write of a random row, or a delete, in any replicated table."""
    known = REPLICATED_TABLES[draw(st.sampled_from(sorted(REPLICATED_TABLES)))]
    row = tuple(
        draw(_values_of(column, in_key=column.name in (*known.key, *known.unique)))
        for column in metadata.tables[known.name].columns
    )
    is_deleted = draw(st.booleans())
    return RowWrite(known.name, known.key_of(row), None if is_deleted else row, draw(st.booleans()))


def write_rows(db: sqlite3.Connection, writes: Sequence[RowWrite]) -> None:
    """Execute the writes, as the store's statements do: inserts, updates and deletes, some in undone savepoints."""
    for write in writes:
        db.execute("SAVEPOINT one")
        try:
            _write_row(db, write)
        except sqlite3.IntegrityError:
            db.execute("ROLLBACK TO one")  # another row has its unique name
        if write.undone:
            db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")


def _write_row(db: sqlite3.Connection, write: RowWrite) -> None:
    if write.row is None:
        db.execute(delete_sql(write.table, "?"), write.key)
    else:
        db.execute(upsert_sql(write.table, len(write.row), "?"), write.row)


def all_rows(db: sqlite3.Connection) -> dict[str, list[SqlValues]]:
    """Return all rows of the replicated tables, sorted by key."""
    return {
        name: db.execute(f"SELECT * FROM {quote(name)} ORDER BY {', '.join(map(quote, table.key))}").fetchall()
        for name, table in REPLICATED_TABLES.items()
    }
