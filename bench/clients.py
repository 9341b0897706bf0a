"""Thousands of HTTP clients on one event loop, which send requests together and await all responses."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar, cast

import uvloop

from bench.process import CLIENT_CORE, on_core
from bench.service import TARGET
from tests.support.service_process import VmEndpoint

_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)")
_ETAG = re.compile(rb'\r\nETag: ("[^"]*")')
_GOOD = b"HTTP/1.1 200"
_CONNECTS_AT_ONCE = 200
_TIMEOUT_S = 120.0
T = TypeVar("T")


def poll_request(etag: str = "", wait_s: int = 0) -> bytes:
    """Return the bytes of a poll; with `wait_s` those of a long poll for a change of this ETag."""
    more = f"If-None-Match: {etag}\r\nPrefer: wait={wait_s}\r\n" if wait_s else ""
    return f"GET {TARGET} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n{more}\r\n".encode()


def approval_request(event_id: str) -> bytes:
    """Return the bytes of an approval of one event."""
    body = f'{{"StartRequests":[{{"EventId":"{event_id}"}}]}}'
    head = f"POST {TARGET} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


class Client(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._received = b""
        self._on_response: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes, on_response: Callable[[bytes], None]) -> None:
        """Send a request; `on_response` gets the response, or b"" if the connection is lost."""
        self._on_response = on_response
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        if not is_complete(received):
            self._received = received
            return
        self._received = b""
        on_response, self._on_response = self._on_response, None
        if on_response is not None:
            on_response(received)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._on_response is not None:
            self._on_response(b"")

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


def is_complete(received: bytes) -> bool:
    """Whether the bytes are a complete response."""
    head = received.find(b"\r\n\r\n")
    if head < 0:
        return False
    length = _LENGTH.search(received, 0, head)
    return len(received) >= head + 4 + (int(length[1]) if length else 0)


class ClientPool:
    """Many clients on the running event loop."""

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.etag = ""  # of the last `poll`

    async def connect(self, endpoints: Sequence[VmEndpoint], count: int) -> None:
        """Open `count` more connections, to the endpoints in turn."""
        loop = asyncio.get_running_loop()
        targets = [endpoints[number % len(endpoints)] for number in range(count)]
        for first in range(0, count, _CONNECTS_AT_ONCE):
            some = targets[first : first + _CONNECTS_AT_ONCE]
            made = await asyncio.gather(*(loop.create_connection(Client, at.address, at.port) for at in some))
            self.clients += [client for _, client in made]

    def send_all(self, request: bytes, clients: Sequence[Client] | None = None) -> ResponseBatch:
        """Send the same request on all connections, or on these."""
        senders = self.clients if clients is None else clients
        batch = ResponseBatch(len(senders))
        for client in senders:
            client.send(request, batch.add)
        return batch

    async def poll(self, clients: Sequence[Client] | None = None) -> None:
        """Poll once on all connections, or on these, and keep the ETag of the document."""
        responses = await self.send_all(poll_request(), clients).wait()
        self.etag = response_etag(responses[-1])

    async def send_limited(self, tasks: Iterable[tuple[Client, bytes]], at_once: int) -> int:
        """Send each request on its connection, at most `at_once` at a time; returns how many there were.

        The next request is sent as soon as a response arrives, without a turn of the event loop in between.
        """
        waiting, pending, answered = iter(tasks), 0, 0
        last: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()  # or the first that is bad

        def send_next() -> None:
            nonlocal pending
            if task := next(waiting, None):
                pending += 1
                client, request = task
                client.send(request, on_response)

        def on_response(response: bytes) -> None:
            nonlocal pending, answered
            pending -= 1
            answered += 1
            if is_good := response.startswith(_GOOD):
                send_next()
            if not last.done() and not (is_good and pending):
                last.set_result(response)

        for _ in range(at_once):
            send_next()
        if pending:
            _check_good(await asyncio.wait_for(last, _TIMEOUT_S))
        return answered

    def close(self) -> None:
        """Close all connections."""
        for client in self.clients:
            client.close()


class ResponseBatch:
    """The responses to requests that were sent together, and when each arrived. A bad one ends the batch."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._last: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.responses: list[bytes] = []
        self.times: list[float] = []  # of time.perf_counter

    def add(self, response: bytes) -> None:
        """Add a response that arrived now."""
        self.times.append(time.perf_counter())
        self.responses.append(response)
        if (len(self.responses) == self._count or not response.startswith(_GOOD)) and not self._last.done():
            self._last.set_result(response)

    def check_none_answered(self) -> None:
        """AssertionError if a response has arrived already."""
        early = f"{len(self.responses)} of {self._count} clients were answered before anything changed"
        assert not self.responses, f"{early}: {self.responses[0][:300]!r}"

    async def wait(self) -> list[bytes]:
        """Return all responses when the last has arrived. AssertionError if one is not a 200."""
        _check_good(await asyncio.wait_for(self._last, _TIMEOUT_S))
        return self.responses

    def check_changed(self, etag: str) -> None:
        """AssertionError if a client got the document with this ETag, which it had already."""
        stale = sum(response_etag(response) == etag for response in self.responses)
        assert not stale, f"{stale} of {self._count} clients got {etag}, the document that they had"


def response_etag(response: bytes) -> str:
    """Return the ETag of a response. AssertionError if it has none."""
    found = _ETAG.search(response)
    assert found is not None, f"a client got a response without an ETag: {response[:300]!r}"
    return found[1].decode()


def _check_good(response: bytes) -> None:
    assert response.startswith(_GOOD), f"a client got {response[:300]!r}"


def run_clients(main: Coroutine[Any, Any, T], core: int | None = CLIENT_CORE) -> T:
    """Run the coroutine with uvloop, on the clients' core or on another (None: on any)."""
    with on_core(core), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
