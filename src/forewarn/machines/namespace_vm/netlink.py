"""Changes links, addresses and routes of the current network namespace by rtnetlink, without `ip`."""

from __future__ import annotations

import os
import socket
import struct
from ipaddress import IPv4Address, IPv4Interface

_NLMSG_ERROR = 2
_RTM_NEWLINK, _RTM_NEWADDR, _RTM_DELADDR, _RTM_NEWROUTE = 16, 20, 21, 24
_REQUEST, _ACK, _CREATE = 0x1, 0x4, 0x400 | 0x200  # create, and fail if it exists
_IFF_UP = 1
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 18, 28
_LINKINFO_KIND, _LINKINFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DESTINATION, _RTA_DEVICE, _RTA_GATEWAY = 1, 4, 5
_TABLE_MAIN, _PROTOCOL_STATIC, _SCOPE_LINK, _SCOPE_UNIVERSE = 254, 4, 253, 0
_UNICAST, _UNREACHABLE = 1, 7


def bring_up(device: str) -> None:
    """Set a network interface of the current namespace up; nothing changes if it is up already."""
    _send_request(_RTM_NEWLINK, _link_header(socket.if_nametoindex(device), flags=_IFF_UP))


def bring_down(device: str) -> None:
    """Set a network interface of the current namespace down; nothing changes if it is down already."""
    _send_request(_RTM_NEWLINK, _link_header(socket.if_nametoindex(device), flags=0))


def add_address(device: str, interface: IPv4Interface) -> None:
    """Add an address with its prefix length to a device (by name) of the current namespace."""
    _send_request(_RTM_NEWADDR, _address_message(device, interface), _CREATE)


def remove_address(device: str, interface: IPv4Interface) -> None:
    _send_request(_RTM_DELADDR, _address_message(device, interface))


def add_veth_pair(device: str, peer: str, peer_namespace: int) -> None:
    """Create a veth pair: `device` in the current network namespace, `peer` in another one."""
    peer_link = (
        _link_header(0)
        + _text_attribute(_IFLA_IFNAME, peer)
        + _attribute(_IFLA_NET_NS_FD, struct.pack("=I", peer_namespace))
    )
    data = _attribute(_LINKINFO_DATA, _attribute(_VETH_PEER, peer_link))
    info = _attribute(_IFLA_LINKINFO, _text_attribute(_LINKINFO_KIND, "veth") + data)
    _send_request(_RTM_NEWLINK, _link_header(0) + _text_attribute(_IFLA_IFNAME, device) + info, _CREATE)


def add_route(device: str, destination: IPv4Interface, gateway: IPv4Address | None = None) -> None:
    """Add a route to the network of `destination` through a device of the current namespace."""
    length, scope = destination.network.prefixlen, _SCOPE_UNIVERSE if gateway else _SCOPE_LINK
    parts = [
        _route_header(length, scope, _UNICAST),
        _attribute(_RTA_DEVICE, struct.pack("=I", socket.if_nametoindex(device))),
    ]
    if length:
        parts.append(_attribute(_RTA_DESTINATION, destination.network.network_address.packed))
    if gateway:
        parts.append(_attribute(_RTA_GATEWAY, gateway.packed))
    _send_request(_RTM_NEWROUTE, b"".join(parts), _CREATE)


def add_unreachable_route(destination: IPv4Interface) -> None:
    """Make the network of `destination` unreachable, so that connections there fail at once."""
    header = _route_header(destination.network.prefixlen, _SCOPE_UNIVERSE, _UNREACHABLE)
    _send_request(
        _RTM_NEWROUTE, header + _attribute(_RTA_DESTINATION, destination.network.network_address.packed), _CREATE
    )


def _route_header(length: int, scope: int, type_: int) -> bytes:
    return struct.pack("=BBBBBBBBI", socket.AF_INET, length, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, scope, type_, 0)


def _link_header(index: int, *, flags: int = 0) -> bytes:
    changed = _IFF_UP if index else 0  # index 0: a new link
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, changed)


def _address_message(device: str, interface: IPv4Interface) -> bytes:
    length, index = interface.network.prefixlen, socket.if_nametoindex(device)
    header = struct.pack("=BBBBI", socket.AF_INET, length, 0, 0, index)
    return header + _attribute(_IFA_LOCAL, interface.packed) + _attribute(_IFA_ADDRESS, interface.packed)


def _text_attribute(type_: int, text: str) -> bytes:
    return _attribute(type_, text.encode() + b"\0")


def _attribute(type_: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), type_) + value + b"\0" * (-len(value) % 4)


def _send_request(type_: int, body: bytes, flags: int = 0) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:  # 0: NETLINK_ROUTE
        sock.send(struct.pack("=IHHII", 16 + len(body), type_, flags | _REQUEST | _ACK, 1, 0) + body)
        answer = sock.recv(65536)
    message_type, code = struct.unpack_from("=H", answer, 4)[0], struct.unpack_from("=i", answer, 16)[0]
    if message_type == _NLMSG_ERROR and code:
        raise OSError(-code, os.strerror(-code))
