"""Two rollouts that want the same work on the same host do it once (spec §13.6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import EventState
from forewarn.core.health import CheckKind, CheckOutcome, HealthCheck
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutImpact, RolloutState, RolloutTally, WaveSpec
from forewarn.machines.simulated import FailRule, SimulatedBehaviour, SlowRule
from tests.support.fake_prober import FakeProber
from tests.support.world import World, a_host, a_vm

LIVE = (EventState.SCHEDULED, EventState.STARTED)


@pytest.fixture
def world() -> Iterator[World]:
    """One VM on each of three hosts."""
    hosts = ("h0", "h1", "h2")
    world = World(hosts=[a_host(host) for host in hosts], vms=[a_vm(f"vm-{host[1]}", host=host) for host in hosts])
    yield world
    world.close()


def start(
    world: World, *hosts: str, impact: RolloutImpact = RolloutImpact.UPDATE, waves: tuple[WaveSpec, ...] = ()
) -> MaintenanceRequest:
    rollout = Rollout(impact=impact, hosts=hosts, waves=waves, everything=not hosts)
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    return request


def vms_of(world: World, request: MaintenanceRequest) -> list[str]:
    return [name for event in world.store.events(request_id=request.id) for name in event.vms]


def outcome(world: World, request: MaintenanceRequest) -> tuple[RolloutState, RolloutTally]:
    now = world.store.request(request.id)
    assert now is not None
    assert now.rollout is not None
    return now.rollout.progress, world.control.rollouts.tally_of(now, now.rollout)


def test_work_that_another_rollout_has_announced_is_done_once_and_completes_both(world: World) -> None:
    first, second = start(world, "h0", "h1"), start(world, "h1", "h2")
    assert (vms_of(world, first), vms_of(world, second)) == (["vm-0", "vm-1"], ["vm-2"])
    assert outcome(world, second)[1].scheduled == 2
    world.advance(3600)
    assert (vms_of(world, first), vms_of(world, second)) == (["vm-0", "vm-1"], ["vm-2"])
    for request in (first, second):
        progress, tally = outcome(world, request)
        assert (progress, tally.total, tally.done) == (RolloutState.COMPLETED, 2, 2)


def test_a_rollout_that_only_waits_for_another_says_so_and_stays_open_until_that_is_done(world: World) -> None:
    first, second = start(world, "h0"), start(world, "h0")
    request = world.store.request(second.id)
    assert request is not None
    assert request.rollout is not None
    assert outcome(world, second)[0] is RolloutState.RUNNING
    snapshot = world.control.rollouts.snapshot_of(request, request.rollout)
    assert world.control.rollouts.publication_waits(request, snapshot) == (
        f"rollout {first.id} does the same work on VMs of it",
    )
    world.advance(3600)
    assert outcome(world, second)[0] is RolloutState.COMPLETED
    assert vms_of(world, second) == []


@pytest.mark.parametrize(("hosts", "waves"), [(("h0",), ()), (("h0", "h1"), (WaveSpec(name="first", vms=1),))])
def test_a_rollout_is_expected_to_end_when_what_others_do_for_it_is_over(
    world: World, hosts: tuple[str, ...], waves: tuple[WaveSpec, ...]
) -> None:
    start(world, "h0")
    world.advance(300)
    second = start(world, *hosts, waves=waves)
    request = world.store.request(second.id)
    assert request is not None
    assert request.rollout is not None
    expected = world.control.rollouts.forecast_of(request, request.rollout).ends_at
    world.advance(7200)
    closed = world.store.request(second.id)
    assert closed is not None
    assert closed.rollout is not None
    assert expected == closed.rollout.closed_at


def test_a_rollout_is_over_once_another_has_moved_its_last_vm_away_though_that_event_still_settles() -> None:
    policy = Policy(enablement=EnablementMode.ALWAYS, settle_s=45.0)
    world = World(hosts=[a_host("h0"), a_host("h1")], vms=[a_vm("vm-0", host="h0")], policy=policy)
    world.hypervisor.set_behaviour(SimulatedBehaviour(rules=(SlowRule(factor=0.0),)))
    first = start(world, "h0", impact=RolloutImpact.MIGRATE)
    second = start(world, "h0", impact=RolloutImpact.MIGRATE)
    [event] = world.store.events()
    world.advance(event.not_before - world.now)
    [event] = world.store.events()
    assert (event.status, event.request_id) == (EventState.STARTED, first.id)
    assert world.vm("vm-0").host == "h1"
    assert outcome(world, second)[0] is RolloutState.COMPLETED
    world.close()


def test_an_older_rollout_counts_what_a_newer_one_has_done_meanwhile(world: World) -> None:
    first = start(world, "h0", "h1")
    world.do(world.control.rollout_requests.change_state(first.id, RolloutState.PAUSED, who="ann"))
    for event in world.store.events(request_id=first.id):
        world.do(world.control.requests.withdraw(event.id, who="ann"))
    third = start(world, "h2")
    world.do(world.control.rollout_requests.change_state(third.id, RolloutState.PAUSED, who="ann"))
    second = start(world)
    world.advance(3600)
    assert vms_of(world, second) == ["vm-0", "vm-1"]
    assert outcome(world, second)[0] is RolloutState.COMPLETED


def test_what_the_other_rollout_withdraws_remains(world: World) -> None:
    first, second = start(world, "h0"), start(world, "h0")
    world.do(world.control.rollout_requests.change_state(first.id, RolloutState.ABORTED, who="ann"))
    world.settle()
    assert vms_of(world, second) == ["vm-0"]
    world.advance(3600)
    assert outcome(world, second)[1].done == 1


def test_what_the_other_rollout_fails_to_do_remains(world: World) -> None:
    world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(vm="vm-0"),)))
    first, second = start(world, "h0"), start(world, "h0")
    world.advance(16 * 60)
    world.hypervisor.set_behaviour(SimulatedBehaviour())
    assert outcome(world, first)[0] is RolloutState.STOPPED
    assert vms_of(world, second) == ["vm-0"]


def test_work_that_was_done_before_the_request_is_done_again(world: World) -> None:
    start(world, "h0")
    world.advance(3600)
    assert vms_of(world, start(world, "h0")) == ["vm-0"]


def test_other_work_on_the_same_host_is_not_shared(world: World) -> None:
    start(world, "h0")
    assert vms_of(world, start(world, "h0", impact=RolloutImpact.REBOOT)) == ["vm-0"]


def test_a_canary_that_another_rollout_works_on_is_awaited(world: World) -> None:
    start(world, "h0")
    second = start(world, waves=(WaveSpec(name="canary", vms=1), WaveSpec(name="rest")))
    assert vms_of(world, second) == []
    world.advance(3600)
    assert outcome(world, second)[1].done == 3


def test_a_restart_of_the_service_repeats_no_shared_work(world: World) -> None:
    first, second = start(world, "h0", "h1"), start(world, "h1", "h2")
    for _ in range(4):
        world.restart()
        world.settle()
        world.advance(400)
    assert sorted([*vms_of(world, first), *vms_of(world, second)]) == ["vm-0", "vm-1", "vm-2"]
    assert not world.store.events(statuses=LIVE)
    assert outcome(world, second)[1].done == 2


def test_a_rollout_that_resumes_after_a_health_pause_does_not_repeat_what_another_does() -> None:
    prober = FakeProber()
    world = World(
        hosts=[a_host("h0"), a_host("h1")], vms=[a_vm(f"vm-{n}", host=f"h{n}") for n in (0, 1)], prober=prober
    )
    check = HealthCheck(name="shop", kind=CheckKind.HTTP, url="http://127.0.0.1:9/health")
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h0", "h1"), checks=(check,))
    first = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    prober.coming["shop"] = [CheckOutcome.BAD]
    world.advance(60)
    assert outcome(world, first)[1].waiting == 2
    start(world, "h0", "h1", impact=RolloutImpact.REBOOT)
    assert outcome(world, first)[1].scheduled == 2
    world.do(world.control.rollout_requests.change_state(first.id, RolloutState.RUNNING, who="ann"))
    world.advance(7200)
    assert sorted(act.name for event in world.events() for act in event.acts) == ["vm-0", "vm-1"]
    progress, tally = outcome(world, first)
    assert (progress, tally.total, tally.done) == (RolloutState.COMPLETED, 2, 2)
    world.close()
