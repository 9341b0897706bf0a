"""A VM that is removed lets the other VMs of its host go on."""

from __future__ import annotations

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
