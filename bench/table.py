"""Renders a result as a table for the terminal."""

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


def render_table(result: Result) -> Table:
    """Return the table of all figures with their targets and verdicts."""
    grid = Table(title="forewarn in figures" + (" (a quick run: they prove nothing)" if result.is_quick else ""))
    grid.add_column("figure")
    grid.add_column("measured", justify="right")
    grid.add_column("must reach", justify="right")
    grid.add_column("verdict")
    for figure in result.figures:
        verdict = Text(str(figure.verdict), style=_STYLES.get(figure.verdict, ""))
        grid.add_row(_title(figure), figure.text, figure.target.text, verdict)
    return grid


def _title(figure: Figure) -> Text:
    text = Text(figure.target.title)
    if figure.note:
        text.append(f"\n{figure.note}", style="dim")
    return text
