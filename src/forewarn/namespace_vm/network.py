"""Sets up the VM's network from inside, and opens the listening socket that the service gets."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface
from typing import Protocol

from forewarn.namespace_vm import netlink, syscalls
from forewarn.namespace_vm.dhcp_server import CLIENT_PORT, PLATFORM_ENDPOINT, SERVER_PORT, DhcpLease, dhcp_reply
from forewarn.namespace_vm.vm_spec import NetworkMode

METADATA_ADDRESS = IPv4Address("169.254.169.254")  # spec §2.1
METADATA_PORT = 80
_LEASE = DhcpLease(address=IPv4Interface("10.0.0.4/24"), router=IPv4Address("10.0.0.1"))
_DEFAULT_ROUTE, _BROADCAST = IPv4Interface("0.0.0.0/0"), IPv4Interface("255.255.255.255/32")
_BACKLOG = 1024
_LOOPBACK = IPv4Interface("127.0.0.1/8")
_SIOCGIFFLAGS, _SIOCGIFADDR, _IFF_UP = 0x8913, 0x8915, 1


class VmNetwork(Protocol):
    @property
    def address(self) -> IPv4Address:
        """Where the service is to be found from inside the VM."""

    @property
    def dhcp_socket(self) -> socket.socket | None:
        """The socket on which DHCP is asked for, where the VM has to ask."""

    def listen(self) -> socket.socket: ...
    def restore(self) -> None:
        """Leave nothing behind in a namespace that is not ours."""


def set_up_network(net: NetworkMode) -> VmNetwork:
    """Set up the network of the namespace we are in."""
    kinds: dict[NetworkMode, Callable[[], VmNetwork]] = {
        NetworkMode.OWN: OwnNetwork,
        NetworkMode.JOINED: JoinedNetwork,
        NetworkMode.NO_VNET: NoVnetNetwork,
    }
    return kinds[net]()


class OwnNetwork:
    """A namespace with nothing in it but loopback and the endpoint."""

    address = METADATA_ADDRESS
    dhcp_socket: socket.socket | None = None

    def __init__(self) -> None:
        netlink.bring_up("lo")
        netlink.add_address("lo", IPv4Interface(METADATA_ADDRESS))

    def listen(self) -> socket.socket:
        return _open_listener(self.address)

    def restore(self) -> None:
        """It goes with its last process."""


class JoinedNetwork:
    """Somebody else's namespace: it gets the endpoint's address only if it has none, and loses it again."""

    address = METADATA_ADDRESS
    dhcp_socket: socket.socket | None = None

    def __init__(self) -> None:
        self._restore_actions: list[Callable[[], None]] = []
        if not _is_up("lo"):
            self._bring_up_loopback()  # first: in a namespace that was never used any address seems to be its own
        if _is_local_address(METADATA_ADDRESS):
            return
        netlink.add_address("lo", IPv4Interface(METADATA_ADDRESS))
        self._restore_actions.append(lambda: netlink.remove_address("lo", IPv4Interface(METADATA_ADDRESS)))

    def _bring_up_loopback(self) -> None:
        if not _has_address("lo"):  # it gets this one by coming up
            self._restore_actions.append(lambda: netlink.remove_address("lo", _LOOPBACK))
        netlink.bring_up("lo")
        self._restore_actions.append(lambda: netlink.bring_down("lo"))

    def listen(self) -> socket.socket:
        return _open_listener(self.address)

    def restore(self) -> None:
        while self._restore_actions:
            self._restore_actions.pop()()


class NoVnetNetwork:
    """A cable to a second namespace, the platform's: DHCP is answered there, and the endpoint lives there."""

    address = PLATFORM_ENDPOINT

    def __init__(self) -> None:
        self._vm_netns = _open_current_netns()
        syscalls.unshare(syscalls.CLONE_NEWNET)
        self._platform_netns = _open_current_netns()
        try:
            self.dhcp_socket: socket.socket | None = self._build_platform()
        finally:
            syscalls.enter_namespace(self._vm_netns)
        self._build_vm()

    def _build_platform(self) -> socket.socket:
        netlink.add_veth_pair("platform", "eth0", self._vm_netns)
        for address in (IPv4Interface((_LEASE.router, 24)), IPv4Interface(PLATFORM_ENDPOINT)):
            netlink.add_address("platform", address)
        netlink.bring_up("lo")
        netlink.bring_up("platform")
        return _open_dhcp_socket("platform")

    def _build_vm(self) -> None:
        netlink.bring_up("lo")
        netlink.add_address("eth0", _LEASE.address)
        netlink.bring_up("eth0")
        netlink.add_route("eth0", _DEFAULT_ROUTE, _LEASE.router)
        netlink.add_route("eth0", _BROADCAST)  # discovery sends there, with or without a default route
        netlink.add_unreachable_route(
            IPv4Interface(METADATA_ADDRESS)
        )  # so that a probe there fails at once, and discovery goes on

    def listen(self) -> socket.socket:
        syscalls.enter_namespace(self._platform_netns)
        try:
            return _open_listener(self.address)
        finally:
            syscalls.enter_namespace(self._vm_netns)

    def restore(self) -> None:
        """Both namespaces go with their last process."""


def answer_dhcp_packet(responder: socket.socket) -> None:
    """Take one packet off the socket, and answer it by broadcast."""
    packet, _ = responder.recvfrom(2048)
    reply = dhcp_reply(packet, _LEASE)
    if reply is not None:
        responder.sendto(reply, (str(_BROADCAST.ip), CLIENT_PORT))


def _open_listener(address: IPv4Address) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((str(address), METADATA_PORT))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _open_dhcp_socket(device: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
    sock.bind(("0.0.0.0", SERVER_PORT))
    return sock


def _open_current_netns() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _is_local_address(address: IPv4Address) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind((str(address), 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return False
    return True


def _is_up(device: str) -> bool:
    flags = struct.unpack_from("h", _interface_ioctl(device, _SIOCGIFFLAGS), 16)[0]
    return bool(flags & _IFF_UP)


def _has_address(device: str) -> bool:
    try:
        _interface_ioctl(device, _SIOCGIFADDR)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return False
    return True


def _interface_ioctl(device: str, request: int) -> bytes:
    with socket.socket() as sock:
        return fcntl.ioctl(sock, request, struct.pack("16s24x", device.encode()))
