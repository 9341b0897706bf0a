"""Where Prometheus calls a process: a plain HTTP listener of its own, never on an address that VMs call.

It knows one page. Whoever calls is answered and hung up on, in time, and not too many at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable

from forewarn.errors import Rejected

log = logging.getLogger(__name__)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PATIENCE_S = 10.0
_MOST_BYTES = 8192  # of a request
_MOST_AT_ONCE = 16
_MOST_OPEN = 64  # connections: files that strangers hold open are missing where VMs call
_BACKLOG = 64

Exposition = Callable[[], Awaitable[bytes]]


def open_sockets(host: str, port: int, *, workers: int) -> tuple[socket.socket, ...]:
    """For the owner, and at the ports after it for each worker; bound before anything is served."""
    sockets: list[socket.socket] = []
    try:
        for number in range(1 + workers):
            sockets.append(_listen(host, port + number))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return tuple(sockets)


def _listen(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except (OSError, OverflowError) as error:
        sock.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "another program does" if taken else getattr(error, "strerror", None) or str(error)
        raise Rejected(
            f"metrics cannot be shown on {host}:{port}: {why}; set another 'metrics' (workers have the ports after it)"
        ) from error
    return sock


class Window:
    """Shows one process's metrics on a listening socket, from `open` to `close`."""

    def __init__(self, show: Exposition) -> None:
        self._show = show
        self._server: asyncio.Server | None = None
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)
        self._visits: set[asyncio.Task[None]] = set()

    async def open(self, sock: socket.socket) -> None:
        self._server = await asyncio.start_server(self._welcome, sock=sock, limit=_MOST_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._visits) >= _MOST_OPEN:
            writer.transport.abort()
            return
        visit = asyncio.get_running_loop().create_task(self._meet(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                async with self._room:
                    writer.write(await self._answer(reader))
                writer.close()
                await writer.wait_closed()  # all was sent
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the caller's doing
        except Exception:
            log.exception("metrics could not be shown")
        finally:
            writer.transport.abort()  # also on whoever does not read

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _written(404, b"metrics are at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _written(405, b"use GET\n")
        return _written(200, await self._show(), head_only=method == b"HEAD")


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed"}


def _written(status: int, body: bytes, *, head_only: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {CONTENT_TYPE}",
        f"Content-Length: {len(body)}",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status == 405 else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head_only else body)
