"""The placement index forgets VMs and hosts that are gone, so a service that runs for years does not grow."""

from __future__ import annotations

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.control.placement_index import PlacementIndex
from forewarn.core.request import RequestedOperation
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
