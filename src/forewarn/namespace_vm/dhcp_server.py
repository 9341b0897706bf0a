"""The answers of a platform's DHCP server, as packets: VMs outside a virtual network learn their endpoint from option
245 (spec §2.5). Pure; whoever holds the socket sends what `reply_to` gives, by broadcast, whatever the client's flag
says: a client that has no address yet can hear nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface

SERVER_PORT, CLIENT_PORT = 67, 68
ENDPOINT = IPv4Address("168.63.129.16")  # spec §2.5

_COOKIE = bytes((99, 130, 83, 99))
_COOKIE_AT, _OPTIONS_AT, _SHORTEST = 0xEC, 0xF0, 300
_PAD, _MASK, _ROUTER, _LEASE, _KIND, _SERVER, _ENDPOINT, _END = 0, 1, 3, 51, 53, 54, 245, 255
_DISCOVER, _OFFER, _REQUEST, _ACK, _INFORM = 1, 2, 3, 5, 8
_ANSWERS = {_DISCOVER: _OFFER, _REQUEST: _ACK, _INFORM: _ACK}
_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What every client of this network is told."""

    address: IPv4Interface
    router: IPv4Address
    endpoint: IPv4Address = ENDPOINT


def reply_to(packet: bytes, lease: Lease) -> bytes | None:
    """The answer to a client's packet; None where a server stays silent: another's packet, or nonsense."""
    if len(packet) <= _OPTIONS_AT or packet[0] != 1 or packet[_COOKIE_AT:_OPTIONS_AT] != _COOKIE:
        return None
    kind = dict(options_of(packet)).get(_KIND, b"")
    answer = _ANSWERS.get(kind[0]) if len(kind) == 1 else None
    if answer is None:
        return None
    reply = _header(packet, lease) + _COOKIE + _options(answer, lease)
    return reply.ljust(_SHORTEST, bytes((_PAD,)))


def options_of(packet: bytes) -> Iterator[tuple[int, bytes]]:
    """Each option with its data; a list that is cut off ends where it was cut."""
    at = _OPTIONS_AT
    while at + 1 < len(packet) and packet[at] != _END:
        if packet[at] == _PAD:
            at += 1
            continue
        length = packet[at + 1]
        if at + 2 + length > len(packet):
            return
        yield packet[at], packet[at + 2 : at + 2 + length]
        at += 2 + length


def _header(packet: bytes, lease: Lease) -> bytes:
    """The client's own header, with an address for it: its transaction and hardware address come back unchanged."""
    start = b"\x02" + packet[1:4] + packet[4:8] + b"\0\0" + packet[10:12]
    addresses = packet[12:16] + lease.address.packed + lease.router.packed + packet[24:28]
    return start + addresses + packet[28:44] + bytes(64 + 128)


def _options(kind: int, lease: Lease) -> bytes:
    given = (
        (_KIND, bytes((kind,))),
        (_SERVER, lease.router.packed),
        (_LEASE, struct.pack("!I", _DAY_S)),
        (_MASK, lease.address.netmask.packed),
        (_ROUTER, lease.router.packed),
        (_ENDPOINT, lease.endpoint.packed),
    )
    return b"".join(bytes((code, len(data))) + data for code, data in given) + bytes((_END,))
