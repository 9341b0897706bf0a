"""The reaction `command`: its input, its outcome, and that no process outlives its time."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.model import StepOutcome
from forewarn.agent.reactions import processes
from forewarn.agent.reactions.child_process import MAX_LOG_BYTES
from tests.support.reaction_harness import SAMPLE_EVENT, ReactionHarness

SLACK_S = 30.0  # for a busy machine
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"])
open(f"{os.environ['FOREWARN_FOLDER']}/{len(sys.argv)}.pid", "w").write(str(os.getpid()))
time.sleep(300)
"""


KILLED = """
import asyncio, pathlib, sys
from tests.support.reaction_harness import ReactionHarness
folder, *run = sys.argv[1:]
asyncio.run(ReactionHarness("command", {"run": run}, pathlib.Path(folder)).do())
"""


@pytest.fixture
def stubborn(tmp_path: Path) -> list[str]:
    """A command that ignores SIGTERM, with a child that does too."""
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    return ["python3", str(script)]


def do(run: Any, folder: Path, **facts: Any) -> StepOutcome:
    return asyncio.run(ReactionHarness("command", {"run": run}, folder / "case").do(**facts))


async def wait_for_files(*files: Path) -> None:
    async with asyncio.timeout(30):
        while not all(file.exists() and file.read_text() for file in files):
            await asyncio.sleep(0.01)


async def wait_for_end_of(pid: int) -> None:
    async with asyncio.timeout(30):
        while processes.find_process(pid):
            await asyncio.sleep(0.01)


def test_a_command_has_the_event_in_its_environment(tmp_path: Path) -> None:
    outcome = do("env > $FOREWARN_FOLDER/out.txt", tmp_path, within_s=20)
    event = dict(line.split("=", 1) for line in (tmp_path / "case/out.txt").read_text().splitlines() if "=" in line)
    assert outcome == StepOutcome(ok=True, text="exit status 0")
    assert event["FOREWARN_EVENT_ID"] == SAMPLE_EVENT.id
    assert event["FOREWARN_KIND"] == "Reboot"
    assert event["FOREWARN_STATUS"] == "Scheduled"
    assert event["FOREWARN_VM"] == event["FOREWARN_RESOURCES"] == "web-0"
    assert event["FOREWARN_NOT_BEFORE"] == "Mon, 19 Sep 2016 18:42:50 GMT"
    assert 18 <= int(event["FOREWARN_LEFT_S"]) <= 20
    assert event["FOREWARN_PHASE"] == "do"
    assert event["FOREWARN_STEP"] == "command"
    assert event["FOREWARN_DURATION_S"] == "-1"


def test_a_command_has_the_event_as_json_on_its_standard_input(tmp_path: Path) -> None:
    do(["/bin/sh", "-c", "cat > $FOREWARN_FOLDER/in.json"], tmp_path)
    event = json.loads((tmp_path / "case/in.json").read_text())
    assert event["EventId"] == SAMPLE_EVENT.id
    assert event["Resources"] == ["web-0"]
    assert (event["Vm"], event["Phase"], event["Step"]) == ("web-0", "do", "command")


def test_no_text_of_a_server_prevents_a_command_from_running(tmp_path: Path) -> None:
    outcome = do(["true"], tmp_path, id="a\0b\ud800", description="\0" + "ä" * 500_000)
    assert outcome.ok


@pytest.mark.parametrize(
    ("run", "text"),
    [
        pytest.param(["false"], "exit status 1; its output is in FOLDER/do.log", id="fails"),
        pytest.param("exit 7", "exit status 7; its output is in FOLDER/do.log", id="a line for the shell"),
        pytest.param("kill -9 $$", "'/bin/sh' was terminated by SIGKILL", id="ended by a signal"),
        pytest.param(["/no/such"], "'/no/such' cannot be run: No such file or directory", id="not there"),
    ],
)
def test_a_failed_command_is_reported_with_its_status(tmp_path: Path, run: Any, text: str) -> None:
    assert do(run, tmp_path) == StepOutcome(ok=False, text=text.replace("FOLDER", str(tmp_path / "case")))


def test_output_is_kept_up_to_a_limit_and_never_blocks_the_command(tmp_path: Path) -> None:
    outcome = do(f"echo first; head -c {MAX_LOG_BYTES * 3} /dev/zero; echo last >&2", tmp_path)
    log = (tmp_path / "case/do.log").read_bytes()
    assert outcome.ok
    assert log.startswith(b"first\n")
    assert len(log) == MAX_LOG_BYTES


def test_a_command_may_leave_a_process_running(tmp_path: Path) -> None:
    """The process holds the output pipe, but the step ends."""
    outcome = do("sleep 60 & echo $! > $FOREWARN_FOLDER/left.pid", tmp_path)
    left = int((tmp_path / "case/left.pid").read_text())
    try:
        assert outcome.ok
        assert processes.find_process(left)
    finally:
        os.kill(left, 9)


def test_when_its_time_is_over_a_command_gets_sigterm(tmp_path: Path) -> None:
    outcome = do("trap 'echo tidy; exit 0' TERM; sleep 60 & wait", tmp_path, within_s=4)
    assert outcome == StepOutcome(ok=False, text="'/bin/sh' was terminated: its time was over")
    assert "tidy" in (tmp_path / "case/do.log").read_text()


def test_a_command_that_ignores_sigterm_is_killed_with_its_group_in_time(tmp_path: Path, stubborn: list[str]) -> None:
    async def scenario() -> tuple[StepOutcome, float]:
        began = time.monotonic()
        outcome = await ReactionHarness("command", {"run": stubborn}, tmp_path / "case").do(within_s=10)
        took_s = time.monotonic() - began
        for number in (1, 2):
            await wait_for_end_of(int((tmp_path / f"case/{number}.pid").read_text()))
        return outcome, took_s

    outcome, took_s = asyncio.run(scenario())
    assert outcome == StepOutcome(ok=False, text="'python3' was terminated: its time was over")
    assert took_s < 10 + SLACK_S


def test_a_cancelled_command_ends_with_its_group(tmp_path: Path, stubborn: list[str]) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(ReactionHarness("command", {"run": stubborn}, tmp_path / "case").do())
        pids = [tmp_path / f"case/{number}.pid" for number in (1, 2)]
        await wait_for_files(*pids)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        for file in pids:
            await wait_for_end_of(int(file.read_text()))

    asyncio.run(scenario())


def test_processes_that_left_the_group_end_with_the_command(tmp_path: Path) -> None:
    escaped = "echo $$ > $FOREWARN_FOLDER/pid; exec sleep 300"

    async def scenario() -> None:
        running = asyncio.create_task(reaction.do())
        await wait_for_files(pid)
        running.cancel()
        await asyncio.wait([running])
        assert processes.find_process(int(pid.read_text())) is None

    reaction, pid = (
        ReactionHarness("command", {"run": f"setsid sh -c '{escaped}' & sleep 300"}, tmp_path),
        tmp_path / "pid",
    )
    asyncio.run(scenario())


def test_a_command_that_outlived_a_killed_agent_is_ended_before_the_step_continues(
    tmp_path: Path, stubborn: list[str]
) -> None:
    """Two of them at once would disturb each other."""
    folder = tmp_path / "case"
    agent = subprocess.Popen([sys.executable, "-c", KILLED, str(folder), *stubborn])
    pids = [folder / "1.pid", folder / "2.pid"]
    asyncio.run(wait_for_files(*pids))
    agent.kill()
    agent.wait()
    command, child = (int(pid.read_text()) for pid in pids)
    assert processes.find_process(command)

    states = f"cat /proc/{command}/status /proc/{child}/status 2>/dev/null | grep State:"
    assert do(f"{states} | grep -v zombie > $FOREWARN_FOLDER/seen; true", tmp_path).ok
    assert (folder / "seen").read_text() == ""


def test_the_undo_command_undoes_the_command(tmp_path: Path) -> None:
    reaction = ReactionHarness("command", {"run": ["true"], "undo": "echo $FOREWARN_PHASE"}, tmp_path / "case")
    assert asyncio.run(reaction.undo()).ok
    assert (tmp_path / "case/undo.log").read_text() == "undo\n"


def test_a_command_without_an_undo_has_nothing_to_undo(tmp_path: Path) -> None:
    reaction = ReactionHarness("command", {"run": ["true"]}, tmp_path / "case")
    assert asyncio.run(reaction.undo()) == StepOutcome(ok=True, text="nothing to undo")


@pytest.mark.parametrize(
    ("check", "says"),
    [
        pytest.param({"check": ["true"]}, True, id="done"),
        pytest.param({"check": ["false"]}, False, id="not done"),
        pytest.param({"check": ["/no/such"]}, None, id="not there"),
        pytest.param({"check": ["sleep", "60"]}, None, id="too slow"),
        pytest.param({}, None, id="not configured"),
    ],
)
def test_the_check_command_says_whether_the_command_was_done(
    tmp_path: Path, check: dict[str, Any], says: bool | None
) -> None:
    reaction = ReactionHarness("command", {"run": ["true"], **check}, tmp_path / "case")
    assert asyncio.run(reaction.check(within_s=1 if says is None else 30)) is says
