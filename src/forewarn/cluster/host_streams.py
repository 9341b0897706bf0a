"""The active node's side of the bus: a numbered stream per host, joins, calls and reports of nodes.

A stream begins when a node joins; until then nothing is sent to its host. The state that a joining node gets is read
from the store, which may be ahead of the stream: nodes ignore what is older than what they show.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol, cast
from urllib.parse import unquote

import msgspec

from forewarn.cluster.bus import Bus, BusMessage, NoAnswer, Subjects
from forewarn.cluster.messages import (
    HEARTBEAT_INTERVAL_S,
    DenialReason,
    Heartbeat,
    HostScope,
    HostUpdate,
    JoinAccepted,
    JoinRequest,
    NodeDenied,
    RecordPosition,
    SeenReply,
    SeenReport,
    StatePart,
    StatePartRequest,
    StreamPosition,
    StreamSource,
    VmCall,
    VmCallReply,
    decode_from_active,
    decode_to_active,
    encode_bus_message,
)
from forewarn.cluster.node_registry import NodeRegistry
from forewarn.core.event import EventState
from forewarn.core.faults import Fault, FaultCategory
from forewarn.core.scope import Scope
from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.metadata import MetadataBackend, PublishedScope
from forewarn.metadata.workers.messages import (
    BeginServing,
    FaultsUpdate,
    ObservationReport,
    OwnerReply,
    WorkerRequest,
    failure_message,
    perform_request,
    reply_message,
    scope_message,
    vm_of_request,
)

log = logging.getLogger(__name__)


# What one host must know of a scope: its own VMs, and those that an act is bringing to it. Pure.


def host_id(name: str) -> str:
    """Return the key of a host: its name in lower case, as `Host.id`."""
    return name.casefold()


def vms_by_host(scope: Scope) -> dict[str, tuple[str, ...]]:
    """Return, by host key, the keys of the scope's VMs on that host, or brought to it by a started act."""
    # So the destination of a move knows the VM before it arrives, and meanwhile the VM is listed under both hosts.
    found: dict[str, dict[str, None]] = {}
    for vm in scope.present_vms:
        if vm.host:
            found.setdefault(host_id(vm.host), {})[vm.key] = None
    for event in scope.live_events(EventState.STARTED):
        for act in event.unfinished_acts:
            if act.to_host:
                found.setdefault(host_id(act.to_host), {})[act.vm] = None
    return {host: tuple(vms) for host, vms in found.items()}


def vm_addresses(scope: Scope) -> dict[str, str]:
    """Return, by VM key, the source addresses of the scope's present VMs, without VMs that have none."""
    return {vm.key: vm.address for vm in scope.present_vms if vm.address}


def host_scope(
    scope: Scope, published: PublishedScope, vms: Collection[str], addresses: Mapping[str, str]
) -> HostScope:
    """Return what one host must know of this scope: the fact with those of its VMs that are on this host."""
    update = scope_message(published, only=vms)
    return HostScope(update, scope.version, {vm: addresses[vm] for vm in vms if vm in addresses})


MAX_PART_BYTES = 256 * 1024  # of facts in one message; a single fact may be larger
_HEARTBEAT_SLICES = 25  # parts of the interval, in each of which other hosts get their heartbeat
_LEFT_S = 60.0  # how long a host may ask about a VM that has left it
_Placements = frozenset[tuple[str, str]]  # pairs of host key and VM key


class ActiveTerm(Protocol):
    """The lease that makes a control node the active one, as far as host nodes must know it."""

    @property
    def number(self) -> int:
        """The term: the number of the lease, greater for each later holder. It stays when the lease is lost."""

    @property
    def is_held(self) -> bool:
        """Whether this control node certainly holds the lease now.

        While it does not, no order, complete state, refusal or heartbeat may be sent; committed changes may.
        """

    @property
    def record(self) -> RecordPosition:
        """The last commit to the record that this node knows."""

    async def has_group(self, by: str, shown: RecordPosition) -> bool:
        """Return whether the record has the commit that `by`, a host node, has shown to VMs.

        If it has lost the commit, this node begins a new epoch soon, with another session: until then the host node
        must get no facts. Raises nothing.
        """


class OnlyService:
    """The `ActiveTerm` of a service without a lease, alone on its bus: term 1, always held, no record."""

    number = 1
    is_held = True
    record = RecordPosition()

    async def has_group(self, by: str, shown: RecordPosition) -> bool:
        return True


class FleetFacts(Protocol):
    """What host streams read of the committed fleet, hosts by key (lower case). See `CommittedFleet`."""

    def host_name(self, host_key: str) -> str | None:
        """Return the name of the host with this key (its name in lower case); None for an unknown host."""

    def scopes_on(self, host_key: str) -> Iterable[Scope]:
        """Return the scopes with a VM on this host, or one that an unfinished act brings to it, each once."""

    def scope_of(self, vm_key: str) -> Scope | None:
        """Return the scope of the VM with this key; None if the VM is unknown or was removed."""

    def published(self, scope: Scope) -> PublishedScope:
        """Return what the VMs of this scope see now: its document, or what a running replay answers."""


class _Stream:
    """The stream of one host. `pending` facts get the next number with the next flush."""

    def __init__(self) -> None:
        self.number = 0
        self.pending: list[bytes] = []
        self.facts: dict[str, bytes] | None = None  # by scope id, as published last; None: not known yet
        self.join_id = ""
        self.parts: list[list[bytes]] = []  # of the latest state that was asked for


class HostStreams:
    """Sends each host node the changes of its host, as a numbered stream, and answers the nodes' requests.

    Call `publish_scope` for each scope and `set_faults`, then `start`; call the first two again at every change;
    `close` ends it.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        *,
        fleet: FleetFacts,
        backend: MetadataBackend,
        begin: BeginServing,
        merge: Callable[[ObservationReport], None],
        session: str,
        name: str = "",
        term: ActiveTerm | None = None,
    ) -> None:
        self._bus, self._subjects, self._fleet, self._backend = bus, subjects, fleet, backend
        self._begin, self._merge, self._session, self._name = begin, merge, session, name
        self._term = term or OnlyService()
        self._loop = asyncio.get_running_loop()
        self.registry = NodeRegistry()
        self._streams: dict[str, _Stream] = {}
        self._placements: dict[str, _Placements] = {}  # by scope id
        self._left: dict[tuple[str, str], float] = {}  # (host key, VM key) → when the VM left, by the loop's clock
        self._faults = encode_bus_message(FaultsUpdate(()))
        self._calls: dict[tuple[str, bytes], list[BusMessage]] = {}  # in progress, by host and content
        self._join_ids = count(1)
        self._hosts_to_flush: dict[str, None] = {}  # with pending facts, in the order in which they got them
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: list[Callable[[], None]] = []
        self._other_session = ""  # of another process with this term, once it was heard

    @property
    def source(self) -> StreamSource:
        """The present term and the session of this process, which mark all its messages to host nodes."""
        return StreamSource(self._term.number, self._session)

    async def start(self) -> None:
        """Answer host nodes, and send heartbeats in the background, until `close`."""
        for subject, handler in (
            (self._subjects.request("*"), self._on_ask),
            (self._subjects.report("*"), self._on_seen),
            (self._subjects.heartbeat, self._on_heartbeat),
        ):
            self._unsubscribe.append(await self._bus.subscribe(subject, handler))
        self._publish_heartbeat([self._subjects.heartbeat])
        with suppress(NoAnswer):  # while no server answers, operators are served all the same
            await self._bus.flush()
        if self._bus.problem:
            raise Refused(self._bus.problem)
        self._spawn(self._send_heartbeats())

    async def close(self) -> None:
        """Stop answering host nodes and sending heartbeats; may be called twice. The bus stays open."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def publish_scope(self, scope: Scope, published: PublishedScope) -> None:
        """Send the state of this scope to the hosts of its VMs, and to those that its VMs have just left."""
        # Each host gets only its own VMs. The messages are sent in the next turn of the event loop. Lost ones are not
        # repeated: the node notices the gap, and joins again.
        by_host = vms_by_host(scope)
        placements = frozenset((host, vm) for host, vms in by_host.items() for vm in vms)
        before = self._placements.get(scope.id, frozenset())
        # Most changes of a scope move no VM.
        if placements != before:
            self._placements[scope.id] = placements
            now = self._loop.time()
            self._left.update(dict.fromkeys(before - placements, now))
        addresses = vm_addresses(scope)
        # The host that a VM has left gets the scope too: it must forget the VM.
        for host in {host for host, _ in placements | before}:
            stream = self._streams.get(host)
            if stream is not None:
                vms = by_host.get(host, ())
                fact = encode_bus_message(host_scope(scope, published, vms, addresses))
                stream.pending.append(fact)
                if stream.facts is not None:
                    stream.facts.pop(scope.id, None)
                    stream.facts |= {scope.id: fact} if vms else {}
                self._schedule_flush(host)

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the active transport faults on all hosts; faults of other categories are ignored."""
        transport = tuple(fault for fault in faults if fault.category is FaultCategory.TRANSPORT)
        self._faults = encode_bus_message(FaultsUpdate(transport))
        for host, stream in self._streams.items():
            stream.pending.append(self._faults)
            self._schedule_flush(host)

    async def wait_until_published(self) -> None:
        """Wait until the bus has taken everything that was published, for at most a second."""
        self._flush()
        with suppress(NoAnswer, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._bus.flush()

    def host_scopes(self, host_key: str, vm_key: str) -> tuple[HostScope, ...]:
        """Return what this host must know now of the scope of this VM: one encoded fact; () for an unknown VM."""
        scope = self._fleet.scope_of(vm_key)
        # A node that has not joined this process may have shown what the record has lost.
        if scope is None or host_key not in self._streams:
            return ()
        vms = vms_by_host(scope).get(host_key, ())
        return _raw([self._encoded_fact(scope, vms)])

    def _encoded_fact(self, scope: Scope, vms: tuple[str, ...]) -> bytes:
        return encode_bus_message(host_scope(scope, self._fleet.published(scope), vms, vm_addresses(scope)))

    def _schedule_flush(self, host: str) -> None:
        if not self._hosts_to_flush:
            # One message for all changes of this turn of the loop.
            self._loop.call_soon(self._flush)
        self._hosts_to_flush[host] = None

    def _flush(self) -> None:
        hosts, self._hosts_to_flush = self._hosts_to_flush, {}
        for host in hosts:
            stream = self._streams[host]
            if stream.pending:
                self._flush_stream(host, stream)

    def _flush_stream(self, host: str, stream: _Stream) -> None:
        pending, stream.pending = stream.pending, []
        for facts in _in_parts(pending):
            # Numbered here and nowhere else, so that a gap always means a lost message.
            stream.number += 1
            update = HostUpdate(StreamPosition(self.source, stream.number), _raw(facts), self._term.record)
            self._bus.publish(self._subjects.host(host), encode_bus_message(update))

    async def _send_heartbeats(self) -> None:
        """Send a heartbeat for all nodes, and one to each that has joined, spread over the interval."""
        while True:
            began_at = self._loop.time()
            self._publish_heartbeat([self._subjects.heartbeat])
            self._left = {pair: at for pair, at in self._left.items() if began_at - at < _LEFT_S}
            hosts = list(self._streams)
            slices = max(1, min(_HEARTBEAT_SLICES, len(hosts)))
            for number in range(slices):
                self._publish_heartbeat([self._subjects.host(host) for host in hosts[number::slices]])
                ends_at = began_at + HEARTBEAT_INTERVAL_S * (number + 1) / slices
                await asyncio.sleep(max(0.0, ends_at - self._loop.time()))

    def _publish_heartbeat(self, subjects: Iterable[str]) -> None:
        if self._term.is_held:
            payload = encode_bus_message(self._heartbeat())
            for subject in subjects:
                self._bus.publish(subject, payload)

    def _heartbeat(self) -> Heartbeat:
        record = self._term.record
        return Heartbeat(self.source, self._name, self._backend.now(), record.number, record.id, record.hash)

    def _on_heartbeat(self, message: BusMessage) -> None:
        """Warn about another process that takes itself for the active one of this term."""
        try:
            heard = decode_from_active(message.payload)
        except Rejected:
            return
        if not isinstance(heard, Heartbeat) or heard.source.session == self._session:
            return
        if heard.source.term == self._term.number and heard.source.session != self._other_session:
            self._other_session = heard.source.session
            log.error(
                "another service%s uses the same bus with the prefix %r: stop one of them, or give it another bus",
                f" ({heard.name})" if heard.name else "",
                self._subjects.prefix,
            )

    def _on_ask(self, message: BusMessage) -> None:
        request = _decoded(message)
        host = _host_key(message.subject)
        # A call may be tried without a held lease: the store decides, and only what it has done is answered.
        if not self._term.is_held and not isinstance(request, VmCall):
            return  # another control node may be active, and know newer facts: the node asks again
        if isinstance(request, JoinRequest):
            self._spawn(self._on_join(host, request, message))
        elif isinstance(request, StatePartRequest):
            message.respond(encode_bus_message(self._answer_part(host, request)))
        elif isinstance(request, VmCall):
            self._on_call(host, request, message)

    async def _on_join(self, host: str, request: JoinRequest, message: BusMessage) -> None:
        """Answer a node once it is proved that the record has all that the node has shown to VMs."""
        shown, by = RecordPosition(request.record_id, request.record_number, request.record_hash), request.host
        is_same_record = shown.number > 0 and shown.id == self._term.record.id
        # Only of the same record: nothing can be said here about the groups of another one.
        if is_same_record and not await self._term.has_group(f"the node of host {by}", shown):
            return  # it asks again, and gets the facts of the new epoch
        if self._term.is_held:
            message.respond(encode_bus_message(self._answer_join(host, request)))

    def _answer_join(self, host: str, request: JoinRequest) -> JoinAccepted | NodeDenied:
        name = self._fleet.host_name(host)
        if name is None or host_id(request.host) != host:
            return NodeDenied(
                DenialReason.UNKNOWN_HOST,
                f"host {request.host!r} is not in the fleet: add it to the fleet, or give the node another --host",
            )
        denied = self.registry.admit(host, name, request, self._loop.time())
        if denied is not None:
            return denied
        stream = self._streams.setdefault(host, _Stream())
        if stream.pending:
            self._flush_stream(host, stream)
        # Read once from the store; from then on `publish_scope` keeps it.
        if stream.facts is None:
            stream.facts = dict(self._state_of(host))
        stream.parts = list(_in_parts([self._faults, *stream.facts.values()]))
        stream.join_id = f"{self._session}-{next(self._join_ids)}"
        position = StreamPosition(self.source, stream.number)
        facts = _raw(stream.parts[0])
        return JoinAccepted(position, self._begin, stream.join_id, len(stream.parts), facts, self._term.record)

    def _state_of(self, host: str) -> Iterator[tuple[str, bytes]]:
        for scope in self._fleet.scopes_on(host):
            vms = vms_by_host(scope).get(host, ())
            yield scope.id, self._encoded_fact(scope, vms)

    def _answer_part(self, host: str, request: StatePartRequest) -> StatePart | NodeDenied:
        stream = self._streams.get(host)
        if stream is None or stream.join_id != request.join_id or not 0 <= request.index < len(stream.parts):
            return NodeDenied(DenialReason.PART_GONE, "this state is no longer kept: join again")
        return StatePart(request.join_id, request.index, _raw(stream.parts[request.index]))

    def _on_call(self, host: str, call: VmCall, message: BusMessage) -> None:
        """Carry out a call; one that is repeated while it is in progress gets the same answer."""
        if self.registry.find(host) is not None:
            denied = self.registry.check(host, call.node_id, self._loop.time())
            if denied is not None:
                if self._term.is_held:
                    message.respond(encode_bus_message(denied))
                return
        key = (host, encode_bus_message(call))
        waiting = self._calls.setdefault(key, [])
        waiting.append(message)
        # The same call again, while it is being carried out: one effect, and the same answer for both.
        if len(waiting) == 1:
            self._spawn(self._answer_call(key, call.request))

    async def _answer_call(self, key: tuple[str, bytes], request: WorkerRequest) -> None:
        try:
            payload = await self._call_reply(key[0], request)
        finally:
            waiting = self._calls.pop(key)
        for message in waiting if payload else ():
            message.respond(payload)

    async def _call_reply(self, host: str, request: WorkerRequest) -> bytes:
        """Carry out a request of a VM and return the reply; b"" if there must be none."""
        vm = vm_of_request(request)
        if not self._may_ask_about(host, vm):
            if not self._term.is_held:
                return b""  # the active node may know better where the VM is
            refused = Rejected(f"VM {vm!r} is not on host {host!r}: its node may not act for it")
            return encode_bus_message(VmCallReply(failure_message(request.id, refused)))
        reply = await self._carry_out(request)
        if reply is None:
            return b""
        return encode_bus_message(VmCallReply(reply, self.host_scopes(host, vm), self._term.record))

    async def _carry_out(self, request: WorkerRequest) -> OwnerReply | None:
        """Return the reply; None if there must be none: only the holder of the lease may refuse something."""
        try:
            result = await perform_request(self._backend, request)
        except ForewarnError as error:
            return failure_message(request.id, error) if self._term.is_held else None
        except Exception:
            log.exception("a request of a host node failed with an internal error")
            failed = Rejected("the service failed with an internal error")
            return failure_message(request.id, failed) if self._term.is_held else None
        # A result states what is true now, which only the holder knows. "Done" is in the record.
        return reply_message(request.id, result) if result is None or self._term.is_held else None

    def _may_ask_about(self, host: str, vm: str) -> bool:
        """Whether the VM is on this host, on its way to it, or left it less than a minute ago."""
        scope = self._fleet.scope_of(vm)
        if scope is not None and vm in vms_by_host(scope).get(host, ()):
            return True
        left_at = self._left.get((host, vm))
        # Its last polls and approvals may still be on their way.
        return left_at is not None and self._loop.time() - left_at < _LEFT_S

    def _on_seen(self, message: BusMessage) -> None:
        report, host = _decoded(message), _host_key(message.subject)
        if not isinstance(report, SeenReport) or not self._term.is_held:
            return
        denied = self.registry.check(host, report.node_id, self._loop.time())
        if denied is not None:
            message.respond(encode_bus_message(denied))
            return
        # A repeated report counts once.
        if self.registry.record_report(host, report):
            self._merge(report.report)
        stream = self._streams[host]
        message.respond(encode_bus_message(SeenReply(StreamPosition(self.source, stream.number))))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _decoded(message: BusMessage) -> Any:
    try:
        return decode_to_active(message.payload)
    except Rejected as error:
        log.warning("%s, on %s", error, message.subject)
        return None


def _host_key(subject: str) -> str:
    return unquote(subject.rpartition(".")[2])


def _in_parts(facts: Iterable[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for fact in facts:
        if part and size + len(fact) > MAX_PART_BYTES:
            yield part
            part, size = [], 0
        part.append(fact)
        size += len(fact)
    yield part


def _raw(facts: Iterable[bytes]) -> tuple[Any, ...]:
    return tuple(cast(Any, msgspec.Raw(fact)) for fact in facts)
