"""Connections to PostgreSQL: the time limit of calls, and statements that are sent together; the server is a fake."""

from __future__ import annotations

import inspect
import os
import select
import socket
import struct
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from psycopg.waiting import Ready, Wait

from forewarn.cluster.postgres_connection import CallAborted, LimitedConnection

LONG_S = 60.0


def message(kind: bytes, body: bytes) -> bytes:
    """A message of PostgreSQL's protocol, version 3."""
    return kind + struct.pack("!i", len(body) + 4) + body


STARTED = message(b"R", struct.pack("!i", 0)) + message(b"K", struct.pack("!ii", 1, 1)) + message(b"Z", b"I")
PARAMETER = message(b"S", b"application_name\0forewarn\0")


@contextmanager
def connected(server: socket.socket, host: str, port: int) -> Iterator[tuple[LimitedConnection, socket.socket]]:
    """A connection to a server that says nothing after it has started, and the server's end of it."""
    server.settimeout(LONG_S)
    peers: list[socket.socket] = []

    def accept() -> None:
        peer, _ = server.accept()
        peers.append(peer)
        peer.recv(8192)
        peer.sendall(STARTED)

    thread = Thread(target=accept)
    thread.start()
    url = f"postgresql://u@/d?host={host}&port={port}&sslmode=disable&gssencmode=disable"
    db = LimitedConnection.connect(url, autocommit=True)
    thread.join(LONG_S)
    try:
        yield db, peers[0]
    finally:
        db.close()
        for each in (*peers, server):
            each.close()


@pytest.fixture
def busy() -> Iterator[LimitedConnection]:
    """A connection on which something has arrived that nobody reads, so that a call never waits for more."""
    server = socket.create_server(("127.0.0.1", 0))
    with connected(server, *server.getsockname()) as (db, peer):
        peer.sendall(PARAMETER)
        assert select.select([db.fileno()], [], [], LONG_S)[0]
        yield db


@pytest.fixture
def local() -> Iterator[LimitedConnection]:
    """A connection over a local socket."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/.s.PGSQL.5432")
        server.listen()
        with connected(server, folder, 5432) as (db, _):
            yield db


def call(steps: int) -> Generator[Wait, Ready | int, str]:
    """A call of psycopg whose answer is complete after this number of steps."""
    for _ in range(steps):
        yield Wait.R
    return "complete"


def test_a_call_ends_at_its_deadline_although_its_answer_goes_on(busy: LimitedConnection) -> None:
    busy.deadline = time.monotonic()
    with pytest.raises(CallAborted, match="there was no complete answer in time"):
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


def is_held_back(db: LimitedConnection) -> bool:
    """Whether the system keeps packets of this connection that are not full."""
    with socket.socket(fileno=os.dup(db.fileno())) as sock:
        return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK))


def open_files(db: LimitedConnection) -> int:
    """The number of file descriptors of this process that are the socket of the connection."""
    name = os.readlink(f"/proc/self/fd/{db.fileno()}")
    return [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()].count(name)


needs_cork = pytest.mark.skipif(not hasattr(socket, "TCP_CORK"), reason="only Linux can hold packets back")


@needs_cork
def test_statements_are_held_back_until_they_are_sent_together(busy: LimitedConnection) -> None:
    with busy.sending_together():
        assert is_held_back(busy)
    assert not is_held_back(busy)
    assert open_files(busy) == 1


@needs_cork
def test_nothing_is_held_back_after_an_error_between_statements(busy: LimitedConnection) -> None:
    with pytest.raises(ValueError, match="cannot be encoded"), busy.sending_together():
        raise ValueError("cannot be encoded")
    assert not is_held_back(busy)
    assert open_files(busy) == 1


@needs_cork
def test_a_connection_can_be_closed_between_statements_that_are_sent_together(busy: LimitedConnection) -> None:
    with busy.sending_together():
        busy.close()
    assert busy.closed


def test_statements_over_a_local_socket_are_sent_at_once(local: LimitedConnection) -> None:
    ran = 0
    with local.sending_together():
        ran += 1
    with pytest.raises(ValueError, match="cannot be encoded"), local.sending_together():
        raise ValueError("cannot be encoded")
    assert ran == 1
    assert not local.closed
    if os.path.isdir("/proc/self/fd"):
        assert open_files(local) == 1
