"""Changes of VM settings: for all VMs or for none, on top of their current state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forewarn.core.fleet import PowerState, Priority, Vm
from forewarn.core.request import RequestedOperation
from forewarn.core.vm_settings import VmSettingsChange
from forewarn.errors import Conflict, Refused
from forewarn.store.memory import MemoryStore
from tests.support.world import World, a_host, a_vm


@pytest.fixture
def world() -> Iterator[World]:
    pool = [a_vm(f"pool_{n}", scale_set="pool", placement_group=f"pg-{n}") for n in range(2)]
    made = World(vms=[a_vm("db"), a_vm("spot", priority=Priority.SPOT), *pool], hosts=[a_host("h1")])
    yield made
    made.close()


def update(world: World, vms: list[Vm], **settings: object) -> None:
    change = VmSettingsChange(**settings)  # type: ignore[arg-type]
    world.do(world.control.fleet.update_settings(vms, change, label="them", who="ann"))


def test_a_settings_change_does_not_undo_what_happened_to_the_vm_meanwhile(world: World) -> None:
    as_it_was = world.vm("db")
    world.ask(RequestedOperation.POWER_OFF, "db")
    world.advance(60)
    update(world, [as_it_was], terminate_notice_min=7)
    assert (world.vm("db").power, world.vm("db").terminate_notice_min) == (PowerState.STOPPED, 7)


def test_vms_of_several_scopes_change_in_one_transaction(world: World) -> None:
    pool, before = [world.vm("pool_0"), world.vm("pool_1")], world.store.last_seq()
    with pytest.raises(Refused, match="'spot' is Spot"):
        update(world, [*pool, world.vm("spot")], terminate_notice_min=7)
    assert (world.vm("pool_0"), world.store.last_seq()) == (pool[0], before)
    update(world, pool, terminate_notice_min=7, os_image_notice_min=15)
    assert world.transcript(after=before) == (
        "05 12:00:00 fleet      ann set the terminate notice of them to 7 min, the OS image notice to 15 min"
    )


def test_the_vms_of_a_scope_share_one_approval_policy(world: World) -> None:
    """In a scale set of one placement group no instance has a policy of its own."""
    pair = [a_vm(f"two_{n}", scale_set="two", placement_group="pg-0") for n in range(2)]
    other = World(vms=pair, hosts=[a_host("h1")])
    with pytest.raises(Refused, match="'two_1' is in scale set 'two' and has no policy of its own"):
        update(other, [other.vm("two_1")], approve_restart=True)
    update(other, [other.vm("two_0"), other.vm("two_1")], approve_restart=True)
    assert other.vm("two_1").auto_approve.restart
    other.close()


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("availability_set", "in availability set 'shop' and has no policy of its own: change the policy of the set"),
        ("cloud_service", "in cloud service 'shop' and has no policy of its own: change the policy of the service"),
    ],
)
def test_a_refused_policy_names_what_the_vm_is_in(field: str, problem: str) -> None:
    other = World(vms=[a_vm(name, **{field: "shop"}) for name in ("a", "b")], hosts=[a_host("h1")])
    with pytest.raises(Refused, match=problem):
        update(other, [other.vm("a")], approve_restart=True)
    other.close()


def test_a_change_of_tags_keeps_the_tags_that_it_does_not_name(world: World) -> None:
    update(world, [world.vm("db")], tags={"a": "1", "b": "2"})
    update(world, [world.vm("db")], tags={"c": "3"}, untagged=("a",))
    assert world.vm("db").tags == {"b": "2", "c": "3"}


def test_the_history_says_which_tags_were_removed(world: World) -> None:
    update(world, [world.vm("db")], tags={"a": "1", "b": "2", "c": "3"})
    before = world.store.last_seq()
    update(world, [world.vm("db")], untagged=("a",))
    update(world, [world.vm("db")], terminate_notice_min=7, untagged=("b", "c"))
    assert world.vm("db").tags == {}
    assert world.transcript(after=before).splitlines() == [
        "05 12:00:00 fleet      ann removed the tag a of them",
        "05 12:00:00 fleet      ann set the terminate notice of them to 7 min, and removed the tags b, c",
    ]


def test_an_empty_change_writes_no_history(world: World) -> None:
    before = world.store.last_seq()
    update(world, [world.vm("db")])
    assert world.store.last_seq() == before


def test_a_change_that_always_conflicts_says_to_try_again(world: World) -> None:
    assert isinstance(world.store, MemoryStore)
    for _ in range(20):
        world.store.fail_next(Conflict("another writer was first"))
    with pytest.raises(Conflict, match="try again"):
        update(world, [world.vm("db")], terminate_notice_min=7)
    update(world, [world.vm("db")], terminate_notice_min=7)
    assert world.vm("db").terminate_notice_min == 7
