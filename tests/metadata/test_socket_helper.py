"""`forewarn sockets` opens sockets and passes them to the service; here on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from forewarn.metadata import IdentifyBy, ListenerManager, ListenerSpec
from forewarn.metadata.socket_passing import SocketPacket, receive_packet, send_packet
from tests.support.service_process import ServiceProcess, eventually, free_port, run_forewarn

FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 2\n\n[[vms]]\nname = "web-{n}"\ncount = 2\naddress = "127.0.0.21"\n'
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are passed on Linux only")


@contextmanager
def helper(data: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "forewarn", "--data", str(data), "sockets"]
    environ = {**os.environ, "FOREWARN_LISTEN": f"127.0.0.1:{port}"}
    with subprocess.Popen(line, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            assert child.stdout is not None
            assert "1 socket open, 0 not yet; passed to the service in" in child.stdout.readline()
            yield child
        finally:
            child.kill()


def test_a_service_waits_for_its_socket_helper_and_logs_that_once(tmp_path: Path) -> None:
    with ServiceProcess(
        data=tmp_path, fleet=FLEET, command="serve", environment={"FOREWARN_SOCKETS": "helper"}
    ) as service:
        message = "the socket helper is not running at"
        eventually(lambda: message in service.log.read_text())
        for _ in range(2):
            with helper(tmp_path, service.port) as child:
                eventually(lambda: is_open(service))
                assert [service.guest(f"web-{n}", "GET", NAME).body for n in range(2)] == [b"web-0", b"web-1"]
                child.send_signal(signal.SIGTERM)
                assert child.wait(timeout=30) == 0
            assert service.guest("web-1", "GET", NAME).body == b"web-1", "passed sockets stay open"
        eventually(lambda: service.log.read_text().count(message) <= 3)
        assert service.stop() == 0


def is_open(service: ServiceProcess) -> bool:
    opened: bool = service.api("GET", "/service").json["listeners"][0]["open"]
    return opened


def test_a_listener_for_an_unknown_vm_stops_the_start(tmp_path: Path) -> None:
    config = tmp_path / "forewarn.toml"
    config.write_text(
        'hypervisor = "simulated"\n[[listeners]]\nby = "device"\ndevice = "lo"\naddress = "127.0.0.1"\n'
        'port = 8000\nvm = "web-7"\n',
        encoding="utf-8",
    )
    (tmp_path / "fleet.toml").write_text(FLEET, encoding="utf-8")
    done = run_forewarn(tmp_path / "data", "serve", "--config", str(config), "--fleet", str(tmp_path / "fleet.toml"))
    assert done.returncode == 2
    assert (
        "the listener on 127.0.0.1:8000 by device lo is for VM 'web-7', which the fleet does not have: "
        "add the VM to the fleet first, or correct the listener"
    ) in done.stderr


def test_the_socket_helper_needs_the_data_directory_of_the_service(tmp_path: Path) -> None:
    done = run_forewarn(tmp_path / "none", "sockets", environment={"FOREWARN_LISTEN": "127.0.0.1:8000"})
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"data directory '{tmp_path}/none' does not exist: create it, for the user that the service runs as"
        in done.stderr
    )


def test_the_socket_helper_names_a_port_that_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_forewarn(tmp_path, "sockets", environment={"FOREWARN_LISTEN": f"127.0.0.1:{port}"})
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: 127.0.0.1:{port} is in use by another program" in done.stderr


def test_many_passed_sockets_arrive_in_order() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listening:
            ours.setblocking(False)
            theirs.setblocking(False)

            async def send_all() -> None:
                for n in range(600):
                    await send_packet(ours, SocketPacket(f"listener {n}", listening if n % 2 else None))
                ours.shutdown(socket.SHUT_WR)

            sending = asyncio.create_task(send_all())
            for n in range(600):
                packet = await receive_packet(theirs)
                assert packet is not None
                assert (packet.listener_name, packet.sock is not None) == (f"listener {n}", bool(n % 2))
                if packet.sock:
                    with closing(packet.sock):
                        assert packet.sock.getsockname() == listening.getsockname()
                        assert not os.get_inheritable(packet.sock.fileno())
            assert await receive_packet(theirs) is None
            await sending

    asyncio.run(scenario())


def test_listeners_wait_for_devices_addresses_and_namespaces_that_do_not_exist_yet() -> None:
    port = free_port()
    here = ListenerSpec(identify_by=IdentifyBy.SOURCE, address="127.0.0.1", port=port)
    # No machine has an address of TEST-NET-1 (RFC 5737).
    elsewhere = ListenerSpec(identify_by=IdentifyBy.SOURCE, address="192.0.2.1", port=port)
    tap = ListenerSpec(identify_by=IdentifyBy.DEVICE, address="127.0.0.1", port=port, device="nosuchtap")
    inside = ListenerSpec(identify_by=IdentifyBy.NAMESPACE, namespace="no-such-namespace")
    manager = ListenerManager([here, elsewhere, tap, inside])
    opened = manager.open_all()
    assert [found.spec for found in opened] == [here]
    assert manager.waiting == {
        elsewhere: "this machine does not have the address 192.0.2.1",
        tap: "device 'nosuchtap': No such device",
        inside: "network namespace '/run/netns/no-such-namespace' does not exist",
    }
    assert manager.refresh() == []
    manager.close()
