"""Control nodes as processes on a real PostgreSQL, for tests that stop, kill and resume them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from forewarn.cluster.nats_config import CONTROL_CREDENTIALS_FILE
from forewarn.service.cluster_secrets import create_cluster_secrets
from tests.support.network_parts import NetworkPart
from tests.support.service_process import HttpAnswer, ServiceProcess, free_port

LIMIT_S = 60.0
_NO_VARIABLES: Mapping[str, str] = {}
FLEET = """
[[hosts]]
name = "h1"

[[vms]]
name = "web-0"
host = "h1"
address = "127.0.0.1"

[[vms]]
name = "db"
host = "h1"
address = "127.0.0.2"
"""


class ProcessCluster:
    """Control nodes of one cluster as processes. `store` is the URL of their record, which must be migrated.

    With `bus`, host nodes answer the VMs of the fleet. A node may take `start_s` to start.
    """

    def __init__(
        self,
        directory: Path,
        store: str,
        *,
        bus: str = "",
        fleet: str = FLEET,
        start_s: float = LIMIT_S,
        part_of: Callable[[str], NetworkPart | None] = lambda name: None,
    ) -> None:
        self.part_of = part_of  # name of a node → its network namespace
        self.directory, self.store, self.bus, self.fleet = directory, store, bus, fleet
        self._start_s = start_s
        self.secrets = directory / "secrets"
        create_cluster_secrets(self.secrets, time.time())
        self.nodes: dict[str, ServiceProcess] = {}
        self._api_url = f"https://localhost:{free_port()}"

    def node(
        self,
        name: str,
        data: str = "",
        *,
        program: tuple[str, ...] = ("-m", "forewarn"),
        environment: Mapping[str, str] = _NO_VARIABLES,
        **options: str,
    ) -> ServiceProcess:
        """Return a node, which is not started; `options` replace those of the command line.

        `data` is the name of its data directory; "": as its own. `program` is what Python runs.
        """
        part = self.part_of(name)
        given = {
            "store": self.store,
            "name": name,
            "api": f"{'127.0.0.1' if part is None else part.address}:{free_port()}",
            "api-url": self._api_url,
            "secrets": str(self.secrets),
            "enablement": "always",
            **{option.replace("_", "-"): value for option, value in options.items()},
        }
        arguments = tuple(part for option, value in given.items() for part in (f"--{option}", value))
        node = ServiceProcess(
            data=self.directory / (data or name),
            fleet=self.fleet,
            command="serve",
            arguments=arguments,
            start_s=self._start_s,
            bus=self.bus,
            environment={**environment, **self._credentials()},
            part=part,
            program=program,
        )
        node.log = self.directory / f"{data or name}.log"  # also readable if the disk of the data is full
        return node

    def _credentials(self) -> dict[str, str]:
        return {"FOREWARN_BUS_CREDENTIALS": str(self.secrets / CONTROL_CREDENTIALS_FILE)} if self.bus else {}

    def start(self, name: str, **options: Any) -> ServiceProcess:
        """Start a node; returns it when it answers, itself or through the active one."""
        node = self.nodes[name] = self.node(name, **options)
        node.start()
        return node

    def active(self) -> str:
        """The name of the active node, as any node knows it; "" if none is."""
        for node in self.nodes.values():
            if node.is_running:
                try:
                    return str(node.api("GET", "/nodes").json["active"])
                except OSError:
                    continue
        return ""

    def __enter__(self) -> ProcessCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            if node.is_running:
                os.kill(node.pid, signal.SIGCONT)
            node.kill()


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds, and return its value."""
    end = time.monotonic() + LIMIT_S
    while not (found := _value(condition)):
        assert time.monotonic() < end, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.02)
    return found


def _value(condition: Callable[[], Any]) -> Any:
    try:
        return condition()
    except (OSError, http.client.HTTPException):  # the process is not there now, or has just ended
        return None


def request_reapply(node: ServiceProcess, key: str, vm: str = "db") -> HttpAnswer:
    """Ask for something that can be asked for any number of times, with this key."""
    return node.api("POST", "/requests", {"operation": "reapply", "vms": [vm]}, {"Idempotency-Key": key})


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that a command printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
