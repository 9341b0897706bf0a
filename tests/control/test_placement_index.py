"""The placement index forgets VMs and hosts that are gone, so a service that runs for years does not grow."""

from __future__ import annotations

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.control.placement_index import PlacementIndex
from forewarn.core.request import RequestedOperation
from forewarn.machines.simulated import DurationRule, SimulatedBehaviour
from tests.support.world import World, a_host, a_vm

MINUTE = 60.0


def sizes(index: PlacementIndex) -> dict[str, int]:
    """How many entries each part of the index has."""
    return {name: len(part) for name, part in vars(index).items()}


def change(world: World, **what: object) -> None:
    world.do(world.control.fleet.apply_change(FleetChange(**what), who="op"))  # type: ignore[arg-type]
    world.settle()


def test_the_index_keeps_nothing_of_vms_and_hosts_that_are_gone() -> None:
    world = World(vms=[a_vm("web", host="h1")], hosts=[a_host("h1"), a_host("h2")])
    index = world.control.placement
    before = sizes(index)
    for number in range(3):
        name = f"short-{number}"
        change(world, vms=(a_vm(name, availability_set="short", host="h1"),), hosts=(a_host("h9"),))
        world.ask(RequestedOperation.REDEPLOY, name, short_notice=True)
        world.advance(5 * MINUTE)
        world.ask(RequestedOperation.DELETE, name)
        world.advance(5 * MINUTE)
        change(world, vms=(a_vm("other", host="h2"),))
        change(world, removed=(world.vm("other"),), removed_hosts=("h9",))

    assert sizes(index) == before == sizes(PlacementIndex(world.store))
    assert index.vm_keys() == ["sub/lab/web"]
    assert index.host_of("sub/lab/short-0") == ""
    with pytest.raises(KeyError):
        index.scope_of("sub/lab/short-0")
    world.close()


def test_a_vm_that_was_removed_and_added_again_counts_once() -> None:
    world = World(vms=[a_vm("web", host="h1"), a_vm("db", host="h2")], hosts=[a_host("h1"), a_host("h2")])
    change(world, removed=(world.vm("web"),))
    change(world, vms=(a_vm("web", host="h2", availability_set="new"),))
    index = world.control.placement
    assert (index.vm_count("h1"), index.vm_count("h2")) == (0, 2)
    assert index.vm_keys() == ["sub/lab/db", "sub/lab/web"]
    assert index.scope_of("sub/lab/web") == world.vm("web").scope_id
    world.close()


def test_an_index_made_from_the_store_equals_one_that_followed_every_commit() -> None:
    hosts = [a_host(f"h{number}") for number in range(3)]
    pair = [a_vm(f"web-{n}", availability_set="web", update_domain=n, host=f"h{n}") for n in range(2)]
    world = World(vms=[*pair, a_vm("db", host="h0")], hosts=hosts)
    world.hypervisor.set_behaviour(SimulatedBehaviour((DurationRule(seconds=60 * MINUTE),)))
    (event,) = world.ask(RequestedOperation.REDEPLOY, "db", short_notice=True)
    world.approve("db", event.id)
    followed, made = world.control.placement, PlacementIndex(world.store)
    assert made.vms_moving_to("h2") == ["sub/lab/db"]
    assert vars(made) == vars(followed)
    world.close()


def test_the_domains_of_a_scope_on_a_host_are_known_until_its_vms_leave_the_host() -> None:
    pair = [a_vm(f"web-{n}", availability_set="web", update_domain=n, fault_domain=2 * n, host="h1") for n in range(2)]
    world = World(vms=[*pair, a_vm("db", host="h1")], hosts=[a_host("h1"), a_host("h2")])
    scope_id = world.vm("web-0").scope_id
    for index in (world.control.placement, PlacementIndex(world.store)):
        assert set(index.domains_on("h1", scope_id)) == {(0, 0), (1, 2)}
        assert not index.domains_on("h1", world.vm("db").scope_id)
        assert not index.domains_on("h2", scope_id)
    change(world, removed=(world.vm("web-1"),))
    assert set(world.control.placement.domains_on("h1", scope_id)) == {(0, 0)}
    world.close()


def test_a_vm_on_its_way_is_arriving_until_it_has_arrived() -> None:
    world = World(vms=[a_vm("db", host="h1", size="Small")], hosts=[a_host("h1"), a_host("h2")])
    index = world.control.placement
    with index.reserve_destinations([world.vm("db")]) as destinations:
        assert destinations == {"sub/lab/db": "h2"}
        assert index.arriving_vms("h2") == [("db", "Small")]
    assert index.arriving_vms("h2") == []
    world.ask(RequestedOperation.REDEPLOY, "db", short_notice=True)
    world.advance(1)
    assert (index.arriving_vms("h1"), index.arriving_vms("h2")) == ([], [("db", "Small")])
    world.advance(10 * MINUTE)
    assert (world.vm("db").host, index.arriving_vms("h2")) == ("h2", [])
    world.close()
