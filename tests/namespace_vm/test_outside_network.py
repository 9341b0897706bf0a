"""Where pasta or slirp4netns is installed a VM reaches the outside and the host's loopback; 169.254.169.254 stays the
service's (spec §2.1).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_supervisor_server import FakeSupervisorServer
from tests.support.scripted_server import ScriptedReply, ScriptedServer

pytestmark = pytest.mark.namespaces

ASK = """
import sys, time, urllib.request
for url in sys.argv[1:]:
    for _ in range(200):
        try:
            print(urllib.request.urlopen(url, timeout=9).read().decode())
            break
        except OSError:
            time.sleep(0.05)
"""


def run_with(tools: dict[str, str], directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """`forewarn vm run web-0 …` where only these tools are installed."""
    installed = directory / "bin"
    installed.mkdir()
    for name, program in tools.items():
        (installed / name).symlink_to(program)
    line = [sys.executable, "-m", "forewarn", "--data", str(directory), "vm", "run", "web-0", *words]
    surroundings = {**os.environ, "PATH": str(installed)}
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env=surroundings)


@pytest.mark.parametrize(("tool", "host"), [("pasta", "127.0.0.1"), ("slirp4netns", "10.0.2.2")])
def test_the_host_s_loopback_and_the_service_are_both_reached(
    service: FakeSupervisorServer, tmp_path: Path, tool: str, host: str
) -> None:
    program = shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not installed")
    with ScriptedServer(ScriptedReply(body=b"the host")) as outside:
        there = outside.url.replace("127.0.0.1", host)
        here = "http://169.254.169.254/x"
        told = run_with({tool: program}, tmp_path, "--", sys.executable, "-c", ASK, there, here)

    assert told.stdout == 'the host\n{"vm": "web-0", "path": "/x"}\n', told.stderr
    assert told.stderr == ""


def test_without_a_way_out_that_is_told_once(service: FakeSupervisorServer, tmp_path: Path) -> None:
    told = run_with({}, tmp_path, "--", "/bin/true")

    assert told.returncode == 0
    assert told.stderr == (
        "this VM reaches nothing but the service: install pasta (package passt) or slirp4netns for a way out, "
        "or say --isolated if that is meant\n"
    )


def test_a_tool_that_fails_is_as_good_as_none(service: FakeSupervisorServer, tmp_path: Path) -> None:
    told = run_with({"pasta": "/bin/false"}, tmp_path, "--", "/bin/true")

    assert told.returncode == 0
    assert told.stderr.startswith("this VM reaches nothing but the service: ")


def test_a_vm_that_is_isolated_by_wish_says_nothing(service: FakeSupervisorServer, tmp_path: Path) -> None:
    told = run_with({"pasta": "/bin/false"}, tmp_path, "--isolated", "--", "/bin/cat", "/proc/net/route")

    assert len(told.stdout.splitlines()) == 1
    assert told.stderr == ""
