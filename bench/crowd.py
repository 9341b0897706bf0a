"""Thousands of guests on one event loop: connections that ask together, and are told together when all are answered."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import uvloop

from bench.process import CLIENT_CORE, on_core
from bench.subject import TARGET
from tests.support.service_process import VmEndpoint

_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)")
_ETAG = re.compile(rb'\r\nETag: ("[^"]*")')
_GOOD = b"HTTP/1.1 200"
_AT_ONCE = 200  # connecting ones
_PATIENCE_S = 120.0
T = TypeVar("T")


def poll(etag: str = "", wait_s: int = 0) -> bytes:
    """A poll; with an ETag one that waits for another document."""
    more = f"If-None-Match: {etag}\r\nPrefer: wait={wait_s}\r\n" if wait_s else ""
    return f"GET {TARGET} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n{more}\r\n".encode()


def approval(event_id: str) -> bytes:
    body = f'{{"StartRequests":[{{"EventId":"{event_id}"}}]}}'
    head = f"POST {TARGET} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


class Guest(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._heard = b""
        self._then: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, raw: bytes, then: Callable[[bytes], None]) -> None:
        self._then = then
        self._transport.write(raw)

    def data_received(self, data: bytes) -> None:
        heard = self._heard + data if self._heard else data
        if not is_whole(heard):
            self._heard = heard
            return
        self._heard = b""
        then, self._then = self._then, None
        if then is not None:
            then(heard)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._then is not None:
            self._then(b"")

    def close(self) -> None:
        self._transport.close()


def is_whole(heard: bytes) -> bool:
    """Whether this is a response from its first byte to its last."""
    head = heard.find(b"\r\n\r\n")
    if head < 0:
        return False
    length = _LENGTH.search(heard, 0, head)
    return len(heard) >= head + 4 + (int(length[1]) if length else 0)


class Crowd:
    """Use it inside a running loop."""

    def __init__(self) -> None:
        self.guests: list[Guest] = []
        self.etag = ""

    async def connect(self, seats: Sequence[VmEndpoint], count: int) -> None:
        """So many more connections, the seats in turn."""
        loop = asyncio.get_running_loop()
        places = [seats[number % len(seats)] for number in range(count)]
        for first in range(0, count, _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            made = await asyncio.gather(*(loop.create_connection(Guest, at.address, at.port) for at in some))
            self.guests += [guest for _, guest in made]

    def ask(self, raw: bytes, guests: Sequence[Guest] | None = None) -> Round:
        """All of them, or these, ask the same."""
        asked = self.guests if guests is None else guests
        asking = Round(len(asked))
        for guest in asked:
            guest.ask(raw, asking.hear)
        return asking

    async def poll(self, guests: Sequence[Guest] | None = None) -> None:
        """Everybody once, or these, and remember what the document is called."""
        answers = await self.ask(poll(), guests).all()
        self.etag = etag_of(answers[-1])

    async def pool(self, tasks: Iterable[tuple[Guest, bytes]], at_once: int) -> int:
        """Every guest its request, never more than so many at the same time; how many there were."""
        waiting, asked = iter(tasks), 0
        done: asyncio.Queue[bytes] = asyncio.Queue()

        def ask_next() -> int:
            with suppress(StopIteration):
                guest, raw = next(waiting)
                guest.ask(raw, done.put_nowait)
                return 1
            return 0

        under_way = sum(ask_next() for _ in range(at_once))
        while under_way:
            answer = await asyncio.wait_for(done.get(), _PATIENCE_S)
            _must_be_good(answer)
            asked += 1
            under_way += ask_next() - 1
        return asked

    def close(self) -> None:
        for guest in self.guests:
            guest.close()


class Round:
    """Answers that are awaited together, and when each came; one that is not good ends it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._over: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.answers: list[bytes] = []
        self.times: list[float] = []

    def hear(self, answer: bytes) -> None:
        self.times.append(time.perf_counter())
        self.answers.append(answer)
        if (len(self.answers) == self._count or not answer.startswith(_GOOD)) and not self._over.done():
            self._over.set_result(answer)

    def must_wait(self) -> None:
        """AssertionError if anybody was answered already."""
        early = f"{len(self.answers)} of {self._count} guests were answered before anything changed"
        assert not self.answers, f"{early}: {self.answers[0][:300]!r}"

    async def all(self) -> list[bytes]:
        """Every answer, when everybody has theirs."""
        _must_be_good(await asyncio.wait_for(self._over, _PATIENCE_S))
        return self.answers

    def must_be_news(self, etag: str) -> None:
        """AssertionError if anybody was given the document that they knew."""
        stale = sum(etag_of(answer) == etag for answer in self.answers)
        assert not stale, f"{stale} of {self._count} guests were given {etag}, the document that they knew"


def etag_of(answer: bytes) -> str:
    found = _ETAG.search(answer)
    assert found is not None, f"a guest was answered without an ETag: {answer[:300]!r}"
    return found[1].decode()


def _must_be_good(answer: bytes) -> None:
    assert answer.startswith(_GOOD), f"a guest was answered {answer[:300]!r}"


def play(story: Coroutine[Any, Any, T], core: int | None = CLIENT_CORE) -> T:
    """On the clients' core or another, on the loop that costs least."""
    with on_core(core), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(story)
