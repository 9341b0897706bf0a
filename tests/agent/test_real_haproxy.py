"""A real HAProxy drains a server: existing connections continue, new ones go elsewhere.

The last tests use a real service that announces a reboot, and an agent that drains, approves and undoes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forewarn.agent.model import StepOutcome
from tests.support.external_server import ExternalServer, port_answers
from tests.support.reaction_harness import ReactionHarness
from tests.support.service_process import ServiceProcess, eventually, free_port

pytestmark = pytest.mark.real
DEBIAN = Path(__file__).parents[2] / ".venv-parts/debian"
HAPROXY = DEBIAN / "usr/sbin/haproxy"
LIBRARIES = {"LD_LIBRARY_PATH": str(DEBIAN / "usr/lib/x86_64-linux-gnu")}
CONFIGURATION = """
global
    stats socket {folder}/admin.sock mode 600 level admin
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend site
    bind 127.0.0.1:{port}
    default_backend web
backend web
    balance roundrobin
    server web-0 127.0.0.1:{web_0}
    server web-1 127.0.0.1:{web_1}
"""


class NameEchoHandler(socketserver.StreamRequestHandler):
    """Sends its server's name, then echoes each line."""

    name = ""

    def handle(self) -> None:
        with suppress(ConnectionError):
            self.wfile.write(f"{self.name}\n".encode())
            while line := self.rfile.readline():
                self.wfile.write(line)


class HaproxySite:
    """HAProxy in front of two servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port(3)

    def configuration(self) -> Path:
        file = self.folder / "haproxy.cfg"
        ports = {"port": self.port, "web_0": self.port + 1, "web_1": self.port + 2}
        file.write_text(CONFIGURATION.format(folder=self.folder, **ports))
        return file

    @contextmanager
    def server(self, name: str, port: int) -> Iterator[None]:
        handler = type(name, (NameEchoHandler,), {"name": name})
        with socketserver.ThreadingTCPServer(("127.0.0.1", port), handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()

    def is_up(self) -> bool:
        return (self.folder / "admin.sock").exists() and port_answers(self.port)

    def connect(self) -> ClientConnection:
        return ClientConnection(self.port)

    def answering_servers(self, connections: int) -> set[str]:
        answered = set()
        for _ in range(connections):
            connection = self.connect()
            answered.add(connection.server)
            connection.end()
        return answered


class ClientConnection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._lines = self._socket.makefile("rwb")
        self.server = self._lines.readline().decode().strip()

    def is_alive(self) -> bool:
        self._lines.write(b"there?\n")
        self._lines.flush()
        return self._lines.readline() == b"there?\n"

    def end(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HaproxySite]:
    if not HAPROXY.exists():
        pytest.skip("HAProxy is not here: make test-real fetches it")
    site = HaproxySite(tmp_path)
    command: list[str | Path] = [HAPROXY, "-db", "-f", site.configuration()]
    with (
        site.server("web-0", site.port + 1),
        site.server("web-1", site.port + 2),
        ExternalServer(command, log=tmp_path / "log", is_up=site.is_up, environment=LIBRARIES),
    ):
        yield site


def drain_reaction(site: HaproxySite) -> ReactionHarness:
    options = {"socket": f"{site.folder}/admin.sock", "servers": ["web/{vm}"]}
    return ReactionHarness("drain-haproxy", options, site.folder / "case")


def test_existing_connections_finish_while_new_ones_go_elsewhere(site: HaproxySite) -> None:
    async def scenario() -> None:
        connections = [site.connect() for _ in range(6)]
        drained = [connection for connection in connections if connection.server == "web-0"]
        assert 0 < len(drained) < 6

        drain = drain_reaction(site)
        doing = asyncio.create_task(drain.do())
        async with asyncio.timeout(10):
            while site.answering_servers(4) != {"web-1"}:
                await asyncio.sleep(0.01)
        assert not doing.done()
        assert all(connection.is_alive() for connection in drained)
        assert await drain.check() is False

        for connection in drained:
            connection.end()
        assert await doing == StepOutcome(ok=True, text="web/web-0: drained", notes={"web/web-0": "ready"})
        assert await drain.check() is True
        assert site.answering_servers(4) == {"web-1"}

        assert await drain.undo() == StepOutcome(ok=True, text="web/web-0: ready again")
        assert site.answering_servers(4) == {"web-0", "web-1"}
        for connection in connections:
            connection.end()

    asyncio.run(scenario())


def test_a_state_that_someone_set_by_hand_is_kept(site: HaproxySite) -> None:
    drain = drain_reaction(site)
    assert asyncio.run(drain.do()).ok
    with socket.socket(socket.AF_UNIX) as by_hand:
        by_hand.connect(str(site.folder / "admin.sock"))
        by_hand.sendall(b"set server web/web-0 state maint\n")
        assert by_hand.recv(100).strip() == b""
    outcome = asyncio.run(drain.undo())
    assert outcome == StepOutcome(ok=True, text="web/web-0 is maint, set by someone else, and stays so")
    assert site.answering_servers(4) == {"web-1"}


def test_a_server_that_does_not_exist_is_reported(site: HaproxySite) -> None:
    options = {"socket": f"{site.folder}/admin.sock", "servers": ["web/web-7"]}
    drain = ReactionHarness("drain-haproxy", options, site.folder / "case")
    assert asyncio.run(drain.do()) == StepOutcome(ok=False, text="HAProxy has no server web/web-7")


FLEET = """
[[hosts]]
name = "host-0"

[[vms]]
name = "web-0"
host = "host-0"
"""
AGENT = """
endpoint = "{endpoint}"
state = "{folder}/agent"
listen = ""

[steps.drain]
use = "drain-haproxy"
socket = "{folder}/admin.sock"
servers = ["web/{{vm}}"]
budget = "60s"

[[rules]]
kinds = ["Reboot"]
steps = ["drain"]
approve = "when-done"
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path / "service", fleet=FLEET) as service:
        yield service


@pytest.fixture
def agent(site: HaproxySite, service: ServiceProcess) -> Iterator[ExternalServer]:
    endpoint = service.endpoint("web-0")
    file = site.folder / "agent.toml"
    file.write_text(AGENT.format(folder=site.folder, endpoint=f"http://{endpoint.address}:{endpoint.port}"))
    command: list[str | Path] = [sys.executable, "-m", "forewarn.agent", "--config", file]
    log = site.folder / "agent.log"
    with ExternalServer(command, log=log, is_up=(site.folder / "agent/journal.db").exists) as agent:
        yield agent


def announce_reboot(service: ServiceProcess) -> None:
    service.api("POST", "/requests", {"operation": "restart", "vms": ["web-0"]})
    eventually(lambda: statuses(service) == ["Scheduled"])


def statuses(service: ServiceProcess) -> list[str]:
    return [event["EventStatus"] for event in service.poll("web-0")["Events"]]


def is_over(service: ServiceProcess) -> bool:
    """Advances the lab's clock and returns whether the event is over; acts take lab time."""
    service.advance(30)
    return not statuses(service)


def connection_to(site: HaproxySite, server: str) -> ClientConnection:
    connections = [site.connect() for _ in range(6)]
    kept = next(connection for connection in connections if connection.server == server)
    for connection in connections:
        if connection is not kept:
            connection.end()
    return kept


def test_an_agent_drains_then_approves_and_comes_back_when_the_reboot_is_over(
    site: HaproxySite, service: ServiceProcess, agent: ExternalServer
) -> None:
    connection = connection_to(site, "web-0")
    announce_reboot(service)
    eventually(lambda: site.answering_servers(4) == {"web-1"})
    assert connection.is_alive()
    assert statuses(service) == ["Scheduled"]

    connection.end()
    eventually(lambda: statuses(service) == ["Started"])  # before its notice ended: it was approved
    eventually(lambda: is_over(service))
    eventually(lambda: site.answering_servers(4) == {"web-0", "web-1"})


def test_an_agent_that_is_killed_during_a_drain_continues_and_undoes_it(
    site: HaproxySite, service: ServiceProcess, agent: ExternalServer
) -> None:
    connection = connection_to(site, "web-0")
    announce_reboot(service)
    eventually(lambda: site.answering_servers(4) == {"web-1"})
    os.kill(agent.pid, signal.SIGKILL)
    agent.stop()
    assert statuses(service) == ["Scheduled"]

    connection.end()
    agent.start()
    eventually(lambda: statuses(service) == ["Started"])
    eventually(lambda: is_over(service))
    eventually(lambda: site.answering_servers(4) == {"web-0", "web-1"})
