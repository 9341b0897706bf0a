"""Messages between the active control node and host nodes, as values and as bytes. No I/O.

Facts for VMs are those of `workers.messages`. A host's facts are numbered updates of its stream; a node that misses a
number asks for the complete state again. New fields are added at the end, with a default, so that older releases can
read newer messages; `PROTOCOL` changes only if they cannot.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias, cast

import msgspec

from forewarn.base.times import LabTime
from forewarn.core.event import Act
from forewarn.core.unannounced import HostObservation
from forewarn.errors import Rejected
from forewarn.machines.moves import MoveHandover, MoveStep, StepReport
from forewarn.metadata.workers.messages import (
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
    """The process that numbers the streams to host nodes: its term, and its session within the term."""

    term: int  # the term of the lease; greater for each later holder
    session: str  # the id of the process, a random text


class StreamPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a host node has followed the stream of its host: every update up to this number."""

    source: StreamSource  # the process that numbers the stream; numbers of different sources cannot be compared
    number: int  # the number of the last update; 0: none yet


class RecordPosition(msgspec.Struct, frozen=True, array_like=True):
    """A commit to the record (PostgreSQL) of control nodes; what VMs were shown is in it, or in earlier ones."""

    id: str = ""  # the id of the record; another one after its epochs were renewed; "": there is no record
    number: int = 0  # the number of the commit
    hash: str = ""  # over all commits up to this one; "": not known


class Heartbeat(_BusMessage, frozen=True):
    """From the active control node, every 0.25 s: it is alive and holds the lease.

    It goes to all host nodes, and, at another time, to each node that has joined, on the subject of its host.
    """

    source: StreamSource  # its term, and the session of its process
    name: str = ""  # the name of the control node, for people
    now: float = 0.0  # its time, in POSIX seconds
    record_number: int = 0  # the number of the last commit to the record (PostgreSQL); 0: the store has none
    record_id: str = ""  # the id of the record; another one after its epochs were renewed; "": none
    record_hash: str = ""  # the hash of that commit, over all commits up to it

    @property
    def record(self) -> RecordPosition:
        """The last commit to the record when it was sent."""
        return RecordPosition(self.record_id, self.record_number, self.record_hash)


class HostScope(_BusMessage, frozen=True):
    """A fact for one host: what the VMs of one scope on this host see from now on.

    Without VMs, the scope has left the host. Of two facts about one scope, the one with the greater (epoch, version) is
    the newer.
    """

    update: ScopeUpdate  # with the VMs of this host, and those on their way to it
    version: int  # the version of the scope in the store
    addresses: dict[str, str] = {}  # VM key → its source address; only VMs with one

    @property
    def order(self) -> tuple[int, int]:
        """The pair (epoch, version) of the scope: of two facts about the same scope, the newer is greater."""
        return self.update.epoch, self.version


HostFact: TypeAlias = HostScope | FaultsUpdate


class HostUpdate(_BusMessage, frozen=True):
    """From the active control node to the node of one host: the facts that have changed."""

    position: StreamPosition  # in the host's stream; its number is one more than that of the update before
    facts: tuple[HostFact, ...]  # in the order of the changes; a later one of the same scope replaces an earlier one
    record: RecordPosition = RecordPosition()  # which has all of them


class NodeInfo(msgspec.Struct, frozen=True, array_like=True):
    """Which process a host node is, for the active control node and for people."""

    id: str  # the id of its state file, which one process uses at a time
    boot: int  # how often the node with this id was started, this time included
    version: str  # the version of forewarn
    protocol: int = PROTOCOL  # version of the bus messages
    machine: str = ""  # its host name, for people
    pid: int = 0  # its process id
    hypervisor: str = ""  # the name of the hypervisor that performs its acts


class JoinRequest(_BusMessage, frozen=True):
    """From a host node to the active control node: send the complete state of this host."""

    node: NodeInfo  # which node asks
    host: str  # the name in the fleet of the host that it serves
    record_number: int = 0  # the highest commit to the record (PostgreSQL) that this node knows of; 0: none
    record_id: str = ""  # the id of the record with that commit; "": none
    record_hash: str = ""  # the hash of that commit


class JoinAccepted(_BusMessage, frozen=True):
    """The reply to `JoinRequest`: how to serve, and the first part of the state of the host."""

    position: StreamPosition  # in the host's stream; the state has everything up to there
    begin: BeginServing  # the settings for answering VMs
    join_id: str  # the id of this state, to ask for its other parts
    parts: int  # how many there are, 1 or more; the others are asked for with `StatePartRequest`
    facts: tuple[HostFact, ...]  # of the first part
    record: RecordPosition = RecordPosition()  # which has the facts of all parts, and what the node has shown before


class StatePartRequest(_BusMessage, frozen=True):
    """From a host node to the active control node: send this further part of the state of a join.

    The first part came with `JoinAccepted`. The reply is `StatePart`, or `NodeDenied` if the state is no longer kept.
    """

    join_id: str  # as in `JoinAccepted`
    index: int  # the index of the part; the first one, 0, came with `JoinAccepted`


class StatePart(_BusMessage, frozen=True):
    """The reply to `StatePartRequest`: a further part of the state."""

    join_id: str  # as in the request
    index: int  # as in the request
    facts: tuple[HostFact, ...]  # those of this part


class DenialReason(StrEnum):
    """Why the active control node does not work with a host node."""

    VERSION = "version"  # its messages have another protocol
    OCCUPIED = "occupied"  # another node of this host is alive
    REPLACED = "replaced"  # another node of this host has joined since
    UNKNOWN_HOST = "unknown-host"  # the fleet has no such host
    NOT_JOINED = "not-joined"  # it must join first: the active node is a new process
    PART_GONE = "part-gone"  # that state is no longer kept: join again


class NodeDenied(_BusMessage, frozen=True):
    """The reply to any request of a host node with which the active control node does not work."""

    reason: DenialReason  # for programs
    text: str  # one sentence for people: what is wrong, and what to do


class VmCall(_BusMessage, frozen=True):
    """From a host node to the active control node: a VM's request that memory cannot answer."""

    node_id: str  # `NodeInfo.id`
    request: EnableRequest | ApproveRequest | WorkerTokenRequest  # with an id of the node's choice


class VmCallReply(_BusMessage, frozen=True):
    """The reply to `VmCall`, with the VM's scope as it is afterwards, so that the VM sees what it caused."""

    reply: RequestDone | TokenGranted | TokenDenied | RequestFailed  # with the id of the request
    scopes: tuple[HostScope, ...] = ()  # one; empty for a VM that is unknown, or that the node may not act for
    record: RecordPosition = RecordPosition()  # which has them


class HostCapacity(msgspec.Struct, frozen=True, array_like=True):
    """What a host can still take, and what its VMs need; part of a `SeenReport`."""

    free_mib: int | None = None  # memory for more VMs, in MiB; None: not known
    vm_mib: dict[str, int] = {}  # memory that a VM needs, in MiB, by the VM's name
    is_silent: bool = False  # the platform there did not answer when it was last looked at
    cpus: tuple[str, ...] = ()  # different CPUs that running VMs need, in the words of their driver; at most 32
    vm_cpus: dict[str, int] = {}  # VM's name → index in `cpus` of the one it needs; without VMs whose CPU is not there
    compares_cpus: bool = False  # whether the node can compare CPUs with its own; else it need not be asked


class SeenReport(_BusMessage, frozen=True):
    """From a host node to the active control node, about every second: what it observed, and how it is.

    It is repeated, with the same number, until it is answered.
    """

    node_id: str  # `NodeInfo.id`
    number: int  # the number of this report, counted from 1 by each process; the same if it is repeated
    report: ObservationReport  # polls, deliveries and fault hits since the report before, and counts of requests
    position: StreamPosition | None = None  # in the host's stream: what the node shows; None: it has no complete state
    vms: int = 0  # how many VMs it knows on its host, or on their way to it
    is_leaving: bool = False  # the node stops; this is its last report
    workers: int = 0  # how many processes answer VMs there; 0: the node itself
    clock_ahead_s: float = 0.0  # how far its clock is ahead of the active node's; negative: behind
    capacity: HostCapacity | None = None  # None: as in an earlier report, or not known
    changes: int = -1  # counts reported changes of VMs there; -1: the node cannot list the VMs of its host


class SeenReply(_BusMessage, frozen=True):
    """The reply to `SeenReport`: how far the host's stream is; the node notices what it has missed."""

    position: StreamPosition  # the position of the last update that was sent to this host


class ActOrder(_BusMessage, frozen=True):
    """From the active control node to the node of a host: perform an act, or a step of a move.

    A request, answered with `OrderReport` or `OrderRefused` after about 1.5 s at most; it may be repeated.
    """

    term: int  # the term of the sender's lease; orders of an older term than the node knows are refused
    store_tag: str  # the tag of the cluster's store, which the terms belong to
    act: Act  # the whole act, also for a step of it
    now: LabTime
    step: MoveStep | None = None  # of a move between two hosts; None: perform the whole act
    given: MoveHandover = MoveHandover()  # what the hosts of the move have handed over so far
    scopes: tuple[HostScope, ...] = ()  # the VM's scope, to be shown before the order is carried out; or none
    record: RecordPosition = RecordPosition()  # which has it


class ListVms(_BusMessage, frozen=True):
    """From the active control node to the node of a host: list the VMs of your host. Changes nothing.

    The reply is `VmListing`.
    """


class VmListing(_BusMessage, frozen=True):
    """The reply to `ListVms`: the VMs that run or exist on the host, or why they cannot be listed."""

    observation: HostObservation | None = None  # None: the node cannot list them now
    text: str = ""  # for people: why they cannot be listed; "": they are


class CompareCpus(_BusMessage, frozen=True):
    """From the active control node to the node of a host: say whether VMs with these CPUs can run there."""

    cpus: tuple[str, ...]  # as in `HostCapacity.cpus` of other hosts


class CpuComparison(_BusMessage, frozen=True):
    """The reply to `CompareCpus`: for each CPU, whether VMs that need it can run on the host."""

    fits: tuple[bool | None, ...]  # in the order of the request; None: not known now


class OrderReport(_BusMessage, frozen=True):
    """The reply to `ActOrder` if it was accepted: how the act or step is going, or how it ended."""

    report: StepReport  # hands something over only if the order was about a step


class OrderRefused(_BusMessage, frozen=True):
    """The reply to `ActOrder` if there is no report: a deposed sender, an error, or a local problem."""

    text: str  # for people: why it was refused, or failed
    term: int = 0  # the newer term that the node obeys; 0: the term is not the reason
    counts: bool = False  # True: it counts as an attempt at the act, whose outcome is unknown; False: as no attempt


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
    """Return a message of this module as bytes for the bus, in MessagePack; sends nothing."""
    return _encode(message)


def decode_to_active(payload: bytes) -> ToActive:
    """Decode a request or report that a host node sent to the active control node."""
    return cast(ToActive, _decode(ToActive, payload))


def decode_from_active(payload: bytes) -> FromActive:
    """Decode a heartbeat, update or reply that the active control node sent to a host node."""
    return cast(FromActive, _decode(FromActive, payload))


def decode_to_host(payload: bytes) -> ToHost:
    """Decode an order or other request that the active control node sent to a host node."""
    return cast(ToHost, _decode(ToHost, payload))


def decode_order_reply(payload: bytes) -> OrderReport | OrderRefused:
    """Decode a host node's reply to an `ActOrder`."""
    reply = _decode(FromHost, payload)
    if isinstance(reply, VmListing | CpuComparison):
        raise Rejected("a reply on the bus does not answer an order")
    return cast("OrderReport | OrderRefused", reply)


def decode_vm_listing(payload: bytes) -> VmListing:
    """Decode a host node's reply to `ListVms`."""
    reply = _decode(FromHost, payload)
    if not isinstance(reply, VmListing):
        raise Rejected("a reply on the bus does not answer a request to list VMs")
    return reply


def decode_cpu_comparison(payload: bytes) -> CpuComparison:
    """Decode a host node's reply to `CompareCpus`."""
    reply = _decode(FromHost, payload)
    if not isinstance(reply, CpuComparison):
        raise Rejected("a reply on the bus does not answer a request to compare CPUs")
    return reply


def _decode(kind: object, payload: bytes) -> object:
    try:
        return _DECODERS[kind].decode(payload)
    except msgspec.MsgspecError as error:
        raise Rejected(f"a message on the bus cannot be read: {error}") from error
