"""Limits of connections to the console: silent, slow and endless peers cannot keep it busy."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.auth.certificates import ServiceCertificates
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.web.server import (
    HANDSHAKE_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    WRITE_TIMEOUT_S,
    max_connections,
    serve_tls,
    serve_unix,
)

HEAD = b"GET /forewarn/v1/clock HTTP/1.1\r\nHost: forewarn\r\n"
INCOMPLETE_REQUESTS = [
    pytest.param(b"", id="nothing"),
    pytest.param(HEAD, id="half a head"),
    pytest.param(
        HEAD.replace(b"GET", b"POST").replace(b"clock", b"requests") + b"Content-Length: 9\r\n\r\n{}", id="half a body"
    ),
]


class SkippableTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time a test can advance."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


@pytest.fixture
def serve(api: Any, tmp_path: Path) -> Callable[[Callable[[SkippableTimeLoop, Any], Awaitable[Any]]], Any]:
    path = tmp_path / "forewarn.sock"

    async def within(scenario: Callable[[SkippableTimeLoop, Any], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        async with serve_unix(api.app, path):
            return await scenario(loop, lambda: asyncio.open_unix_connection(str(path)))  # type: ignore[arg-type]

    def run(scenario: Callable[[SkippableTimeLoop, Any], Awaitable[Any]]) -> Any:
        with asyncio.Runner(loop_factory=SkippableTimeLoop) as runner:
            return runner.run(within(scenario))

    return run


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends one request and reads its response; the connection stays open."""
    writer.write(HEAD + b"\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"content-length"))
    await reader.readexactly(length)


async def another_client_is_answered(connect: Any) -> None:
    reader, writer = await connect()
    await answered(reader, writer)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("is_first", [True, False], ids=["first request", "next request"])
@pytest.mark.parametrize("incomplete", INCOMPLETE_REQUESTS)
def test_a_connection_is_closed_when_its_request_takes_too_long(serve: Any, incomplete: bytes, is_first: bool) -> None:
    async def scenario(loop: SkippableTimeLoop, connect: Any) -> None:
        reader, writer = await connect()
        if not is_first:
            await answered(reader, writer)
        writer.write(incomplete)
        await another_client_is_answered(connect)  # then the server has read the bytes above
        loop.ahead_s += REQUEST_TIMEOUT_S
        try:
            assert not (await reader.read()).startswith(b"HTTP/1.1 200")
        except ConnectionResetError:
            pass
        writer.close()

    serve(scenario)


def test_a_connection_stays_open_while_its_response_takes_long(serve: Any, api: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, connect: Any) -> bytes:
        reader, writer = await connect()
        seq = api.world.store.last_seq()
        target = f"/forewarn/v1/history?after={seq}&wait_s=60".encode()
        writer.write(HEAD.replace(b"/forewarn/v1/clock", target) + b"Connection: close\r\n\r\n")
        await another_client_is_answered(connect)
        loop.ahead_s += REQUEST_TIMEOUT_S + 1
        answer: bytes = await reader.read()
        writer.close()
        return answer

    assert serve(scenario).startswith(b"HTTP/1.1 200 OK")


def test_a_connection_is_closed_when_its_response_is_not_read(serve: Any, api: Any) -> None:
    entry = HistoryEntry(at=0, what=EntryKind.CLOCK, text="tick" * 250)
    api.world.do(api.world.store.commit(Commit(entries=(entry,) * 2000)))

    async def scenario(loop: SkippableTimeLoop, connect: Any) -> int:
        reader, writer = await connect()
        reader._transport.pause_reading()
        writer.write(HEAD.replace(b"clock", b"history?limit=2000") + b"\r\n")
        for _ in range(3):
            await another_client_is_answered(connect)
        loop.ahead_s += WRITE_TIMEOUT_S
        await another_client_is_answered(connect)
        reader._transport.resume_reading()
        try:
            received = len(await reader.read())
        except ConnectionResetError:
            received = 0
        writer.close()
        return received

    assert serve(scenario) < 2000 * len(entry.text)


def test_an_endless_request_head_is_rejected(serve: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, connect: Any) -> bytes:
        reader, writer = await connect()
        writer.write(HEAD + b"X-Long: " + b"x" * 200_000)
        answer: bytes = await reader.read(15)
        writer.close()
        return answer

    assert serve(scenario) == b"HTTP/1.1 400 Ba"


@pytest.fixture
def few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(128, 3 * len(os.listdir("/proc/self/fd"))), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_use_only_a_part_of_the_open_files(serve: Any, few_files: None) -> None:
    async def scenario(loop: SkippableTimeLoop, connect: Any) -> int:
        connections = [await connect() for _ in range(max_connections())]
        await answered(*connections[-1])
        one_too_many = await connect()
        waiting = asyncio.create_task(answered(*one_too_many))
        await answered(*connections[-1])
        assert not waiting.done()
        connections[0][1].close()
        await waiting
        for _, each in (*connections, one_too_many):
            each.close()
        return len(connections)

    assert 0 < serve(scenario) <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4


def test_a_connection_is_closed_when_its_handshake_takes_too_long(api: Any, tmp_path: Path) -> None:
    pair = ServiceCertificates.load_or_create(tmp_path, (), time.time()).server

    async def scenario() -> bytes:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippableTimeLoop)
        sock = socket.create_server(("127.0.0.1", 0))
        async with serve_tls(api.app, sock, pair.certificate, pair.key):
            address = sock.getsockname()
            reader, writer = await asyncio.open_connection(*address)
            trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem")
            other = await asyncio.open_connection(*address, ssl=trusting, server_hostname="localhost")
            await answered(*other)  # then the connection before it was accepted
            loop.ahead_s += HANDSHAKE_TIMEOUT_S
            received = await reader.read()
            for each in (writer, other[1]):
                each.close()
            return received

    with asyncio.Runner(loop_factory=SkippableTimeLoop) as runner:
        assert runner.run(scenario()) == b""
