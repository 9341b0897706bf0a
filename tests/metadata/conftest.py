"""A metadata server on real loopback sockets with a fake backend; scenarios run on asyncio and uvloop."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import uvloop

from forewarn.metadata import (
    CallerDirectory,
    LabListeners,
    Limits,
    MetadataServer,
    PublishedDocuments,
    open_lab_listeners,
)
from forewarn.protocol.document import EventNotice, Kind, NoticeStatus
from forewarn.protocol.exchange import EndpointRules
from tests.support.metadata_backend import FakeMetadataBackend

ADDRESSES = {"a": "127.0.7.1", "b": "127.0.7.2", "other": "127.0.7.3", "unknown": "127.0.7.9"}
POLL = "/metadata/scheduledevents?api-version=2020-07-01"
SCENARIO_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """An HTTP client that sends raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def reply(self, *, head_only: bool = False) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        length = 0 if head_only else int(headers.get("content-length", "0"))
        return Reply(status=int(status), headers=headers, body=await self.reader.readexactly(length))

    async def ask(self, target: str = POLL, *, method: str = "GET", body: bytes = b"", **headers: str) -> Reply:
        self.send(request(target, method=method, body=body, **headers))
        return await self.reply(head_only=method == "HEAD")

    async def is_closed(self) -> bool:
        """Wait until the server closes the connection; False if it sends anything before."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    def pause_reading(self) -> None:
        self._transport().pause_reading()

    def resume_reading(self) -> None:
        self._transport().resume_reading()

    def _transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self.writer.transport)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Reset the connection, so that the server does not take it for a half-closed one."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def request(target: str = POLL, *, method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
    given = {"Host": "169.254.169.254", "Metadata": "true"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    if body:
        given["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def notice(event_id: str = "EVENT-1", **changes: Any) -> EventNotice:
    defaults: dict[str, Any] = {
        "id": event_id,
        "status": NoticeStatus.SCHEDULED,
        "kind": Kind.REBOOT,
        "resources": ("a",),
        "not_before": 1_700_000_900.0,
    }
    return EventNotice(**(defaults | changes))


@dataclass(kw_only=True)
class World:
    documents: PublishedDocuments
    backend: FakeMetadataBackend
    callers: CallerDirectory
    server: MetadataServer
    lab: LabListeners
    clients: list[Client] = field(default_factory=list)

    async def connect(self, vm: str = "a") -> Client:
        return await self.dial(*self.lab.endpoint(ADDRESSES[vm]))

    async def dial(self, host: str, port: int, *, local: str = "") -> Client:
        local_addr = (local, 0) if local else None
        client = Client(*await asyncio.open_connection(host, port, local_addr=local_addr))
        self.clients.append(client)
        return client

    async def ask(self, target: str = POLL, *, vm: str = "a", **given: Any) -> Reply:
        return await (await self.connect(vm)).ask(target, **given)

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0.001)

    async def next_turn(self) -> None:
        await asyncio.sleep(0)

    async def pause(self) -> None:
        """Wait a little between two sends; no result depends on the time."""
        await asyncio.sleep(0.005)

    async def close(self) -> None:
        for client in self.clients:
            client.close()
        await self.server.drain(0.5)
        for client in self.clients:
            with suppress(OSError):
                await client.writer.wait_closed()


Scenario = Callable[[World], Awaitable[None]]
RunScenario = Callable[..., None]
MakeRequest = Callable[..., bytes]
MakeNotice = Callable[..., EventNotice]


async def make_world(
    *,
    limits: Limits | None = None,
    rules: Callable[[str], EndpointRules] = lambda location: EndpointRules(),
    enabled: bool = True,
    delay_s: float = 0.0,
    imds_headers: bool = False,
) -> World:
    documents, callers = PublishedDocuments(first_answer_delay_s=delay_s), CallerDirectory()
    backend = FakeMetadataBackend(documents)
    backend.add_scope("pair", "a", "b", enabled=enabled)
    backend.add_scope("single", "other", location="northeurope")
    lab = open_lab_listeners(lambda: list(ADDRESSES.values()), 0)
    for vm in ("a", "b", "other"):
        callers.assign(lab.attachment(ADDRESSES[vm]), vm)
    server = MetadataServer(
        documents=documents,
        backend=backend,
        callers=callers,
        rules_for=rules,
        limits=limits,
        imds_headers=imds_headers,
    )
    await server.start([lab.listener])
    return World(documents=documents, backend=backend, callers=callers, server=server, lab=lab)


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


@pytest.fixture
def run_scenario(runner: asyncio.Runner) -> RunScenario:
    """Run a scenario in a new world; it fails after a timeout."""

    async def run(scenario: Scenario, **given: Any) -> None:
        async with asyncio.timeout(SCENARIO_TIMEOUT_S):
            world = await make_world(**given)
            try:
                await scenario(world)
            finally:
                await world.close()

    return lambda scenario, **given: runner.run(run(scenario, **given))


@pytest.fixture(name="request_bytes", scope="session")
def _request_bytes() -> MakeRequest:
    return request


@pytest.fixture(name="notice", scope="session")
def _notice() -> MakeNotice:
    return notice
