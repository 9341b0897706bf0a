"""The service's own figures as health checks (spec §13.4): what counts of a rollout, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from forewarn.control.dry_run import plan_rollout
from forewarn.control.fleet import FleetChange
from forewarn.control.health_checks import measure_figure
from forewarn.core.health import CheckKind, CheckOutcome, HealthCheck, OwnFigure
from forewarn.core.history import EventDelivery, LastPoll
from forewarn.core.request import (
    MaintenanceRequest,
    RequestedOperation,
    Rollout,
    RolloutImpact,
    RolloutState,
    WaveSpec,
)
from forewarn.machines.simulated import FailRule, SimulatedBehaviour, SimulatedHypervisor
from forewarn.store.memory import MemoryStore
from tests.support.fake_prober import FakeProber
from tests.support.world import World, a_host, a_vm

BOTH_HOSTS = ("h0", "h1")


@pytest.fixture
def world() -> Iterator[World]:
    """Two update domains of one scope, on two hosts."""
    vms = [a_vm(f"web-{n}", host=f"h{n}", availability_set="web", update_domain=n) for n in (0, 1)]
    world = World(hosts=[a_host("h0"), a_host("h1")], vms=vms, prober=FakeProber())
    yield world
    world.close()


def figure(of: OwnFigure, condition: str = "") -> HealthCheck:
    return HealthCheck(name="figure", kind=CheckKind.FIGURE, figure=of, condition=condition)


def start(world: World, *checks: HealthCheck, waves: tuple[WaveSpec, ...] = ()) -> MaintenanceRequest:
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=BOTH_HOSTS, max_failures=0, waves=waves, checks=checks)
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    return request


def resume(world: World, request: MaintenanceRequest) -> None:
    world.do(world.control.rollout_requests.change_state(request.id, RolloutState.RUNNING, who="ann"))
    world.settle()


def fail(world: World, vm: str) -> None:
    hypervisor = world.hypervisor
    assert isinstance(hypervisor, SimulatedHypervisor)
    hypervisor.set_behaviour(SimulatedBehaviour((FailRule(vm=vm, note="no power"),)))


def poll(world: World, *names: str) -> None:
    vms = [world.vm(name) for name in names]
    polls = [LastPoll(vm=vm.key, scope_id=vm.scope_id, at=world.now, version="2020-07-01") for vm in vms]
    world.do(world.store.record_observations(polls, []))


def test_a_resumed_rollout_counts_no_failures_from_before(world: World) -> None:
    request = start(world, figure(OwnFigure.FAILED_ACTS))
    fail(world, "web-0")
    world.advance(1200)
    assert world.rollout(request.id).reason == "check 'figure' is bad: 1 is not == 0 (web-0)"
    world.advance(60)
    resume(world, request)
    assert world.rollout(request.id).resumed_at == world.now
    world.advance(7200)
    assert world.rollout(request.id).progress is RolloutState.COMPLETED
    assert [(act.name, act.outcome and act.outcome.ok) for event in world.events() for act in event.acts] == [
        ("web-0", False),
        ("web-1", True),
    ]


def test_failures_of_a_wave_before_count_no_longer(world: World) -> None:
    waves = (WaveSpec(name="canary", vms=1), WaveSpec(name="rest"))
    request = start(world, figure(OwnFigure.FAILED_ACTS, "< 2"), waves=waves)
    fail(world, "web-0")
    world.advance(1200)
    fail(world, "web-1")
    world.advance(7200)
    assert world.rollout(request.id).progress is RolloutState.COMPLETED
    assert {m.value for m in world.store.measurements(request.id)} == {0, 1}


def test_a_resumed_rollout_counts_no_undelivered_notices_from_before(world: World) -> None:
    request = start(world, figure(OwnFigure.UNDELIVERED))
    world.advance(1200)
    assert world.rollout(request.id).reason == "check 'figure' is bad: 1 is not == 0 (web-0)"
    resume(world, request)
    assert world.rollout(request.id).progress is RolloutState.RUNNING
    world.advance(7200)
    assert world.rollout(request.id).reason == "check 'figure' is bad: 1 is not == 0 (web-1)"


class CountingStore(MemoryStore):
    """Counts the reads of deliveries and polls."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def deliveries(self, *, event_id: str | None = None, vm: str | None = None) -> list[EventDelivery]:
        self.reads += 1
        return super().deliveries(event_id=event_id, vm=vm)

    def events_given_before_start(self, event_ids: Sequence[str]) -> set[str]:
        self.reads += 1
        return super().events_given_before_start(event_ids)

    def last_polls(self, *, scope_id: str | None = None) -> list[LastPoll]:
        self.reads += 1
        return super().last_polls(scope_id=scope_id)


@pytest.mark.parametrize("of", [OwnFigure.UNDELIVERED, OwnFigure.NOT_BACK])
def test_a_figure_of_many_scopes_is_measured_with_one_read_of_the_store(of: OwnFigure) -> None:
    store = CountingStore()
    vms = [a_vm(f"vm-{n}", host="h0") for n in range(20)]
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h0",))
    with closing(World(hosts=[a_host("h0")], vms=vms, store=store, prober=FakeProber())) as world:
        request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
        world.advance(3600)
        events = store.events(request_id=request.id)
        assert len({event.scope_id for event in events if event.started_at is not None}) == 20
        reads = store.reads
        found = measure_figure(figure(of, "== 0"), store, rollout, vms, events, lambda key: None, world.now)
    assert (store.reads - reads, found.value) == (1, 20 if of is OwnFigure.UNDELIVERED else 0)


@pytest.mark.parametrize("is_turned_off", [False, True], ids=["runs", "was turned off by its user"])
def test_a_vm_that_its_user_turned_off_is_not_awaited(world: World, is_turned_off: bool) -> None:
    poll(world, "web-0", "web-1")
    request = start(world, figure(OwnFigure.NOT_BACK))
    (event,) = world.events()
    world.approve("web-0", event.id)
    world.do(world.control.lab_clock.advance(60, without_polls=True))
    assert world.store.measurements(request.id)[-1].outcome is CheckOutcome.UNCLEAR
    if is_turned_off:
        world.ask(RequestedOperation.DEALLOCATE, "web-0")
    world.do(world.control.lab_clock.advance(600, without_polls=True))
    assert (world.rollout(request.id).progress is RolloutState.RUNNING) == is_turned_off


def test_a_plan_performs_no_health_check(world: World) -> None:
    """Spec §13.6. The copy of the simulation runs no commands, so it would refuse this rollout."""
    command = HealthCheck(name="smoke", kind=CheckKind.COMMAND, command=("/bin/true",))
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=BOTH_HOSTS, checks=(command,))
    plan = world.do(plan_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False))
    assert [len(wave.vms) for wave in plan.waves] == [2]
    assert not plan.is_partial


def deliver(world: World, *names: str) -> None:
    """Give these VMs the documents of their scopes, as polls do."""
    for vm in map(world.vm, names):
        scope = world.scope(vm.name)
        given = [
            EventDelivery(
                event_id=event.id,
                scope_id=vm.scope_id,
                vm=vm.key,
                status=event.status,
                version="2020-07-01",
                incarnation=scope.incarnation,
                at=world.now,
            )
            for event in scope.live_events()
        ]
        polled = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=world.now, version="2020-07-01")
        world.do(world.store.record_observations([polled], given))


def measured(world: World, request: MaintenanceRequest) -> tuple[CheckOutcome, float | None]:
    """What the figure of the rollout's only check is now."""
    rollout = world.rollout(request.id)
    health = world.control.rollouts.health
    found = world.do(health._measure(rollout.checks[0], rollout, request.id))
    return found.outcome, found.value


def wait(world: World, seconds: float) -> None:
    world.do(world.control.lab_clock.advance(seconds, without_polls=True))


def test_a_notice_is_delivered_if_any_vm_of_the_scope_was_given_it_before_the_start(world: World) -> None:
    request = start(world, figure(OwnFigure.UNDELIVERED, "< 9"))
    deliver(world, "web-1")
    world.advance(16 * 60)
    assert measured(world, request) == (CheckOutcome.GOOD, 0)


def test_a_notice_that_was_first_given_after_the_start_is_undelivered(world: World) -> None:
    request = start(world, figure(OwnFigure.UNDELIVERED, "< 9"))
    world.advance(15 * 60)
    deliver(world, "web-0", "web-1")
    world.advance(60)
    assert measured(world, request) == (CheckOutcome.GOOD, 1)


def test_an_event_that_has_not_started_is_not_undelivered(world: World) -> None:
    request = start(world, figure(OwnFigure.UNDELIVERED, "< 9"))
    world.advance(14 * 60)
    assert measured(world, request) == (CheckOutcome.GOOD, 0)


def test_a_withdrawn_event_is_not_undelivered(world: World) -> None:
    request = start(world, figure(OwnFigure.UNDELIVERED, "< 9"))
    (event,) = world.events()
    world.do(world.control.requests.withdraw(event.id, who="ann"))
    world.settle()
    assert measured(world, request) == (CheckOutcome.GOOD, 0)


def test_a_notice_given_to_one_scope_does_not_count_for_another_on_the_host() -> None:
    """Two VMs of different scopes on one host: a delivery to one does not count for the other."""
    vms = [a_vm("web", host="h0"), a_vm("db", host="h0")]
    with closing(World(hosts=[a_host("h0")], vms=vms, prober=FakeProber())) as world:
        check = figure(OwnFigure.UNDELIVERED, "< 9")
        rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h0",), checks=(check,))
        request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
        world.settle()
        deliver(world, "web")
        world.advance(16 * 60)
        assert measured(world, request) == (CheckOutcome.GOOD, 1)
        assert world.store.measurements(request.id)[-1].text == "1 (db)"


def test_a_vm_that_polls_after_its_maintenance_is_back(world: World) -> None:
    poll(world, "web-0", "web-1")
    request = start(world, figure(OwnFigure.NOT_BACK))
    (event,) = world.events()
    world.approve("web-0", event.id)
    wait(world, 60)
    assert measured(world, request)[0] is CheckOutcome.UNCLEAR
    poll(world, "web-0")
    assert measured(world, request) == (CheckOutcome.GOOD, 0)
    wait(world, 600)
    assert world.rollout(request.id).progress is RolloutState.RUNNING


def test_a_vm_that_does_not_poll_for_five_minutes_is_not_back(world: World) -> None:
    poll(world, "web-0", "web-1")
    request = start(world, figure(OwnFigure.NOT_BACK))
    (event,) = world.events()
    world.approve("web-0", event.id)
    wait(world, 30 + 299)
    assert measured(world, request)[0] is CheckOutcome.UNCLEAR
    wait(world, 2)
    assert measured(world, request) == (CheckOutcome.BAD, 1)


def test_a_vm_that_never_polled_is_not_awaited(world: World) -> None:
    request = start(world, figure(OwnFigure.NOT_BACK))
    (event,) = world.events()
    world.do(world.control.requests.approve(event.id, who="op"))
    world.settle()
    wait(world, 600)
    assert measured(world, request) == (CheckOutcome.GOOD, 0)


def test_a_vm_that_was_removed_after_its_maintenance_is_not_awaited(world: World) -> None:
    poll(world, "web-0", "web-1")
    request = start(world, figure(OwnFigure.NOT_BACK, "< 9"))
    (event,) = world.events()
    world.approve("web-0", event.id)
    wait(world, 400)
    assert measured(world, request) == (CheckOutcome.GOOD, 1)
    world.do(world.control.fleet.apply_change(FleetChange(removed=(world.vm("web-0"),)), who="ann"))
    assert measured(world, request) == (CheckOutcome.GOOD, 0)


def test_a_resumed_rollout_does_not_wait_for_vms_from_before(world: World) -> None:
    poll(world, "web-0", "web-1")
    request = start(world, figure(OwnFigure.NOT_BACK))
    (event,) = world.events()
    world.approve("web-0", event.id)
    wait(world, 400)
    assert world.rollout(request.id).reason == "check 'figure' is bad: 1 is not == 0 (web-0)"
    resume(world, request)
    assert measured(world, request) == (CheckOutcome.GOOD, 0)
    assert world.rollout(request.id).progress is RolloutState.RUNNING
