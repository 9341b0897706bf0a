"""One port serves TLS to every client, and plain HTTP to this machine, for the portal only."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from forewarn.auth.certificates import ServiceCertificates
from forewarn.auth.pem import CertificateFiles
from forewarn.service.web_server import PlainHttpMiddleware
from forewarn.web import server
from forewarn.web.connection_slots import ConnectionShares, ConnectionSlots
from forewarn.web.server import HANDSHAKE_TIMEOUT_S, HEAD_TIMEOUT_S, is_loopback_address, serve_tls
from tests.web.test_connection_limits import SkippableTimeLoop

LOCAL = "localhost:8443"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    ServiceCertificates.load_or_create(directory, (), time.time())
    return directory


def load_certificates(tls: Path) -> CertificateFiles:
    return ServiceCertificates.load_or_create(tls, (), time.time()).server


def make_app() -> Starlette:
    async def describe(request: Request) -> Response:
        client = request.client
        return PlainTextResponse(f"{request.url.scheme} {client.host if client else ''} {request.url.path}")

    app = Starlette(routes=[Route("/{path:path}", describe, methods=["GET", "POST"])])
    app.add_middleware(PlainHttpMiddleware)
    app.state.dependencies = SimpleNamespace(
        shutting_down=asyncio.Event(), connection_shares=ConnectionShares.from_open_files()
    )
    return app


Scenario = Callable[[SkippableTimeLoop, Any], Awaitable[Any]]


@pytest.fixture(params=["127.0.0.1", "::"])
def serve(request: Any, tls: Path) -> Callable[[Scenario], Any]:
    """Serves on an IPv4 address, and on a dual-stack address where peers are IPv4-mapped."""

    async def within(scenario: Scenario) -> Any:
        pair = load_certificates(tls)
        if request.param == "::":
            sock = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            sock = socket.create_server((request.param, 0))
        async with serve_tls(make_app(), sock, pair.certificate, pair.key):
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SkippableTimeLoop)
            try:
                return await scenario(loop, ("127.0.0.1", sock.getsockname()[1]))
            finally:
                loop.run_freely()

    def run(scenario: Scenario) -> Any:
        with asyncio.Runner(loop_factory=SkippableTimeLoop) as runner:
            return runner.run(within(scenario))

    return run


def head(path: str = "/portal/", host: str = LOCAL, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n".encode()


async def response_to(address: Any, text: bytes, **how: Any) -> bytes:
    """The whole response to these bytes."""
    reader, writer = await asyncio.open_connection(*address, **how)
    writer.write(text)
    answer: bytes = await reader.read()
    writer.close()
    return answer


def trusting(tls: Path) -> dict[str, Any]:
    return {"ssl": ssl.create_default_context(cafile=tls / "ca.pem"), "server_hostname": "localhost"}


def test_one_port_serves_plain_http_and_tls(serve: Any, tls: Path) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> tuple[bytes, bytes]:
        return await response_to(address, head()), await response_to(
            address, head("/forewarn/v1/clock"), **trusting(tls)
        )

    plain, safe = serve(scenario)
    assert plain.startswith(b"HTTP/1.1 200 OK")
    assert plain.endswith((b"\r\nhttp 127.0.0.1 /portal/", b"\r\nhttp ::ffff:127.0.0.1 /portal/"))
    assert safe.startswith(b"HTTP/1.1 200 OK")
    assert safe.endswith((b"\r\nhttps 127.0.0.1 /forewarn/v1/clock", b"\r\nhttps ::ffff:127.0.0.1 /forewarn/v1/clock"))


def test_forwarding_headers_are_ignored(serve: Any) -> None:
    """Otherwise a plain HTTP client could reach the API, and forge any address."""
    more = "X-Forwarded-Proto: https\r\nX-Forwarded-For: 10.0.0.1\r\n"

    async def scenario(loop: SkippableTimeLoop, address: Any) -> tuple[bytes, bytes]:
        api = await response_to(address, head("/forewarn/v1/clock", more=more))
        return api, await response_to(address, head(more=more))

    api, portal = serve(scenario)
    assert b"served over https only" in api
    assert b"http " in portal.rpartition(b"\r\n")[2]
    assert b"10.0.0.1" not in portal


@pytest.mark.parametrize(
    "path",
    [
        "/forewarn/v1/clock",
        "/metadata/endpoints",
        "/subscriptions/x",
        "/adfs/oauth2/token",
        "//portal/",
        "/portalx",
        "/Portal/",
        "http://localhost:8443/portal/",
    ],
)
def test_plain_http_serves_nothing_but_the_portal(serve: Any, path: str) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> bytes:
        return await response_to(address, head(path))

    answer = serve(scenario)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"is served over https only: call https://localhost:8443" in answer


@pytest.mark.parametrize("path", ["/", "/portal", "/portal/", "/portal/static/style.css", "/metrics"])
def test_the_portal_is_served_over_plain_http(serve: Any, path: str) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> bytes:
        return await response_to(address, head(path))

    assert serve(scenario).startswith(b"HTTP/1.1 200")


OURS = ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8443", "[::1]", "[::1]:8443", "127.0.0.2:8443"]
THEIRS = [
    "evil.example",
    "evil.example:8443",
    "localhost.evil.example:8443",
    "127.0.0.1.evil.example",
    "192.0.2.1:8443",
    "localhost:x",
    "localhost:",
    "127.0.0.1%evil",
    "[::1",
    "::1",
    "[::2]:8443",
    "",
    "é",
]


@pytest.mark.parametrize("host", [*OURS, *THEIRS])
def test_plain_http_accepts_only_host_names_of_this_machine(host: str) -> None:
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": "/portal/",
        "query_string": b"",
        "headers": [(b"host", host.encode("latin-1"))],
    }

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(make_app()(scope, receive, send))
    assert sent[0]["status"] == (200 if host in OURS else 400)
    if host not in OURS:
        assert b"plain http is served only to this machine" in sent[1]["body"]


def test_over_tls_every_host_name_is_accepted(serve: Any, tls: Path) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> bytes:
        return await response_to(address, head(host="vmhost.example.org"), **trusting(tls))

    assert serve(scenario).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("address", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("fe80::1", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_recognized_in_every_spelling(address: str, is_ours: bool) -> None:
    assert is_loopback_address(address) is is_ours


class _FromElsewhere:
    """A socket that reports a peer on another machine."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def getpeername(self) -> tuple[str, int]:
        return ("192.0.2.7", 50000)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


async def response_from_elsewhere(text: bytes) -> bytes:
    """The response to a peer on another machine that sends this first."""
    ours, theirs = socket.socketpair()
    theirs.sendall(text)
    unused = server.ConnectionAcceptor.__new__(server.ConnectionAcceptor)
    slot = ConnectionSlots(ConnectionShares(16)).open("192.0.2.7", 1, 0.0, lambda: None)
    assert slot is not None
    peer: Any = _FromElsewhere(ours)
    await unused._detect_tls(peer, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), slot, server._ServedConnection())
    with theirs:
        theirs.settimeout(5)
        return theirs.recv(65536)


def test_plain_http_from_another_machine_is_rejected_with_a_hint_and_closed() -> None:
    answer = asyncio.run(response_from_elsewhere(head()))
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"call it with https://\n")


def test_a_silent_connection_is_closed_after_the_handshake_timeout(serve: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> bytes:
        silent, writer = await asyncio.open_connection(*address)
        await response_to(address, head())  # then the connection before it was accepted
        loop.ahead_s += HANDSHAKE_TIMEOUT_S
        received = await silent.read()
        writer.close()
        return received

    assert serve(scenario) == b""


def test_a_stalled_handshake_is_closed_after_the_handshake_timeout(serve: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> bytes:
        slow, writer = await asyncio.open_connection(*address)
        await response_to(address, head())
        loop.ahead_s += HANDSHAKE_TIMEOUT_S - 1
        writer.write(b"\x16")
        await response_to(address, head())
        loop.ahead_s += 1
        received = await slow.read()
        writer.close()
        return received

    assert serve(scenario) == b""


def test_a_stalled_plain_request_is_closed_after_the_timeout_of_its_head(serve: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> bytes:
        slow, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /por")
        await response_to(address, head())
        loop.ahead_s += HEAD_TIMEOUT_S
        received = await slow.read()
        writer.close()
        return received

    assert b"200" not in serve(scenario)


@pytest.mark.parametrize("text", [b"", b"\x16", b"GET"], ids=["nothing", "a byte of TLS", "a word"])
def test_a_connection_that_closes_early_frees_its_slot(serve: Any, text: bytes) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> bytes:
        for _ in range(50):
            _, writer = await asyncio.open_connection(*address)
            writer.write(text)
            writer.close()
            await writer.wait_closed()
        return await response_to(address, head())

    assert serve(scenario).startswith(b"HTTP/1.1 200")


def test_a_half_closed_connection_is_closed(serve: Any) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write_eof()
        received = await reader.read()
        writer.close()
        return received

    assert serve(scenario) == b"" or serve(scenario).startswith(b"HTTP/1.1 400")


def test_a_request_that_arrives_byte_by_byte_is_answered(serve: Any, tls: Path) -> None:
    async def scenario(loop: SkippableTimeLoop, address: Any) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in head():
            writer.write(bytes([number]))
            await writer.drain()
            await asyncio.sleep(0)
        answer: bytes = await reader.read()
        writer.close()
        return answer

    assert serve(scenario).startswith(b"HTTP/1.1 200")
