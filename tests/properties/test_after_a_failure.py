"""After a crash or a failed write: regression tests for failures that the state machine found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import EventState
from forewarn.core.fleet import Vm
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.errors import Unavailable
from tests.properties.crashing_stores import CrashingMemoryStore, CrashingWorld, ProcessDied
from tests.support.world import a_host, a_vm

POLICY = Policy(enablement=EnablementMode.ALWAYS)


@pytest.fixture
def make_world() -> Iterator[Callable[[list[Vm]], CrashingWorld]]:
    with ExitStack() as stack:

        def make(vms: list[Vm]) -> CrashingWorld:
            world = CrashingWorld(CrashingMemoryStore(), vms=vms, hosts=[a_host("h1"), a_host("h2")], policy=POLICY)
            stack.callback(world.close)
            return world

        yield make


@pytest.fixture
def world(make_world: Callable[[list[Vm]], CrashingWorld]) -> CrashingWorld:
    """Two single VMs on one host, so that work on it goes through a gate, and a spare host."""
    return make_world([a_vm("web", host="h1"), a_vm("db", host="h1")])


def roll_out(world: CrashingWorld, *hosts: str, impact: RolloutImpact = RolloutImpact.UPDATE) -> str:
    rollout = Rollout(impact=impact, hosts=hosts)
    return world.do(world.control.rollout_requests.start(rollout, who="op")).id


def die_when_due(world: CrashingWorld, writes: int, late: bool) -> None:
    """Let the notice end in a process that dies after this many writes of its reconcile pass."""
    world.clock.apply_setting(world.clock.setting_after_jump(world.now + 900))
    world.failures.dies_in, world.failures.dies_late = writes, late
    with pytest.raises(ProcessDied):
        world.settle()
    world.restart_process()
    world.settle()


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("writes", range(5))
def test_events_behind_a_gate_start_together_wherever_the_process_dies(
    world: CrashingWorld, writes: int, late: bool
) -> None:
    """Spec §6.2: no event stays behind a released gate or waits for the grace period after a restart."""
    roll_out(world, "h1")
    world.settle()
    die_when_due(world, writes, late)
    world.advance(3600)

    instants = {event.started_at for event in world.events()}
    assert len(instants) == 1
    assert None not in instants
    assert not world.events(EventState.SCHEDULED, EventState.STARTED)


def test_other_rollouts_continue_after_one_met_a_failing_store(make_world: Callable[[list[Vm]], CrashingWorld]) -> None:
    world = make_world([a_vm("web", host="h1"), a_vm("db", host="h2")])
    requests = [roll_out(world, "h1"), roll_out(world, "h2")]
    world.failures.fails_in = 0
    with pytest.raises(Unavailable):
        world.settle()
    world.settle()

    assert {event.request_id for event in world.events()} == set(requests)


def test_outcomes_of_many_scopes_survive_a_failed_write(
    make_world: Callable[[list[Vm]], CrashingWorld],
) -> None:
    """Outcomes are recorded in batches; those of later batches are kept when an earlier one fails."""
    world = make_world([a_vm(f"vm-{number}", host="h1") for number in range(300)])
    roll_out(world, "h1")
    world.advance(900)
    world.clock.apply_setting(world.clock.setting_after_jump(world.now + 9))
    world.do(world.control.reconciler.reconcile())
    while world.control.executor.running_acts:
        world.do(world.control.executor.wait_for_any())
    world.failures.fails_in = 0
    with pytest.raises(Unavailable):
        world.settle()
    performs = {effect.act_id: effect.performs for effect in world.ledger.effects()}
    world.advance(60)

    assert not world.events(EventState.SCHEDULED, EventState.STARTED)
    assert max(performs.values()) <= 2


@pytest.mark.parametrize("hosts", [("H1",), ("h1", "h1"), ("h1", "H1")], ids=str)
def test_a_rollout_takes_each_host_once_whatever_the_case_of_its_name(
    world: CrashingWorld, hosts: tuple[str, ...]
) -> None:
    request_id = roll_out(world, *hosts)
    world.settle()

    listed = [name for event in world.events() for name in event.vms]
    assert sorted(listed) == ["db", "web"]
    rollout = world.control.rollout_requests.find(request_id).rollout
    assert rollout is not None
    assert rollout.progress is RolloutState.RUNNING


def test_a_vm_removed_before_its_event_is_published_blocks_no_other_event(world: CrashingWorld) -> None:
    """Spec §6.2: the other events on its host start without it, and the rollout ends."""
    request_id = roll_out(world, "h1")
    world.do(world.control.reconciler.reconcile())
    world.failures.fails_in = 1
    with pytest.raises(Unavailable):
        world.settle()
    assert [planned.vms for planned in world.store.planned()] == [("db",)]
    world.do(world.control.fleet.apply_change(FleetChange(removed=(world.vm("db"),)), who="op"))
    world.settle()
    for event in world.events():
        world.do(world.control.requests.approve(event.id, who="op"))
    world.settle()

    assert [event.status for event in world.events()] == [EventState.STARTED]
    world.advance(60)
    assert not world.control.rollout_requests.find(request_id).is_open


def test_a_rollout_ends_if_its_last_vm_is_removed_before_its_event_is_published(
    make_world: Callable[[list[Vm]], CrashingWorld],
) -> None:
    world = make_world([a_vm("web", host="h1")])
    request_id = roll_out(world, "h1")
    world.do(world.control.reconciler.reconcile())
    world.failures.fails_in = 0
    with pytest.raises(Unavailable):
        world.settle()
    world.do(world.control.fleet.apply_change(FleetChange(removed=(world.vm("web"),)), who="op"))
    world.settle()

    assert not world.control.rollout_requests.find(request_id).is_open


def test_terminates_wait_for_one_in_the_grace_period_after_a_restart(
    make_world: Callable[[list[Vm]], CrashingWorld],
) -> None:
    """Spec §6.2: Terminates of one placement group start together when each pending one is ready."""
    facts = {"scale_set": "web", "placement_group": "pg", "terminate_notice_min": 5}
    world = make_world([a_vm("web_0", **facts), a_vm("web_1", **facts)])
    world.ask(RequestedOperation.DELETE, "web_0")
    [late] = world.ask(RequestedOperation.DELETE, "web_1", notice_s=3600)
    world.clock.apply_setting(world.clock.setting_after_jump(world.now + 300))
    world.restart_process()
    world.approve("web_0", late.id)
    assert {event.status for event in world.events()} == {EventState.SCHEDULED}
    world.advance(60)

    assert len({event.started_at for event in world.events()}) == 1


def test_a_move_that_was_not_committed_does_not_change_the_placement_index(world: CrashingWorld) -> None:
    world.ask(RequestedOperation.DEALLOCATE, "web")
    world.advance(60)
    world.failures.fails_in = 0
    with pytest.raises(Unavailable):
        world.do(world.control.requests.request_for_vms(RequestedOperation.START, [world.vm("web")], who="ann"))

    assert [world.control.placement.vm_count(host) for host in ("h1", "h2")] == [1, 0]
