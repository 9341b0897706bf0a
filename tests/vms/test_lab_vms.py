"""`forewarn lab vms`: two real guests that one command starts and another removes, with QEMU's locks on their disks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.lab.vms.layout import HOSTS, VmLab
from tests.support.service_process import eventually, free_port

pytestmark = pytest.mark.vms
_TIMEOUT_S = 120


def forewarn(*arguments: str, data: Path) -> str:
    """Run a command of forewarn that must succeed; return its output."""
    line = [sys.executable, "-m", "forewarn.cli", *arguments, "--data", str(data)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(data.parent / "cache"), "FOREWARN_PORT": str(free_port())}
    done = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def guests_of(data: Path) -> list[int]:
    """The process ids of QEMU processes that belong to this lab."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if words.startswith(b"qemu-system") and str(data).encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture(params=["--slirp", "taps"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VmLab]:
    data = tmp_path / "lab"
    options = [] if request.param == "taps" else [request.param]
    try:
        forewarn("lab", "vms", "--detach", "--api", f"127.0.0.1:{free_port()}", *options, data=data)
        yield VmLab(data, taps=request.param == "taps")
    finally:
        try:
            forewarn("lab", "down", data=data)
            assert guests_of(data) == []
            assert not data.exists()
        finally:
            for pid in guests_of(data):
                os.kill(pid, signal.SIGKILL)
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not [host for host in HOSTS if VmLab(data, taps=True).namespace(host) in left]


def vm(lab: VmLab, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(forewarn("fleet", "show", name, "--json", data=lab.directory))
    return shown


def console(lab: VmLab, host: str, name: str) -> str:
    log = lab.host_directory(host) / f"{name}.console.log"
    return log.read_text(errors="replace") if log.exists() else ""


def test_a_redeploy_moves_a_real_guest_and_empties_only_its_ephemeral_disk(lab: VmLab) -> None:
    eventually(lambda: "doc {" in console(lab, "host-1", "web-0"))

    forewarn("redeploy", "web-0", "--wait", data=lab.directory)

    assert vm(lab, "web-0")["host"] == "host-2"
    eventually(lambda: "ephemeral " in console(lab, "host-2", "web-0"))
    text = console(lab, "host-2", "web-0")
    assert "data used" in text
    assert "ephemeral empty" in text
    eventually(lambda: len(guests_of(lab.directory)) == 2)  # for a moment, a program that slirp starts is one more
