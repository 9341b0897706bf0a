"""Processes are ended, real ones: with their groups, and only those that are meant."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.model import StepOutcome
from forewarn.agent.reactions.processes import find_process
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
    """Starts one in a group of its own; it is up with its child when this returns."""
    (tmp_path / "program.py").write_text(PROGRAM)
    made: list[subprocess.Popen[bytes]] = []

    def run(manner: str = "plain", *, leads: bool = True) -> subprocess.Popen[bytes]:
        words = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), manner, "parent"]
        made.append(subprocess.Popen(words, start_new_session=leads))
        while not ((tmp_path / "parent.pid").exists() and (tmp_path / "child.pid").exists()):
            assert made[-1].poll() is None
        return made[-1]

    yield run
    for child in made:
        child.kill()
        child.wait(30)
    if (tmp_path / "child.pid").exists() and find_process(child := int((tmp_path / "child.pid").read_text())):
        os.kill(child, 9)


def tried(tmp_path: Path, **options: Any) -> ReactionHarness:
    return ReactionHarness("stop-processes", options or {"pid_file": str(tmp_path / "parent.pid")}, tmp_path / "case")


def child_of(tmp_path: Path) -> int:
    return int((tmp_path / "child.pid").read_text())


def test_a_process_ends_with_its_group(start: Start, tmp_path: Path) -> None:
    process = start()
    processes = tried(tmp_path)
    assert asyncio.run(processes.check()) is False
    assert asyncio.run(processes.do()) == StepOutcome(ok=True, text=f"process {process.pid} ended")
    assert find_process(child_of(tmp_path)) is None
    assert asyncio.run(processes.check()) is True
    assert asyncio.run(processes.do()) == StepOutcome(ok=True, text="no such process is running")


def test_whoever_ignores_the_request_is_ended_when_the_grace_is_over(start: Start, tmp_path: Path) -> None:
    process = start("stubborn")
    outcome = asyncio.run(tried(tmp_path, pid_file=str(tmp_path / "parent.pid"), grace="200ms").do())
    assert outcome.ok
    assert outcome.text.startswith(f"process {process.pid} ended, processes ")
    assert outcome.text.endswith(" by SIGKILL after 0.2 s")
    assert find_process(child_of(tmp_path)) is None


def test_the_grace_ends_within_the_time_there_is(start: Start, tmp_path: Path) -> None:
    start("stubborn")
    outcome = asyncio.run(tried(tmp_path, pid_file=str(tmp_path / "parent.pid"), grace="10m").do(within_s=1))
    assert outcome.ok
    assert find_process(child_of(tmp_path)) is None


def test_a_process_in_somebody_elses_group_goes_alone(start: Start, tmp_path: Path) -> None:
    """Its group is the one of these tests, which go on."""
    process = start(leads=False)
    assert asyncio.run(tried(tmp_path).do()).text == f"process {process.pid} ended"
    assert find_process(child_of(tmp_path))


def test_processes_are_found_by_their_exact_words(start: Start, tmp_path: Path) -> None:
    process = start()
    words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    assert asyncio.run(tried(tmp_path, command=words[:-1]).do()).text == "no such process is running"
    exe = os.readlink(f"/proc/{process.pid}/exe")
    assert asyncio.run(tried(tmp_path, command=words, exe="/bin/true").do()).text == "no such process is running"
    assert asyncio.run(tried(tmp_path, command=words, user="nobody").do()).text == "no such process is running"
    assert asyncio.run(tried(tmp_path, command=words, exe=exe).do()).text == f"process {process.pid} ended"


@pytest.mark.parametrize("text", ["", "x", "1", "0", "-1", "999999999"])
def test_a_pid_file_that_means_nobody_ends_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "parent.pid").write_text(text)
    assert asyncio.run(tried(tmp_path).do()).text == "no such process is running"


def test_a_pid_file_that_is_older_than_the_process_means_somebody_else(start: Start, tmp_path: Path) -> None:
    process = start()
    os.utime(tmp_path / "parent.pid", (1_000_000_000, 1_000_000_000))
    assert asyncio.run(tried(tmp_path).do()).text == "no such process is running"
    assert process.poll() is None


def test_the_agent_itself_is_never_meant(tmp_path: Path) -> None:
    (tmp_path / "parent.pid").write_text(str(os.getpid()))
    assert asyncio.run(tried(tmp_path).do()).text == "no such process is running"


def test_what_was_stopped_is_started_again(start: Start, tmp_path: Path) -> None:
    start()
    started = tmp_path / "started"
    processes = tried(tmp_path, pid_file=str(tmp_path / "parent.pid"), start=["touch", str(started)])
    asyncio.run(processes.do())
    assert asyncio.run(processes.undo()).ok
    assert started.exists()


def test_what_did_not_run_is_not_started(tmp_path: Path) -> None:
    processes = tried(tmp_path, pid_file=str(tmp_path / "parent.pid"), start=["false"])
    asyncio.run(processes.do())
    assert asyncio.run(processes.undo()) == StepOutcome(ok=True, text="nothing to undo")


def test_what_runs_again_already_is_not_started_twice(start: Start, tmp_path: Path) -> None:
    start()
    processes = tried(tmp_path, pid_file=str(tmp_path / "parent.pid"), start=["false"])
    asyncio.run(processes.do())
    for name in ("parent", "child"):
        (tmp_path / f"{name}.pid").unlink()
    again = start()
    assert asyncio.run(processes.undo()) == StepOutcome(ok=True, text=f"process {again.pid} is already running again")
