"""The metadata server: connects listeners, documents, response cache, responder and counters."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from forewarn.base.clock import real_now
from forewarn.base.times import RealTime
from forewarn.core.faults import Fault
from forewarn.metadata.connection import MetadataConnection
from forewarn.metadata.fault_quota import FaultQuota
from forewarn.metadata.identity import Caller, CallerDirectory, PeerAddress, is_loopback_peer
from forewarn.metadata.interface import MetadataBackend
from forewarn.metadata.limits import Limits, VmRateLimiter
from forewarn.metadata.listeners import LISTEN_BACKLOG, VmListener
from forewarn.metadata.observations import GuestObservations
from forewarn.metadata.published_documents import PublishedDocuments
from forewarn.metadata.request_counters import RequestCounters, RequestTotals
from forewarn.metadata.responder import Responder
from forewarn.metadata.response_cache import MAX_CACHED_REQUEST_BYTES, ResponseCache
from forewarn.metadata.response_writer import ResponseWriter
from forewarn.metadata.server_state import ServerState
from forewarn.metadata.transport_faults import FaultTable
from forewarn.protocol.exchange import EndpointRules

_log = logging.getLogger(__name__)


# Accepts connections on one listening socket and answers cached requests before a transport exists.
#
# A client that opens a connection for every poll is answered on the bare socket and closed. Every other connection
# becomes a `MetadataConnection` on an asyncio transport.

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


class MetadataServer:
    """The HTTP server for VMs. Create and use it inside a running event loop; `start`, then `drain`.

    It serves what `documents` has, asks `backend` for the rest, and finds the VM of a connection in `callers`.
    `fault_quota` is shared if several processes serve VMs. Faults expire by `real_time`.
    """

    def __init__(
        self,
        *,
        documents: PublishedDocuments,
        backend: MetadataBackend,
        callers: CallerDirectory,
        rules_for: Callable[[str], EndpointRules] = lambda location: EndpointRules(),
        limits: Limits | None = None,
        imds_headers: bool = False,
        use_response_cache: bool = True,
        fault_quota: FaultQuota | None = None,
        real_time: Callable[[], RealTime] = real_now,
    ) -> None:
        limits = limits or Limits()
        self.observations = GuestObservations(wall_time=real_time)
        self.faults = FaultTable(documents.stale_documents, now=backend.now, real_time=real_time, quota=fault_quota)
        self._callers = callers
        self._accept_loops: dict[VmListener, list[AcceptLoop]] = {}
        self._counters, writer = RequestCounters(), ResponseWriter(backend.now, imds_headers=imds_headers)
        self._response_cache = ResponseCache(
            writer=writer,
            observations=self.observations,
            now=backend.now,
            count_hits=self._counters.count_cached,
            is_enabled=use_response_cache,
        )
        documents.subscribe(self._response_cache.invalidate)
        callers.subscribe_releases(self._response_cache.invalidate)
        self.faults.subscribe_changes(
            lambda vms: self._response_cache.invalidate_all() if vms is None else self._response_cache.invalidate(vms)
        )
        responder = Responder(
            documents=documents,
            backend=backend,
            callers=callers,
            rules_for=rules_for,
            rate_limiter=VmRateLimiter(limits.requests_per_s),
            observations=self.observations,
            faults=self.faults,
            response_cache=self._response_cache,
        )
        self._state = ServerState(
            responder=responder,
            response_cache=self._response_cache,
            documents=documents,
            writer=writer,
            limits=limits,
            counters=self._counters,
        )

    @property
    def counters(self) -> RequestCounters:
        """The live request counters, after recording cache hits of at most 500 VMs; others come later."""
        self._response_cache.flush_hits()
        return self._counters

    def request_totals(self) -> RequestTotals:
        """Return the counts of `counters`, the lost deliveries and the open connections now, as a new value."""
        counters = self.counters
        return RequestTotals(
            answered=tuple((*category, status, count) for (category, status), count in counters.answered.items()),
            accepted=counters.accepted,
            refused=counters.refused,
            lost=self.observations.lost_deliveries,
            held=counters.held,
            connections=self.connection_count,
        )

    @property
    def connection_count(self) -> int:
        """The number of open connections of all callers to this process, also of those that are closing."""
        return self._state.connection_count

    @property
    def buffered_bytes(self) -> int:
        """The number of received bytes not parsed yet, plus bytes of responses that the kernel has not taken."""
        return self._state.buffered_bytes

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the active faults; those that are not transport faults are ignored. Needs a running loop."""
        self.faults.set_faults(faults)

    async def start(self, listeners: Sequence[VmListener]) -> None:
        """Accept connections on these listeners too; may be called again while the server runs."""
        for listener in listeners:
            self._start_listener(listener)

    async def stop(self, listener: VmListener) -> None:
        """Stop accepting on a listener and close its sockets; open connections stay."""
        for accept_loop in self._accept_loops.pop(listener, ()):
            await accept_loop.stop()

    def add_connection(self, caller: Caller) -> MetadataConnection:
        """Add a connection of this caller without a listener; returns its asyncio protocol for a transport."""
        connection = MetadataConnection(self._state, caller)
        self._state.add_connection(connection, caller)
        return connection

    async def drain(self, timeout_s: float, *, idle_grace_s: float = 0.0) -> None:
        """Close all listeners, answer the requests in progress, and close all connections.

        `idle_grace_s`: how long idle connections may wait for one more request, where another process serves their
        clients next. Aborts what remains after `timeout_s`. The server cannot start again.
        """
        for listener in tuple(self._accept_loops):
            await self.stop(listener)
        await self._state.drain(timeout_s, idle_grace_s=idle_grace_s)

    def end_idle_grace(self) -> None:
        """End the wait of idle connections in a `drain` with `idle_grace_s`: they close now. Returns at once."""
        self._state.end_idle_grace()

    def _start_listener(self, listener: VmListener) -> None:
        for sock in listener.sockets:
            accept_loop = AcceptLoop(self._state, self._callers, listener, sock)
            accept_loop.start()
            self._accept_loops.setdefault(listener, []).append(accept_loop)
