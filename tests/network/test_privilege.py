"""The socket helper opens sockets with privilege, and the service that serves VMs has none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.network.conftest import Namespace, Program, Service, World
from tests.support.service_process import eventually

pytestmark = pytest.mark.namespaces

FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 3\n\n[[vms]]\nname = "web-{n}"\ncount = 3\n'
LISTENERS = """sockets = "helper"
[[listeners]]
by = "device"
device = "tap0"
vm = "web-0"

[[listeners]]
by = "device"
device = "tap1"
vm = "web-1"
"""
ALL = ["169.254.169.254:80 by device tap0", "169.254.169.254:80 by device tap1"]
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]


Pair = tuple[Namespace, list[Namespace], Service, Program]


@pytest.fixture
def nobody(_can_make_namespaces: None) -> None:
    tried = [*AS_NOBODY, sys.executable, "-m", "forewarn", "--version"]
    if subprocess.run(tried, capture_output=True, check=False, cwd="/").returncode:
        pytest.skip("the user nobody cannot run this Python")


@pytest.fixture
def pair(world: World, nobody: None) -> Pair:
    """A host with two VMs, its socket helper, and a service that runs as nobody."""
    host = world.host()
    vms = [world.vm(f"vm{n}", host, f"tap{n}") for n in range(2)]
    service = world.service(host, FLEET, LISTENERS, as_nobody=True)
    helper = world.helper(host)
    eventually(lambda: service.open_names() == ALL)
    return host, vms, service, helper


def test_the_service_has_no_privilege_and_serves_every_vm(pair: Pair) -> None:
    _, vms, service, _ = pair
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{service.pid}/status").read_text().splitlines())
    assert status["Uid"].split() == ["65534"] * 4
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == 0
    assert [vm.ask() for vm in vms] == [(200, "web-0"), (200, "web-1")]


def test_connections_wait_while_the_service_restarts(pair: Pair) -> None:
    _, vms, service, _ = pair
    service.kill()
    connection = vms[0].connect()
    service.start()
    assert connection.ask() == (200, "web-0")
    assert vms[1].ask() == (200, "web-1")


def test_the_service_runs_without_its_helper_and_takes_sockets_from_a_new_one(pair: Pair) -> None:
    _, vms, _, helper = pair
    helper.kill()
    assert [vm.ask() for vm in vms] == [(200, "web-0"), (200, "web-1")]
    helper.start()
    eventually(lambda: "passed to the service in" in helper.output())
    for _ in range(5):
        assert [vm.ask() for vm in vms] == [(200, "web-0"), (200, "web-1")]
    assert helper.stop() == 0
    assert not (helper.data / "forewarn.sockets").exists()
    assert [vm.ask() for vm in vms] == [(200, "web-0"), (200, "web-1")]


def test_the_socket_of_a_device_that_is_created_again_is_passed_again(world: World, pair: Pair) -> None:
    host, vms, service, _ = pair
    host.ip("link del tap0")
    eventually(lambda: service.open_names() == ALL[1:])
    world.plug(vms[0], host, "tap0")
    eventually(lambda: service.open_names() == ALL)
    assert [vm.ask() for vm in vms] == [(200, "web-0"), (200, "web-1")]


def test_other_users_receive_no_socket(pair: Pair) -> None:
    """The directory's permissions keep other users out; the helper checks the user of a connection too."""
    _, _, _, helper = pair
    os.chmod(helper.data, 0o755)
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(10);"
        "s.connect(sys.argv[1]); print(socket.recv_fds(s, 4096, 1)[:2])"
    )
    path = str(helper.data / "forewarn.sockets")
    other = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", sys.executable, "-c", program, path]
    done = subprocess.run(other, capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout == "(b'', [])\n" or "ConnectionResetError" in done.stderr
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(path)
        name, fds, _, _ = socket.recv_fds(link, 4096, 1)
        assert (name.decode(), len(fds)) == (ALL[0], 1), "root receives sockets"
        os.close(fds[0])


def test_a_second_helper_is_refused(world: World, pair: Pair) -> None:
    host, _, _, helper = pair
    line = ["nsenter", f"--net=/run/netns/{host.name}", sys.executable, "-m", "forewarn", "--data", str(helper.data)]
    config = str(world.directory / "forewarn.toml")
    done = subprocess.run(
        [*line, "sockets", "--config", config], capture_output=True, text=True, check=False, cwd="/", timeout=60
    )
    assert done.returncode == 2
    assert "another `forewarn sockets` is running at" in done.stderr
