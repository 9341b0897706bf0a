"""A large change of the fleet is prepared in turns, and concurrent changes do not interfere with each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from forewarn.control import fleet
from forewarn.control.fleet import FleetChange
from forewarn.core.scope import Scope
from tests.support.world import World, a_vm


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(fleet, "_TURN_S", 0.0)  # a turn ends after each VM or scope, however fast the machine is
    made = World()
    yield made
    made.close()


def test_other_work_runs_while_a_large_change_is_prepared(world: World) -> None:
    """Otherwise no VM would be answered for seconds while a fleet file of 30,000 VMs is applied."""
    vms = tuple(a_vm(f"web-{number}", host="") for number in range(50))

    async def count_turns() -> int:
        applying = asyncio.create_task(world.control.fleet.apply_change(FleetChange(vms=vms), who="ann"))
        turns = 0
        while not applying.done():
            await asyncio.sleep(0)
            turns += 1
        await applying
        return turns

    assert world.do(count_turns()) >= 2 * len(vms)
    assert [vm.name for vm in world.store.vms()] == [vm.name for vm in vms]


def test_changes_at_the_same_time_give_no_address_to_two_vms(world: World) -> None:
    world.control.fleet.lab_addresses = True
    changes = [FleetChange(vms=tuple(a_vm(f"{name}-{n}", host="") for n in range(20))) for name in ("web", "db")]

    async def apply_all() -> None:
        await asyncio.gather(*(world.control.fleet.apply_change(change, who="ann") for change in changes))

    world.do(apply_all())
    assert len({vm.lab_address for vm in world.store.vms()}) == 40


def test_vms_that_are_put_into_a_scope_replace_those_with_their_keys_and_keep_the_order() -> None:
    scope = Scope(id="set:sub/lab/web").with_vms([a_vm("a"), a_vm("b"), a_vm("c")])
    changed = scope.with_vms([a_vm("d"), a_vm("B", size="new")])
    assert [(vm.name, vm.size == "new") for vm in changed.vms] == [
        ("a", False),
        ("B", True),
        ("c", False),
        ("d", False),
    ]
