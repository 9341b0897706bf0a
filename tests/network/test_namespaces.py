"""VMs in network namespaces of their own, and networks with trusted addresses (spec §2.1, §7.4)."""

from __future__ import annotations

import subprocess

import pytest

from tests.network.conftest import EventsOf, Namespace, World
from tests.support.service_process import eventually

pytestmark = pytest.mark.namespaces

MANY = 20
NOT_FOUND = (404, '{ "error": "Not found" }')
METADATA = "169.254.169.254"


def fleet(count: int) -> str:
    return f'[[hosts]]\nname = "host-{{n}}"\ncount = 3\n\n[[vms]]\nname = "web-{{n}}"\ncount = {count}\n'


def by_namespace(namespaces: list[Namespace]) -> str:
    lines = (
        f'[[listeners]]\nby = "namespace"\nnamespace = "{inside.name}"\nvm = "web-{n}"\n'
        for n, inside in enumerate(namespaces)
    )
    return "".join(lines)


def own_namespaces(world: World, count: int) -> list[Namespace]:
    """Namespaces that all have the same address, and the metadata address."""
    namespaces = [world.namespace(f"vm{n}") for n in range(count)]
    for inside in namespaces:
        inside.ip(f"addr add {METADATA}/32 dev lo", "addr add 10.0.0.4/32 dev lo")
    return namespaces


def test_vms_with_the_same_address_and_port_are_identified_by_namespace(
    world: World, events_of: EventsOf, poll: str
) -> None:
    vms = own_namespaces(world, MANY)
    service = world.service(world.namespace("host"), fleet(MANY), by_namespace(vms))

    connections = [vm.connect(source="10.0.0.4", port=40000) for vm in vms]
    assert [connection.ask() for connection in connections] == [(200, f"web-{n}") for n in range(MANY)]

    event_id = service.restart_vm("web-7")
    assert [events_of(connection.ask(poll)) for connection in connections] == [
        [event_id] if n == 7 else [] for n in range(MANY)
    ]


def test_a_namespace_may_be_a_path(world: World) -> None:
    (vm,) = own_namespaces(world, 1)
    listener = f'[[listeners]]\nby = "namespace"\nnamespace = "/run/netns/{vm.name}"\nvm = "web-0"\n'
    world.service(world.namespace("host"), fleet(1), listener)
    assert vm.ask() == (200, "web-0")


def test_the_service_listens_again_in_a_namespace_that_is_created_again(world: World) -> None:
    (vm,) = own_namespaces(world, 1)
    service = world.service(world.namespace("host"), fleet(1), by_namespace([vm]))
    assert vm.ask() == (200, "web-0")

    subprocess.run(["ip", "netns", "del", vm.name], check=True)
    eventually(lambda: service.open_names() == [])
    subprocess.run(["ip", "netns", "add", vm.name], check=True)
    vm.ip("link set lo up", f"addr add {METADATA}/32 dev lo")
    eventually(lambda: service.open_names() != [])
    assert vm.ask() == (200, "web-0")


def test_the_namespace_of_a_removed_vm_gets_404(world: World, poll: str) -> None:
    """Spec §10."""
    (vm,) = own_namespaces(world, 1)
    service = world.service(world.namespace("host"), fleet(2), by_namespace([vm]))
    assert service.api("DELETE", "/fleet/vms/web-0").status < 300
    assert vm.ask(poll) == NOT_FOUND


def test_trusted_networks_may_have_the_same_addresses(world: World, poll: str) -> None:
    """By source address, inside one namespace per network; an unassigned address is unknown."""
    listeners = ""
    networks = [world.namespace(name) for name in ("blue", "green")]
    for n, network in enumerate(networks):
        network.ip(f"addr add {METADATA}/32 dev lo", *(f"addr add 10.0.0.{last}/32 dev lo" for last in (4, 5, 9)))
        vms = f'{{"10.0.0.4" = "web-{2 * n}", "10.0.0.5" = "web-{2 * n + 1}"}}'
        listeners += f'[[listeners]]\nby = "source"\nnamespace = "{network.name}"\nnetwork = "n{n}"\nvms = {vms}\n'
    world.service(world.namespace("host"), fleet(4), listeners)

    answers = [network.connect(source=f"10.0.0.{last}").ask() for network in networks for last in (4, 5)]
    assert answers == [(200, f"web-{n}") for n in range(4)]
    assert networks[0].connect(source="10.0.0.9").ask(poll) == NOT_FOUND


def test_a_listener_without_a_network_name_uses_the_addresses_of_the_fleet(world: World) -> None:
    host = world.host()
    host.ip("addr add 10.0.0.4/32 dev lo", "addr add 10.0.0.9/32 dev lo")
    text = fleet(1) + 'address = "10.0.0.4"\n'
    world.service(host, text, '[[listeners]]\nby = "source"\n')
    assert host.connect(source="10.0.0.4").ask() == (200, "web-0")
    assert host.connect(source="10.0.0.9").ask() == NOT_FOUND
