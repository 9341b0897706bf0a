"""The listener where Prometheus calls a process: one page, no patience, no way past it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest

from forewarn.errors import Rejected
from forewarn.metrics import http_server
from forewarn.metrics.http_server import _MAX_CONNECTIONS, MetricsServer, bind_metrics_sockets
from forewarn.service.settings import load_settings
from tests.support.service_process import free_port

PAGE = b"forewarn_vms 7\n"
Story = Callable[[int], Awaitable[None]]


async def shown() -> bytes:
    return PAGE


def play(story: Story, show: Callable[[], Awaitable[bytes]] = shown) -> None:
    async def tell() -> None:
        port = free_port()
        window = MetricsServer(show)
        await window.start(bind_metrics_sockets("127.0.0.1", port, workers=0)[0])
        try:
            async with asyncio.timeout(20):
                await story(port)
        finally:
            await window.close()

    asyncio.run(tell())


async def said(port: int, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    answer = await reader.read()
    writer.close()
    return answer


def head(target: str = "/metrics", method: str = "GET") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (head(), b"200 OK", PAGE),
        (head("/metrics?x=1"), b"200 OK", PAGE),
        (head(method="HEAD"), b"200 OK", b""),
        (head("/"), b"404 Not Found", b"metrics are at /metrics\n"),
        (head("/metadata/scheduledevents"), b"404 Not Found", b"metrics are at /metrics\n"),
        (head(method="POST"), b"405 Method Not Allowed", b"use GET\n"),
    ],
)
def test_it_has_one_page(raw: bytes, status: bytes, body: bytes) -> None:
    async def story(port: int) -> None:
        first, _, rest = (await said(port, raw)).partition(b"\r\n")
        assert first == b"HTTP/1.1 " + status
        fields, _, given = rest.partition(b"\r\n\r\n")
        assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8" in fields
        assert given == body

    play(story)


@pytest.mark.parametrize("raw", [b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000, b"\x00" * 9000])
def test_what_is_no_request_is_hung_up_on(raw: bytes) -> None:
    async def story(port: int) -> None:
        try:
            assert await said(port, raw) == b""
        except ConnectionResetError:
            pass
        assert PAGE in await said(port, head())

    play(story)


def test_a_mistake_of_ours_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([True, False])

    async def show() -> bytes:
        if next(failures):
            raise RuntimeError("oh no")
        return PAGE

    async def story(port: int) -> None:
        assert await said(port, head()) == b""
        assert PAGE in await said(port, head())

    play(story, show)
    assert "metrics could not be shown" in caplog.text


def test_whoever_still_waits_when_it_closes_is_hung_up_on() -> None:
    asked = asyncio.Event()

    async def show() -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return PAGE

    async def tell() -> None:
        port = free_port()
        window = MetricsServer(show)
        await window.start(bind_metrics_sockets("127.0.0.1", port, workers=0)[0])
        waiting = asyncio.create_task(said(port, head()))
        await asked.wait()
        await window.close()
        assert await waiting == b""

    asyncio.run(tell())


def test_only_so_many_are_let_in_who_say_nothing() -> None:
    async def story(port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_MAX_CONNECTIONS)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert not any(first.at_eof() for first, _ in silent)
        for _, other in (*silent, (reader, writer)):
            other.close()
        while not (answer := await answered(port)):
            await asyncio.sleep(0)
        assert answer.endswith(PAGE)

    async def answered(port: int) -> bytes:
        try:
            return await said(port, head())
        except ConnectionError:
            return b""

    play(story)


def test_whoever_does_not_read_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_TIMEOUT_S", 0.2)
    endless = b"x" * 50_000_000

    asked = asyncio.Event()

    async def show() -> bytes:
        asked.set()
        return endless

    async def story(port: int) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", port)) as lazy:
            lazy.setblocking(False)
            lazy.sendall(head())
            await asked.wait()
            while len(asyncio.all_tasks()) > 1:  # whoever answers is at it still
                await asyncio.sleep(0.01)
            got = 0
            with contextlib.suppress(ConnectionError):
                while part := await loop.sock_recv(lazy, 1_000_000):
                    got += len(part)
            assert got < len(endless)

    play(story, show)


def test_every_worker_has_a_port_after_the_owners() -> None:
    first = free_port(3)
    sockets = bind_metrics_sockets("127.0.0.1", first, workers=2)
    assert [sock.getsockname()[1] for sock in sockets] == [first, first + 1, first + 2]
    for sock in sockets:
        sock.close()


def test_a_port_in_use_stops_the_start_and_keeps_nothing_open() -> None:
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
def test_they_are_never_shown_where_vms_call(listen: tuple[str, ...], metrics: str) -> None:
    with pytest.raises(
        Rejected, match=r"an address that VMs can call: give one that they cannot call, such as 127\.0\.0\.1:9464"
    ):
        load_settings({"listen": listen, "metrics": metrics}, lab=False, environ={})


@pytest.mark.parametrize("metrics", ["", "127.0.0.1:9464", "[::1]:9464", "192.168.7.7:9464"])
def test_another_address_is_the_operators_choice(metrics: str) -> None:
    assert load_settings({"listen": ("10.0.0.1:80",), "metrics": metrics}, lab=False, environ={}).metrics == metrics


@pytest.mark.parametrize("metrics", ["9464", "localhost:9464", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999"])
def test_what_is_no_address_and_port_is_refused(metrics: str) -> None:
    with pytest.raises(
        Rejected, match=r"setting 'metrics' is .*: write ADDRESS:PORT in numbers, such as 127\.0\.0\.1:9464"
    ):
        load_settings({"metrics": metrics}, lab=True, environ={})


def test_there_must_be_ports_for_all_workers() -> None:
    with pytest.raises(Rejected, match="4 workers need the ports after it"):
        load_settings({"metrics": "127.0.0.1:65533", "workers": 4}, lab=True, environ={})
