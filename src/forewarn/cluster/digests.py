"""Digests of tables, which tell whether a copy has the same rows as its record.

The digest of a table is the sum of the digests of its rows, so that their order does not matter: the engines sort texts
in different ways.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from forewarn.cluster.record import RecordSnapshot, SqlValues
from forewarn.cluster.row_changes import REPLICATED_TABLES, quote
from forewarn.store import sqlite_file
from forewarn.store.schema import scopes

_encode = msgspec.msgpack.Encoder().encode
_ROWS_PER_FETCH = 5000
_DIGEST_BYTES = 16
# The record has `last_request_at` of a scope of some hour, the copy of the active node the latest.
_INEXACT = {scopes.name: scopes.columns.keys().index("last_request_at")}


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
