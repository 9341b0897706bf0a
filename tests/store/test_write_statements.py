"""The statements of the store's writer."""

from __future__ import annotations

import pytest

from forewarn.store import write_statements


@pytest.mark.parametrize("name", [name for name in dir(write_statements) if name.isupper()])
def test_no_write_returns_rows_that_nobody_reads(name: str) -> None:
    """Rows that are not read keep a statement active, and Python 3.13 refuses to run it again."""
    assert "RETURNING" not in str(getattr(write_statements, name))
