"""VMs in network namespaces of their own, and networks whose source addresses can be trusted (spec §2.1, §7.4)."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.service_process import eventually

pytestmark = pytest.mark.namespaces

MANY = 20
NOT_FOUND = (404, '{ "error": "Not found" }')
METADATA = "169.254.169.254"


def fleet(count):
    return f'[[hosts]]\nname = "host-{{n}}"\ncount = 3\n\n[[vms]]\nname = "web-{{n}}"\ncount = {count}\n'


def by_namespace(namespaces):
    lines = (
        f'[[listeners]]\nby = "namespace"\nnamespace = "{inside.name}"\nvm = "web-{n}"\n'
        for n, inside in enumerate(namespaces)
    )
    return "".join(lines)


def own_namespaces(world, count):
    """Each with the address every VM has, and with the metadata address inside."""
    made = [world.namespace(f"vm{n}") for n in range(count)]
    for inside in made:
        inside.ip(f"addr add {METADATA}/32 dev lo", "addr add 10.0.0.4/32 dev lo")
    return made


def test_vms_with_one_address_and_one_port_are_told_apart_by_their_namespaces(world, events_of, poll):
    vms = own_namespaces(world, MANY)
    service = world.service(world.namespace("host"), fleet(MANY), by_namespace(vms))

    held = [vm.call(source="10.0.0.4", port=40000) for vm in vms]
    assert [call.ask() for call in held] == [(200, f"web-{n}") for n in range(MANY)]

    event_id = service.restart_vm("web-7")
    assert [events_of(call.ask(poll)) for call in held] == [[event_id] if n == 7 else [] for n in range(MANY)]


def test_a_namespace_may_be_given_as_a_path(world):
    (vm,) = own_namespaces(world, 1)
    listener = f'[[listeners]]\nby = "namespace"\nnamespace = "/run/netns/{vm.name}"\nvm = "web-0"\n'
    world.service(world.namespace("host"), fleet(1), listener)
    assert vm.ask() == (200, "web-0")


def test_a_namespace_that_is_made_anew_is_listened_in_again_and_the_old_one_let_go(world):
    (vm,) = own_namespaces(world, 1)
    service = world.service(world.namespace("host"), fleet(1), by_namespace([vm]))
    assert vm.ask() == (200, "web-0")

    subprocess.run(["ip", "netns", "del", vm.name], check=True)
    eventually(lambda: service.open_names() == [])
    subprocess.run(["ip", "netns", "add", vm.name], check=True)
    vm.ip("link set lo up", f"addr add {METADATA}/32 dev lo")
    eventually(lambda: service.open_names() != [])
    assert vm.ask() == (200, "web-0")


def test_in_a_namespace_of_a_vm_that_is_gone_there_is_nothing_to_learn(world, poll):
    """Spec §10."""
    (vm,) = own_namespaces(world, 1)
    service = world.service(world.namespace("host"), fleet(2), by_namespace([vm]))
    assert service.api("DELETE", "/fleet/vms/web-0").status < 300
    assert vm.ask(poll) == NOT_FOUND


def test_trusted_networks_may_use_the_same_addresses(world, poll):
    """By source address, inside a namespace per network; a source that no VM has is unknown."""
    listeners = ""
    networks = [world.namespace(name) for name in ("blue", "green")]
    for n, network in enumerate(networks):
        network.ip(f"addr add {METADATA}/32 dev lo", *(f"addr add 10.0.0.{last}/32 dev lo" for last in (4, 5, 9)))
        vms = f'{{"10.0.0.4" = "web-{2 * n}", "10.0.0.5" = "web-{2 * n + 1}"}}'
        listeners += f'[[listeners]]\nby = "source"\nnamespace = "{network.name}"\nnetwork = "n{n}"\nvms = {vms}\n'
    world.service(world.namespace("host"), fleet(4), listeners)

    answers = [network.call(source=f"10.0.0.{last}").ask() for network in networks for last in (4, 5)]
    assert answers == [(200, f"web-{n}") for n in range(4)]
    assert networks[0].call(source="10.0.0.9").ask(poll) == NOT_FOUND


def test_without_a_network_name_the_addresses_are_those_of_the_fleet(world):
    host = world.host()
    host.ip("addr add 10.0.0.4/32 dev lo", "addr add 10.0.0.9/32 dev lo")
    text = fleet(1) + 'address = "10.0.0.4"\n'
    world.service(host, text, '[[listeners]]\nby = "source"\n')
    assert host.call(source="10.0.0.4").ask() == (200, "web-0")
    assert host.call(source="10.0.0.9").ask() == NOT_FOUND
