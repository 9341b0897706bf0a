"""Accepts connections on one listening socket and answers cached requests before a transport exists.

A client that opens a connection for every poll is answered on the bare socket and closed. Every other connection
becomes a `MetadataConnection` on an asyncio transport.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from contextlib import suppress

from forewarn.metadata.connection import MetadataConnection
from forewarn.metadata.identity import Caller, CallerDirectory, PeerAddress, is_loopback_peer
from forewarn.metadata.listeners import LISTEN_BACKLOG, VmListener
from forewarn.metadata.response_cache import MAX_CACHED_REQUEST_BYTES
from forewarn.metadata.server_state import ServerState

_log = logging.getLogger(__name__)

_ACCEPTS_PER_TURN = 32  # so that open connections are served in between
_FIRST_READ_BYTES = 4 * MAX_CACHED_REQUEST_BYTES  # small enough to parse in one step
_DEFER_ACCEPT_S = 1  # the kernel delays a connection without data by this much
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_ACCEPT_PAUSE_S = 1.0


class AcceptLoop:
    """Accepts the connections of one socket of `listener` on the event loop, from `start` to `stop`."""

    # If the system has no file descriptor or memory left, it logs that and pauses for a second.

    def __init__(self, state: ServerState, callers: CallerDirectory, listener: VmListener, sock: socket.socket) -> None:
        self._state, self._callers, self._sock = state, callers, sock
        self._strategy, self._is_loopback = listener.strategy, listener.is_loopback
        self._pause_timer: asyncio.TimerHandle | None = None
        self._attaching: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to listen and to accept on the event loop; returns at once. Call it once."""
        self._sock.setblocking(False)
        self._sock.listen(LISTEN_BACKLOG)
        option = getattr(socket, "TCP_DEFER_ACCEPT", None)
        if option is not None:
            # On Linux a connection is accepted when its first request has arrived.
            self._sock.setsockopt(socket.IPPROTO_TCP, option, _DEFER_ACCEPT_S)
        self._state.loop.add_reader(self._sock.fileno(), self._accept_batch)

    async def stop(self) -> None:
        """Accept no more connections and close the listening socket; connections that were accepted stay open."""
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        self._state.loop.remove_reader(self._sock.fileno())
        self._sock.close()
        if self._attaching:
            await asyncio.wait(self._attaching)

    def _accept_batch(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Without a pause the loop would spin: the connection stays in the backlog.
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause_accepting(error)
                    return
                continue  # the client closed the connection before it was accepted
            try:
                self._serve_accepted(sock, peer)
            except OSError:
                sock.close()  # the client has reset the connection
            except Exception:
                sock.close()
                _log.exception("a new connection failed with an internal error and was closed")

    def _pause_accepting(self, error: OSError) -> None:
        """Connections wait in the backlog meanwhile."""
        _log.warning("cannot accept more connections (%s): trying again in %g s", error.strerror, _ACCEPT_PAUSE_S)
        self._state.loop.remove_reader(self._sock.fileno())
        self._pause_timer = self._state.loop.call_later(_ACCEPT_PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._state.loop.add_reader(self._sock.fileno(), self._accept_batch)

    def _serve_accepted(self, sock: socket.socket, peer: PeerAddress) -> None:
        attachment = self._strategy.attachment(sock, peer)
        vm = self._callers.vm_at(attachment)
        from_loopback = is_loopback_peer(self._strategy, peer)
        # Before anything is read.
        if not self._state.admit_connection(vm):
            sock.close()
            return
        try:
            # The request is usually here already; see TCP_DEFER_ACCEPT above.
            data = sock.recv(_FIRST_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            data = b""

        unsent = b""
        cached = self._state.response_cache.responses_for(vm, self._is_loopback, from_loopback)
        entry = cached.get(data) if cached else None
        if entry is not None:
            raw, data = self._state.response_cache.serve_hit(entry), b""
            sent = sock.send(raw, socket.MSG_DONTWAIT)
            # The fast path: accepted, answered and closed without a transport.
            if sent == len(raw) and not entry.keep_alive:
                sock.close()
                return
            unsent = raw[sent:]
        caller = Caller(attachment=attachment, vm=vm, is_loopback=self._is_loopback, from_loopback=from_loopback)
        keep_alive = entry is None or entry.keep_alive
        self._start_connection(
            sock, MetadataConnection(self._state, caller, received=data, unsent=unsent, keep_alive=keep_alive)
        )

    def _start_connection(self, sock: socket.socket, connection: MetadataConnection) -> None:
        sock.setblocking(False)
        self._state.add_connection(connection, connection.caller)
        task = self._state.loop.create_task(self._attach_transport(sock, connection))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach_transport(self, sock: socket.socket, connection: MetadataConnection) -> None:
        try:
            await self._state.loop.connect_accepted_socket(lambda: connection, sock)
        except OSError:
            self._state.remove_connection(connection)
            with suppress(OSError):
                sock.close()
