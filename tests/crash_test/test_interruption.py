"""An interrupted crash test ends everything that it started, writes no report, and says so in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forewarn.crash_test.handler_machine import is_running, list_descendants

pytestmark = pytest.mark.crash
COMMAND = (sys.executable, "-m", "forewarn.cli", "crash-test")
# It polls, and leaves a process behind that has a session of its own.
HANDLER = """#!/bin/sh
setsid sh -c 'while true; do sleep 1; done' &
while true; do sleep 1; done
"""
WAYS = [
    pytest.param((), id="namespaces", marks=pytest.mark.namespaces),
    pytest.param(("--endpoint-env", "URL"), id="child"),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    handler = tmp_path / "handler"
    handler.write_text(HANDLER)
    handler.chmod(0o755)
    return tmp_path


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a crash test with four cases, whose temporary files are all in one directory."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "TMPDIR": str(directory / "temporary"),
        }
        only = "notice-at-first-poll,transport-500,survival-killed-three-times,cost-at-rest"
        process = subprocess.Popen(
            (*COMMAND, "--only", only, "--json", "r.json", "--html", "r.html", *arguments, "--", "./handler"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            env=environment,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def mounts() -> list[str]:
    """The places of all mounts, but for network namespaces, which other programs come and go with."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if not place.startswith("/run/netns")]


def wait_for_handlers(process: subprocess.Popen[str], *, at_least: int) -> list[int]:
    """Wait until this many processes of handlers run; return the pids of all processes below the crash test."""

    def handlers() -> int:
        names = []
        for pid in list_descendants(process.pid):
            try:
                names.append(Path(f"/proc/{pid}/cmdline").read_bytes())
            except OSError:
                continue
        return sum(b"./handler" in name or b"/handler\0" in name for name in names)

    wait_until(lambda: handlers() >= at_least or process.poll() is not None, "the handlers were not started")
    assert process.poll() is None, process.communicate()
    return list_descendants(process.pid)


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_handlers_and_writes_no_report(
    start: Callable[..., subprocess.Popen[str]], directory: Path, ways: tuple[str, ...], number: signal.Signals
) -> None:
    before = mounts()
    process = start(*ways)
    pids = wait_for_handlers(process, at_least=2)

    process.send_signal(number)
    output, errors = process.communicate(timeout=60)

    assert process.returncode == 128 + number
    assert output == ""
    assert errors == "interrupted after 0 of 4 cases: everything has ended, and no report was written\n"
    assert not any(map(is_running, pids))
    assert mounts() == before
    assert list((directory / "temporary").iterdir()) == []
    assert not (directory / "r.json").exists()
    assert not (directory / "r.html").exists()


def test_a_second_interrupt_does_not_leave_anything_behind(
    start: Callable[..., subprocess.Popen[str]], directory: Path
) -> None:
    process = start("--endpoint-env", "URL")
    pids = wait_for_handlers(process, at_least=2)

    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode in (130, 143)  # the kernel may deliver them in any order
    assert not any(map(is_running, pids))
    assert list((directory / "temporary").iterdir()) == []


@pytest.mark.parametrize("ways", WAYS)
def test_a_killed_crash_test_leaves_nothing_running(
    start: Callable[..., subprocess.Popen[str]], ways: tuple[str, ...]
) -> None:
    process = start(*ways)
    pids = wait_for_handlers(process, at_least=2)

    process.kill()
    process.communicate(timeout=60)

    wait_until(lambda: not any(map(is_running, pids)), "a process outlived the crash test")


def test_a_crash_test_that_is_interrupted_while_it_starts_leaves_nothing(
    start: Callable[..., subprocess.Popen[str]], directory: Path
) -> None:
    process = start("--endpoint-env", "URL")
    wait_until(lambda: list((directory / "temporary").iterdir()), "no case began")
    pids = list_descendants(process.pid)

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == 143
    assert not any(map(is_running, pids))
    assert list((directory / "temporary").iterdir()) == []


def test_json_on_stdout_is_the_whole_result_and_nothing_else(directory: Path) -> None:
    (directory / "handler").write_text("#!/bin/sh\nexit 0\n")
    options = ("--only", "cost-at-rest", "--endpoint-env", "URL", "--lab-time", "20", "--json", "-")
    done = run_one_case(directory, *COMMAND, *options, "--", "./handler")
    assert done.returncode == 2  # the handler ended at once: it was not run
    document = json.loads(done.stdout)
    assert document["grade"]["grade"] == "not run"
    assert "Grade not run" in done.stderr


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        pytest.param("#!/no/such/interpreter\n", (), id="interpreter", marks=pytest.mark.namespaces),
        pytest.param("\x7fELF and nothing else", ("--endpoint-env", "URL"), id="format"),
    ],
)
def test_a_handler_that_the_kernel_cannot_execute_was_not_run(
    directory: Path, text: str, ways: tuple[str, ...]
) -> None:
    (directory / "handler").write_text(text)
    done = run_one_case(directory, *COMMAND, "--only", "cost-at-rest", *ways, "--", "./handler")
    assert done.returncode == 2, done.stdout
    assert done.stdout.startswith("! The handler was not run: the handler cannot be started"), done.stdout


@pytest.mark.namespaces
def test_ports_that_are_all_taken_are_named_and_no_failure_of_the_handler(directory: Path) -> None:
    two_ports = 'ip link set lo up && echo "40000 40001" > /proc/sys/net/ipv4/ip_local_port_range'
    command = " ".join((*COMMAND, "--only", "cost-at-rest", "--endpoint-env", "URL", "--", "./handler"))
    done = run_one_case(directory, "unshare", "-Urn", "sh", "-c", f"{two_ports} && exec {command}")
    assert done.returncode == 2, done.stdout
    assert "! The handler was not run: this machine cannot run the case: Address already in use" in " ".join(
        done.stdout.split()
    )


def run_one_case(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=120, check=False)
