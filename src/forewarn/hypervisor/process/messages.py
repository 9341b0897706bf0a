"""What a keeper and the service say to each other on `forewarn.vms`: one JSON object per line. No I/O.

A *keeper* is the process that holds a VM made of namespaces, and the program inside it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forewarn.core.event import Act
from forewarn.errors import Rejected

LONGEST_LINE = 16 * 1024 * 1024  # a keeper may know of many acts


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """How an act ended, as the keeper's journal has it."""

    ok: bool
    note: str = ""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    vm: str  # by its name, `group/name` or key
    pid: int  # the keeper's
    started: str | int  # field 22 of /proc/PID/stat
    boot_id: str = ""
    program: tuple[str, ...] | None = None
    state: str = "running"  # or frozen, down
    known: dict[str, Known] = {}

    @property
    def birth(self) -> tuple[int, str]:
        return self.pid, str(self.started)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A listening socket comes with this line."""

    address: str = ""
    port: int = 0


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The program ended by itself."""

    code: int | None = None
    signal: int | str | None = None
    output: str = ""  # the end of what it wrote


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a keeper: a hello, an offer, an exit, or the answer to an act."""

    hello: Hello | None = None
    listener: Offer | None = None
    exited: Exit | None = None
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


_decode = msgspec.json.Decoder(Said).decode
_encode = msgspec.json.Encoder().encode


def read_line(line: bytes) -> Said:
    try:
        said = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"this line is not understood ({error}): {line[:200]!r}") from None
    if not (said.hello or said.listener or said.exited or said.act):
        raise Rejected(f"this line says nothing that is known: {line[:200]!r}")
    return said


def write_line(message: dict[str, Any]) -> bytes:
    return _encode(message) + b"\n"


def order_for(act: Act, duration_s: float) -> dict[str, Any]:
    host = act.to_host or act.from_host
    order: dict[str, Any] = {"act": act.id, "verb": act.verb, "duration_s": duration_s, "host": host}
    return {"order": order | {"abrupt": True} if act.abrupt else order}
