"""The agent's HTTP server: read-only, robust against bad clients."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest

from forewarn.agent.http_server import AgentPage, AgentPages, json_page, parse_listen_address, serve_pages
from forewarn.errors import Rejected, Unavailable

PAGES: AgentPages = {"/ready": lambda: json_page({"ready": False}, 503), "/metrics": lambda: AgentPage(body=b"up 1\n")}
ANY = "127.0.0.1:0"


def with_server(client: Callable[[int], Awaitable[None]], pages: AgentPages = PAGES, listen: str = ANY) -> None:
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

    with_server(client, {"/now": lambda: AgentPage(body=next(bodies))})


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
    def broken() -> AgentPage:
        raise ZeroDivisionError("a secret")

    async def client(port: int) -> None:
        status, _, body = await exchange(port, b"GET /broken HTTP/1.1\r\n\r\n")
        assert (status, json.loads(body)) == (500, {"error": "the page failed: see the agent's log"})
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


def test_silent_clients_block_neither_others_nor_the_end_of_the_agent() -> None:
    silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def client(port: int) -> None:
        silent.extend([await asyncio.open_connection("127.0.0.1", port) for _ in range(20)])
        assert (await exchange(port, b"GET /ready HTTP/1.1\r\n\r\n"))[0] == 503
        silent[0][1].transport.abort()

    async def serve() -> None:
        async with asyncio.timeout(4):  # less than the timeout of one request
            async with serve_pages(PAGES, ANY) as port:
                await client(port)
            for reader, writer in silent[1:]:
                assert await reader.read() == b""
                writer.close()
                await writer.wait_closed()

    asyncio.run(serve())


def test_connections_above_the_limit_are_closed() -> None:
    async def client(port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(32)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        for other in (writer, *(each for _, each in silent)):
            other.close()

    with_server(client)


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
