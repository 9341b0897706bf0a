"""The operator HTTP server: uvicorn on a unix socket and a TLS port, with bounded connections.

The TLS port also answers plain HTTP to clients on this machine. Unauthenticated peers reach this code, so it limits
their connections, time and memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from forewarn.errors import Refused, Rejected

log = logging.getLogger(__name__)
REQUEST_TIMEOUT_S = 60.0  # real time, from the moment a request may start to its last byte
WRITE_TIMEOUT_S = 60.0  # real time that a peer may leave a response unread
HANDSHAKE_TIMEOUT_S = 10.0  # real time, for the first byte and the TLS handshake
_OPEN_FILES_DIVISOR = 4  # a socket has at most this fraction of the process's open files as connections
_LISTEN_BACKLOG = 1024
_ACCEPT_RETRY_S = 0.5
_MIN_TIMEOUT_S = 0.001
_TLS_HANDSHAKE_BYTE = b"\x16"  # the content type of a handshake record (RFC 8446 §5.1)
_MAX_DISCARDED_BYTES = 65536
_HTTPS_ONLY_MESSAGE = b"this port serves plain http to its own machine only: call it with https://\n"
_HTTPS_ONLY_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    % (len(_HTTPS_ONLY_MESSAGE), _HTTPS_ONLY_MESSAGE)
)
_MAX_SOCKET_PATH_BYTES = 107  # the limit of Linux for the path in a unix socket's address
_SHUTDOWN_GRACE_S = 5


class BoundedH11Connection(H11Protocol):
    """An HTTP/1.1 connection with time limits for requests and for unread responses.

    It aborts a connection whose request is not complete after REQUEST_TIMEOUT_S, or whose peer reads nothing for
    WRITE_TIMEOUT_S. It uses h11 since uvicorn's faster parser does not limit the size of a request's head. `closed` is
    set when the connection is lost.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.closed = asyncio.Event()
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timer of the first request, which aborts the connection after REQUEST_TIMEOUT_S."""
        super().connection_made(transport)
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the timers and sets `closed`."""
        self._cancel_request_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)
        self.closed.set()

    def on_response_complete(self) -> None:
        """Starts the timer of the next request, unless the connection is closing."""
        super().on_response_complete()
        self._start_request_timer()

    def pause_writing(self) -> None:
        """Aborts the connection unless the peer reads within WRITE_TIMEOUT_S."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancels the abort of `pause_writing`."""
        super().resume_writing()
        self._cancel_write_timer()

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _start_request_timer(self) -> None:
        self._cancel_request_timer()
        if not self.transport.is_closing():
            self._request_timer = self.loop.call_later(REQUEST_TIMEOUT_S, self._abort_if_incomplete)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _abort_if_incomplete(self) -> None:
        # A peer that has sent its whole request waits for us, so it is not late.
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()


def is_loopback_address(address: str) -> bool:
    """Whether the text is a loopback address, also as an IPv4-mapped IPv6 address.

    False for any other text.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def max_connections() -> int:
    """How many connections one socket may have: a quarter of the process's soft limit of open files.

    At least 1; a million if there is no limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if soft == resource.RLIM_INFINITY else max(1, soft // _OPEN_FILES_DIVISOR)


class ConnectionAcceptor:
    """Accepts connections of one bound socket, up to `max_connections` at a time, until it is closed.

    With an `ssl_context` it detects TLS by the first byte; a connection without TLS must come from this machine. It
    starts to listen and accept when it is made, so make it inside an event loop. It never closes the socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        make_protocol: Callable[[], BoundedH11Connection],
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        sock.setblocking(False)
        sock.listen(_LISTEN_BACKLOG)
        self._sock = sock
        self._make_protocol = make_protocol
        self._ssl_context = ssl_context
        self._free_slots = asyncio.Semaphore(max_connections())
        self._connection_tasks: set[asyncio.Task[None]] = set()
        self._accept_task = asyncio.create_task(self._accept_loop())

    async def close(self) -> None:
        """Stops accepting; open connections and the socket stay open."""
        self._accept_task.cancel()
        await asyncio.gather(self._accept_task, return_exceptions=True)

    async def _accept_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._free_slots.acquire()
            try:
                connection, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                self._free_slots.release()
                log.warning("the console cannot accept connections, retrying: %s", error)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            connection_task = asyncio.create_task(self._serve_connection(connection))
            self._connection_tasks.add(connection_task)
            connection_task.add_done_callback(self._connection_done)

    async def _serve_connection(self, connection: socket.socket) -> None:
        try:
            if self._ssl_context is None:
                await self._run_protocol(connection)
            else:
                await self._detect_tls(connection, self._ssl_context)
        except OSError:  # includes ssl.SSLError and TimeoutError
            connection.close()

    async def _detect_tls(self, connection: socket.socket, ssl_context: ssl.SSLContext) -> None:
        ends_at = asyncio.get_running_loop().time() + HANDSHAKE_TIMEOUT_S
        first = await _peek_first_byte(connection)
        if first == _TLS_HANDSHAKE_BYTE:
            handshake_timeout_s = max(_MIN_TIMEOUT_S, ends_at - asyncio.get_running_loop().time())
            await self._run_protocol(connection, ssl_context, handshake_timeout_s)
        elif first and _is_loopback_peer(connection):
            await self._run_protocol(connection)
        else:
            _reject_plain_http(connection)

    async def _run_protocol(
        self,
        connection: socket.socket,
        ssl_context: ssl.SSLContext | None = None,
        handshake_timeout_s: float | None = None,
    ) -> None:
        protocol = self._make_protocol()
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: protocol, connection, ssl=ssl_context, ssl_handshake_timeout=handshake_timeout_s
        )
        await protocol.closed.wait()

    def _connection_done(self, connection_task: asyncio.Task[None]) -> None:
        self._connection_tasks.discard(connection_task)
        self._free_slots.release()


async def _peek_first_byte(connection: socket.socket) -> bytes:
    """The first byte of the peer, left unread; empty if the peer closes the connection.

    Raises TimeoutError.
    """
    connection.setblocking(False)
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            while (first := _peek_byte(connection)) is None:
                await _wait_until_readable(connection)
    except asyncio.CancelledError:
        connection.close()
        raise
    return first


def _peek_byte(connection: socket.socket) -> bytes | None:
    try:
        return connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return None


async def _wait_until_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)


def _is_loopback_peer(connection: socket.socket) -> bool:
    return is_loopback_address(str(connection.getpeername()[0]).partition("%")[0])


def _reject_plain_http(connection: socket.socket) -> None:
    try:
        # Unread data would make the system reset the connection, and drop our response.
        connection.recv(_MAX_DISCARDED_BYTES)
        connection.send(_HTTPS_ONLY_RESPONSE)
        connection.shutdown(socket.SHUT_WR)
    finally:
        connection.close()


class _UvicornServer(uvicorn.Server):
    """uvicorn in our event loop, with our own signal handling and our own acceptors."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers: list[asyncio.Server] = []
        self._acceptors = [ConnectionAcceptor(sock, self._make_connection, self.config.ssl) for sock in sockets or []]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            await acceptor.close()
        await super().shutdown(sockets)

    def _make_connection(self) -> BoundedH11Connection:
        return BoundedH11Connection(config=self.config, server_state=self.server_state, app_state={})


@asynccontextmanager
async def serve_unix(app: Starlette, path: Path) -> AsyncIterator[None]:
    """Serves the app on a unix socket for the time of the block.

    At the end it sets `shutting_down` of the app's dependencies, waits up to five seconds for open requests and removes
    the socket. Raises Refused or Rejected as `bind_unix_socket` does.
    """
    sock = bind_unix_socket(path)  # before the try: a file of another process must stay
    try:
        async with _run_server(_uvicorn_config(app), sock):
            yield
    finally:
        path.unlink(missing_ok=True)


@asynccontextmanager
async def serve_tls(app: Starlette, sock: socket.socket, certificate: Path, key: Path) -> AsyncIterator[ssl.SSLContext]:
    """Serves the app over TLS on a bound socket for the time of the block.

    Clients on this machine may use plain HTTP. Yields the TLS context: a certificate that is loaded into it applies to
    new connections. At the end it sets `shutting_down` of the app's dependencies, waits up to five seconds for open
    requests and closes the socket. Raises OSError for a bad certificate or key.
    """
    config = _uvicorn_config(app, ssl_certfile=certificate, ssl_keyfile=key)
    config.load()
    assert config.ssl is not None
    async with _run_server(config, sock):
        yield config.ssl


@asynccontextmanager
async def _run_server(config: uvicorn.Config, sock: socket.socket) -> AsyncIterator[None]:
    server = _UvicornServer(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await _wait_until_started(server, task)
        yield
    finally:
        config.app.state.dependencies.shutting_down.set()  # type: ignore[union-attr]
        server.should_exit = True
        await task


def _uvicorn_config(app: Starlette, **tls: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_SHUTDOWN_GRACE_S,
        server_header=False,
        proxy_headers=False,  # a client could forge them
        **tls,
    )


async def _wait_until_started(server: uvicorn.Server, task: asyncio.Task[None]) -> None:
    while not server.started:
        if task.done():
            task.result()
            return
        await asyncio.sleep(0)


def bind_unix_socket(path: Path) -> socket.socket:
    """A socket bound to this path with mode 0600, not listening yet; replaces one that nobody listens on.

    Raises Rejected for a path that is too long or cannot be bound, and Refused if another file or process has it.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise Rejected(
            f"the socket's path {str(path)!r} is longer than the {_MAX_SOCKET_PATH_BYTES} bytes a system allows: "
            "name a data directory with a shorter path"
        )
    _remove_stale_socket(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)  # not chmod afterwards: others could open it in between
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        sock.close()
        raise Rejected(
            f"the socket {str(path)!r} cannot be created: {error.strerror}; check its directory, or name another"
        ) from error
    finally:
        os.umask(umask)
    return sock


def _remove_stale_socket(path: Path) -> None:
    """Removes a socket that no process listens on."""
    if not path.exists():
        return
    if not path.is_socket():
        raise Refused(f"{str(path)!r} exists and is not a socket: move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise Refused(f"another forewarn answers on {str(path)!r}: stop it first, or name another data directory")
