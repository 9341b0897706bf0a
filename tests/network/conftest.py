"""Hosts and VMs made of network namespaces, with iproute2 and nftables; fixtures clean up.

The host is a namespace too: the machine that runs the tests never owns 169.254.169.254.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forewarn.metadata.listeners import run_in_namespace
from tests.support.service_process import START_TIMEOUT_S, HttpAnswer, ServiceProcess, eventually

METADATA = "169.254.169.254"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
POLL = "/metadata/scheduledevents?api-version=2020-07-01"
NOBODY = 65534
RULES = Path(__file__).parents[2] / "docs" / "how-to" / "network"
_COUNTER = itertools.count()

EventsOf = Callable[[tuple[int, str]], list[str]]


def _skip_reason() -> str:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root, on Linux"
    missing = [tool for tool in ("ip", "nft", "nsenter", "setpriv") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} missing: `make test-namespaces` installs iproute2 and nftables"
    probe = f"fwprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "this machine does not allow root to create network namespaces"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return ""


@pytest.fixture(scope="session")
def _can_make_namespaces() -> None:
    if reason := _skip_reason():
        pytest.skip(reason)


def run(*arguments: str, text: str = "") -> str:
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}\n{text}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection of a VM, open until the test ends."""

    sock: socket.socket

    def ask(self, target: str = NAME, method: str = "GET") -> tuple[int, str]:
        self.sock.sendall(f"{method} {target} HTTP/1.1\r\nHost: {METADATA}\r\nMetadata: true\r\n\r\n".encode())
        response = http.client.HTTPResponse(self.sock)
        response.begin()
        return response.status, response.read().decode()


@dataclass(frozen=True, slots=True)
class Namespace:
    """The network namespace of a VM or of a host."""

    name: str
    stack: ExitStack

    def ip(self, *lines: str) -> None:
        run("ip", "-n", self.name, "-batch", "-", text="\n".join(lines) + "\n")

    def shown(self, *arguments: str) -> str:
        return run("ip", "-n", self.name, *arguments)

    def sysctl(self, **settings: int) -> None:
        for name, value in settings.items():
            path = Path("/proc/sys/net/ipv4") / name.replace("__", "/")
            self.inside(partial(path.write_text, str(value)))

    def nft(self, *arguments: str) -> str:
        return run("nsenter", f"--net=/run/netns/{self.name}", "nft", *arguments)

    def inside(self, function: Callable[[], Any]) -> Any:
        return run_in_namespace(self.name, function)

    def connect(self, *, source: str = "", port: int = 0, timeout_s: float = 15.0) -> Connection:
        """Connect to the metadata address from this namespace, optionally from a given address and port."""
        sock = self.stack.enter_context(self.inside(socket.socket))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.settimeout(timeout_s)
        if source:
            sock.bind((source, port))
        sock.connect((METADATA, 80))
        return Connection(sock)

    def ask(self, target: str = NAME, *, timeout_s: float = 15.0) -> tuple[int, str]:
        return self.connect(timeout_s=timeout_s).ask(target)

    def gets_nothing(self) -> bool:
        """Whether there is no response: refused, no route, or a timeout."""
        try:
            self.ask(timeout_s=1.5)
        except OSError:
            return True
        return False


class World:
    """The namespaces of one test, and the programs that run in them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._turn = f"fw{os.getpid()}x{next(_COUNTER)}"
        # Not in pytest's directory: a service that runs as nobody must have access.
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forewarn-network-")))
        self.directory.chmod(0o755)

    def namespace(self, name: str) -> Namespace:
        full = f"{self._turn}-{name}"
        run("ip", "netns", "add", full)
        self._stack.callback(subprocess.run, ["ip", "netns", "del", full], capture_output=True, check=False)
        namespace = Namespace(full, self._stack)
        namespace.ip("link set lo up")
        return namespace

    def host(self) -> Namespace:
        """A host that has the metadata address on all its taps (rp_filter off)."""
        namespace = self.namespace("host")
        namespace.ip(f"addr add {METADATA}/32 dev lo")
        namespace.sysctl(conf__all__rp_filter=0, conf__default__rp_filter=0)
        return namespace

    def vm(self, name: str, host: Namespace, tap: str, address: str = "10.0.0.4", mac: str = "") -> Namespace:
        """A VM whose only device is the peer of a tap on the host."""
        namespace = self.namespace(name)
        self.plug(namespace, host, tap, address, mac)
        return namespace

    def plug(self, vm: Namespace, host: Namespace, tap: str, address: str = "10.0.0.4", mac: str = "") -> None:
        host.ip(f"link add {tap} address 12:34:56:78:9a:bc type veth peer name eth0 netns {vm.name}")
        host.ip(f"link set {tap} up")
        set_mac = f"link set eth0 address {mac}" if mac else "link set eth0 up"
        vm.ip(set_mac, "link set eth0 up", f"addr add {address}/24 dev eth0", f"route add {METADATA} dev eth0")

    def settings(self, fleet: str, text: str) -> Path:
        (self.directory / "fleet.toml").write_text(fleet, encoding="utf-8")
        path = self.directory / "forewarn.toml"
        settings = f'fleet = "{self.directory}/fleet.toml"\nenablement = "always"\nhypervisor = "simulated"\n'
        path.write_text(settings + text, encoding="utf-8")
        return path

    def service(self, host: Namespace, fleet: str, listeners: str, **options: Any) -> Service:
        service = Service(host, self.directory / "data", self.settings(fleet, listeners), **options)
        self._stack.callback(service.kill)
        service.start()
        return service

    def helper(self, host: Namespace) -> Program:
        """Start `forewarn sockets` as root."""
        data = self.directory / "data"
        program = Program(host, data, "sockets", "--config", str(self.directory / "forewarn.toml"))
        self._stack.callback(program.kill)
        program.start()
        eventually(lambda: "passed to the service in" in program.output(), START_TIMEOUT_S)
        return program


class Program:
    """A `forewarn` process inside a host, as root or as the user nobody."""

    def __init__(self, host: Namespace, data: Path, *arguments: str, as_nobody: bool = False) -> None:
        self.data = data
        self._log = data.parent / f"{arguments[0]}.log"
        data.mkdir(exist_ok=True, mode=0o700)
        self._line = ["nsenter", f"--net=/run/netns/{host.name}"]
        if as_nobody:
            os.chown(data, NOBODY, NOBODY)
            self._line += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]
        self._line += [sys.executable, "-m", "forewarn", "--data", str(data), *arguments]
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(self._line, stdout=log, stderr=log, env=clean, cwd="/")

    def output(self) -> str:
        assert self._child is not None
        text = self._log.read_text()
        assert self._child.poll() is None, f"the program has ended:\n{text}"
        return text

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        if self._child is None:
            return 0
        if self._child.poll() is None:
            os.kill(self._child.pid, number)
        code, self._child = self._child.wait(timeout=30), None
        return code


class Service(Program):
    """`forewarn serve` inside a host. Its API is a Unix socket, visible in all network namespaces."""

    def __init__(self, host: Namespace, data: Path, config: Path, *, as_nobody: bool = False) -> None:
        super().__init__(host, data, "serve", "--config", str(config), as_nobody=as_nobody)
        self._outside = ServiceProcess(data=data, port=1, command="serve")

    def start(self) -> None:
        super().start()
        eventually(self._answers, START_TIMEOUT_S)

    def api(self, method: str, path: str, body: Any = None) -> HttpAnswer:
        return self._outside.api(method, path, body)

    def open_names(self) -> list[str]:
        listeners = self.api("GET", "/service").json["listeners"]
        return [listener["name"] for listener in listeners if listener["open"]]

    def restart_vm(self, name: str) -> str:
        """Request a restart of the VM; returns the id of the event."""
        answer = self.api("POST", "/requests", {"operation": "restart", "vms": [name]})
        assert answer.status == 202, answer.body
        return str(answer.json["events"][0]["id"])

    def _answers(self) -> bool:
        self.output()
        try:
            return self.api("GET", "/service").status == 200
        except (OSError, http.client.HTTPException):
            return False


@pytest.fixture
def world(_can_make_namespaces: None) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


@pytest.fixture(scope="session")
def rules() -> Path:
    """The nftables files of docs/how-to/network.md."""
    return RULES


@pytest.fixture(scope="session")
def events_of() -> EventsOf:
    """A function that returns the ids of the events in the response to a poll."""

    def event_ids(answer: tuple[int, str]) -> list[str]:
        status, body = answer
        assert status == 200, body
        return [event["EventId"] for event in json.loads(body)["Events"]]

    return event_ids


@pytest.fixture(scope="session")
def poll() -> str:
    return POLL
