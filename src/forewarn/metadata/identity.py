"""Identifies the VM behind a connection by the network, never by what the guest claims.

An `IdentityStrategy` reads from the accepted socket where the connection came in, its attachment (an address, a
port, a device, a firewall mark, a namespace). `CallerDirectory` maps attachments to VM keys; assignments may change
while the server runs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

_SOL_SOCKET, _SO_BINDTODEVICE, _SO_MARK = 1, 25, 36  # Linux; the socket module has them on Linux only
_IFNAMSIZ = 16  # IFNAMSIZ

PeerAddress: TypeAlias = Any  # what accepting a socket tells of the other end


class IdentityStrategy(Protocol):
    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        """Where this accepted connection came in; "" if that cannot be told."""


@dataclass(frozen=True, slots=True)
class CalledAddress:
    """The lab: every VM has a loopback address of its own, and calls that."""

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        return str(sock.getsockname()[0])


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """A network that can be trusted not to forge addresses. Two networks may use the same ones: name them."""

    network: str = ""

    def attachment_of(self, address: str) -> str:
        return f"{self.network}/{address}" if self.network else address

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        return self.attachment_of(peer[0]) if peer else ""


@dataclass(frozen=True, slots=True)
class PerPort:
    """Where there is one loopback address only: every VM has a port of its own."""

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        return str(sock.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Fixed:
    """A listener that one VM alone can reach, such as one inside its network namespace."""

    vm: str  # its key, or the name of the network namespace that is its own

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        return dedicated_attachment(self.vm)


def dedicated_attachment(vm: str) -> str:
    """Where the calls of the VM with this key come in when they come in by a listener of its own."""
    return f"within:{vm}"


@dataclass(frozen=True, slots=True)
class BoundDevice:
    """A host that gives every VM a device of its own: which one the connection came in by."""

    namespace: str = ""

    def attachment_of(self, device: str) -> str:
        return f"device:{self.namespace}/{device}"

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        device = _bound_device_name(sock)
        return self.attachment_of(device) if device else ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A bridge whose ports mark what comes in (tcp_fwmark_accept gives the mark of the first packet to its socket)."""

    device: str
    namespace: str = ""

    def attachment_of(self, mark: int) -> str:
        return f"mark:{self.namespace}/{self.device}/{mark}"

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        try:
            return self.attachment_of(sock.getsockopt(_SOL_SOCKET, _SO_MARK))
        except OSError:
            return ""


def _bound_device_name(sock: socket.socket) -> str:
    try:
        name: bytes = sock.getsockopt(_SOL_SOCKET, _SO_BINDTODEVICE, _IFNAMSIZ)
    except OSError:  # the device is gone
        return ""
    return name.rstrip(b"\0").decode(errors="replace")


def is_loopback_peer(strategy: IdentityStrategy, peer: PeerAddress) -> bool:
    """Whether a source address says who calls, and is one that every program of this machine can take."""
    if not isinstance(strategy, SourceAddress) or not peer:
        return False
    return str(peer[0]).startswith("127.") or peer[0] == "::1"


class CallerDirectory:
    """Place → VM key."""

    def __init__(self) -> None:
        self._vm_by_attachment: dict[str, str] = {}
        self._release_subscribers: list[Callable[[list[str]], None]] = []
        self._assignment_subscribers: list[Callable[[str, str | None], None]] = []

    def subscribe_assignments(self, tell: Callable[[str, str | None], None]) -> None:
        """Tell whose each place is, now and at every change; None: nobody's."""
        self._assignment_subscribers.append(tell)
        for place, vm in self._vm_by_attachment.items():
            tell(place, vm)

    def subscribe_releases(self, tell: Callable[[list[str]], None]) -> None:
        """Tell this which VM has lost a place, before anybody calls there again."""
        self._release_subscribers.append(tell)

    def assign(self, place: str, vm: str) -> None:
        if self._vm_by_attachment.get(place) != vm:
            self.release(place)
            self._vm_by_attachment[place] = vm
            for tell in self._assignment_subscribers:
                tell(place, vm)

    def release(self, place: str) -> None:
        vm = self._vm_by_attachment.pop(place, None)
        if vm is not None:
            for tell in self._release_subscribers:
                tell([vm])
            for tell_place in self._assignment_subscribers:
                tell_place(place, None)

    def vm_at(self, place: str) -> str | None:
        return self._vm_by_attachment.get(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is at the other end of one connection, fixed for its life.

    A place that is given to another VM does not give it the connections of the one before: they are strangers' then.
    """

    attachment: str
    vm: str | None
    is_loopback: bool  # it called a loopback listener
    from_loopback: bool = False  # it called from loopback, whichever listener
