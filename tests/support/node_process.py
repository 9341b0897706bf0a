"""`forewarn node run` as a child process, for tests that stop or kill it, and VMs that call it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.network_parts import NetworkPart
from tests.support.service_process import HttpAnswer, free_port

START_S = 60.0
POLL = "/metadata/scheduledevents?api-version=2020-07-01"


class NodeProcess:
    """The node of one host, which identifies VMs by their source addresses on loopback."""

    def __init__(
        self,
        *,
        data: Path,
        host: str,
        bus: str,
        arguments: tuple[str, ...] = (),
        hypervisor: str = "simulated",
        part: NetworkPart | None = None,
    ) -> None:
        self.data, self.host = data, host
        self.part = part  # the network namespace, where also its callers must be; None: that of the test
        self.port = free_port()
        data.mkdir(parents=True, exist_ok=True)
        self.log = data / "node.log"
        self._command = [
            *(sys.executable, "-P", "-m", "forewarn", "--data", str(data), "--json", "node", "run"),
            *("--bus", bus, "--host", host, "--listen", f"127.0.0.1:{self.port}", "--hypervisor", hypervisor),
            *arguments,
        ]
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NodeProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self, *, wait: bool = True) -> None:
        """Start the process and, if asked, return once it answers VMs."""
        environment = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            popen: Callable[..., Any] = subprocess.Popen
            if self.part is not None:
                popen = partial(self.part.call, subprocess.Popen)
            self._child = popen(self._command, stdout=log, stderr=log, env=environment)
        if wait:
            wait_until(lambda: b'"listeners"' in self.log.read_bytes() or not self.is_running, within_s=START_S)
            assert self.is_running, self.log.read_text()

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def wait(self) -> int:
        """Wait until the process ends by itself; returns its exit code."""
        assert self._child is not None
        return self._child.wait(timeout=START_S)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM and wait; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self._child is None:
            return 0
        if self._child.poll() is None:
            self._child.send_signal(number)
        code = self._child.wait(timeout=60)
        self._child = None
        return code

    def send(
        self, address: str, method: str, target: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Send a request as the VM with this address; raises OSError if nobody answers."""
        return send_as_vm(self.port, address, method, target, body, headers)

    def poll(self, address: str) -> Any:
        """The document that the VM with this address receives; None for an unknown VM."""
        answer = self.send(address, "GET", POLL)
        assert answer.status in (200, 404), answer
        return answer.json if answer.status == 200 else None

    def approve(self, address: str, *event_ids: str) -> int:
        """Approve events as the VM with this address; returns the status."""
        body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]})
        return self.send(address, "POST", POLL, body).status


def send_as_vm(
    port: int,
    address: str,
    method: str,
    target: str,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpAnswer:
    """Send a request to a node on this port as the VM with this address; raises OSError if nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(address, 0))
    try:
        default = {"Metadata": "true", "Content-Type": "application/json"}
        connection.request(method, target, body, default | dict(headers or {}))
        answer = connection.getresponse()
        return HttpAnswer(answer.status, answer.read(), dict(answer.getheaders()))
    finally:
        connection.close()


def wait_until(condition: Callable[[], Any], *, within_s: float = 30.0) -> float:
    """Wait until this holds; returns how long that took, in seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, "the condition did not become true in time"
        time.sleep(0.01)
    return time.monotonic() - began
