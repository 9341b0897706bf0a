"""The hold on all rollouts (spec §13.5): what it keeps from starting, what goes on, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forewarn.control.dry_run import dry_run_rollout
from forewarn.core.event import Event, EventState
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.errors import Refused, Rejected, Unavailable
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite import SqliteStore
from tests.support.disturbed_calls import ServiceKilled
from tests.support.world import World, a_host, a_vm

ON_H0 = Rollout(impact=RolloutImpact.UPDATE, hosts=("h0",))
ON_BOTH = Rollout(impact=RolloutImpact.UPDATE, hosts=("h0", "h1"))


@pytest.fixture
def world() -> Iterator[World]:
    """Two update domains of one scope on two hosts, and a VM of another scope on the first host."""
    vms = [a_vm(f"web-{n}", host=f"h{n}", availability_set="web", update_domain=n) for n in (0, 1)]
    world = World(hosts=[a_host("h0"), a_host("h1"), a_host("h2")], vms=[*vms, a_vm("db", host="h0")])
    yield world
    world.close()


def start(world: World, rollout: Rollout = ON_BOTH) -> MaintenanceRequest:
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    return request


def hold(world: World, reason: str = "an incident") -> None:
    world.do(world.control.rollouts.holds.set_hold(reason, who="ann"))
    world.settle()


def lift(world: World) -> None:
    world.do(world.control.rollouts.holds.lift_hold(who="ann"))
    world.settle()


def started(world: World) -> list[Event]:
    return [event for event in world.events() if event.started_at is not None]


def test_no_event_of_a_rollout_starts_during_a_hold_and_explanations_name_it(world: World) -> None:
    start(world, ON_H0)
    hold(world)
    world.advance(7200)
    assert started(world) == []
    event = next(event for event in world.events() if "web-0" in event.vms)
    scope = world.scope("web-0")
    wait = start_wait(scope, event, world.control.transactions.context_for(scope))
    assert wait is not None
    assert (wait.reason, wait.text) == (
        WaitReason.HOLD,
        "an approval, or the end of the hold on all rollouts (an incident)",
    )


def test_when_the_hold_is_lifted_what_is_due_starts_and_rollouts_go_on(world: World) -> None:
    request = start(world)
    hold(world)
    world.advance(7200)
    lift(world)
    assert {name for event in started(world) for name in event.vms} == {"web-0", "db"}
    world.advance(7200)
    assert world.rollout(request.id).progress is RolloutState.COMPLETED
    assert world.control.rollouts.hold is None


def test_a_rollout_publishes_nothing_during_a_hold(world: World) -> None:
    hold(world)
    request = start(world)
    world.advance(7200)
    assert world.events() == []
    assert world.rollout(request.id).progress is RolloutState.RUNNING
    lift(world)
    assert len(world.events(EventState.SCHEDULED)) == 2


def test_what_is_planned_but_not_published_when_a_hold_or_pause_comes_is_published_after_it(world: World) -> None:
    requests = world.control.rollout_requests
    request = world.do(requests.start(ON_BOTH, who="ann"))
    world.do(world.control.rollouts.reconcile())
    assert world.store.planned()
    hold(world)
    assert world.events() == []
    lift(world)
    published = {name for event in world.events() for name in event.vms}
    assert published
    world.do(requests.change_state(request.id, RolloutState.ABORTED, who="ann"))
    world.settle()

    second = world.do(requests.start(ON_BOTH, who="ann"))
    world.do(world.control.rollouts.reconcile())
    world.do(requests.change_state(second.id, RolloutState.PAUSED, who="ann"))
    world.settle()
    assert world.store.events(request_id=second.id) == []
    world.do(requests.change_state(second.id, RolloutState.RUNNING, who="ann"))
    world.settle()
    assert {name for event in world.store.events(request_id=second.id) for name in event.vms} == published


@pytest.mark.parametrize("stop", ["hold", RolloutState.PAUSED, RolloutState.ABORTED])
def test_nothing_is_published_after_the_answer_to_a_hold_pause_or_abort(tmp_path: Path, stop: str) -> None:
    """Spec §13.5. The stop comes while 1,000 VMs, each a scope of its own, are being published."""
    vms = [a_vm(f"vm-{n}", host="h0") for n in range(1000)]
    world = World(hosts=[a_host("h0"), a_host("h1")], vms=vms, store=SqliteStore.open(tmp_path / "forewarn.db"))
    control, requests = world.control, world.control.rollout_requests

    async def scenario() -> tuple[int, int]:
        running = asyncio.create_task(control.reconciler.run())
        request = await requests.start(ON_H0, who="ann")
        async with asyncio.timeout(60):
            while not world.store.events(request_id=request.id):
                await asyncio.sleep(0)
        if isinstance(stop, RolloutState):
            await requests.change_state(request.id, stop, who="ann")
        else:
            await control.rollouts.holds.set_hold("an incident", who="ann")
        at_answer = len(world.store.events(request_id=request.id))
        for _ in range(3):
            await control.reconciler.catch_up()
        running.cancel()
        return at_answer, len(world.store.events(request_id=request.id))

    at_answer, later = world.do(scenario())
    assert 0 < at_answer == later < 1000
    world.close()


def test_an_event_that_came_due_while_a_hold_could_not_be_stored_starts_all_the_same(world: World) -> None:
    assert isinstance(world.store, MemoryStore)
    start(world, ON_H0)
    world.store.fail_next(Unavailable("the disk is full"))
    with pytest.raises(Unavailable):
        hold(world)
    world.settle()
    assert world.control.rollouts.hold is None
    assert not world.control.rollouts.holds.is_lifting
    world.advance(7200)
    assert {name for event in started(world) for name in event.vms} == {"web-0", "db"}


def test_an_approved_event_starts_during_a_hold(world: World) -> None:
    start(world, Rollout(impact=RolloutImpact.MIGRATE, hosts=("h1",)))
    hold(world)
    (event,) = world.events()
    world.approve("web-1", event.id)
    assert [event.vms for event in started(world)] == [("web-1",)]


def test_users_and_predicted_failures_are_not_held(world: World) -> None:
    hold(world)
    world.ask(RequestedOperation.RESTART, "db")
    world.do(world.control.requests.degrade_host("h1", who="ann", notice_s=3600))
    world.settle()
    world.advance(2 * 3600)
    assert sorted(event.vms[0] for event in started(world)) == ["db", "web-1"]


def test_a_hold_survives_a_restart_of_the_service(world: World) -> None:
    start(world, ON_H0)
    hold(world)
    world.restart()
    assert world.control.rollouts.hold is not None
    world.advance(7200)
    assert started(world) == []
    lift(world)
    assert len(started(world)) == 2


def test_a_crash_while_a_hold_is_lifted_loses_no_start(world: World) -> None:
    start(world, ON_H0)
    hold(world)
    world.advance(7200)
    world.do(world.control.rollouts.holds.lift_hold(who="ann"))  # and the process ends before its reconciler runs
    world.restart()
    world.advance(120)  # the grace period after a restart
    assert len(started(world)) == 2


def test_a_preview_shows_a_rollout_as_it_will_be_after_the_hold(world: World) -> None:
    hold(world)
    preview = world.do(dry_run_rollout(world.control, ON_BOTH, who="ann", notice_s=0, short_notice=False))
    assert len(preview.events) == 3


def test_the_history_says_who_held_rollouts_and_why(world: World) -> None:
    hold(world, "an\n incident")
    lift(world)
    texts = [entry.text for entry in world.store.history() if "hold" in entry.text]
    assert texts == ["all rollouts are on hold: an incident", "the hold on all rollouts is lifted (an incident)"]


def test_a_hold_needs_a_reason_and_there_is_one_at_a_time(world: World) -> None:
    with pytest.raises(Rejected, match="a hold needs a reason"):
        hold(world, "  ")
    with pytest.raises(Refused, match="there is nothing to lift"):
        lift(world)
    hold(world)
    with pytest.raises(Refused, match=r"on hold already \(an incident\): lift that hold first"):
        hold(world, "another one")


def test_a_hold_that_is_set_while_the_last_one_is_lifted_stays(world: World) -> None:
    start(world, ON_H0)
    hold(world)
    world.advance(7200)
    rollouts = world.control.rollouts

    async def lift_and_hold_again() -> None:
        await rollouts.holds.lift_hold(who="ann")
        await asyncio.gather(rollouts.reconcile(), rollouts.holds.set_hold("another one", who="ann"))

    world.do(lift_and_hold_again())
    world.settle()
    assert rollouts.hold is not None
    assert rollouts.hold.reason == "another one"
    world.restart()
    assert world.control.rollouts.hold is not None


@pytest.mark.parametrize("applied", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_hold_is_in_force_exactly_if_the_history_has_its_entry_whenever_the_process_dies(
    world: World, writes: int, applied: bool
) -> None:
    assert isinstance(world.store, MemoryStore)
    texts = ["all rollouts are on hold: an incident", "the hold on all rollouts is lifted (an incident)"]
    world.store.fail_next(ServiceKilled(), after=writes, applied=applied)
    with suppress(ServiceKilled):
        hold(world)
        lift(world)
    world.restart()
    found = [entry.text for entry in world.store.history() if "hold" in entry.text]
    assert found == texts[: len(found)]
    assert (world.control.rollouts.hold is not None) == (len(found) == 1)


def test_a_hold_that_could_not_be_stored_can_be_set_and_lifted_again(world: World) -> None:
    assert isinstance(world.store, MemoryStore)
    for change in (hold, lift):
        world.store.fail_next(Unavailable("the disk is full"))
        with pytest.raises(Unavailable):
            change(world)
        change(world)
    found = [entry.text for entry in world.store.history() if "hold" in entry.text]
    assert found == ["all rollouts are on hold: an incident", "the hold on all rollouts is lifted (an incident)"]
