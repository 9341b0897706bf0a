"""The fleet directory equals, after any changes, a scan of every VM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.control import directory as directory_module
from forewarn.control.directory import FleetDirectory, ResourceIndex, natural_sort_key
from forewarn.control.fleet import FleetChange
from forewarn.core.fleet import Vm
from forewarn.core.resource_ids import (
    availability_set_resource_id,
    group_resource_id,
    scale_set_resource_id,
    vm_resource_id,
)
from forewarn.errors import NotFound
from tests.support.world import World, a_vm

SETS = st.sampled_from([{}, {"scale_set": "s"}, {"scale_set": "T"}, {"availability_set": "s"}, {"cloud_service": "c"}])
CHANGES = st.lists(
    st.builds(
        lambda name, group, subscription, member, gone: a_vm(
            name, resource_group=group, subscription_id=subscription, removed_at=1.0 if gone else None, **member
        ),
        st.sampled_from(["a", "b_2", "b_10"]),
        st.sampled_from(["g", "h"]),
        st.sampled_from(["x", "y"]),
        SETS,
        st.booleans(),
    ),
    max_size=30,
)


def resources_above(vm: Vm) -> list[str]:
    sets = [scale_set_resource_id(vm)] if vm.scale_set else []
    sets += [availability_set_resource_id(vm)] if vm.availability_set else []
    return [f"/subscriptions/{vm.subscription_id}", group_resource_id(vm.subscription_id, vm.resource_group), *sets]


@given(CHANGES)
def test_the_directory_answers_what_a_scan_of_the_fleet_would_answer(changes: list[Vm]) -> None:
    register, fleet = ResourceIndex(), dict[str, Vm]()
    for vm in changes:
        fleet[vm.key] = vm
        register.update(vm)
        present = [one for one in fleet.values() if one.removed_at is None]
        for resource in {above for one in changes for above in resources_above(one)}:
            inside = [one for one in present if resource in resources_above(one)]
            listed = register.vms_within(resource.upper())
            assert [one.key for one in listed] == sorted((one.key for one in inside), key=natural_sort_key)
            assert [one.resource for one in listed] == [vm_resource_id(fleet[one.key]) for one in listed]
            assert register.has_vms_in(resource) is bool(inside)
            sets = {above for one in inside for above in resources_above(one)[2:]} if resource.count("/") < 6 else set()
            assert set(register.sets_within(resource)) == sets
        assert set(register.groups()) == {resources_above(one)[1] for one in present}


def test_a_group_is_the_most_common_one_only_while_it_has_vms() -> None:
    world = World(vms=[a_vm("a", resource_group="old", host="")])
    directory = FleetDirectory(world.store)
    assert directory.most_common_group() == ("sub", "old")
    world.do(world.control.fleet.apply_change(FleetChange(removed=(world.vm("a"),)), who="ann"))
    assert directory.most_common_group() is None
    assert directory.subscriptions() == set()
    directory.close()
    world.close()


@pytest.mark.parametrize(
    ("visible", "suggested"),
    [("sub/b/web-0", "web-0"), ("sub/a/webb-0", "webb-0"), ("sub/a/db", "")],
    ids=["the same name in another group", "a name that is less similar", "no similar name"],
)
def test_the_most_similar_name_of_a_visible_vm_is_suggested(visible: str, suggested: str) -> None:
    vms = [("web-0", "a"), ("web-0", "b"), ("webb-0", "a"), ("db", "a")]
    world = World(vms=[a_vm(name, resource_group=group, host="") for name, group in vms])
    directory = FleetDirectory(world.store)
    with pytest.raises(NotFound) as caught:
        directory.find("webx-0", lambda vm: vm.key == visible)
    expected = f": did you mean {suggested!r}?" if suggested else ""
    assert str(caught.value) == f"VM 'webx-0' does not exist{expected}"
    directory.close()
    world.close()


def test_a_large_commit_is_indexed_in_turns_and_completely_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexing tens of thousands of VMs at once would keep the event loop from answering VMs."""
    monkeypatch.setattr(directory_module, "_MAX_VMS_AT_ONCE", 2)
    monkeypatch.setattr(directory_module, "_TURN_S", 0.0)  # no turn is long enough for a VM
    world = World()
    directory = FleetDirectory(world.store)
    vms = tuple(a_vm(f"web-{number}", host="") for number in range(3))
    world.do(world.control.fleet.apply_change(FleetChange(vms=vms), who="ann"))
    assert len(directory._unindexed) == 3
    assert [directory.has(vm.key) for vm in vms] == [True] * 3
    assert len(directory._unindexed) == 0
    directory.close()
    world.close()


def test_lists_sort_numbers_by_value() -> None:
    names = ["pool_10", "pool_9", "Pool_1", "pool", "pool_01", "db", "7", "pool_1"]
    assert sorted(names, key=natural_sort_key) == [
        "7",
        "db",
        "pool",
        "Pool_1",
        "pool_01",
        "pool_1",
        "pool_9",
        "pool_10",
    ]
