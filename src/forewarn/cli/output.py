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

Cell = str | Text
_SHORT_ID_LENGTH = 8
_UNBREAKABLE_PIECE = re.compile(r"\([^)]*\)|[-\d]{10} [:\d]{8}|\S+")
_COLUMN_GAP = 2  # blanks between the columns of a table

STATE_STYLES = {
    **dict.fromkeys(("scheduled", "paused", "waiting", "degraded", "published", "requested"), "yellow"),
    **dict.fromkeys(("started", "running", "approved", "released"), "cyan"),
    **dict.fromkeys(("finished", "completed", "healthy", "performed"), "green"),
    **dict.fromkeys(("failed", "stopped", "aborted", "gone"), "red"),
    **dict.fromkeys(("over", "withdrawn", "skipped"), "bright_black"),
}


def without_control_characters(text: object) -> str:
    """Without what could move a cursor or change a colour."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(text))


def state_text(text: object) -> Text:
    """A state, in its colour."""
    return Text(without_control_characters(text), style=STATE_STYLES.get(str(text).lower(), ""))


def dim(text: object) -> Text:
    return Text(without_control_characters(text), style="bright_black")


def bold(text: object) -> Text:
    return Text(without_control_characters(text), style="bold")


def join_text(*parts: object) -> Text:
    """One line of pieces, each with its own style."""
    line = Text()
    for part in parts:
        line.append_text(part if isinstance(part, Text) else Text(without_control_characters(part)))
    return line


class Output:
    """Where answers go: documents and tables to stdout, what goes wrong to stderr."""

    def __init__(self, *, as_json: bool = False, program: str = "forewarn") -> None:
        self.as_json = as_json
        self._command_prefix = program  # how whoever reads this would call us again
        self.stdout = Console(markup=False, highlight=False, emoji=False)
        self.stderr = Console(stderr=True, markup=False, highlight=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        return self.stdout.is_terminal and not self.as_json

    def short_id(self, long_id: object) -> str:
        """An id as it is told to people: whole in a pipe, where a program may read it."""
        return str(long_id)[:_SHORT_ID_LENGTH] if self.is_terminal else str(long_id)

    def print_json(self, view: Any) -> None:
        """The machine's answer: one document; on one line, so that watchers can give one per line."""
        click.echo(json.dumps(view, ensure_ascii=False, separators=(",", ":")))

    def print_line(self, *parts: object) -> None:
        self.stdout.print(join_text(*parts), soft_wrap=not self.is_terminal)

    def print_error(self, message: object, *, code: str = "Failed", problems: Sequence[Any] = ()) -> None:
        """What went wrong: a sentence for people, one document for programs."""
        if self.as_json:
            error = {"code": code, "message": str(message), **({"problems": list(problems)} if problems else {})}
            click.echo(json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":")), err=True)
        else:
            self.print_note(message)

    def print_note(self, message: object) -> None:
        """Beside what is asked for, for people only."""
        self.stderr.print(Text(without_control_characters(message), style="red"), soft_wrap=True)

    def print_table(self, headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        cells = [
            [cell if isinstance(cell, Text) else Text(without_control_characters(cell)) for cell in row] for row in rows
        ]
        if self.is_terminal:
            self.stdout.print(build_table(headers, cells, self.stdout.width))
        else:
            for line in align_columns([[Text(header.upper()) for header in headers], *cells]):
                click.echo(line)

    def print_facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Names and values, one pair a line, values in one column."""
        listed = list(pairs)
        width = max((len(name) for name, _ in listed), default=0)
        for name, value in listed:
            self.print_labelled(join_text("  ", dim(f"{name:<{width}}"), "  "), value)

    def print_labelled(self, label: Text, value: Cell) -> None:
        """A text beside its label; on a terminal what does not fit goes on below the text, not below the label."""
        if not self.is_terminal:
            self.print_line(label, value)
            return
        if " " not in str(value):
            self.stdout.print(join_text(label, value), soft_wrap=True)  # an address: to be copied in one piece
            return
        grid = Table.grid()
        grid.add_column(width=label.cell_len)
        grid.add_column(overflow="fold")
        grid.add_row(label, join_text(value))
        self.stdout.print(grid)

    def print_hints(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Commands to go on with, for people only."""
        listed = [(self._with_command_prefix(command), use) for command, use in pairs]
        width = max((len(command) for command, _ in listed), default=0)
        self.print_line()
        if width + max((len(use) for _, use in listed), default=0) + 4 > self.stdout.width:
            for command, use in listed:
                self.print_line("  ", dim(use))
                self.stdout.print(join_text("    ", bold(command)), soft_wrap=True)  # to be copied in one piece
            return
        for command, use in listed:
            self.print_line("  ", bold(f"{command:<{width}}"), "  ", dim(use))

    def _with_command_prefix(self, command: str) -> str:
        return re.sub(r"(^|(?<=\$\())forewarn\b", lambda _: self._command_prefix, command)


def build_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]], width: int) -> Table:
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
    """Each column as wide as its longest piece, those that then fit whole as they are, and the rest of the room to the
    one that lacks most; none if even the pieces are too wide. A piece is a word, an instant, or what is in parentheses.
    """
    least = [
        max(cell_len(piece) for text in column for piece in _UNBREAKABLE_PIECE.findall(text) or [""])
        for column in columns
    ]
    spare = width - sum(least) - _COLUMN_GAP * (len(least) - 1)
    if spare < 0:
        return []
    lacks = [max(map(cell_len, column)) - at_least for column, at_least in zip(columns, least, strict=True)]
    for place, lack in enumerate(lacks):
        if lack <= spare:
            least[place], spare, lacks[place] = least[place] + lack, spare - lack, 0
    neediest = lacks.index(max(lacks))
    least[neediest] += min(spare, lacks[neediest])
    return least


def align_columns(rows: Sequence[Sequence[Text]]) -> list[str]:
    """Columns in a pipe: two blanks between them, nothing cut off."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.plain + " " * (width - cell.cell_len) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def discard_unwritable_output() -> None:
    """What could not be written, on a full disk say, is not tried once more when the process ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
