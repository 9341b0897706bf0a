"""The plain HTTP port on which one process shows its metrics, never on an address that VMs call.

It serves `/metrics` only, closes each connection after the response, and limits time and number of connections.
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
_REQUEST_TIMEOUT_S = 10.0
_MAX_REQUEST_BYTES = 8192  # of a request
_MAX_CONCURRENT_RENDERS = 16
_MAX_CONNECTIONS = 64  # connections: files that strangers hold open are missing where VMs call
_BACKLOG = 64

RenderMetrics = Callable[[], Awaitable[bytes]]


def bind_metrics_sockets(host: str, port: int, *, workers: int) -> tuple[socket.socket, ...]:
    """For the owner, and at the ports after it for each worker; bound before anything is served."""
    sockets: list[socket.socket] = []
    try:
        for number in range(1 + workers):
            sockets.append(_bind_socket(host, port + number))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return tuple(sockets)


def _bind_socket(host: str, port: int) -> socket.socket:
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


class MetricsServer:
    """Shows one process's metrics on a listening socket, from `open` to `close`."""

    def __init__(self, show: RenderMetrics) -> None:
        self._render = show
        self._server: asyncio.Server | None = None
        self._render_slots = asyncio.Semaphore(_MAX_CONCURRENT_RENDERS)
        self._connection_tasks: set[asyncio.Task[None]] = set()

    async def start(self, sock: socket.socket) -> None:
        self._server = await asyncio.start_server(self._on_connection, sock=sock, limit=_MAX_REQUEST_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for visit in self._connection_tasks:
            visit.cancel()
        await asyncio.gather(*self._connection_tasks, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connection_tasks) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        visit = asyncio.get_running_loop().create_task(self._serve_connection(reader, writer))
        self._connection_tasks.add(visit)
        visit.add_done_callback(self._connection_tasks.discard)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                async with self._render_slots:
                    writer.write(await self._response_to(reader))
                writer.close()
                await writer.wait_closed()  # all was sent
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the caller's doing
        except Exception:
            log.exception("metrics could not be shown")
        finally:
            writer.transport.abort()  # also on whoever does not read

    async def _response_to(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _http_response(404, b"metrics are at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _http_response(405, b"use GET\n")
        return _http_response(200, await self._render(), head_only=method == b"HEAD")


_REASON_PHRASES = {200: "OK", 404: "Not Found", 405: "Method Not Allowed"}


def _http_response(status: int, body: bytes, *, head_only: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASON_PHRASES[status]}",
        f"Content-Type: {CONTENT_TYPE}",
        f"Content-Length: {len(body)}",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status == 405 else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head_only else body)
