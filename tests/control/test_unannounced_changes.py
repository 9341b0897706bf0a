"""What others do to VMs is recorded once, the fleet follows, and no act of our own is taken for theirs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from forewarn.core.event import EventState
from forewarn.core.fleet import LastSeen, PowerState, VmCondition
from forewarn.core.history import EntryKind
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.core.unannounced import HostObservation, StateCause, UnannouncedKind
from forewarn.machines.driver import MachineState
from tests.support.fake_machines import FakeMachine
from tests.support.machine_world import HOSTS, MachineWorld
from tests.support.world import World, a_host, a_vm

K, M, W = UnannouncedKind, MachineState, StateCause


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MachineWorld]:
    world = MachineWorld(tmp_path)
    world.compare()
    yield world
    world.close()


def counts(world: MachineWorld) -> dict[UnannouncedKind, int]:
    return {kind: count for kind, count in world.control.unannounced_changes.counts.items() if count}


def move_by_hand(world: MachineWorld, source: str = "h1", destination: str = "h2") -> None:
    world.fake.change_by_hand(source, "web", M.SENT)
    world.fake.change_by_hand(destination, "web", M.RUNNING, is_new=True)


def test_a_vm_is_first_compared_without_an_entry(world: MachineWorld) -> None:
    assert world.vm("web").seen == LastSeen(instance="1")
    assert world.entries() == []
    assert world.entries(EntryKind.FLEET)[-1].text == "the fleet"


def test_a_crash_is_recorded_once_and_stops_the_vm(world: MachineWorld) -> None:
    world.fake.change_by_hand("h1", "web", M.OFF, W.CRASH)
    assert world.compare() == ["web is off on h1: it crashed, without notice"]
    assert (world.vm("web").power, world.vm("web").condition) == (PowerState.STOPPED, VmCondition.CRASHED)
    assert world.compare() == []
    assert counts(world) == {K.CRASHED: 1}


def test_a_vm_that_crashed_is_booted_by_the_next_redeployment(world: MachineWorld) -> None:
    world.fake.change_by_hand("h1", "web", M.OFF, W.CRASH)
    world.compare()
    assert world.perform(RequestedOperation.REDEPLOY) == "finished"
    vm = world.vm("web")
    assert (vm.power, world.fake.states("web")) == (PowerState.RUNNING, {vm.host: M.RUNNING})
    assert world.compare() == []


def test_a_vm_that_its_guest_shut_down_stays_off_during_maintenance(world: MachineWorld) -> None:
    world.fake.change_by_hand("h1", "web", M.OFF, W.GUEST)
    world.compare()
    assert world.roll_out(RolloutImpact.REBOOT, "h1") == "finished"
    assert world.fake.states("web") == {"h1": M.OFF}
    assert world.compare() == []


def test_a_move_by_hand_is_recorded_and_the_fleet_follows(world: MachineWorld) -> None:
    move_by_hand(world)
    assert world.compare() == ["web is on h2 instead of h1: moved by somebody else, without notice"]
    assert world.vm("web").host == "h2"
    assert world.control.placement.vm_count("h2") == 1
    assert [host.arrivals for host in world.store.hosts()] == [0, 1, 0]  # so nobody removes h2 in the same moment
    assert world.compare() == []
    assert world.perform(RequestedOperation.RESTART) == "finished"
    assert [entry.what for entry in world.fake.log if entry.host == "h2"][-1] == "booted"
    assert world.compare() == []


def test_planned_maintenance_of_the_old_host_is_not_needed_after_a_move_by_hand(world: MachineWorld) -> None:
    world.do(world.control.requests.degrade_host("h1", who="op", notice_s=86_400))
    world.settle()
    (event,) = world.events(EventState.SCHEDULED)
    move_by_hand(world)
    world.compare()
    world.settle()
    over = world.store.event(event.id)
    assert over is not None
    assert over.ending == "not needed"


def test_changes_while_the_service_was_down_are_found_and_recorded_once(world: MachineWorld) -> None:
    move_by_hand(world)
    world.fake.change_by_hand("h2", "web", M.PAUSED, W.OPERATOR, is_new=True)
    world.restart()
    assert world.compare() == [
        "web is on h2 instead of h1: moved by somebody else, without notice",
        "web is paused on h2: paused by somebody else, without notice",
    ]
    world.restart()
    assert world.compare() == []
    world.fake.change_by_hand("h2", "web", M.RUNNING)
    world.restart()
    assert world.compare() == ["web runs again on h2: resumed by somebody else, without notice"]


def test_a_stop_and_start_between_two_comparisons_is_a_restart(world: MachineWorld) -> None:
    world.fake.change_by_hand("h1", "web", M.RUNNING, is_new=True)
    world.restart()
    assert [text.partition(":")[0] for text in world.compare()] == ["web was restarted on h1"]
    assert counts(world) == {K.RESTARTED: 1}


def test_a_start_by_hand_of_a_stopped_vm_makes_it_run_in_the_fleet(world: MachineWorld) -> None:
    assert world.perform(RequestedOperation.POWER_OFF) == "finished"
    assert world.compare() == []
    world.fake.change_by_hand("h1", "web", M.RUNNING, is_new=True)
    assert world.compare() == ["web started on h1: started by somebody else, without notice"]
    assert world.vm("web").power is PowerState.RUNNING


def test_a_vm_that_no_host_has_is_missing_until_it_is_defined_again(world: MachineWorld) -> None:
    world.fake.remove_by_hand("h1", "web")
    assert world.compare() == ["no host has web: removed from h1 by somebody else, without notice"]
    assert world.vm("web").condition is VmCondition.MISSING
    assert world.compare() == []
    world.fake.change_by_hand("h1", "web", M.RUNNING, is_new=True)
    assert world.compare() == ["web started on h1: started by somebody else, without notice"]


def test_two_copies_are_logged_as_an_error_and_left_alone(
    world: MachineWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.fake.change_by_hand("h2", "web", M.RUNNING, is_new=True)
    before = list(world.fake.log)
    (text,) = world.compare()
    assert text.startswith("web is active on h1 and h2 at once: end all but one now")
    assert [record.levelname for record in caplog.records if record.message == text] == ["ERROR"]
    assert world.compare() == []
    assert world.control.unannounced_changes.duplicate_count() == 1
    assert world.fake.states("web") == {"h1": M.RUNNING, "h2": M.RUNNING}
    assert world.fake.log == before
    assert world.vm("web").host == "h1"
    world.fake.change_by_hand("h2", "web", M.OFF, W.OPERATOR)
    world.compare()
    assert world.entries(EntryKind.FLEET)[-1].text == "web is active only on h1 now"
    assert world.control.unannounced_changes.duplicate_count() == 0


@pytest.mark.parametrize("first", HOSTS[:2], ids=["source first", "destination first"])
def test_hosts_that_are_observed_during_a_move_by_hand_do_not_make_it_two_copies_or_none(
    world: MachineWorld, first: str
) -> None:
    world.observe(first)
    move_by_hand(world)
    world.observe("h3", *[host for host in HOSTS[:2] if host != first])
    assert world.entries() == []
    world.observe()
    world.observe()
    assert [entry.text for entry in world.entries()] == [
        "web is on h2 instead of h1: moved by somebody else, without notice"
    ]


def test_a_migration_by_hand_that_is_not_over_is_left_alone(world: MachineWorld) -> None:
    world.fake.change_by_hand("h2", "web", M.RECEIVING)
    assert world.compare() == []
    world.fake.change_by_hand("h1", "web", M.SENT)
    assert world.compare() == []
    world.fake.change_by_hand("h2", "web", M.RUNNING)
    assert len(world.compare()) == 1


def test_a_domain_that_the_fleet_does_not_know_is_ignored(world: MachineWorld) -> None:
    for state in M:
        if state is not M.ABSENT:
            world.fake.change_by_hand("h2", "other", state)
            assert world.compare() == []


def test_a_name_that_two_vms_share_stands_for_the_one_that_the_fleet_has_on_that_host(tmp_path: Path) -> None:
    world = MachineWorld(tmp_path, [a_vm("web"), a_vm("web", resource_group="other", host="h2")])
    assert world.compare() == []
    world.fake.change_by_hand("h2", "web", M.OFF, W.CRASH)
    assert world.compare() == ["web is off on h2: it crashed, without notice"]
    first, second = world.store.vms()
    assert (first.power, second.power) == (PowerState.RUNNING, PowerState.STOPPED)
    world.close()


def test_the_first_comparison_takes_the_state_of_the_hosts_without_blame(tmp_path: Path) -> None:
    world = MachineWorld(tmp_path, [a_vm("web"), a_vm("db"), a_vm("new")])
    world.fake.change_by_hand("h1", "db", M.OFF)
    world.fake.remove_by_hand("h1", "web")
    world.fake.change_by_hand("h3", "web", M.RUNNING)
    world.fake.remove_by_hand("h1", "new")
    assert world.compare() == []
    assert sorted(entry.text for entry in world.entries(EntryKind.FLEET)[1:]) == [
        "db is off on h1: the fleet follows its hosts",
        "no host has new: define it on h1, or correct the fleet",
        "web is on h3, and not on h1: the fleet follows its hosts",
    ]
    assert (world.vm("web").host, world.vm("db").power) == ("h3", PowerState.STOPPED)
    assert counts(world) == {}
    world.close()


OWN_ACTS = [
    RequestedOperation.RESTART,
    RequestedOperation.REDEPLOY,
    RequestedOperation.POWER_OFF,
    RequestedOperation.DEALLOCATE,
    RequestedOperation.REIMAGE,
    RequestedOperation.DELETE,
]


@pytest.mark.parametrize("ask", OWN_ACTS)
@pytest.mark.parametrize("restarts", [False, True], ids=["", "the service restarts"])
def test_no_step_of_an_act_is_taken_for_somebody_elses(
    world: MachineWorld, ask: RequestedOperation, restarts: bool
) -> None:
    before = world.entries(EntryKind.FLEET)
    assert world.perform(ask, observe=True) == "finished"
    if restarts:
        world.restart()
    assert world.compare() == []
    if ask in (RequestedOperation.POWER_OFF, RequestedOperation.DEALLOCATE):
        assert world.perform(RequestedOperation.START, observe=True) == "finished"
        assert world.compare() == []
    assert world.entries() == []
    assert world.entries(EntryKind.FLEET) == before


@pytest.mark.parametrize("impact", RolloutImpact)
def test_no_step_of_planned_maintenance_is_taken_for_somebody_elses(world: MachineWorld, impact: RolloutImpact) -> None:
    before = world.entries(EntryKind.FLEET)
    assert world.roll_out(impact, "h1", observe=True) == "finished"
    assert world.compare() == []
    assert world.entries(EntryKind.FLEET) == before


def test_an_answer_from_before_an_act_is_not_compared_after_it(world: MachineWorld) -> None:
    """A host that answers slowly reports the past."""

    async def observe_slowly() -> None:
        assert world.machines is not None
        observe, may_answer = world.machines.observe, asyncio.Event()

        async def answer_late(host: str) -> HostObservation:
            answer = await observe(host)
            await may_answer.wait()
            return answer

        world.machines.observe = answer_late  # type: ignore[method-assign]
        changes = world.control.unannounced_changes
        slow = [asyncio.create_task(changes.observe_host(host)) for host in HOSTS]
        await asyncio.sleep(0)
        receipt = await world.control.requests.request_for_vms(
            RequestedOperation.REDEPLOY, [world.vm("web")], who="ann", notice_s=1, short_notice=True
        )
        await world.control.lab_clock.advance(60)
        (event,) = world.store.events(request_id=receipt.request.id)
        assert event.ending == "finished"
        may_answer.set()
        await asyncio.gather(*slow)
        world.machines.observe = observe  # type: ignore[method-assign]

    world.do(observe_slowly())
    assert world.vm("web").host != "h1"
    assert world.entries() == []
    assert world.compare() == []


def test_an_answer_that_was_overtaken_by_a_later_one_is_dropped(world: MachineWorld) -> None:
    """Two questions to one host are on their way: the older answer comes last, and is not compared."""
    world.compare()

    async def overtake() -> None:
        assert world.machines is not None
        observe, may_answer = world.machines.observe, asyncio.Event()

        async def answer_late(host: str) -> HostObservation:
            answer = await observe(host)
            await may_answer.wait()
            return answer

        changes = world.control.unannounced_changes
        world.machines.observe = answer_late  # type: ignore[method-assign]
        world.fake.machines["h1"]["web"].state = MachineState.PAUSED
        slow = asyncio.create_task(changes.observe_host("h1"))
        await asyncio.sleep(0)
        world.machines.observe = observe  # type: ignore[method-assign]
        world.fake.machines["h1"]["web"].state = MachineState.RUNNING
        await changes.observe_host("h1")
        may_answer.set()
        await slow

    world.do(overtake())
    assert world.entries() == []
    assert world.vm("web").condition is VmCondition.NORMAL


def test_what_a_failed_act_leaves_behind_is_not_somebody_elses_doing(world: MachineWorld) -> None:
    world.site.behaviour.refused["power_on"] = "there is no such disk"
    assert world.perform(RequestedOperation.RESTART, observe=True) == "failed"
    assert world.compare() == []
    vm = world.vm("web")
    assert (vm.power, vm.condition) == (PowerState.STOPPED, VmCondition.CRASHED)
    assert world.entries(EntryKind.FLEET)[-1].text == "web is off on h1: the fleet follows its hosts"
    world.site.behaviour.refused.clear()
    assert world.roll_out(RolloutImpact.REBOOT, "h1", observe=True) == "finished"
    assert (world.vm("web").power, world.compare()) == (PowerState.RUNNING, [])


def test_an_act_that_was_given_up_and_still_takes_effect_is_not_somebody_elses(world: MachineWorld) -> None:
    """The destination fails during a live migration: the act ends as failed, and the hosts complete it anyway."""
    world.site.behaviour.migration_s = 1000.0
    rollout = Rollout(impact=RolloutImpact.MIGRATE, hosts=("h1",))
    request = world.do(world.control.rollout_requests.start(rollout, who="op"))
    world.settle()
    (event,) = world.store.events(request_id=request.id)
    world.approve("web", event.id)
    while not world.fake.machines["h1"]["web"].sending_to:
        world.advance(0.25)
    (act,) = world.store.events(request_id=request.id)[0].acts
    assert world.fake.machines["h1"]["web"].sending_to == act.to_host
    world.do(world.control.requests.fail_host(act.to_host, who="op"))
    world.settle()
    assert world.store.events(request_id=request.id)[0].ending == "failed"
    assert world.compare() == []
    world.site.behaviour.migration_s = 0.0
    assert world.compare() == []
    assert world.fake.states("web") == {"h1": M.SENT, act.to_host: M.RECEIVED}
    world.restart()
    assert world.compare() == []


def test_a_crash_after_an_act_is_found_although_other_hosts_were_last_observed_during_the_act(
    world: MachineWorld,
) -> None:
    world.site.behaviour.shutdown_s = math.inf  # the guest ignores ACPI, so that the act takes longer
    (event,) = world.ask(RequestedOperation.RESTART, "web")
    world.approve("web", event.id)
    assert world.list_host("h3").acting_on == {world.vm("web").key}
    world.observe("h3")
    world.advance(60)
    world.fake.change_by_hand("h1", "web", M.OFF, W.CRASH)
    world.observe("h1")
    assert [entry.text for entry in world.entries()] == ["web is off on h1: it crashed, without notice"]


def test_a_host_that_does_not_answer_twice_is_unreachable_until_it_answers(world: MachineWorld) -> None:
    world.site.behaviour.unreachable.add("h1")
    world.observe("h1")
    assert world.entries() == []
    world.observe("h1")
    assert [entry.text for entry in world.entries()] == [
        "host h1 does not answer, and its VMs may be running: h1 does not answer"
    ]
    assert world.entries()[0].host == "h1"
    assert world.control.unreachable_hosts() == {"h1"}
    world.restart()
    assert world.compare() == []
    assert world.control.unreachable_hosts() == {"h1"}
    assert world.vm("web").power is PowerState.RUNNING
    world.advance(90)
    world.site.behaviour.unreachable.clear()
    assert world.compare() == ["host h1 answers again, after 1 min 30 s"]
    assert world.control.unreachable_hosts() == frozenset()


def test_no_vm_moves_to_a_host_that_does_not_answer_if_another_one_does(world: MachineWorld) -> None:
    world.site.behaviour.unreachable.add("h2")
    world.compare()
    assert world.perform(RequestedOperation.REDEPLOY) == "finished"
    assert world.vm("web").host == "h3"


def test_a_host_that_is_no_longer_observed_counts_as_reachable(world: MachineWorld) -> None:
    world.site.behaviour.unreachable.add("h3")
    world.compare()
    del world.fake.machines["h3"]
    world.restart()
    assert world.control.unreachable_hosts() == {"h3"}
    world.do(world.control.unannounced_changes._forget_unobserved_hosts())
    assert world.control.unreachable_hosts() == frozenset()


def test_a_vm_of_a_silent_host_that_another_host_runs_has_moved(world: MachineWorld) -> None:
    world.site.behaviour.unreachable.add("h1")
    world.compare()
    world.fake.change_by_hand("h2", "web", M.RUNNING, is_new=True)
    assert world.compare() == ["web is on h2 instead of h1: moved by somebody else, without notice"]
    world.advance(5)
    world.site.behaviour.unreachable.clear()
    assert [text.partition(":")[0] for text in world.compare()] == [
        "host h1 answers again, after 5 s",
        "web is active on h1 and h2 at once",
    ]


async def run_until(world: MachineWorld, text: str) -> None:
    """Run the service's loop until the history has an entry with this text."""
    task = asyncio.create_task(world.control.unannounced_changes.run())
    try:
        async with asyncio.timeout(60):
            while not any(text in entry.text for entry in world.store.history()):
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_loop_finds_changes_that_no_host_reports(world: MachineWorld) -> None:
    async def scenario() -> None:
        assert world.machines is not None
        world.machines._policy = replace(world.machines._policy, observe_interval_s=0.05)
        world.fake.machines["h1"]["web"] = FakeMachine(state=M.OFF, cause=W.CRASH)
        await run_until(world, "web is off on h1: it crashed")

    world.do(scenario())


def test_the_loop_looks_at_once_when_a_host_reports_a_change_and_again_to_be_sure(world: MachineWorld) -> None:
    async def scenario() -> None:
        assert world.machines is not None
        world.machines._policy = replace(world.machines._policy, observe_interval_s=3600)
        task = asyncio.create_task(run_until(world, "web is on h2 instead of h1"))
        async with asyncio.timeout(60):
            while not world.fake.changes:
                await asyncio.sleep(0.01)
        move_by_hand(world)
        await task

    world.do(scenario())


def test_without_observation_nothing_runs(tmp_path: Path) -> None:
    simulated = World(vms=[a_vm("web")], hosts=[a_host("h1")])
    assert not simulated.control.unannounced_changes.is_observing
    simulated.do(simulated.control.unannounced_changes.run())
    simulated.do(simulated.control.unannounced_changes.observe_host("h1"))
    simulated.close()
    world = MachineWorld(tmp_path)
    assert world.machines is not None
    world.machines._policy = replace(world.machines._policy, observe_interval_s=0)
    world.do(world.control.unannounced_changes.run())
    assert world.vm("web").seen is None
    world.close()
