"""The VM's network as its first process sets it up, and the listening socket that the service is given."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface
from typing import Protocol

from forewarn.vm import kernel, netlink
from forewarn.vm.blueprint import Net
from forewarn.vm.dhcp import CLIENT_PORT, ENDPOINT, SERVER_PORT, Lease, reply_to

METADATA = IPv4Address("169.254.169.254")  # spec §2.1
PORT = 80
_LEASE = Lease(address=IPv4Interface("10.0.0.4/24"), router=IPv4Address("10.0.0.1"))
_ANYWHERE, _EVERYBODY = IPv4Interface("0.0.0.0/0"), IPv4Interface("255.255.255.255/32")
_BACKLOG = 1024
_LOOPBACK = IPv4Interface("127.0.0.1/8")
_GET_FLAGS, _GET_ADDRESS, _IFF_UP = 0x8913, 0x8915, 1


class Network(Protocol):
    @property
    def address(self) -> IPv4Address:
        """Where the service is to be found from inside the VM."""

    @property
    def responder(self) -> socket.socket | None:
        """The socket on which DHCP is asked for, where the VM has to ask."""

    def listen(self) -> socket.socket: ...
    def undo(self) -> None:
        """Leave nothing behind in a namespace that is not ours."""


def network_for(net: Net) -> Network:
    """Set up the network of the namespace we are in."""
    kinds: dict[Net, Callable[[], Network]] = {Net.OWN: Own, Net.JOINED: Joined, Net.NO_VNET: NoVnet}
    return kinds[net]()


class Own:
    """A namespace with nothing in it but loopback and the endpoint."""

    address = METADATA
    responder: socket.socket | None = None

    def __init__(self) -> None:
        netlink.bring_up("lo")
        netlink.add_address("lo", IPv4Interface(METADATA))

    def listen(self) -> socket.socket:
        return _listening(self.address)

    def undo(self) -> None:
        """It goes with its last process."""


class Joined:
    """Somebody else's namespace: it gets the endpoint's address only if it has none, and loses it again."""

    address = METADATA
    responder: socket.socket | None = None

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        if not _is_up("lo"):
            self._use_loopback()  # first: in a namespace that was never used any address seems to be its own
        if _is_ours(METADATA):
            return
        netlink.add_address("lo", IPv4Interface(METADATA))
        self._undo.append(lambda: netlink.remove_address("lo", IPv4Interface(METADATA)))

    def _use_loopback(self) -> None:
        if not _has_address("lo"):  # it gets this one by coming up
            self._undo.append(lambda: netlink.remove_address("lo", _LOOPBACK))
        netlink.bring_up("lo")
        self._undo.append(lambda: netlink.bring_down("lo"))

    def listen(self) -> socket.socket:
        return _listening(self.address)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


class NoVnet:
    """A cable to a second namespace, the platform's: DHCP is answered there, and the endpoint lives there."""

    address = ENDPOINT

    def __init__(self) -> None:
        self._vm = _this_namespace()
        kernel.unshare(kernel.NEW_NET)
        self._platform = _this_namespace()
        try:
            self.responder: socket.socket | None = self._build_platform()
        finally:
            kernel.enter(self._vm)
        self._build_vm()

    def _build_platform(self) -> socket.socket:
        netlink.add_pair("platform", "eth0", self._vm)
        for address in (IPv4Interface((_LEASE.router, 24)), IPv4Interface(ENDPOINT)):
            netlink.add_address("platform", address)
        netlink.bring_up("lo")
        netlink.bring_up("platform")
        return _responding("platform")

    def _build_vm(self) -> None:
        netlink.bring_up("lo")
        netlink.add_address("eth0", _LEASE.address)
        netlink.bring_up("eth0")
        netlink.add_route("eth0", _ANYWHERE, _LEASE.router)
        netlink.add_route("eth0", _EVERYBODY)  # discovery sends there, with or without a default route
        netlink.add_dead_end(IPv4Interface(METADATA))  # so that a probe there fails at once, and discovery goes on

    def listen(self) -> socket.socket:
        kernel.enter(self._platform)
        try:
            return _listening(self.address)
        finally:
            kernel.enter(self._vm)

    def undo(self) -> None:
        """Both namespaces go with their last process."""


def answer_discovery(responder: socket.socket) -> None:
    """Take one packet off the socket, and answer it by broadcast."""
    packet, _ = responder.recvfrom(2048)
    reply = reply_to(packet, _LEASE)
    if reply is not None:
        responder.sendto(reply, (str(_EVERYBODY.ip), CLIENT_PORT))


def _listening(address: IPv4Address) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((str(address), PORT))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _responding(device: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
    sock.bind(("0.0.0.0", SERVER_PORT))
    return sock


def _this_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _is_ours(address: IPv4Address) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind((str(address), 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return False
    return True


def _is_up(device: str) -> bool:
    flags = struct.unpack_from("h", _ask_about(device, _GET_FLAGS), 16)[0]
    return bool(flags & _IFF_UP)


def _has_address(device: str) -> bool:
    try:
        _ask_about(device, _GET_ADDRESS)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return False
    return True


def _ask_about(device: str, request: int) -> bytes:
    with socket.socket() as sock:
        return fcntl.ioctl(sock, request, struct.pack("16s24x", device.encode()))
