"""The limits on clients: sizes, times and connections (spec §10, last row; §5.2)."""

from __future__ import annotations

import pytest

from forewarn.metadata import Limits
from tests.metadata.conftest import POLL as EVENTS
from tests.metadata.conftest import MakeRequest, RunScenario, World

SHORT = Limits(request_s=0.2, linger_s=0.2)
HEAD_BYTES, BODY_BYTES = 16 * 1024, 64 * 1024


def padded(request_bytes: MakeRequest, size: int) -> bytes:
    """A poll whose header block has exactly this many bytes."""
    bare = len(request_bytes(X_Padding=""))
    return request_bytes(X_Padding="x" * (size - bare))


def test_a_header_block_of_16_kib_is_served_and_a_byte_more_gets_431(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(padded(request_bytes, HEAD_BYTES))
        assert (await client.reply()).status == 200
        client.send(padded(request_bytes, HEAD_BYTES + 1))
        assert (await client.reply()).status == 431
        assert await client.is_closed()

    run_scenario(scenario)


def test_a_header_block_that_never_ends_gets_431(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(b"GET / HTTP/1.1\r\n" + b"X-Header: x\r\n" * 20_000)
        assert (await client.reply()).status == 431
        assert await client.is_closed()

    run_scenario(scenario)


def approval(size: int) -> bytes:
    body = b'{"StartRequests":[]}'
    return body + b" " * (size - len(body))


def chunked(request_bytes: MakeRequest, body: bytes, chunk: int = 1000, trailer: bytes = b"") -> bytes:
    pieces = [body[start : start + chunk] for start in range(0, len(body), chunk)]
    head = request_bytes(method="POST", Transfer_Encoding="chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n" + trailer + b"\r\n"


def test_a_body_of_64_kib_is_served_and_a_byte_more_gets_413(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    """Spec §5.2."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        assert (await client.ask(method="POST", body=approval(BODY_BYTES))).status == 200
        client.send(request_bytes(method="POST", body=approval(BODY_BYTES + 1)))
        assert (await client.reply()).status == 413
        assert await client.is_closed()

    run_scenario(scenario)


@pytest.mark.parametrize("chunk", [1, 7, 5000, 65_536])
def test_a_chunked_body_is_served_up_to_64_kib(
    run_scenario: RunScenario, request_bytes: MakeRequest, chunk: int
) -> None:
    """Spec §5.2: the limit is for the decoded body."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(chunked(request_bytes, approval(BODY_BYTES), chunk))
        assert (await client.reply()).status == 200
        client.send(chunked(request_bytes, approval(BODY_BYTES + 1), chunk))
        assert (await client.reply()).status == 413
        assert await client.is_closed()

    run_scenario(scenario)


def test_long_trailers_of_a_chunked_body_are_refused(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    """Chunk extensions and trailers are bytes too."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(request_bytes(method="POST", Transfer_Encoding="chunked") + b"0\r\n")
        client.send(b"X-Trailer: x\r\n" * 60_000)
        assert (await client.reply()).status in (400, 413)
        assert await client.is_closed()

    run_scenario(scenario)


def test_a_trailer_is_not_a_header(run_scenario: RunScenario) -> None:
    """Spec §2.2: a Metadata header must be a header."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(
            b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\n"
            b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            b'14\r\n{"StartRequests":[]}\r\n0\r\nMetadata: true\r\n\r\n'
        )
        reply = await client.reply()
        assert reply.status == 400
        assert b"Required metadata header not specified" in reply.body

    run_scenario(scenario)


@pytest.mark.parametrize(
    "data",
    [
        b"G",
        b"GET /metadata/scheduledevents HTTP/1.1\r\nMetadata:",
        b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{",
    ],
    ids=["first byte", "headers", "body"],
)
def test_an_incomplete_request_gets_408_after_the_timeout(run_scenario: RunScenario, data: bytes) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        assert (await client.ask()).status == 200
        client.send(data)
        assert (await client.reply()).status == 408
        assert await client.is_closed()

    run_scenario(scenario, limits=SHORT)


def test_a_request_sent_byte_by_byte_gets_408(run_scenario: RunScenario) -> None:
    """Each byte does not extend the timeout."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(b"GET / HTTP/1.1\r\nX: ")
        while not world.server.counters.responses_by_status[408]:
            client.send(b"x")
            await world.pause()
        assert (await client.reply()).status == 408

    run_scenario(scenario, limits=SHORT)


def test_an_idle_connection_is_closed(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        silent, served = await world.connect(), await world.connect()
        assert (await served.ask()).status == 200
        assert await silent.is_closed()
        assert await served.is_closed()

    run_scenario(scenario, limits=Limits(idle_s=0.5))


def test_empty_lines_do_not_extend_the_idle_timeout(run_scenario: RunScenario) -> None:
    """Empty lines before a request are ignored."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(b"\r\n\r\n")
        assert (await client.ask()).status == 200
        while world.server.connection_count:
            client.send(b"\r\n")
            await world.pause()

    run_scenario(scenario, limits=Limits(idle_s=0.5))


def test_a_connection_with_a_pending_response_is_not_idle(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method="POST", body=b'{"StartRequests":[]}'))
        await world.until(lambda: world.backend.waiting == 1)
        silent = await world.connect()
        assert await silent.is_closed()
        world.backend.is_open.set()
        assert (await client.reply()).status == 200

    run_scenario(scenario, limits=Limits(idle_s=0.5))


def test_the_connection_limit_applies_to_each_vm_separately(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            assert (await world.ask(vm="a")).status == 200
        assert await (await world.connect("a")).is_closed()
        assert world.server.counters.refused == 1
        assert (await world.ask(vm="b")).status == 200
        world.clients[0].close()
        await world.until(lambda: world.server.connection_count == 3)
        assert (await world.ask(vm="a")).status == 200

    run_scenario(scenario, limits=Limits(connections_per_vm=3))


def test_one_vm_gets_at_most_a_quarter_of_all_connections(run_scenario: RunScenario) -> None:
    """Spec §7.4: unknown callers and one VM cannot use all connections."""

    async def scenario(world: World) -> None:
        for _ in range(2):
            assert (await world.ask(vm="a")).status == 200
        assert await (await world.connect("a")).is_closed()
        for _ in range(2):
            assert (await world.ask(vm="b")).status == 200
        assert world.server.connection_count == 4

    run_scenario(scenario, limits=Limits(connections=8))


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n",
        b"GET / HTTP/1.1\n\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n",
    ],
    ids=[
        "TLS",
        "greeting",
        "bare line feeds",
        "HTTP/0.9",
        "no colon",
        "HTTP/2",
        "two lengths",
        "length and chunks",
        "negative length",
        "no chunk size",
    ],
)
def test_bytes_that_are_not_http_get_400_at_once(run_scenario: RunScenario, junk: bytes) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(junk)
        assert (await client.reply()).status == 400
        assert await client.is_closed()
        assert (await world.ask()).status == 200

    run_scenario(scenario)


HOST_ERROR = b'{ "error": "Bad request. Exactly one Host header is required" }'
CODING_ERROR = b'{ "error": "Bad request. The only supported Transfer-Encoding is chunked" }'
EMPTY_CHUNKS = b"0\r\n\r\n"
AMBIGUOUS_REQUESTS = {
    "HTTP/1.1 without a host": ("1.1", (), b"", HOST_ERROR),
    "two hosts": ("1.1", ("Host: a", "Host: a"), b"", HOST_ERROR),
    "two hosts in HTTP/1.0": ("1.0", ("Host: a", "Host: b"), b"", HOST_ERROR),
    "two codings": ("1.1", ("Host: a", "Transfer-Encoding: gzip, chunked"), EMPTY_CHUNKS, CODING_ERROR),
    "chunked in HTTP/1.0": ("1.0", ("Host: a", "Transfer-Encoding: chunked"), EMPTY_CHUNKS, CODING_ERROR),
}


@pytest.mark.parametrize(("version", "lines", "body", "error"), AMBIGUOUS_REQUESTS.values(), ids=AMBIGUOUS_REQUESTS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_that_a_proxy_may_read_differently_gets_400(
    run_scenario: RunScenario, method: str, version: str, lines: tuple[str, ...], body: bytes, error: bytes
) -> None:
    """Spec §2.3: the number of hosts, and transfer codings."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        head = "\r\n".join((f"{method} {EVENTS} HTTP/{version}", "Metadata: true", *lines, "", ""))
        client.send(head.encode() + body)
        reply = await client.reply()
        assert (reply.status, reply.body) == (400, error)
        assert await client.is_closed()

    run_scenario(scenario)


@pytest.mark.parametrize(
    "coding", ["gzip", "identity", "chunked, gzip", "chunkedx", "chunked\r\nTransfer-Encoding: chunked"]
)
def test_a_body_whose_end_is_unknown_gets_400(run_scenario: RunScenario, coding: str) -> None:
    """Spec §2.3, §10."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(f"POST {EVENTS} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {coding}\r\n\r\n".encode())
        assert (await client.reply()).status == 400
        assert await client.is_closed()

    run_scenario(scenario)


@pytest.mark.parametrize("host", ["Host: 169.254.169.254", "Host: [::1]:80", "Host: anything", "Host:"])
def test_a_poll_may_name_any_host(run_scenario: RunScenario, host: str) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(f"GET {EVENTS} HTTP/1.1\r\n{host}\r\nMetadata: true\r\n\r\n".encode())
        assert (await client.reply()).status == 200
        client.send(f"GET {EVENTS} HTTP/1.0\r\nMetadata: true\r\n\r\n".encode())
        assert (await client.reply()).status == 200, "HTTP/1.0 needs no host"

    run_scenario(scenario)
