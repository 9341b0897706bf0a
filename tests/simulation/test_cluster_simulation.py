"""Simulated clusters keep every rule, planted faults are found, runs can be repeated, and failures shrink."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec
import pytest

from tests.simulation.cluster_schedule import (
    ClusterSchedule,
    TakeOver,
    cluster_schedule_for_seed,
    shrink_cluster_schedule,
)
from tests.simulation.cluster_simulation import (
    CATCHES_UP,
    EFFECT_ONCE,
    NEVER_BACK,
    TERMS_GROW,
    PlantedFault,
    simulate_cluster,
)
from tests.simulation.test_simulation import run_command

FIXED_SCHEDULES = 24  # takes about 8 s on one core
SEEDS_TO_FIND_A_FAULT = 60
# What finds each planted fault, and a seed from which it is found soon.
PLANTED = {
    PlantedFault.NO_VERSION_RULE: ({NEVER_BACK, CATCHES_UP}, 0),
    PlantedFault.LEDGER_FORGOTTEN: ({EFFECT_ONCE}, 0),
    PlantedFault.TERMS_IGNORED: ({TERMS_GROW}, 24),
    PlantedFault.PUBLISHED_FIRST: ({NEVER_BACK}, 0),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Let nodes not log what the schedules do to them."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, FIXED_SCHEDULES, 6))
def test_fixed_schedules_of_clusters_keep_every_rule(first: int) -> None:
    for seed in range(first, first + 6):
        result = simulate_cluster(cluster_schedule_for_seed(seed))
        assert not result.violations, f"make simulate OF=clusters SEED={seed}: {result.violations[0]}"
        assert result.counts["polls"] > 10


def rule_that_finds(fault: PlantedFault, first: int) -> str:
    for seed in range(first, first + SEEDS_TO_FIND_A_FAULT):
        if violations := simulate_cluster(cluster_schedule_for_seed(seed), fault).violations:
            return violations[0].rule
    return ""


@pytest.mark.parametrize("fault", PlantedFault)
def test_every_planted_fault_of_a_cluster_is_found(fault: PlantedFault) -> None:
    expected, first = PLANTED[fault]
    assert rule_that_finds(fault, first) in expected


def test_a_schedule_of_a_cluster_gives_the_same_run_again() -> None:
    one, other = (simulate_cluster(cluster_schedule_for_seed(4)) for _ in range(2))
    assert (one.counts, one.trace) == (other.counts, other.trace)


def test_a_schedule_of_a_cluster_is_the_same_after_a_file() -> None:
    schedule = cluster_schedule_for_seed(9)
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=ClusterSchedule) == schedule


def test_a_failing_schedule_of_a_cluster_shrinks_to_the_operations_that_matter() -> None:
    long = cluster_schedule_for_seed(26)

    def fails(candidate: ClusterSchedule) -> bool:
        return bool(simulate_cluster(candidate, PlantedFault.TERMS_IGNORED).violations)

    small = shrink_cluster_schedule(long, fails)
    assert fails(small)
    assert len(small.operations) < len(long.operations)
    assert TakeOver in {type(operation) for operation in small.operations}


def test_the_command_runs_schedules_of_clusters_and_replays_one() -> None:
    done = run_command("--cluster", "--first", "30", "--schedules", "2", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "make simulate OF=clusters FIRST=30 SCHEDULES=2" in done.stdout
    assert "messages delivered" in done.stdout
    replayed = run_command("--cluster", "--seed", "30")
    assert replayed.returncode == 0
    assert replayed.stdout.splitlines()[-1] == "seed 30: 0 violations"
