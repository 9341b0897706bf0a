"""The HTTP port for metrics: one page, time limits, and limits on connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest

from forewarn.base import http_server
from forewarn.base.http_server import HttpServer, bind_metrics_sockets, metrics_pages
from forewarn.errors import Rejected
from forewarn.service.settings import load_settings
from tests.support.service_process import free_port

PAGE = b"forewarn_vms 7\n"
Scenario = Callable[[int], Awaitable[None]]


async def render_page() -> bytes:
    return PAGE


def run_scenario(scenario: Scenario, render: Callable[[], Awaitable[bytes]] = render_page) -> None:
    async def main() -> None:
        port = free_port()
        server = HttpServer(metrics_pages(render))
        await server.start(sock=bind_metrics_sockets("127.0.0.1", port, workers=0)[0])
        try:
            async with asyncio.timeout(20):
                await scenario(port)
        finally:
            await server.close()

    asyncio.run(main())


async def exchange(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


def request_bytes(target: str = "/metrics", method: str = "GET") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (request_bytes(), b"200 OK", PAGE),
        (request_bytes("/metrics?x=1"), b"200 OK", PAGE),
        (request_bytes(method="HEAD"), b"200 OK", b""),
        (request_bytes("/"), b"404 Not Found", b'"pages": ["/metrics"]}\n'),
        (request_bytes("/metadata/scheduledevents"), b"404 Not Found", b'"pages": ["/metrics"]}\n'),
        (request_bytes(method="POST"), b"405 Method Not Allowed", b'read-only"}\n'),
    ],
)
def test_the_metrics_port_serves_only_the_metrics_page(data: bytes, status: bytes, body: bytes) -> None:
    async def scenario(port: int) -> None:
        first, _, rest = (await exchange(port, data)).partition(b"\r\n")
        assert first == b"HTTP/1.1 " + status
        fields, _, received_body = rest.partition(b"\r\n\r\n")
        assert (b"Content-Type: text/plain; version=0.0.4; charset=utf-8" in fields) == status.startswith(b"200")
        assert received_body.endswith(body)

    run_scenario(scenario)


def test_an_internal_error_is_logged_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([True, False])

    async def render() -> bytes:
        if next(failures):
            raise RuntimeError("oh no")
        return PAGE

    async def scenario(port: int) -> None:
        assert b" 500 " in await exchange(port, request_bytes())
        assert PAGE in await exchange(port, request_bytes())

    run_scenario(scenario, render)
    assert "the page /metrics failed" in caplog.text


def test_closing_the_server_closes_waiting_connections() -> None:
    rendering = asyncio.Event()

    async def render() -> bytes:
        rendering.set()
        await asyncio.Event().wait()
        return PAGE

    async def main() -> None:
        port = free_port()
        server = HttpServer(metrics_pages(render))
        await server.start(sock=bind_metrics_sockets("127.0.0.1", port, workers=0)[0])
        waiting = asyncio.create_task(exchange(port, request_bytes()))
        await rendering.wait()
        await server.close()
        assert await waiting == b""

    asyncio.run(main())


def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_RESPONSE_TIMEOUT_S", 0.2)
    endless = b"x" * 50_000_000

    rendering = asyncio.Event()

    async def render() -> bytes:
        rendering.set()
        return endless

    async def scenario(port: int) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            client.sendall(request_bytes())
            await rendering.wait()
            while len(asyncio.all_tasks()) > 1:  # the server still writes the response
                await asyncio.sleep(0.01)
            got = 0
            with contextlib.suppress(ConnectionError):
                while part := await loop.sock_recv(client, 1_000_000):
                    got += len(part)
            assert got < len(endless)

    run_scenario(scenario, render)


def test_each_worker_gets_a_port_after_the_owners() -> None:
    first = free_port(3)
    sockets = bind_metrics_sockets("127.0.0.1", first, workers=2)
    assert [sock.getsockname()[1] for sock in sockets] == [first, first + 1, first + 2]
    for sock in sockets:
        sock.close()


def test_a_port_in_use_is_rejected_and_leaves_no_socket_open() -> None:
    first = free_port(2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", first + 1))
        other.listen()
        with pytest.raises(
            Rejected, match=rf"metrics cannot be served on 127\.0\.0\.1:{first + 1}: the port is in use"
        ):
            bind_metrics_sockets("127.0.0.1", first, workers=1)
        with socket.socket() as again:
            again.bind(("127.0.0.1", first))


@pytest.mark.parametrize("listen", [("10.0.0.1:80",), ("169.254.169.254:80", "10.0.0.1:8080")])
@pytest.mark.parametrize(
    "metrics", ["10.0.0.1:9464", "0.0.0.0:9464", "[::]:9464", "169.254.1.1:9464", "[fe80::1]:9464"]
)
def test_metrics_on_an_address_that_vms_call_are_rejected(listen: tuple[str, ...], metrics: str) -> None:
    with pytest.raises(
        Rejected, match=r"an address that VMs can call: give one that they cannot call, such as 127\.0\.0\.1:9464"
    ):
        load_settings({"listen": listen, "metrics": metrics}, lab=False, environ={})


@pytest.mark.parametrize("metrics", ["", "127.0.0.1:9464", "[::1]:9464", "192.168.7.7:9464"])
def test_metrics_on_any_other_address_are_accepted(metrics: str) -> None:
    assert load_settings({"listen": ("10.0.0.1:80",), "metrics": metrics}, lab=False, environ={}).metrics == metrics


@pytest.mark.parametrize("metrics", ["9464", "localhost:9464", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999"])
def test_a_malformed_metrics_address_is_rejected(metrics: str) -> None:
    with pytest.raises(
        Rejected, match=r"setting 'metrics' is .*: write ADDRESS:PORT in numbers, such as 127\.0\.0\.1:9464"
    ):
        load_settings({"metrics": metrics}, lab=True, environ={})


def test_metrics_ports_for_all_workers_must_exist() -> None:
    with pytest.raises(Rejected, match="4 workers need the ports after it"):
        load_settings({"metrics": "127.0.0.1:65533", "workers": 4}, lab=True, environ={})
