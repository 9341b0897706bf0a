"""Answers VMs on listeners from published scopes: facts in, sockets out, without a store.

`MetadataFrontend` owns the metadata server, in this process or in worker processes, with its network listeners. A
publisher or a host node tells it what VMs may see and where they call from.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.base.clock import Clock, real_now
from forewarn.base.times import RealTime
from forewarn.core.faults import Fault
from forewarn.metadata import (
    CallerDirectory,
    DedicatedIdentity,
    GuestObservations,
    ListenerSpec,
    MetadataBackend,
    MetadataServer,
    PublishedDocuments,
    PublishedScope,
    VmListener,
    dedicated_attachment,
)
from forewarn.metadata.limits import ServingSettings
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metadata.transport_faults import FaultTable
from forewarn.metadata.workers import messages
from forewarn.metadata.workers.network_listeners import NetworkListeners
from forewarn.metadata.workers.pool import WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendConfig:
    """The settings that a `MetadataFrontend` needs: how VMs are answered, and on which listeners."""

    workers: int = 0  # worker processes; 0: this process answers the VMs
    serving: ServingSettings = ServingSettings()
    listeners: tuple[ListenerSpec, ...] = ()  # on real networks; empty in most labs
    helper_socket: Path | None = None  # where `forewarn sockets` passes open sockets; None: this process opens them


class MetadataFrontend:
    """The metadata server, which answers VMs, with its network listeners: in this process or in workers.

    Call `network_listeners.bind`, `prepare`, `publish` for each scope, `serve`, and at the end `drain`. With
    `config.workers` 0 this process answers. `callers` says which VM calls from where; its owner may change it at any
    time.
    """

    def __init__(
        self,
        config: FrontendConfig,
        *,
        callers: CallerDirectory,
        clock: Clock,
        real_time: Callable[[], RealTime] = real_now,
        network_listeners: NetworkListeners | None = None,
    ) -> None:
        self.callers = callers
        self.network_listeners = network_listeners or NetworkListeners(
            config.listeners, helper_socket=config.helper_socket
        )
        self._config = config
        self._clock = clock
        self._real_time = real_time
        self._documents: PublishedDocuments | WorkerPool
        self._server: MetadataServer | WorkerPool | None = None

    async def prepare(
        self, backend: MetadataBackend, *, store_tag: str, metrics_sockets: tuple[socket.socket, ...] = ()
    ) -> None:
        """Make the metadata server, which accepts nothing yet; with workers, start their processes."""
        if self._config.workers:
            pool = self._server = self._documents = self._new_worker_pool(backend, store_tag, metrics_sockets)
            await pool.start_workers()
        else:
            self._server = self._new_server(backend, store_tag)

    async def serve(self, listeners: Sequence[VmListener] = ()) -> None:
        """Start to answer VMs, on these listeners and on the network listeners.

        With workers, first wait until all of them have what was published; then return before they accept: VMs can
        connect, and wait.
        """
        if isinstance(self._server, WorkerPool):
            await self._server.complete_start()
        await self.server.start(listeners)
        await self.network_listeners.start(self.server)

    def publish(self, scope: PublishedScope) -> None:
        """Show this scope to its VMs, in place of what they saw before.

        With workers, it returns before they show the scope: see `wait_until_published`.
        """
        self._documents.publish(scope)

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the active faults that affect requests of VMs; faults of other categories are ignored."""
        self.server.set_faults(faults)

    async def listen_inside_vm(self, vm_key: str, sock: socket.socket) -> VmListener:
        """Serve one VM (its key) on a listening socket inside its network namespace; return the listener.

        No other VM can reach the socket, so every call on it is this VM's. The server then owns the socket.
        """
        self.callers.assign(dedicated_attachment(vm_key), vm_key)
        listener = VmListener(sockets=(sock,), strategy=DedicatedIdentity(vm_key), is_loopback=False)
        await self.server.start([listener])
        return listener

    async def stop_listening(self, listener: VmListener) -> None:
        """Stop accepting on a listener that `listen_inside_vm` returned, and close it; open connections stay."""
        await self.server.stop(listener)

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, answer the requests in progress within `timeout_s`, and end server and workers."""
        await self.network_listeners.stop()
        await self.server.drain(timeout_s)

    async def reload_workers(self, timeout_s: float) -> None:
        """Replace every worker process by a new one, one after the other, without refusing a connection."""
        if isinstance(self._server, WorkerPool):
            await self._server.reload(timeout_s)

    async def collect_worker_reports(self) -> None:
        """Ask the workers for what they observed, and merge it into `observations`, `faults` and the totals."""
        if isinstance(self._server, WorkerPool):
            await self._server.collect_reports()

    async def wait_until_published(self) -> None:
        """Wait until the workers show VMs all that was published, for at most a second."""
        if isinstance(self._server, WorkerPool):
            await self._server.wait_until_published()

    @property
    def server(self) -> MetadataServer | WorkerPool:
        """The metadata server of this process or, with workers, their pool. Fails before `prepare`."""
        assert self._server is not None
        return self._server

    @property
    def observations(self) -> GuestObservations:
        """The live collection of VMs' polls and deliveries, from all processes; empty at first."""
        return self.server.observations

    @property
    def faults(self) -> FaultTable:
        """The live table of transport faults, with the requests that they affected in all processes (hits).

        With workers, the table has only the hits: the faults themselves are set in the workers.
        """
        return self.server.faults

    def describe_workers(self) -> list[dict[str, Any]]:
        """Return a dictionary per worker process, as in `GET /service`: "pid", "ready" and "behind_ms"."""
        return self._server.describe() if isinstance(self._server, WorkerPool) else []

    def request_totals(self) -> RequestTotals:
        """Return the counts of VMs' requests since the start, over all processes."""
        return self.server.request_totals()

    def worker_lags(self) -> list[tuple[float, float]]:
        """Return a pair of seconds per worker: how long its last answer took, and has owed the next."""
        return self._server.worker_lags() if isinstance(self._server, WorkerPool) else []

    def _new_server(self, backend: MetadataBackend, store_tag: str) -> MetadataServer:
        serving = self._config.serving
        documents = self._documents = PublishedDocuments(
            first_answer_delay_s=serving.first_answer_delay_s, store_tag=store_tag
        )
        return MetadataServer(
            documents=documents,
            backend=backend,
            callers=self.callers,
            rules_for=serving.rules_for,
            limits=serving.limits,
            imds_headers=serving.rules.imds_headers,
            real_time=self._real_time,
        )

    def _new_worker_pool(
        self, backend: MetadataBackend, store_tag: str, metrics_sockets: tuple[socket.socket, ...]
    ) -> WorkerPool:
        return WorkerPool(
            self._config.workers,
            begin=messages.BeginServing(self._config.serving, store_tag),
            backend=backend,
            callers=self.callers,
            clock=self._clock,
            metrics_sockets=metrics_sockets,
        )
