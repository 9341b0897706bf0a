"""The owner's side of the workers: starts, feeds, monitors, reloads and replaces them.

`WorkerPool` has the interface of a `MetadataServer` and of the scope board. It keeps the state as encoded messages
under one key each: a new worker gets all of them, then every change.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from forewarn.clock import Clock, ClockSetting, LabClock
from forewarn.core.faults import Fault, FaultCategory
from forewarn.errors import ForewarnError, Rejected, Unavailable
from forewarn.metadata import CallerDirectory, GuestObservations, MetadataBackend, PublishedScope, VmListener
from forewarn.metadata.fault_quota import SharedFaultQuota
from forewarn.metadata.published_documents import StaleDocuments
from forewarn.metadata.request_counters import RequestTotals, sum_totals
from forewarn.metadata.transport_faults import FaultTable
from forewarn.protocol.managed_identity import ManagedIdentityToken, WrongResource
from forewarn.workers import messages
from forewarn.workers.channel import MessageKey
from forewarn.workers.handle import WorkerHandle
from forewarn.workers.listener_sharing import SharedListeners

log = logging.getLogger(__name__)
_HEARTBEAT_S = 0.25
_HUNG_TIMEOUT_S = 10.0  # a worker that has answered nothing for so long is replaced
_START_TIMEOUT_S = 30.0  # the same until its first answer: on a busy machine a process takes long to begin
_STABLE_AFTER_S = 10.0  # one that lived so long did not fail to start
_MAX_BACKOFF_S = 30.0
_WORKER_TIMEOUT_S = 1.0  # for workers to do what they were told; those that are stuck are not waited for
_LAGS_KEPT = 1000


class WorkerPool:
    def __init__(
        self,
        size: int,
        *,
        begin: messages.BeginServing,
        backend: MetadataBackend,
        callers: CallerDirectory,
        clock: Clock,
        windows: Sequence[socket.socket] = (),
        hung_s: float = _HUNG_TIMEOUT_S,
        birth_s: float = _START_TIMEOUT_S,
    ) -> None:
        """`windows`: where each worker shows its metrics, if any are to be shown."""
        self.size = size
        self.observations = GuestObservations()
        self.faults = FaultTable(StaleDocuments(), now=backend.now)  # gathers what they touch in workers
        self.echo_delays_s: deque[float] = deque(maxlen=_LAGS_KEPT)  # seconds from saying something to its being done
        self._backend = backend
        self._state: dict[MessageKey, bytes] = {"begin": messages.encode_message(begin)}
        self._fault_quota = SharedFaultQuota.create()
        self._workers: list[WorkerHandle | None] = [None] * size
        self._draining: set[WorkerHandle] = set()
        self._successors: dict[int, WorkerHandle] = {}  # that are not ready yet, by slot
        self._reload_lock = asyncio.Lock()
        self._metrics_sockets = windows
        self._hung_timeout_s, self._start_timeout_s = hung_s, birth_s
        self._counts_of_gone_workers = RequestTotals()  # by workers that are gone
        self._shared_listeners = SharedListeners(size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._exit_tasks: set[asyncio.Task[None]] = set()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots_never_ready = set(range(size))  # slots in which nobody was ever ready
        self._is_stopping = self._is_state_complete = False
        if isinstance(clock, LabClock):
            clock.subscribe(self._broadcast_clock)
        callers.subscribe_assignments(self._broadcast_placement)

    async def start_workers(self) -> None:
        """Start the workers, which know nothing yet and serve nobody."""
        self._spawn(self._heartbeat_forever())
        for slot in range(self.size):
            self._spawn(self._keep_slot_filled(slot))
        await asyncio.sleep(0)  # their processes are there

    async def complete_start(self) -> None:
        """All there is to know was told, and is known on return. Unavailable: one of the workers did not start."""
        self._is_state_complete = True
        for member in self._live_workers:
            member.send_fact("complete", messages.encode_message(messages.StateComplete()))
        try:
            await self._started
        except BaseException:
            await self._terminate()
            raise

    def publish(self, scope: PublishedScope) -> None:
        """Show this from now on, everywhere."""
        raw = messages.encode_message(messages.scope_message(scope))
        key = ("scope", scope.scope_id)
        if self._state.get(key) != raw:
            self._broadcast(key, raw)

    def set_faults(self, faults: Sequence[Fault]) -> None:
        armed = tuple(fault for fault in faults if fault.category is FaultCategory.TRANSPORT)
        places = self._fault_quota.assign_offsets(armed)
        self._broadcast("faults", messages.encode_message(messages.FaultsUpdate(armed, dict(places))))

    async def start(self, listeners: Sequence[VmListener]) -> None:
        """Serve these too; may be called again while workers run."""
        for listener in listeners:
            self._shared_listeners.add(listener)
        self._assign_listeners()

    async def stop(self, listener: VmListener) -> None:
        """Accept nobody there any more; whoever is connected stays."""
        self._shared_listeners.remove(listener)
        self._assign_listeners()

    async def wait_until_published(self) -> None:
        """All that was published until now is shown by every worker that is well."""
        await self._wait_for_all(member.request_echo() for member in self._serving_workers)

    async def collect_reports(self) -> None:
        """What VMs asked until now, of whichever worker, is in `observations` and `faults`."""
        await self._wait_for_all(member.request_report() for member in self._serving_workers)

    async def reload(self, timeout_s: float) -> None:
        """Another process in the place of every worker, one after the other: nobody is refused meanwhile.

        Each goes on accepting until its successor does, answers whoever is held or in work, and ends.
        """
        async with self._reload_lock:
            for slot in range(self.size):
                if not self._is_stopping:
                    await self._replace_worker(slot, timeout_s)

    async def drain(self, timeout_s: float) -> None:
        """Workers answer whoever is held or in work, tell what they have seen, and end."""
        self._is_stopping = True
        for listener in self._shared_listeners.listeners:
            await self.stop(listener)
        for member in self._live_workers:
            member.send_fact("drain", messages.encode_message(messages.DrainWorker(timeout_s)))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s + _WORKER_TIMEOUT_S):
                await asyncio.gather(*(member.disconnected.wait() for member in self._live_workers))
        await self._terminate()

    def describe(self) -> list[dict[str, Any]]:
        """The workers, for people."""
        return [
            {
                "pid": member.pid if member else None,
                "ready": bool(member and member.is_serving),
                "behind_ms": round(member.lag_s * 1000, 1) if member else None,
            }
            for member in self._workers
        ]

    def request_totals(self) -> RequestTotals:
        """By all workers there were, as far as they told."""
        return sum_totals(self._counts_of_gone_workers, *(member.request_counts for member in self._live_workers))

    def worker_lags(self) -> list[tuple[float, float]]:
        """Of each slot's worker: how long what was said last took to be done there, and for how long it owes an

        answer. Of an empty slot: for ever.
        """
        return [(m.lag_s, m.silent_s()) if m else (math.inf, math.inf) for m in self._workers]

    @property
    def _live_workers(self) -> list[WorkerHandle]:
        there = (member for member in self._workers if member is not None)
        return [*there, *self._successors.values(), *self._draining]

    @property
    def _serving_workers(self) -> list[WorkerHandle]:
        return [member for member in self._workers if member is not None and member.is_serving]

    async def _wait_for_all(self, awaited: Iterable[asyncio.Future[None]]) -> None:
        futures = list(awaited)
        if futures:
            await asyncio.wait(futures, timeout=_WORKER_TIMEOUT_S)

    def _broadcast(self, key: MessageKey, raw: bytes) -> None:
        self._state[key] = raw
        for member in self._live_workers:
            member.send_fact(key, raw)

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
        """Somebody is in this slot, always; after failures in a row, after a while."""
        failures = 0
        while not self._is_stopping:
            began_at = asyncio.get_running_loop().time()
            member = self._workers[slot] or self._fill_slot(slot)
            if member is not None:
                await member.stopped_accepting.wait()
            if self._is_stopping:
                return
            if member is not None and member.is_draining:
                continue
            is_sound = asyncio.get_running_loop().time() - began_at > _STABLE_AFTER_S
            failures = 1 if is_sound else failures + 1
            wait_s = 0.0 if failures == 1 else min(_MAX_BACKOFF_S, 2.0 ** (failures - 3))
            self._log_unexpected_exit(slot, member, wait_s)
            await asyncio.sleep(wait_s)

    async def _replace_worker(self, slot: int, timeout_s: float) -> None:
        old = self._workers[slot]
        if old is None or not old.is_serving:
            return  # another is on its way already
        successor = self._launch_worker(slot)
        if successor is None:
            return
        self._successors[slot] = successor
        await successor.start_settled.wait()
        del self._successors[slot]
        if self._workers[slot] is not old or not successor.is_serving:
            log.warning("worker %d (process %d) is not replaced", slot, old.pid)
            self._draining.add(successor)
            successor.kill()
            return
        self._workers[slot] = successor
        self._draining.add(old)
        self._assign_listeners()
        await self._wait_for_all([successor.request_echo()])
        old.send_fact("drain", messages.encode_message(messages.DrainWorker(timeout_s)))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s + _WORKER_TIMEOUT_S):
                await old.disconnected.wait()

    def _fill_slot(self, slot: int) -> WorkerHandle | None:
        member = self._workers[slot] = self._launch_worker(slot)
        return member

    def _launch_worker(self, slot: int) -> WorkerHandle | None:
        """A process that is told all there is to know, and serves nobody yet."""
        try:
            member = WorkerHandle(slot, shared=self._fault_quota.file, hear=self._on_message, lost=self._on_lost)
        except OSError as error:
            log.warning("worker %d cannot be started: %s", slot, error)
            return None
        for key, raw in self._state.items():
            member.send_fact(key, raw)
        if self._metrics_sockets:
            member.send_fact("expose", messages.encode_message(messages.ServeMetrics()), self._metrics_sockets[slot])
        if self._is_state_complete:
            member.send_fact("complete", messages.encode_message(messages.StateComplete()))
        return member

    def _log_unexpected_exit(self, slot: int, member: WorkerHandle | None, wait_s: float) -> None:
        what = f"worker {slot}" + (f" (process {member.pid})" if member else "")
        when = f"in {wait_s:g} s" if wait_s else "now"
        log.warning("%s ended though nobody told it to: another is started %s", what, when)
        if slot in self._slots_never_ready and not self._started.done():
            self._started.set_exception(Unavailable(f"{what} ended before it was ready: the log says why"))

    def _on_message(self, member: WorkerHandle, message: Any) -> None:
        match message:
            case messages.EnableRequest() | messages.ApproveRequest() | messages.WorkerTokenRequest():
                self._spawn(self._answer_request(member, message))
            case messages.ObservationReport():
                self._merge_report(member, message)
            case messages.WorkerReady():
                member.is_ready = True
                member.start_settled.set()
                self._slots_never_ready.discard(member.slot)
                if not self._slots_never_ready and not self._started.done():
                    self._started.set_result(None)
                self._assign_listeners()
            case messages.OwnerSilent():
                member.send(messages.ResumeAccepting())  # after all that waits to be sent
            case messages.WorkerLeaving():
                self._on_leaving(member)

    def _on_leaving(self, member: WorkerHandle) -> None:
        member.is_draining = True
        if not self._is_stopping:
            self._draining.add(member)
            if self._workers[member.slot] is member:
                self._workers[member.slot] = None
                self._assign_listeners()
        member.stopped_accepting.set()

    def _on_lost(self, member: WorkerHandle) -> None:
        self._draining.discard(member)
        self._counts_of_gone_workers, member.request_counts = (
            sum_totals(self._counts_of_gone_workers, member.request_counts.without_gauges()),
            RequestTotals(),
        )
        if self._workers[member.slot] is member:
            self._workers[member.slot] = None
            self._assign_listeners()
        member.kill()
        burial = asyncio.get_running_loop().create_task(member.wait_for_exit())
        self._exit_tasks.add(burial)
        burial.add_done_callback(self._exit_tasks.discard)

    def _merge_report(self, member: WorkerHandle, seen: messages.ObservationReport) -> None:
        self.observations.merge_increments(seen.polls, seen.sightings)
        member.request_counts = seen.counted or member.request_counts
        self.faults.add_hits(seen.touches)

    async def _answer_request(self, member: WorkerHandle, ask: messages.WorkerRequest) -> None:
        """Durable before it is answered; and whoever asked is told what follows from it first."""
        reply: messages.OwnerReply
        try:
            reply = messages.reply_message(ask.id, await self._perform_request(ask))
        except ForewarnError as error:
            reply = messages.failure_message(ask.id, error)
        except Exception:
            log.exception("what a worker asked for met a mistake of ours")
            reply = messages.failure_message(ask.id, Rejected("a mistake of the service"))
        member.send(reply)

    async def _perform_request(self, ask: messages.WorkerRequest) -> str | ManagedIdentityToken | WrongResource | None:
        match ask:
            case messages.EnableRequest(vm=vm):
                await self._backend.enable(vm)
                return None
            case messages.ApproveRequest(vm=vm, event_ids=event_ids):
                return await self._backend.approve(vm, event_ids)
            case messages.WorkerTokenRequest(identity=identity, resource=resource):
                return await self._backend.token(identity, resource)

    async def _heartbeat_forever(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            for member in self._live_workers:
                if self._is_hung(member):
                    log.warning("worker %d (process %d) hangs: ending it", member.slot, member.pid)
                    member.kill()
                    continue
                echoed = member.send_heartbeat()
                if member.is_ready:
                    echoed.add_done_callback(partial(self._record_lag, member))

    def _is_hung(self, member: WorkerHandle) -> bool:
        """Counted in beats: while we were stopped ourselves there were none, and nobody missed any."""
        return member.missed_heartbeats * _HEARTBEAT_S >= (
            self._hung_timeout_s if member.has_ever_answered else self._start_timeout_s
        )

    def _record_lag(self, member: WorkerHandle, echoed: asyncio.Future[None]) -> None:
        self.echo_delays_s.append(member.lag_s)

    async def _terminate(self) -> None:
        self._is_stopping = True
        alive = self._live_workers
        for member in alive:
            member.kill()
        await asyncio.gather(*(member.disconnected.wait() for member in alive))
        await asyncio.gather(*self._exit_tasks)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fault_quota.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
