"""Control nodes of one cluster in this process: a record in memory, real sockets, and a clock that tests move.

with MemoryCluster(tmp_path) as cluster:
    first = cluster.start("c1")
    cluster.until(lambda: first.node.role == "active")
"""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import ssl
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx2

from forewarn.auth.certificates import ca_certificate_path
from forewarn.base.times import RealTime
from forewarn.cluster.following import build_copy
from forewarn.service.cluster_secrets import create_cluster_secrets
from forewarn.service.control_node import NodeTiming
from forewarn.service.node_wiring import ControlNodeProcess, running_control_node
from forewarn.service.settings import Settings, load_settings
from tests.support.memory_record import MemoryRecordServer
from tests.support.service_process import free_port

T = TypeVar("T")
LIMIT_S = 60.0  # of every wait
CONSOLE_URL = "https://localhost:8443"
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


@cache
def _templates() -> Path:
    """A directory with secrets, and with a data directory whose copy is empty: both take time to make."""
    directory = Path(tempfile.mkdtemp(prefix="forewarn-cluster-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    create_cluster_secrets(directory / "secrets", time.time())
    (directory / "data").mkdir(mode=0o700)
    build_copy(directory / "data" / "forewarn.db", MemoryRecordServer().connect())
    return directory


def _template(name: str, path: Path) -> Path:
    """Copy a template to a path, which must not exist; returns the path."""
    shutil.copytree(_templates() / name, path)
    return path


class MemoryCluster:
    """Control nodes of one cluster. `server` is their record; `ended` has the nodes that had to end, with reasons."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.later_s = 0.0
        self.server = MemoryRecordServer(clock=self.now)
        self.secrets = _template("secrets", directory / "secrets")
        self.fleet = directory / "fleet.toml"
        self.fleet.write_text(FLEET, encoding="utf-8")
        self.ended: dict[str, str] = {}
        self._settings = settings
        self._runner = asyncio.Runner()
        self._stacks: dict[str, AsyncExitStack] = {}

    def now(self) -> float:
        """The time of all machines and of the record's server."""
        return time.time() + self.later_s

    def settings(self, name: str, **changes: Any) -> Settings:
        """The settings of a node."""
        flags = {
            "data": str(self.directory / name),
            "store": "postgresql://memory/forewarn",
            "name": name,
            "api": "127.0.0.1:0",
            "api_url": CONSOLE_URL,
            "secrets": str(self.secrets),
            "listen": [f"127.0.0.1:{free_port()}"],
            "hypervisor": "simulated",
            "enablement": "always",
            "fleet": str(self.fleet),
        }
        return load_settings({**flags, **self._settings, **changes}, lab=False, environ={})

    def start(self, name: str, real_time: Callable[[], float] | None = None, **changes: Any) -> ControlNodeProcess:
        """Start a node; returns it once it follows the record."""
        return self.do(self.starting(name, real_time, **changes))

    async def starting(
        self, name: str, real_time: Callable[[], float] | None = None, **changes: Any
    ) -> ControlNodeProcess:
        stack, settings = AsyncExitStack(), self.settings(name, **changes)
        if not settings.directory.exists():
            _template("data", settings.directory)
        node = running_control_node(
            settings,
            open_record=lambda url: self.server.connect(),
            end=partial(self._end, name),
            timing=NodeTiming(follow_s=0.02, describe_s=0.05),
            real_time=lambda: RealTime((real_time or self.now)()),
        )
        process = await stack.enter_async_context(node)
        self._stacks[name] = stack
        return process

    def _end(self, name: str, reason: str) -> None:
        self.ended.setdefault(name, reason)

    def stop(self, name: str) -> None:
        """Stop a node as SIGTERM does."""
        self.do(self._stacks.pop(name).aclose())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the nodes."""

        async def limited() -> T:
            async with asyncio.timeout(LIMIT_S):
                return await work

        return self._runner.run(limited())

    def until(self, condition: Callable[[], object]) -> None:
        """Let the nodes run until a condition holds."""

        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.01)

        self.do(wait())

    def until_active(self, process: ControlNodeProcess) -> None:
        """Let the nodes run until this one is active."""
        self.until(lambda: process.node.role == "active")

    def call(self, process: ControlNodeProcess, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Call the API of a node on its unix socket; returns the response."""
        return self.do(self.calling(process, method, path, body, **headers))

    async def calling(
        self, process: ControlNodeProcess, method: str, path: str, body: Any = None, **headers: str
    ) -> httpx2.Response:
        transport = httpx2.AsyncHTTPTransport(uds=str(Path(process.settings.data) / "forewarn.sock"))
        return await self._send(transport, "http://localhost", method, path, body, headers)

    async def calling_console(
        self, process: ControlNodeProcess, method: str, path: str, body: Any = None, **headers: str
    ) -> httpx2.Response:
        """Call a node at its HTTPS port."""
        trust = ssl.create_default_context(cafile=ca_certificate_path(self.secrets))
        transport = httpx2.AsyncHTTPTransport(verify=trust, trust_env=False)
        return await self._send(transport, process.node.url, method, path, body, headers)

    async def _send(
        self,
        transport: httpx2.AsyncHTTPTransport,
        base: str,
        method: str,
        path: str,
        body: Any,
        headers: dict[str, str],
    ) -> httpx2.Response:
        content = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx2.AsyncClient(transport=transport, base_url=base, timeout=LIMIT_S) as client:
            return await client.request(method, f"/forewarn/v1{path}", content=content, headers=named)

    def __enter__(self) -> MemoryCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self._stacks)):
            self.stop(name)
        self._runner.close()
