"""Sets up the VM's network from inside, and opens the listening sockets that the service gets."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Interface
from typing import Protocol

from forewarn.machines.namespace_vm import netlink, syscalls
from forewarn.machines.namespace_vm.dhcp_server import (
    CLIENT_PORT,
    PLATFORM_ENDPOINT,
    SERVER_PORT,
    DhcpLease,
    dhcp_reply,
)
from forewarn.machines.namespace_vm.vm_spec import NetworkMode

METADATA_ADDRESS = IPv4Address("169.254.169.254")  # the endpoint in a virtual network (spec §2.1)
METADATA_PORT = 80
PLATFORM_PORTS = (80, 8080)  # at 168.63.129.16; known clients use one or the other (spec §2.5)
_LEASE = DhcpLease(address=IPv4Interface("10.0.0.4/24"), router=IPv4Address("10.0.0.1"))
_DEFAULT_ROUTE, _BROADCAST = IPv4Interface("0.0.0.0/0"), IPv4Interface("255.255.255.255/32")
_BACKLOG = 1024
_LOOPBACK = IPv4Interface("127.0.0.1/8")
_SIOCGIFFLAGS, _SIOCGIFADDR, _IFF_UP = 0x8913, 0x8915, 1


class VmNetwork(Protocol):
    """The network of a VM, as its init process holds it; constructors set it up, or raise OSError."""

    @property
    def address(self) -> IPv4Address:
        """The address of the metadata endpoint, as the VM reaches it: 169.254.169.254."""

    @property
    def dhcp_socket(self) -> socket.socket | None:
        """The socket on which DHCP requests of the VM arrive; None if the network needs no DHCP."""

    def listen(self) -> list[socket.socket]:
        """Open a new listening socket on each port of the metadata endpoint; the caller closes them."""

    def restore(self) -> None:
        """Undo all changes to a network namespace of the user; do nothing for a namespace of the VM's own."""


def set_up_network(mode: NetworkMode) -> VmNetwork:
    """Set up the current network namespace in this mode, and return its network. OSError if refused."""
    kinds: dict[NetworkMode, Callable[[], VmNetwork]] = {
        NetworkMode.OWN: OwnNetwork,
        NetworkMode.JOINED: JoinedNetwork,
        NetworkMode.NO_VNET: NoVnetNetwork,
    }
    return kinds[mode]()


class OwnNetwork:
    """A new namespace with only loopback and the metadata endpoint, 169.254.169.254, on it."""

    address = METADATA_ADDRESS
    dhcp_socket: socket.socket | None = None  # None: a VM with this network needs no DHCP

    def __init__(self) -> None:
        netlink.bring_up("lo")
        netlink.add_address("lo", IPv4Interface(METADATA_ADDRESS))

    def listen(self) -> list[socket.socket]:
        return _open_listeners(self.address, (METADATA_PORT,))

    def restore(self) -> None:
        """Do nothing: the namespace is the VM's own and ends with its last process."""


class JoinedNetwork:
    """A network namespace of the user; `restore` takes away loopback and 169.254.169.254 if they were added."""

    address = METADATA_ADDRESS
    dhcp_socket: socket.socket | None = None  # None: a VM with this network needs no DHCP

    def __init__(self) -> None:
        self._restore_actions: list[Callable[[], None]] = []
        try:
            self._set_up()
        except OSError:
            with suppress(OSError):  # the first error says what is wrong
                self.restore()
            raise

    def _set_up(self) -> None:
        if not _is_up("lo"):
            self._bring_up_loopback()  # first: with loopback down, any address seems to be local
        if _is_local_address(METADATA_ADDRESS):
            return
        netlink.add_address("lo", IPv4Interface(METADATA_ADDRESS))
        self._restore_actions.append(lambda: netlink.remove_address("lo", IPv4Interface(METADATA_ADDRESS)))

    def _bring_up_loopback(self) -> None:
        if not _has_address("lo"):  # the kernel adds this one when loopback comes up
            self._restore_actions.append(lambda: netlink.remove_address("lo", _LOOPBACK))
        netlink.bring_up("lo")
        self._restore_actions.append(lambda: netlink.bring_down("lo"))

    def listen(self) -> list[socket.socket]:
        return _open_listeners(self.address, (METADATA_PORT,))

    def restore(self) -> None:
        while self._restore_actions:
            self._restore_actions.pop()()


class NoVnetNetwork:
    """A network outside a virtual network: the VM finds the endpoint, 168.63.129.16, by DHCP.

    A veth pair connects the VM (10.0.0.4 on eth0) to a second namespace, the platform's, which has the endpoint and the
    DHCP socket. 169.254.169.254 is unreachable.
    """

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
        netlink.add_route("eth0", _BROADCAST)  # discovery broadcasts even without a default route
        # A probe of the usual address must fail at once, so that discovery continues with DHCP.
        netlink.add_unreachable_route(IPv4Interface(METADATA_ADDRESS))

    def listen(self) -> list[socket.socket]:
        syscalls.enter_namespace(self._platform_netns)
        try:
            return _open_listeners(self.address, PLATFORM_PORTS)
        finally:
            syscalls.enter_namespace(self._vm_netns)

    def restore(self) -> None:
        """Do nothing: the VM's and the platform's namespaces end with their last process."""


def answer_dhcp_packet(dhcp_socket: socket.socket) -> None:
    """Read one packet from the VM's DHCP socket, and broadcast the reply, if there is one."""
    packet, _ = dhcp_socket.recvfrom(2048)
    reply = dhcp_reply(packet, _LEASE)
    if reply is not None:
        dhcp_socket.sendto(reply, (str(_BROADCAST.ip), CLIENT_PORT))


def _open_listeners(address: IPv4Address, ports: Sequence[int]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for port in ports:
            sock = socket.socket()
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(address), port))
            sock.listen(_BACKLOG)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


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
