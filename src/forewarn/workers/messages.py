"""What the process that owns the store and its workers tell each other, as values and as bytes. No I/O.

A worker is told all there is to know, then `Complete`, then every change; each fact replaces the one before it, so what
was not sent yet may be left out for what is newer. Frames are numbered: one that is missing ends the line, and whoever
begins anew is told everything again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeAlias, cast

import msgspec

from forewarn.clock import Setting
from forewarn.core.fault import Fault, Touch
from forewarn.core.history import Sighting
from forewarn.errors import ForewarnError, NotFound, Rejected, Unavailable
from forewarn.metadata.counted import Counted
from forewarn.metadata.identity import BoundDevice, CalledAddress, Fixed, Mark, PerPort, SourceAddress, Strategy
from forewarn.metadata.seam import Reset, ScopeView
from forewarn.protocol.document import Document
from forewarn.protocol.exchange import Rules
from forewarn.protocol.identity import ManagedIdentity, Token, WrongResource
from forewarn.protocol.instance import InstanceFacts
from forewarn.protocol.message import Response
from forewarn.store.seam import Polled

_HEAD = struct.Struct(">IQ")  # how long, which number
_MOST_BYTES = 1 << 30
_SHARED_DOCUMENTS = 1024


class Broken(Exception):
    """What came is no continuation of what came before: begin anew."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Written as a list: its kind, then its fields in order."""


class Begin(_Message, frozen=True):
    """How to serve: said once, and first."""

    rules: Rules
    rules_by_location: dict[str, Rules]
    first_answer_delay_s: float
    requests_per_s: float | None


class Clock(_Message, frozen=True):
    """Where the lab's clock stands; a worker that is never told keeps the machine's own time."""

    setting: Setting


class Faults(_Message, frozen=True):
    faults: tuple[Fault, ...]
    places: dict[str, int] = {}  # of their allowances, in the file that all share


class Seat(_Message, frozen=True):
    """Which VM calls come from at a place; None: nobody's."""

    place: str
    vm: str | None


class Show(_Message, frozen=True):
    """What the VMs of a scope may be told."""

    scope_id: str
    enabled: bool
    epoch: int
    document: Document
    vms: dict[str, InstanceFacts]
    instead: Response | None = None
    resets: bool = False  # instead of answering

    def view(self) -> ScopeView:
        return ScopeView(
            scope_id=self.scope_id,
            enabled=self.enabled,
            epoch=self.epoch,
            document=_shared(self.document),
            vms=self.vms,
            instead=Reset() if self.resets else self.instead,
        )


class Complete(_Message, frozen=True):
    """All that is known has been told: serve."""


class Open(_Message, frozen=True):
    """Serve on the socket that comes along."""

    id: int
    strategy: str
    words: tuple[str, ...]
    is_loopback: bool

    def told_by(self) -> Strategy:
        strategy: Strategy = _STRATEGIES[self.strategy](*self.words)
        return strategy


class Expose(_Message, frozen=True):
    """Show your metrics on the socket that comes along."""


class Shut(_Message, frozen=True):
    """Accept nobody on that socket any more."""

    id: int


class Echo(_Message, frozen=True):
    """Say this number back when all that came before it is done; it shows that we are here, too."""

    id: int


class Report(_Message, frozen=True):
    """Tell what was seen of the VMs until now."""

    id: int


class Resume(_Message, frozen=True):
    """All that was said during a silence came before this: accept callers again."""


class Drain(_Message, frozen=True):
    """Answer whoever is held or in work, tell what was seen, and end."""

    timeout_s: float


class Done(_Message, frozen=True):
    """An ask took effect, durably; or all of it was refused for an event that never was."""

    id: int
    unknown: str | None = None


class Given(_Message, frozen=True):
    id: int
    token: Token


class Denied(_Message, frozen=True):
    id: int
    accepted: tuple[str, ...]


class Failed(_Message, frozen=True):
    id: int
    text: str
    kind: str = Unavailable.__name__  # which may be asked again

    def error(self) -> ForewarnError:
        return _ERRORS[self.kind](self.text)


class Ready(_Message, frozen=True):
    """All that is known is known here."""


class Echoed(_Message, frozen=True):
    id: int


class Seen(_Message, frozen=True):
    """What was seen since this was last told; counts are those of the meantime."""

    polls: list[Polled] = []
    sightings: list[Sighting] = []
    touches: list[Touch] = []
    id: int = 0  # of the report that was asked for
    counted: Counted | None = None  # since the worker began; None: as told last


class Enable(_Message, frozen=True):
    id: int
    vm: str


class Approve(_Message, frozen=True):
    id: int
    vm: str
    event_ids: tuple[str, ...]


class AskToken(_Message, frozen=True):
    id: int
    identity: ManagedIdentity
    resource: str


class Silence(_Message, frozen=True):
    """Nothing was heard here for too long, and nobody is accepted until the owner says to resume."""


class Leaving(_Message, frozen=True):
    """Somebody told this worker to end: it accepts nobody, and will be gone when all are answered."""


Ask: TypeAlias = Enable | Approve | AskToken
Reply: TypeAlias = Done | Given | Denied | Failed
ToWorker: TypeAlias = (
    Begin | Clock | Faults | Seat | Show | Complete | Open | Expose | Shut | Echo | Report | Resume | Drain
    | Done | Given | Denied | Failed
)  # fmt: skip
ToOwner: TypeAlias = Ready | Echoed | Seen | Enable | Approve | AskToken | Silence | Leaving
Message: TypeAlias = ToWorker | ToOwner

_encode = msgspec.msgpack.Encoder().encode
_DECODERS: dict[bool, Any] = {
    True: msgspec.msgpack.Decoder(cast(Any, ToWorker)),
    False: msgspec.msgpack.Decoder(cast(Any, ToOwner)),
}
_STRATEGIES: dict[str, Any] = {
    kind.__name__: kind for kind in (BoundDevice, CalledAddress, Fixed, Mark, PerPort, SourceAddress)
}
_ERRORS: dict[str, type[ForewarnError]] = {kind.__name__: kind for kind in (NotFound, Rejected, Unavailable)}
_USUAL = {field.name: field.default for field in fields(InstanceFacts)}


def pack(message: Message) -> bytes:
    return _encode(message)


def show(scope: ScopeView) -> Show:
    """Without what a VM's facts leave out: a fleet is told whole."""
    facts: Any = {vm: _told(given) for vm, given in scope.vms.items()}
    return Show(
        scope.scope_id,
        scope.enabled,
        scope.epoch,
        scope.document,
        facts,
        scope.instead if isinstance(scope.instead, Response) else None,
        isinstance(scope.instead, Reset),
    )


def opening(number: int, strategy: Strategy, *, is_loopback: bool) -> Open:
    names = getattr(strategy, "__slots__", ())
    return Open(number, type(strategy).__name__, tuple(getattr(strategy, name) for name in names), is_loopback)


def reply(number: int, given: str | Token | WrongResource | None) -> Reply:
    if isinstance(given, Token):
        return Given(number, given)
    if isinstance(given, WrongResource):
        return Denied(number, given.accepted)
    return Done(number, given)


def failure(number: int, error: ForewarnError) -> Failed:
    kind = next((kind for kind in (NotFound, Rejected) if isinstance(error, kind)), Unavailable)
    return Failed(number, str(error), kind.__name__)


def frame(number: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), number) + payload


class Frames:
    """Bytes in, messages out, in the order of their numbers."""

    def __init__(self, *, for_worker: bool) -> None:
        self._decode = _DECODERS[for_worker].decode
        self._buffer = bytearray()
        self._number = 0  # of the last frame

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are whole by now. Broken: what came is out of order, or is none."""
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _HEAD.size:
                size, number = _HEAD.unpack_from(self._buffer, at)
                if number != self._number + 1 or size > _MOST_BYTES:
                    raise Broken(f"frame {number} came after frame {self._number}")
                if len(self._buffer) - at < _HEAD.size + size:
                    break
                begin = at + _HEAD.size
                at, self._number = begin + size, number
                yield self._message(bytes(self._buffer[begin:at]))
        finally:
            del self._buffer[:at]

    def _message(self, payload: bytes) -> Any:
        try:
            return self._decode(payload)
        except msgspec.MsgspecError as error:
            raise Broken(f"frame {self._number} is no message: {error}") from error


@lru_cache(maxsize=_SHARED_DOCUMENTS)
def _shared(document: Document) -> Document:
    """Equal ones are kept once."""
    return document


def _told(facts: InstanceFacts) -> dict[str, Any]:
    return {name: value for name, usual in _USUAL.items() if (value := getattr(facts, name)) != usual}
