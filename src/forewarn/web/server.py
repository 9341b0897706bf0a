"""Where those who connect are taken in: as many as there is room for, and none who takes long to shake hands.

The others wait in the system's queue, where they cost us nothing. One port takes TLS from everywhere, and plain http
from this machine.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable

from forewarn.console.plain import is_of_this_machine
from forewarn.console.visitor import Visitor

log = logging.getLogger(__name__)
HANDSHAKE_S = 10.0  # real time
_SHARE = 4  # connections to one socket are at most one part in so many of all files that this process may have open
_QUEUE = 1024
_AGAIN_S = 0.5
_LEAST_S = 0.001
_TLS = b"\x16"  # a handshake's record (RFC 8446 §5.1)
_MOST_READ = 65536
_SENTENCE = b"this port speaks https to whoever is not on its machine: call it with https://\n"
_AWAY = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_SENTENCE),
    _SENTENCE,
)


def most_visitors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if soft == resource.RLIM_INFINITY else max(1, soft // _SHARE)


class Reception:
    def __init__(self, sock: socket.socket, make: Callable[[], Visitor], context: ssl.SSLContext | None) -> None:
        sock.setblocking(False)
        sock.listen(_QUEUE)
        self._sock = sock
        self._make = make
        self._context = context
        self._room = asyncio.Semaphore(most_visitors())
        self._stays: set[asyncio.Task[None]] = set()
        self._taking_in = asyncio.create_task(self._take_in())

    async def close(self) -> None:
        """Nobody else is taken in; whoever is in stays."""
        self._taking_in.cancel()
        await asyncio.gather(self._taking_in, return_exceptions=True)

    async def _take_in(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                connection, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                self._room.release()
                log.warning("nobody can be taken in at the console, trying again: %s", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            stay = asyncio.create_task(self._stay(connection))
            self._stays.add(stay)
            stay.add_done_callback(self._left)

    async def _stay(self, connection: socket.socket) -> None:
        try:
            if self._context is None:
                await self._host(connection)
            else:
                await self._greet(connection, self._context)
        except OSError:  # also what ssl raises, and what takes too long ends with
            connection.close()

    async def _greet(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        """By their first byte those are known who speak TLS; the others must be on this machine."""
        ends_at = asyncio.get_running_loop().time() + HANDSHAKE_S
        first = await _first_byte(connection)
        if first == _TLS:
            await self._host(connection, context, max(_LEAST_S, ends_at - asyncio.get_running_loop().time()))
        elif first and _is_on_this_machine(connection):
            await self._host(connection)
        else:
            _send_away(connection)

    async def _host(
        self, connection: socket.socket, context: ssl.SSLContext | None = None, patience_s: float | None = None
    ) -> None:
        visitor = self._make()
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: visitor, connection, ssl=context, ssl_handshake_timeout=patience_s
        )
        await visitor.gone.wait()

    def _left(self, stay: asyncio.Task[None]) -> None:
        self._stays.discard(stay)
        self._room.release()


async def _first_byte(connection: socket.socket) -> bytes:
    """What they say first, which is left for others to read; nothing from those who hang up."""
    connection.setblocking(False)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            while (first := _peeked(connection)) is None:
                await _until_readable(connection)
    except asyncio.CancelledError:
        connection.close()
        raise
    return first


def _peeked(connection: socket.socket) -> bytes | None:
    try:
        return connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return None


async def _until_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)


def _is_on_this_machine(connection: socket.socket) -> bool:
    return is_of_this_machine(str(connection.getpeername()[0]).partition("%")[0])


def _send_away(connection: socket.socket) -> None:
    """With what they said read as far as it is there: else the system drops our answer with it."""
    try:
        connection.recv(_MOST_READ)
        connection.send(_AWAY)
        connection.shutdown(socket.SHUT_WR)
    finally:
        connection.close()
