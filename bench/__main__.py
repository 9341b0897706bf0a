"""`python -m bench`: measures the rows, prints the table and writes the result."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.figure import Figure, failed
from bench.machine import load_average, missing_programs, this_machine
from bench.plot import plot
from bench.process import raise_file_limit
from bench.result import Result, write_result
from bench.rows import ROWS
from bench.run_context import Row, RunContext
from bench.table import render_table

RESULTS = Path(__file__).parent / "results"


@click.command()
@click.option("--quick", is_flag=True, help="Run every row briefly, to see that it works; the figures mean nothing.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([row.name for row in ROWS]),
    help="Only this row; may be repeated.",
)
@click.option("--strict", is_flag=True, help="Exit with status 1 if a target is not reached.")
@click.option(
    "--disk",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory for the stores, on the disk to measure.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the result to this file, its drawing beside it.")
def main(quick: bool, only: tuple[str, ...], strict: bool, disk: Path | None, out: Path | None) -> None:
    """Measure the service from outside and compare the figures with their targets."""
    if missing := missing_programs():
        raise click.ClickException(f"{', '.join(missing)} missing: run bench/programs.sh as root, on Debian")
    raise_file_limit()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk) as directory:
        result = _run(console, Path(directory), [row for row in ROWS if not only or row.name in only], quick)
    console.print(render_table(result))
    path = out or RESULTS / f"{result.at.replace(':', '')}.json"
    write_result(result, path)
    path.with_suffix(".svg").write_text(plot(result), encoding="utf-8")
    console.print(f"{_summary(result)}; written to {path} and {path.with_suffix('.svg').name}")
    if strict and not result.is_good:
        raise SystemExit(1)


def _run(console: Console, directory: Path, rows: list[Row], is_quick: bool) -> Result:
    result = Result(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        is_quick=is_quick,
        machine=this_machine(directory),
        load_average=load_average(),
    )
    figures: list[Figure] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        every = progress.add_task("all rows", total=len(rows))
        part = progress.add_task("", total=1)
        context = RunContext(
            directory=directory,
            is_quick=is_quick,
            on_progress=lambda description, done, total: progress.update(
                part, description=description, completed=done, total=total
            ),
        )
        for row in rows:
            progress.reset(part, description=row.name, total=1)
            found = _run_row(row, context)
            context.figures.update({figure.name: figure for figure in found})
            figures += found
            progress.advance(every)
    return msgspec.structs.replace(result, figures=tuple(figures))


def _run_row(row: Row, context: RunContext) -> tuple[Figure, ...]:
    """Run a row and clean up after it; a row that fails does not stop the others."""
    try:
        found = row.run(context)
    except Exception as error:
        found = failed(row.figures, error)
    for path in context.directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()  # so that the next row does not wait for the writes of this one
    return tuple(msgspec.structs.replace(figure, load_average=load_average()) for figure in found)


def _summary(result: Result) -> str:
    counts: dict[str, int] = {}
    for figure in result.figures:
        counts[figure.verdict] = counts.get(figure.verdict, 0) + 1
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _commit() -> str:
    line = ["git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
