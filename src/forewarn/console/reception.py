"""Where those who connect are taken in: as many as there is room for, and none who takes long to shake hands.

The others wait in the system's queue, where they cost us nothing.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable

from forewarn.console.visitor import Visitor

log = logging.getLogger(__name__)
HANDSHAKE_S = 10.0  # real time
_SHARE = 4  # connections to one socket are at most one part in so many of all files that this process may have open
_QUEUE = 1024
_AGAIN_S = 0.5


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
        visitor = self._make()
        patience_s = HANDSHAKE_S if self._context else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: visitor, connection, ssl=self._context, ssl_handshake_timeout=patience_s
            )
        except OSError:  # also what ssl raises, and what a handshake that takes too long ends with
            connection.close()
        else:
            await visitor.gone.wait()

    def _left(self, stay: asyncio.Task[None]) -> None:
        self._stays.discard(stay)
        self._room.release()
