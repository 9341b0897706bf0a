"""A host is predicted to fail while VMs are on their way to it: they leave it again, with notice (spec §6.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from forewarn.core.cause import Cause
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.fleet import HostHealth
from forewarn.core.release import StartWait, WaitReason, start_wait
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.errors import Refused
from tests.support.world import World, a_host, a_vm

MINUTE, DAY = 60.0, 24 * 3600.0
Move = Callable[[World], None]  # begins to bring the VM to h2


@pytest.fixture
def world() -> Iterator[World]:
    """One VM on h1; h3 has many VMs, so the VM moves to h2."""
    vms = [a_vm("web"), *(a_vm(f"other-{number}", host="h3") for number in range(5))]
    world = World(vms=vms, hosts=[a_host("h1"), a_host("h2"), a_host("h3")])
    yield world
    world.close()


def degrade(world: World, host: str) -> list[Event]:
    """Predict that a host fails in a week; return the events of that."""
    receipt = world.do(world.control.requests.degrade_host(host, who="op", notice_s=7 * DAY))
    world.settle()
    return world.store.events(request_id=receipt.request.id)


def stored(world: World, event: Event) -> Event:
    found = world.store.event(event.id)
    assert found is not None
    return found


def wait_of(world: World, event: Event) -> StartWait | None:
    scope = world.scope(event.vms[0])
    return start_wait(scope, stored(world, event), world.control.transactions.context_for(scope))


def moves(world: World, name: str) -> list[tuple[str, str]]:
    """The moves of a VM that took effect: from where, to where."""
    ended = [effect for effect in world.ledger.effects(world.vm(name).key) if effect.ended and effect.to_host]
    return [(effect.from_host, effect.to_host) for effect in ended]


def redeploy_to_h2(world: World) -> None:
    """Begin a redeployment of the VM, which takes two minutes."""
    world.ask(RequestedOperation.REDEPLOY, "web", short_notice=True)
    world.advance(1)
    assert world.control.placement.vms_moving_to("h2") == [world.vm("web").key]


def migrate_to_h2(world: World) -> None:
    """Begin a migration of the VM, which takes five seconds."""
    world.do(world.control.rollout_requests.start(Rollout(impact=RolloutImpact.MIGRATE, hosts=("h1",)), who="op"))
    world.settle()
    (event,) = world.events(EventState.SCHEDULED)
    world.approve("web", event.id)
    assert world.control.placement.vms_moving_to("h2") == [world.vm("web").key]


def start_on_h2(world: World) -> None:
    """Begin to start the deallocated VM, which takes 20 seconds."""
    world.ask(RequestedOperation.DEALLOCATE, "web")
    world.advance(MINUTE)
    world.do(world.control.requests.fail_host("h1", who="op"))
    world.ask(RequestedOperation.START, "web")
    assert world.control.placement.vms_moving_to("h2") == [world.vm("web").key]


@pytest.mark.parametrize("move", [redeploy_to_h2, migrate_to_h2, start_on_h2])
def test_a_vm_that_is_moved_to_a_host_when_it_is_degraded_leaves_it_with_notice(world: World, move: Move) -> None:
    move(world)
    (event,) = degrade(world, "h2")
    assert (event.vms, event.cause, event.status) == (("web",), Cause.PREDICTED_FAILURE, EventState.SCHEDULED)
    assert event.note == "web is being moved to h2"

    world.advance(5 * MINUTE)
    assert (world.vm("web").host, stored(world, event).status) == ("h2", EventState.SCHEDULED)
    world.advance(8 * DAY)
    assert stored(world, event).ending is Ending.FINISHED
    assert moves(world, "web")[-1][0] == "h2" != world.vm("web").host


@pytest.mark.parametrize("move", [redeploy_to_h2, migrate_to_h2, start_on_h2])
def test_the_redeployment_of_a_vm_that_is_on_its_way_waits_until_it_has_arrived(world: World, move: Move) -> None:
    move(world)
    (event,) = degrade(world, "h2")
    world.approve("web", event.id)
    wait = wait_of(world, event)
    assert wait is not None
    assert wait.reason is WaitReason.MOVE

    world.advance(10 * MINUTE)
    (act,) = stored(world, event).acts
    assert act.from_host == "h2" != act.to_host
    assert world.vm("web").host == act.to_host


def test_a_vm_may_go_back_to_the_host_that_it_comes_from() -> None:
    """Its destination is chosen when it has arrived: until then the host that it leaves is none."""
    world = World(vms=[a_vm("web")], hosts=[a_host("h1"), a_host("h2")])
    redeploy_to_h2(world)
    (event,) = degrade(world, "h2")
    world.approve("web", event.id)
    world.advance(10 * MINUTE)
    assert moves(world, "web") == [("h1", "h2"), ("h2", "h1")]
    assert stored(world, event).ending is Ending.FINISHED
    world.close()


@pytest.mark.parametrize("move", [redeploy_to_h2, migrate_to_h2])
def test_the_redeployment_is_not_needed_if_the_vm_never_arrives(world: World, move: Move) -> None:
    """The degraded host fails before the VM is there, so the VM is redeployed elsewhere or stays where it is."""
    move(world)
    (event,) = degrade(world, "h2")
    world.do(world.control.requests.fail_host("h2", who="op"))
    world.advance(10 * MINUTE)
    assert stored(world, event).ending is Ending.NOT_NEEDED
    assert world.vm("web").host in ("h1", "h3")
    assert ("h1", "h2") not in moves(world, "web")


def test_a_degraded_host_is_not_repaired_while_a_vm_on_its_way_is_to_leave_it(world: World) -> None:
    redeploy_to_h2(world)
    (event,) = degrade(world, "h2")
    with pytest.raises(Refused, match=f"withdraw event {event.id}"):
        world.do(world.control.requests.repair_host("h2", who="op"))

    world.do(world.control.requests.withdraw(event.id, who="op"))
    assert world.do(world.control.requests.repair_host("h2", who="op")).health is HostHealth.HEALTHY
    world.advance(8 * DAY)
    assert world.vm("web").host == "h2"


def test_a_host_is_not_degraded_if_a_vm_on_its_way_could_not_leave_it() -> None:
    world = World(vms=[a_vm("web", host="h1")], hosts=[a_host("h1"), a_host("h2")])
    redeploy_to_h2(world)
    world.do(world.control.requests.degrade_host("h1", who="op", notice_s=DAY))
    with pytest.raises(Refused, match=r"'web' cannot move: .* no healthy host besides 'h2'"):
        world.do(world.control.requests.degrade_host("h2", who="op", notice_s=DAY))
    world.close()


def test_a_restarted_service_publishes_the_event_of_a_vm_on_its_way(world: World) -> None:
    """The process died right after the request was committed."""
    redeploy_to_h2(world)
    receipt = world.do(world.control.requests.degrade_host("h2", who="op", notice_s=7 * DAY))
    world.restart()
    world.advance(5 * MINUTE)
    (event,) = world.store.events(request_id=receipt.request.id)
    assert (event.vms, event.status, world.vm("web").host) == (("web",), EventState.SCHEDULED, "h2")
