"""Messages between the owner process and its workers, as values and as bytes. No I/O.

A worker gets the complete state, then `Complete`, then every change. A newer fact replaces an unsent older one with
the same key. Frames are numbered: a missing number breaks the channel, and a new worker gets the complete state
again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeAlias, cast

import msgspec

from forewarn.clock import ClockSetting
from forewarn.core.faults import Fault, FaultHits
from forewarn.core.history import EventDelivery
from forewarn.errors import ForewarnError, NotFound, Rejected, Unavailable
from forewarn.metadata.identity import BoundDevice, CalledAddress, Fixed, IdentityStrategy, Mark, PerPort, SourceAddress
from forewarn.metadata.interface import PublishedScope, ResetConnection
from forewarn.metadata.request_counters import RequestTotals
from forewarn.protocol.document import Document
from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.http_message import HttpResponse
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource
from forewarn.store.interface import LastPoll

_FRAME_HEADER = struct.Struct(">IQ")  # how long, which number
_MAX_FRAME_BYTES = 1 << 30
_MAX_INTERNED_DOCUMENTS = 1024


class ChannelBroken(Exception):
    """What came is no continuation of what came before: begin anew."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Written as a list: its kind, then its fields in order."""


class BeginServing(_Message, frozen=True):
    """How to serve: said once, and first."""

    rules: EndpointRules
    rules_by_location: dict[str, EndpointRules]
    first_answer_delay_s: float
    requests_per_s: float | None


class ClockUpdate(_Message, frozen=True):
    """Where the lab's clock stands; a worker that is never told keeps the machine's own time."""

    setting: ClockSetting


class FaultsUpdate(_Message, frozen=True):
    faults: tuple[Fault, ...]
    places: dict[str, int] = {}  # of their allowances, in the file that all share


class VmPlacement(_Message, frozen=True):
    """Which VM calls come from at a place; None: nobody's."""

    place: str
    vm: str | None


class ScopeUpdate(_Message, frozen=True):
    """What the VMs of a scope may be told."""

    scope_id: str
    enabled: bool
    epoch: int
    document: Document
    vms: dict[str, InstanceFacts]
    instead: HttpResponse | None = None
    resets: bool = False  # instead of answering

    def to_scope_view(self) -> PublishedScope:
        return PublishedScope(
            scope_id=self.scope_id,
            enabled=self.enabled,
            epoch=self.epoch,
            document=_intern_document(self.document),
            vms=self.vms,
            poll_override=ResetConnection() if self.resets else self.instead,
        )


class StateComplete(_Message, frozen=True):
    """All that is known has been told: serve."""


class OpenListenerRequest(_Message, frozen=True):
    """Serve on the socket that comes along."""

    id: int
    strategy: str
    words: tuple[str, ...]
    is_loopback: bool

    def identity_strategy(self) -> IdentityStrategy:
        strategy: IdentityStrategy = _STRATEGIES[self.strategy](*self.words)
        return strategy


class ServeMetrics(_Message, frozen=True):
    """Show your metrics on the socket that comes along."""


class CloseListener(_Message, frozen=True):
    """Accept nobody on that socket any more."""

    id: int


class EchoRequest(_Message, frozen=True):
    """Say this number back when all that came before it is done; it shows that we are here, too."""

    id: int


class ReportRequest(_Message, frozen=True):
    """Tell what was seen of the VMs until now."""

    id: int


class ResumeAccepting(_Message, frozen=True):
    """All that was said during a silence came before this: accept callers again."""


class DrainWorker(_Message, frozen=True):
    """Answer whoever is held or in work, tell what was seen, and end."""

    timeout_s: float


class RequestDone(_Message, frozen=True):
    """An ask took effect, durably; or all of it was refused for an event that never was."""

    id: int
    unknown: str | None = None


class TokenGranted(_Message, frozen=True):
    id: int
    token: ManagedIdentityToken


class TokenDenied(_Message, frozen=True):
    id: int
    accepted: tuple[str, ...]


class RequestFailed(_Message, frozen=True):
    id: int
    text: str
    kind: str = Unavailable.__name__  # which may be asked again

    def to_error(self) -> ForewarnError:
        return _ERRORS[self.kind](self.text)


class WorkerReady(_Message, frozen=True):
    """All that is known is known here."""


class EchoReply(_Message, frozen=True):
    id: int


class ObservationReport(_Message, frozen=True):
    """What was seen since this was last told; counts are those of the meantime."""

    polls: list[LastPoll] = []
    sightings: list[EventDelivery] = []
    touches: list[FaultHits] = []
    id: int = 0  # of the report that was asked for
    counted: RequestTotals | None = None  # since the worker began; None: as told last


class EnableRequest(_Message, frozen=True):
    id: int
    vm: str


class ApproveRequest(_Message, frozen=True):
    id: int
    vm: str
    event_ids: tuple[str, ...]


class WorkerTokenRequest(_Message, frozen=True):
    id: int
    identity: ManagedIdentity
    resource: str


class OwnerSilent(_Message, frozen=True):
    """Nothing was heard here for too long, and nobody is accepted until the owner says to resume."""


class WorkerLeaving(_Message, frozen=True):
    """Somebody told this worker to end: it accepts nobody, and will be gone when all are answered."""


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
_STRATEGIES: dict[str, Any] = {
    kind.__name__: kind for kind in (BoundDevice, CalledAddress, Fixed, Mark, PerPort, SourceAddress)
}
_ERRORS: dict[str, type[ForewarnError]] = {kind.__name__: kind for kind in (NotFound, Rejected, Unavailable)}
_FACT_DEFAULTS = {field.name: field.default for field in fields(InstanceFacts)}


def encode_message(message: ChannelMessage) -> bytes:
    return _encode(message)


def scope_message(scope: PublishedScope) -> ScopeUpdate:
    """Without what a VM's facts leave out: a fleet is told whole."""
    facts: Any = {vm: _non_default_facts(given) for vm, given in scope.vms.items()}
    return ScopeUpdate(
        scope.scope_id,
        scope.enabled,
        scope.epoch,
        scope.document,
        facts,
        scope.poll_override if isinstance(scope.poll_override, HttpResponse) else None,
        isinstance(scope.poll_override, ResetConnection),
    )


def open_message(number: int, strategy: IdentityStrategy, *, is_loopback: bool) -> OpenListenerRequest:
    names = getattr(strategy, "__slots__", ())
    return OpenListenerRequest(
        number, type(strategy).__name__, tuple(getattr(strategy, name) for name in names), is_loopback
    )


def reply_message(number: int, given: str | ManagedIdentityToken | WrongResource | None) -> OwnerReply:
    if isinstance(given, ManagedIdentityToken):
        return TokenGranted(number, given)
    if isinstance(given, WrongResource):
        return TokenDenied(number, given.accepted)
    return RequestDone(number, given)


def failure_message(number: int, error: ForewarnError) -> RequestFailed:
    kind = next((kind for kind in (NotFound, Rejected) if isinstance(error, kind)), Unavailable)
    return RequestFailed(number, str(error), kind.__name__)


def encode_frame(number: int, payload: bytes) -> bytes:
    return _FRAME_HEADER.pack(len(payload), number) + payload


class FrameDecoder:
    """Bytes in, messages out, in the order of their numbers."""

    def __init__(self, *, for_worker: bool) -> None:
        self._decode_bytes = _DECODERS[for_worker].decode
        self._buffer = bytearray()
        self._number = 0  # of the last frame

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are whole by now. Broken: what came is out of order, or is none."""
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _FRAME_HEADER.size:
                size, number = _FRAME_HEADER.unpack_from(self._buffer, at)
                if number != self._number + 1 or size > _MAX_FRAME_BYTES:
                    raise ChannelBroken(f"frame {number} came after frame {self._number}")
                if len(self._buffer) - at < _FRAME_HEADER.size + size:
                    break
                begin = at + _FRAME_HEADER.size
                at, self._number = begin + size, number
                yield self._decode_payload(bytes(self._buffer[begin:at]))
        finally:
            del self._buffer[:at]

    def _decode_payload(self, payload: bytes) -> Any:
        try:
            return self._decode_bytes(payload)
        except msgspec.MsgspecError as error:
            raise ChannelBroken(f"frame {self._number} is no message: {error}") from error


@lru_cache(maxsize=_MAX_INTERNED_DOCUMENTS)
def _intern_document(document: Document) -> Document:
    """Equal ones are kept once."""
    return document


def _non_default_facts(facts: InstanceFacts) -> dict[str, Any]:
    return {name: value for name, usual in _FACT_DEFAULTS.items() if (value := getattr(facts, name)) != usual}
