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
from forewarn.client.dhcp import EthernetInterface, encode_discover, endpoint_from_offer, ethernet_interfaces
from forewarn.client.discovery import discover_endpoint, is_scheduled_events_response
from forewarn.client.effects import CallFunction, FlowRunner, IncompleteResponse, SendRequest, Sleep
from forewarn.client.endpoint import parse_endpoint
from forewarn.errors import Unavailable
from forewarn.namespace_vm.dhcp_server import DhcpLease, dhcp_reply
from forewarn.protocol.http_message import HttpResponse
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

Driver = Callable[..., Any]
XID, MAC = b"\x01\x02\x03\x04", b"\x02\x00\x00\x00\x00\x09"
LEASE = DhcpLease(address=IPv4Interface("10.0.0.4/24"), router=IPv4Address("10.0.0.1"))
ETH0 = EthernetInterface(name="eth0", mac=MAC)
DOCUMENT = HttpResponse(status=200, body=b'{"DocumentIncarnation":1,"Events":[]}')
STRANGER = HttpResponse(status=404, body=b"<html>not here</html>")


def error(status: int, said: object) -> HttpResponse:
    return HttpResponse(status=status, body=json.dumps(said).encode())


@pytest.mark.parametrize(
    ("response", "is_ours"),
    [
        (DOCUMENT, True),
        (error(400, {"error": "Bad request. api-version is invalid", "newest-versions": []}), True),
        (error(404, {"error": "Not found"}), True),
        (HttpResponse(status=200), True),
        *((HttpResponse(status=status), True) for status in (410, 429, 500, 503)),
        (STRANGER, False),
        (HttpResponse(status=200, body=b"latest\n"), False),
        (HttpResponse(status=200, body=b'{"vm":"x"}'), False),
        (HttpResponse(status=200, body=b"[]"), False),
        (HttpResponse(status=401), False),
        (error(403, {"error": "no"}), False),
        (error(404, {"message": "no"}), False),
    ],
)
def test_only_what_speaks_of_scheduled_events_is_taken_for_the_service(response: HttpResponse, is_ours: bool) -> None:
    """Other clouds have other services at 169.254.169.254; a service with a bad day is still the service (spec §11)."""
    assert is_scheduled_events_response(response) is is_ours


def look(
    answers: dict[str, HttpResponse | Exception], offers: dict[str, str | Exception | None], **how: Any
) -> tuple[list[str], Endpoint | Exception]:
    """What is done, in order, and what it comes to; who is not in `answers` does not answer."""
    done: list[str] = []

    def ask(interface: EthernetInterface) -> str | None:
        done.append(f"ask on {interface.name}")
        offer = offers[interface.name]
        if isinstance(offer, Exception):
            raise offer
        return offer

    found = [EthernetInterface(name=name, mac=MAC) for name in offers]
    run = FlowRunner(discover_endpoint(Discovery(interfaces=lambda: found, ask=ask, **how)))
    try:
        while (move := run.next_effect()) is not None:
            match move:
                case SendRequest(endpoint=endpoint):
                    done.append(str(endpoint))
                    answer = answers.get(str(endpoint), Unreachable("no"))
                    run.set_error(answer) if isinstance(answer, Exception) else run.set_result(answer)
                case Sleep(seconds=seconds):
                    done.append(f"pause {seconds:g}")
                case CallFunction(function=function):
                    try:
                        run.set_result(function())
                    except Unavailable as trouble:
                        run.set_error(trouble)
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
    done, _ = look({"http://169.254.169.254": IncompleteResponse("no")}, {})
    assert done[:6] == ["http://169.254.169.254", "pause 1"] * 3


def test_looking_ends_and_says_what_was_tried() -> None:
    done, found = look({}, {f"eth{number}": None for number in range(200)}, waits_s=(0, 7))
    assert str(found) == (
        "no endpoint was found: http://169.254.169.254 does not answer, and no DHCP server names one: "
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
    with ScriptedServer(json_reply({"DocumentIncarnation": 1, "Events": []})) as server:
        one = driver(None, discovery=Discovery(well_known=parse_endpoint(server.url), waits_s=()))
        assert server.requests == []
        one.call("events")
        assert str(one.call("discover")) == server.url
        one.call("events")
    assert len(server.requests) == 3, "a probe and two questions"


def test_a_watcher_goes_on_looking(driver: Driver) -> None:
    """A VM may be up before its metadata service is."""
    tries: list[str] = []

    def ask(interface: EthernetInterface) -> str | None:
        tries.append(interface.name)
        if len(tries) < 3:
            raise Unavailable("not yet: wait")
        return None

    with ScriptedServer(
        ScriptedReply(status=404), ScriptedReply(status=404), json_reply({"DocumentIncarnation": 4, "Events": []})
    ) as server:
        how = Discovery(well_known=parse_endpoint(server.url), waits_s=(0,), interfaces=lambda: [ETH0], ask=ask)
        (document,) = driver(None, discovery=how).take(1, "documents")
    assert document.incarnation == 4
    assert tries == ["eth0", "eth0"]


def test_the_question_is_the_packet_that_servers_in_the_wild_are_asked_with() -> None:
    """Evidence §9; with the broadcast flag."""
    packet = encode_discover(XID, MAC)
    assert len(packet) == 244
    assert (packet[0:4], packet[4:8], packet[0x0A], packet[0x1C:0x22]) == (bytes((1, 1, 6, 0)), XID, 0x80, MAC)
    assert packet[0xEC:] == bytes((99, 130, 83, 99, 53, 1, 1, 255))


def test_the_endpoint_is_read_from_the_answer_to_our_own_question() -> None:
    reply = dhcp_reply(encode_discover(XID, MAC), LEASE)
    assert reply is not None
    assert endpoint_from_offer(reply, xid=XID, mac=MAC) == "168.63.129.16"
    assert endpoint_from_offer(reply, xid=b"else", mac=MAC) is None
    assert endpoint_from_offer(reply, xid=XID, mac=b"others") is None
    assert endpoint_from_offer(b"\x01" + reply[1:], xid=XID, mac=MAC) is None
    assert endpoint_from_offer(encode_discover(XID, MAC), xid=XID, mac=MAC) is None


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
    packet = b"\x02" + encode_discover(XID, MAC)[1:0xF0] + options.ljust(8, b"\0")
    assert endpoint_from_offer(packet, xid=XID, mac=MAC) is None


@given(st.binary(max_size=600))
@settings(max_examples=200, deadline=None)
def test_no_packet_can_upset_the_reader(noise: bytes) -> None:
    for packet in (noise, b"\x02" + encode_discover(XID, MAC)[1:0xF0] + noise):
        found = endpoint_from_offer(packet, xid=XID, mac=MAC)
        assert found is None or IPv4Address(found)


def test_only_ethernet_interfaces_are_asked_on() -> None:
    """Loopback is none."""
    found = ethernet_interfaces()
    assert "lo" not in [interface.name for interface in found]
    assert all(len(interface.mac) == 6 and any(interface.mac) for interface in found)
