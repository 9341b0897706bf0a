"""A program may run in a network namespace that the user made; it is left as it was."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.fake_supervisor_server import FakeSupervisorServer

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(not shutil.which("unshare") or not shutil.which("ip"), reason="unshare or ip is not installed"),
]

Run = Callable[..., "subprocess.CompletedProcess[str]"]
POLL = "import urllib.request as u; print(u.urlopen('http://169.254.169.254/x', timeout=9).read().decode())"
SHOW = "ip -o addr; ip -o link show lo | cut -d' ' -f3"


class Made:
    """A namespace that somebody else holds."""

    def __init__(self, setup: str) -> None:
        script = f"{setup}; echo ready; exec sleep 1000"
        self._child = subprocess.Popen(["unshare", "-Urn", "sh", "-c", script], stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == b"ready\n"

    @property
    def path(self) -> str:
        return f"/proc/{self._child.pid}/ns/net"

    def look(self) -> str:
        line = ["nsenter", "-t", str(self._child.pid), "-U", "-n", "--preserve-credentials", "sh", "-c", SHOW]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


@pytest.fixture(params=["true", "ip link set lo up", "ip link set lo up; ip addr add 169.254.169.254/32 dev lo"])
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    namespace = Made(request.param)
    yield namespace
    namespace.close()


def test_a_namespace_that_was_joined_has_the_service_and_is_left_as_it_was(
    service: FakeSupervisorServer, run: Run, made: Made
) -> None:
    before = made.look()

    told = run("web-0", "--netns", made.path, "--", sys.executable, "-c", POLL)

    assert told.stdout == '{"vm": "web-0", "path": "/x"}\n', told.stderr
    assert made.look() == before


def test_a_namespace_where_somebody_else_listens_is_told(service: FakeSupervisorServer, run: Run) -> None:
    serve = "import socket, time; s = socket.create_server(('', 80)); print('ready', flush=True); time.sleep(1000)"
    taken = Made(f"exec {sys.executable} -c {shlex.quote(serve)}")
    try:
        told = run("web-0", "--netns", taken.path, "--", "true")
    finally:
        taken.close()

    assert told.returncode == 2
    assert "in the network of VM 'web-0' (Address already in use): end what else listens there" in told.stderr


def test_a_namespace_that_does_not_exist_is_told(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--netns", "nowhere", "--", "true")

    assert told.returncode == 2
    assert "network namespace '/run/netns/nowhere' cannot be joined (No such file or directory): " in told.stderr


def test_a_network_is_either_joined_or_none(run: Run) -> None:
    told = run("web-0", "--netns", "x", "--no-vnet", "--", "true")

    assert told.returncode == 2
    assert "exclude each other" in told.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root may join what root made")
def test_root_joins_a_namespace_by_its_name(service: FakeSupervisorServer, run: Run) -> None:
    name = f"forewarn-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        told = run("web-0", "--netns", name, "--", sys.executable, "-c", POLL)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)

    assert told.stdout == '{"vm": "web-0", "path": "/x"}\n', told.stderr
