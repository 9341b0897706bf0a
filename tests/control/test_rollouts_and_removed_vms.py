"""A VM that is removed lets the other VMs of its host go on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.control.fleet import FleetChange
from forewarn.core.request import Rollout, RolloutImpact
from tests.support.world import World, a_host, a_vm


def test_vms_that_waited_for_a_vm_of_their_host_go_on_when_it_is_removed() -> None:
    """Spec §6.2: the second update domains of both sets go together, and that of set-b must wait."""
    vms = [
        a_vm(f"{name}-{domain}", availability_set=f"set-{name}", update_domain=domain, host="h1")
        for name in "ab"
        for domain in (0, 1)
    ]
    world = World(vms=vms, hosts=[a_host("h1")])
    try:
        world.do(world.control.rollout_requests.start(Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",)), who="ann"))
        world.settle()
        for name in ("a-0", "b-1"):
            world.do(world.control.fleet.apply_change(FleetChange(removed=(world.vm(name),)), who="ann"))
            world.settle()
        assert {event.vms for event in world.store.events() if event.is_live} == {("b-0",), ("a-1",)}
    finally:
        world.close()


@pytest.mark.parametrize("rollout", [{"hosts": ("h1",)}, {"everything": True}], ids=["hosts", "all VMs"])
def test_a_vm_added_again_under_its_name_gets_its_own_notice(rollout: dict[str, Any]) -> None:
    vms = [a_vm(name, availability_set="web", host="h1") for name in ("web-1", "web-2")]
    world = World(vms=vms, hosts=[a_host("h1")])
    try:
        world.do(world.control.rollout_requests.start(Rollout(impact=RolloutImpact.REBOOT, **rollout), who="ann"))
        world.settle()
        (shared,) = world.store.events()
        assert set(shared.vms) == {"web-1", "web-2"}
        world.advance(shared.not_before - world.now - 26)
        added = replace(vms[0], name="WEB-1", vm_id="another")
        for change in (FleetChange(removed=(world.vm("web-1"),)), FleetChange(vms=(added,))):
            world.do(world.control.fleet.apply_change(change, who="ann"))
        added_at = world.now
        world.advance(3600)
        first, own = world.store.events()
        assert [act.name for act in first.acts] == ["web-2"]
        assert own.vms == ("WEB-1",)
        assert own.not_before - own.published_at == shared.not_before - shared.published_at
        assert own.published_at >= added_at
        assert [act.name for act in own.acts] == ["WEB-1"]
    finally:
        world.close()
