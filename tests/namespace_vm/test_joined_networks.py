"""A program can run in a network namespace of the user, which is restored afterwards."""

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


class UserNamespace:
    """A network namespace that another process holds."""

    def __init__(self, setup: str) -> None:
        script = f"{setup}; echo ready; exec sleep 1000"
        self._child = subprocess.Popen(["unshare", "-Urn", "sh", "-c", script], stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == b"ready\n"

    @property
    def path(self) -> str:
        return f"/proc/{self._child.pid}/ns/net"

    def describe(self) -> str:
        command = ["nsenter", "-t", str(self._child.pid), "-U", "-n", "--preserve-credentials", "sh", "-c", SHOW]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


@pytest.fixture(params=["true", "ip link set lo up", "ip link set lo up; ip addr add 169.254.169.254/32 dev lo"])
def user_namespace(request: pytest.FixtureRequest) -> Iterator[UserNamespace]:
    namespace = UserNamespace(request.param)
    yield namespace
    namespace.close()


def test_a_joined_namespace_has_the_service_and_is_restored_afterwards(
    service: FakeSupervisorServer, run: Run, user_namespace: UserNamespace
) -> None:
    before = user_namespace.describe()

    result = run("web-0", "--netns", user_namespace.path, "--", sys.executable, "-c", POLL)

    assert result.stdout == '{"vm": "web-0", "path": "/x"}\n', result.stderr
    assert user_namespace.describe() == before


def test_a_namespace_that_cannot_be_set_up_is_restored(service: FakeSupervisorServer, run: Run) -> None:
    """The kernel lets a loopback with so small an MTU come up, but gives it no address."""
    other_device = "ip link add one type veth peer name two; ip addr add 10.9.9.9/24 dev one; ip link set one up"
    namespace = UserNamespace(f"ip link set lo mtu 60; {other_device}")
    try:
        before = namespace.describe()
        result = run("web-0", "--netns", namespace.path, "--", "true")
        after = namespace.describe()
    finally:
        namespace.close()

    assert (result.returncode, "cannot be joined" in result.stderr) == (2, True), result.stderr
    assert after == before


def test_a_namespace_where_another_program_listens_is_refused(service: FakeSupervisorServer, run: Run) -> None:
    serve = "import socket, time; s = socket.create_server(('', 80)); print('ready', flush=True); time.sleep(1000)"
    taken = UserNamespace(f"exec {sys.executable} -c {shlex.quote(serve)}")
    try:
        result = run("web-0", "--netns", taken.path, "--", "true")
    finally:
        taken.close()

    assert result.returncode == 2
    assert (
        "in the network of VM 'web-0' cannot be opened (Address already in use): stop the program that listens there"
        in result.stderr
    )


def test_a_namespace_that_does_not_exist_is_refused(service: FakeSupervisorServer, run: Run) -> None:
    result = run("web-0", "--netns", "nowhere", "--", "true")

    assert result.returncode == 2
    assert "network namespace '/run/netns/nowhere' cannot be joined (No such file or directory): " in result.stderr


def test_netns_and_no_vnet_exclude_each_other(run: Run) -> None:
    result = run("web-0", "--netns", "x", "--no-vnet", "--", "true")

    assert result.returncode == 2
    assert "exclude each other" in result.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root may join what root made")
def test_root_joins_a_namespace_by_its_name(service: FakeSupervisorServer, run: Run) -> None:
    name = f"forewarn-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        result = run("web-0", "--netns", name, "--", sys.executable, "-c", POLL)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)

    assert result.stdout == '{"vm": "web-0", "path": "/x"}\n', result.stderr
