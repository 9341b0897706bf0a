"""The time limit of a call to PostgreSQL also ends an answer that never does; the server here is a fake."""

from __future__ import annotations

import inspect
import select
import socket
import struct
import time
from collections.abc import Generator, Iterator
from threading import Thread

import pytest
from psycopg.waiting import Ready, Wait

from forewarn.store.postgres_connection import CallAborted, LimitedConnection

LONG_S = 60.0


def message(kind: bytes, body: bytes) -> bytes:
    """A message of PostgreSQL's protocol, version 3."""
    return kind + struct.pack("!i", len(body) + 4) + body


STARTED = message(b"R", struct.pack("!i", 0)) + message(b"K", struct.pack("!ii", 1, 1)) + message(b"Z", b"I")
PARAMETER = message(b"S", b"application_name\0forewarn\0")


@pytest.fixture
def busy() -> Iterator[LimitedConnection]:
    """A connection on which something has arrived that nobody reads, so that a call never waits for more."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(LONG_S)
    peers: list[socket.socket] = []

    def accept() -> None:
        peer, _ = server.accept()
        peers.append(peer)
        peer.recv(8192)
        peer.sendall(STARTED)

    thread = Thread(target=accept)
    thread.start()
    url = f"postgresql://u@127.0.0.1:{server.getsockname()[1]}/d?sslmode=disable&gssencmode=disable"
    db = LimitedConnection.connect(url, autocommit=True)
    thread.join(LONG_S)
    peers[0].sendall(PARAMETER)
    assert select.select([db.fileno()], [], [], LONG_S)[0]
    yield db
    db.close()
    for each in (*peers, server):
        each.close()


def call(steps: int) -> Generator[Wait, Ready | int, str]:
    """A call of psycopg whose answer is complete after this number of steps."""
    for _ in range(steps):
        yield Wait.R
    return "complete"


def test_a_call_ends_at_its_deadline_although_its_answer_goes_on(busy: LimitedConnection) -> None:
    busy.deadline = time.monotonic()
    with pytest.raises(CallAborted, match="there was no complete answer within 10 s"):
        busy.wait(call(steps=1000))


def test_an_aborted_call_ends_although_its_answer_goes_on(busy: LimitedConnection) -> None:
    busy.is_aborted = True
    with pytest.raises(CallAborted, match="the call was ended"):
        busy.wait(call(steps=1000))


def test_a_call_that_waits_while_it_is_closed_is_ended_too(busy: LimitedConnection) -> None:
    def pipeline() -> Generator[Wait, Ready | int, str]:
        try:
            return (yield from call(steps=1000))
        finally:
            yield from call(steps=5)

    gen = pipeline()
    busy.is_aborted = True
    with pytest.raises(CallAborted):
        busy.wait(gen)
    assert inspect.getgeneratorstate(gen) == inspect.GEN_CLOSED


def test_an_answer_that_is_complete_at_the_deadline_is_returned(busy: LimitedConnection) -> None:
    busy.deadline = time.monotonic()
    assert busy.wait(call(steps=1)) == "complete"
