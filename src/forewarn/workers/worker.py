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

from forewarn.clock import LabClock, SystemClock
from forewarn.errors import Unavailable
from forewarn.metadata import CallerDirectory, Limits, MetadataServer, PublishedDocuments, VmListener
from forewarn.metadata.fault_quota import SharedFaultQuota
from forewarn.metadata.observations import BATCH_SIZE, BATCHES_PER_SECOND, REPORT_INTERVAL_S
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metrics.http_server import MetricsServer
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource
from forewarn.workers import messages
from forewarn.workers.channel import PEER_GONE, WorkerChannel
from forewarn.workers.handle import SIGNALS_BLOCKED_AT_START


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return None
    return uvloop.new_event_loop


log = logging.getLogger(__name__)
BackendResult: TypeAlias = "str | ManagedIdentityToken | WrongResource | None"
DRAINED = "drained"
_SILENCE_TIMEOUT_S = 1.0
_SILENCE_CHECK_S = 0.1
_REPORT_INTERVAL_S = 1.0
_DRAIN_TIMEOUT_S = 5.0


class OwnerBackend:
    """The `Backend` of a worker: the owner, over the line."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self._send = say
        self._request_ids = count(1)
        self._pending: dict[int, asyncio.Future[BackendResult]] = {}
        self.is_owner_responsive = True  # whether the owner says anything these days
        self.clock: SystemClock | LabClock = SystemClock()

    def now(self) -> float:
        return self.clock.now()

    async def enable(self, vm: str) -> None:
        await self._request(lambda number: messages.EnableRequest(number, vm))

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        unknown = await self._request(lambda number: messages.ApproveRequest(number, vm, event_ids))
        assert unknown is None or isinstance(unknown, str)
        return unknown

    async def token(self, identity: ManagedIdentity, resource: str) -> ManagedIdentityToken | WrongResource:
        given = await self._request(lambda number: messages.WorkerTokenRequest(number, identity, resource))
        assert isinstance(given, (ManagedIdentityToken, WrongResource))
        return given

    def on_reply(self, reply: messages.OwnerReply) -> None:
        asked = self._pending.pop(reply.id, None)
        if asked is None or asked.done():
            return
        if isinstance(reply, messages.RequestFailed):
            asked.set_exception(reply.to_error())
        elif isinstance(reply, messages.TokenGranted):
            asked.set_result(reply.token)
        elif isinstance(reply, messages.TokenDenied):
            asked.set_result(WrongResource(accepted=reply.accepted))
        else:
            asked.set_result(reply.unknown)

    async def _request(self, asking: Callable[[int], messages.WorkerRequest]) -> BackendResult:
        # What was asked before is waited for: it may be done, and a refusal says that nothing was.
        if not self.is_owner_responsive:
            raise Unavailable("the service does not answer: try again later")
        number = next(self._request_ids)
        asked: asyncio.Future[BackendResult] = asyncio.get_running_loop().create_future()
        self._pending[number] = asked
        self._send(messages.encode_message(asking(number)))
        try:
            return await asked
        finally:
            self._pending.pop(number, None)


class PausableSocket(socket.socket):
    """A listening socket; unless `is_open`, whoever calls waits in its backlog."""

    may_accept: Callable[[], bool]

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.may_accept():
            raise BlockingIOError
        return super().accept()


class Worker:
    """Serves from the moment it is told to begin until `run` returns."""

    def __init__(
        self, sock: socket.socket, allowance: SharedFaultQuota, *, silence_s: float = _SILENCE_TIMEOUT_S
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_timeout_s = silence_s
        self._fault_quota = allowance
        self._finished: asyncio.Future[str] = self._loop.create_future()
        self._channel = WorkerChannel(sock, for_worker=True, hear=self._on_message, lost=self._finish)
        self._backend = OwnerBackend(self._channel.send)
        self._callers = CallerDirectory()
        self._board: PublishedDocuments
        self._server: MetadataServer | None = None
        self._sockets: dict[int, tuple[messages.OpenListenerRequest, socket.socket]] = {}
        self._listeners: dict[int, VmListener] = {}
        self._last_heard_at = self._loop.time()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = self._is_fault_report_scheduled = self._is_complete = self._stops_when_complete = False
        self._reported_counts = RequestTotals()
        self._metrics_servers: list[MetricsServer] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            messages.BeginServing: self._on_begin,
            messages.ClockUpdate: self._set_clock,
            messages.FaultsUpdate: self._set_faults,
            messages.VmPlacement: self._set_placement,
            messages.ScopeUpdate: lambda told: self._board.publish(told.to_scope_view()),
            messages.StateComplete: self._on_complete,
            messages.OpenListenerRequest: self._open_socket,
            messages.ServeMetrics: self._serve_metrics,
            messages.CloseListener: self._close_socket,
            messages.EchoRequest: lambda told: self._channel.send(messages.encode_message(messages.EchoReply(told.id))),
            messages.ReportRequest: self._on_report_request,
            messages.ResumeAccepting: self._resume,
            messages.DrainWorker: lambda told: self.stop(told.timeout_s),
        }

    async def run(self) -> str:
        """Until the line ends, or the owner or a signal says to; why."""
        watching = [self._loop.create_task(self._watch_owner()), self._loop.create_task(self._report_forever())]
        try:
            return await self._finished
        finally:
            for task in (*watching, *self._tasks):
                task.cancel()
            await asyncio.gather(*watching, *self._tasks, return_exceptions=True)
            self._channel.close()
            for window in self._metrics_servers:
                await window.close()
            if self._server is not None:
                await self._server.drain(0.0)
            for _, sock in self._sockets.values():
                sock.close()

    def stop(self, timeout_s: float = _DRAIN_TIMEOUT_S) -> None:
        """Accept nobody, answer whoever is here, tell what was seen, and end."""
        if self._server is None:
            self._finish("told to end before it began")
        elif not self._is_stopping:
            self._is_stopping = True
            for window in self._metrics_servers:
                self._spawn(window.close())  # another takes its place
            self._channel.send(messages.encode_message(messages.WorkerLeaving()))
            self._spawn(self._drain(timeout_s))

    def stop_when_complete(self) -> None:
        """A signal says to. While all is told to us the owner waits for us, unless it was told to end as well."""
        if self._is_complete:
            self.stop()
        self._stops_when_complete = True

    @property
    def _running_server(self) -> MetadataServer:
        if self._server is None:
            raise messages.ChannelBroken("the first thing to be told is how to begin")
        return self._server

    def _on_message(self, message: Any) -> None:
        self._check_owner()
        self._last_heard_at = self._loop.time()
        do = self._handlers.get(type(message))
        if do is None:
            self._backend.on_reply(message)
        else:
            do(message)

    def _on_begin(self, told: messages.BeginServing) -> None:
        def rules_for(location: str) -> EndpointRules:
            return told.rules_by_location.get(location, told.rules)

        self._board = PublishedDocuments(first_answer_delay_s=told.first_answer_delay_s)
        self._server = MetadataServer(
            board=self._board,
            backend=self._backend,
            callers=self._callers,
            rules_for=rules_for,
            limits=Limits(requests_per_s=told.requests_per_s),
            allowance=self._fault_quota,
        )
        self._server.faults.subscribe_hits(self._schedule_fault_report)

    def _on_complete(self, told: messages.StateComplete) -> None:
        # What is known of a fleet stays for good, and going through it for garbage takes longer than VMs should wait.
        gc.freeze()
        gc.enable()
        self._channel.send(messages.encode_message(messages.WorkerReady()))
        self._is_complete = True
        if self._stops_when_complete:
            self.stop()

    def _set_clock(self, told: messages.ClockUpdate) -> None:
        clock = self._backend.clock
        if isinstance(clock, LabClock):
            clock.apply_setting(told.setting)
        else:
            self._backend.clock = LabClock(told.setting)

    def _set_faults(self, told: messages.FaultsUpdate) -> None:
        self._fault_quota.offsets = told.places
        self._running_server.faults.set_faults(told.faults)

    def _set_placement(self, told: messages.VmPlacement) -> None:
        if told.vm is None:
            self._callers.release(told.place)
        else:
            self._callers.assign(told.place, told.vm)

    def _open_socket(self, told: messages.OpenListenerRequest) -> None:
        self._sockets[told.id] = (told, socket.socket(fileno=self._channel.take_received_fd()))
        self._accept_on(told.id)

    def _serve_metrics(self, told: messages.ServeMetrics) -> None:
        from forewarn.metrics.registry import WorkerMetrics  # takes its time, and most show none

        metrics = WorkerMetrics(counted=self._request_counts, silent_s=lambda: self._loop.time() - self._last_heard_at)
        window = MetricsServer(metrics.render)
        self._metrics_servers.append(window)
        self._spawn(window.start(socket.socket(fileno=self._channel.take_received_fd())))

    def _request_counts(self) -> RequestTotals:
        return self._server.request_totals() if self._server is not None else RequestTotals()

    def _close_socket(self, told: messages.CloseListener) -> None:
        self._stop_accepting(told.id)
        _, sock = self._sockets.pop(told.id, (None, None))
        if sock is not None:
            sock.close()

    def _accept_on(self, number: int) -> None:
        """On a copy of the socket, so that it may be left and taken up again."""
        if self._is_stopping or number in self._listeners:
            return
        told, sock = self._sockets[number]
        door = PausableSocket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))
        door.may_accept = self._may_accept
        listener = VmListener(sockets=(door,), strategy=told.identity_strategy(), is_loopback=told.is_loopback)
        self._listeners[number] = listener
        self._spawn(self._start_listener(listener))

    async def _start_listener(self, listener: VmListener) -> None:
        try:
            await self._running_server.start([listener])
        except OSError as error:  # its device went in the same moment; the owner will hear of it
            log.warning("cannot serve a socket: %s", error)

    def _stop_accepting(self, number: int) -> None:
        listener = self._listeners.pop(number, None)
        if listener is not None:
            self._spawn(self._running_server.stop(listener))

    def _may_accept(self) -> bool:
        """Asked for each caller: when we were stopped, one who waits may come before anything else that would tell."""
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
        """Callers wait in the backlogs, which are the owner's too, until we know what to tell them."""
        log.warning("the service has said nothing for %g s: accepting nobody until it does", self._silence_timeout_s)
        self._channel.send(messages.encode_message(messages.OwnerSilent()))
        self._backend.is_owner_responsive = False
        for number in tuple(self._listeners):
            self._stop_accepting(number)

    def _resume(self, told: messages.ResumeAccepting) -> None:
        self._backend.is_owner_responsive = True
        for number in self._sockets:
            self._accept_on(number)

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            while (
                self._server is not None
                and self._backend.is_owner_responsive
                and self._send_report(rest_s=REPORT_INTERVAL_S)
            ):
                await asyncio.sleep(_REPORT_INTERVAL_S / BATCHES_PER_SECOND)

    def _on_report_request(self, told: messages.ReportRequest) -> None:
        for _ in range(BATCHES_PER_SECOND):
            if not self._send_report(told.id):
                return
        self._channel.send(messages.encode_message(messages.ObservationReport(id=told.id)))

    def _send_report(self, number: int = 0, *, rest_s: float = 0.0) -> bool:
        """What was seen since the last time, of many VMs of a part of them; whether there may be more.

        `number`: of the report that was asked for, said with the last part.
        """
        polls, sightings = self._running_server.observations.take_increments(rest_s)
        touches = self._running_server.faults.take_hits()
        told, self._reported_counts = self._reported_counts, self._running_server.request_totals()
        has_more = len(polls) == BATCH_SIZE
        number = 0 if has_more else number
        if number or polls or sightings or touches or told != self._reported_counts:
            self._channel.send(
                messages.encode_message(
                    messages.ObservationReport(polls, sightings, touches, number, self._reported_counts)
                )
            )
        return has_more

    def _schedule_fault_report(self) -> None:
        """At once: whoever looks at a fault wants to see what it did."""
        if not self._is_fault_report_scheduled:
            self._is_fault_report_scheduled = True
            self._loop.call_soon(self._send_fault_report)

    def _send_fault_report(self) -> None:
        self._is_fault_report_scheduled = False
        touches = self._running_server.faults.take_hits()
        if touches:
            self._channel.send(messages.encode_message(messages.ObservationReport(touches=touches)))

    async def _drain(self, timeout_s: float) -> None:
        await self._running_server.drain(timeout_s)
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


async def _run_worker(sock: socket.socket, allowance: SharedFaultQuota) -> None:
    worker = Worker(sock, allowance)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop_when_complete)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the owner's to answer
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_BLOCKED_AT_START)
    why = await worker.run()
    if why not in (DRAINED, PEER_GONE):
        log.error("it cannot go on: %s", why)


def main() -> None:
    # Ctrl-C goes to everybody at the terminal, and the owner is the one to say what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s worker {os.getpid()}: %(message)s")
    gc.disable()  # until all is known
    line, shared = map(int, sys.argv[1:])
    for file in (line, shared):
        os.set_inheritable(file, False)
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_run_worker(socket.socket(fileno=line), SharedFaultQuota(shared)))


if __name__ == "__main__":
    main()
