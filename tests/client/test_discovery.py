"""Discovery of the endpoint (spec §2.5)."""

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
from forewarn.machines.namespace_vm.dhcp_server import DhcpLease, dhcp_reply
from forewarn.protocol.http_message import HttpResponse
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

Driver = Callable[..., Any]
XID, MAC = b"\x01\x02\x03\x04", b"\x02\x00\x00\x00\x00\x09"
LEASE = DhcpLease(address=IPv4Interface("10.0.0.4/24"), router=IPv4Address("10.0.0.1"))
ETH0 = EthernetInterface(name="eth0", mac=MAC)
DOCUMENT = HttpResponse(status=200, body=b'{"DocumentIncarnation":1,"Events":[]}')
OTHER_SERVICE = HttpResponse(status=404, body=b"<html>not here</html>")


def error(status: int, content: object) -> HttpResponse:
    return HttpResponse(status=status, body=json.dumps(content).encode())


@pytest.mark.parametrize(
    ("response", "is_ours"),
    [
        (DOCUMENT, True),
        (error(400, {"error": "Bad request. api-version is invalid", "newest-versions": []}), True),
        (error(404, {"error": "Not found"}), True),
        (HttpResponse(status=200), True),
        *((HttpResponse(status=status), True) for status in (410, 429, 500, 503)),
        (OTHER_SERVICE, False),
        (HttpResponse(status=200, body=b"latest\n"), False),
        (HttpResponse(status=200, body=b'{"vm":"x"}'), False),
        (HttpResponse(status=200, body=b"[]"), False),
        (HttpResponse(status=401), False),
        (error(403, {"error": "no"}), False),
        (error(404, {"message": "no"}), False),
    ],
)
def test_only_a_scheduled_events_response_identifies_the_service(response: HttpResponse, is_ours: bool) -> None:
    """Other clouds use 169.254.169.254 too; an error response still counts (spec §11)."""
    assert is_scheduled_events_response(response) is is_ours


def run_discovery(
    answers: dict[str, HttpResponse | Exception], offers: dict[str, str | Exception | None], **how: Any
) -> tuple[list[str], Endpoint | Exception]:
    """Runs the discovery; returns its effects and its result.

    Endpoints that are not in `answers` are down.
    """
    done: list[str] = []

    def ask(interface: EthernetInterface) -> str | None:
        done.append(f"ask on {interface.name}")
        offer = offers[interface.name]
        if isinstance(offer, Exception):
            raise offer
        return offer

    found = [EthernetInterface(name=name, mac=MAC) for name in offers]
    run = FlowRunner(discover_endpoint(Discovery(interfaces=lambda: found, ask_dhcp=ask, **how)))
    try:
        while (effect := run.next_effect()) is not None:
            match effect:
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


def test_the_well_known_address_is_used_if_it_answers_and_dhcp_is_not_asked() -> None:
    done, found = run_discovery({"http://169.254.169.254": DOCUMENT}, {"eth0": "168.63.129.16"})
    assert (done, str(found)) == (["http://169.254.169.254"], "http://169.254.169.254")


def test_the_address_of_option_245_is_used_on_the_port_that_answers() -> None:
    done, found = run_discovery({"http://168.63.129.16:8080": DOCUMENT}, {"eth0": None, "eth1": "168.63.129.16"})
    assert str(found) == "http://168.63.129.16:8080"
    assert done == [
        *("http://169.254.169.254", "pause 0", "ask on eth0", "ask on eth1"),
        *("http://168.63.129.16", "http://168.63.129.16:8080"),
    ]


def test_another_service_at_the_well_known_address_or_at_dhcps_address_is_not_used() -> None:
    done, found = run_discovery(
        {"http://169.254.169.254": OTHER_SERVICE, "http://10.0.0.9": OTHER_SERVICE}, {"eth0": "10.0.0.9"}
    )
    assert isinstance(found, Unreachable)
    assert done.count("ask on eth0") == 2


def test_an_incomplete_answer_is_retried_before_dhcp_is_asked() -> None:
    done, _ = run_discovery({"http://169.254.169.254": IncompleteResponse("no")}, {})
    assert done[:6] == ["http://169.254.169.254", "pause 1"] * 3


def test_discovery_ends_and_says_what_was_tried() -> None:
    done, found = run_discovery({}, {f"eth{number}": None for number in range(200)}, dhcp_delays_s=(0, 7))
    assert str(found) == (
        "no endpoint was found: http://169.254.169.254 does not answer, and no DHCP server names one: "
        "set FOREWARN_ENDPOINT, or check the network"
    )
    assert [step for step in done if step.startswith("pause")] == ["pause 0", "pause 7"]
    assert len(done) < 15


def test_a_missing_privilege_is_reported_and_other_interfaces_are_tried() -> None:
    needs = Unavailable("DHCP needs root, or this and that: name the endpoint")
    _, found = run_discovery({}, {"eth0": needs}, dhcp_delays_s=(0,))
    assert "does not answer, and DHCP needs root, or this and that: set FOREWARN_ENDPOINT" in str(found)
    _, found = run_discovery({"http://10.0.0.9": DOCUMENT}, {"eth0": needs, "eth1": "10.0.0.9"})
    assert str(found) == "http://10.0.0.9"


def test_dhcp_can_be_disabled() -> None:
    done, found = run_discovery({}, {"eth0": "10.0.0.9"}, dhcp_delays_s=())
    assert done == ["http://169.254.169.254"]
    assert "DHCP was not asked" in str(found)


def test_a_client_discovers_the_endpoint_once_with_its_first_request(driver: Driver) -> None:
    with ScriptedServer(json_reply({"DocumentIncarnation": 1, "Events": []})) as server:
        one = driver(None, discovery=Discovery(well_known=parse_endpoint(server.url), dhcp_delays_s=()))
        assert server.requests == []
        one.call("events")
        assert str(one.call("discover")) == server.url
        one.call("events")
    assert len(server.requests) == 3, "a probe and two questions"


def test_a_watch_repeats_the_discovery_until_it_succeeds(driver: Driver) -> None:
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
        how = Discovery(
            well_known=parse_endpoint(server.url), dhcp_delays_s=(0,), interfaces=lambda: [ETH0], ask_dhcp=ask
        )
        (document,) = driver(None, discovery=how).take(1, "documents")
    assert document.incarnation == 4
    assert tries == ["eth0", "eth0"]


def test_the_discover_packet_equals_that_of_known_clients() -> None:
    """Evidence §9; with the broadcast flag."""
    packet = encode_discover(XID, MAC)
    assert len(packet) == 244
    assert (packet[0:4], packet[4:8], packet[0x0A], packet[0x1C:0x22]) == (bytes((1, 1, 6, 0)), XID, 0x80, MAC)
    assert packet[0xEC:] == bytes((99, 130, 83, 99, 53, 1, 1, 255))


def test_the_endpoint_is_read_only_from_an_answer_to_our_own_request() -> None:
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
def test_an_offer_without_a_complete_address_gives_no_endpoint(options: bytes) -> None:
    packet = b"\x02" + encode_discover(XID, MAC)[1:0xF0] + options.ljust(8, b"\0")
    assert endpoint_from_offer(packet, xid=XID, mac=MAC) is None


@given(st.binary(max_size=600))
@settings(max_examples=200, deadline=None)
def test_any_packet_can_be_parsed_without_an_error(noise: bytes) -> None:
    for packet in (noise, b"\x02" + encode_discover(XID, MAC)[1:0xF0] + noise):
        found = endpoint_from_offer(packet, xid=XID, mac=MAC)
        assert found is None or IPv4Address(found)


def test_only_ethernet_interfaces_are_used() -> None:
    """Loopback is not an Ethernet interface."""
    found = ethernet_interfaces()
    assert "lo" not in [interface.name for interface in found]
    assert all(len(interface.mac) == 6 and any(interface.mac) for interface in found)
