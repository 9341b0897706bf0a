"""Messages between the owner process and its workers, as values and as bytes. No I/O.

A worker gets the complete state, then `StateComplete`, then every change. A newer message replaces an unsent older
one with the same key. Frames are numbered: a missing number breaks the channel, and a new worker gets the complete
state again.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeAlias, cast

import msgspec

from forewarn.base.clock import ClockSetting
from forewarn.core.faults import Fault, FaultHits
from forewarn.core.history import EventDelivery, LastPoll
from forewarn.errors import ForewarnError, NotFound, Rejected, Unavailable
from forewarn.metadata.identity import (
    CalledAddressIdentity,
    DedicatedIdentity,
    DeviceIdentity,
    IdentityKind,
    IdentityStrategy,
    MarkIdentity,
    PortIdentity,
    SourceAddressIdentity,
)
from forewarn.metadata.interface import MetadataBackend, PublishedScope, ResetConnection
from forewarn.metadata.limits import ServingSettings
from forewarn.metadata.request_counters import RequestTotals
from forewarn.protocol.document import Document
from forewarn.protocol.http_message import HttpResponse
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource

_FRAME_HEADER = struct.Struct(">IQ")  # payload size, frame number
_MAX_FRAME_BYTES = 1 << 30
_MAX_INTERNED_DOCUMENTS = 1024
IDLE_GRACE_S = 2.0  # of a worker that is replaced, see `DrainWorker`; most clients poll once a second (spec §8.5)


class ChannelBroken(Exception):
    """The channel between owner and worker must be closed: a frame or message is wrong."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Encoded as a list: the name of its class, then its fields in order."""


class BeginServing(_Message, frozen=True):
    """To a worker: the settings for serving VMs. The first message, sent once."""

    settings: ServingSettings
    store_tag: str = ""  # part of every ETag (spec §4.3)


class ClockUpdate(_Message, frozen=True):
    """To a worker: the new setting of the lab's clock; until the first one it uses the machine's clock."""

    setting: ClockSetting  # what lab time is at which real time, and its speed


class FaultsUpdate(_Message, frozen=True):
    """To a worker: the transport faults that are active now, in place of all earlier ones."""

    faults: tuple[Fault, ...]  # all of them, () if none
    offsets: dict[str, int] = {}  # fault id → offset of its counter in the shared file; only faults with a limit


class VmPlacement(_Message, frozen=True):
    """To a worker: which VM calls from this attachment; the worker's `CallerDirectory` keeps it."""

    place: str  # an attachment: where calls come in, such as an address, device or port
    vm: str | None  # its key; None: no VM calls from there any more


class ScopeUpdate(_Message, frozen=True):
    """To a worker: what the VMs of a scope see from now on; the content of a `PublishedScope`."""

    scope_id: str  # the id of the scope in the store
    enabled: bool  # False: the next request of a VM must be sent to the owner, which enables it
    epoch: int  # part of every ETag
    document: Document  # what polls get, unless one of the last fields says otherwise
    vms: dict[str, InstanceFacts]  # by VM key
    instead: HttpResponse | None = None  # polls get this response; None: the document
    resets: bool = False  # polls get a connection reset instead
    is_narrow: bool = False  # each VM sees only the events that affect it

    def to_published_scope(self) -> PublishedScope:
        """Return the message's content as a `PublishedScope`, for the worker's metadata server."""
        return PublishedScope(
            scope_id=self.scope_id,
            enabled=self.enabled,
            epoch=self.epoch,
            document=_intern_document(self.document),
            vms=self.vms,
            poll_override=ResetConnection() if self.resets else self.instead,
            is_narrow=self.is_narrow,
        )


class StateComplete(_Message, frozen=True):
    """To a worker: the complete state was sent; reply `WorkerReady`. Listeners follow after that."""


class OpenListenerRequest(_Message, frozen=True):
    """To a worker: accept connections of VMs on the socket that is sent along with this message.

    `CloseListener` names the socket by its id.
    """

    id: int  # the id of the socket, given by the owner
    strategy: IdentityKind  # how VMs are identified there
    arguments: tuple[str, ...]  # the arguments of the strategy's class
    is_loopback: bool  # only programs on this machine can connect

    def identity_strategy(self) -> IdentityStrategy:
        """Make the strategy that identifies the calling VMs, of the message's kind and with its arguments."""
        strategy: IdentityStrategy = _STRATEGIES[self.strategy](*self.arguments)
        return strategy


class ServeMetrics(_Message, frozen=True):
    """To a worker: serve your Prometheus metrics on the socket that is sent along with this message."""


class CloseListener(_Message, frozen=True):
    """To a worker: stop accepting on the socket with this id, and close it; open connections stay."""

    id: int  # the id of the `OpenListenerRequest`


class EchoRequest(_Message, frozen=True):
    """To a worker: reply `EchoReply` once every earlier message is applied. Also the owner's heartbeat."""

    id: int  # the reply has the same one


class ReportRequest(_Message, frozen=True):
    """To a worker: send the observations that were not reported yet, of at most 5,000 VMs.

    They come in one or more `ObservationReport`s, of which the last has this id.
    """

    id: int  # unique per worker, from 1


class ResumeAccepting(_Message, frozen=True):
    """To a worker that had heard nothing from the owner for too long: accept connections again.

    It is sent after every message that waited, so the worker then has the current state.
    """


class DrainWorker(_Message, frozen=True):
    """To a worker: stop accepting, answer the requests in progress, send the last report, and exit."""

    timeout_s: float  # seconds of real time; after them, connections that are left are aborted
    idle_grace_s: float = 0.0  # how long idle connections may wait for one more request; 0: close them now


class RequestDone(_Message, frozen=True):
    """To a worker: the reply to an `EnableRequest` or `ApproveRequest` that was carried out.

    If `unknown` is None, the request took effect, durably. Otherwise nothing did: the scope has no event with that id.
    """

    id: int  # the id of the request
    unknown: str | None = None  # the id of the unknown event; None: the request took effect


class TokenGranted(_Message, frozen=True):
    """To a worker: the reply to a `WorkerTokenRequest`, with the token."""

    id: int  # the id of the request
    token: ManagedIdentityToken


class TokenDenied(_Message, frozen=True):
    """To a worker: the reply to a `WorkerTokenRequest`: no tokens are issued for its resource."""

    id: int  # the id of the request
    accepted: tuple[str, ...]  # the resources for which it issues some; empty: it issues none at all


class RequestFailed(_Message, frozen=True):
    """To a worker: the reply to a request of any kind that failed with an error."""

    id: int  # the id of the request
    text: str  # the error's message
    kind: str = Unavailable.__name__  # the error's class: NotFound, Rejected or Unavailable

    def to_error(self) -> ForewarnError:
        """Make an error of the class that `kind` names, with the message's text, for the caller to raise."""
        return _ERRORS[self.kind](self.text)


class WorkerReady(_Message, frozen=True):
    """To the owner: the reply to `StateComplete`: the worker has all of the state and takes listeners."""


class EchoReply(_Message, frozen=True):
    """To the owner: the reply to an `EchoRequest`: the worker has applied every message before that."""

    id: int  # the id of the `EchoRequest`


class ObservationReport(_Message, frozen=True):
    """To the owner: polls, deliveries and fault hits that the worker has not reported before.

    The counts in `polls` and `hits` are increments since the worker's last report; those in `counted` are totals.
    """

    polls: list[LastPoll] = []  # the last one of each VM that polled, of at most 500; others are in later reports
    deliveries: list[EventDelivery] = []  # new ones: the first of each event, in each status, to a VM
    hits: list[FaultHits] = []  # how many more requests each transport fault affected, by VM
    id: int = 0  # the id of the report request that this completes; 0: none
    counted: RequestTotals | None = None  # request counts since the worker started; None: as in the last report


class EnableRequest(_Message, frozen=True):
    """To the owner: enable scheduled events for the scope of this VM, because a VM of it called.

    The reply, with the same id, is `RequestDone` or `RequestFailed`.
    """

    id: int  # unique per worker
    vm: str  # its key


class ApproveRequest(_Message, frozen=True):
    """To the owner: approve these events of the VM's scope, all or none, on behalf of this VM.

    The reply, with the same id, is `RequestDone` or `RequestFailed`.
    """

    id: int  # unique per worker
    vm: str  # its key
    event_ids: tuple[str, ...]  # in upper case


class WorkerTokenRequest(_Message, frozen=True):
    """To the owner: issue an access token for a VM's managed identity and this resource (an audience).

    The reply, with the same id, is `TokenGranted`, `TokenDenied` or `RequestFailed`.
    """

    id: int  # unique per worker
    identity: ManagedIdentity  # the identity of the VM, with its key
    resource: str  # as the VM gave it


class OwnerSilent(_Message, frozen=True):
    """To the owner: the worker has heard nothing from it for too long, and has stopped accepting.

    The worker accepts connections again when it gets `ResumeAccepting`.
    """


class WorkerLeaving(_Message, frozen=True):
    """To the owner: the worker stops. It accepts nothing more, and exits when its requests are answered."""


# Each request of a worker has an id, and the owner's reply has the same one.
WorkerRequest: TypeAlias = EnableRequest | ApproveRequest | WorkerTokenRequest
OwnerReply: TypeAlias = RequestDone | TokenGranted | TokenDenied | RequestFailed
ToWorker: TypeAlias = (
    BeginServing | ClockUpdate | FaultsUpdate | VmPlacement | ScopeUpdate | StateComplete | OpenListenerRequest
    | ServeMetrics | CloseListener | EchoRequest | ReportRequest | ResumeAccepting | DrainWorker
    | RequestDone | TokenGranted | TokenDenied | RequestFailed
)  # fmt: skip
ToOwner: TypeAlias = (
    WorkerReady
    | EchoReply
    | ObservationReport
    | EnableRequest
    | ApproveRequest
    | WorkerTokenRequest
    | OwnerSilent
    | WorkerLeaving
)
ChannelMessage: TypeAlias = ToWorker | ToOwner

_encode = msgspec.msgpack.Encoder().encode
_DECODERS: dict[bool, Any] = {
    True: msgspec.msgpack.Decoder(cast(Any, ToWorker)),
    False: msgspec.msgpack.Decoder(cast(Any, ToOwner)),
}
_STRATEGIES: dict[IdentityKind, Any] = {
    strategy.kind: strategy
    for strategy in (
        CalledAddressIdentity,
        DedicatedIdentity,
        DeviceIdentity,
        MarkIdentity,
        PortIdentity,
        SourceAddressIdentity,
    )
}
_ERRORS: dict[str, type[ForewarnError]] = {kind.__name__: kind for kind in (NotFound, Rejected, Unavailable)}
_FACT_DEFAULTS = {field.name: field.default for field in fields(InstanceFacts)}


def encode_message(message: ChannelMessage) -> bytes:
    """Return the message encoded with msgpack, as the payload of a frame. Sends nothing."""
    return _encode(message)


def scope_message(scope: PublishedScope, *, only: Collection[str] | None = None) -> ScopeUpdate:
    """Make the message that publishes this scope to a worker; the result is only for `encode_message`.

    The facts of its VMs are plain dictionaries without default values, to be short. `only` has the keys of the VMs to
    include.
    """
    shown = scope.vms.items() if only is None else ((vm, scope.vms[vm]) for vm in only if vm in scope.vms)
    facts: Any = {vm: _non_default_facts(result) for vm, result in shown}
    return ScopeUpdate(
        scope.scope_id,
        scope.enabled,
        scope.epoch,
        scope.document,
        facts,
        scope.poll_override if isinstance(scope.poll_override, HttpResponse) else None,
        isinstance(scope.poll_override, ResetConnection),
        scope.is_narrow,
    )


def open_message(number: int, strategy: IdentityStrategy, *, is_loopback: bool) -> OpenListenerRequest:
    """Make the message that lets a worker accept on a socket with this strategy."""
    names = getattr(strategy, "__slots__", ())
    return OpenListenerRequest(number, strategy.kind, tuple(getattr(strategy, name) for name in names), is_loopback)


def reply_message(number: int, result: str | ManagedIdentityToken | WrongResource | None) -> OwnerReply:
    """Make the reply to the worker's request with this id (`number`) from the request's result."""
    if isinstance(result, ManagedIdentityToken):
        return TokenGranted(number, result)
    if isinstance(result, WrongResource):
        return TokenDenied(number, result.accepted)
    return RequestDone(number, result)


def failure_message(number: int, error: ForewarnError) -> RequestFailed:
    """Make the reply that fails the worker's request with this id (`number`) with this error."""
    kind = next((kind for kind in (NotFound, Rejected) if isinstance(error, kind)), Unavailable)
    return RequestFailed(number, str(error), kind.__name__)


def encode_frame(number: int, payload: bytes) -> bytes:
    """Return the bytes of a frame: a header with the payload's size and the frame's number, then payload."""
    return _FRAME_HEADER.pack(len(payload), number) + payload


class FrameDecoder:
    """Decodes the bytes that come over a channel into messages, and checks that no frame is missing."""

    def __init__(self, *, for_worker: bool) -> None:
        self._decode_bytes = _DECODERS[for_worker].decode
        self._buffer = bytearray()
        self._number = 0  # of the last frame

    def feed(self, data: bytes) -> Iterator[Any]:
        """Take more bytes, and yield each message that is complete now; other bytes wait for the next call.

        It is a generator: it takes `data` only when it is iterated, which must be to the end.
        """
        self._buffer += data
        position = 0
        try:
            while len(self._buffer) - position >= _FRAME_HEADER.size:
                size, number = _FRAME_HEADER.unpack_from(self._buffer, position)
                if number != self._number + 1 or size > _MAX_FRAME_BYTES:
                    raise ChannelBroken(f"frame {number} came after frame {self._number}")
                if len(self._buffer) - position < _FRAME_HEADER.size + size:
                    break
                begin = position + _FRAME_HEADER.size
                position, self._number = begin + size, number
                yield self._decode_payload(bytes(self._buffer[begin:position]))
        finally:
            del self._buffer[:position]

    def _decode_payload(self, payload: bytes) -> Any:
        try:
            return self._decode_bytes(payload)
        except msgspec.MsgspecError as error:
            raise ChannelBroken(f"frame {self._number} is no message: {error}") from error


@lru_cache(maxsize=_MAX_INTERNED_DOCUMENTS)
def _intern_document(document: Document) -> Document:
    """The same object for equal documents, to save memory."""
    return document


def _non_default_facts(facts: InstanceFacts) -> dict[str, Any]:
    return {name: value for name, default in _FACT_DEFAULTS.items() if (value := getattr(facts, name)) != default}


# The result of a request: an event id if that event is unknown, a token, or None.
RequestResult: TypeAlias = "str | ManagedIdentityToken | WrongResource | None"


async def perform_request(backend: MetadataBackend, request: WorkerRequest) -> RequestResult:
    """Carry out a VM's request that another process sent, with this process's backend; return its result."""
    match request:
        case EnableRequest(vm=vm):
            await backend.enable(vm)
            return None
        case ApproveRequest(vm=vm, event_ids=event_ids):
            return await backend.approve(vm, event_ids)
        case WorkerTokenRequest(identity=identity, resource=resource):
            return await backend.token(identity, resource)


def vm_of_request(request: WorkerRequest) -> str:
    return request.identity.vm if isinstance(request, WorkerTokenRequest) else request.vm
