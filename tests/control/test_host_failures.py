"""A host fails while VMs are worked on: each VM moves once, and nothing is performed on the failed host (spec §6.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.core.cause import Cause, Verb
from forewarn.core.decision import Policy
from forewarn.core.event import Act, Event, EventState
from forewarn.core.fleet import AutoApproval, HostHealth, PowerState
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.errors import Conflict, Refused
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor
from tests.support.world import World, a_host, a_vm

HOSTS = [a_host(f"h{n}") for n in (1, 2, 3)]
MINUTE = 60.0


@pytest.fixture
def world() -> Iterator[World]:
    world = World(vms=[a_vm("web"), a_vm("db"), a_vm("mail", host="h2")], hosts=HOSTS)
    yield world
    world.close()


def fail(world: World, host: str) -> list[Event]:
    """Fail a host; return the events of the failure."""
    receipt = world.do(world.control.requests.fail_host(host, who="op"))
    world.settle()
    return world.store.events(request_id=receipt.request.id)


def event_of_cause(world: World, name: str, cause: Cause) -> Event:
    (event,) = [event for event in world.events() if name in event.vms and event.cause is cause]
    return event


def moves(world: World, name: str) -> list[tuple[str, str]]:
    """The moves of a VM that took effect: from where, to where."""
    ended = [effect for effect in world.ledger.effects(world.vm(name).key) if effect.ended and effect.to_host]
    return [(effect.from_host, effect.to_host) for effect in ended]


def test_an_act_under_way_on_a_failing_host_ends_as_failed_and_delays_no_recovery(world: World) -> None:
    world.ask(RequestedOperation.RESTART, "web", short_notice=True)
    world.advance(1)
    (recovery, _) = fail(world, "h1")

    reboot = event_of_cause(world, "web", Cause.USER_RESTART)
    assert [(act.outcome.ok, act.outcome.note) for act in reboot.acts if act.outcome] == [(False, "host h1 failed")]
    assert reboot.status is EventState.OVER
    (act,) = recovery.acts
    assert act.from_host == "h1"
    assert act.abrupt
    world.advance(2 * MINUTE)  # as long as a redeployment takes
    assert world.vm("web").host == act.to_host
    assert moves(world, "web") == [("h1", act.to_host)]


def test_a_vm_whose_source_host_fails_during_its_move_moves_once(world: World) -> None:
    world.ask(RequestedOperation.REDEPLOY, "web", short_notice=True)
    world.advance(1)
    fail(world, "h1")
    world.advance(30 * MINUTE)

    asked = event_of_cause(world, "web", Cause.USER_REDEPLOY)
    assert [act.outcome.note for act in asked.acts if act.outcome] == ["host h1 failed"]
    assert len(moves(world, "web")) == 1
    assert world.vm("web").host in ("h2", "h3")


def test_a_vm_that_has_left_the_host_before_the_failure_is_applied_does_not_move_again(world: World) -> None:
    """The failure is committed while the outcome of the move waits to be recorded."""
    world.ask(RequestedOperation.REDEPLOY, "web", short_notice=True)
    (act,) = event_of_cause(world, "web", Cause.USER_REDEPLOY).acts

    async def fail_while_it_arrives() -> None:
        world.clock.apply_setting(world.clock.setting_after_jump(world.now + 2 * MINUTE))
        world.control.executor.start_due_acts()
        await world.control.executor.wait_for_any()  # it has arrived, but nothing is recorded
        await world.control.requests.fail_host("h1", who="op")
        await world.control.reconciler.run_until_settled()

    world.do(fail_while_it_arrives())
    world.advance(30 * MINUTE)
    assert world.vm("web").host == act.to_host
    assert moves(world, "web") == [("h1", act.to_host)]
    assert "VM 'web' is no longer on host 'h1'" in world.transcript()


def test_a_vm_that_is_redeployed_to_a_failing_host_is_moved_elsewhere(world: World) -> None:
    world.ask(RequestedOperation.REDEPLOY, "web", short_notice=True)
    (act,) = event_of_cause(world, "web", Cause.USER_REDEPLOY).acts
    events = fail(world, act.to_host)
    (recovery,) = [event for event in events if event.vms == ("web",)]

    assert recovery.note == f"host {act.to_host} failed while web was moving to it"
    world.advance(30 * MINUTE)
    assert world.vm("web").host not in ("h1", act.to_host)
    assert len(moves(world, "web")) == 1


def test_a_vm_that_migrates_to_a_failing_host_stays_where_it_is(world: World) -> None:
    rollout = Rollout(impact=RolloutImpact.MIGRATE, hosts=("h1",))
    world.do(world.control.rollout_requests.start(rollout, who="op"))
    world.settle()
    event = event_of_cause(world, "web", Cause.LIVE_MIGRATION)
    world.approve("web", event.id)
    (act,) = event_of_cause(world, "web", Cause.LIVE_MIGRATION).acts
    fail(world, act.to_host)

    (ended,) = event_of_cause(world, "web", Cause.LIVE_MIGRATION).acts
    assert ended.outcome is not None
    assert ended.outcome.note == f"host {act.to_host} failed while web was moving to it"
    world.advance(30 * MINUTE)
    assert world.vm("web").host == "h1"
    assert not moves(world, "web")


def test_an_event_waits_until_its_vm_has_been_moved_away_from_a_failed_host(world: World) -> None:
    world.ask(RequestedOperation.RESTART, "web")
    world.advance(14 * MINUTE)
    fail(world, "h1")
    world.advance(MINUTE)  # the notice ends, the move is under way

    event = event_of_cause(world, "web", Cause.USER_RESTART)
    scope = world.scope("web")
    wait = start_wait(scope, event, world.control.transactions.context_for(scope))
    assert wait is not None
    assert wait.reason is WaitReason.MOVE
    assert wait.text.startswith("web, which is being moved to h")
    assert wait.text.endswith(" because host h1 failed")
    world.advance(10 * MINUTE)
    (act,) = event_of_cause(world, "web", Cause.USER_RESTART).acts
    assert act.outcome is not None
    assert act.outcome.ok
    assert act.from_host == world.vm("web").host != "h1"


def test_nothing_is_performed_on_a_host_that_has_failed() -> None:
    """No other host can take the VM, so it stays; a reboot there fails at once instead of being performed."""
    world = World(vms=[a_vm("web"), a_vm("db", host="h2", zone="2")], hosts=[a_host("h1"), a_host("h2", zone="2")])
    stranded = world.vm("web")
    with pytest.raises(Refused, match="no healthy host"):
        fail(world, "h1")
    world.do(world.control.fleet.apply_change(FleetChange(hosts=(a_host("h1", health=HostHealth.FAILED),)), who="op"))
    world.ask(RequestedOperation.RESTART, stranded.name)
    world.advance(20 * MINUTE)

    (act,) = event_of_cause(world, "web", Cause.USER_RESTART).acts
    assert act.outcome is not None
    assert (act.outcome.ok, act.outcome.note) == (False, "host h1 has failed")
    assert not world.ledger.effects(stranded.key)
    world.ask(RequestedOperation.DEALLOCATE, "web")
    world.advance(MINUTE)
    assert world.vm("web").power is PowerState.DEALLOCATED  # this needs nothing from the host
    world.close()


def test_a_restarted_service_ends_acts_on_a_host_that_failed_before(world: World) -> None:
    """What must be done is read off stored state: the process died right after the failure was committed."""
    world.ask(RequestedOperation.RESTART, "web", short_notice=True)
    world.do(world.control.requests.fail_host("h1", who="op"))
    world.restart()
    world.advance(10 * MINUTE)

    assert len(moves(world, "web")) == 1
    assert world.vm("web").host != "h1"


class HangingReboots(SimulatedHypervisor):
    """A hypervisor whose reboots never answer."""

    def __init__(self, ledger: EffectLedger) -> None:
        super().__init__(ledger)
        self.cancelled: list[str] = []

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        if act.verb is Verb.REBOOT:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(act.id)
                raise
        return await super().perform(act, now)


def test_a_hanging_call_to_a_failed_host_is_cancelled_and_the_vm_recovered(world: World) -> None:
    world.hypervisor = hanging = HangingReboots(world.ledger)
    world.restart()
    world.advance(MINUTE + 1)  # the grace period after the restart

    async def restart_then_fail() -> None:
        requests = world.control.requests
        await requests.request_for_vms(RequestedOperation.RESTART, [world.vm("web")], who="ann", short_notice=True)
        await world.control.reconciler.catch_up()
        await asyncio.sleep(0)
        await requests.fail_host("h1", who="op")
        await world.control.reconciler.run_until_settled()

    world.do(restart_then_fail())
    assert hanging.cancelled == [event_of_cause(world, "web", Cause.USER_RESTART).acts[0].id]
    world.advance(10 * MINUTE)
    assert world.vm("web").host in ("h2", "h3")


@pytest.mark.parametrize("change", ["fail", "remove"])
def test_a_host_that_goes_while_a_move_to_it_is_committed_strands_no_vm(world: World, change: str) -> None:
    """Both were decided on the same state of the host; whichever is committed second is decided again."""
    world.ask(RequestedOperation.REDEPLOY, "web")
    event = event_of_cause(world, "web", Cause.USER_REDEPLOY)

    async def both() -> None:
        await world.control.guests.approve(world.vm("web").key, (event.id,))
        if change == "fail":
            gone = world.control.requests.fail_host("h3", who="op")
            await asyncio.gather(world.control.reconciler.reconcile(), gone)
        else:
            removal = world.control.fleet.apply_change(FleetChange(removed_hosts=("h3",)), who="op")
            await asyncio.gather(world.control.reconciler.reconcile(), removal, return_exceptions=True)
        await world.control.reconciler.run_until_settled()

    world.do(both())
    world.advance(30 * MINUTE)
    healthy = {host.name for host in world.store.hosts() if host.health is HostHealth.HEALTHY}
    assert world.vm("web").host in healthy


def test_a_change_decided_on_an_old_state_of_the_fleet_is_refused_as_a_conflict(world: World) -> None:
    versions = world.control.fleet.versions()
    old = world.vm("web")
    world.ask(RequestedOperation.REDEPLOY, "web", short_notice=True)
    world.advance(10 * MINUTE)

    with pytest.raises(Conflict, match="has changed since"):
        world.do(world.control.fleet.apply_change(FleetChange(vms=(old,), decided_on=versions), who="op"))
    assert world.vm("web").host != old.host


def test_a_vm_is_not_added_on_a_host_that_is_removed_meanwhile(world: World) -> None:
    fleet, new = world.control.fleet, a_vm("new", host="h3")
    decided = FleetChange(vms=(new,), decided_on=fleet.versions())

    async def both() -> Sequence[object]:
        changes = [FleetChange(removed_hosts=("h3",)), FleetChange(vms=(new,))]
        return await asyncio.gather(*(fleet.apply_change(each, who="op") for each in changes), return_exceptions=True)

    assert [type(result) for result in world.do(both())] == [type(None), Refused]
    with pytest.raises(Conflict, match="'h3' has changed since"):
        world.do(fleet.apply_change(decided, who="op"))
    assert all(vm.host != "h3" for vm in world.store.vms())


def test_a_redeployment_at_once_is_refused_while_the_vm_is_being_moved() -> None:
    """In a disabled scope a user operation is performed at once, so it cannot wait until the VM has arrived."""
    world = World(vms=[a_vm("web"), a_vm("db", host="h2")], hosts=HOSTS, policy=Policy())
    fail(world, "h1")
    with pytest.raises(Refused, match="'web' is being moved to host"):
        world.ask(RequestedOperation.REDEPLOY, "web")
    world.advance(5 * MINUTE)
    world.ask(RequestedOperation.REDEPLOY, "web")
    world.advance(5 * MINUTE)
    assert len(moves(world, "web")) == 2
    world.close()


def test_a_redeployment_that_waited_for_a_recovery_moves_the_vm_to_another_host() -> None:
    """Host h3 has many VMs, so h2 is the best destination of both moves until the VM is there."""
    world = World(vms=[a_vm("web"), *(a_vm(f"other-{n}", host="h3") for n in range(5))], hosts=HOSTS)
    (event,) = world.ask(RequestedOperation.REDEPLOY, "web")
    fail(world, "h1")
    world.approve("web", event.id)
    world.advance(5 * MINUTE)
    assert moves(world, "web") == [("h1", "h2"), ("h2", "h3")]
    world.close()


def test_an_operation_that_a_policy_approved_starts_when_the_vm_has_arrived() -> None:
    world = World(vms=[a_vm("web", auto_approve=AutoApproval(restart=True))], hosts=HOSTS)
    fail(world, "h1")
    (event,) = world.ask(RequestedOperation.RESTART, "web")
    assert (event.status, event.approved_by) == (EventState.SCHEDULED, "policy")
    world.advance(5 * MINUTE)
    (act,) = event_of_cause(world, "web", Cause.USER_RESTART).acts
    assert act.from_host == world.vm("web").host != "h1"
    world.close()


def test_a_host_that_fails_again_during_the_recovery_moves_no_vm_twice(world: World) -> None:
    fail(world, "h1")
    world.do(world.control.requests.repair_host("h1", who="op"))
    assert not fail(world, "h1")
    world.advance(5 * MINUTE)
    assert len(moves(world, "web")) == 1


def test_a_vm_cannot_be_added_on_a_host_that_has_failed(world: World) -> None:
    fail(world, "h3")
    with pytest.raises(Refused, match="host 'h3' has failed and can take no VMs"):
        world.do(world.control.fleet.apply_change(FleetChange(vms=(a_vm("new", host="h3"),)), who="op"))


def test_an_act_that_is_committed_after_its_host_failed_is_not_begun(world: World) -> None:
    """Its decision did not know of the failure yet, and a reconcile pass is under way when it is committed."""
    requests = world.control.requests

    async def both() -> None:
        restart = requests.request_for_vms(RequestedOperation.REAPPLY, [world.vm("web")], who="ann")
        await asyncio.gather(requests.fail_host("h1", who="op"), restart, world.control.reconciler.catch_up())
        await world.control.reconciler.run_until_settled()

    world.do(both())
    verbs = [effect.verb for effect in world.ledger.effects(world.vm("web").key)]
    assert verbs in ([Verb.REDEPLOY], [Verb.REDEPLOY, Verb.REAPPLY])


def world_with_busy_h3() -> World:
    """Two VMs of one scope on h1, a third on h3; whatever moves goes to h2, because h3 has more VMs."""
    web = [a_vm(f"web-{n}", availability_set="web", host=host) for n, host in enumerate(("h1", "h1", "h3"))]
    return World(vms=[*web, *(a_vm(f"other-{n}", host="h3") for n in range(5))], hosts=HOSTS)


def test_all_vms_of_a_scope_that_are_redeployed_to_a_failing_host_are_moved_elsewhere() -> None:
    world = world_with_busy_h3()
    fail(world, "h1")
    assert {act.to_host for event in world.events() for act in event.acts} == {"h2"}
    assert len(fail(world, "h2")) == 2
    world.advance(5 * MINUTE)
    assert [world.vm(name).host for name in ("web-0", "web-1")] == ["h3", "h3"]
    world.close()


@pytest.mark.parametrize("source_fails", [True, False])
def test_an_outcome_in_the_scope_of_a_vm_that_moves_to_a_failing_host_does_not_strand_it(source_fails: bool) -> None:
    """The outcome is recorded after the failure was committed, and before its events are published."""
    world = world_with_busy_h3()
    if source_fails:
        fail(world, "h1")
    else:
        world.ask(RequestedOperation.REDEPLOY, "web-0", short_notice=True)
    world.ask(RequestedOperation.REAPPLY, "web-2")

    async def fail_while_an_outcome_waits() -> None:
        world.clock.apply_setting(world.clock.setting_after_jump(world.now + MINUTE))
        world.control.executor.start_due_acts()
        await world.control.executor.wait_for_any()
        await world.control.requests.fail_host("h2", who="op")
        await world.control.reconciler.run_until_settled()

    world.do(fail_while_an_outcome_waits())
    assert "reapply of web-2 performed" in world.transcript()
    world.advance(5 * MINUTE)
    assert world.vm("web-0").host == "h3"
    world.close()


@pytest.mark.parametrize("at_the_same_time", [True, False])
def test_a_vm_whose_migration_ends_when_its_destination_fails_is_not_stranded(
    world: World, at_the_same_time: bool
) -> None:
    rollout = Rollout(impact=RolloutImpact.MIGRATE, hosts=("h1",))
    world.do(world.control.rollout_requests.start(rollout, who="op"))
    world.settle()
    world.approve("web", event_of_cause(world, "web", Cause.LIVE_MIGRATION).id)
    (act,) = event_of_cause(world, "web", Cause.LIVE_MIGRATION).acts

    async def fail_while_it_arrives() -> None:
        world.clock.apply_setting(world.clock.setting_after_jump(world.now + 2 * MINUTE))
        world.control.executor.start_due_acts()
        await world.control.executor.wait_for_any()  # it has arrived, but nothing is recorded
        failure = world.control.requests.fail_host(act.to_host, who="op")
        if at_the_same_time:
            await asyncio.gather(world.control.reconciler.reconcile(), failure)
        else:
            await failure
        await world.control.reconciler.run_until_settled()

    world.do(fail_while_it_arrives())
    world.advance(30 * MINUTE)
    assert world.vm("web").host != act.to_host


def test_a_host_cannot_change_its_location_while_a_vm_is_moving_to_it(world: World) -> None:
    world.ask(RequestedOperation.REDEPLOY, "web", short_notice=True)
    (act,) = event_of_cause(world, "web", Cause.USER_REDEPLOY).acts
    elsewhere = a_host(act.to_host, location="northeurope")
    with pytest.raises(Refused, match="cannot get another location or zone"):
        world.do(world.control.fleet.apply_change(FleetChange(hosts=(elsewhere,)), who="op"))
