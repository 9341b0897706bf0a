"""A real service as a child process, for tests that must see it die: `kill -9` included.

with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
    service.api("POST", "/requests", {"ask": "restart", "vms": ["web-0"]})
    service.poll("web-0")
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 60.0
_API = "/forewarn/v1"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ServiceProcess:
    """`forewarn up` on a port of its own. Whatever happens, leaving the block ends the process."""

    def __init__(self, *, data: Path, fleet: str = "", port: int = 0, arguments: tuple[str, ...] = ()) -> None:
        self.data = data
        self.port = port or free_port()
        self._arguments = arguments
        self._child: subprocess.Popen[bytes] | None = None
        self._endpoints: dict[str, tuple[str, int]] = {}
        data.mkdir(parents=True, exist_ok=True)
        self.log = data / "service.log"
        if fleet:
            (data / "fleet.toml").write_text(fleet, encoding="utf-8")
            self._arguments += ("--fleet", str(data / "fleet.toml"))

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
        command = [sys.executable, "-m", "forewarn", "up", "--data", str(self.data), "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen([*command, *self._arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the service did not start:\n{self.log.read_text()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to stop, and wait; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self._child is None:
            return 0
        if self._child.poll() is None:
            os.kill(self._child.pid, number)
        code = self._child.wait(timeout=30)
        self._child = None
        return code

    def api(self, method: str, path: str, body: Any = None) -> Answer:
        """One call of the service's own API; raises OSError when nobody answers."""
        connection = _UnixConnection(self.data / "forewarn.sock")
        payload = json.dumps(body) if body is not None else None
        return _call(connection, method, _API + path, payload, {"Content-Type": "application/json"})

    def guest(self, vm: str, method: str, target: str, body: str | None = None, **headers: str) -> Answer:
        """One call as the VM would make it; raises OSError when nobody answers."""
        address, port = self._endpoint(vm)
        connection = http.client.HTTPConnection(address, port, timeout=15)
        return _call(connection, method, target, body, {"Metadata": "true", **headers})

    def poll(self, vm: str, version: str = "2020-07-01") -> Any:
        """The document this VM is given."""
        return self.guest(vm, "GET", f"/metadata/scheduledevents?api-version={version}").json

    def approve(self, vm: str, *event_ids: str, version: str = "2020-07-01") -> Answer:
        body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]})
        return self.guest(vm, "POST", f"/metadata/scheduledevents?api-version={version}", body)

    def advance(self, by_s: float) -> None:
        answer = self.api("POST", "/clock/advance", {"by_s": by_s})
        assert answer.status == 200, answer.body

    def _endpoint(self, vm: str) -> tuple[str, int]:
        if vm not in self._endpoints:
            for known in self.api("GET", "/fleet").json["vms"]:
                host = known["url"].split("/")[2]
                self._endpoints[known["name"]] = (host.rpartition(":")[0], int(host.rpartition(":")[2]))
        return self._endpoints[vm]

    def _answers(self) -> bool:
        try:
            return self.api("GET", "/service").status == 200
        except (OSError, http.client.HTTPException):
            return False


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _call(
    connection: http.client.HTTPConnection, method: str, target: str, body: str | None, headers: dict[str, str]
) -> Answer:
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(), dict(response.getheaders()))
    finally:
        connection.close()


def free_port() -> int:
    """A port that nobody listens on just now, on any loopback address."""
    with socket.socket() as sock:
        sock.bind(("0.0.0.0", 0))
        port: int = sock.getsockname()[1]
        return port
