"""With pasta or slirp4netns a VM reaches the outside and the host's loopback (spec §2.1).

169.254.169.254 stays the service.
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


def run_with(tools: dict[str, str], directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`forewarn vm run web-0 …` with only these tools installed."""
    installed = directory / "bin"
    installed.mkdir()
    for name, program in tools.items():
        (installed / name).symlink_to(program)
    line = [sys.executable, "-m", "forewarn", "--data", str(directory), "vm", "run", "web-0", *arguments]
    surroundings = {**os.environ, "PATH": str(installed)}
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env=surroundings)


@pytest.mark.parametrize(("tool", "host"), [("pasta", "127.0.0.1"), ("slirp4netns", "10.0.2.2")])
def test_a_vm_reaches_the_hosts_loopback_and_the_service(
    service: FakeSupervisorServer, tmp_path: Path, tool: str, host: str
) -> None:
    program = shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not installed")
    with ScriptedServer(ScriptedReply(body=b"the host")) as outside:
        there = outside.url.replace("127.0.0.1", host)
        here = "http://169.254.169.254/x"
        result = run_with({tool: program}, tmp_path, "--", sys.executable, "-c", ASK, there, here)

    assert result.stdout == 'the host\n{"vm": "web-0", "path": "/x"}\n', result.stderr
    assert result.stderr == ""


def test_a_vm_without_outbound_network_gets_one_warning(service: FakeSupervisorServer, tmp_path: Path) -> None:
    result = run_with({}, tmp_path, "--", "/bin/true")

    assert result.returncode == 0
    assert result.stderr == (
        "this VM can reach only the service: install pasta (package passt) or slirp4netns for outbound network, "
        "or use --isolated if this is intended\n"
    )


def test_a_network_tool_that_fails_counts_as_missing(service: FakeSupervisorServer, tmp_path: Path) -> None:
    result = run_with({"pasta": "/bin/false"}, tmp_path, "--", "/bin/true")

    assert result.returncode == 0
    assert result.stderr.startswith("this VM can reach only the service: ")


def test_an_isolated_vm_gets_no_warning(service: FakeSupervisorServer, tmp_path: Path) -> None:
    result = run_with({"pasta": "/bin/false"}, tmp_path, "--isolated", "--", "/bin/cat", "/proc/net/route")

    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""
