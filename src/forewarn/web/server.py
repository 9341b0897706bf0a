"""The operator HTTP server: uvicorn on a unix socket and a TLS port, with bounded connections.

The TLS port also answers plain HTTP to clients on this machine. Unauthenticated peers reach this code, so it limits
their connections (`connection_slots`), time and memory. The unix socket serves its owner and root only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from forewarn.base.http_client import AEAD_CIPHERS
from forewarn.base.unix_socket import PeerCredentials, bind_unix_socket, peer_refusal
from forewarn.errors import Forbidden, ForewarnError
from forewarn.web.connection_slots import (
    LOCAL_GROUP,
    ConnectionShares,
    ConnectionSlot,
    ConnectionSlots,
    address_group,
    slot_state,
)
from forewarn.web.errors import RETRY_AFTER_BY_STATUS, Surface, classify_error

log = logging.getLogger(__name__)
HEAD_TIMEOUT_S = 5.0  # real time, from the moment a request may start to the end of its head
ANONYMOUS_REQUEST_TIMEOUT_S = 15.0  # real time to its last byte, of a caller who is not signed in
REQUEST_TIMEOUT_S = 60.0  # the same, of a caller who is signed in
WRITE_TIMEOUT_S = 60.0  # real time that a peer may leave a response unread
HANDSHAKE_TIMEOUT_S = 5.0  # real time, for the first byte and the TLS handshake
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
_SHUTDOWN_GRACE_S = 5


class _BoundedH11Connection(H11Protocol):
    """An HTTP/1.1 connection with time limits for requests and for unread responses."""

    # If its slot has a refusal, its request is answered with that error, and the connection is closed. It uses h11
    # since uvicorn's faster parser does not limit the size of a request's head.

    def __init__(self, slot: ConnectionSlot, **arguments: Any) -> None:
        super().__init__(app_state=slot_state(slot), **arguments)
        self.closed = asyncio.Event()
        self._slot = slot
        if slot.refusal is not None:
            self.app = _refusing_app(slot.refusal)
        self._waits_since = 0.0
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_receiving():
            self._slot.request_received()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._slot.refusal is not None:
            self.transport.close()
        elif self._is_receiving():  # else the next request is here already
            self._wait_for_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timer()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _is_receiving(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _wait_for_request(self) -> None:
        self._waits_since = self.loop.time()
        self._slot.response_sent(self._waits_since)
        self._cancel_request_timer()
        if not self.transport.is_closing():
            self._request_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._abort_if_late)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _abort_if_late(self) -> None:
        """Aborts the connection if its request is late, else checks again when the whole request would be."""
        if not self._is_receiving():
            return  # the peer has sent its whole request
        timeout_s = HEAD_TIMEOUT_S
        if self.conn.their_state is h11.SEND_BODY:
            timeout_s = REQUEST_TIMEOUT_S if self._slot.is_signed_in else ANONYMOUS_REQUEST_TIMEOUT_S
        remaining_s = self._waits_since + timeout_s - self.loop.time()
        if remaining_s <= 0:
            self.transport.abort()
        else:
            self._request_timer = self.loop.call_later(remaining_s, self._abort_if_late)


def _refusing_app(refusal: ForewarnError) -> ASGIApp:
    """Returns an app that answers every request with this error, in the format of the API and of ARM."""
    status, code, message = classify_error(refusal, Surface.API)
    headers = {**RETRY_AFTER_BY_STATUS.get(status, {}), "Connection": "close"}
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


def is_loopback_address(address: str) -> bool:
    """Return whether the text is a loopback address, which may be an IPv4-mapped IPv6 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


class ConnectionAcceptor:
    """Accepts connections of one bound socket, within `shares`, until it is closed; serves each in a task.

    With an `ssl_context` it detects TLS by the first byte; a connection without TLS that is not from this machine gets
    a 400. On a unix socket it serves only the user of this process and root. It never closes the socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        make_protocol: Callable[[ConnectionSlot], _BoundedH11Connection],
        ssl_context: ssl.SSLContext | None,
        shares: ConnectionShares,
    ) -> None:
        sock.setblocking(False)
        sock.listen(_LISTEN_BACKLOG)
        self._sock = sock
        self._make_protocol = make_protocol
        self._ssl_context = ssl_context
        self._slots = ConnectionSlots(shares)
        self._connection_tasks: set[asyncio.Task[None]] = set()
        self._accept_task = asyncio.create_task(self._accept_loop())

    async def close(self) -> None:
        """Stop accepting connections; open connections and the socket stay open."""
        self._accept_task.cancel()
        await asyncio.gather(self._accept_task, return_exceptions=True)

    async def _accept_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                log.warning("the API cannot accept connections, retrying: %s", error)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            try:
                self._start_connection(connection)
            except OSError:  # the peer is gone
                connection.close()

    def _start_connection(self, connection: socket.socket) -> None:
        served = _ServedConnection()
        slot = self._open_slot(connection, served)
        if slot is None:
            connection.close()
            return
        served.task = asyncio.create_task(self._serve_connection(connection, slot, served))
        self._connection_tasks.add(served.task)
        served.task.add_done_callback(self._connection_tasks.discard)
        served.task.add_done_callback(lambda _: slot.release())

    def _open_slot(self, connection: socket.socket, served: _ServedConnection) -> ConnectionSlot | None:
        now, shares = asyncio.get_running_loop().time(), self._slots.shares
        if self._sock.family == socket.AF_UNIX:
            if refusal := peer_refusal(PeerCredentials.of(connection), os.geteuid()):
                log.warning("a connection to %s was refused: %s", self._sock.getsockname(), refusal)
                error = Forbidden(f"this service belongs to another user: {refusal}")
                return self._slots.refuse(LOCAL_GROUP, error, now, served.abort)
            return self._slots.open(LOCAL_GROUP, shares.total, now, served.abort)
        group = address_group(str(connection.getpeername()[0]))
        share = shares.per_local_address if group == LOCAL_GROUP else shares.per_address
        slot = self._slots.open(group, share, now, served.abort)
        if slot is None or slot.refusal is not None:
            log.warning("the API refuses connections from %s: too many are open", group)
        return slot

    async def _serve_connection(
        self, connection: socket.socket, slot: ConnectionSlot, served: _ServedConnection
    ) -> None:
        try:
            if self._ssl_context is None:
                await self._run_protocol(connection, slot, served)
            else:
                await self._detect_tls(connection, self._ssl_context, slot, served)
        except OSError:  # includes ssl.SSLError and TimeoutError
            connection.close()

    async def _detect_tls(
        self,
        connection: socket.socket,
        ssl_context: ssl.SSLContext,
        slot: ConnectionSlot,
        served: _ServedConnection,
    ) -> None:
        ends_at = asyncio.get_running_loop().time() + HANDSHAKE_TIMEOUT_S
        first = await _peek_first_byte(connection)
        if first == _TLS_HANDSHAKE_BYTE:
            handshake_timeout_s = max(_MIN_TIMEOUT_S, ends_at - asyncio.get_running_loop().time())
            await self._run_protocol(connection, slot, served, ssl_context, handshake_timeout_s)
        elif first and _is_loopback_peer(connection):
            await self._run_protocol(connection, slot, served)
        else:
            _reject_plain_http(connection)

    async def _run_protocol(
        self,
        connection: socket.socket,
        slot: ConnectionSlot,
        served: _ServedConnection,
        ssl_context: ssl.SSLContext | None = None,
        handshake_timeout_s: float | None = None,
    ) -> None:
        served.protocol = protocol = self._make_protocol(slot)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: protocol, connection, ssl=ssl_context, ssl_handshake_timeout=handshake_timeout_s
        )
        await protocol.closed.wait()


class _ServedConnection:
    """The task and the protocol of one connection, so that it can be closed at any stage."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.protocol: _BoundedH11Connection | None = None

    def abort(self) -> None:
        if self.protocol is not None and self.protocol.transport is not None:
            self.protocol.abort()
        elif self.task is not None:
            self.task.cancel()


async def _peek_first_byte(connection: socket.socket) -> bytes:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingState:
    """How a socket divides its connections among callers, and the event that is set when it stops serving."""

    connection_shares: ConnectionShares = field(default_factory=ConnectionShares.from_open_files)
    shutting_down: asyncio.Event = field(default_factory=asyncio.Event)  # set when it stops, for long polls

    @classmethod
    def of_app(cls, app: Any) -> ServingState:
        """Return the state with the connection shares and the shutdown event of the app's `dependencies`."""
        dependencies = app.state.dependencies
        return cls(connection_shares=dependencies.connection_shares, shutting_down=dependencies.shutting_down)


class _UvicornServer(uvicorn.Server):
    """uvicorn in our event loop, with our own signal handling and our own acceptors."""

    def __init__(self, config: uvicorn.Config, shares: ConnectionShares) -> None:
        super().__init__(config)
        self._shares = shares

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers: list[asyncio.Server] = []
        self._acceptors = [
            ConnectionAcceptor(sock, self._make_connection, self.config.ssl, self._shares) for sock in sockets or []
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            await acceptor.close()
        await super().shutdown(sockets)

    def _make_connection(self, slot: ConnectionSlot) -> _BoundedH11Connection:
        return _BoundedH11Connection(slot, config=self.config, server_state=self.server_state)


@asynccontextmanager
async def serve_unix(app: ASGIApp, path: Path, state: ServingState | None = None) -> AsyncIterator[None]:
    """Serve the app on a new unix socket at `path` until the block is left.

    The socket has mode 0600, and replaces one that no process listens on. At the end it sets `shutting_down`, and waits
    up to five seconds for open requests.
    """
    sock = bind_unix_socket(path)  # before the try: a file of another process must stay
    try:
        async with _run_server(_uvicorn_config(app), sock, state or ServingState.of_app(app)):
            yield
    finally:
        path.unlink(missing_ok=True)


@asynccontextmanager
async def serve_tls(
    app: ASGIApp, sock: socket.socket, certificate: Path, key: Path, state: ServingState | None = None
) -> AsyncIterator[ssl.SSLContext]:
    """Serve the app over TLS on a bound socket until the block is left; yields the TLS context.

    A certificate that is loaded into the context later applies to new connections. At the end it sets `shutting_down`,
    and waits up to five seconds for open requests.
    """
    config = _uvicorn_config(app, ssl_certfile=certificate, ssl_keyfile=key, ssl_ciphers=AEAD_CIPHERS)
    config.load()
    assert config.ssl is not None
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    async with _run_server(config, sock, state or ServingState.of_app(app)):
        yield config.ssl


@asynccontextmanager
async def _run_server(config: uvicorn.Config, sock: socket.socket, state: ServingState) -> AsyncIterator[None]:
    server = _UvicornServer(config, state.connection_shares)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await _wait_until_started(server, task)
        yield
    finally:
        state.shutting_down.set()
        server.should_exit = True
        await task


def _uvicorn_config(app: ASGIApp, **tls: Any) -> uvicorn.Config:
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
