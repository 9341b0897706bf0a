"""Messages between the active control node and host nodes, as values and as bytes. No I/O.

Facts for VMs are those of `workers.messages`. A host's facts are numbered updates of its stream; a node that misses a
number asks for the complete state again. New fields are added at the end, with a default, so that older releases can
read newer messages; `PROTOCOL` changes only if they cannot.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias, cast

import msgspec

from forewarn.core.event import Act
from forewarn.core.observation import HostObservation
from forewarn.errors import Rejected
from forewarn.hypervisor.moves import MoveHandover, MoveStep, StepReport
from forewarn.workers.messages import (
    ApproveRequest,
    BeginServing,
    EnableRequest,
    FaultsUpdate,
    ObservationReport,
    RequestDone,
    RequestFailed,
    ScopeUpdate,
    TokenDenied,
    TokenGranted,
    WorkerTokenRequest,
)

PROTOCOL = 1  # of these messages: nodes with another one are refused
HEARTBEAT_INTERVAL_S = 0.25
SEEN_INTERVAL_S = 1.0


class _BusMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Encoded as a list: the name of its class, then its fields in order."""


class StreamSource(msgspec.Struct, frozen=True, array_like=True):
    """The process that numbers a stream: its term, and what tells processes of one term apart."""

    term: int  # of the lease; greater for each later holder
    session: str  # of the process, a random text


class StreamPosition(msgspec.Struct, frozen=True, array_like=True):
    """A position in the stream of a host: everything up to this number."""

    source: StreamSource  # that numbers the stream; numbers of different sources cannot be compared
    number: int  # of the last update; 0: none


class Heartbeat(_BusMessage, frozen=True):
    """From the active node, every HEARTBEAT_INTERVAL_S: it holds the lease.

    It goes to all nodes, and, at another time, to each node that has joined, on the stream of its host.
    """

    source: StreamSource  # its term, and the session of its process
    name: str = ""  # of the control node, for people
    now: float = 0.0  # its time, in POSIX seconds
    record_number: int = 0  # of the last commit to the record; 0: the store has none
    record_id: str = ""  # of the record; another one after its epochs were renewed


class HostScope(_BusMessage, frozen=True):
    """What the VMs of one scope on one host see from now on. Without VMs, the scope has left the host.

    Of two of one scope, the one with the greater (epoch, version) is the newer.
    """

    update: ScopeUpdate  # with the VMs of this host, and those on their way to it
    version: int  # of the stored scope
    addresses: dict[str, str] = {}  # VM key → its source address; only VMs with one

    @property
    def order(self) -> tuple[int, int]:
        """The pair (epoch, version) of the scope: greater for a newer state of the same scope."""
        return self.update.epoch, self.version


HostFact: TypeAlias = HostScope | FaultsUpdate


class HostUpdate(_BusMessage, frozen=True):
    """From the active node to the node of one host: the facts that have changed."""

    position: StreamPosition  # its number is one more than that of the update before
    facts: tuple[HostFact, ...]  # in the order of the changes; a later one of the same scope replaces an earlier one


class NodeInfo(msgspec.Struct, frozen=True, array_like=True):
    """Which process a host node is, and what it can do."""

    id: str  # of its data directory, which one process uses at a time
    boot: int  # counts the processes with this id
    version: str  # of forewarn
    protocol: int = PROTOCOL  # version of these messages
    machine: str = ""  # its host name, for people
    pid: int = 0  # its process id
    hypervisor: str = ""  # what performs acts there


class JoinRequest(_BusMessage, frozen=True):
    """From a host node: send the complete state of this host."""

    node: NodeInfo  # which node asks
    host: str  # the name in the fleet
    record_number: int = 0  # the highest that this node knows
    record_id: str = ""  # of the record with that number


class JoinAccepted(_BusMessage, frozen=True):
    """The reply to `JoinRequest`: how to serve, and the first part of the state as of one position."""

    position: StreamPosition  # as of which the state is
    begin: BeginServing  # the settings for answering VMs
    join_id: str  # of this state, for requests of its other parts
    parts: int  # 1 or more; the others are asked for with `StatePartRequest`
    facts: tuple[HostFact, ...]  # of the first part


class StatePartRequest(_BusMessage, frozen=True):
    """From a host node: send this part of the state."""

    join_id: str  # as in `JoinAccepted`
    index: int  # from 1


class StatePart(_BusMessage, frozen=True):
    """The reply to `StatePartRequest`."""

    join_id: str  # as in the request
    index: int  # as in the request
    facts: tuple[HostFact, ...]  # those of this part


class DenialReason(StrEnum):
    """Why the active node does not work with a host node."""

    VERSION = "version"  # its messages have another protocol
    OCCUPIED = "occupied"  # another node of this host is alive
    REPLACED = "replaced"  # another node of this host has joined since
    UNKNOWN_HOST = "unknown-host"  # the fleet has no such host
    NOT_JOINED = "not-joined"  # it must join first: the active node is a new process
    PART_GONE = "part-gone"  # that state is no longer kept: join again


class NodeDenied(_BusMessage, frozen=True):
    """The reply to a request of a host node that the active node does not work with."""

    reason: DenialReason  # for programs
    text: str  # one sentence for people: what is wrong, and what to do


class VmCall(_BusMessage, frozen=True):
    """From a host node: what a VM asked for and memory cannot answer. It may be repeated."""

    node_id: str  # `NodeInfo.id`
    request: EnableRequest | ApproveRequest | WorkerTokenRequest  # with an id of the node's choice


class VmCallReply(_BusMessage, frozen=True):
    """The reply to `VmCall`, with the scope of the VM as it is then, so that the VM sees what it caused."""

    reply: RequestDone | TokenGranted | TokenDenied | RequestFailed  # with the id of the request
    scopes: tuple[HostScope, ...] = ()  # one; empty for a VM that is unknown, or that the node may not act for


class HostCapacity(msgspec.Struct, frozen=True, array_like=True):
    """What a host can still take, and what the VMs need that it knows."""

    free_mib: int | None = None  # memory for more VMs, in MiB; None: not known
    vm_mib: dict[str, int] = {}  # memory that a VM needs, in MiB, by the VM's name
    is_silent: bool = False  # the platform there did not answer when it was last looked at
    cpus: tuple[str, ...] = ()  # different CPUs that running VMs need, in the words of their driver; at most 32
    vm_cpus: dict[str, int] = {}  # VM's name → index in `cpus` of the one that it needs; without VMs with none there
    compares_cpus: bool = False  # whether the node compares CPUs, and knows its own: else it need not be asked


class SeenReport(_BusMessage, frozen=True):
    """From a host node, every SEEN_INTERVAL_S: what it observed. It is repeated until it is answered."""

    node_id: str  # `NodeInfo.id`
    number: int  # of this report; the same if it is repeated
    report: ObservationReport  # polls, deliveries and fault hits since the report before, and counts of requests
    position: StreamPosition | None = None  # what it shows; None: it has no complete state
    vms: int = 0  # that it serves
    is_leaving: bool = False  # the node stops; this is its last report
    workers: int = 0  # that answer VMs there; 0: the node itself
    clock_ahead_s: float = 0.0  # how far its clock is ahead of the active node's
    capacity: HostCapacity | None = None  # None: as in an earlier report, or not known
    changes: int = -1  # counts reported changes of VMs there; -1: the node cannot list the VMs of its host


class SeenReply(_BusMessage, frozen=True):
    """The reply to `SeenReport`: the position of the host's stream."""

    position: StreamPosition  # of the last update that was sent to the host


class ActOrder(_BusMessage, frozen=True):
    """From the active node, a request to the node of a host: perform an act, or a step of a move."""

    term: int  # orders of an older term than the node knows are refused
    store_tag: str  # of the store, whose terms these are
    act: Act  # the whole act, also for a step of it
    now: float  # lab time
    step: MoveStep | None = None  # None: the whole act
    given: MoveHandover = MoveHandover()  # what the hosts of the move have handed over so far
    scopes: tuple[HostScope, ...] = ()  # of the VM, to be shown before the order is carried out


class ListVms(_BusMessage, frozen=True):
    """From the active node, a request to the node of a host: list its VMs. It changes nothing."""


class VmListing(_BusMessage, frozen=True):
    """The reply to `ListVms`."""

    observation: HostObservation | None = None  # None: the node cannot list them now
    text: str = ""  # for people: why not


class CompareCpus(_BusMessage, frozen=True):
    """From the active node, a request to the node of a host: can VMs with these CPUs be migrated there?"""

    cpus: tuple[str, ...]  # as in `HostCapacity.cpus` of other hosts


class CpuComparison(_BusMessage, frozen=True):
    """The reply to `CompareCpus`."""

    fits: tuple[bool | None, ...]  # in the order of the request; None: not known now


class OrderReport(_BusMessage, frozen=True):
    """The reply to `ActOrder`: how the act or step is going."""

    report: StepReport  # hands something over only if it is about a step


class OrderRefused(_BusMessage, frozen=True):
    """The reply to an `ActOrder` without a report: it is of a deposed node, failed, or is impossible now."""

    text: str  # for people
    term: int = 0  # the newer one that the node knows; 0: the term is not the reason
    counts: bool = False  # whether it counts as an attempt at the act, whose outcome is unknown then


ToActive: TypeAlias = JoinRequest | StatePartRequest | VmCall | SeenReport
FromActive: TypeAlias = JoinAccepted | StatePart | NodeDenied | VmCallReply | SeenReply | Heartbeat | HostUpdate

ToHost: TypeAlias = ActOrder | ListVms | CompareCpus
FromHost: TypeAlias = OrderReport | OrderRefused | VmListing | CpuComparison

_encode = msgspec.msgpack.Encoder().encode
_DECODERS: dict[object, Any] = {
    ToActive: msgspec.msgpack.Decoder(cast(Any, ToActive)),
    FromActive: msgspec.msgpack.Decoder(cast(Any, FromActive)),
    ToHost: msgspec.msgpack.Decoder(cast(Any, ToHost)),
    FromHost: msgspec.msgpack.Decoder(cast(Any, FromHost)),
}


def encode_bus_message(message: msgspec.Struct) -> bytes:
    """Return the message as the payload of a bus message, in MessagePack."""
    return _encode(message)


def decode_to_active(payload: bytes) -> ToActive:
    """Return the message that a host node sent. Rejected if it is none.

    `payload` is its bytes on the bus.
    """
    return cast(ToActive, _decode(ToActive, payload))


def decode_from_active(payload: bytes) -> FromActive:
    """Return the message that the active node sent. Rejected if it is none.

    `payload` is its bytes on the bus.
    """
    return cast(FromActive, _decode(FromActive, payload))


def decode_to_host(payload: bytes) -> ToHost:
    """Return the request that the active node sent to a host node. Rejected if it is none.

    `payload` is its bytes on the bus.
    """
    return cast(ToHost, _decode(ToHost, payload))


def decode_order(payload: bytes) -> ActOrder:
    """Return the order that the active node sent. Rejected if it is none, or another request.

    `payload` is its bytes on the bus.
    """
    order = _decode(ToHost, payload)
    if not isinstance(order, ActOrder):
        raise Rejected("a message on the bus is no order")
    return order


def decode_order_reply(payload: bytes) -> OrderReport | OrderRefused:
    """Return the reply of a host node to an order. Rejected if it is none.

    `payload` is its bytes on the bus.
    """
    reply = _decode(FromHost, payload)
    if isinstance(reply, VmListing | CpuComparison):
        raise Rejected("a reply on the bus does not answer an order")
    return cast("OrderReport | OrderRefused", reply)


def decode_vm_listing(payload: bytes) -> VmListing:
    """Return the reply of a host node to `ListVms`. Rejected if it is none.

    `payload` is its bytes on the bus.
    """
    reply = _decode(FromHost, payload)
    if not isinstance(reply, VmListing):
        raise Rejected("a reply on the bus does not answer a request to list VMs")
    return reply


def decode_cpu_comparison(payload: bytes) -> CpuComparison:
    """Return the reply of a host node to `CompareCpus`. Rejected if it is none."""
    reply = _decode(FromHost, payload)
    if not isinstance(reply, CpuComparison):
        raise Rejected("a reply on the bus does not answer a request to compare CPUs")
    return reply


def _decode(kind: object, payload: bytes) -> object:
    try:
        return _DECODERS[kind].decode(payload)
    except msgspec.MsgspecError as error:
        raise Rejected(f"a message on the bus cannot be read: {error}") from error
