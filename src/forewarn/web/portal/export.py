"""Page exports: the table behind a CSV file, the row limit, and the encoding that defuses formulas.

Pages that can be exported implement `CsvExportable` or `SvgExportable`; every page can be exported as JSON.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

MAX_EXPORT_ROWS = 100_000  # VMs or history entries in one file


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTable:
    """The table that a page exports as a CSV file; `encode_csv` writes it."""

    columns: Sequence[str]  # their names: the first line
    rows: Sequence[Sequence[Any]]  # cells in the order of the columns; None is an empty cell
    note: str = ""  # a last line, such as that rows are missing; "": none


def truncation_note(is_partial: bool, exported: int, found: int | None = None) -> str:
    """Return the last line of a CSV file that holds only the first `exported` rows; "" unless `is_partial`."""
    return f"cut after {exported}{f' of {found}' if found else ''} rows: use a narrower search" if is_partial else ""


@runtime_checkable
class CsvExportable(Protocol):
    """A page that can be exported as CSV; checked with `isinstance` when a user asks for it."""

    def table(self) -> ExportTable:
        """Return the columns and rows of the CSV file. May be called in another thread."""
        ...


@runtime_checkable
class SvgExportable(Protocol):
    """A page that can be exported as an SVG image; checked with `isinstance` when a user asks for it."""

    def svg(self) -> str:
        """Return the text of the SVG file: an image of what the page shows."""
        ...


def encode_csv(view: CsvExportable) -> bytes:
    """Return the table of a page as a CSV file in UTF-8, with the column names as the first line.

    A cell whose text a spreadsheet would run as a formula gets an apostrophe in front. Call it in a thread: the whole
    fleet takes a while.
    """
    table = view.table()
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.columns)
    writer.writerows([_escape_formula(cell) for cell in row] for row in table.rows)
    if table.note:
        writer.writerow([table.note])
    return text.getvalue().encode()


def _escape_formula(cell: Any) -> Any:
    """Puts an apostrophe before a text that a spreadsheet would run as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell
