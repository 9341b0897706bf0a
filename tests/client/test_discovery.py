"""Looking for the service where nobody has said where it is (spec §2.5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.client import Discovery, Endpoint, Unreachable
from forewarn.client.dhcp import Interface, discover_packet, endpoint_in, interfaces
from forewarn.client.discovery import answers_as_ours, discovered
from forewarn.client.endpoint import read_endpoint
from forewarn.client.move import Broken, Do, Pause, Run, Send
from forewarn.errors import Unavailable
from forewarn.protocol.message import Response
from forewarn.testing.scripted import Reply, Scripted, says
from forewarn.vm.dhcp import Lease, reply_to

Driver = Callable[..., Any]
XID, MAC = b"\x01\x02\x03\x04", b"\x02\x00\x00\x00\x00\x09"
LEASE = Lease(address=IPv4Interface("10.0.0.4/24"), router=IPv4Address("10.0.0.1"))
ETH0 = Interface(name="eth0", mac=MAC)
DOCUMENT = Response(status=200, body=b'{"DocumentIncarnation":1,"Events":[]}')
STRANGER = Response(status=404, body=b"<html>not here</html>")


def error(status: int, said: object) -> Response:
    return Response(status=status, body=json.dumps(said).encode())


@pytest.mark.parametrize(
    ("response", "is_ours"),
    [
        (DOCUMENT, True),
        (error(400, {"error": "Bad request. api-version is invalid", "newest-versions": []}), True),
        (error(404, {"error": "Not found"}), True),
        (Response(status=200), True),
        *((Response(status=status), True) for status in (410, 429, 500, 503)),
        (STRANGER, False),
        (Response(status=200, body=b"latest\n"), False),
        (Response(status=200, body=b'{"vm":"x"}'), False),
        (Response(status=200, body=b"[]"), False),
        (Response(status=401), False),
        (error(403, {"error": "no"}), False),
        (error(404, {"message": "no"}), False),
    ],
)
def test_only_what_speaks_of_scheduled_events_is_taken_for_the_service(response: Response, is_ours: bool) -> None:
    """Other clouds have other services at 169.254.169.254; a service with a bad day is still the service (spec §11)."""
    assert answers_as_ours(response) is is_ours


def look(
    answers: dict[str, Response | Exception], offers: dict[str, str | Exception | None], **how: Any
) -> tuple[list[str], Endpoint | Exception]:
    """What is done, in order, and what it comes to; who is not in `answers` does not answer."""
    done: list[str] = []

    def ask(interface: Interface) -> str | None:
        done.append(f"ask on {interface.name}")
        offer = offers[interface.name]
        if isinstance(offer, Exception):
            raise offer
        return offer

    found = [Interface(name=name, mac=MAC) for name in offers]
    run = Run(discovered(Discovery(interfaces=lambda: found, ask=ask, **how)))
    try:
        while (move := run.move()) is not None:
            match move:
                case Send(endpoint=endpoint):
                    done.append(str(endpoint))
                    answer = answers.get(str(endpoint), Unreachable("no"))
                    run.failed(answer) if isinstance(answer, Exception) else run.came(answer)
                case Pause(s=s):
                    done.append(f"pause {s:g}")
                case Do(call=call):
                    try:
                        run.came(call())
                    except Unavailable as trouble:
                        run.failed(trouble)
    except Unavailable as refusal:
        return done, refusal
    return done, run.result


def test_the_well_known_address_is_taken_if_it_answers_and_dhcp_is_not_asked() -> None:
    done, found = look({"http://169.254.169.254": DOCUMENT}, {"eth0": "168.63.129.16"})
    assert (done, str(found)) == (["http://169.254.169.254"], "http://169.254.169.254")


def test_without_it_the_address_of_option_245_is_taken_on_whichever_port_answers() -> None:
    done, found = look({"http://168.63.129.16:8080": DOCUMENT}, {"eth0": None, "eth1": "168.63.129.16"})
    assert str(found) == "http://168.63.129.16:8080"
    assert done == [
        *("http://169.254.169.254", "pause 0", "ask on eth0", "ask on eth1"),
        *("http://168.63.129.16", "http://168.63.129.16:8080"),
    ]


def test_a_stranger_at_the_well_known_address_or_at_the_one_of_dhcp_is_not_taken() -> None:
    done, found = look({"http://169.254.169.254": STRANGER, "http://10.0.0.9": STRANGER}, {"eth0": "10.0.0.9"})
    assert isinstance(found, Unreachable)
    assert done.count("ask on eth0") == 2


def test_a_broken_answer_is_asked_for_again_before_dhcp_is() -> None:
    done, _ = look({"http://169.254.169.254": Broken("no")}, {})
    assert done[:6] == ["http://169.254.169.254", "pause 1"] * 3


def test_looking_ends_and_says_what_was_tried() -> None:
    done, found = look({}, {f"eth{number}": None for number in range(200)}, waits_s=(0, 7))
    assert str(found) == (
        "no endpoint was found: http://169.254.169.254 does not answer, and nobody names one by DHCP: "
        "set FOREWARN_ENDPOINT, or check the network"
    )
    assert [step for step in done if step.startswith("pause")] == ["pause 0", "pause 7"]
    assert len(done) < 15


def test_a_missing_privilege_is_said_and_does_not_hide_another_interface() -> None:
    needs = Unavailable("DHCP needs root, or this and that: name the endpoint")
    _, found = look({}, {"eth0": needs}, waits_s=(0,))
    assert "does not answer, and DHCP needs root, or this and that: set FOREWARN_ENDPOINT" in str(found)
    _, found = look({"http://10.0.0.9": DOCUMENT}, {"eth0": needs, "eth1": "10.0.0.9"})
    assert str(found) == "http://10.0.0.9"


def test_dhcp_can_be_left_out() -> None:
    done, found = look({}, {"eth0": "10.0.0.9"}, waits_s=())
    assert done == ["http://169.254.169.254"]
    assert "DHCP was not asked" in str(found)


def test_a_client_discovers_with_its_first_question_and_remembers(driver: Driver) -> None:
    with Scripted(says({"DocumentIncarnation": 1, "Events": []})) as server:
        one = driver(None, discovery=Discovery(well_known=read_endpoint(server.url), waits_s=()))
        assert server.requests == []
        one.call("events")
        assert str(one.call("discover")) == server.url
        one.call("events")
    assert len(server.requests) == 3, "a probe and two questions"


def test_a_watcher_goes_on_looking(driver: Driver) -> None:
    """A VM may be up before its metadata service is."""
    tries: list[str] = []

    def ask(interface: Interface) -> str | None:
        tries.append(interface.name)
        if len(tries) < 3:
            raise Unavailable("not yet: wait")
        return None

    with Scripted(Reply(status=404), Reply(status=404), says({"DocumentIncarnation": 4, "Events": []})) as server:
        how = Discovery(well_known=read_endpoint(server.url), waits_s=(0,), interfaces=lambda: [ETH0], ask=ask)
        (document,) = driver(None, discovery=how).take(1, "documents")
    assert document.incarnation == 4
    assert tries == ["eth0", "eth0"]


def test_the_question_is_the_packet_that_servers_in_the_wild_are_asked_with() -> None:
    """Evidence §9; with the broadcast flag."""
    packet = discover_packet(XID, MAC)
    assert len(packet) == 244
    assert (packet[0:4], packet[4:8], packet[0x0A], packet[0x1C:0x22]) == (bytes((1, 1, 6, 0)), XID, 0x80, MAC)
    assert packet[0xEC:] == bytes((99, 130, 83, 99, 53, 1, 1, 255))


def test_the_endpoint_is_read_from_the_answer_to_our_own_question() -> None:
    reply = reply_to(discover_packet(XID, MAC), LEASE)
    assert reply is not None
    assert endpoint_in(reply, xid=XID, mac=MAC) == "168.63.129.16"
    assert endpoint_in(reply, xid=b"else", mac=MAC) is None
    assert endpoint_in(reply, xid=XID, mac=b"others") is None
    assert endpoint_in(b"\x01" + reply[1:], xid=XID, mac=MAC) is None
    assert endpoint_in(discover_packet(XID, MAC), xid=XID, mac=MAC) is None


@pytest.mark.parametrize(
    "options",
    [
        b"",
        bytes((53, 1, 2, 255)),
        bytes((245, 3, 1, 2, 3, 255)),
        bytes((245, 9, 1, 2, 3, 4)),
        bytes((245, 4, 0, 0, 0, 0, 255)),
        bytes((255, 245, 4, 1, 2, 3, 4)),
    ],
    ids=["none", "no endpoint", "short", "cut off", "zero", "after the end"],
)
def test_an_answer_without_a_whole_address_names_none(options: bytes) -> None:
    packet = b"\x02" + discover_packet(XID, MAC)[1:0xF0] + options.ljust(8, b"\0")
    assert endpoint_in(packet, xid=XID, mac=MAC) is None


@given(st.binary(max_size=600))
@settings(max_examples=200, deadline=None)
def test_no_packet_can_upset_the_reader(noise: bytes) -> None:
    for packet in (noise, b"\x02" + discover_packet(XID, MAC)[1:0xF0] + noise):
        found = endpoint_in(packet, xid=XID, mac=MAC)
        assert found is None or IPv4Address(found)


def test_only_ethernet_interfaces_are_asked_on() -> None:
    """Loopback is none."""
    found = interfaces()
    assert "lo" not in [interface.name for interface in found]
    assert all(len(interface.mac) == 6 and any(interface.mac) for interface in found)
