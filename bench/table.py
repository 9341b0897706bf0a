"""The table that people read."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from bench.figure import Figure
from bench.result import Result
from bench.target import Verdict

_STYLES = {
    Verdict.REACHED: "green",
    Verdict.AS_EXPECTED: "green",
    Verdict.MISSED: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.BELOW: "yellow",
    Verdict.ABSENT: "yellow",
}


def table(result: Result) -> Table:
    shown = Table(title="forewarn in figures" + (" (a smoke run: they prove nothing)" if result.is_quick else ""))
    shown.add_column("figure")
    shown.add_column("measured", justify="right")
    shown.add_column("must reach", justify="right")
    shown.add_column("verdict")
    for figure in result.figures:
        verdict = Text(str(figure.verdict), style=_STYLES.get(figure.verdict, ""))
        shown.add_row(_what(figure), figure.words, figure.target.words, verdict)
    return shown


def _what(figure: Figure) -> Text:
    text = Text(figure.target.what)
    if figure.note:
        text.append(f"\n{figure.note}", style="dim")
    return text
