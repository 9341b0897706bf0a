"""Rows as parameters of one PostgreSQL statement: an array for each column, in binary format.

A statement per row costs the driver and the server more than the row itself: messages, a look at the socket, a result.
The driver can send lists, but it looks at each element several times to guess its type; here the schema says it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format
from sqlalchemy import Float, LargeBinary, String

from forewarn.cluster.record import SqlValues
from forewarn.cluster.row_changes import REPLICATED_TABLES, conflict_action, quote
from forewarn.store.schema import metadata

_HEADER = Struct(">iiIii").pack  # dimensions, whether there are NULLs, type of the elements, how many, first index
_LENGTH = Struct(">i").pack  # of the element that follows, in bytes
_INTEGER = Struct(">iq").pack  # length and value
_FLOAT = Struct(">id").pack
_NULL = _LENGTH(-1)


class _EncodedArray(ABC):
    element_oid = 0  # of the type of the elements, in PostgreSQL's catalogue
    oid = 0  # of the array type

    __slots__ = ("data",)

    def __init__(self, column: Sequence[Any]) -> None:
        header = _HEADER(1, None in column, self.element_oid, len(column), 1)
        self.data = header + b"".join(self.elements(column))

    @abstractmethod
    def elements(self, column: Sequence[Any]) -> list[bytes]:
        """Return the encoded elements, each after its length."""


class _IntegerArray(_EncodedArray):
    element_oid, oid = 20, 1016  # bigint
    __slots__ = ()

    def elements(self, column: Sequence[Any]) -> list[bytes]:
        return [_NULL if value is None else _INTEGER(8, value) for value in column]


class _FloatArray(_EncodedArray):
    element_oid, oid = 701, 1022  # double precision
    __slots__ = ()

    def elements(self, column: Sequence[Any]) -> list[bytes]:
        return [_NULL if value is None else _FLOAT(8, value) for value in column]


class _BytesArray(_EncodedArray):
    element_oid, oid = 17, 1001  # bytea
    __slots__ = ()

    def elements(self, column: Sequence[Any]) -> list[bytes]:
        return [_NULL if value is None else _LENGTH(len(value)) + value for value in column]


class _TextArray(_EncodedArray):
    element_oid, oid = 25, 1009  # text
    __slots__ = ()

    def elements(self, column: Sequence[Any]) -> list[bytes]:
        if "\0" in "".join(filter(None, column)):
            raise psycopg.DataError("a text contains NUL, which PostgreSQL cannot store")
        return [_NULL if value is None else _LENGTH(len(data := value.encode())) + data for value in column]


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        data: bytes = obj.data
        return data


def register_arrays(db: psycopg.Connection[Any]) -> None:
    """Enable a psycopg connection to send the parameters of `array_parameters`; contacts no server."""
    for kind in (_IntegerArray, _FloatArray, _BytesArray, _TextArray):
        dumper = type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.oid})
        db.adapters.register_dumper(kind, dumper)


@cache
def upsert_all_sql(table: str, width: int) -> bytes:
    """Return SQL for PostgreSQL that inserts many rows, and replaces those with the same primary keys."""
    names = ", ".join(map(quote, REPLICATED_TABLES[table].columns[:width]))
    arrays = ", ".join(["%b"] * width)
    return (
        f"INSERT INTO {quote(table)} ({names}) SELECT * FROM unnest({arrays}) {conflict_action(table, width)}".encode()
    )


def array_parameters(table: str, rows: Sequence[SqlValues]) -> tuple[object, ...]:
    """Return the parameters of `upsert_all_sql` for these rows: one array for each of their columns."""
    try:
        return tuple(kind(column) for kind, column in zip(_array_types(table), zip(*rows, strict=True), strict=False))
    except (TypeError, AttributeError, UnicodeError, StructError) as error:
        raise psycopg.DataError(f"a value of table {table} has the wrong type: {error}") from error


@cache
def _array_types(table: str) -> tuple[Callable[[Sequence[Any]], _EncodedArray], ...]:
    kinds = {Float: _FloatArray, LargeBinary: _BytesArray, String: _TextArray}
    return tuple(
        next((kind for base, kind in kinds.items() if isinstance(column.type, base)), _IntegerArray)
        for column in metadata.tables[table].columns
    )
