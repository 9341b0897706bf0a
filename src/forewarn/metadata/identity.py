"""Identifies the VM behind a connection by the network, never by what the guest claims.

An `IdentityStrategy` reads from the accepted socket where the connection came in, its attachment (an address, a
port, a device, a firewall mark, a namespace). `CallerDirectory` maps attachments to VM keys; assignments may change
while the server runs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

_SOL_SOCKET, _SO_BINDTODEVICE, _SO_MARK = 1, 25, 36  # Linux; the socket module has them on Linux only
_IFNAMSIZ = 16

PeerAddress: TypeAlias = Any  # the address that socket.accept returns


class IdentityKind(StrEnum):
    """The kinds of identity strategies: what identifies the VM of a connection."""

    CALLED_ADDRESS = "CalledAddress"  # the local address that was called
    SOURCE_ADDRESS = "SourceAddress"  # the address of the caller
    PORT = "PerPort"  # the local port that was called
    DEDICATED = "Fixed"  # the listener itself, which only one VM can reach
    DEVICE = "BoundDevice"  # the network device of the listener
    MARK = "Mark"  # the firewall mark of the connection


class IdentityStrategy(Protocol):
    """Finds the attachment of a connection to a listener: an address, port or device, which tells VMs apart."""

    kind: ClassVar[IdentityKind]  # what it identifies VMs by

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        """Return the attachment of an accepted connection; "" if it cannot be determined."""


@dataclass(frozen=True, slots=True)
class CalledAddressIdentity:
    """Identifies a VM by the address that was called: for labs, where each VM has a loopback address."""

    kind: ClassVar[IdentityKind] = IdentityKind.CALLED_ADDRESS

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        """Return the local IP address of the connection, which is the VM's; `peer` does not matter."""
        return str(sock.getsockname()[0])


@dataclass(frozen=True, slots=True)
class SourceAddressIdentity:
    """Identifies a VM by the source address of its connection, for networks that prevent forged addresses."""

    kind: ClassVar[IdentityKind] = IdentityKind.SOURCE_ADDRESS
    network: str = ""  # distinguishes networks with equal addresses; "": the network of the fleet's addresses

    def attachment_of(self, address: str) -> str:
        """Return the attachment of the VM with this source address: NETWORK/ADDRESS, or only the address."""
        return f"{self.network}/{address}" if self.network else address

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        return self.attachment_of(peer[0]) if peer else ""


@dataclass(frozen=True, slots=True)
class PortIdentity:
    """Identifies a VM by the port that was called: for labs with one loopback address and a port per VM."""

    kind: ClassVar[IdentityKind] = IdentityKind.PORT

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        """Return the local port of the connection, as text; `peer` does not matter."""
        return str(sock.getsockname()[1])


@dataclass(frozen=True, slots=True)
class DedicatedIdentity:
    """Identifies the only VM that can reach a listener, such as one inside the VM's network namespace.

    Assign `dedicated_attachment(vm)` to the VM's key in the `CallerDirectory`; otherwise the caller is unknown.
    """

    kind: ClassVar[IdentityKind] = IdentityKind.DEDICATED
    vm: str  # names the listener: the VM's key, or for a configured listener the name of the network namespace

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        """Return the same attachment for every connection: `within:VM`, as `dedicated_attachment(self.vm)`."""
        return dedicated_attachment(self.vm)


def dedicated_attachment(vm: str) -> str:
    """Return `within:VM`, the attachment of a listener that only this VM can reach."""
    return f"within:{vm}"


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Identifies a VM by the network device of the connection, for hosts with one device per VM (a tap)."""

    kind: ClassVar[IdentityKind] = IdentityKind.DEVICE
    namespace: str = ""  # network namespace of the device; "": the one of this process

    def attachment_of(self, device: str) -> str:
        """Return the attachment of the VM with this network device: `device:NAMESPACE/DEVICE`."""
        return f"device:{self.namespace}/{device}"

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        device = bound_device(sock)
        return self.attachment_of(device) if device else ""


@dataclass(frozen=True, slots=True)
class MarkIdentity:
    """Identifies a VM by the firewall mark of its packets, for a bridge whose ports set one mark per VM.

    The kernel copies the mark to the accepted socket if `tcp_fwmark_accept` is 1 in the listener's network namespace;
    otherwise every connection has mark 0, so `open_listener` rejects such a listener.
    """

    kind: ClassVar[IdentityKind] = IdentityKind.MARK
    device: str  # of the listener, such as the bridge
    namespace: str = ""  # network namespace of the device; "": the one of this process

    def attachment_of(self, mark: int) -> str:
        """Return the attachment of the VM whose packets have this mark: `mark:NAMESPACE/DEVICE/MARK`."""
        return f"mark:{self.namespace}/{self.device}/{mark}"

    def attachment(self, sock: socket.socket, peer: PeerAddress) -> str:
        try:
            return self.attachment_of(sock.getsockopt(_SOL_SOCKET, _SO_MARK))
        except OSError:
            return ""


def bound_device(sock: socket.socket) -> str:
    """Return the current name of the network device that a socket is bound to."""
    try:
        name: bytes = sock.getsockopt(_SOL_SOCKET, _SO_BINDTODEVICE, _IFNAMSIZ)
    except OSError:
        return ""
    return name.rstrip(b"\0").decode(errors="replace")


def is_loopback_peer(strategy: IdentityStrategy, peer: PeerAddress) -> bool:
    """Return whether the VM is identified by a loopback source address, which every local program can use."""
    if not isinstance(strategy, SourceAddressIdentity) or not peer:
        return False
    return str(peer[0]).startswith("127.") or peer[0] == "::1"


class CallerDirectory:
    """Says which VM a connection comes from: maps attachments to keys of VMs; empty at first.

    An attachment has at most one VM: assigning it to another takes it from the first. Assignments may change while the
    server runs.
    """

    def __init__(self) -> None:
        self._vm_by_attachment: dict[str, str] = {}
        self._release_subscribers: list[Callable[[list[str]], None]] = []
        self._assignment_subscribers: list[Callable[[str, str | None], None]] = []

    def subscribe_assignments(self, callback: Callable[[str, str | None], None]) -> None:
        """Call `callback(attachment, VM key)`, now for each assignment and then within every change."""
        self._assignment_subscribers.append(callback)
        for attachment, vm in self._vm_by_attachment.items():
            callback(attachment, vm)

    def subscribe_releases(self, callback: Callable[[list[str]], None]) -> None:
        """Call `callback([key])` with the VM that loses an attachment, before another VM can get that."""
        self._release_subscribers.append(callback)

    def assign(self, attachment: str, vm: str) -> None:
        """Assign an attachment to a VM (its key); another VM that had it loses it first."""
        if self._vm_by_attachment.get(attachment) != vm:
            self.release(attachment)
            self._vm_by_attachment[attachment] = vm
            for callback in self._assignment_subscribers:
                callback(attachment, vm)

    def release(self, attachment: str) -> None:
        """Remove the assignment of an attachment and call the subscribers; does nothing if it has none."""
        vm = self._vm_by_attachment.pop(attachment, None)
        if vm is not None:
            for on_release in self._release_subscribers:
                on_release([vm])
            for on_assignment in self._assignment_subscribers:
                on_assignment(attachment, None)

    def vm_at(self, attachment: str) -> str | None:
        return self._vm_by_attachment.get(attachment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The client of one connection, as identified when that was accepted.

    `vm` stays the same when the attachment is released or assigned to another VM, but the responder then treats the
    caller as unknown.
    """

    attachment: str  # where the connection came in; "": could not be determined
    vm: str | None  # key; None: unknown caller
    is_loopback: bool  # the listener is on loopback, so that only local programs can call it
    from_loopback: bool = False  # it was identified by a loopback source address
