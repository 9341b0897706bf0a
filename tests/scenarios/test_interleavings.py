"""Changes between two steps of a reconcile pass, which a transcript cannot make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.core.event import EventState
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutImpact, RolloutState
from tests.support.world import World, a_host, a_vm


@pytest.fixture
def world() -> Iterator[World]:
    vms = [
        a_vm("web-0", host="h1", availability_set="web", update_domain=0),
        a_vm("web-1", host="h2", availability_set="web", update_domain=1),
    ]
    with closing(World(hosts=[a_host("h1"), a_host("h2")], vms=vms)) as world:
        yield world


def started_rollout(world: World) -> MaintenanceRequest:
    """A rollout that has planned its first events and published none of them."""
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1", "h2"))
    request = world.do(world.control.rollout_requests.start(rollout, who="ops"))
    assert world.do(world.control.rollouts.reconcile())
    assert [planned.vms for planned in world.store.planned()] == [("web-0",)]
    return request


def progress_of(world: World, request: MaintenanceRequest) -> RolloutState:
    rollout = world.control.rollout_requests.find(request.id).rollout
    assert rollout is not None
    return rollout.progress


def test_a_rollout_goes_on_if_a_vm_is_removed_before_its_event_is_published(world: World) -> None:
    """Spec §4.2, §6.2: the VM is skipped, and the next update domain follows."""
    request = started_rollout(world)
    world.do(world.control.fleet.apply_change(FleetChange(removed=(world.vm("web-0"),)), who="ops"))
    world.settle()
    assert [event.vms for event in world.events(EventState.SCHEDULED)] == [("web-1",)]
    world.advance(3600)
    assert progress_of(world, request) is RolloutState.COMPLETED


def test_an_abort_drops_planned_events(world: World) -> None:
    """Spec §6.2: withdrawal is possible until the event has started."""
    request = started_rollout(world)
    world.do(world.control.rollout_requests.change_state(request.id, RolloutState.ABORTED, who="ops"))
    world.settle()
    world.advance(3600)
    assert {event.status for event in world.events()} <= {EventState.OVER}
    assert not [act for event in world.events() for act in event.acts]
    assert progress_of(world, request) is RolloutState.ABORTED


def test_the_next_process_publishes_events_that_a_killed_one_had_planned(world: World) -> None:
    """What a request plans is durable before it is answered (spec §6.1)."""
    started_rollout(world)
    world.restart()
    assert [event.vms for event in world.events(EventState.SCHEDULED)] == [("web-0",)]
