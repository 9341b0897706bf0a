"""Simulated schedules keep every rule, runs can be repeated exactly, and failures shrink."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.core.fleet import HostHealth
from forewarn.core.request import RequestedOperation, RolloutImpact
from tests.simulation.command import unexpected_violations
from tests.simulation.generator import schedule_for_seed
from tests.simulation.schedule import (
    AdvanceClock,
    ApproveAsVm,
    AskForVms,
    BreakHost,
    CrashAgent,
    CrashService,
    Operation,
    Poll,
    RollOut,
    Schedule,
    SimulationSettings,
    StartAgent,
    Wait,
)
from tests.simulation.shrinking import shrink
from tests.simulation.simulation import simulate
from tests.support.world import a_host, a_vm

ROOT = Path(__file__).parents[2]
SCHEDULES = Path(__file__).parent / "schedules"  # shrunk failures of the past
FIXED_SCHEDULES = 300  # takes about 12 s on one core
SERVICE_CRASH_POINTS = 40
AGENT_CRASH_POINTS = 45


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    line = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)


def a_schedule(*operations: Operation, **settings: bool) -> Schedule:
    vms = (
        a_vm("a_0", availability_set="set", host="h1", address="10.0.0.1"),
        a_vm("a_1", availability_set="set", host="h2", update_domain=1, address="10.0.0.2"),
        a_vm("b_0", host="h1", address="10.0.0.3"),
    )
    hosts = (a_host("h1"), a_host("h2"), a_host("h3"))
    return Schedule(seed=1, settings=SimulationSettings(**settings), hosts=hosts, vms=vms, operations=operations)


def test_fixed_schedules_keep_every_rule(tmp_path: Path) -> None:
    done = run_command("--first", "0", "--schedules", str(FIXED_SCHEDULES), "--jobs", "1", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_prints_the_command_that_repeats_it(tmp_path: Path) -> None:
    done = run_command("--first", "7", "--schedules", "1", "--jobs", "1", "--folder", str(tmp_path))
    assert "the same run again: make simulate FIRST=7 SCHEDULES=1\n" in done.stdout


@pytest.mark.parametrize("count", ["0", "-3"])
def test_a_run_of_no_schedules_is_refused_in_one_sentence(count: str) -> None:
    done = run_command("--schedules", count)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: SCHEDULES is {count}, so nothing would run: give 1 or more\n"


@pytest.mark.parametrize("path", sorted(SCHEDULES.glob("*.json")), ids=lambda path: path.stem)
def test_schedules_that_once_failed_keep_every_rule(path: Path) -> None:
    result = simulate(Schedule.from_file(path))
    assert not unexpected_violations(result), result.trace


@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_gives_the_same_run_in_every_process(seed: int) -> None:
    one, other = (run_command("--seed", str(seed)) for _ in range(2))
    assert one.stdout == other.stdout
    assert f"seed {seed}: " in one.stdout.splitlines()[-1]


def test_a_schedule_gives_the_same_run_again_in_one_process() -> None:
    schedule = schedule_for_seed(5)
    assert simulate(schedule).trace == simulate(schedule).trace


@pytest.mark.parametrize("seed", range(5))
def test_a_schedule_in_a_file_is_the_same_schedule(seed: int, tmp_path: Path) -> None:
    schedule = schedule_for_seed(seed)
    (tmp_path / "schedule.json").write_bytes(schedule.to_json())
    assert Schedule.from_file(tmp_path / "schedule.json") == schedule


@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
def test_the_service_may_die_at_any_write_and_any_act(sqlite: bool) -> None:
    """A rollout over two update domains and a host failure, killed at every crash point in turn."""
    crashes = 0
    for points in range(0, SERVICE_CRASH_POINTS, 4 if sqlite else 1):
        schedule = a_schedule(
            CrashService(points=points, down_s=0.1),
            RollOut(impact=RolloutImpact.UPDATE, hosts=(0, 1), notice_s=5.0, short_notice=True),
            AskForVms(operation=RequestedOperation.REDEPLOY, vms=(2,)),
            ApproveAsVm(event=0, all_of_scope=True),
            AdvanceClock(seconds=301.0),
            sqlite=sqlite,
        )
        result = simulate(schedule)
        assert not unexpected_violations(result), result.trace
        crashes += result.counts["service crashes"]
    assert crashes > SERVICE_CRASH_POINTS // (8 if sqlite else 2)


def test_an_agent_may_die_at_any_write_and_any_reaction() -> None:
    crashes = 0
    for points in range(AGENT_CRASH_POINTS):
        schedule = a_schedule(
            StartAgent(vm=2),
            CrashAgent(agent=0, points=points, down_s=0.1),
            AskForVms(operation=RequestedOperation.RESTART, vms=(2,)),
            Wait(seconds=30.0),
            AdvanceClock(seconds=901.0),
        )
        result = simulate(schedule)
        assert not unexpected_violations(result), result.trace
        crashes += result.counts["agent crashes"]
    assert crashes > AGENT_CRASH_POINTS // 2


def test_an_agent_approves_over_the_simulated_network() -> None:
    schedule = a_schedule(
        StartAgent(vm=2),
        Wait(seconds=1.0),
        AskForVms(operation=RequestedOperation.REDEPLOY, vms=(2,)),
        Wait(seconds=60.0),
    )
    result = simulate(schedule)
    assert not result.violations
    assert any("approved" in line and "b_0" in line for line in result.trace)


def test_a_poll_during_a_crash_is_refused_and_later_answered() -> None:
    result = simulate(a_schedule(CrashService(points=0, down_s=5.0), Poll(vm=0), Wait(seconds=10.0), Poll(vm=0)))
    assert not result.violations


def test_a_failing_schedule_shrinks_to_the_operations_that_matter() -> None:
    schedule = schedule_for_seed(1)
    crash, failure = CrashService(points=7, down_s=700.0), BreakHost(host=3, health=HostHealth.FAILED)
    half = len(schedule.operations) // 2
    operations = (*schedule.operations[:half], crash, *schedule.operations[half:], failure)
    long = Schedule(seed=1, settings=schedule.settings, hosts=schedule.hosts, vms=schedule.vms, operations=operations)

    def fails(candidate: Schedule) -> bool:
        kinds = [type(each) for each in candidate.operations]
        return CrashService in kinds and BreakHost in kinds[kinds.index(CrashService) :]

    small = shrink(long, fails)
    assert [type(each) for each in small.operations] == [CrashService, BreakHost]
    assert small.vms == ()
    assert small.settings == SimulationSettings()
