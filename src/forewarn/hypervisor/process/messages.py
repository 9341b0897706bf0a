"""Messages between a supervisor and the service on `forewarn.vms`: one JSON object per line. No I/O.

A *supervisor* is the process that holds a namespace VM and the program inside it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forewarn.core.event import Act
from forewarn.errors import Rejected

MAX_LINE_BYTES = 16 * 1024 * 1024  # a keeper may know of many acts


class KnownOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an act ended, as the keeper's journal has it."""

    ok: bool
    note: str = ""


class SupervisorHello(msgspec.Struct, frozen=True, kw_only=True):
    vm: str  # by its name, `group/name` or key
    pid: int  # the keeper's
    started: str | int  # field 22 of /proc/PID/stat
    boot_id: str = ""
    program: tuple[str, ...] | None = None
    state: str = "running"  # or frozen, down
    known: dict[str, KnownOutcome] = {}

    @property
    def process_identity(self) -> tuple[int, str]:
        return self.pid, str(self.started)


class ListenerOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A listening socket comes with this line."""

    address: str = ""
    port: int = 0


class ProgramExitMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The program ended by itself."""

    code: int | None = None
    signal: int | str | None = None
    output: str = ""  # the end of what it wrote


class SupervisorMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a keeper: a hello, an offer, an exit, or the answer to an act."""

    hello: SupervisorHello | None = None
    listener: ListenerOffer | None = None
    exited: ProgramExitMessage | None = None
    act: str = ""
    until: float | None = None  # the act is under way, for so many seconds from now
    ok: bool | None = None  # the act is over
    note: str = ""
    boot_id: str = ""  # after the act
    state: str = ""  # after the act
    fds: int = 0  # file descriptors that come with this line

    @property
    def is_final(self) -> bool:
        return self.ok is not None


_decode = msgspec.json.Decoder(SupervisorMessage).decode
_encode = msgspec.json.Encoder().encode


def decode_message(line: bytes) -> SupervisorMessage:
    try:
        said = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"this line is not understood ({error}): {line[:200]!r}") from None
    if not (said.hello or said.listener or said.exited or said.act):
        raise Rejected(f"this line says nothing that is known: {line[:200]!r}")
    return said


def encode_message(message: dict[str, Any]) -> bytes:
    return _encode(message) + b"\n"


def order_message(act: Act, duration_s: float) -> dict[str, Any]:
    host = act.to_host or act.from_host
    order: dict[str, Any] = {"act": act.id, "verb": act.verb, "duration_s": duration_s, "host": host}
    return {"order": order | {"abrupt": True} if act.abrupt else order}
