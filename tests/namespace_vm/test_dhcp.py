"""Spec §2.5: a VM outside a virtual network gets its endpoint from option 245 of a DHCP reply."""

from ipaddress import IPv4Address, IPv4Interface

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.machines.namespace_vm.dhcp_server import DhcpLease, dhcp_reply, parse_options

LEASE = DhcpLease(address=IPv4Interface("10.0.0.4/24"), router=IPv4Address("10.0.0.1"))
XID, MAC = b"\x12\x34\x56\x78", b"\x02\x00\x00\x00\x00\x01"
COOKIE = bytes((99, 130, 83, 99))


def client_packet(kind: int = 1, *, flags: bytes = b"\0\0") -> bytes:
    """The 244 bytes that real clients send (evidence §9)."""
    header = b"\x01\x01\x06\x00" + XID + b"\0\0" + flags
    return header.ljust(0x1C, b"\0") + MAC.ljust(0xEC - 0x1C, b"\0") + COOKIE + bytes((53, 1, kind, 255))


@pytest.mark.parametrize(
    ("request_type", "reply_type"), [(1, 2), (3, 5), (8, 5)], ids=["discover", "request", "inform"]
)
def test_a_reply_names_the_endpoint_in_option_245(request_type: int, reply_type: int) -> None:
    reply = dhcp_reply(client_packet(request_type), LEASE)

    assert reply is not None
    options = dict(parse_options(reply))
    assert options[53] == bytes((reply_type,))
    assert options[245] == bytes((168, 63, 129, 16))
    assert options[3] == options[54] == bytes((10, 0, 0, 1))
    assert options[1] == bytes((255, 255, 255, 0))


@pytest.mark.parametrize("flags", [b"\0\0", b"\x80\0"], ids=["unicast", "broadcast"])
def test_a_reply_has_the_fields_that_clients_compare(flags: bytes) -> None:
    """Evidence §9, step 5: length, cookie, transaction and hardware address."""
    packet = client_packet(flags=flags)

    reply = dhcp_reply(packet, LEASE)

    assert reply is not None
    assert reply[0] == 2
    assert len(reply) >= 0xF6
    assert reply[0xEC:0xF0] == COOKIE
    assert reply[4:8] == XID
    assert reply[0x1C : 0x1C + 6] == MAC
    assert reply[16:20] == bytes((10, 0, 0, 4))
    assert reply[10:12] == flags


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        client_packet()[:0xF0],
        b"\x02" + client_packet()[1:],
        client_packet()[:0xEC] + b"\0\0\0\0" + client_packet()[0xF0:],
        client_packet(kind=7),
        client_packet()[:0xF0] + bytes((53, 9, 1, 255)),
        client_packet()[:0xF0] + b"\xff",
    ],
    ids=["empty", "no options", "an answer", "another cookie", "a release", "cut off", "no kind"],
)
def test_a_packet_that_is_no_request_gets_no_reply(packet: bytes) -> None:
    assert dhcp_reply(packet, LEASE) is None


@given(st.binary(max_size=600))
@settings(max_examples=200, deadline=None)
def test_no_packet_makes_the_dhcp_server_fail(data: bytes) -> None:
    for packet in (data, client_packet()[:0xF0] + data):
        reply = dhcp_reply(packet, LEASE)
        assert reply is None or len(reply) >= 300
