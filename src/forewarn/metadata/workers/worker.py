"""The worker process: answers VMs from memory and sends everything else to the owner process.

It serves once it has the complete state, and ends when its channel ends. While it hears nothing from the owner it
accepts no new connections and rejects requests that must be stored; polls on open connections get the last known
document. It resumes after it has received everything that was sent meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

from forewarn.base.clock import LabClock, SystemClock
from forewarn.base.http_server import HttpServer, metrics_pages
from forewarn.base.log_rate_limit import limit_repeated_messages
from forewarn.errors import Unavailable
from forewarn.metadata import CallerDirectory, MetadataServer, PublishedDocuments, VmListener
from forewarn.metadata.fault_quota import SharedFaultQuota
from forewarn.metadata.observations import BATCH_SIZE, BATCHES_PER_SECOND, REPORT_INTERVAL_S
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metadata.workers import messages
from forewarn.metadata.workers.channel import PEER_GONE, SIGNALS_BLOCKED_AT_START, WorkerChannel
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource

log = logging.getLogger(__name__)
BackendResult: TypeAlias = "str | ManagedIdentityToken | WrongResource | None"  # str: the id of an unknown event
DRAINED = "drained"  # why `Worker.run` returned, if it stopped in order
_SILENCE_TIMEOUT_S = 1.0
_SILENCE_CHECK_S = 0.1
_REPORT_INTERVAL_S = 1.0
_DRAIN_TIMEOUT_S = 5.0


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop's event loops, for `asyncio.Runner`; None if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:  # not on every platform
        return None
    return uvloop.new_event_loop


class _OwnerBackend:
    """The `MetadataBackend` of a worker: sends each request to the owner and waits for its reply."""

    # Requests raise Unavailable at once while the owner is silent. One that was sent waits for its reply without a time
    # limit.

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._request_ids = count(1)
        self._pending: dict[int, asyncio.Future[BackendResult]] = {}
        self.is_owner_responsive = True  # False while the owner is silent
        self.clock: SystemClock | LabClock = SystemClock()  # the worker replaces it if there is a lab

    def now(self) -> float:
        return self.clock.now()

    async def enable(self, vm: str) -> None:
        """Have the owner enable the scope of this VM (its key); on return the worker has the enabled scope."""
        await self._request(lambda number: messages.EnableRequest(number, vm))

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        unknown = await self._request(lambda number: messages.ApproveRequest(number, vm, event_ids))
        assert unknown is None or isinstance(unknown, str)
        return unknown

    async def token(self, identity: ManagedIdentity, resource: str) -> ManagedIdentityToken | WrongResource:
        result = await self._request(lambda number: messages.WorkerTokenRequest(number, identity, resource))
        assert isinstance(result, (ManagedIdentityToken, WrongResource))
        return result

    def on_reply(self, reply: messages.OwnerReply) -> None:
        future = self._pending.pop(reply.id, None)
        if future is None or future.done():
            return
        if isinstance(reply, messages.RequestFailed):
            future.set_exception(reply.to_error())
        elif isinstance(reply, messages.TokenGranted):
            future.set_result(reply.token)
        elif isinstance(reply, messages.TokenDenied):
            future.set_result(WrongResource(accepted=reply.accepted))
        else:
            future.set_result(reply.unknown)

    async def _request(self, make_request: Callable[[int], messages.WorkerRequest]) -> BackendResult:
        # Only new requests fail. Earlier ones wait: the owner may have carried them out already.
        if not self.is_owner_responsive:
            raise Unavailable("the service does not answer: try again later")
        number = next(self._request_ids)
        future: asyncio.Future[BackendResult] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        self._send(messages.encode_message(make_request(number)))
        try:
            return await future
        finally:
            self._pending.pop(number, None)


class _PausableSocket(socket.socket):
    """A listening socket that accepts only while `may_accept` returns True; callers wait in its backlog."""

    may_accept: Callable[[], bool]  # set by the worker before the first `accept`

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.may_accept():
            raise BlockingIOError
        return super().accept()


class Worker:
    """The worker process: receives the state from the owner process, then answers VMs until it ends.

    If nothing comes from the owner for `silence_timeout_s`, the worker accepts no new connections and rejects what must
    be stored, until the owner answers again; polls on open connections still get the last known document.
    """

    def __init__(
        self, sock: socket.socket, fault_quota: SharedFaultQuota, *, silence_timeout_s: float = _SILENCE_TIMEOUT_S
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_timeout_s = silence_timeout_s
        self._fault_quota = fault_quota
        self._finished: asyncio.Future[str] = self._loop.create_future()
        self._channel = WorkerChannel(sock, for_worker=True, on_message=self._on_message, on_lost=self._finish)
        self._backend = _OwnerBackend(self._channel.send)
        self._callers = CallerDirectory()
        self._documents: PublishedDocuments
        self._server: MetadataServer | None = None
        self._sockets: dict[int, tuple[messages.OpenListenerRequest, socket.socket]] = {}
        self._listeners: dict[int, VmListener] = {}
        self._last_heard_at = self._loop.time()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = self._is_fault_report_scheduled = self._is_complete = self._stops_when_complete = False
        self._reported_counts = RequestTotals()
        self._metrics_servers: list[HttpServer] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            messages.BeginServing: self._on_begin,
            messages.ClockUpdate: self._set_clock,
            messages.FaultsUpdate: self._set_faults,
            messages.VmPlacement: self._set_placement,
            messages.ScopeUpdate: lambda message: self._documents.publish(message.to_published_scope()),
            messages.StateComplete: self._on_complete,
            messages.OpenListenerRequest: self._open_socket,
            messages.ServeMetrics: self._serve_metrics,
            messages.CloseListener: self._close_socket,
            messages.EchoRequest: lambda message: self._channel.send(
                messages.encode_message(messages.EchoReply(message.id))
            ),
            messages.ReportRequest: self._on_report_request,
            messages.ResumeAccepting: self._resume,
            messages.DrainWorker: lambda message: self.stop(message.timeout_s, idle_grace_s=message.idle_grace_s),
        }

    async def run(self) -> str:
        """Serve until the channel ends, the owner drains this worker or `stop` was called; return why."""
        background = [self._loop.create_task(self._watch_owner()), self._loop.create_task(self._report_forever())]
        try:
            return await self._finished
        finally:
            for task in (*background, *self._tasks):
                task.cancel()
            await asyncio.gather(*background, *self._tasks, return_exceptions=True)
            self._channel.close()
            for server in self._metrics_servers:
                await server.close()
            if self._server is not None:
                await self._server.drain(0.0)
            for _, sock in self._sockets.values():
                sock.close()

    def stop(self, timeout_s: float = _DRAIN_TIMEOUT_S, *, idle_grace_s: float = messages.IDLE_GRACE_S) -> None:
        """Stop accepting, answer the requests in progress within `timeout_s`, send the last report, and end.

        Idle connections wait for one more request, for up to `idle_grace_s`; after that, their clients reach another
        worker.
        """
        if self._server is None:
            self._finish("stopped before it began to serve")
        elif self._is_stopping:
            if not idle_grace_s:
                self._server.end_idle_grace()
        else:
            self._is_stopping = True
            for server in self._metrics_servers:
                self._spawn(server.close())  # its successor serves on the same port
            self._channel.send(messages.encode_message(messages.WorkerLeaving()))
            self._spawn(self._drain(timeout_s, idle_grace_s))

    def stop_when_complete(self) -> None:
        """Call `stop` now or, if the worker has not got the complete state yet, once it has.

        While a worker receives the state the owner waits for it, and would take its end for a failed start.
        """
        if self._is_complete:
            self.stop()
        self._stops_when_complete = True

    @property
    def _running_server(self) -> MetadataServer:
        if self._server is None:
            raise messages.ChannelBroken("the first message must be BeginServing")
        return self._server

    def _on_message(self, message: Any) -> None:
        self._check_owner()
        self._last_heard_at = self._loop.time()
        handler = self._handlers.get(type(message))
        if handler is None:
            self._backend.on_reply(message)
        else:
            handler(message)

    def _on_begin(self, message: messages.BeginServing) -> None:
        self._documents = PublishedDocuments(
            first_answer_delay_s=message.settings.first_answer_delay_s, store_tag=message.store_tag
        )
        self._server = MetadataServer(
            documents=self._documents,
            backend=self._backend,
            callers=self._callers,
            rules_for=message.settings.rules_for,
            limits=message.settings.limits,
            imds_headers=message.settings.rules.imds_headers,
            fault_quota=self._fault_quota,
        )
        self._server.faults.subscribe_hits(self._schedule_fault_report)

    def _on_complete(self, message: messages.StateComplete) -> None:
        # The state of the fleet is never garbage, and searching it would delay VMs.
        gc.freeze()
        gc.enable()
        self._channel.send(messages.encode_message(messages.WorkerReady()))
        self._is_complete = True
        if self._stops_when_complete:
            self.stop()

    def _set_clock(self, message: messages.ClockUpdate) -> None:
        clock = self._backend.clock
        if isinstance(clock, LabClock):
            clock.apply_setting(message.setting)
        else:
            self._backend.clock = LabClock(message.setting)

    def _set_faults(self, message: messages.FaultsUpdate) -> None:
        self._fault_quota.offsets = message.offsets
        self._running_server.faults.set_faults(message.faults)

    def _set_placement(self, message: messages.VmPlacement) -> None:
        if message.vm is None:
            self._callers.release(message.place)
        else:
            self._callers.assign(message.place, message.vm)

    def _open_socket(self, message: messages.OpenListenerRequest) -> None:
        self._sockets[message.id] = (message, socket.socket(fileno=self._channel.take_received_fd()))
        self._accept_on(message.id)

    def _serve_metrics(self, message: messages.ServeMetrics) -> None:
        from forewarn.metadata.metrics import (
            WorkerMetrics,  # slow to import, and most workers serve no metrics
        )

        metrics = WorkerMetrics(
            request_totals=self._request_counts, silent_s=lambda: self._loop.time() - self._last_heard_at
        )
        server = HttpServer(metrics_pages(metrics.render))
        self._metrics_servers.append(server)
        self._spawn(server.start(sock=socket.socket(fileno=self._channel.take_received_fd())))

    def _request_counts(self) -> RequestTotals:
        return self._server.request_totals() if self._server is not None else RequestTotals()

    def _close_socket(self, message: messages.CloseListener) -> None:
        self._stop_accepting(message.id)
        _, sock = self._sockets.pop(message.id, (None, None))
        if sock is not None:
            sock.close()

    def _accept_on(self, number: int) -> None:
        """Accept on a copy of the socket, so that accepting can stop and start again."""
        if self._is_stopping or number in self._listeners:
            return
        message, sock = self._sockets[number]
        pausable = _PausableSocket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))
        pausable.may_accept = self._may_accept
        listener = VmListener(
            sockets=(pausable,), strategy=message.identity_strategy(), is_loopback=message.is_loopback
        )
        self._listeners[number] = listener
        self._spawn(self._start_listener(listener))

    async def _start_listener(self, listener: VmListener) -> None:
        try:
            await self._running_server.start([listener])
        except OSError as error:  # its network device disappeared in the same moment; the owner notices too
            log.warning("a listener cannot be served: %s", error)

    def _stop_accepting(self, number: int) -> None:
        listener = self._listeners.pop(number, None)
        if listener is not None:
            self._spawn(self._running_server.stop(listener))

    def _may_accept(self) -> bool:
        """Checked for each connection: after this process was suspended, a caller may come before the timer."""
        self._check_owner()
        return self._backend.is_owner_responsive

    async def _watch_owner(self) -> None:
        while True:
            await asyncio.sleep(_SILENCE_CHECK_S)
            self._check_owner()

    def _check_owner(self) -> None:
        is_silent = self._loop.time() - self._last_heard_at > self._silence_timeout_s
        if self._is_complete and self._backend.is_owner_responsive and is_silent:
            self._pause()

    def _pause(self) -> None:
        """Stop accepting while the owner is silent: callers wait in the backlog, which the owner shares."""
        log.warning(
            "the owner process has been silent for %g s: accepting no connections until it answers",
            self._silence_timeout_s,
        )
        self._channel.send(messages.encode_message(messages.OwnerSilent()))
        self._backend.is_owner_responsive = False
        for number in tuple(self._listeners):
            self._stop_accepting(number)

    def _resume(self, message: messages.ResumeAccepting) -> None:
        self._backend.is_owner_responsive = True
        for number in self._sockets:
            self._accept_on(number)

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            while (
                self._server is not None
                and self._backend.is_owner_responsive
                and self._send_report(min_interval_s=REPORT_INTERVAL_S)
            ):
                await asyncio.sleep(_REPORT_INTERVAL_S / BATCHES_PER_SECOND)

    def _on_report_request(self, message: messages.ReportRequest) -> None:
        for _ in range(BATCHES_PER_SECOND):
            if not self._send_report(message.id):
                return
        self._channel.send(messages.encode_message(messages.ObservationReport(id=message.id)))

    def _send_report(self, number: int = 0, *, min_interval_s: float = 0.0) -> bool:
        polls, deliveries = self._running_server.observations.take_increments(min_interval_s)
        hits = self._running_server.faults.take_hits()
        previous, self._reported_counts = self._reported_counts, self._running_server.request_totals()
        has_more = len(polls) == BATCH_SIZE
        number = 0 if has_more else number
        if number or polls or deliveries or hits or previous != self._reported_counts:
            self._channel.send(
                messages.encode_message(
                    messages.ObservationReport(polls, deliveries, hits, number, self._reported_counts)
                )
            )
        return has_more

    def _schedule_fault_report(self) -> None:
        """Report the effects of a fault at once, because its operator waits to see them."""
        if not self._is_fault_report_scheduled:
            self._is_fault_report_scheduled = True
            self._loop.call_soon(self._send_fault_report)

    def _send_fault_report(self) -> None:
        self._is_fault_report_scheduled = False
        hits = self._running_server.faults.take_hits()
        if hits:
            self._channel.send(messages.encode_message(messages.ObservationReport(hits=hits)))

    async def _drain(self, timeout_s: float, idle_grace_s: float) -> None:
        await self._running_server.drain(timeout_s, idle_grace_s=idle_grace_s)
        self._listeners.clear()
        while self._send_report():
            await asyncio.sleep(0)
        while not self._channel.is_flushed and not self._finished.done():
            await asyncio.sleep(0.001)
        self._finish(DRAINED)

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finish(self, why: str) -> None:
        if not self._finished.done():
            self._finished.set_result(why)


async def _run_worker(sock: socket.socket, fault_quota: SharedFaultQuota) -> None:
    worker = Worker(sock, fault_quota)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop_when_complete)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the owner handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_BLOCKED_AT_START)
    why = await worker.run()
    if why not in (DRAINED, PEER_GONE):
        log.error("this worker ends: %s", why)


def main() -> None:
    """Run the worker process until it ends: `python -m forewarn.metadata.workers.worker CHANNEL_FD FAULT_QUOTA_FD`."""
    # Ctrl-C reaches every process of the terminal; the owner handles it and stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s worker {os.getpid()}: %(message)s")
    limit_repeated_messages()
    gc.disable()  # until the state is complete
    channel_fd, quota_fd = map(int, sys.argv[1:])
    for fd in (channel_fd, quota_fd):
        os.set_inheritable(fd, False)
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_run_worker(socket.socket(fileno=channel_fd), SharedFaultQuota(quota_fd)))


if __name__ == "__main__":
    main()
