"""Many VMs on one machine, each with its own metadata endpoint."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_supervisor_server import FakeSupervisorServer

pytestmark = pytest.mark.namespaces

Start = Callable[..., "subprocess.Popen[str]"]
MANY = 50
POLL = (
    "import urllib.request as u, pathlib, sys;"
    "pathlib.Path(sys.argv[1]).write_bytes(u.urlopen('http://169.254.169.254/x', timeout=60).read());"
    "sys.stdin.read()"
)


def test_fifty_vms_run_at_once_and_each_is_identified_as_itself(
    service: FakeSupervisorServer, start: Start, tmp_path: Path
) -> None:
    names = [f"vm-{number}" for number in range(MANY)]
    children = {name: start(name, "--", sys.executable, "-c", POLL, str(tmp_path / name)) for name in names}
    for name in names:
        service.wait_for_message(name, "listener")

    acts = {name: service.order(name, "freeze", duration_s=0.1) for name in names}

    assert all(service.outcome(name, act)["ok"] for name, act in acts.items())
    for name, child in children.items():
        child.communicate("", timeout=60)
        assert child.returncode == 0
        assert f'"vm": "{name}"' in (tmp_path / name).read_text()
