"""Page exports: the table behind a CSV file, the row limit, and the encoding that defuses formulas.

Pages that can be exported implement `CsvExportable` or `SvgExportable`; every page can be exported as JSON.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

MAX_EXPORT_ROWS = 100_000  # VMs or entries in a file that is taken away


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTable:
    """A view as rows, for CSV."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""  # below them


def truncation_note(is_cut: bool, told: int, found: int | None = None) -> str:
    """What a file says that does not hold everything."""
    return f"cut after {told}{f' of {found}' if found else ''}: search for less" if is_cut else ""


@runtime_checkable
class CsvExportable(Protocol):
    """A view that can be taken away as CSV."""

    def table(self) -> ExportTable: ...


@runtime_checkable
class SvgExportable(Protocol):
    """A view that can be taken away as a drawing."""

    def svg(self) -> str: ...


def encode_csv(view: CsvExportable) -> bytes:
    """In a thread: of a whole fleet it takes a while."""
    table = view.table()
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.columns)
    writer.writerows([_escape_formula(cell) for cell in row] for row in table.rows)
    if table.note:
        writer.writerow([table.note])
    return text.getvalue().encode()


def _escape_formula(cell: Any) -> Any:
    """A spreadsheet would run what begins like a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
