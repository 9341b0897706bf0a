"""A command that outlives a killed agent is ended before the next agent judges a step or begins another."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forewarn.agent.journal import AgentJournal
from forewarn.agent.reactions.processes import (
    RUN_VARIABLE,
    end_all_orphan_processes,
    end_orphan_processes,
    find_process,
    mark_command_process,
    mark_command_run,
    read_run_mark,
)
from forewarn.client.cursor import read_boot_id
from tests.agent.test_faults import ChangingServer, listing
from tests.support.service_process import eventually

FILE = """
vm = "web-0"
endpoint = "ENDPOINT"
state = "FOLDER/state"
listen = ""
[steps.drain]
use = "command"
run = RUN
budget = "10m"
[steps.save]
use = "command"
run = "grep -qs 'State:.[^ZX]' /proc/$(cat FOLDER/pid)/status && echo alive >> FOLDER/log || echo ended >> FOLDER/log"
undo = "echo undone >> FOLDER/log"
budget = "1m"
[[rules]]
steps = ["drain", "save"]
"""
HANGING = "echo $$ > FOLDER/pid.new; mv FOLDER/pid.new FOLDER/pid; exec sleep 600"
COMMANDS = {
    "command": f"'{HANGING}'",
    "without its environment": f"""['env', '-i', 'PATH=/usr/bin:/bin', 'sh', '-c', '{HANGING}']""",
    "without its input": f"'exec < /dev/null; {HANGING}'",
    "in another group": f"""["sh", "-c", "setsid sh -c '{HANGING}' & sleep 600"]""",
}


class Agent:
    """`python -m forewarn.agent` with a step that hangs in its first run."""

    def __init__(self, folder: Path, endpoint: str, run: str) -> None:
        self.folder, self._file = folder, folder / "agent.toml"
        text = FILE.replace("RUN", run).replace("FOLDER", str(folder)).replace("ENDPOINT", endpoint)
        self._file.write_text(text)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "agent.log").open("ab") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "forewarn.agent", "--config", str(self._file)], stdout=log, stderr=log
            )
        try:
            yield agent
        finally:
            agent.kill()
            agent.wait()

    @property
    def lines(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def states(self) -> list[str]:
        journal = AgentJournal(self.folder / "state" / "journal.db", readonly=True)
        try:
            return [run.state for run in journal.records()[0].step_runs]
        finally:
            journal.close()


@pytest.fixture(autouse=True)
def _end_the_command(tmp_path: Path) -> Iterator[None]:
    """Ends the command of a test that failed."""
    yield
    with suppress(FileNotFoundError, ProcessLookupError):
        pid = int((tmp_path / "pid").read_text())
        if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00":
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("run", COMMANDS.values(), ids=COMMANDS)
def test_a_command_of_a_killed_agent_has_ended_when_the_next_step_begins(tmp_path: Path, run: str) -> None:
    with ChangingServer(listing("A")) as server:
        agent = Agent(tmp_path, server.url, run)
        with agent.running():
            eventually((tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        assert find_process(pid), "the command outlives its agent"
        with agent.running():
            eventually(lambda: agent.states() == ["failed", "done"])  # the outcome of the first is not known
        assert agent.lines == ["ended"]
        assert find_process(pid) is None
    assert (
        "a command of step drain outlived the agent that ran it: it is ended now"
        in (tmp_path / "agent.log").read_text()
    )


def test_a_command_of_a_killed_agent_has_ended_when_its_event_is_gone_and_undone(tmp_path: Path) -> None:
    with ChangingServer(listing("A")) as server:
        agent = Agent(tmp_path, server.url, COMMANDS["command"])
        with agent.running():
            eventually((tmp_path / "pid").exists)
        server.current = listing(incarnation=4)
        with agent.running():
            eventually(lambda: agent.states() == ["failed", "done"])
        assert find_process(int((tmp_path / "pid").read_text())) is None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else, in its own session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_process_that_got_the_pid_of_a_command_is_not_ended(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    mark_command_run(tmp_path)
    mark_command_process(tmp_path, sleeper.pid)
    mark = read_run_mark(tmp_path)
    assert mark is not None
    assert mark.command is not None
    ticks = mark.command.start_ticks
    for words in (f"{sleeper.pid} {ticks - 1} {read_boot_id()}", f"{sleeper.pid} {ticks} another-boot"):
        (tmp_path / "running").write_text(f"{mark.run_id} {words}")
        asyncio.run(end_orphan_processes(tmp_path, 0.1))
        assert sleeper.poll() is None
        assert not (tmp_path / "running").exists()


def test_a_command_is_found_by_its_pid_and_start_time(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    mark_command_run(tmp_path)
    mark_command_process(tmp_path, sleeper.pid)
    asyncio.run(end_orphan_processes(tmp_path, 5.0))
    assert sleeper.wait(60) == -signal.SIGTERM


def test_a_mark_without_a_pid_finds_processes_by_their_environment(tmp_path: Path) -> None:
    folder = tmp_path / "E1" / "drain"
    folder.mkdir(parents=True)
    (folder / "running").write_text("0123456789abcdef")
    with subprocess.Popen(["sleep", "600"], env={**os.environ, RUN_VARIABLE: "0123456789abcdef"}) as process:
        asyncio.run(end_all_orphan_processes(tmp_path))
        assert process.wait(60) == -signal.SIGTERM
    assert not (folder / "running").exists()


def test_an_empty_mark_ends_nothing(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    folder = tmp_path / "E1" / "drain"
    folder.mkdir(parents=True)
    (folder / "running").write_text("")
    asyncio.run(end_all_orphan_processes(tmp_path))
    assert sleeper.poll() is None
