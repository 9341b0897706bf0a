"""Messages between a supervisor and the service on `forewarn.vms`: one JSON object per line. No I/O.

A *supervisor* is the process that holds a namespace VM and the program inside it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forewarn.core.cause import VmEffect
from forewarn.core.event import Act
from forewarn.errors import Rejected

MAX_LINE_BYTES = 16 * 1024 * 1024  # the hello of a supervisor may list many acts


class KnownOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an act that is over, from the supervisor's journal; part of its hello message."""

    ok: bool  # whether the act succeeded
    note: str = ""  # for people, in the history


class SupervisorHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a supervisor: its VM, its process, and the acts whose outcome it knows."""

    vm: str  # its name, `group/name` or key
    pid: int  # the pid of the supervisor
    started: str | int  # when it started: field 22 of /proc/PID/stat
    boot_id: str = ""  # changes with each boot of the VM
    program: tuple[str, ...] | None = None  # the program inside the VM, with its arguments; None: none yet
    state: str = "running"  # or "frozen" or "down"
    known: dict[str, KnownOutcome] = {}  # outcomes of acts that are over, by act id

    @property
    def process_identity(self) -> tuple[int, str]:
        """Process id and start time (as text), which together identify the supervisor process."""
        return self.pid, str(self.started)


class ListenerOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A listening TCP socket from inside the VM, whose file descriptor is sent along, to serve metadata on."""

    address: str = ""  # an IP address
    port: int = 0  # of TCP


class ProgramExitMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor's message that the program inside the VM ended by itself, not by an act."""

    code: int | None = None  # its exit code; None: a signal ended it
    signal: int | str | None = None  # the number or name of that signal; None: it exited
    output: str = ""  # the end of its output


class SupervisorMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A hello, a listener, an exit, or, if `act` is set, an answer to the order of that act."""

    hello: SupervisorHello | None = None  # the first message; None: this is another message
    listener: ListenerOffer | None = None  # a socket from inside the VM; None: this is another message
    exited: ProgramExitMessage | None = None  # the program has ended; None: this is another message
    act: str = ""  # the id of the act that it answers; "": it answers none
    until: float | None = None  # the act is under way, for this many more seconds of real time; None: not known
    ok: bool | None = None  # the act is over, and succeeded or failed; None: it is not over
    note: str = ""  # of the outcome, for people
    boot_id: str = ""  # the boot id of the VM after the act; "": unchanged
    state: str = ""  # the state of the VM after the act; "": the state that the act's verb leads to
    fds: int = 0  # number of file descriptors sent along

    @property
    def is_final(self) -> bool:
        """Whether this is the final answer to an act, which says if it succeeded."""
        return self.ok is not None


_decode = msgspec.json.Decoder(SupervisorMessage).decode
_encode = msgspec.json.Encoder().encode


def decode_message(line: bytes) -> SupervisorMessage:
    """Decode one line (JSON, with or without newline) from a supervisor, and return the message."""
    try:
        message = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"the message is not understood ({error}): {line[:200]!r}") from None
    if not (message.hello or message.listener or message.exited or message.act):
        raise Rejected(f"the message has no known key: {line[:200]!r}")
    return message


def encode_message(message: dict[str, Any]) -> bytes:
    """Return a message to a supervisor as one line of JSON, with the newline; sends nothing."""
    return _encode(message) + b"\n"


def order_message(act: Act, duration_s: float) -> dict[str, Any]:
    """Return the message that orders this act, to take `duration_s` seconds of real time."""
    rules = act.verb.rules
    order: dict[str, Any] = {
        "act": act.id,
        "verb": act.verb,
        "effect": rules.effect,
        "wipes_disk": rules.wipes_disk,
        "removed_as": rules.removed_as,
        "duration_s": duration_s,
        "host": act.to_host if rules.moves or rules.effect is VmEffect.BOOT else "",
        "abrupt": act.abrupt,
    }
    return {"order": order}
