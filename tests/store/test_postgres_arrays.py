"""Columns of rows as arrays of PostgreSQL: the same bytes as the driver's own, for values of every type."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int8

from forewarn.cluster.postgres_connection import array_parameters, upsert_all_sql
from forewarn.cluster.row_changes import REPLICATED_TABLES
from tests.support.random_rows import FLOATS, INTEGERS, TEXTS

DELIVERY = (1, 2, 3, 4, 5, 6.0)


def encoded(table: str, *rows: tuple[Any, ...]) -> list[bytes]:
    """Return the bytes of each column."""
    return [bytes(parameter.data) for parameter in array_parameters(table, rows)]  # type: ignore[attr-defined]


def encoded_by_driver(column: list[Any]) -> bytes:
    dumper = Transformer().get_dumper(column, PyFormat.BINARY)
    data = dumper.dump(column)
    assert data is not None
    return bytes(data)


@given(st.lists(st.tuples(TEXTS, INTEGERS, st.none() | FLOATS, st.binary(max_size=5)), min_size=1, max_size=5))
def test_columns_are_encoded_as_the_driver_encodes_lists(values: list[tuple[str, int, float | None, bytes]]) -> None:
    texts, integers, floats, bodies = (list(column) for column in zip(*values, strict=True))
    rows = [(text, number, at, "request", body) for text, number, at, body in values]
    found = encoded("gates", *rows)
    assert found[0] == encoded_by_driver(texts)
    assert found[1] == encoded_by_driver([Int8(number) for number in integers])
    assert found[4] == encoded_by_driver(bodies)
    if any(at is not None for at in floats):  # the driver does not know the type of a list of NULLs
        assert found[2] == encoded_by_driver(floats)


@pytest.mark.parametrize(
    "row", [(1, 2, 3, 4, "five", 6.0), (1, 2, 3, 4, 2**63, 6.0), (1, 2, 3, 4, 5, "six")], ids=["text", "large", "time"]
)
def test_a_value_that_its_column_cannot_store_is_a_data_error(row: tuple[Any, ...]) -> None:
    with pytest.raises(psycopg.DataError, match="deliveries"):
        array_parameters("deliveries", [DELIVERY, row])


@pytest.mark.parametrize("table", sorted(REPLICATED_TABLES))
def test_a_statement_has_one_parameter_for_each_column(table: str) -> None:
    width = len(REPLICATED_TABLES[table].columns)
    assert upsert_all_sql(table, width).count(b"%b") == width


def test_rows_of_an_earlier_release_have_fewer_columns() -> None:
    statement = upsert_all_sql("deliveries", 5)
    assert statement.count(b"%b") == 5
    assert b'"at"' not in statement
    assert len(array_parameters("deliveries", [DELIVERY[:5]])) == 5
