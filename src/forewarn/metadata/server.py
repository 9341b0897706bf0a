"""The metadata server: connects listeners, documents, response cache, responder and counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forewarn.base.clock import real_now
from forewarn.base.times import RealTime
from forewarn.core.faults import Fault
from forewarn.metadata.accept_loop import AcceptLoop
from forewarn.metadata.connection import MetadataConnection
from forewarn.metadata.fault_quota import FaultQuota
from forewarn.metadata.identity import Caller, CallerDirectory
from forewarn.metadata.interface import MetadataBackend
from forewarn.metadata.limits import Limits, VmRateLimiter
from forewarn.metadata.listeners import VmListener
from forewarn.metadata.observations import GuestObservations
from forewarn.metadata.published_documents import PublishedDocuments
from forewarn.metadata.request_counters import RequestCounters, RequestTotals
from forewarn.metadata.responder import Responder
from forewarn.metadata.response_cache import ResponseCache
from forewarn.metadata.response_writer import ResponseWriter
from forewarn.metadata.server_state import ServerState
from forewarn.metadata.transport_faults import FaultTable
from forewarn.protocol.exchange import EndpointRules


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
