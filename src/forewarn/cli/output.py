"""Prints answers: tables and colours on a terminal, plain text in a pipe, JSON with --json.

Control characters in text from elsewhere never reach the terminal.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | Text  # a table cell or value: plain text, or text with a style
_SHORT_ID_LENGTH = 8
_UNBREAKABLE_PIECE = re.compile(r"\([^)]*\)|(?:[-\d]{10} )?\d\d:\d\d:\d\d \S+|\S+")
_COLUMN_GAP = 2  # blanks between the columns of a table

STATE_STYLES = {  # state in lower case → style of rich
    **dict.fromkeys(
        ("scheduled", "paused", "waiting", "degraded", "published", "requested", "unclear", "error"), "yellow"
    ),
    **dict.fromkeys(("started", "running", "approved", "released"), "cyan"),
    **dict.fromkeys(("finished", "succeeded", "completed", "healthy", "performed", "good"), "green"),
    **dict.fromkeys(("failed", "stopped", "aborted", "gone", "bad"), "red"),
    **dict.fromkeys(("over", "withdrawn", "not needed", "skipped"), "bright_black"),
}


def without_control_characters(text: object) -> str:
    """Return `str(text)` with U+FFFD in place of each unprintable character except line feeds."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(text))


def state_text(text: object) -> Text:
    """Return a state such as `scheduled`, spelled as given, in its colour from STATE_STYLES."""
    return Text(without_control_characters(text), style=STATE_STYLES.get(str(text).lower(), ""))


def dim(text: object) -> Text:
    """Return the text in grey, for what matters less; control characters are replaced."""
    return Text(without_control_characters(text), style="bright_black")


def bold(text: object) -> Text:
    """Return the text in bold; control characters are replaced."""
    return Text(without_control_characters(text), style="bold")


def join_text(*parts: object) -> Text:
    """Return the pieces joined into one Text, without a separator; each Text keeps its own style."""
    line = Text()
    for part in parts:
        line.append_text(part if isinstance(part, Text) else Text(without_control_characters(part)))
    return line


class Output:
    """Prints the answers of one command to stdout, and errors to stderr."""

    def __init__(self, *, as_json: bool = False, program: str = "forewarn") -> None:
        self.as_json = as_json
        self._command_prefix = program  # takes the place of `forewarn` in hints
        self.stdout = Console(markup=False, highlight=False, emoji=False)
        self.stderr = Console(stderr=True, markup=False, highlight=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads the answer: stdout is a terminal, and --json was not given."""
        return self.stdout.is_terminal and not self.as_json

    def short_id(self, long_id: object) -> str:
        """Return the first 8 characters of an id on a terminal; the whole id in a pipe and with --json."""
        return str(long_id)[:_SHORT_ID_LENGTH] if self.is_terminal else str(long_id)

    def print_json(self, view: Any) -> None:
        """Print a value to stdout as JSON on one line, so that watching commands can print one per line."""
        click.echo(json.dumps(view, ensure_ascii=False, separators=(",", ":")))

    def print_line(self, *parts: object) -> None:
        """Print pieces, each in its own style, as one line of text to stdout; without pieces an empty line."""
        self.stdout.print(join_text(*parts), soft_wrap=not self.is_terminal)

    def print_error(self, message: object, *, code: str = "Failed", problems: Sequence[Any] = ()) -> None:
        """Print an error to stderr: the message in red, or with --json the document `{"error": {…}}`."""
        if self.as_json:
            error = {"code": code, "message": str(message), **({"problems": list(problems)} if problems else {})}
            click.echo(json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":")), err=True)
        else:
            self.print_note(message)

    def print_note(self, message: object) -> None:
        """Print a remark for people to stderr, in red, as text also with --json."""
        self.stderr.print(Text(without_control_characters(message), style="red"), soft_wrap=True)

    def print_table(self, headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Print a table to stdout as text, with the headers in capitals; without rows, only the headers."""
        cells = [
            [cell if isinstance(cell, Text) else Text(without_control_characters(cell)) for cell in row] for row in rows
        ]
        if self.is_terminal:
            self.stdout.print(build_table(headers, cells, self.stdout.width))
        else:
            for line in _align_columns([[Text(header.upper()) for header in headers], *cells]):
                click.echo(line)

    def print_facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print names, in grey, and values to stdout, one indented pair per line, the values in one column."""
        listed = list(pairs)
        width = max((len(name) for name, _ in listed), default=0)
        for name, value in listed:
            self.print_labelled(join_text("  ", dim(f"{name:<{width}}"), "  "), value)

    def print_labelled(self, label: Text, value: Cell) -> None:
        """Print a text beside its label to stdout, with nothing in between."""
        if not self.is_terminal:
            self.print_line(label, value)
            return
        if " " not in str(value):
            self.stdout.print(join_text(label, value), soft_wrap=True)  # an address: unbroken, to be copied
            return
        grid = Table.grid()
        grid.add_column(width=label.cell_len)
        grid.add_column(overflow="fold")
        grid.add_row(label, join_text(value))
        self.stdout.print(grid)

    def print_hints(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Print an empty line, then commands to try next, to stdout: pairs of a command and what it does."""
        listed = [(self._with_command_prefix(command), use) for command, use in pairs]
        width = max((len(command) for command, _ in listed), default=0)
        self.print_line()
        if width + max((len(use) for _, use in listed), default=0) + 4 > self.stdout.width:
            for command, use in listed:
                self.print_line("  ", dim(use))
                self.stdout.print(join_text("    ", bold(command)), soft_wrap=True)  # unbroken, to be copied
            return
        for command, use in listed:
            self.print_line("  ", bold(f"{command:<{width}}"), "  ", dim(use))

    def _with_command_prefix(self, command: str) -> str:
        return re.sub(r"(^|(?<=\$\())forewarn\b", lambda _: self._command_prefix, command)


def build_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]], width: int) -> Table:
    """Return a table of rich, headers in capitals, for a terminal of this width in characters."""
    table = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0), header_style="bright_black")
    listed = list(rows)
    columns = list(zip(headers, *([str(cell) for cell in row] for row in listed), strict=True))
    fixed: list[int | None] = [*column_widths(columns, width)] or [None] * len(headers)
    for header, columns_width in zip(headers, fixed, strict=True):
        table.add_column(header.upper(), overflow="fold", width=columns_width)
    for row in listed:
        table.add_row(*row)
    return table


def column_widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return widths of table columns that break cells only between pieces; [] if the pieces do not fit."""
    least = [
        max(cell_len(piece) for text in column for piece in _UNBREAKABLE_PIECE.findall(text) or [""])
        for column in columns
    ]
    spare = width - sum(least) - _COLUMN_GAP * (len(least) - 1)
    if spare < 0:
        return []
    lacks = [max(map(cell_len, column)) - at_least for column, at_least in zip(columns, least, strict=True)]
    for index, lack in enumerate(lacks):
        if lack <= spare:
            least[index], spare, lacks[index] = least[index] + lack, spare - lack, 0
    neediest = lacks.index(max(lacks))
    least[neediest] += min(spare, lacks[neediest])
    return least


def _align_columns(rows: Sequence[Sequence[Text]]) -> list[str]:
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.plain + " " * (width - cell.cell_len) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def discard_unwritable_output() -> None:
    """Flush stdout and stderr; redirect one that cannot be written, with what it buffers, to /dev/null."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
