"""The host node: answers the VMs of one host from the stream of that host, without a database.

It is an owner of the metadata server, or of workers, whose facts come from the bus instead of a store. Polls are
answered from memory, also while the active node is silent; everything that must be stored goes to the active node.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from forewarn.base.clock import Clock, SystemClock
from forewarn.cluster.bus import Bus, BusMessage, MessageHandler, NoAnswer, NoResponders, Subjects, request_repeatedly
from forewarn.cluster.host_acts import HostActs, HostReports, TermMemory
from forewarn.cluster.host_answers import HostBackend, HostFacts, HostServer
from forewarn.cluster.messages import (
    HEARTBEAT_INTERVAL_S,
    SEEN_INTERVAL_S,
    DenialReason,
    FromActive,
    Heartbeat,
    HostFact,
    HostUpdate,
    JoinAccepted,
    JoinRequest,
    NodeDenied,
    NodeInfo,
    RecordPosition,
    SeenReply,
    SeenReport,
    StatePart,
    StatePartRequest,
    decode_from_active,
    encode_bus_message,
)
from forewarn.cluster.stream_follower import (
    ApplyFacts,
    AskPart,
    FollowerAction,
    InstallState,
    SendJoin,
    StreamFollower,
)
from forewarn.errors import Refused, Rejected
from forewarn.machines.interface import Hypervisor
from forewarn.metadata import CallerDirectory
from forewarn.metadata.observations import BATCH_SIZE, REPORT_INTERVAL_S
from forewarn.metadata.request_counters import RequestTotals
from forewarn.metadata.workers.frontend import FrontendConfig, MetadataFrontend
from forewarn.metadata.workers.messages import BeginServing, ObservationReport
from forewarn.metadata.workers.network_listeners import NetworkListeners

log = logging.getLogger(__name__)


# Which heartbeats a host node subscribes to: those for all nodes, or only its own.
#
# A heartbeat for all arrives at every host at the same time, and changes wait behind such a burst. So the active node
# also sends heartbeats on the stream of each host whose node has joined, spread over the interval, and a node that gets
# those unsubscribes from the others until it is in doubt. It needs those for all to find a new active node.


class HeartbeatSubscription:
    """A host node's subscription to the heartbeats that the active control node sends to all nodes.

    Call `begin` first, `leave` once the node gets heartbeats on the subject of its own host, `resume` when it doubts
    that the active node is still the same, and `close` at the end.
    """

    def __init__(self, bus: Bus, subjects: Subjects, handler: MessageHandler) -> None:
        self._bus, self._subject, self._handler = bus, subjects.heartbeat, handler
        self._unsubscribe: Callable[[], None] | None = None
        self._is_subscribing = False
        self._is_closed = False

    @property
    def is_subscribed(self) -> bool:
        """Whether the node gets the heartbeats for all nodes, or is about to subscribe to them."""
        return self._unsubscribe is not None or self._is_subscribing

    async def begin(self) -> None:
        """Subscribe to the heartbeats for all nodes; does nothing while subscribed, or after `close`."""
        if self.is_subscribed or self._is_closed:
            return
        self._is_subscribing = True
        try:
            self._unsubscribe = await self._bus.subscribe(self._subject, self._handler)
        finally:
            self._is_subscribing = False
        if self._is_closed:
            self.leave()

    async def resume(self) -> None:
        """Subscribe again to the heartbeats for all nodes; does nothing while subscribed, or after `close`."""
        try:
            await self.begin()
        except Refused as error:
            log.warning("%s", error)

    def leave(self) -> None:
        """Unsubscribe from the heartbeats for all nodes until `resume`; does nothing if not subscribed."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def close(self) -> None:
        """Unsubscribe for good: `begin` and `resume` then do nothing. May be called twice."""
        self._is_closed = True
        self.leave()


_TICK_S = 0.05  # while it asks for the state
_FOLLOWING_TICK_S = 0.25  # while it follows the stream
_SILENT_S = 1.0  # without a heartbeat; then the active node counts as silent
_IN_DOUBT_S = 3 * HEARTBEAT_INTERVAL_S  # without a heartbeat; then another node may be active
_REQUEST_S = 2.0  # of one join or part request
_DRAIN_S = 5.0
_LEAVE_S = 1.0
_CLOCK_WARNING_S = 2.0
_FATAL_DENIALS = (DenialReason.OCCUPIED, DenialReason.REPLACED)


class RulesChanged(Exception):
    """The active control node has other rules, or another store, than before: the node must be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNodeConfig:
    """The settings of a host node, besides those of the bus."""

    host: str  # the name in the fleet of the host that it serves
    info: NodeInfo  # which process this node is, for the active control node; `NodeState` has its id and boot
    frontend: FrontendConfig  # only its listeners, helper and workers: the rest comes from the active control node
    subjects: Subjects = field(default_factory=Subjects)  # of the cluster's bus
    stale_s: float = 600.0  # real time without the active control node after which polls get 503


class HostNode:
    """A host node: answers the VMs of one host, and performs the acts that the active control node orders.

    Create it inside a running event loop; `run` serves until `stop` is called. The caller closes `hypervisor`.
    """

    def __init__(
        self,
        bus: Bus,
        config: HostNodeConfig,
        *,
        on_serving: Callable[[], None] = lambda: None,
        hypervisor: Hypervisor,
        terms: TermMemory,
        clock: Clock | None = None,
        metrics_sockets: tuple[socket.socket, ...] = (),
    ) -> None:
        self.facts = HostFacts()
        self.follower = StreamFollower()
        self.frontend: MetadataFrontend | None = None
        self.is_serving = False
        self.config = config
        self._bus, self._config, self._subjects = bus, config, config.subjects
        self._own_subject = config.subjects.host(config.host)
        self._heartbeats = HeartbeatSubscription(bus, config.subjects, self._on_message)
        self._metrics_sockets = metrics_sockets
        self._on_serving = on_serving
        self.acts = HostActs(hypervisor, terms, host=config.host, show=self.show)
        self._reports = HostReports(hypervisor, config.host)
        self._loop = asyncio.get_running_loop()
        self._clock = clock or SystemClock()
        self._server: HostServer | None = None
        self._begin: BeginServing | None = None
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._report_number = 0
        self._unanswered: SeenReport | None = None  # what it says is in no other report
        self._warned = ""
        self._is_silent = False
        self._clock_ahead_s = 0.0
        listeners, helper = config.frontend.listeners, config.frontend.helper_socket
        self._network_listeners = NetworkListeners(listeners, helper_socket=helper)

    async def run(self) -> None:
        """Bind the sockets, join the active control node, serve VMs, and return after `stop`. Call it once.

        Waits as long as the bus or the active node does not answer, or the fleet does not have this host. RulesChanged
        if the node must be started again.
        """
        self._network_listeners.bind()
        bus, unsubscribe = self._bus, [self._heartbeats.close]
        try:
            await self._heartbeats.begin()
            unsubscribe.append(await bus.subscribe(self._own_subject, self._on_message))
            unsubscribe.append(await bus.subscribe(self._subjects.act(self._config.host), self.acts.on_order))
            unsubscribe.append(
                bus.subscribe_doubts(lambda reason: self._do(self.follower.on_doubt(reason, self._loop.time())))
            )
            self._do(self.follower.start(self._loop.time()))
            self._spawn(self._tick_forever())
            self._spawn(self._report_forever())
            self._spawn(self._reports.follow_changes())
            await self._finished
        finally:
            for each in unsubscribe:
                each()
            await self._shut_down()

    def stop(self) -> None:
        """Let `run` return in order: it answers the requests in progress, and sends the last reports."""
        self._finish(None)

    def show(self, facts: Sequence[HostFact], record: RecordPosition) -> None:
        """Show VMs the facts that came with an order or with the reply to a VM's call.

        A fact that is older than what is shown is ignored. `record` is the commit that has them.
        """
        if facts and not self.follower.is_joining:  # otherwise the sender may be another process than the joined one
            self.follower.note_record(record)
        self._show(self.facts.apply(facts))

    def silent_s(self) -> float:
        return self.follower.silent_s(self._loop.time())

    def reload_workers(self, timeout_s: float) -> None:
        """Start to replace the worker processes, one after the other, in the background; returns at once."""
        if self.frontend is not None and self.is_serving:
            self._spawn(self.frontend.reload_workers(timeout_s))

    def describe_listeners(self) -> list[dict[str, Any]]:
        """Return one dictionary per configured network listener, in the order of the settings."""
        return self._network_listeners.describe()

    def request_totals(self) -> RequestTotals:
        return self.frontend.request_totals() if self.frontend is not None and self.is_serving else RequestTotals()

    @property
    def joins(self) -> dict[str, int]:
        return self.follower.joins

    @property
    def vm_count(self) -> int:
        return len(self.facts.vm_keys)

    @property
    def orders_refused(self) -> int:
        return self.acts.refused_for_term

    def _on_message(self, message: BusMessage) -> None:
        received = _decoded(message.payload)
        now = self._loop.time()
        if isinstance(received, Heartbeat):
            self._check_clock(received.now)
            self._do(self.follower.on_heartbeat(received, now))
            is_heard = self.follower.silent_s(now) <= 0  # it is not of an older term
            if message.subject == self._own_subject and is_heard and not self.follower.is_joining:
                # Those on its own subject are spread over the interval; see `HeartbeatSubscription`.
                self._heartbeats.leave()
        elif isinstance(received, HostUpdate):
            self._do(self.follower.on_update(received, now))

    def _do(self, actions: Iterable[FollowerAction]) -> None:
        for action in actions:
            match action:
                case SendJoin(reason=reason):
                    if reason != "start":
                        log.info("asking for the state of this host again: %s", reason)
                    self._spawn(self._join())
                case AskPart(join_id=join_id, index=index):
                    self._spawn(self._ask_part(join_id, index))
                case InstallState(begin=begin, facts=facts):
                    self._install(begin, facts)
                case ApplyFacts(facts=facts):
                    self._show(self.facts.apply(facts))

    async def _join(self) -> None:
        config = self._config
        shown = self.follower.record
        reply = await self._request(JoinRequest(config.info, config.host, shown.number, shown.id, shown.hash))
        if isinstance(reply, JoinAccepted):
            self._do(self.follower.on_joined(reply, self._loop.time()))
        elif isinstance(reply, NodeDenied):
            self._on_denied(reply)

    async def _ask_part(self, join_id: str, index: int) -> None:
        reply = await self._request(StatePartRequest(join_id, index))
        if isinstance(reply, StatePart):
            self._do(self.follower.on_part(reply, self._loop.time()))
        elif isinstance(reply, NodeDenied):
            self._do(self.follower.on_state_gone(join_id, self._loop.time()))

    async def _request(self, message: JoinRequest | StatePartRequest) -> FromActive | None:
        """Send one request to the active node; None without an answer: the follower repeats it."""
        subject = self._subjects.request(self._config.host)
        try:
            return _decoded(await self._bus.request(subject, encode_bus_message(message), timeout_s=_REQUEST_S))
        except NoResponders:
            if isinstance(message, JoinRequest):
                # Nobody listens yet: ask again soon, without the growing pause.
                self.follower.on_join_unanswered()
                self._loop.call_later(_TICK_S, self._tick)
        except NoAnswer:
            pass
        return None

    def _on_denied(self, denied: NodeDenied) -> None:
        self.follower.on_join_denied()
        is_fatal = denied.reason in _FATAL_DENIALS
        # A node that serves already goes on with what it shows.
        is_fatal |= denied.reason is DenialReason.VERSION and self.follower.position is None
        if is_fatal:
            self._finish(Refused(denied.text))
        elif denied.reason is DenialReason.NOT_JOINED:
            self._do(self.follower.on_doubt("not joined", self._loop.time()))
        elif denied.text != self._warned:
            self._warned = denied.text
            log.warning("%s", denied.text)

    def _install(self, begin: BeginServing, facts: Sequence[HostFact]) -> None:
        # Listeners and workers were opened by the old rules: start again, with new ones.
        if self._begin is not None and begin != self._begin:
            self._finish(RulesChanged())
            return
        changes = self.facts.install(facts)
        if self._begin is None:
            self._begin = begin
            self._spawn(self._begin_to_serve(begin))
        else:
            self._show(changes)

    def _show(self, changes: Sequence[HostFact]) -> None:
        if self._server is not None and changes:
            self._server.show(changes)

    async def _begin_to_serve(self, begin: BeginServing) -> None:
        try:
            config = replace(self._config.frontend, serving=begin.settings)
            frontend = self.frontend = MetadataFrontend(
                config, callers=CallerDirectory(), clock=self._clock, network_listeners=self._network_listeners
            )
            backend = HostBackend(
                self._bus,
                self._subjects,
                self._config.host,
                self._config.info.id,
                clock=self._clock,
                show=self.show,
                on_denied=self._on_denied,
            )
            await frontend.prepare(backend, store_tag=begin.store_tag, metrics_sockets=self._metrics_sockets)
            self._server = HostServer(frontend, self.facts, config.listeners)
            self._server.show_all()
            await frontend.serve()
        except Exception as error:
            self._finish(error)
            return
        self.is_serving = True
        self._on_serving()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S if self.follower.is_joining else _FOLLOWING_TICK_S)
            self._tick()
            if self._bus.problem and self.follower.position is None:
                self._finish(Refused(self._bus.problem))
            if not self._heartbeats.is_subscribed and (self.follower.is_joining or self.silent_s() > _IN_DOUBT_S):
                self._spawn(self._heartbeats.resume())
            self._check_silence()

    def _tick(self) -> None:
        if not self._finished.done():
            self._do(self.follower.on_tick(self._loop.time()))

    def _check_silence(self) -> None:
        if not self.is_serving or self._server is None:
            return
        silent_s = self.silent_s()
        if (silent_s > _SILENT_S) != self._is_silent:
            self._is_silent = not self._is_silent
            if self._is_silent:
                log.warning("the service is silent: polls are answered from memory, and approvals wait for it")
            else:
                log.warning("the service answers again")
        self._server.set_stale(silent_s > self._config.stale_s)

    def _check_clock(self, their_time: float) -> None:
        was_far = abs(self._clock_ahead_s) > _CLOCK_WARNING_S
        self._clock_ahead_s = self._clock.now() - their_time if their_time else 0.0
        if abs(self._clock_ahead_s) > _CLOCK_WARNING_S and not was_far:
            log.warning("the clock of this host is %+.1f s off the service's: set it with NTP", self._clock_ahead_s)

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(SEEN_INTERVAL_S)
            while self.is_serving and self.follower.position is not None:
                report = self._next_report()
                # Not dropped: what it says about polls and deliveries is nowhere else.
                while not await self._send_report(report, within_s=SEEN_INTERVAL_S):
                    await asyncio.sleep(_TICK_S)  # the same report again, with the same number
                if len(report.report.polls) < BATCH_SIZE:
                    break

    def _next_report(self, *, is_leaving: bool = False) -> SeenReport:
        assert self.frontend is not None
        self._report_number += 1
        polls, deliveries = self.frontend.observations.take_increments(0.0 if is_leaving else REPORT_INTERVAL_S)
        hits = self.frontend.faults.take_hits()
        return SeenReport(
            self._config.info.id,
            self._report_number,
            ObservationReport(polls, deliveries, hits, counted=self.frontend.request_totals()),
            self.follower.position,
            self.vm_count,
            is_leaving,
            self._config.frontend.workers,
            self._clock_ahead_s,
            self._reports.capacity(),
            self._reports.changes,
        )

    async def _send_report(self, report: SeenReport, *, within_s: float) -> bool:
        self._unanswered = report
        subject = self._subjects.report(self._config.host)
        try:
            answer = _decoded(
                await request_repeatedly(self._bus, subject, encode_bus_message(report), within_s=within_s)
            )
        except NoAnswer:
            return False
        if isinstance(answer, SeenReply):
            self._unanswered = None
            self._do(self.follower.on_position(answer.position, self._loop.time()))
            return True
        if isinstance(answer, NodeDenied):
            self._on_denied(answer)
            await asyncio.sleep(_TICK_S)
        return False

    async def _shut_down(self) -> None:
        self.is_serving = False
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.acts.close()
        if self.frontend is None or self._server is None:
            self._network_listeners.close()
            return
        # VMs first: their last polls belong to the last report.
        await self.frontend.drain(_DRAIN_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                if self._unanswered is not None:  # then there is time left to say that the node leaves
                    await self._send_report(self._unanswered, within_s=_LEAVE_S / 2)
                await self._send_report(self._next_report(is_leaving=True), within_s=_LEAVE_S)

    def _finish(self, error: Exception | None) -> None:
        if self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _decoded(payload: bytes) -> FromActive | None:
    try:
        return decode_from_active(payload)
    except Rejected as error:
        log.warning("%s", error)
        return None
