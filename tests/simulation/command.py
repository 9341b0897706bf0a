"""The command: runs many schedules on all cores with a progress bar, shrinks failures, or replays one schedule."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.simulation.cluster_schedule import cluster_schedule_for_seed, shrink_cluster_schedule
from tests.simulation.cluster_simulation import simulate_cluster
from tests.simulation.expected import EXPECTED_VIOLATIONS
from tests.simulation.generator import schedule_for_seed
from tests.simulation.invariants import Violation
from tests.simulation.schedule import Schedule
from tests.simulation.shrinking import shrink
from tests.simulation.simulation import SimulationResult, simulate

SEEDS_PER_TASK = 25
MAX_SHRUNK_RULES = 5  # failures of this many different rules are shrunk
OUTPUT = Console(width=None if sys.stdout.isatty() else 140, highlight=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """The outcome of some schedules: failures by seed, and the sum of what was counted."""

    failures: dict[int, Violation]  # the first violation of each failing seed
    expected: Counter[str]  # violations that are expected for now, by rule
    counts: Counter[str]


@dataclass
class RunTotals:
    """The sums over all schedules of a run."""

    schedules: int = 0
    failures: dict[int, Violation] = field(default_factory=dict)
    expected: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, batch: Batch, schedules: int) -> None:
        """Add the outcome of this many schedules."""
        self.schedules += schedules
        self.failures |= batch.failures
        self.expected += batch.expected
        self.counts += batch.counts


def unexpected_violations(result: SimulationResult) -> list[Violation]:
    """Return the violations of rules that should hold today."""
    return [each for each in result.violations if each.rule not in EXPECTED_VIOLATIONS]


def run_seeds(seeds: list[int]) -> Batch:
    """Run the schedules of these seeds, one after the other."""
    failures: dict[int, Violation] = {}
    expected, counts = Counter[str](), Counter[str]()
    for seed in seeds:
        result = simulate(schedule_for_seed(seed))
        counts += result.counts
        expected.update({each.rule for each in result.violations if each.rule in EXPECTED_VIOLATIONS})
        if unexpected := unexpected_violations(result):
            failures[seed] = unexpected[0]
    return Batch(failures, expected, counts)


def run_cluster_seeds(seeds: list[int]) -> Batch:
    """Run the schedules of clusters of these seeds, one after the other."""
    logging.disable(logging.ERROR)  # nodes would log what the schedules do to them
    failures: dict[int, Violation] = {}
    counts = Counter[str]()
    for seed in seeds:
        result = simulate_cluster(cluster_schedule_for_seed(seed))
        counts += result.counts
        if result.violations:
            failures[seed] = result.violations[0]
    return Batch(failures, Counter(), counts)


def run_schedules(first: int, count: int, jobs: int, run: Callable[[list[int]], Batch] = run_seeds) -> RunTotals:
    """Run the schedules of `count` seeds from `first` on in parallel, with a progress bar."""
    totals = RunTotals()
    seeds = iter(range(first, first + count))
    batches = iter(lambda: list(islice(seeds, SEEDS_PER_TASK)), [])
    progress = Progress(
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.1f} seeds/s"),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
        console=OUTPUT,
    )
    began = time.monotonic()
    with ProcessPoolExecutor(jobs) as pool, progress:
        bar = progress.add_task("", total=count, rate=0.0, failed=0)
        running: dict[Future[Batch], int] = {}
        for batch in islice(batches, jobs * 2):
            running[pool.submit(run, batch)] = len(batch)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                totals.add(future.result(), running.pop(future))
                if (more := next(batches, None)) is not None:
                    running[pool.submit(run, more)] = len(more)
            rate = totals.schedules / (time.monotonic() - began)
            progress.update(bar, completed=totals.schedules, rate=rate, failed=len(totals.failures))
    return totals


def print_summary(totals: RunTotals, first: int) -> None:
    """Print what was simulated, and which rules did not hold, in tables."""
    table = Table(title=f"{totals.schedules} schedules, seeds {first} to {first + totals.schedules - 1}")
    table.add_column("what")
    table.add_column("count", justify="right")
    for what, number in sorted(totals.counts.items()):
        table.add_row(what, f"{number:,}")
    table.add_row("failed schedules", f"{len(totals.failures):,}")
    OUTPUT.print(table)
    if not totals.failures and not totals.expected:
        return
    rules = Table(title="rules that did not hold")
    for name in ("rule", "schedules", "first seed"):
        rules.add_column(name)
    by_rule: dict[str, list[int]] = {}
    for seed, violation in sorted(totals.failures.items()):
        by_rule.setdefault(violation.rule, []).append(seed)
    for rule, seeds in by_rule.items():
        rules.add_row(rule, str(len(seeds)), str(seeds[0]))
    for rule, number in totals.expected.items():
        rules.add_row(f"{rule} (expected for now)", str(number), "")
    OUTPUT.print(rules)


def shrink_failure(schedule: Schedule, rule: str) -> Schedule:
    """Return a small schedule that breaks the same rule."""
    return shrink(schedule, lambda each: any(violation.rule == rule for violation in simulate(each).violations))


def print_failure(schedule: Schedule, violation: Violation, folder: Path) -> None:
    """Shrink a failing schedule, print it, and write it to a file for a replay."""
    OUTPUT.print(f"\nseed {schedule.seed}: {violation.rule}", style="bold", markup=False)
    OUTPUT.print(violation.text[:2000], markup=False)
    small = shrink_failure(schedule, violation.rule)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{schedule.seed}.json"
    path.write_bytes(small.to_json())
    OUTPUT.print(f"shrunk from {len(schedule.operations)} to {len(small.operations)} operations, in {path}:")
    for line in small.describe():
        OUTPUT.print(f"  {line}", markup=False)
    OUTPUT.print(f"replay: make simulate SEED={schedule.seed}, or make simulate SCHEDULE={path}")


def replay(schedule: Schedule) -> bool:
    """Run one schedule and print its trace; returns whether every rule held."""
    for line in schedule.describe():
        OUTPUT.print(line, markup=False)
    result = simulate(schedule)
    for line in result.trace:
        OUTPUT.print(line, markup=False, soft_wrap=True)
    for violation in result.violations:
        OUTPUT.print(f"{violation.rule}: {violation.text}", style="bold", markup=False, soft_wrap=True)
    OUTPUT.print(f"seed {schedule.seed}: {len(result.violations)} violations, digest {result.digest[:16]}")
    return not unexpected_violations(result)


def replay_cluster(seed: int) -> bool:
    """Run the schedule of a cluster and print its trace; shrink it if a rule did not hold."""
    logging.disable(logging.ERROR)
    schedule = cluster_schedule_for_seed(seed)
    result = simulate_cluster(schedule)
    for line in result.trace:
        OUTPUT.print(line, markup=False, soft_wrap=True)
    if result.violations:
        rule = result.violations[0].rule
        small = shrink_cluster_schedule(
            schedule, lambda each: any(found.rule == rule for found in simulate_cluster(each).violations)
        )
        for line in small.describe():
            OUTPUT.print(f"  {line}", markup=False, soft_wrap=True)
    for violation in result.violations:
        OUTPUT.print(f"{violation.rule}: {violation.text}", style="bold", markup=False, soft_wrap=True)
    OUTPUT.print(f"seed {seed}: {len(result.violations)} violations")
    return not result.violations


@click.command()
@click.option("--schedules", type=int, default=1000, show_default=True, help="Run this many schedules.")
@click.option("--first", type=int, help="Use the seeds from this one on; otherwise from a random one on.")
@click.option("--seed", type=int, help="Replay the schedule of this seed and print its trace.")
@click.option("--schedule", type=click.Path(exists=True, path_type=Path), help="Replay the schedule in this file.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Use this many processes.")
@click.option(
    "--folder", default=Path(".simulation"), type=click.Path(path_type=Path), help="Write failing schedules there."
)
@click.option("--cluster", is_flag=True, help="Simulate clusters: control nodes, host nodes and a lossy bus.")
def main(
    schedules: int,
    first: int | None,
    seed: int | None,
    schedule: Path | None,
    jobs: int,
    folder: Path,
    cluster: bool,
) -> None:
    """Simulate the service with crashes in virtual time. Exits with 1 if a rule did not hold."""
    if cluster and seed is not None:
        sys.exit(0 if replay_cluster(seed) else 1)
    if seed is not None or schedule is not None:
        chosen = Schedule.from_file(schedule) if schedule is not None else schedule_for_seed(seed or 0)
        sys.exit(0 if replay(chosen) else 1)
    if schedules < 1:
        raise click.ClickException(f"SCHEDULES is {schedules}, so nothing would run: give 1 or more")
    first = random.SystemRandom().randrange(10**9) if first is None else first
    kind = "OF=clusters " if cluster else ""
    OUTPUT.print(f"seeds from {first} on; the same run again: make simulate {kind}FIRST={first} SCHEDULES={schedules}")
    totals = run_schedules(first, schedules, jobs, run_cluster_seeds if cluster else run_seeds)
    shrunk: set[str] = set()
    for failed, violation in sorted(totals.failures.items()):
        if cluster:
            OUTPUT.print(
                f"{violation.rule}: {violation.text}\nreplay: make simulate OF=clusters SEED={failed}", markup=False
            )
        elif violation.rule not in shrunk and len(shrunk) < MAX_SHRUNK_RULES:
            shrunk.add(violation.rule)
            print_failure(schedule_for_seed(failed), violation, folder)
    print_summary(totals, first)
    if totals.failures:
        OUTPUT.print(f"failed seeds: {', '.join(map(str, sorted(totals.failures)[:50]))}")
    sys.exit(1 if totals.failures else 0)
