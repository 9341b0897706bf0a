"""`python -m bench`: measure, show, write down."""

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
from bench.ground import Ground, Row
from bench.machine import load_average, missing_programs, this_machine
from bench.plot import plot
from bench.process import raise_file_limit
from bench.result import Result, write
from bench.row import ROWS
from bench.table import table

RESULTS = Path(__file__).parent / "results"


@click.command()
@click.option("--quick", is_flag=True, help="A smoke run: every row works, no figure means anything.")
@click.option("--only", multiple=True, type=click.Choice([row.name for row in ROWS]), help="Only this row, or these.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a figure is not reached.")
@click.option("--disk", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Where the stores lie.")
@click.option("--out", type=click.Path(path_type=Path), help="The file of the result; its drawing goes beside it.")
def main(quick: bool, only: tuple[str, ...], strict: bool, disk: Path | None, out: Path | None) -> None:
    """Measure the service from outside, and say which figures are reached."""
    if missing := missing_programs():
        raise click.ClickException(f"{', '.join(missing)} missing: run bench/programs.sh as root, on Debian")
    raise_file_limit()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk) as directory:
        result = _run(console, Path(directory), [row for row in ROWS if not only or row.name in only], quick)
    console.print(table(result))
    path = out or RESULTS / f"{result.at.replace(':', '')}.json"
    write(result, path)
    path.with_suffix(".svg").write_text(plot(result), encoding="utf-8")
    console.print(f"{_verdict(result)}; written to {path} and {path.with_suffix('.svg').name}")
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
        ground = Ground(
            directory=directory,
            is_quick=is_quick,
            tell=lambda what, done, total: progress.update(part, description=what, completed=done, total=total),
        )
        for row in rows:
            progress.reset(part, description=row.name, total=1)
            found = _measured(row, ground)
            ground.seen.update({figure.name: figure for figure in found})
            figures += found
            progress.advance(every)
    return msgspec.structs.replace(result, figures=tuple(figures))


def _measured(row: Row, ground: Ground) -> tuple[Figure, ...]:
    """What the row found; one that fails takes no other with it."""
    try:
        found = row.measured(ground)
    except Exception as error:
        found = failed(row.figures, error)
    for left in ground.directory.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    os.sync()  # or the next row waits for the disk to take what this one wrote
    return tuple(msgspec.structs.replace(figure, load_average=load_average()) for figure in found)


def _verdict(result: Result) -> str:
    counts: dict[str, int] = {}
    for figure in result.figures:
        counts[figure.verdict] = counts.get(figure.verdict, 0) + 1
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _commit() -> str:
    line = ["git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
