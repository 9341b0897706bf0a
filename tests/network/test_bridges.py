"""VMs on a bridge, identified by the mark of their port, with the firewall rules of docs/how-to/network.md.

Spec §2.1 and §7.4: a VM sees its own scope only, even if it forges addresses.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.network.conftest import EventsOf, Namespace, World
from tests.support.service_process import eventually

pytestmark = pytest.mark.namespaces

FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 3\n\n[[vms]]\nname = "web-{n}"\ncount = 4\n'
MARKS = '[[listeners]]\nby = "mark"\ndevice = "br0"\nmarks = {1 = "web-1", 2 = "web-2"}\n'
NOT_FOUND = (404, '{ "error": "Not found" }')
METADATA = "169.254.169.254"


@dataclass
class Bridge:
    """Three ports: VMs 1 and 2, and one with a mark that belongs to no VM."""

    host: Namespace
    vms: dict[int, Namespace]

    def guard(self, rules: Path) -> None:
        self.host.nft("-f", str(rules / "bridge-guard.nft"))
        for n in self.vms:
            table = ("add", "element", "bridge", "forewarn_guard")
            self.host.nft(*table, "macs", f'{{ "tap{n}" . {mac(n)} }}')
            self.host.nft(*table, "addresses", f'{{ "tap{n}" . {address(n)} }}')
            self.host.nft(*table, "guarded", f'{{ "tap{n}" }}')


def mac(n: int) -> str:
    return f"02:00:00:00:00:0{n}"


def address(n: int) -> str:
    return f"10.0.0.1{n}"


@pytest.fixture
def bridge(world: World, rules: Path) -> Bridge:
    host = world.host()
    host.ip("link add br0 type bridge", "link set br0 up", "addr add 10.0.0.1/24 dev br0")
    host.sysctl(tcp_fwmark_accept=1)
    host.nft("-f", str(rules / "bridge-marks.nft"))
    vms = {}
    for n in (1, 2, 3):
        vms[n] = world.vm(f"vm{n}", host, f"tap{n}", address(n), mac(n))
        host.ip(f"link set tap{n} master br0")
        host.nft("add", "element", "bridge", "forewarn_marks", "mark_of", f'{{ "tap{n}" : {n} }}')
    return Bridge(host, vms)


def forge(attacker: Namespace, victim_n: int, own_n: int) -> None:
    """The attacker takes the address and MAC of the victim."""
    attacker.ip(
        "link set eth0 down",
        f"link set eth0 address {mac(victim_n)}",
        f"addr del {address(own_n)}/24 dev eth0",
        f"addr add {address(victim_n)}/24 dev eth0",
        "link set eth0 up",
        f"route replace {METADATA} dev eth0",
    )


def test_vms_are_identified_by_bridge_port_and_an_unassigned_mark_is_unknown(
    world: World, bridge: Bridge, poll: str
) -> None:
    service = world.service(bridge.host, FLEET, MARKS)
    assert bridge.vms[1].ask() == (200, "web-1")
    assert bridge.vms[2].ask() == (200, "web-2")
    assert bridge.vms[3].ask() == NOT_FOUND
    bridge.host.nft("delete", "element", "bridge", "forewarn_marks", "mark_of", '{ "tap3" }')
    assert bridge.vms[3].ask(poll) == NOT_FOUND, "a connection without a mark is an unknown caller"
    assert service.open_names() == ["169.254.169.254:80 by mark on br0"]


def test_a_vm_that_forges_address_and_mac_keeps_its_identity(
    world: World, bridge: Bridge, events_of: EventsOf, poll: str
) -> None:
    service = world.service(bridge.host, FLEET, MARKS)
    assert bridge.vms[1].ask() == (200, "web-1")
    service.restart_vm("web-1")
    forge(bridge.vms[2], 1, 2)
    assert bridge.vms[2].ask() == (200, "web-2")
    assert events_of(bridge.vms[2].ask(poll)) == []


def test_a_guarded_vm_that_forges_addresses_gets_no_response_and_the_victim_is_not_affected(
    world: World, bridge: Bridge, rules: Path, events_of: EventsOf, poll: str
) -> None:
    service = world.service(bridge.host, FLEET, MARKS)
    bridge.guard(rules)
    assert (bridge.vms[1].ask(), bridge.vms[2].ask()) == ((200, "web-1"), (200, "web-2"))
    event_id = service.restart_vm("web-1")
    connection = bridge.vms[1].connect()
    assert connection.ask() == (200, "web-1")

    forge(bridge.vms[2], 1, 2)
    assert bridge.vms[2].gets_nothing()
    assert events_of(connection.ask(poll)) == [event_id]
    assert events_of(bridge.vms[1].ask(poll)) == [event_id]


def test_a_guarded_vm_cannot_forge_an_address_with_its_own_mac(world: World, bridge: Bridge, rules: Path) -> None:
    world.service(bridge.host, FLEET, MARKS)
    bridge.guard(rules)
    bridge.vms[2].ip(f"addr del {address(2)}/24 dev eth0", f"addr add {address(1)}/24 dev eth0")
    bridge.vms[2].ip(f"route replace {METADATA} dev eth0")
    assert bridge.vms[2].gets_nothing()
    assert bridge.vms[1].ask() == (200, "web-1")


def claim_the_metadata_address(attacker: Namespace, own_n: int, victim_n: int) -> None:
    """Send what an ARP spoofer sends: that the metadata address has its own MAC."""
    own_mac, victim_mac = (bytes.fromhex(mac(n).replace(":", "")) for n in (own_n, victim_n))
    metadata, victim = socket.inet_aton(METADATA), socket.inet_aton(address(victim_n))
    arp = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2) + own_mac + metadata + victim_mac + victim
    with attacker.inside(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as wire:
        wire.bind(("eth0", 0))
        wire.send(victim_mac + own_mac + struct.pack("!H", 0x0806) + arp)


def test_a_guarded_vm_cannot_claim_the_metadata_address(world: World, bridge: Bridge, rules: Path) -> None:
    world.service(bridge.host, FLEET, MARKS)
    victim, attacker = bridge.vms[1], bridge.vms[3]
    victim.inside(partial(Path("/proc/sys/net/ipv4/neigh/eth0/locktime").write_text, "0"))

    def is_spoofed() -> bool:
        claim_the_metadata_address(attacker, 3, 1)
        return mac(3) in victim.shown("neigh", "show", METADATA)

    assert victim.ask() == (200, "web-1")
    assert eventually(is_spoofed), "the attack works without the guard"

    bridge.guard(rules)
    victim.ip("neigh flush all")
    assert victim.ask() == (200, "web-1")
    for _ in range(5):
        assert not is_spoofed()
        assert victim.ask() == (200, "web-1")


def test_the_error_for_a_listener_by_mark_without_tcp_fwmark_accept_says_what_to_do(
    world: World, bridge: Bridge
) -> None:
    bridge.host.sysctl(tcp_fwmark_accept=0)
    with pytest.raises(AssertionError, match=r"the kernel does not mark connections: run `sysctl -w net"):
        world.service(bridge.host, FLEET, MARKS)
