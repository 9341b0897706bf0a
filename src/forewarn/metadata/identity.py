"""Which VM is asking: told by the network, never by what the guest says.

A connection comes in at a *place* (a strategy reads it off the accepted socket), and `Callers` knows which VM
each place belongs to. Places of VMs may change while the server runs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

_SOL_SOCKET, _SO_BINDTODEVICE, _SO_MARK = 1, 25, 36  # Linux; the socket module has them on Linux only
_NAME_BYTES = 16  # IFNAMSIZ

Peer: TypeAlias = Any  # what accepting a socket tells of the other end


class Strategy(Protocol):
    def place(self, sock: socket.socket, peer: Peer) -> str:
        """Where this accepted connection came in; "" if that cannot be told."""


@dataclass(frozen=True, slots=True)
class CalledAddress:
    """The lab: every VM has a loopback address of its own, and calls that."""

    def place(self, sock: socket.socket, peer: Peer) -> str:
        return str(sock.getsockname()[0])


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """A network that can be trusted not to forge addresses. Two networks may use the same ones: name them."""

    network: str = ""

    def at(self, address: str) -> str:
        return f"{self.network}/{address}" if self.network else address

    def place(self, sock: socket.socket, peer: Peer) -> str:
        return self.at(peer[0]) if peer else ""


@dataclass(frozen=True, slots=True)
class PerPort:
    """Where there is one loopback address only: every VM has a port of its own."""

    def place(self, sock: socket.socket, peer: Peer) -> str:
        return str(sock.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Fixed:
    """A listener that one VM alone can reach, such as one inside its network namespace."""

    vm: str  # its key, or the name of the network namespace that is its own

    def place(self, sock: socket.socket, peer: Peer) -> str:
        return place_within(self.vm)


def place_within(vm: str) -> str:
    """Where the calls of the VM with this key come in when they come in by a listener of its own."""
    return f"within:{vm}"


@dataclass(frozen=True, slots=True)
class BoundDevice:
    """A host that gives every VM a device of its own: which one the connection came in by."""

    namespace: str = ""

    def at(self, device: str) -> str:
        return f"device:{self.namespace}/{device}"

    def place(self, sock: socket.socket, peer: Peer) -> str:
        device = _device(sock)
        return self.at(device) if device else ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A bridge whose ports mark what comes in (tcp_fwmark_accept gives the mark of the first packet to its socket)."""

    device: str
    namespace: str = ""

    def at(self, mark: int) -> str:
        return f"mark:{self.namespace}/{self.device}/{mark}"

    def place(self, sock: socket.socket, peer: Peer) -> str:
        try:
            return self.at(sock.getsockopt(_SOL_SOCKET, _SO_MARK))
        except OSError:
            return ""


def _device(sock: socket.socket) -> str:
    try:
        name: bytes = sock.getsockopt(_SOL_SOCKET, _SO_BINDTODEVICE, _NAME_BYTES)
    except OSError:  # the device is gone
        return ""
    return name.rstrip(b"\0").decode(errors="replace")


def calls_from_loopback(strategy: Strategy, peer: Peer) -> bool:
    """Whether a source address says who calls, and is one that every program of this machine can take."""
    if not isinstance(strategy, SourceAddress) or not peer:
        return False
    return str(peer[0]).startswith("127.") or peer[0] == "::1"


class Callers:
    """Place → VM key."""

    def __init__(self) -> None:
        self._vms: dict[str, str] = {}
        self._tell: list[Callable[[list[str]], None]] = []
        self._tell_place: list[Callable[[str, str | None], None]] = []

    def follow_places(self, tell: Callable[[str, str | None], None]) -> None:
        """Tell whose each place is, now and at every change; None: nobody's."""
        self._tell_place.append(tell)
        for place, vm in self._vms.items():
            tell(place, vm)

    def follow(self, tell: Callable[[list[str]], None]) -> None:
        """Tell this which VM has lost a place, before anybody calls there again."""
        self._tell.append(tell)

    def assign(self, place: str, vm: str) -> None:
        if self._vms.get(place) != vm:
            self.release(place)
            self._vms[place] = vm
            for tell in self._tell_place:
                tell(place, vm)

    def release(self, place: str) -> None:
        vm = self._vms.pop(place, None)
        if vm is not None:
            for tell in self._tell:
                tell([vm])
            for tell_place in self._tell_place:
                tell_place(place, None)

    def vm_at(self, place: str) -> str | None:
        return self._vms.get(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is at the other end of one connection, fixed for its life.

    A place that is given to another VM does not give it the connections of the one before: they are strangers' then.
    """

    place: str
    vm: str | None
    is_loopback: bool  # it called a loopback listener
    is_local: bool = False  # it called from loopback, whichever listener
