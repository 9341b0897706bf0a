"""VMs of namespaces with a service beside them. Tests that need namespaces skip where the kernel allows none."""

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


def command(data: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "forewarn", "--data", str(data), "vm", *words]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeSupervisorServer]:
    with FakeSupervisorServer(tmp_path) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `forewarn vm run VM … `, in a process group of its own as a shell would, and go on."""
    children: list[subprocess.Popen[str]] = []

    def begin(vm: str, *words: str) -> "subprocess.Popen[str]":
        line = command(tmp_path, "run", vm, "--isolated", *words)
        pipe = subprocess.PIPE
        children.append(subprocess.Popen(line, stdout=pipe, stderr=pipe, stdin=pipe, text=True, process_group=0))
        return children[-1]

    yield begin
    for child in children:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
        child.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`forewarn vm run VM …` from beginning to end."""

    def whole(vm: str, *words: str) -> "subprocess.CompletedProcess[str]":
        line = command(tmp_path, "run", vm, "--isolated", *words)
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)

    return whole
