"""Hosts and VMs made of network namespaces, by iproute2 and nftables; whatever happens, all is gone afterwards.

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

from forewarn.metadata.netns import run_in_namespace
from tests.support.service_process import START_TIMEOUT_S, HttpAnswer, ServiceProcess, eventually

METADATA = "169.254.169.254"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
POLL = "/metadata/scheduledevents?api-version=2020-07-01"
NOBODY = 65534
RULES = Path(__file__).parents[2] / "docs" / "network"
_TURNS = itertools.count()


def _why_not() -> str:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces are made by root, on Linux"
    missing = [tool for tool in ("ip", "nft", "nsenter", "setpriv") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} missing: `make test-namespaces` installs iproute2 and nftables"
    probe = f"fwprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "this machine does not allow root to make network namespaces"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return ""


@pytest.fixture(scope="session")
def _can_make_namespaces() -> None:
    if why := _why_not():
        pytest.skip(why)


def run(*words: str, text: str = "") -> str:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{text}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class Call:
    """A connection of a VM, held open until the test ends."""

    sock: socket.socket

    def ask(self, target: str = NAME, method: str = "GET") -> tuple[int, str]:
        self.sock.sendall(f"{method} {target} HTTP/1.1\r\nHost: {METADATA}\r\nMetadata: true\r\n\r\n".encode())
        response = http.client.HTTPResponse(self.sock)
        response.begin()
        return response.status, response.read().decode()


@dataclass(frozen=True, slots=True)
class Namespace:
    """One network namespace; a VM's, or a host's."""

    name: str
    stack: ExitStack

    def ip(self, *lines: str) -> None:
        run("ip", "-n", self.name, "-batch", "-", text="\n".join(lines) + "\n")

    def shown(self, *words: str) -> str:
        return run("ip", "-n", self.name, *words)

    def sysctl(self, **settings: int) -> None:
        for name, value in settings.items():
            path = Path("/proc/sys/net/ipv4") / name.replace("__", "/")
            self.inside(partial(path.write_text, str(value)))

    def nft(self, *words: str) -> str:
        return run("nsenter", f"--net=/run/netns/{self.name}", "nft", *words)

    def inside(self, function: Callable[[], Any]) -> Any:
        return run_in_namespace(self.name, function)

    def call(self, *, source: str = "", port: int = 0, patience_s: float = 15.0) -> Call:
        """Connect to the metadata address from here, perhaps from an address and a port of one's choice."""
        sock = self.stack.enter_context(self.inside(socket.socket))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.settimeout(patience_s)
        if source:
            sock.bind((source, port))
        sock.connect((METADATA, 80))
        return Call(sock)

    def ask(self, target: str = NAME, *, patience_s: float = 15.0) -> tuple[int, str]:
        return self.call(patience_s=patience_s).ask(target)

    def gets_nothing(self) -> bool:
        """Whether nobody answers here: refused, no route, or silence."""
        try:
            self.ask(patience_s=1.5)
        except OSError:
            return True
        return False


class World:
    """Namespaces of one test, and the programs that run in them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._turn = f"fw{os.getpid()}x{next(_TURNS)}"
        # Not pytest's own: a service that is nobody must get there.
        self.place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forewarn-network-")))
        self.place.chmod(0o755)

    def namespace(self, name: str) -> Namespace:
        full = f"{self._turn}-{name}"
        run("ip", "netns", "add", full)
        self._stack.callback(subprocess.run, ["ip", "netns", "del", full], capture_output=True, check=False)
        made = Namespace(full, self._stack)
        made.ip("link set lo up")
        return made

    def host(self) -> Namespace:
        """A host with the metadata address, which lets its taps answer for it (rp_filter off)."""
        made = self.namespace("host")
        made.ip(f"addr add {METADATA}/32 dev lo")
        made.sysctl(conf__all__rp_filter=0, conf__default__rp_filter=0)
        return made

    def vm(self, name: str, host: Namespace, tap: str, address: str = "10.0.0.4", mac: str = "") -> Namespace:
        """A VM whose only device is the other end of a tap on the host."""
        made = self.namespace(name)
        self.plug(made, host, tap, address, mac)
        return made

    def plug(self, vm: Namespace, host: Namespace, tap: str, address: str = "10.0.0.4", mac: str = "") -> None:
        host.ip(f"link add {tap} address 12:34:56:78:9a:bc type veth peer name eth0 netns {vm.name}")
        host.ip(f"link set {tap} up")
        wear = f"link set eth0 address {mac}" if mac else "link set eth0 up"
        vm.ip(wear, "link set eth0 up", f"addr add {address}/24 dev eth0", f"route add {METADATA} dev eth0")

    def settings(self, fleet: str, text: str) -> Path:
        (self.place / "fleet.toml").write_text(fleet, encoding="utf-8")
        path = self.place / "forewarn.toml"
        path.write_text(f'fleet = "{self.place}/fleet.toml"\nenablement = "always"\n{text}', encoding="utf-8")
        return path

    def service(self, host: Namespace, fleet: str, listeners: str, **given: Any) -> Service:
        service = Service(host, self.place / "data", self.settings(fleet, listeners), **given)
        self._stack.callback(service.kill)
        service.start()
        return service

    def helper(self, host: Namespace) -> Program:
        """`forewarn sockets`, as root."""
        data = self.place / "data"
        program = Program(host, data, "sockets", "--config", str(self.place / "forewarn.toml"))
        self._stack.callback(program.kill)
        program.start()
        eventually(lambda: "passed to the service in" in program.output(), START_TIMEOUT_S)
        return program


class Program:
    """`forewarn …` inside a host, as root or as nobody."""

    def __init__(self, host: Namespace, data: Path, *words: str, as_nobody: bool = False) -> None:
        self.data = data
        self._log = data.parent / f"{words[0]}.log"
        data.mkdir(exist_ok=True, mode=0o700)
        self._line = ["nsenter", f"--net=/run/netns/{host.name}"]
        if as_nobody:
            os.chown(data, NOBODY, NOBODY)
            self._line += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]
        self._line += [sys.executable, "-m", "forewarn", "--data", str(data), *words]
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(self._line, stdout=log, stderr=log, env=clean, cwd="/")

    def output(self) -> str:
        assert self._child is not None
        text = self._log.read_text()
        assert self._child.poll() is None, f"it ended:\n{text}"
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
    """`forewarn serve` inside a host; its API is a unix socket, which no network namespace hides."""

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
        """Ask for a restart, so that there is an event; its id."""
        answer = self.api("POST", "/requests", {"ask": "restart", "vms": [name]})
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
    """The nftables files of docs/network.md."""
    return RULES


@pytest.fixture(scope="session")
def events_of() -> Callable[[tuple[int, str]], list[str]]:
    """The ids of the events in the answer to a poll."""

    def given(answer: tuple[int, str]) -> list[str]:
        status, body = answer
        assert status == 200, body
        return [event["EventId"] for event in json.loads(body)["Events"]]

    return given


@pytest.fixture(scope="session")
def poll() -> str:
    return POLL
