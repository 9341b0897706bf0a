"""The owner's side of the workers: starts, feeds, monitors, reloads and replaces them.

`WorkerPool` replaces a `MetadataServer` and, for `publish`, `PublishedDocuments`. It keeps the state as encoded
messages under one key each: a new worker gets all of them, then every change.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from forewarn.base.clock import Clock, ClockSetting, LabClock
from forewarn.core.faults import Fault, FaultCategory
from forewarn.errors import ForewarnError, Rejected, Unavailable
from forewarn.metadata import CallerDirectory, GuestObservations, MetadataBackend, PublishedScope, VmListener
from forewarn.metadata.fault_quota import SharedFaultQuota
from forewarn.metadata.identity import bound_device
from forewarn.metadata.listeners import LISTEN_BACKLOG
from forewarn.metadata.published_documents import StaleDocuments
from forewarn.metadata.request_counters import RequestTotals, sum_totals
from forewarn.metadata.transport_faults import FaultTable
from forewarn.metadata.workers import messages
from forewarn.metadata.workers.channel import MessageKey, WorkerHandle
from forewarn.metadata.workers.messages import perform_request

log = logging.getLogger(__name__)


# Which worker accepts on which listening socket; one SO_REUSEPORT socket per worker where possible.
#
# The owner keeps every socket open. If a worker dies, its callers wait in the backlog and another worker accepts them.

_SO_NETNS_COOKIE, _COOKIE_BYTES = 71, 8  # Linux 5.14; the socket module does not have it


def _open_reuseport_sockets(sock: socket.socket, count: int) -> list[socket.socket]:
    """Open `count` more listening sockets on the address and device of `sock`, with SO_REUSEPORT."""
    # Returns none if that is impossible, as in another network namespace: then workers share `sock`.
    siblings: list[socket.socket] = []
    with suppress(OSError):
        if not count or _is_in_other_namespace(sock):
            return []
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for _ in range(count):
            siblings.append(_open_reuseport_socket(sock))
        return siblings
    for sibling in siblings:
        sibling.close()
    return []


def _open_reuseport_socket(sock: socket.socket) -> socket.socket:
    sibling = socket.socket(sock.family, socket.SOCK_STREAM)
    try:
        sibling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sibling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        device = bound_device(sock)
        if device:
            sibling.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        sibling.bind(sock.getsockname()[:2])
        sibling.listen(LISTEN_BACKLOG)
        sibling.setblocking(False)
    except BaseException:
        sibling.close()
        raise
    return sibling


def _is_in_other_namespace(sock: socket.socket) -> bool:
    with socket.socket() as own:
        return _namespace_cookie(sock) != _namespace_cookie(own)


def _namespace_cookie(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedSocket:
    """A listening socket of the owner, and the slot of the worker that accepts on it."""

    sock: socket.socket
    slot: int | None  # position of the worker in the pool; None: all workers accept on it
    open_message: bytes  # encoded `OpenListenerRequest`


class SharedListeners:
    """The open listeners of a worker pool, and which worker accepts on which of their sockets.

    This process keeps every socket open, so that callers wait while a worker is missing. Workers learn of `add` and
    `remove` with the next `assign`.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._socket_ids = count(1)
        self._sockets: dict[int, _SharedSocket] = {}
        self._ids_by_listener: dict[VmListener, list[int]] = {}

    @property
    def listeners(self) -> tuple[VmListener, ...]:
        """The listeners that were added and not removed, in the order they were added."""
        return tuple(self._ids_by_listener)

    def add(self, listener: VmListener) -> None:
        """Add an open listener; where possible, open more sockets beside each of its own, one per worker."""
        for sock in listener.sockets:
            siblings = _open_reuseport_sockets(sock, self._slots - 1)
            if len(siblings) < self._slots - 1:
                self._add_socket(listener, sock, None)
                continue
            for slot, shared_sock in enumerate((sock, *siblings)):
                self._add_socket(listener, shared_sock, slot)

    def remove(self, listener: VmListener) -> None:
        """Remove a listener and close all its sockets in this process; does nothing if it was not added."""
        for number in self._ids_by_listener.pop(listener, ()):
            self._sockets.pop(number).sock.close()

    def assign(self, serving: Sequence[WorkerHandle]) -> None:
        """Send each serving worker the sockets that it must newly accept on or close, and nothing else."""
        present_slots = {worker.slot for worker in serving}
        for worker in serving:
            mine = {
                number
                for number, shared in self._sockets.items()
                if _is_assigned(shared, worker, serving, present_slots)
            }
            for number in mine - worker.socket_ids:
                worker.send_latest(("listener", number), self._sockets[number].open_message, self._sockets[number].sock)
            for number in worker.socket_ids - mine:
                worker.send_latest(("listener", number), messages.encode_message(messages.CloseListener(number)))
            worker.socket_ids = mine

    def _add_socket(self, listener: VmListener, sock: socket.socket, slot: int | None) -> None:
        number = next(self._socket_ids)
        payload = messages.encode_message(
            messages.open_message(number, listener.strategy, is_loopback=listener.is_loopback)
        )
        self._sockets[number] = _SharedSocket(sock=sock, slot=slot, open_message=payload)
        self._ids_by_listener.setdefault(listener, []).append(number)


def _is_assigned(
    shared: _SharedSocket, worker: WorkerHandle, serving: Sequence[WorkerHandle], present_slots: set[int]
) -> bool:
    if shared.slot is None or shared.slot == worker.slot:
        return True
    return shared.slot not in present_slots and serving[shared.slot % len(serving)] is worker


_HEARTBEAT_S = 0.25
_HUNG_TIMEOUT_S = 10.0  # a worker without an answer for this long is replaced
_START_TIMEOUT_S = 30.0  # the same before its first answer: a process starts slowly on a busy machine
_STABLE_AFTER_S = 10.0  # a worker that ran for this long did not fail to start
_MAX_BACKOFF_S = 30.0
_WORKER_TIMEOUT_S = 1.0  # how long to wait for workers; one that is stuck must not block the owner
_LAGS_KEPT = 1000


class WorkerPool:
    """A fixed number of worker processes, used in place of a `MetadataServer` in this process.

    Call `start_workers` (starts the processes), `publish` for each scope and `set_faults`, `complete_start` (waits
    until all workers have that), and `start` with listeners (VMs are served). `drain` ends it. A worker that ends is
    replaced; one is killed if it does not answer for `hung_timeout_s` or, before its first answer, for
    `start_timeout_s`.
    """

    def __init__(
        self,
        size: int,
        *,
        begin: messages.BeginServing,
        backend: MetadataBackend,
        callers: CallerDirectory,
        clock: Clock,
        metrics_sockets: Sequence[socket.socket] = (),
        hung_timeout_s: float = _HUNG_TIMEOUT_S,
        start_timeout_s: float = _START_TIMEOUT_S,
    ) -> None:
        self.size = size
        self.observations = GuestObservations()
        self.faults = FaultTable(StaleDocuments(), now=backend.now)  # collects the hits that workers report
        self.echo_delays_s: deque[float] = deque(maxlen=_LAGS_KEPT)  # from a heartbeat to its answer, latest last
        self._backend = backend
        self._state: dict[MessageKey, bytes] = {"begin": messages.encode_message(begin)}
        self._fault_quota = SharedFaultQuota.create()
        self._workers: list[WorkerHandle | None] = [None] * size
        self._draining: set[WorkerHandle] = set()
        self._successors: dict[int, WorkerHandle] = {}  # by slot, during a reload, until they are ready
        self._reload_lock = asyncio.Lock()
        self._metrics_sockets = metrics_sockets
        self._hung_timeout_s, self._start_timeout_s = hung_timeout_s, start_timeout_s
        self._counts_of_gone_workers = RequestTotals()
        self._shared_listeners = SharedListeners(size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._exit_tasks: set[asyncio.Task[None]] = set()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots_never_ready = set(range(size))
        self._is_stopping = self._is_state_complete = False
        if isinstance(clock, LabClock):
            clock.subscribe(self._broadcast_clock)
        callers.subscribe_assignments(self._broadcast_placement)

    async def start_workers(self) -> None:
        """Start the worker processes, and from now on replace each that ends or hangs, until `drain`."""
        self._spawn(self._heartbeat_forever())
        for slot in range(self.size):
            self._spawn(self._keep_slot_filled(slot))
        await asyncio.sleep(0)  # the tasks above start the processes

    async def complete_start(self) -> None:
        """Tell all workers that the state is complete, and wait until each has it and is ready for listeners.

        If one fails, all are killed and the pool cannot be used any more.
        """
        self._is_state_complete = True
        for worker in self._live_workers:
            worker.send_latest("complete", messages.encode_message(messages.StateComplete()))
        try:
            await self._started
        except BaseException:
            await self._terminate()
            raise

    def publish(self, scope: PublishedScope) -> None:
        """Send this scope to every worker, for its VMs to see in place of what they saw before."""
        payload = messages.encode_message(messages.scope_message(scope))
        key = ("scope", scope.scope_id)
        if self._state.get(key) != payload:
            self._broadcast(key, payload)

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the active transport faults in every worker; faults of other categories are ignored."""
        transport_faults = tuple(fault for fault in faults if fault.category is FaultCategory.TRANSPORT)
        offsets = self._fault_quota.assign_offsets(transport_faults)
        self._broadcast("faults", messages.encode_message(messages.FaultsUpdate(transport_faults, dict(offsets))))

    async def start(self, listeners: Sequence[VmListener]) -> None:
        """Let the workers accept on these listeners too; the pool then owns their sockets."""
        for listener in listeners:
            self._shared_listeners.add(listener)
        self._assign_listeners()

    async def stop(self, listener: VmListener) -> None:
        """Close the listener's sockets here, and tell the workers to stop accepting on it."""
        self._shared_listeners.remove(listener)
        self._assign_listeners()

    async def wait_until_published(self) -> None:
        """Wait until every serving worker has applied everything sent so far, but at most a second."""
        await self._wait_for_all(worker.request_echo() for worker in self._serving_workers)

    async def collect_reports(self) -> None:
        """Ask the serving workers for what they observed, and merge it into `observations` and `faults`."""
        await self._wait_for_all(worker.request_report() for worker in self._serving_workers)

    async def reload(self, timeout_s: float) -> None:
        """Replace every worker process, one after the other, without refusing a connection.

        A worker accepts until its successor does. Then it answers the requests in progress and one more on each idle
        connection, and ends. If its successor fails to start, it stays.
        """
        async with self._reload_lock:
            for slot in range(self.size):
                if not self._is_stopping:
                    await self._replace_worker(slot, timeout_s)

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, let workers answer the requests in progress within `timeout_s`, and end them."""
        self._is_stopping = True
        for listener in self._shared_listeners.listeners:
            await self.stop(listener)
        for worker in self._live_workers:
            worker.send_latest("drain", messages.encode_message(messages.DrainWorker(timeout_s)))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s + _WORKER_TIMEOUT_S):
                await asyncio.gather(*(worker.disconnected.wait() for worker in self._live_workers))
        await self._terminate()

    def describe(self) -> list[dict[str, Any]]:
        """Return a dictionary per slot, as in `GET /service`: "pid", "ready" (it serves) and "behind_ms"."""
        return [
            {
                "pid": worker.pid if worker else None,
                "ready": bool(worker and worker.is_serving),
                "behind_ms": round(worker.lag_s * 1000, 1) if worker else None,
            }
            for worker in self._workers
        ]

    def request_totals(self) -> RequestTotals:
        """Return the sum of the request counts of all workers, as of their last reports."""
        return sum_totals(self._counts_of_gone_workers, *(worker.request_counts for worker in self._live_workers))

    def worker_lags(self) -> list[tuple[float, float]]:
        """Return a pair of seconds per slot: how long its worker's last answer took, and has owed the next."""
        return [(m.lag_s, m.silent_s()) if m else (math.inf, math.inf) for m in self._workers]

    @property
    def _live_workers(self) -> list[WorkerHandle]:
        filled = (worker for worker in self._workers if worker is not None)
        return [*filled, *self._successors.values(), *self._draining]

    @property
    def _serving_workers(self) -> list[WorkerHandle]:
        return [worker for worker in self._workers if worker is not None and worker.is_serving]

    async def _wait_for_all(self, awaited: Iterable[asyncio.Future[None]]) -> None:
        futures = list(awaited)
        if futures:
            await asyncio.wait(futures, timeout=_WORKER_TIMEOUT_S)

    def _broadcast(self, key: MessageKey, payload: bytes) -> None:
        self._state[key] = payload
        for worker in self._live_workers:
            worker.send_latest(key, payload)

    def _broadcast_clock(self, setting: ClockSetting) -> None:
        self._broadcast("clock", messages.encode_message(messages.ClockUpdate(setting)))

    def _broadcast_placement(self, place: str, vm: str | None) -> None:
        key = ("place", place)
        self._broadcast(key, messages.encode_message(messages.VmPlacement(place, vm)))
        if vm is None:
            del self._state[key]

    def _assign_listeners(self) -> None:
        self._shared_listeners.assign(self._serving_workers)

    async def _keep_slot_filled(self, slot: int) -> None:
        """Start a worker in this slot whenever it is empty, with backoff after repeated failures."""
        failures = 0
        while not self._is_stopping:
            started_at = asyncio.get_running_loop().time()
            worker = self._workers[slot] or self._fill_slot(slot)
            if worker is not None:
                await worker.stopped_accepting.wait()
            if self._is_stopping:
                return
            if worker is not None and worker.is_draining:
                continue
            was_stable = asyncio.get_running_loop().time() - started_at > _STABLE_AFTER_S
            failures = 1 if was_stable else failures + 1
            wait_s = 0.0 if failures == 1 else min(_MAX_BACKOFF_S, 2.0 ** (failures - 3))
            self._log_unexpected_exit(slot, worker, wait_s)
            await asyncio.sleep(wait_s)

    async def _replace_worker(self, slot: int, timeout_s: float) -> None:
        old = self._workers[slot]
        if old is None or not old.is_serving:
            return  # a new worker is being started already
        successor = self._launch_worker(slot)
        if successor is None:
            return
        self._successors[slot] = successor
        await successor.start_settled.wait()
        del self._successors[slot]
        if self._workers[slot] is not old or not successor.is_serving:
            log.warning("worker %d (process %d) was not replaced: it or its successor ended meanwhile", slot, old.pid)
            self._draining.add(successor)
            successor.kill()
            return
        self._workers[slot] = successor
        self._draining.add(old)
        self._assign_listeners()
        await self._wait_for_all([successor.request_echo()])
        drain = messages.DrainWorker(timeout_s, min(messages.IDLE_GRACE_S, timeout_s / 2))
        old.send_latest("drain", messages.encode_message(drain))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s + _WORKER_TIMEOUT_S):
                await old.disconnected.wait()

    def _fill_slot(self, slot: int) -> WorkerHandle | None:
        worker = self._workers[slot] = self._launch_worker(slot)
        return worker

    def _launch_worker(self, slot: int) -> WorkerHandle | None:
        try:
            worker = WorkerHandle(
                slot, fault_quota_fd=self._fault_quota.file, on_message=self._on_message, on_lost=self._on_lost
            )
        except OSError as error:
            log.warning("worker %d cannot be started: %s", slot, error)
            return None
        for key, payload in self._state.items():
            worker.send_latest(key, payload)
        if self._metrics_sockets:
            worker.send_latest("metrics", messages.encode_message(messages.ServeMetrics()), self._metrics_sockets[slot])
        if self._is_state_complete:
            worker.send_latest("complete", messages.encode_message(messages.StateComplete()))
        return worker

    def _log_unexpected_exit(self, slot: int, worker: WorkerHandle | None, wait_s: float) -> None:
        what = f"worker {slot}" + (f" (process {worker.pid})" if worker else "")
        when = f"in {wait_s:g} s" if wait_s else "now"
        log.warning("%s ended unexpectedly: another one starts %s", what, when)
        if slot in self._slots_never_ready and not self._started.done():
            self._started.set_exception(Unavailable(f"{what} ended before it was ready: see the service's log"))

    def _on_message(self, worker: WorkerHandle, message: Any) -> None:
        match message:
            case messages.EnableRequest() | messages.ApproveRequest() | messages.WorkerTokenRequest():
                self._spawn(self._answer_request(worker, message))
            case messages.ObservationReport():
                self._merge_report(worker, message)
            case messages.WorkerReady():
                worker.is_ready = True
                worker.start_settled.set()
                self._slots_never_ready.discard(worker.slot)
                if not self._slots_never_ready and not self._started.done():
                    self._started.set_result(None)
                self._assign_listeners()
            case messages.OwnerSilent():
                worker.send(messages.ResumeAccepting())  # arrives after everything that waits to be sent
            case messages.WorkerLeaving():
                self._on_leaving(worker)

    def _on_leaving(self, worker: WorkerHandle) -> None:
        worker.is_draining = True
        if not self._is_stopping:
            self._draining.add(worker)
            if self._workers[worker.slot] is worker:
                self._workers[worker.slot] = None
                self._assign_listeners()
        worker.stopped_accepting.set()

    def _on_lost(self, worker: WorkerHandle) -> None:
        self._draining.discard(worker)
        self._counts_of_gone_workers, worker.request_counts = (
            sum_totals(self._counts_of_gone_workers, worker.request_counts.without_gauges()),
            RequestTotals(),
        )
        if self._workers[worker.slot] is worker:
            self._workers[worker.slot] = None
            self._assign_listeners()
        worker.kill()
        task = asyncio.get_running_loop().create_task(worker.wait_for_exit())
        self._exit_tasks.add(task)
        task.add_done_callback(self._exit_tasks.discard)

    def _merge_report(self, worker: WorkerHandle, report: messages.ObservationReport) -> None:
        self.observations.merge_increments(report.polls, report.deliveries)
        worker.request_counts = report.counted or worker.request_counts
        self.faults.add_hits(report.hits)

    async def _answer_request(self, worker: WorkerHandle, request: messages.WorkerRequest) -> None:
        """Carry out a worker's request and reply; the effect is durable, and sent to the worker, before the reply."""
        reply: messages.OwnerReply
        try:
            reply = messages.reply_message(request.id, await perform_request(self._backend, request))
        except ForewarnError as error:
            reply = messages.failure_message(request.id, error)
        except Exception:
            log.exception("a request of a worker failed with an internal error")
            reply = messages.failure_message(request.id, Rejected("the service failed with an internal error"))
        worker.send(reply)

    async def _heartbeat_forever(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            for worker in self._live_workers:
                if self._is_hung(worker):
                    log.warning("worker %d (process %d) hangs: killing it", worker.slot, worker.pid)
                    worker.kill()
                    continue
                echo = worker.send_heartbeat()
                if worker.is_ready:
                    echo.add_done_callback(partial(self._record_lag, worker))

    def _is_hung(self, worker: WorkerHandle) -> bool:
        # Counts heartbeats, not time: while this process was suspended it sent none, so the worker missed none.
        return worker.missed_heartbeats * _HEARTBEAT_S >= (
            self._hung_timeout_s if worker.has_ever_answered else self._start_timeout_s
        )

    def _record_lag(self, worker: WorkerHandle, echo: asyncio.Future[None]) -> None:
        self.echo_delays_s.append(worker.lag_s)

    async def _terminate(self) -> None:
        self._is_stopping = True
        alive = self._live_workers
        for worker in alive:
            worker.kill()
        await asyncio.gather(*(worker.disconnected.wait() for worker in alive))
        await asyncio.gather(*self._exit_tasks)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fault_quota.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
