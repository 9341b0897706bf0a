"""Asks DHCP for the endpoint: a DISCOVER, and option 245 of the offer (spec §2.5).

Packets are built and parsed purely; `ask_for_endpoint` owns the socket. The offered address is never claimed.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from forewarn.errors import Unavailable

ANSWER_TIMEOUT_S = 4.0  # of one try; some servers probe the address for three seconds before they offer it
TRY_DELAYS_S = (0.0, 2.0)  # before each try
_SERVER_PORT, _CLIENT_PORT = 67, 68
_MAGIC_COOKIE = bytes((99, 130, 83, 99))
_XID_AT, _FLAGS_AT, _MAC_AT, _COOKIE_AT, _OPTIONS_AT, _MIN_PACKET_BYTES = 0x04, 0x0A, 0x1C, 0xEC, 0xF0, 0xF6
_BOOTREPLY, _OPTION_PAD, _OPTION_ENDPOINT, _OPTION_END = 2, 0, 245, 255
_SIOCGIFHWADDR, _ARPHRD_ETHER = 0x8927, 1  # Linux constants


@dataclass(frozen=True, slots=True, kw_only=True)
class EthernetInterface:
    """A network interface on which DHCP can be asked."""

    name: str  # such as eth0
    mac: bytes  # 6 bytes


def encode_discover(xid: bytes, mac: bytes) -> bytes:
    """Encode a DHCPDISCOVER of 244 bytes that asks for a broadcast answer.

    The answer must be broadcast because a client without an address could not receive a unicast one.
    """
    packet = bytearray(_OPTIONS_AT)
    packet[0:4] = bytes((1, 1, 6, 0))
    packet[_XID_AT : _XID_AT + 4] = xid
    packet[_FLAGS_AT] = 0x80
    packet[_MAC_AT : _MAC_AT + 6] = mac
    packet[_COOKIE_AT:_OPTIONS_AT] = _MAGIC_COOKIE
    return bytes(packet) + bytes((53, 1, 1, _OPTION_END))


def endpoint_from_offer(packet: bytes, *, xid: bytes, mac: bytes) -> str | None:
    """Return the endpoint's IPv4 address from option 245 of a DHCP offer, as text."""
    is_ours = (
        len(packet) >= _MIN_PACKET_BYTES
        and packet[0] == _BOOTREPLY
        and packet[_COOKIE_AT:_OPTIONS_AT] == _MAGIC_COOKIE
        and packet[_XID_AT : _XID_AT + 4] == xid
        and packet[_MAC_AT : _MAC_AT + 6] == mac
    )
    if not is_ours:
        return None
    address = next((data for code, data in _parse_options(packet) if code == _OPTION_ENDPOINT), b"")
    return socket.inet_ntoa(address) if len(address) == 4 and any(address) else None


def _parse_options(packet: bytes) -> Iterator[tuple[int, bytes]]:
    offset = _OPTIONS_AT
    while offset + 1 < len(packet) and packet[offset] != _OPTION_END:
        if packet[offset] == _OPTION_PAD:
            offset += 1
            continue
        end = offset + 2 + packet[offset + 1]
        if end > len(packet):
            return
        yield packet[offset], packet[offset + 2 : end]
        offset = end


def ethernet_interfaces() -> tuple[EthernetInterface, ...]:
    """List this network namespace's Ethernet interfaces, even inactive ones, in the kernel's order.

    It asks the kernel, because /sys may show another namespace's interfaces.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        found = (_parse_interface(name, _read_hardware_address(sock, name)) for _, name in socket.if_nameindex())
        return tuple(interface for interface in found if interface is not None)


def _read_hardware_address(sock: socket.socket, name: str) -> bytes:
    try:
        return fcntl.ioctl(sock, _SIOCGIFHWADDR, struct.pack("40s", name.encode()))
    except OSError:  # the interface is gone
        return b""


def _parse_interface(name: str, hardware: bytes) -> EthernetInterface | None:
    """Parses the kernel's answer: name (16 bytes), hardware type (2 bytes), address."""
    is_ethernet = len(hardware) >= 24 and struct.unpack_from("=H", hardware, 16) == (_ARPHRD_ETHER,)
    mac = hardware[18:24]
    return EthernetInterface(name=name, mac=mac) if is_ethernet and any(mac) else None


def ask_for_endpoint(interface: EthernetInterface, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> str | None:
    """Ask DHCP once on this interface; the first endpoint offered, or None. Needs root and UDP port 68."""
    xid = os.urandom(4)
    try:
        with _open_socket(interface) as sock:
            sock.sendto(encode_discover(xid, interface.mac), ("255.255.255.255", _SERVER_PORT))
            return _receive_endpoint(sock, xid, interface.mac, time.monotonic() + answer_timeout_s)
    except PermissionError as error:
        raise Unavailable("DHCP needs root, or CAP_NET_BIND_SERVICE and CAP_NET_RAW: name the endpoint") from error
    except OSError as error:
        raise Unavailable(f"DHCP on {interface.name} failed ({error.strerror or error}): name the endpoint") from error


def _open_socket(interface: EthernetInterface) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        for option in (socket.SO_BROADCAST, socket.SO_REUSEADDR):
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, struct.pack("16s", interface.name.encode()))
        sock.bind(("0.0.0.0", _CLIENT_PORT))
    except OSError:
        sock.close()
        raise
    return sock


def _receive_endpoint(sock: socket.socket, xid: bytes, mac: bytes, deadline: float) -> str | None:
    """Waits for the offer, and ignores answers to other clients and offers without the option."""
    while (left_s := deadline - time.monotonic()) > 0:
        sock.settimeout(left_s)
        try:
            packet = sock.recv(2048)
        except TimeoutError:
            return None
        if endpoint := endpoint_from_offer(packet, xid=xid, mac=mac):
            return endpoint
    return None
