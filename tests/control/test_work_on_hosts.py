"""Maintenance of a host concerns the VMs that are on it when it starts (spec §6.4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.control.placement_index import PlacementIndex
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.placement import DestinationHints
from forewarn.core.request import (
    MaintenanceRequest,
    RequestedOperation,
    Rollout,
    RolloutImpact,
    RolloutState,
    RolloutTally,
)
from tests.support.world import World, a_host, a_vm

MINUTE = 60.0


@pytest.fixture
def world() -> Iterator[World]:
    vms = [
        a_vm("web-1", availability_set="web", host="h1"),
        a_vm("web-2", availability_set="web", host="h1"),
        a_vm("db", host="h1"),
        a_vm("mail", host="h2"),
    ]
    world = World(vms=vms, hosts=[a_host(f"h{n}") for n in (1, 2, 3, 4)])
    yield world
    world.close()


def start_rollout(world: World, impact: RolloutImpact = RolloutImpact.UPDATE, host: str = "h1") -> MaintenanceRequest:
    rollout = Rollout(impact=impact, hosts=(host,))
    request = world.do(world.control.rollout_requests.start(rollout, who="op"))
    world.settle()
    return request


def redeploy(world: World, name: str) -> None:
    """Redeploy a VM now, and wait until it has arrived."""
    world.ask(RequestedOperation.REDEPLOY, name, short_notice=True)
    world.advance(3 * MINUTE)


def event_of(world: World, request: MaintenanceRequest, name: str) -> Event:
    (event,) = [event for event in world.store.events(request_id=request.id) if name in event.vms]
    return event


def tally(world: World, request: MaintenanceRequest) -> RolloutTally:
    stored = world.store.request(request.id)
    assert stored is not None
    assert stored.rollout is not None
    return world.control.rollouts.tally_of(stored, stored.rollout)


@pytest.mark.parametrize("impact", [RolloutImpact.UPDATE, RolloutImpact.REBOOT])
def test_a_vm_that_left_the_host_is_not_affected_by_its_maintenance(world: World, impact: RolloutImpact) -> None:
    request = start_rollout(world, impact)
    redeploy(world, "web-1")
    assert world.vm("web-1").host != "h1"
    world.advance(20 * MINUTE)

    event = event_of(world, request, "web-1")
    assert event.vms == ("web-1", "web-2")
    assert [act.name for act in event.acts] == ["web-2"]
    assert (tally(world, request).done, tally(world, request).not_needed) == (2, 1)
    assert "web-1 is skipped: it is no longer on h1" in world.transcript()


def test_an_event_whose_vms_have_all_left_the_host_is_not_needed(world: World) -> None:
    request = start_rollout(world)
    redeploy(world, "db")

    event = event_of(world, request, "db")
    assert (event.status, event.ending) == (EventState.OVER, Ending.NOT_NEEDED)
    assert event.reason == "db is no longer on h1"
    assert tally(world, request).not_needed == 1


def test_an_event_whose_vm_was_removed_and_added_again_does_not_say_that_it_left_the_host(world: World) -> None:
    request = start_rollout(world)
    for change in (FleetChange(removed=(world.vm("db"),)), FleetChange(vms=(a_vm("db", host="h1", vm_id="another"),))):
        world.do(world.control.fleet.apply_change(change, who="ann"))
    world.settle()

    first, own = [event for event in world.store.events(request_id=request.id) if event.vms == ("db",)]
    assert (first.ending, first.reason) == (Ending.NOT_NEEDED, "none of its VMs exists any more")
    assert own.status is EventState.SCHEDULED


def test_events_behind_the_gate_of_a_host_do_not_wait_for_one_that_is_not_needed(world: World) -> None:
    """Spec §6.4: approved events start as soon as the last event that is not ready is withdrawn."""
    request = start_rollout(world)
    web = event_of(world, request, "web-1")
    world.approve("web-1", web.id)
    assert event_of(world, request, "web-1").status is EventState.SCHEDULED
    redeploy(world, "db")

    assert event_of(world, request, "web-1").status is not EventState.SCHEDULED


def test_a_deallocated_vm_is_not_affected_and_not_counted_as_done(world: World) -> None:
    request = start_rollout(world)
    world.ask(RequestedOperation.DEALLOCATE, "db")
    world.advance(20 * MINUTE)

    assert world.vm("db").power is PowerState.DEALLOCATED
    assert event_of(world, request, "db").ending is Ending.NOT_NEEDED
    assert (tally(world, request).done, tally(world, request).not_needed) == (2, 1)


def test_a_migration_away_from_a_host_is_not_needed_for_a_vm_that_has_left_it(world: World) -> None:
    request = start_rollout(world, RolloutImpact.MIGRATE)
    redeploy(world, "db")
    arrived = world.vm("db").host
    world.advance(20 * MINUTE)

    assert event_of(world, request, "db").ending is Ending.NOT_NEEDED
    assert world.vm("db").host == arrived


def test_a_moving_vm_avoids_hosts_with_announced_maintenance(world: World) -> None:
    """Host h3 and h4 are empty; maintenance of h3 is announced, so h4 is the better one."""
    redeploy(world, "mail")
    busy = world.vm("mail").host
    assert busy == "h3"
    start_rollout(world, host=busy)
    for name in ("db", "web-1", "web-2"):
        redeploy(world, name)
        assert world.vm(name).host != busy


def test_a_vm_that_arrives_on_a_host_with_announced_maintenance_starts_with_the_others() -> None:
    """Spec §6.4: without another host, it gets its own event with full notice behind the same gate."""
    world = World(vms=[a_vm("db", host="h1"), a_vm("mail", host="h2")], hosts=[a_host("h1"), a_host("h2")])
    request = start_rollout(world, host="h2")
    redeploy(world, "db")
    assert world.vm("db").host == "h2"

    mail, db = event_of(world, request, "mail"), event_of(world, request, "db")
    assert db.gate_id == mail.gate_id != ""
    assert db.not_before - db.published_at >= 15 * MINUTE
    world.advance(30 * MINUTE)
    assert event_of(world, request, "mail").started_at == event_of(world, request, "db").started_at
    assert tally(world, request).done == 2
    world.close()


def test_a_vm_that_comes_back_to_the_host_gets_an_event_again(world: World) -> None:
    """Its first event was not needed, but the host is still to be updated."""
    world.do(world.control.requests.fail_host("h3", who="op"))
    world.do(world.control.requests.fail_host("h4", who="op"))
    request = start_rollout(world)
    redeploy(world, "db")
    assert world.vm("db").host == "h2"
    redeploy(world, "db")
    assert world.vm("db").host == "h1"
    world.advance(40 * MINUTE)

    first, second = [event for event in world.store.events(request_id=request.id) if "db" in event.vms]
    assert (first.ending, second.ending) == (Ending.NOT_NEEDED, Ending.FINISHED)
    assert tally(world, request).total == tally(world, request).done == 3


def test_publishing_an_event_chooses_no_destination_before_it_starts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destination is compared with all hosts, so choosing one for each VM of a large request takes long."""
    chosen: list[str] = []
    find = PlacementIndex.find_destination

    def find_and_note(index: PlacementIndex, vm: Vm, hints: DestinationHints, *, is_live: bool) -> str | None:
        chosen.append(vm.name)
        return find(index, vm, hints, is_live=is_live)

    monkeypatch.setattr(PlacementIndex, "find_destination", find_and_note)
    names = [vm.name for vm in world.store.vms()]
    world.ask(RequestedOperation.REDEPLOY, *names)
    assert not chosen
    world.advance(15 * MINUTE)
    assert sorted(chosen) == sorted(names)
    assert all(event.ending is Ending.FINISHED for event in world.events())


def test_no_event_of_an_aborted_rollout_starts_because_another_one_is_withdrawn(world: World) -> None:
    """One of two events of a scope is approved, and the rollout aborted, before the reconciler runs again."""
    request = start_rollout(world, RolloutImpact.MIGRATE)
    event = event_of(world, request, "web-2")

    async def approve_and_abort() -> None:
        await world.control.guests.approve(world.vm("web-2").key, (event.id,))
        await world.control.rollout_requests.change_state(request.id, RolloutState.ABORTED, who="op")
        await world.control.reconciler.run_until_settled()

    world.do(approve_and_abort())
    assert {event.ending for event in world.store.events(request_id=request.id)} == {Ending.WITHDRAWN}
    counts = tally(world, request)
    assert (counts.total, counts.withdrawn, counts.started) == (3, 3, 0)
