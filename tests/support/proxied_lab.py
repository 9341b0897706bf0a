"""A lab with the crash test's proxy in front of one VM, and raw HTTP clients for it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from forewarn.client.http1 import ResponseReader
from forewarn.crash_test.proxy import Proxy
from forewarn.crash_test.timeline import Observation, Polled, Poller
from forewarn.lab import Lab
from forewarn.lab.values import LabEvent
from forewarn.protocol.http_message import HttpResponse

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
_TIMEOUT_S = 30.0
T = TypeVar("T")


def request(target: str = TARGET, *, method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request, by default of a poll; a header `If_None_Match` is If-None-Match."""
    given = {"Host": "169.254.169.254", "Metadata": "true"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    if body:
        given["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def approval(*ids: str) -> bytes:
    """The bytes of a request that approves these events."""
    body = json.dumps({"StartRequests": [{"EventId": each} for each in ids]}).encode()
    return request(method="POST", body=body)


@dataclass(frozen=True)
class RawClient:
    """One connection of a handler."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, raw: bytes) -> HttpResponse:
        """Send these bytes and return the next answer."""
        self.writer.write(raw)
        response = ResponseReader()
        while True:
            answer = response.feed(await self.reader.read(65536))
            if answer is not None:
                return answer

    async def is_closed(self) -> bool:
        """Wait until the other side closes or resets; False if it sends anything before."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def converse(address: tuple[str, int], raw: bytes) -> bytes:
    """Send the bytes, end the sending side, and return what is received until the other side closes."""
    client = RawClient(*await asyncio.open_connection(*address))
    try:
        client.writer.write(raw)
        client.writer.write_eof()
        return await client.reader.read()
    finally:
        await client.close()


@dataclass
class ProxiedLab:
    """A lab with the VMs a and b, and a proxy in front of a, on the running event loop."""

    lab: Lab
    proxy: Proxy
    address: tuple[str, int]  # of the proxy
    upstream: tuple[str, int]  # of the service
    observations: list[Observation] = field(default_factory=list)
    clients: list[RawClient] = field(default_factory=list)

    async def connect(self, address: tuple[str, int] | None = None) -> RawClient:
        """A connection to the proxy, or to another address; it is closed with the lab."""
        client = RawClient(*await asyncio.open_connection(*(address or self.address)))
        self.clients.append(client)
        return client

    async def ask(self, raw: bytes | None = None) -> HttpResponse:
        """Send a request, by default a poll, on a connection of its own."""
        client = await self.connect()
        try:
            return await client.ask(raw or request())
        finally:
            await client.close()

    async def hold_poll(self) -> RawClient:
        """A connection whose long poll the service holds; the second poll that is recorded."""
        client = await self.connect()
        tag = dict((await client.ask(request())).headers)["etag"]
        client.writer.write(request(If_None_Match=tag, Prefer="wait=60"))
        while not await self.in_lab(
            lambda: self.lab.read(lambda service: service.publisher.frontend.request_totals().held)
        ):
            pass
        return client

    async def reboot(self) -> LabEvent:
        """Publish a Reboot of VM a."""
        return await self.in_lab(lambda: self.lab.reboot("a"))

    async def in_lab(self, call: Callable[[], T]) -> T:
        """Call the lab, which waits for its own thread, beside the event loop."""
        return await asyncio.to_thread(call)

    async def polls(self, count: int = 1) -> list[Polled]:
        """Wait until this many polls were recorded, and return them."""
        return await self.until_seen(Polled, count)

    async def until_seen(self, kind: type[T], count: int = 1) -> list[T]:
        """Wait until this many observations of this type were recorded, and return them."""
        await self.until(lambda: len(self.seen(kind)) >= count)
        return self.seen(kind)

    def seen(self, kind: type[T]) -> list[T]:
        """The observations of this type, in the order in which they were recorded."""
        return [item for item in self.observations if isinstance(item, kind)]

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0.002)


Scenario = Callable[[ProxiedLab], Awaitable[None]]
RunScenario = Callable[[Scenario], None]


def listening_socket() -> socket.socket:
    """A socket that listens on a free port of loopback."""
    return socket.create_server(("127.0.0.1", 0))


def lab_address(lab: Lab) -> tuple[str, int]:
    """Where the lab's service answers VM a."""
    parts = urlsplit(lab.vm("a").endpoint)
    return str(parts.hostname), int(parts.port or 0)


def make_proxy(
    listener: socket.socket, upstream: tuple[str, int], observations: list[Observation], by: Poller = Poller.HANDLER
) -> Proxy:
    """A proxy for VM a, not started, that records by the time of the running event loop."""
    return Proxy(
        listener=listener,
        upstream=upstream,
        vm="a",
        by=by,
        now=asyncio.get_running_loop().time,
        record=observations.append,
    )


async def play_scenario(scenario: Scenario, lab: Lab) -> None:
    """Run a scenario with a proxy of its own in front of this lab; it fails after a timeout."""
    listener = listening_socket()
    observations: list[Observation] = []
    upstream = lab_address(lab)
    proxy = make_proxy(listener, upstream, observations)
    world = ProxiedLab(lab, proxy, listener.getsockname(), upstream, observations)
    await proxy.start()
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await scenario(world)
    finally:
        await proxy.close()
        for client in world.clients:
            await client.close()
    assert proxy.open_connections == 0
