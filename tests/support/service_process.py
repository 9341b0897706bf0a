"""The real service as a child process, for tests that stop or kill it.

    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        service.api("POST", "/requests", {"operation": "restart", "vms": ["web-0"]})
        service.poll("web-0")

With `command="serve"` the service identifies VMs by their source addresses, which must be loopback addresses.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from tests.support.network_parts import NetworkPart

START_TIMEOUT_S = 60.0
_API_ROOT = "/forewarn/v1"
_PORTS = range(20_000, 32_000)  # below the ephemeral ports of outgoing connections
_NO_VARIABLES: Mapping[str, str] = {}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class VmEndpoint:
    """Address and port that serve a VM, and the source address of its calls ("": any)."""

    address: str
    port: int
    source: str = ""


class ServiceProcess:
    """`forewarn up` or `serve` on its own port; leaving the block kills the process."""

    def __init__(
        self,
        *,
        data: Path,
        fleet: str = "",
        port: int = 0,
        command: Literal["up", "serve"] = "up",
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] = _NO_VARIABLES,
        start_s: float = START_TIMEOUT_S,
        bus: str = "",
        part: NetworkPart | None = None,
        program: tuple[str, ...] = ("-m", "forewarn"),
    ) -> None:
        self.data = data
        self._part = part  # the network namespace of the process; None: that of the test
        self._program = program  # what Python runs
        self._bus = bus  # with it, host nodes answer the VMs
        self.port = port or free_port()
        self.environment = environment
        self._start_s = start_s
        self._is_lab = command == "up"
        self._arguments = (command, *self._listen_options(), *arguments)
        self._child: subprocess.Popen[bytes] | None = None
        self._endpoints: dict[str, VmEndpoint] = {}
        data.mkdir(parents=True, exist_ok=True)
        self.log = data / "service.log"
        if fleet:
            (data / "fleet.toml").write_text(fleet, encoding="utf-8")
            self._arguments += ("--fleet", str(data / "fleet.toml"))

    def _listen_options(self) -> tuple[str, ...]:
        if self._is_lab:
            return ("--port", str(self.port))
        if self._bus:
            return ("--bus", self._bus)
        return ("--hypervisor", "simulated", "--listen", f"127.0.0.1:{self.port}")

    def __enter__(self) -> ServiceProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        """Start the process and return once it answers."""
        self.launch()
        deadline = time.monotonic() + self._start_s
        while not self._is_answering():
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the service did not start:\n{self.log.read_text()}")
            time.sleep(0.02)

    def launch(self) -> None:
        """Start the process and return at once. Its output is in `log`, which a test may place elsewhere before."""
        line = [sys.executable, *self._program, "--data", str(self.data), *self._arguments]
        self._endpoints.clear()
        popen: Callable[..., Any] = subprocess.Popen
        if self._part is not None:
            popen = partial(self._part.call, subprocess.Popen)
        with self.log.open("ab") as log:
            self._child = popen(line, stdout=log, stderr=log, env=_clean_environment(self.environment))

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        self._end_with(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM and wait; returns the exit code."""
        return self._end_with(signal.SIGTERM)

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def forewarn(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the `forewarn` command against this service."""
        return run_forewarn(self.data, *arguments)

    def _end_with(self, number: signal.Signals) -> int:
        if self._child is None:
            return 0
        if self._child.poll() is None:
            os.kill(self._child.pid, number)
        code = self._child.wait(timeout=60)
        self._child = None
        return code

    def api(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] = _NO_VARIABLES,
        timeout_s: float = 60.0,
    ) -> HttpAnswer:
        """Call the service's own API; raises OSError if it does not answer."""
        connection = _UnixSocketConnection(self.data / "forewarn.sock", timeout_s)
        payload = json.dumps(body) if body is not None else None
        return _send(connection, method, _API_ROOT + path, payload, {"Content-Type": "application/json", **headers})

    def guest(self, vm: str, method: str, target: str, body: str | None = None, **headers: str) -> HttpAnswer:
        """Send a request as this VM; raises OSError if the service does not answer."""
        connection = self.connect(self.endpoint(vm))
        return _send(connection, method, target, body, {"Metadata": "true", **headers})

    def connect(self, endpoint: VmEndpoint) -> http.client.HTTPConnection:
        """A new connection to an endpoint, which need not be a VM's."""
        source = (endpoint.source, 0) if endpoint.source else None
        return http.client.HTTPConnection(endpoint.address, endpoint.port, timeout=60, source_address=source)

    def poll(self, vm: str, version: str = "2020-07-01") -> Any:
        """The document that this VM receives."""
        return self.guest(vm, "GET", f"/metadata/scheduledevents?api-version={version}").json

    def approve(self, vm: str, *event_ids: str, version: str = "2020-07-01") -> HttpAnswer:
        body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]})
        return self.guest(vm, "POST", f"/metadata/scheduledevents?api-version={version}", body)

    def advance(self, by_s: float) -> None:
        answer = self.api("POST", "/clock/advance", {"by_s": by_s})
        assert answer.status == 200, answer.body

    def endpoint(self, vm: str) -> VmEndpoint:
        if vm not in self._endpoints:
            for known in self.api("GET", "/fleet").json["vms"]:
                self._endpoints[known["name"]] = self._endpoint_of(known)
        return self._endpoints[vm]

    def _endpoint_of(self, known: dict[str, Any]) -> VmEndpoint:
        if not self._is_lab:
            return VmEndpoint("127.0.0.1", self.port, known["address"])
        address, _, port = known["url"].split("/")[2].rpartition(":")
        return VmEndpoint(address, int(port))

    def _is_answering(self) -> bool:
        try:
            return self.api("GET", "/service").status == 200
        except (OSError, http.client.HTTPException):
            return False


class _UnixSocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _send(
    connection: http.client.HTTPConnection, method: str, target: str, body: str | None, headers: dict[str, str]
) -> HttpAnswer:
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return HttpAnswer(response.status, response.read(), dict(response.getheaders()))
    finally:
        connection.close()


def run_forewarn(
    data: Path, *arguments: str, environment: Mapping[str, str] = _NO_VARIABLES
) -> subprocess.CompletedProcess[str]:
    """Run the `forewarn` command to its end; returns its exit code and output."""
    line = _command_line(data, arguments)
    return subprocess.run(
        line, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False, env=_clean_environment(environment)
    )


def _command_line(data: Path, arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "forewarn", "--data", str(data), *arguments]


def _clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the user's settings, and without HTTPS on its shared default port."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
    return plain | {"FOREWARN_API": ""} | dict(environment)


def eventually(condition: Callable[[], T], within_s: float = 120.0) -> T:
    """The value of `condition` once it is true; raises AssertionError if it is not within this time."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r} after {within_s:g} s"
        time.sleep(0.02)
    return value


def free_port(count: int = 1) -> int:
    """The first of `count` consecutive ports that are free on every address."""
    chance = random.SystemRandom()
    while True:
        first = chance.choice(_PORTS)
        if all(_is_port_free(port) for port in range(first, first + count)):
            return first


def _is_port_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
