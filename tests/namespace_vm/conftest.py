"""Namespace VMs with a service beside them. Tests skip where the kernel allows no namespaces."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fake_supervisor_server import FakeSupervisorServer
from tests.support.namespaces import why_namespaces_are_unavailable

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("namespaces") and (reason := why_namespaces_are_unavailable()):
        pytest.skip(f"this machine forbids namespaces: {reason}")


def command(data: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "forewarn", "--data", str(data), "vm", *arguments]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeSupervisorServer]:
    with FakeSupervisorServer(tmp_path) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `forewarn vm run VM …` in its own process group, as a shell does, without waiting."""
    children: list[subprocess.Popen[str]] = []

    def start_vm(vm: str, *arguments: str) -> "subprocess.Popen[str]":
        line = command(tmp_path, "run", vm, "--isolated", *arguments)
        pipe = subprocess.PIPE
        children.append(subprocess.Popen(line, stdout=pipe, stderr=pipe, stdin=pipe, text=True, process_group=0))
        return children[-1]

    yield start_vm
    for child in children:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
        child.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `forewarn vm run VM …` to its end."""

    def run_vm(vm: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        line = command(tmp_path, "run", vm, "--isolated", *arguments)
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)

    return run_vm
