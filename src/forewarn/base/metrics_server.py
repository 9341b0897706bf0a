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
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_TIMEOUT_S = 10.0
_MAX_REQUEST_BYTES = 8192
_MAX_CONCURRENT_RENDERS = 16
_MAX_CONNECTIONS = 64  # each takes a file descriptor, which connections of VMs need
_BACKLOG = 64

RenderMetrics = Callable[[], Awaitable[bytes]]  # Prometheus text
_REASON_PHRASES = {200: "OK", 404: "Not Found", 405: "Method Not Allowed"}


def bind_metrics_sockets(host: str, port: int, *, workers: int) -> tuple[socket.socket, ...]:
    """Listen on `port` for the owner process and on one port after it per worker; return the sockets."""
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
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "the port is in use" if is_taken else getattr(error, "strerror", None) or str(error)
        raise Rejected(
            f"metrics cannot be served on {host}:{port}: {why}; change the setting 'metrics' "
            "(each worker uses one of the ports after it)"
        ) from error
    return sock


class MetricsServer:
    """Serves the metrics of one process on a listening socket, from `start` to `close`. Callers are not authenticated.

    A connection has 10 s and 8 KiB for its request, and at most 64 are open; more are reset.
    """

    def __init__(self, render: RenderMetrics) -> None:
        self._render = render
        self._server: asyncio.Server | None = None
        self._render_slots = asyncio.Semaphore(_MAX_CONCURRENT_RENDERS)
        self._connection_tasks: set[asyncio.Task[None]] = set()

    async def start(self, sock: socket.socket) -> None:
        """Serve `/metrics` on this listening socket, which the server then owns. Call it once."""
        self._server = await asyncio.start_server(self._on_connection, sock=sock, limit=_MAX_REQUEST_BYTES)

    async def close(self) -> None:
        """Stop listening, close the socket and end all connections at once. Does nothing before `start`."""
        if self._server is not None:
            self._server.close()
        for task in self._connection_tasks:
            task.cancel()
        await asyncio.gather(*self._connection_tasks, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connection_tasks) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve_connection(reader, writer))
        self._connection_tasks.add(task)
        task.add_done_callback(self._connection_tasks.discard)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                async with self._render_slots:
                    writer.write(await self._response_to(reader))
                writer.close()
                await writer.wait_closed()  # all was sent
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the caller sent no valid request, or went away
        except Exception:
            log.exception("metrics could not be served")
        finally:
            writer.transport.abort()  # even if the caller does not read

    async def _response_to(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _http_response(404, b"metrics are at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _http_response(405, b"use GET\n")
        return _http_response(200, await self._render(), head_only=method == b"HEAD")


def _http_response(status: int, body: bytes, *, head_only: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASON_PHRASES[status]}",
        f"Content-Type: {METRICS_CONTENT_TYPE}",
        f"Content-Length: {len(body)}",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status == 405 else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head_only else body)
