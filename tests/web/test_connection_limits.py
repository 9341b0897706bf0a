"""Limits of connections to the console: silent, slow and endless peers cannot keep it busy."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from forewarn.auth.certificates import ServiceCertificates
from forewarn.core.access import Grant, Principal, Role
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.errors import Unauthenticated
from forewarn.service.web_server import build_web_app
from forewarn.web.connection_slots import EVICT_AFTER_S, ConnectionShares, claim_connection
from forewarn.web.server import (
    ANONYMOUS_REQUEST_TIMEOUT_S,
    HANDSHAKE_TIMEOUT_S,
    HEAD_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    WRITE_TIMEOUT_S,
    serve_tls,
    serve_unix,
)

_START_TIME = 1000.0  # a whole number, so that times add up exactly
HEAD = b"GET /forewarn/v1/clock HTTP/1.1\r\nHost: forewarn\r\n"
INCOMPLETE_REQUESTS = [
    pytest.param(b"", HEAD_TIMEOUT_S, id="nothing"),
    pytest.param(HEAD, HEAD_TIMEOUT_S, id="half a head"),
    pytest.param(
        HEAD.replace(b"GET", b"POST").replace(b"clock", b"requests") + b"Content-Length: 9\r\n\r\n{}",
        ANONYMOUS_REQUEST_TIMEOUT_S,
        id="half a body",
    ),
]


class SkippableTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still, except that a test advances it by `ahead_s`, until `run_freely`.

    So no timer ends because the machine is busy.
    """

    ahead_s = 0.0
    _runs_since: float | None = None  # real time

    def time(self) -> float:
        runs_s = 0.0 if self._runs_since is None else super().time() - self._runs_since
        return _START_TIME + self.ahead_s + runs_s

    def run_freely(self) -> None:
        """Lets time pass, which a server needs in order to stop."""
        self._runs_since = super().time()


@pytest.fixture
def serve(api: Any, tmp_path: Path) -> Callable[[Callable[[SkippableTimeLoop, Any], Awaitable[Any]]], Any]:
    path = tmp_path / "forewarn.sock"

    async def within(scenario: Callable[[SkippableTimeLoop, Any], Awaitable[Any]]) -> Any:
        loop: Any = asyncio.get_running_loop()
        async with serve_unix(api.app, path):
            try:
                return await scenario(loop, lambda: asyncio.open_unix_connection(str(path)))
            finally:
                loop.run_freely()

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


async def answer_to(connect: Any, caller: str = "", target: bytes = b"/forewarn/v1/clock") -> bytes:
    """The head and body of the response to one request of this caller, on its own connection."""
    reader, writer = await connect()
    try:
        head = HEAD.replace(b"/forewarn/v1/clock", target)
        writer.write(head + f"X-Caller: {caller}\r\nConnection: close\r\n\r\n".encode())
        answer: bytes = await reader.read()
        return answer
    finally:
        writer.close()


async def another_client_is_answered(connect: Any) -> None:
    reader, writer = await connect()
    await answered(reader, writer)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("is_first", [True, False], ids=["first request", "next request"])
@pytest.mark.parametrize(("incomplete", "timeout_s"), INCOMPLETE_REQUESTS)
def test_a_connection_is_closed_when_its_request_takes_too_long(
    serve: Any, incomplete: bytes, timeout_s: float, is_first: bool
) -> None:
    async def scenario(loop: SkippableTimeLoop, connect: Any) -> None:
        reader, writer = await connect()
        if not is_first:
            await answered(reader, writer)
        writer.write(incomplete)
        await another_client_is_answered(connect)  # then the server has read the bytes above
        loop.ahead_s += HEAD_TIMEOUT_S
        await another_client_is_answered(connect)  # the head of a request has its own timer
        loop.ahead_s += timeout_s - HEAD_TIMEOUT_S
        try:
            assert not (await reader.read()).startswith(b"HTTP/1.1 200")
        except ConnectionResetError:
            pass
        writer.close()

    serve(scenario)


def test_a_head_that_comes_byte_by_byte_has_no_more_time_than_one_that_does_not_come(serve: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, connect: Any) -> None:
        reader, writer = await connect()
        for sent in range(5):
            writer.write(HEAD[sent : sent + 1])
            await another_client_is_answered(connect)  # then the server has read the byte
            assert not reader.at_eof()
            loop.ahead_s += HEAD_TIMEOUT_S / 5
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
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
    entry = HistoryEntry(at=0, kind=EntryKind.CLOCK, text="tick" * 250)
    api.world.do(api.world.store.commit(Commit(entries=(entry,) * 2000)))

    async def scenario(loop: SkippableTimeLoop, connect: Any) -> int:
        reader, writer = await connect()
        writer.write(HEAD.replace(b"clock", b"history?limit=2000") + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")  # then the server writes the body
        reader._transport.pause_reading()
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


def test_connections_use_only_a_part_of_the_open_files(few_files: None, serve: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, connect: Any) -> int:
        shares = ConnectionShares.from_open_files()
        connections = [await connect() for _ in range(shares.general + shares.reserved)]
        await answered(*connections[-1])
        answer = await answer_to(connect)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert b"all connections are in use: try again in a moment" in answer
        connections[0][1].close()
        for _ in range(100):  # the server may need a moment to see that it is closed
            if (answer := await answer_to(connect)).startswith(b"HTTP/1.1 200 OK"):
                break
        assert answer.startswith(b"HTTP/1.1 200 OK")
        for _, each in connections:
            each.close()
        return len(connections)

    assert 0 < serve(scenario) <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4


def test_half_sent_requests_do_not_lock_the_owner_out_of_the_unix_socket(few_files: None, serve: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, connect: Any) -> None:
        silent = [await connect() for _ in range(ConnectionShares.from_open_files().total)]
        for _, writer in silent:
            writer.write(HEAD)
        loop.ahead_s += EVICT_AFTER_S
        for _ in range(3):
            await another_client_is_answered(connect)
        for _, writer in silent:
            writer.close()

    serve(scenario)


@pytest.fixture
def callers() -> list[str]:
    """The callers over TLS whose connection was counted for them, in order."""
    return []


@pytest.fixture
def serve_over_tls(
    api: Any, tmp_path: Path, callers: list[str]
) -> Callable[[Callable[[SkippableTimeLoop, Any], Awaitable[Any]]], Any]:
    """Serves over TLS; the header `X-Caller` names the principal of a request, without a token."""
    pair = ServiceCertificates.load_or_create(tmp_path, (), time.time()).server
    trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem")

    async def authenticate(request: Request) -> Principal:
        name = request.headers.get("x-caller", "")
        if not name:
            raise Unauthenticated("nobody knows you: sign in")
        role = Role.ADMINISTRATOR if name == "admin" else Role.READER
        found = Principal(id=name, name=name, grants=(Grant(id=name, role=role, principal=name, resource="/"),))
        claim_connection(request, found)
        callers.append(name)
        return found

    async def within(scenario: Callable[[SkippableTimeLoop, Any], Awaitable[Any]]) -> Any:
        loop: Any = asyncio.get_running_loop()
        sock = socket.create_server(("127.0.0.1", 0))
        app = build_web_app(replace(api.dependencies, connection_shares=ConnectionShares(64)), authenticate)
        async with serve_tls(app, sock, pair.certificate, pair.key):
            address = sock.getsockname()
            try:
                return await scenario(
                    loop, lambda: asyncio.open_connection(*address, ssl=trusting, server_hostname="localhost")
                )
            finally:
                loop.run_freely()

    def run(scenario: Callable[[SkippableTimeLoop, Any], Awaitable[Any]]) -> Any:
        with asyncio.Runner(loop_factory=SkippableTimeLoop) as runner:
            return runner.run(within(scenario))

    return run


def test_callers_are_told_when_their_address_has_too_many_connections(serve_over_tls: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, connect: Any) -> bytes:
        silent = [await connect() for _ in range(ConnectionShares(64).per_local_address)]
        answer = await answer_to(connect, "ann")
        for _, writer in silent:
            writer.close()
        return answer

    answer = serve_over_tls(scenario)
    assert answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"\r\nretry-after: 1\r\n" in answer
    assert b"this machine has 32 connections open that are not signed in" in answer


def test_64_half_sent_requests_do_not_lock_callers_out(serve_over_tls: Any) -> None:
    """At a limit of 256 open files, 64 of them are for connections."""

    async def scenario(loop: SkippableTimeLoop, connect: Any) -> list[bytes]:
        silent = []
        for _ in range(64):
            try:
                silent.append(await connect())
                silent[-1][1].write(HEAD)
            except OSError:  # beyond its share an address gets no answer
                pass
        loop.ahead_s += EVICT_AFTER_S
        answers = [await answer_to(connect, name) for name in ("ann", "joe", "admin")]
        for _, writer in silent:
            writer.close()
        return answers

    assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in serve_over_tls(scenario))


def test_the_long_polls_of_one_reader_do_not_lock_others_out(serve_over_tls: Any, api: Any, callers: list[str]) -> None:
    target = f"/forewarn/v1/history?after={api.world.store.last_seq()}&wait_s=60".encode()

    async def scenario(loop: SkippableTimeLoop, connect: Any) -> tuple[bytes, bytes]:
        polls = []
        for _ in range(ConnectionShares(64).per_principal):
            polls.append(asyncio.create_task(answer_to(connect, "reader", target)))
        while callers.count("reader") < len(polls) and not any(poll.done() for poll in polls):
            await answer_to(connect, "other")
        refused, other = await answer_to(connect, "reader", target), await answer_to(connect, "other")
        assert not any(poll.done() for poll in polls)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        return refused, other

    refused, other = serve_over_tls(scenario)
    assert refused.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"reader has 16 connections open, which is the limit of one caller" in refused
    assert b"\r\nretry-after: 1\r\n" in refused
    assert other.startswith(b"HTTP/1.1 200 OK")


def test_tls_uses_no_cipher_suite_with_cbc(api: Any, tmp_path: Path) -> None:
    pair = ServiceCertificates.load_or_create(tmp_path, (), time.time()).server
    old = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES256-SHA384:ECDHE-ECDSA-AES128-SHA")

    async def scenario() -> list[bool]:
        sock = socket.create_server(("127.0.0.1", 0))
        async with serve_tls(api.app, sock, pair.certificate, pair.key) as context:
            with pytest.raises(OSError):  # a TLS alert, or the reset that follows it
                await asyncio.open_connection(*sock.getsockname(), ssl=old, server_hostname="localhost")
            return [bool(suite["aead"]) for suite in context.get_ciphers()]

    assert set(asyncio.run(scenario())) == {True}


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
            loop.run_freely()
            return received

    with asyncio.Runner(loop_factory=SkippableTimeLoop) as runner:
        assert runner.run(scenario()) == b""
