"""Arbitrary bytes get a well-formed response or a closed connection, and the next client is served."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.metadata import CallerDirectory, Limits, MetadataServer, PublishedDocuments, open_lab_listeners
from forewarn.metadata.request_parser import ParsedRequest, RefusedRequest, RequestParser
from tests.support.metadata_backend import FakeMetadataBackend

LIMITS = Limits(request_s=0.3, idle_s=1.0, linger_s=0.2)
POLL = b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n"
CHUNKED = (
    b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n"
    b'Transfer-Encoding: chunked\r\n\r\na;x=y\r\n{"StartReq\r\n9\r\nuests":[]\r\n1\r\n}\r\n0\r\nTrailer: t\r\n\r\n'
)
POST = (
    b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n"
    b'Content-Length: 20\r\n\r\n{"StartRequests":[]}'
)
OTHERS = [
    b"GET /metadata/versions HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n",
    b"GET /metadata/instance?api-version=2021-02-01 HTTP/1.0\r\nMetadata: true\r\nConnection: keep-alive\r\n\r\n",
    b"GET /metadata/identity/oauth2/token?api-version=2018-02-01&resource=r HTTP/1.1\r\n"
    b"Host: x\r\nMetadata: true\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\n\r\nPUT / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000,
    b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"\xff\x00" + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"\x16\x03\x01 not HTTP at all \r\n\r\n",
]
requests = st.sampled_from([POLL, POST, CHUNKED, *OTHERS])


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Pipelined requests, truncated, with a few bytes changed."""
    raw = bytearray(b"".join(draw(st.lists(requests, min_size=1, max_size=5))))
    for _ in range(draw(st.integers(0, 3))):
        raw[draw(st.integers(0, min(len(raw), 400) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(1, len(raw)))])


streams = st.one_of(st.binary(max_size=300), mutated(), st.lists(requests, max_size=5).map(b"".join))


def parse(pieces: list[bytes]) -> list[ParsedRequest | RefusedRequest]:
    """Parse the pieces, up to where the connection would be closed."""
    parser, out = RequestParser(LIMITS), []
    for piece in pieces:
        parser.feed(piece)
        while (item := parser.next_request()) is not None:
            out.append(item)
            if isinstance(item, RefusedRequest) or not item.keep_alive:
                return out
    return out


@given(raw=streams, cuts=st.lists(st.integers(0, 1000), max_size=8))
@settings(max_examples=300, deadline=None)
def test_requests_parse_the_same_at_every_packet_boundary(raw: bytes, cuts: list[int]) -> None:
    positions = sorted({min(cut, len(raw)) for cut in cuts})
    pieces = [raw[a:b] for a, b in zip([0, *positions], [*positions, len(raw)], strict=True)]
    assert parse(pieces) == parse([raw])


@pytest.mark.parametrize("raw", [POLL, POST, CHUNKED], ids=["poll", "post", "chunked"])
def test_a_request_may_be_split_at_every_byte(raw: bytes) -> None:
    for cut in range(len(raw)):
        assert parse([raw[:cut], raw[cut:] + POLL]) == parse([raw + POLL])
    parsed = parse([bytes([byte]) for byte in raw])
    assert [type(item) for item in parsed] == [ParsedRequest]


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server in a thread of its own, so that clients may block."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    started: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        documents, callers = PublishedDocuments(), CallerDirectory()
        backend = FakeMetadataBackend(documents)
        backend.add_scope("single", "a")
        callers.assign("127.0.6.1", "a")
        lab = open_lab_listeners(lambda: ["127.0.6.1"], 0)
        server = MetadataServer(documents=documents, backend=backend, callers=callers, limits=LIMITS)
        await server.start([lab.listener])
        stop = asyncio.Event()
        started.set_result((lab.port, asyncio.get_running_loop(), stop))
        await stop.wait()
        await server.drain(1)
        assert server.counters.responses_by_status[500] == 0

    def run() -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    port, loop, stop = started.result(10)
    yield port
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    assert not thread.is_alive()


def exchange(port: int, pieces: list[bytes], *, half_close: bool) -> bytes:
    """Send the pieces and return all bytes until the server closes."""
    out = b""
    with socket.create_connection(("127.0.6.1", port), timeout=10) as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
            if half_close:
                with suppress(OSError):  # ENOTCONN: the server has reset the connection already
                    sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(65_536):
                out += data
        except (ConnectionResetError, BrokenPipeError):
            pass
    return out


HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Za-z' -]+\r\n((?:[A-Za-z-]+: [^\r\n]*\r\n)+)?\r\n")
KNOWN = {100, 200, 304, 400, 403, 404, 408, 413, 431}


def read_statuses(out: bytes) -> list[int]:
    """The statuses of a stream of well-formed responses; the one to a HEAD has a length and no body."""
    statuses = []
    while out:
        head = HEAD.match(out)
        assert head, out[:200]
        statuses.append(int(head[1]))
        length = re.search(rb"Content-Length: (\d+)\r\n", head[2] or b"")
        size = int(length[1]) if length else 0
        rest = out[head.end() :]
        is_head = size == 323 and not rest.startswith(b"<?xml")
        assert is_head or len(rest) >= size
        out = rest if is_head else rest[size:]
    return statuses


def check(port: int, raw: bytes, cut: int, *, half_close: bool) -> None:
    statuses = read_statuses(exchange(port, [raw[:cut], raw[cut:]], half_close=half_close))
    assert set(statuses) <= KNOWN
    assert read_statuses(exchange(port, [POLL], half_close=True)) == [200]


@given(raw=streams, cut=st.integers(0, 400))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_bytes_get_well_formed_responses_or_a_closed_connection(port: int, raw: bytes, cut: int) -> None:
    check(port, raw, cut, half_close=True)


@given(raw=streams, cut=st.integers(0, 400))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_bytes_get_well_formed_responses_if_the_client_keeps_the_connection_open(
    port: int, raw: bytes, cut: int
) -> None:
    """Each example takes a timeout, so there are few."""
    check(port, raw, cut, half_close=False)
