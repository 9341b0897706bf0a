"""What the plan of a rollout shows is what happens when nothing interferes (spec §13.6), over random fleets."""

from __future__ import annotations

from contextlib import closing

from hypothesis import assume, given
from hypothesis import strategies as st

from forewarn.control.dry_run import plan_rollout
from forewarn.core.event import EventState
from forewarn.core.explain.rollout_plan import RolloutPlan
from forewarn.core.request import MaintenanceRequest, Rollout, RolloutState
from forewarn.core.windows import make_calendar
from forewarn.errors import Rejected
from tests.properties.random_fleets import SmallFleet, small_fleets, waved_rollouts
from tests.properties.search_profile import search_settings
from tests.support.world import World

CALENDARS = st.sampled_from(
    [
        *(None, None),
        make_calendar(["02:00 1h"], [], None),
        make_calendar(["12:20 5m", "02:30 30m Europe/Berlin"], [], None),
    ]
)


@given(fleet=small_fleets(), rollout=waved_rollouts(CALENDARS), approves=st.booleans())
@search_settings(40)
def test_the_waves_and_times_of_a_plan_are_those_of_the_rollout(
    fleet: SmallFleet, rollout: Rollout, approves: bool
) -> None:
    with closing(World(hosts=fleet.hosts, vms=fleet.vms)) as world:
        try:
            plan = world.do(plan_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False))
        except Rejected:
            assume(False)  # no VM has the tag, or none of the hosts exists
        assert world.store.requests() == [], "a plan changes nothing"
        request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
        world.settle()
        check_forecast(world, request, plan)
        run_to_the_end(world, request, approves=approves)
        check_plan(plan, world, request, approves=approves)


def run_to_the_end(world: World, request: MaintenanceRequest, *, approves: bool) -> None:
    """Let time pass until the rollout is closed, approving each event when it is published if `approves`."""
    for _ in range(2000):
        pending = [e for e in world.events(EventState.SCHEDULED) if e.approved_at is None]
        if approves and pending:
            world.do(world.control.requests.approve_all(pending, who="ann"))
            world.settle()
            continue
        if not world.store.requests(open_only=True):
            return
        assert world.do(world.control.lab_clock.advance_to_next_wake())
    raise AssertionError("the rollout did not end")


def check_forecast(world: World, request: MaintenanceRequest, plan: RolloutPlan) -> None:
    """The view of a rollout that has just started expects what its plan has shown."""
    stored = world.store.request(request.id)
    assert stored is not None
    assert stored.rollout is not None
    forecast = world.control.rollouts.forecast_of(stored, stored.rollout)
    sizes = {wave.wave + 1: wave.size for wave in forecast.waves}
    assert [sizes.get(wave.number, 0) for wave in plan.waves] == [wave.size for wave in plan.waves]
    if stored.rollout.progress is RolloutState.RUNNING:
        assert forecast.ends_at == plan.over_latest


def check_plan(plan: RolloutPlan, world: World, request: MaintenanceRequest, *, approves: bool) -> None:
    events = world.store.events(request_id=request.id)
    assert sorted(name for event in events for name in event.vms) == sorted(n for wave in plan.waves for n in wave.vms)
    assert sum(wave.size for wave in plan.waves) == plan.vms
    assert not plan.is_partial
    settled_at = None
    for wave in plan.waves:
        members = [event for event in events if set(event.vms) & set(wave.vms)]
        times = wave.earliest if approves else wave.latest
        assert (times is None) == (not members) == (wave.size == 0)
        if times is None:
            continue
        assert all(set(event.vms) <= set(wave.vms) for event in members), "an event belongs to one wave"
        starts = {event.started_at for event in members if event.started_at is not None}
        assert times.begins_at == min(event.published_at for event in members)
        assert times.starts_at == min(starts)
        assert times.over_at == max(event.over_at for event in members if event.over_at is not None)
        assert approves or wave.starts == tuple(sorted(starts))
        assert settled_at is None or times.begins_at >= settled_at, "§13.1 a wave begins when the last has settled"
        settled_at = times.settled_at
    over_at = plan.over_earliest if approves else plan.over_latest
    assert over_at == (settled_at if settled_at is not None else plan.now)
