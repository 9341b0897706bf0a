"""The agent's HTTP server: read-only, robust against bad clients."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest

from forewarn.agent.config import parse_listen_address
from forewarn.agent.process import serve_pages
from forewarn.base.http_server import (
    MAX_CONNECTIONS,
    HttpPage,
    HttpPages,
    json_page,
)
from forewarn.errors import Rejected, Unavailable

PAGES: HttpPages = {"/ready": lambda: json_page({"ready": False}, 503), "/metrics": lambda: HttpPage(body=b"up 1\n")}
ANY = "127.0.0.1:0"


def with_server(client: Callable[[int], Awaitable[None]], pages: HttpPages = PAGES, listen: str = ANY) -> None:
    async def serve() -> None:
        async with asyncio.timeout(20), serve_pages(pages, listen) as port:
            await client(port)

    asyncio.run(serve())


async def exchange(port: int, request: bytes, host: str = "127.0.0.1") -> tuple[int, bytes, bytes]:
    """Sends a request; returns status, head and body of the response up to the end of the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), head, body


def test_a_page_shows_the_current_state() -> None:
    bodies = iter([b"one", b"two"])

    async def client(port: int) -> None:
        for body in (b"one", b"two"):
            status, head, got = await exchange(port, b"GET /now?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (status, got) == (200, body)
            assert b"\r\nContent-Length: 3\r\n" in head
            assert b"\r\nCache-Control: no-store\r\n" in head

    with_server(client, {"/now": lambda: HttpPage(body=next(bodies))})


def test_a_load_balancer_sees_the_status_and_a_person_the_reason() -> None:
    async def client(port: int) -> None:
        status, head, body = await exchange(port, b"GET /ready HTTP/1.0\r\n\r\n")
        assert (status, json.loads(body)) == (503, {"ready": False})
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")

    with_server(client)


def test_a_head_request_gets_the_status_without_a_body() -> None:
    async def client(port: int) -> None:
        status, head, body = await exchange(port, b"HEAD /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (status, body) == (503, b"")
        assert b"Content-Length: 17" in head

    with_server(client)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_methods_other_than_get_and_head_are_rejected(method: str) -> None:
    async def client(port: int) -> None:
        status, head, body = await exchange(port, f"{method} /ready HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        assert status == 405
        assert b"\r\nAllow: GET, HEAD\r\n" in head
        assert "read-only" in json.loads(body)["error"]

    with_server(client)


def test_an_unknown_page_answers_404_with_the_existing_pages() -> None:
    async def client(port: int) -> None:
        status, _, body = await exchange(port, b"GET / HTTP/1.1\r\n\r\n")
        assert (status, json.loads(body)["pages"]) == (404, ["/metrics", "/ready"])

    with_server(client)


def test_a_page_that_fails_answers_500_and_the_others_work(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> HttpPage:
        raise ZeroDivisionError("a secret")

    async def client(port: int) -> None:
        status, _, body = await exchange(port, b"GET /broken HTTP/1.1\r\n\r\n")
        assert (status, json.loads(body)) == (500, {"error": "the page failed: see the log"})
        assert (await exchange(port, b"GET /ready HTTP/1.1\r\n\r\n"))[0] == 503

    with_server(client, {**PAGES, "/broken": broken})
    assert "the page /broken failed" in caplog.text


@pytest.mark.parametrize(
    "request_",
    [b"\r\n\r\n", b"GET /ready\r\n\r\n", b"\x16\x03\x01 a b\r\n\r\n", b"GET /a b HTTP/1.1\r\n\r\n"],
    ids=["nothing", "no version", "a handshake", "a blank in the path"],
)
def test_an_invalid_request_is_rejected(request_: bytes) -> None:
    async def client(port: int) -> None:
        assert (await exchange(port, request_))[0] == 400

    with_server(client)


def test_an_endless_request_head_is_rejected() -> None:
    async def client(port: int) -> None:
        assert (await exchange(port, b"GET /ready HTTP/1.1\r\nX: " + b"x" * 20_000))[0] == 400
        assert (await exchange(port, b"GET /ready HTTP/1.1\r\n\r\n"))[0] == 503

    with_server(client)


def test_silent_clients_do_not_delay_the_end_of_the_agent() -> None:
    async def serve() -> None:
        async with asyncio.timeout(20):
            async with serve_pages(PAGES, ANY) as port:
                silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
                silent[0][1].transport.abort()
            for reader, writer in silent[1:]:
                assert await reader.read() == b""
                writer.close()
                await writer.wait_closed()

    asyncio.run(serve())


@pytest.mark.parametrize("opening", [b"", b"GET /ready HTTP/1.1\r\nX-Half:"], ids=["nothing sent", "half a request"])
def test_a_health_check_is_answered_although_others_hold_connections_open(opening: bytes) -> None:
    """Each surplus connection closes the oldest of its address, never the new one."""

    async def client(port: int) -> None:
        silent = []
        for _ in range(3 * MAX_CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(opening)
            silent.append((reader, writer))
            assert (await exchange(port, b"GET /ready HTTP/1.1\r\n\r\n"))[0] == 503
        assert await silent[0][0].read() == b"", "the oldest is closed"
        for _, writer in silent:
            writer.transport.abort()

    with_server(client)


def test_a_health_check_is_answered_although_others_do_not_read_their_answers() -> None:
    async def client(port: int) -> None:
        hoarding = []
        for _ in range(2 * MAX_CONNECTIONS):
            with_small_buffer = socket.socket()
            with_small_buffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with_small_buffer.connect(("127.0.0.1", port))
            with_small_buffer.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            hoarding.append(with_small_buffer)
            assert (await exchange(port, b"GET /ready HTTP/1.1\r\n\r\n"))[0] == 503
        for each in hoarding:
            each.close()

    with_server(client, {**PAGES, "/large": lambda: HttpPage(body=b"x" * 8_000_000)})


def test_one_address_cannot_displace_the_connections_of_others() -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2 * MAX_CONNECTIONS):
            _, other = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            others.append(other)
        writer.write(b"GET /ready HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        for each in (writer, *others):
            each.transport.abort()

    others: list[asyncio.StreamWriter] = []
    with_server(client)


def test_a_client_that_sends_no_request_is_closed_soon() -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()

    with_server(client)


STATE: HttpPages = {**PAGES, "/state": lambda: json_page({"vm": "web-0"})}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9258", "[::1]:9258", "10.0.0.4", "LOCALHOST.", "HOSTNAME"])
def test_the_state_is_shown_under_names_and_addresses_of_this_machine(host: str) -> None:
    async def client(port: int) -> None:
        name = host.replace("HOSTNAME", socket.gethostname())
        assert (await exchange(port, f"GET /state HTTP/1.1\r\nHost: {name}\r\n\r\n".encode()))[0] == 200
        assert (await exchange(port, b"GET /state HTTP/1.0\r\n\r\n"))[0] == 200

    with_server(client, STATE)


@pytest.mark.parametrize(
    "host", [b"evil.example", b"evil.example:9258", b"127.0.0.1.evil.example", b"localhost\r\nHOST : evil.example", b""]
)
def test_the_state_is_not_shown_to_a_web_site_of_another_host(host: bytes) -> None:
    """DNS rebinding: the site's name points to 127.0.0.1, and its script asks for the page in a browser here."""

    async def client(port: int) -> None:
        status, _, body = await exchange(port, b"GET /state?x HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert status == 421
        assert json.loads(body) == {
            "error": "this page is not served under this host name: use this machine's name or address"
        }

    with_server(client, STATE)


@pytest.mark.parametrize("path", [b"/ready", b"/metrics"])
def test_load_balancers_and_prometheus_may_use_any_host_name(path: bytes) -> None:
    async def client(port: int) -> None:
        assert (await exchange(port, b"GET " + path + b" HTTP/1.1\r\nHost: web.example\r\n\r\n"))[0] in (200, 503)

    with_server(client, STATE)


def test_the_port_is_free_again_afterwards() -> None:
    ports: list[int] = []

    async def client(port: int) -> None:
        ports.append(port)

    with_server(client)
    with_server(client, listen=f"127.0.0.1:{ports[0]}")
    assert ports[0] == ports[1]


def test_a_taken_port_is_reported_with_a_remedy() -> None:
    async def client(port: int) -> None:
        raise AssertionError("the server must not start")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            Unavailable, match=f"cannot listen on {listen} .*: free the address, or set another with listen"
        ):
            with_server(client, listen=listen)


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9258", ("127.0.0.1", 9258)), ("[::1]:80", ("::1", 80)), ("localhost:0", ("localhost", 0))],
)
def test_valid_listen_addresses_are_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_listen_address(text) == address


@pytest.mark.parametrize("text", ["9258", "127.0.0.1", ":9258", "::1:80", "127.0.0.1:http", "127.0.0.1:70000", "a:²"])
def test_invalid_listen_addresses_are_rejected(text: str) -> None:
    with pytest.raises(Rejected, match=r'is not an address: write "127.0.0.1:9258", or "" for none'):
        parse_listen_address(text)
