"""A lab in the background: `up --detach`, `status`, `down` and `reset`, as commands of a shell script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from forewarn.service.data_directory import running_service_pid
from tests.support.service_process import ServiceProcess, free_port

PATH = "/metadata/scheduledevents?api-version=2020-07-01"


class Script:
    """Runs commands as a shell script does: each a process of its own, without a terminal."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port, self.console = free_port(), free_port()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
        self.env |= {"FOREWARN_DATA": str(data), "FOREWARN_PORT": str(self.port)}
        self.env |= {"FOREWARN_API": f"127.0.0.1:{self.console}"}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "forewarn.cli", *arguments],
            env=self.env,
            cwd=self.data,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=150,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command, and return at once."""
        return subprocess.Popen(
            [sys.executable, "-m", "forewarn.cli", *arguments],
            env=self.env,
            cwd=self.data,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def script(data: Path) -> Iterator[Script]:
    script = Script(data)
    yield script
    script("down")
    assert running_service_pid(data) is None


def events_seen_at(url: str) -> Any:
    with urlopen(Request(url + PATH, headers={"Metadata": "true"}), timeout=60) as answer:
        return json.load(answer)["Events"]


def test_a_lab_in_the_background_serves_its_vms_until_it_is_stopped(script: Script) -> None:
    started = script.json("up", "--detach", "--wait-ready")
    endpoint = started["endpoints"][0]
    script.json("restart", endpoint["vm"])
    assert [event["Resources"] for event in events_seen_at(endpoint["url"])] == [[endpoint["vm"]]]
    again = script("up", "--detach", "--wait-ready", "--json")
    assert json.loads(again.stdout)["pid"] == started["pid"]
    assert f"already (process {started['pid']})" in again.stderr
    status = script.json("status")
    assert (status["pid"], status["endpoints"]) == (started["pid"], started["endpoints"])
    assert f"process {started['pid']}" in " ".join(script("status").stdout.split())
    assert script.json("down") == {"stopped": True, "pid": started["pid"], "data": str(script.data), "pending": 1}
    assert script("status").returncode == 3
    assert script("down").stdout == f"No service runs in {script.data}.\n"


def test_without_waiting_the_command_names_process_and_log(script: Script) -> None:
    answer = script.json("up", "--detach")
    assert Path(answer["log"]).exists()
    assert "The lab is starting" not in script("up", "--wait-ready").stdout
    assert script.json("up", "--detach", "--wait-ready")["pid"] == answer["pid"]  # also while it is starting
    assert script.json("down")["pid"] == answer["pid"]


@pytest.mark.parametrize("options", [["--wait-ready"], []], ids=["wait-ready", "at-once"])
def test_of_two_commands_at_once_one_starts_the_lab_and_the_other_finds_it(
    script: Script, data: Path, options: list[str]
) -> None:
    commands = [script.start("up", "--detach", *options, "--json") for _ in range(2)]
    answers = [command.communicate(timeout=150) for command in commands]
    assert [command.returncode for command in commands] == [0, 0], answers
    pid = running_service_pid(data)
    assert {json.loads(output)["pid"] for output, _ in answers} == {pid}
    sentence = f"a lab runs in {data} already (process {pid}); it was not started again"
    assert sorted(messages.strip().endswith(sentence) for _, messages in answers) == [False, True]
    assert json.loads((data / "detached.json").read_text())["pid"] == pid
    assert script.json("status")["pid"] == pid
    assert script.json("reset", "--yes")["service"]["pid"] == running_service_pid(data) != pid


def test_a_lab_that_another_service_kept_from_starting_leaves_the_files_of_the_lab(script: Script, data: Path) -> None:
    first = script.json("up", "--detach", "--wait-ready", "--workers", "0")
    kept = (data / "detached.json").read_bytes()
    again = script("up", "--detach", "--port", "1")
    assert (again.returncode, again.stderr.count("\n")) == (0, 1)
    assert f"already (process {first['pid']})" in again.stderr
    assert (data / "detached.json").read_bytes() == kept


def test_a_lab_that_cannot_start_says_why_and_leaves_nothing_running(script: Script, data: Path) -> None:
    with ServiceProcess(data=data / "other", port=script.port):
        done = script("up", "--detach", "--wait-ready")
    assert done.returncode == 1
    assert done.stderr.startswith("the lab did not start:")
    assert str(script.port) in done.stderr
    assert running_service_pid(data) is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["up", "--wait-ready"], "--wait-ready needs --detach"),
        (["up", "--detach", "--api", "nowhere"], "nowhere"),
        (["down", "--timeout", "soon"], "soon"),
    ],
)
def test_bad_input_starts_nothing(script: Script, data: Path, arguments: list[str], sentence: str) -> None:
    done = script(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert running_service_pid(data) is None


def test_reset_asks_brings_the_first_fleet_back_and_keeps_the_certificates(script: Script, data: Path) -> None:
    before = script.json("up", "--detach", "--wait-ready")
    vm = before["endpoints"][0]["vm"]
    script.json("restart", vm)
    script.json("fleet", "add", "extra", "--location", "westeurope")
    kept = [(data / "admin.secret").read_text(), *(path.read_bytes() for path in sorted((data / "tls").glob("ca*")))]
    unconfirmed = script("reset")
    assert unconfirmed.returncode == 2
    assert "use --yes to reset" in unconfirmed.stderr
    assert running_service_pid(data) == before["pid"]
    after = script.json("reset", "--yes")["service"]
    assert (after["counts"], after["endpoints"]) == (before["counts"], before["endpoints"])
    assert after["pid"] != before["pid"]
    assert script.json("events", "--all")["events"] == []
    assert script("reset", "--yes").stdout.startswith("The lab is reset to its first fleet.\n")
    assert [
        (data / "admin.secret").read_text(),
        *(path.read_bytes() for path in sorted((data / "tls").glob("ca*"))),
    ] == kept


def test_a_lab_that_does_not_run_is_reset_for_its_next_start(script: Script) -> None:
    script.json("up", "--detach", "--wait-ready")
    script.json("fleet", "add", "extra", "--location", "westeurope")
    script.json("down")
    assert script.json("reset", "--yes")["service"] is None
    assert script.json("up", "--detach", "--wait-ready")["counts"]["vms"] == 13


def test_only_labs_in_the_background_are_reset(script: Script, data: Path) -> None:
    with ServiceProcess(data=data, command="serve", fleet='[[hosts]]\nname = "h"\nlocation = "westeurope"\n'):
        other = script("up", "--detach")
        assert (other.returncode, other.stdout) == (2, "")
        assert "is not a lab: give the lab another directory" in other.stderr
        running = script("reset", "--yes")
        assert running.returncode == 2
        assert "only labs can be reset" in running.stderr
    stopped = script("reset", "--yes")
    assert stopped.returncode == 2
    assert "only labs can be reset" in stopped.stderr
    assert (data / "forewarn.db").exists()
