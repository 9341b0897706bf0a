"""Health checks of rollouts (spec §13.4, §13.5): before a wave, on bad, on unclear, and across restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from forewarn.core.event import Ending, EventState
from forewarn.core.health import CheckKind, CheckOutcome, HealthCheck, OwnFigure
from forewarn.core.history import EntryKind
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutImpact, RolloutState
from forewarn.errors import Refused, Rejected
from forewarn.machines.simulated import FailRule, SimulatedBehaviour, SimulatedHypervisor
from forewarn.store.memory import MemoryStore
from tests.support.disturbed_calls import ServiceKilled
from tests.support.fake_prober import FakeProber
from tests.support.world import World, a_host, a_vm

SHOP = HealthCheck(name="shop", kind=CheckKind.HTTP, url="http://127.0.0.1/health")
ON_BOTH = Rollout(impact=RolloutImpact.REBOOT, hosts=("h0", "h1"), checks=(SHOP,))


@pytest.fixture
def prober() -> FakeProber:
    return FakeProber()


@pytest.fixture
def world(prober: FakeProber) -> Iterator[World]:
    """Two update domains of one scope, on two hosts."""
    vms = [a_vm(f"web-{n}", host=f"h{n}", availability_set="web", update_domain=n) for n in (0, 1)]
    world = World(hosts=[a_host("h0"), a_host("h1")], vms=vms, prober=prober)
    yield world
    world.close()


def start(world: World, rollout: Rollout = ON_BOTH) -> MaintenanceRequest:
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    return request


def change(world: World, request: MaintenanceRequest, progress: RolloutState) -> None:
    world.do(world.control.rollout_requests.change_state(request.id, progress, who="ann"))
    world.settle()


def scheduled(world: World) -> list[str]:
    return [name for event in world.store.events(statuses=[EventState.SCHEDULED]) for name in event.vms]


def outcomes(world: World, request: MaintenanceRequest) -> list[CheckOutcome]:
    return [measurement.outcome for measurement in world.store.measurements(request.id)]


def test_a_rollout_publishes_after_its_checks_were_good_and_completes(world: World, prober: FakeProber) -> None:
    request = start(world)
    assert prober.asked == ["shop"]
    assert scheduled(world) == ["web-0"]
    world.advance(7200)
    assert world.rollout(request.id).progress is RolloutState.COMPLETED
    assert set(outcomes(world, request)) == {CheckOutcome.GOOD}


def test_a_check_is_measured_at_its_interval_while_the_rollout_runs(world: World, prober: FakeProber) -> None:
    request = start(world)
    world.advance(600)
    assert [m.at - request.requested_at for m in world.store.measurements(request.id)] == [60.0 * n for n in range(11)]
    change(world, request, RolloutState.PAUSED)
    world.advance(600)
    assert len(prober.asked) == 11


@pytest.mark.parametrize("outcome", [CheckOutcome.UNCLEAR, CheckOutcome.ERROR])
def test_nothing_is_published_before_a_check_is_good(world: World, prober: FakeProber, outcome: CheckOutcome) -> None:
    """Spec §13.5: it holds and says so, and goes on by itself."""
    prober.outcomes["shop"] = outcome
    request = start(world)
    world.advance(3600)
    assert scheduled(world) == []
    assert "check 'shop' is" in world.rollout(request.id).unclear
    assert world.rollout(request.id).progress is RolloutState.RUNNING
    assert world.control.rollouts.forecast_of(request, world.rollout(request.id)).ends_at is None
    prober.outcomes["shop"] = CheckOutcome.GOOD
    world.advance(60)
    assert scheduled(world) == ["web-0"]
    assert world.control.rollouts.forecast_of(request, world.rollout(request.id)).ends_at is not None
    assert world.rollout(request.id).unclear == ""
    texts = [entry.text for entry in world.store.history(request_id=request.id)]
    assert sum("publishes nothing for now" in text for text in texts) == 1
    assert sum("its checks are clear again" in text for text in texts) == 1


def test_a_bad_check_pauses_withdraws_and_says_why(world: World, prober: FakeProber) -> None:
    """Spec §13.5: a person resumes it; the VMs of withdrawn events get new ones."""
    request = start(world)
    prober.coming["shop"] = [CheckOutcome.BAD]
    world.advance(60)
    rollout = world.rollout(request.id)
    assert (rollout.progress, rollout.reason) == (
        RolloutState.PAUSED,
        "check 'shop' is bad: it answered 500, not 200",
    )
    (event,) = world.events()
    assert (event.ending, event.is_postponed) == (Ending.WITHDRAWN, True)
    assert event.reason == "its rollout was paused by a health check"
    paused = [e for e in world.store.history(request_id=request.id) if e.kind is EntryKind.PAUSED]
    assert "paused: check 'shop' is bad" in paused[0].text
    assert world.control.rollouts.tally_of(request, rollout).waiting == 2
    world.advance(86_400)
    assert scheduled(world) == []
    assert world.rollout(request.id).progress is RolloutState.PAUSED

    change(world, request, RolloutState.RUNNING)
    assert scheduled(world) == ["web-0"]
    assert world.rollout(request.id).reason == ""
    world.advance(7200)
    final = world.rollout(request.id)
    assert final.progress is RolloutState.COMPLETED
    assert final.tally is not None
    assert (final.tally.done, final.tally.total) == (2, 2)


def test_an_event_that_has_started_finishes_after_a_bad_check(world: World, prober: FakeProber) -> None:
    request = start(world)
    (event,) = world.events()
    world.approve("web-0", event.id)
    prober.outcomes["shop"] = CheckOutcome.BAD
    world.advance(3600)
    assert [(e.vms, e.ending) for e in world.events()] == [
        (("web-0",), Ending.FINISHED),
        (("web-1",), Ending.WITHDRAWN),
    ]
    assert world.rollout(request.id).progress is RolloutState.PAUSED


HOLDING = replace(ON_BOTH, hold_if_unclear=True)


def waits(world: World, vm: str) -> WaitReason | None:
    scope = world.scope(vm)
    event = next(event for event in scope.live_events() if vm in event.vms)
    wait = start_wait(scope, event, world.control.transactions.context_for(scope))
    return wait.reason if wait is not None else None


@pytest.mark.parametrize("is_stale", [True, False])
@pytest.mark.parametrize("is_restarted", [True, False])
def test_unclear_checks_hold_scheduled_events_if_the_rollout_says_so(
    world: World, prober: FakeProber, is_stale: bool, is_restarted: bool
) -> None:
    start(world, HOLDING)
    if is_stale:  # the service could not measure
        world.clock.apply_setting(world.clock.setting_after_jump(world.now + 15 * 60))
        world.do(world.control.reconciler.reconcile())
        assert waits(world, "web-0") is WaitReason.CHECKS
    else:
        prober.outcomes["shop"] = CheckOutcome.UNCLEAR
        world.advance(30 * 60)
        assert waits(world, "web-0") is WaitReason.CHECKS
    prober.outcomes["shop"] = CheckOutcome.GOOD
    if is_restarted:
        world.restart()
    world.advance(60)
    assert [event.vms for event in world.events() if event.started_at is not None] == [("web-0",)]
    world.advance(3600)
    assert len(world.events(EventState.OVER)) == 2


def test_an_approved_event_starts_although_checks_are_unclear(world: World, prober: FakeProber) -> None:
    start(world, HOLDING)
    prober.outcomes["shop"] = CheckOutcome.UNCLEAR
    world.advance(30 * 60)
    (event,) = world.events()
    world.approve("web-0", event.id)
    assert world.events()[0].started_at is not None


def test_without_hold_if_unclear_scheduled_events_start_while_checks_are_unclear(
    world: World, prober: FakeProber
) -> None:
    start(world)
    prober.outcomes["shop"] = CheckOutcome.UNCLEAR
    world.advance(30 * 60)
    assert world.events()[0].started_at is not None


def test_events_of_a_paused_rollout_wait_with_hold_if_unclear_until_it_is_resumed(world: World) -> None:
    request = start(world, HOLDING)
    change(world, request, RolloutState.PAUSED)
    world.advance(3600)
    assert waits(world, "web-0") is WaitReason.CHECKS
    change(world, request, RolloutState.RUNNING)
    assert world.events()[0].started_at is not None


def test_a_paused_rollout_can_be_aborted(world: World, prober: FakeProber) -> None:
    request = start(world)
    prober.outcomes["shop"] = CheckOutcome.BAD
    world.advance(60)
    change(world, request, RolloutState.ABORTED)
    assert world.rollout(request.id).closed


def test_a_check_that_is_bad_again_pauses_a_resumed_rollout_before_it_publishes(
    world: World, prober: FakeProber
) -> None:
    request = start(world)
    prober.outcomes["shop"] = CheckOutcome.BAD
    world.advance(60)
    change(world, request, RolloutState.RUNNING)
    assert world.rollout(request.id).progress is RolloutState.PAUSED
    assert len(world.events()) == 1


def test_measurements_and_the_pause_survive_a_restart(world: World, prober: FakeProber) -> None:
    request = start(world, replace(ON_BOTH, checks=(replace(SHOP, bad_limit=2),)))
    prober.coming["shop"] = [CheckOutcome.BAD]
    world.advance(60)
    world.restart()
    assert world.rollout(request.id).progress is RolloutState.RUNNING
    prober.coming["shop"] = [CheckOutcome.BAD]
    world.advance(60)
    assert world.rollout(request.id).reason == (
        "check 'shop' is bad for the 2nd time in this wave: it answered 500, not 200"
    )


def test_own_figures_are_measured_from_what_the_service_knows(world: World) -> None:
    handlers = HealthCheck(name="handlers", kind=CheckKind.FIGURE, figure=OwnFigure.WITHOUT_HANDLER)
    request = start(world, Rollout(impact=RolloutImpact.REBOOT, hosts=("h0",), checks=(handlers,)))
    (measurement,) = world.store.measurements(request.id)
    assert (measurement.outcome, measurement.value) == (CheckOutcome.BAD, 1)
    assert measurement.text == "1 is not == 0 (web-0)"
    assert world.rollout(request.id).progress is RolloutState.PAUSED
    assert world.events() == []


def test_a_command_is_refused_unless_a_setting_allows_it(world: World, prober: FakeProber) -> None:
    prober.allow_commands = False
    command = HealthCheck(name="smoke", kind=CheckKind.COMMAND, command=("/bin/true",))
    with pytest.raises(Refused, match="check 'smoke' is a command, which this service does not run"):
        start(world, Rollout(impact=RolloutImpact.REBOOT, hosts=("h0",), checks=(command,)))
    assert world.store.requests() == []


def test_a_check_with_a_bad_condition_is_rejected_and_nothing_is_stored(world: World) -> None:
    check = HealthCheck(name="x", kind=CheckKind.FIGURE, figure=OwnFigure.FAILED_ACTS, condition="few")
    with pytest.raises(Rejected, match="check 'x': 'few' is not a condition"):
        start(world, Rollout(impact=RolloutImpact.REBOOT, hosts=("h0",), checks=(check,)))
    assert world.store.requests() == []


@pytest.mark.parametrize("applied", [False, True], ids=["before the write", "after the write"])
def test_a_service_that_is_killed_at_any_write_pauses_withdraws_and_resumes_all_the_same(applied: bool) -> None:
    """Spec §13.5. The number of writes until the kill grows until the whole rollout needs fewer of them."""
    for writes in range(300):
        if not play_with_a_kill(writes, applied=applied):
            return
    raise AssertionError("the rollout needs more writes than expected")


def play_with_a_kill(writes: int, *, applied: bool) -> bool:
    """Play a rollout that is paused and resumed, and kill the service at one write; whether it was killed."""
    prober, store = FakeProber(), MemoryStore()
    vms = [a_vm(f"web-{n}", host=f"h{n}", availability_set="web", update_domain=n) for n in (0, 1)]
    world = World(hosts=[a_host("h0"), a_host("h1")], vms=vms, prober=prober, store=store)
    request = start(world)
    was_killed = False
    store.fail_next(ServiceKilled(), after=writes, applied=applied)

    def survive(step: Callable[[], None]) -> None:
        nonlocal was_killed
        try:
            step()
        except ServiceKilled:
            was_killed = True
            world.restart()

    def advance(by_s: float) -> None:
        target = world.now + by_s
        while world.now < target:
            survive(lambda: world.advance(target - world.now))

    prober.outcomes["shop"] = CheckOutcome.BAD
    advance(120)
    paused = world.rollout(request.id)
    assert (paused.progress, scheduled(world)) == (RolloutState.PAUSED, [])
    assert all(event.is_postponed for event in world.events())
    prober.outcomes["shop"] = CheckOutcome.GOOD
    while world.rollout(request.id).progress is RolloutState.PAUSED:
        survive(lambda: change(world, request, RolloutState.RUNNING))
    advance(7200)
    final = world.rollout(request.id)
    assert final.progress is RolloutState.COMPLETED
    done = [name for event in world.events() if event.ending is Ending.FINISHED for name in event.vms]
    assert done == ["web-0", "web-1"]
    world.close()
    return was_killed


@pytest.mark.parametrize("settle_s", [0, 1800])
@pytest.mark.parametrize("outcome", [CheckOutcome.UNCLEAR, CheckOutcome.ERROR])
def test_the_last_wave_completes_only_after_its_checks_were_good(
    world: World, prober: FakeProber, outcome: CheckOutcome, settle_s: float
) -> None:
    """Spec §13.5."""
    request = start(world, replace(ON_BOTH, hosts=("h0",), settle_s=settle_s))
    prober.outcomes["shop"] = outcome
    world.advance(3600)
    waiting = world.rollout(request.id)
    assert [event.ending for event in world.events()] == [Ending.FINISHED]
    assert waiting.progress is RolloutState.RUNNING
    assert "check 'shop' is" in waiting.unclear
    prober.outcomes["shop"] = CheckOutcome.GOOD
    world.advance(60)
    final = world.rollout(request.id)
    assert (final.progress, final.closed, final.unclear) == (RolloutState.COMPLETED, True, "")


def test_a_check_that_is_bad_after_the_last_event_pauses_until_a_person_resumes(
    world: World, prober: FakeProber
) -> None:
    request = start(world, replace(ON_BOTH, hosts=("h0",)))
    prober.coming["shop"] = [CheckOutcome.GOOD] * 15 + [CheckOutcome.BAD]
    world.advance(86_400)
    assert [event.ending for event in world.events()] == [Ending.FINISHED]
    assert world.rollout(request.id).reason == "check 'shop' is bad: it answered 500, not 200"
    change(world, request, RolloutState.RUNNING)
    world.advance(60)
    assert world.rollout(request.id).progress is RolloutState.COMPLETED


def test_a_rollout_that_stops_while_its_checks_are_unclear_waits_for_them_no_longer(
    world: World, prober: FakeProber
) -> None:
    request = start(world)
    prober.outcomes["shop"] = CheckOutcome.UNCLEAR
    world.advance(60)
    assert world.rollout(request.id).unclear
    assert isinstance(world.hypervisor, SimulatedHypervisor)
    world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(vm="web-0", note="no power"),)))
    world.advance(1800)
    stopped = world.rollout(request.id)
    assert (stopped.progress, stopped.unclear) == (RolloutState.STOPPED, "")
