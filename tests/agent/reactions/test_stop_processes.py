"""Real processes are ended with their groups, and only those that were specified."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.model import StepOutcome
from forewarn.agent.reactions.processes import find_process, remaining_processes, send_signal, signal_and_wait
from tests.support.reaction_harness import ReactionHarness

PROGRAM = """
import os, signal, subprocess, sys, time
_, folder, manner, name = sys.argv
if manner == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if name == "parent":
    subprocess.Popen([sys.executable, __file__, folder, manner, "child"])
open(f"{folder}/{name}.new", "w").write(str(os.getpid()))
os.rename(f"{folder}/{name}.new", f"{folder}/{name}.pid")
time.sleep(300)
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process with a child in its own group; both are up when this returns."""
    (tmp_path / "program.py").write_text(PROGRAM)
    started: list[subprocess.Popen[bytes]] = []

    def run(behaviour: str = "plain", *, leads: bool = True) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), behaviour, "parent"]
        started.append(subprocess.Popen(command, start_new_session=leads))
        while not ((tmp_path / "parent.pid").exists() and (tmp_path / "child.pid").exists()):
            assert started[-1].poll() is None
        return started[-1]

    yield run
    for child in started:
        child.kill()
        child.wait(60)
    if (tmp_path / "child.pid").exists() and find_process(pid := int((tmp_path / "child.pid").read_text())):
        os.kill(pid, 9)


def make_reaction(tmp_path: Path, **options: Any) -> ReactionHarness:
    return ReactionHarness("stop-processes", options or {"pid_file": str(tmp_path / "parent.pid")}, tmp_path / "case")


def child_of(tmp_path: Path) -> int:
    return int((tmp_path / "child.pid").read_text())


def test_a_process_ends_with_its_group(start: Start, tmp_path: Path) -> None:
    process = start()
    processes = make_reaction(tmp_path)
    assert asyncio.run(processes.check()) is False
    assert asyncio.run(processes.do()) == StepOutcome(ok=True, text=f"process {process.pid} ended")
    assert find_process(child_of(tmp_path)) is None
    assert asyncio.run(processes.check()) is True
    assert asyncio.run(processes.do()) == StepOutcome(ok=True, text="no such process is running")


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(start: Start, tmp_path: Path) -> None:
    process = start("stubborn")
    outcome = asyncio.run(make_reaction(tmp_path, pid_file=str(tmp_path / "parent.pid"), grace="200ms").do())
    assert outcome.ok
    assert outcome.text.startswith(f"process {process.pid} ended, processes ")
    assert outcome.text.endswith(" by SIGKILL after 0.2 s")
    assert find_process(child_of(tmp_path)) is None


def test_the_grace_period_ends_within_the_steps_time(start: Start, tmp_path: Path) -> None:
    start("stubborn")
    outcome = asyncio.run(make_reaction(tmp_path, pid_file=str(tmp_path / "parent.pid"), grace="10m").do(within_s=1))
    assert outcome.ok
    assert find_process(child_of(tmp_path)) is None


def test_a_process_in_another_group_ends_alone(start: Start, tmp_path: Path) -> None:
    """Its group is that of these tests, which continue."""
    process = start(leads=False)
    assert asyncio.run(make_reaction(tmp_path).do()).text == f"process {process.pid} ended"
    assert find_process(child_of(tmp_path))


def test_a_group_whose_leader_has_a_reused_pid_gets_no_signal(start: Start, tmp_path: Path) -> None:
    leader = find_process(start().pid)
    assert leader is not None
    earlier = replace(leader, start_ticks=leader.start_ticks - 1)  # a process that had the pid before
    send_signal(earlier, signal.SIGKILL)
    assert remaining_processes([earlier]) == []
    assert find_process(leader.pid) == leader
    assert find_process(child_of(tmp_path))


def test_a_group_is_ended_although_its_leader_has_ended(start: Start, tmp_path: Path) -> None:
    process = start()
    leader = find_process(process.pid)
    assert leader is not None
    process.kill()
    process.wait(60)
    assert asyncio.run(signal_and_wait([leader], signal.SIGKILL, 30))
    assert find_process(child_of(tmp_path)) is None


def test_processes_are_found_by_their_exact_command(start: Start, tmp_path: Path) -> None:
    process = start()
    command = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    assert asyncio.run(make_reaction(tmp_path, command=command[:-1]).do()).text == "no such process is running"
    exe = os.readlink(f"/proc/{process.pid}/exe")
    assert (
        asyncio.run(make_reaction(tmp_path, command=command, exe="/bin/true").do()).text == "no such process is running"
    )
    assert (
        asyncio.run(make_reaction(tmp_path, command=command, user="nobody").do()).text == "no such process is running"
    )
    assert asyncio.run(make_reaction(tmp_path, command=command, exe=exe).do()).text == f"process {process.pid} ended"


@pytest.mark.parametrize("text", ["", "x", "1", "0", "-1", "999999999"])
def test_an_invalid_pid_file_ends_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "parent.pid").write_text(text)
    assert asyncio.run(make_reaction(tmp_path).do()).text == "no such process is running"


def test_a_pid_file_that_is_older_than_the_process_is_ignored(start: Start, tmp_path: Path) -> None:
    process = start()
    os.utime(tmp_path / "parent.pid", (1_000_000_000, 1_000_000_000))
    assert asyncio.run(make_reaction(tmp_path).do()).text == "no such process is running"
    assert process.poll() is None


def test_the_agent_never_ends_itself(tmp_path: Path) -> None:
    (tmp_path / "parent.pid").write_text(str(os.getpid()))
    assert asyncio.run(make_reaction(tmp_path).do()).text == "no such process is running"


def test_stopped_processes_are_started_again(start: Start, tmp_path: Path) -> None:
    start()
    started = tmp_path / "started"
    processes = make_reaction(tmp_path, pid_file=str(tmp_path / "parent.pid"), start=["touch", str(started)])
    asyncio.run(processes.do())
    assert asyncio.run(processes.undo()).ok
    assert started.exists()


def test_processes_that_did_not_run_are_not_started(tmp_path: Path) -> None:
    processes = make_reaction(tmp_path, pid_file=str(tmp_path / "parent.pid"), start=["false"])
    asyncio.run(processes.do())
    assert asyncio.run(processes.undo()) == StepOutcome(ok=True, text="nothing to undo")


def test_several_processes_that_are_running_again_are_reported_in_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import time; time.sleep(300)  # {tmp_path}"]
    processes = make_reaction(tmp_path, command=command, start=["false"])
    with subprocess.Popen(command):
        assert asyncio.run(processes.do()).ok
    with subprocess.Popen(command) as one, subprocess.Popen(command) as two:
        try:
            text = asyncio.run(processes.undo()).text
        finally:
            one.kill()
            two.kill()
    assert text in [f"processes {a.pid}, {b.pid} are already running again" for a, b in ((one, two), (two, one))]


def test_a_process_that_is_running_again_is_not_started_twice(start: Start, tmp_path: Path) -> None:
    start()
    processes = make_reaction(tmp_path, pid_file=str(tmp_path / "parent.pid"), start=["false"])
    asyncio.run(processes.do())
    for name in ("parent", "child"):
        (tmp_path / f"{name}.pid").unlink()
    again = start()
    assert asyncio.run(processes.undo()) == StepOutcome(ok=True, text=f"process {again.pid} is already running again")
