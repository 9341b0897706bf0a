"""DHCP replies of the simulated platform: option 245 names the endpoint (spec §2.5). Pure.

The owner of the socket broadcasts what `dhcp_reply` returns, regardless of the client's flag: a client without an
address can receive nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface

SERVER_PORT, CLIENT_PORT = 67, 68
PLATFORM_ENDPOINT = IPv4Address("168.63.129.16")  # the endpoint outside a virtual network (spec §2.5)

_MAGIC_COOKIE = bytes((99, 130, 83, 99))
_COOKIE_AT, _OPTIONS_AT, _MIN_REPLY_BYTES = 0xEC, 0xF0, 300
(
    _OPTION_PAD,
    _OPTION_SUBNET_MASK,
    _OPTION_ROUTER,
    _OPTION_LEASE_TIME,
    _OPTION_MESSAGE_TYPE,
    _OPTION_SERVER_ID,
    _OPTION_ENDPOINT,
    _OPTION_END,
) = 0, 1, 3, 51, 53, 54, 245, 255
_DISCOVER, _OFFER, _REQUEST, _ACK, _INFORM = 1, 2, 3, 5, 8
_REPLY_TYPES = {_DISCOVER: _OFFER, _REQUEST: _ACK, _INFORM: _ACK}
_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class DhcpLease:
    """The address, router and metadata endpoint that every client of this network gets, for a day."""

    address: IPv4Interface  # also gives the subnet mask
    router: IPv4Address  # the DHCP server too
    endpoint: IPv4Address = PLATFORM_ENDPOINT  # of the metadata service


def dhcp_reply(packet: bytes, lease: DhcpLease) -> bytes | None:
    """Return the reply to a DHCP client's packet; None if the packet is malformed or gets no reply."""
    if len(packet) <= _OPTIONS_AT or packet[0] != 1 or packet[_COOKIE_AT:_OPTIONS_AT] != _MAGIC_COOKIE:
        return None
    message_type = dict(parse_options(packet)).get(_OPTION_MESSAGE_TYPE, b"")
    reply_type = _REPLY_TYPES.get(message_type[0]) if len(message_type) == 1 else None
    if reply_type is None:
        return None
    reply = _reply_header(packet, lease) + _MAGIC_COOKIE + _encode_options(reply_type, lease)
    return reply.ljust(_MIN_REPLY_BYTES, bytes((_OPTION_PAD,)))


def parse_options(packet: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (code, data) of each option of a whole DHCP packet, in its order, without padding."""
    position = _OPTIONS_AT
    while position + 1 < len(packet) and packet[position] != _OPTION_END:
        if packet[position] == _OPTION_PAD:
            position += 1
            continue
        length = packet[position + 1]
        if position + 2 + length > len(packet):
            return
        yield packet[position], packet[position + 2 : position + 2 + length]
        position += 2 + length


def _reply_header(packet: bytes, lease: DhcpLease) -> bytes:
    start = b"\x02" + packet[1:4] + packet[4:8] + b"\0\0" + packet[10:12]
    addresses = packet[12:16] + lease.address.packed + lease.router.packed + packet[24:28]
    return start + addresses + packet[28:44] + bytes(64 + 128)


def _encode_options(message_type: int, lease: DhcpLease) -> bytes:
    options = (
        (_OPTION_MESSAGE_TYPE, bytes((message_type,))),
        (_OPTION_SERVER_ID, lease.router.packed),
        (_OPTION_LEASE_TIME, struct.pack("!I", _DAY_S)),
        (_OPTION_SUBNET_MASK, lease.address.netmask.packed),
        (_OPTION_ROUTER, lease.router.packed),
        (_OPTION_ENDPOINT, lease.endpoint.packed),
    )
    return b"".join(bytes((code, len(data))) + data for code, data in options) + bytes((_OPTION_END,))
