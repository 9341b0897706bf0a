"""The metadata server: connects listeners, documents, response cache, responder and counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    """Answers VMs from the board. Build and use it inside a running loop; it serves from `start` to `drain`."""

    def __init__(
        self,
        *,
        board: PublishedDocuments,
        backend: MetadataBackend,
        callers: CallerDirectory,
        rules_for: Callable[[str], EndpointRules] = lambda location: EndpointRules(),
        limits: Limits | None = None,
        remembers: bool = True,
        allowance: FaultQuota | None = None,
    ) -> None:
        """`remembers`: a poll that comes again is answered from memory, which nobody can tell but by a clock.

        `allowance`: of faults; where others serve too, one that is shared with them.
        """
        limits = limits or Limits()
        self.observations = GuestObservations()
        self.faults = FaultTable(board.stale_documents, now=backend.now, allowance=allowance)
        self._callers = callers
        self._accept_loops: dict[VmListener, list[AcceptLoop]] = {}
        self._counters, writer = RequestCounters(), ResponseWriter(backend.now)
        self._response_cache = ResponseCache(
            writer=writer,
            observations=self.observations,
            now=backend.now,
            count=self._counters.count_cached,
            is_on=remembers,
        )
        board.subscribe(self._response_cache.invalidate)
        callers.subscribe_releases(self._response_cache.invalidate)
        self.faults.subscribe_changes(
            lambda vms: self._response_cache.invalidate_all() if vms is None else self._response_cache.invalidate(vms)
        )
        reception = Responder(
            board=board,
            backend=backend,
            callers=callers,
            rules_for=rules_for,
            throttle=VmRateLimiter(limits.requests_per_s),
            observations=self.observations,
            faults=self.faults,
            memory=self._response_cache,
        )
        self._state = ServerState(
            reception=reception,
            memory=self._response_cache,
            board=board,
            writer=writer,
            limits=limits,
            tally=self._counters,
        )

    @property
    def counters(self) -> RequestCounters:
        self._response_cache.flush_hits()
        return self._counters

    def request_totals(self) -> RequestTotals:
        """All counts until now, for whoever adds them up or shows them."""
        tally = self.counters
        return RequestTotals(
            answered=tuple((of, version, status, times) for ((of, version), status), times in tally.answered.items()),
            accepted=tally.accepted,
            refused=tally.refused,
            lost=self.observations.lost_deliveries,
            held=tally.held,
            connections=self.connection_count,
        )

    @property
    def connection_count(self) -> int:
        return self._state.connection_count

    @property
    def buffered_bytes(self) -> int:
        """What waits to be parsed or to be read by callers, of all connections."""
        return self._state.buffered_bytes

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """From now on these faults, and no others, are on."""
        self.faults.set_faults(faults)

    async def start(self, listeners: Sequence[VmListener]) -> None:
        """Serve these too; may be called again while the server runs."""
        for listener in listeners:
            self._start_listener(listener)

    async def stop(self, listener: VmListener) -> None:
        """Accept nobody there any more; whoever is connected stays."""
        for doorstep in self._accept_loops.pop(listener, ()):
            await doorstep.stop()

    def add_connection(self, caller: Caller) -> MetadataConnection:
        """For a caller who did not come by a listener: the connection is the protocol of whatever it came by."""
        connection = MetadataConnection(self._state, caller)
        self._state.add_connection(connection, caller)
        return connection

    async def drain(self, timeout_s: float) -> None:
        """Accept nobody, answer whoever is held or in work, and close; hang up on who is left after the time."""
        for listener in tuple(self._accept_loops):
            await self.stop(listener)
        await self._state.drain(timeout_s)

    def _start_listener(self, listener: VmListener) -> None:
        for sock in listener.sockets:
            doorstep = AcceptLoop(self._state, self._callers, listener, sock)
            doorstep.start()
            self._accept_loops.setdefault(listener, []).append(doorstep)
