"""A command of the user's: what it is told, what it says, and that nothing of it outlives its time."""

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

SLACK_S = 3.0  # of a machine that is busy with something else
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
    """It ignores SIGTERM, and so does its child."""
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    return ["python3", str(script)]


def do(run: Any, folder: Path, **facts: Any) -> StepOutcome:
    return asyncio.run(ReactionHarness("command", {"run": run}, folder / "case").do(**facts))


async def appeared(*files: Path) -> None:
    async with asyncio.timeout(30):
        while not all(file.exists() and file.read_text() for file in files):
            await asyncio.sleep(0.01)


async def vanished(pid: int) -> None:
    async with asyncio.timeout(30):
        while processes.find_process(pid):
            await asyncio.sleep(0.01)


def test_a_command_has_the_event_in_its_environment(tmp_path: Path) -> None:
    outcome = do("env > $FOREWARN_FOLDER/out.txt", tmp_path, within_s=20)
    told = dict(line.split("=", 1) for line in (tmp_path / "case/out.txt").read_text().splitlines() if "=" in line)
    assert outcome == StepOutcome(ok=True, text="exit status 0")
    assert told["FOREWARN_EVENT_ID"] == SAMPLE_EVENT.id
    assert told["FOREWARN_KIND"] == "Reboot"
    assert told["FOREWARN_STATUS"] == "Scheduled"
    assert told["FOREWARN_VM"] == told["FOREWARN_RESOURCES"] == "web-0"
    assert told["FOREWARN_NOT_BEFORE"] == "Mon, 19 Sep 2016 18:42:50 GMT"
    assert 18 <= int(told["FOREWARN_LEFT_S"]) <= 20
    assert told["FOREWARN_PHASE"] == "do"
    assert told["FOREWARN_STEP"] == "command"
    assert told["FOREWARN_DURATION_S"] == "-1"


def test_a_command_has_the_event_as_json_on_its_standard_input(tmp_path: Path) -> None:
    do(["/bin/sh", "-c", "cat > $FOREWARN_FOLDER/in.json"], tmp_path)
    told = json.loads((tmp_path / "case/in.json").read_text())
    assert told["EventId"] == SAMPLE_EVENT.id
    assert told["Resources"] == ["web-0"]
    assert (told["Vm"], told["Phase"], told["Step"]) == ("web-0", "do", "command")


def test_what_a_server_sends_cannot_keep_a_command_from_running(tmp_path: Path) -> None:
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
def test_a_command_that_fails_says_how(tmp_path: Path, run: Any, text: str) -> None:
    assert do(run, tmp_path) == StepOutcome(ok=False, text=text.replace("FOLDER", str(tmp_path / "case")))


def test_what_a_command_writes_is_kept_up_to_a_limit_and_never_stops_it(tmp_path: Path) -> None:
    outcome = do(f"echo first; head -c {MAX_LOG_BYTES * 3} /dev/zero; echo last >&2", tmp_path)
    log = (tmp_path / "case/do.log").read_bytes()
    assert outcome.ok
    assert log.startswith(b"first\n")
    assert len(log) == MAX_LOG_BYTES


def test_a_command_may_leave_something_running(tmp_path: Path) -> None:
    """It holds the pipe that the output goes to, and its step is over all the same."""
    outcome = do("sleep 60 & echo $! > $FOREWARN_FOLDER/left.pid", tmp_path)
    left = int((tmp_path / "case/left.pid").read_text())
    try:
        assert outcome.ok
        assert processes.find_process(left)
    finally:
        os.kill(left, 9)


def test_when_its_time_is_over_a_command_is_asked_to_end(tmp_path: Path) -> None:
    outcome = do("trap 'echo tidy; exit 0' TERM; sleep 60 & wait", tmp_path, within_s=4)
    assert outcome == StepOutcome(ok=False, text="'/bin/sh' was terminated: its time was over")
    assert "tidy" in (tmp_path / "case/do.log").read_text()


def test_a_command_that_does_not_want_to_end_goes_with_its_whole_group_within_its_time(
    tmp_path: Path, stubborn: list[str]
) -> None:
    async def story() -> tuple[StepOutcome, float]:
        began = time.monotonic()
        outcome = await ReactionHarness("command", {"run": stubborn}, tmp_path / "case").do(within_s=2)
        took_s = time.monotonic() - began
        for number in (1, 2):
            await vanished(int((tmp_path / f"case/{number}.pid").read_text()))
        return outcome, took_s

    outcome, took_s = asyncio.run(story())
    assert outcome == StepOutcome(ok=False, text="'python3' was terminated: its time was over")
    assert took_s < 2 + SLACK_S


def test_a_command_that_is_cancelled_goes_with_its_whole_group(tmp_path: Path, stubborn: list[str]) -> None:
    async def story() -> None:
        task = asyncio.create_task(ReactionHarness("command", {"run": stubborn}, tmp_path / "case").do(within_s=2))
        pids = [tmp_path / f"case/{number}.pid" for number in (1, 2)]
        await appeared(*pids)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        for file in pids:
            await vanished(int(file.read_text()))

    asyncio.run(story())


def test_nobody_escapes_the_end_of_a_command_by_leaving_its_group(tmp_path: Path) -> None:
    escaped = "echo $$ > $FOREWARN_FOLDER/pid; exec sleep 300"

    async def story() -> None:
        running = asyncio.create_task(tried.do())
        await appeared(pid)
        running.cancel()
        await asyncio.wait([running])
        assert processes.find_process(int(pid.read_text())) is None

    tried, pid = (
        ReactionHarness("command", {"run": f"setsid sh -c '{escaped}' & sleep 300"}, tmp_path),
        tmp_path / "pid",
    )
    asyncio.run(story())


def test_what_outlived_an_agent_that_was_killed_is_ended_before_the_step_goes_on(
    tmp_path: Path, stubborn: list[str]
) -> None:
    """Two of them at once would be in each other's way."""
    folder = tmp_path / "case"
    agent = subprocess.Popen([sys.executable, "-c", KILLED, str(folder), *stubborn])
    pids = [folder / "1.pid", folder / "2.pid"]
    asyncio.run(appeared(*pids))
    agent.kill()
    agent.wait()
    command, child = (int(pid.read_text()) for pid in pids)
    assert processes.find_process(command)

    states = f"cat /proc/{command}/status /proc/{child}/status 2>/dev/null | grep State:"
    assert do(f"{states} | grep -v zombie > $FOREWARN_FOLDER/seen; true", tmp_path).ok
    assert (folder / "seen").read_text() == ""


def test_a_command_is_undone_by_another(tmp_path: Path) -> None:
    tried = ReactionHarness("command", {"run": ["true"], "undo": "echo $FOREWARN_PHASE"}, tmp_path / "case")
    assert asyncio.run(tried.undo()).ok
    assert (tmp_path / "case/undo.log").read_text() == "undo\n"


def test_a_command_without_an_undo_has_nothing_to_undo(tmp_path: Path) -> None:
    tried = ReactionHarness("command", {"run": ["true"]}, tmp_path / "case")
    assert asyncio.run(tried.undo()) == StepOutcome(ok=True, text="nothing to undo")


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
def test_a_check_tells_whether_the_command_was_done(tmp_path: Path, check: dict[str, Any], says: bool | None) -> None:
    tried = ReactionHarness("command", {"run": ["true"], **check}, tmp_path / "case")
    assert asyncio.run(tried.check(within_s=1)) is says
