"""Rollouts with maintenance windows (spec §13.1, §13.3): starts inside them, deadlines, approvals, clock changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from forewarn.control.dry_run import dry_run_rollout
from forewarn.core.budgets import make_budget
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.core.windows import is_open, make_calendar
from forewarn.errors import Rejected
from forewarn.machines.simulated import DurationRule, SimulatedBehaviour
from tests.support.world import World, a_host, a_vm

A_DAY = 86_400.0
NIGHT = "02:00 1h Europe/Berlin"  # the world begins on a Monday at noon, UTC

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(domains: int = 2, **options: Any) -> World:
        vms = [a_vm(f"web-{n}", host=f"h{n}", availability_set="web", update_domain=n) for n in range(domains)]
        made.append(World(hosts=[a_host(f"h{n}") for n in range(domains)], vms=vms, **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


def berlin(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


def a_rollout(world: World, *windows: str, blackouts: tuple[str, ...] = (), deadline: float | None = None) -> Rollout:
    calendar = make_calendar(windows, blackouts, deadline)
    hosts = tuple(host.name for host in world.store.hosts())
    return Rollout(impact=RolloutImpact.UPDATE, hosts=hosts, calendar=calendar)


def start(world: World, *windows: str, **options: Any) -> MaintenanceRequest:
    request = world.do(world.control.rollout_requests.start(a_rollout(world, *windows, **options), who="ann"))
    world.settle()
    return request


def starts(world: World) -> list[float]:
    return [event.started_at for event in world.events() if event.started_at is not None]


def the_event(world: World) -> Event:
    (event,) = world.events(EventState.SCHEDULED)
    return event


def test_not_before_is_the_opening_of_the_next_window(make_world: MakeWorld) -> None:
    world = make_world()
    start(world, NIGHT)
    event = the_event(world)
    assert event.not_before == berlin("2026-01-06T02:00")
    assert event.note == "its maintenance window is open from Tue 2026-01-06 02:00 CET"
    assert "scheduled: its maintenance window is open from Tue 2026-01-06 02:00 CET" in world.transcript()
    world.advance(A_DAY)
    assert starts(world)[0] == berlin("2026-01-06T02:00")


def test_inside_a_window_the_notice_alone_counts(make_world: MakeWorld) -> None:
    world = make_world(now=berlin("2026-01-06T02:05"))
    start(world, NIGHT)
    event = the_event(world)
    assert (event.not_before, event.note) == (berlin("2026-01-06T02:20"), "")


def test_update_domains_that_do_not_fit_into_a_window_wait_for_the_next(make_world: MakeWorld) -> None:
    """A window of ten minutes takes one update domain, because the next one has 15 minutes of notice."""
    world = make_world(domains=3)
    request = start(world, "02:00 10m Europe/Berlin")
    world.advance(4 * A_DAY)
    nights = [berlin(f"2026-01-0{day}T02:00") for day in (6, 7, 8)]
    assert starts(world) == nights
    assert world.rollout(request.id).progress is RolloutState.COMPLETED


def test_an_approval_starts_an_event_before_its_window(make_world: MakeWorld) -> None:
    world = make_world()
    start(world, NIGHT)
    world.approve("web-0", the_event(world).id)
    assert starts(world) == [world.now]


def test_an_event_that_was_held_back_beyond_its_window_waits_for_the_next(make_world: MakeWorld) -> None:
    world = make_world(domains=1)
    start(world, "02:00 10m Europe/Berlin")
    event = the_event(world)
    world.do(world.control.close())  # the service is down for the whole window
    world.clock.apply_setting(world.clock.setting_after_jump(berlin("2026-01-06T03:00")))
    world.restart()
    scope = world.scope("web-0")
    wait = start_wait(scope, the_event(world), world.control.transactions.context_for(scope))
    assert wait is not None
    assert (wait.reason, wait.until) == (WaitReason.WINDOW, berlin("2026-01-07T02:00"))
    assert wait.text == "an approval, or its next maintenance window, Wed 2026-01-07 02:00 CET"
    world.advance(A_DAY)
    assert starts(world) == [berlin("2026-01-07T02:00")]
    assert world.store.event(event.id) is not None


def test_at_its_deadline_an_event_starts_outside_of_windows_and_its_description_says_so(make_world: MakeWorld) -> None:
    world = make_world(domains=1)
    deadline = berlin("2026-01-07T12:00")
    start(world, "sat 02:00 1h Europe/Berlin", deadline=deadline)
    event = the_event(world)
    assert event.not_before == deadline
    assert event.note == "its deadline, Wed 2026-01-07 12:00 CET, comes before its next maintenance window"
    assert b"outside of its maintenance windows, because its deadline comes first" in world.document("web-0")
    world.advance(3 * A_DAY)
    assert starts(world) == [deadline]


def test_no_event_starts_on_a_blackout_date(make_world: MakeWorld) -> None:
    world = make_world(domains=1)
    start(world, NIGHT, blackouts=("2026-01-06..2026-01-08",))
    assert the_event(world).not_before == berlin("2026-01-09T02:00")


def test_a_rollout_stops_when_no_window_is_left_for_the_other_vms(make_world: MakeWorld) -> None:
    world = make_world()
    request = start(world, "2026-01-06T02:00 10m Europe/Berlin")
    world.advance(2 * A_DAY)
    rollout = world.rollout(request.id)
    assert (rollout.progress, rollout.closed) == (RolloutState.STOPPED, True)
    assert rollout.reason == "no maintenance window follows in which the other VMs could start"
    assert [event.ending for event in world.events()] == [Ending.FINISHED]


def test_a_rollout_stops_when_its_last_window_passes_during_a_hold(make_world: MakeWorld) -> None:
    world = make_world()
    request = start(world, "2026-01-06T02:00 10m Europe/Berlin")
    world.do(world.control.rollouts.holds.set_hold("an incident", who="ann"))
    world.advance(2 * A_DAY)
    world.do(world.control.rollouts.holds.lift_hold(who="ann"))
    world.settle()
    rollout = world.rollout(request.id)
    assert (rollout.progress, rollout.closed) == (RolloutState.STOPPED, True)
    assert [event.ending for event in world.events()] == [Ending.WITHDRAWN]


def test_a_rollout_stops_when_another_kept_its_events_back_beyond_the_last_window(make_world: MakeWorld) -> None:
    world = make_world()
    world.hypervisor.set_behaviour(SimulatedBehaviour((DurationRule(seconds=3 * 3600.0),)))
    other = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",))
    world.do(world.control.rollout_requests.start(other, who="ann", notice_s=berlin("2026-01-06T01:30") - world.now))
    world.settle()
    blocked = Rollout(
        impact=RolloutImpact.UPDATE,
        hosts=("h0",),
        calendar=make_calendar(["2026-01-06T02:00 10m Europe/Berlin"], [], None),
    )
    request = world.do(world.control.rollout_requests.start(blocked, who="ann"))
    world.settle()
    world.advance(2 * A_DAY)
    assert world.rollout(request.id).progress is RolloutState.STOPPED
    assert not world.store.events(statuses=(EventState.SCHEDULED, EventState.STARTED))


@pytest.mark.parametrize(
    ("now", "first"),
    [("2027-03-27T12:00", "2027-03-28T03:00"), ("2026-10-24T12:00", "2026-10-25T02:30")],
    ids=["clocks go forward", "clocks go back"],
)
def test_a_rollout_starts_in_its_window_in_the_nights_of_clock_changes(
    make_world: MakeWorld, now: str, first: str
) -> None:
    world = make_world(domains=1, now=berlin(now))
    start(world, "02:30 20m Europe/Berlin")
    world.advance(A_DAY)
    assert starts(world) == [berlin(first)]


def test_a_restart_of_the_service_changes_no_start(make_world: MakeWorld) -> None:
    world = make_world(domains=3)
    start(world, NIGHT)
    for _ in range(5):
        world.restart()
        world.advance(6 * 3600)
    assert len(starts(world)) == 3
    calendar = make_calendar([NIGHT], [], None)
    assert calendar is not None
    assert all(is_open(calendar, at) for at in starts(world))


def test_what_the_preview_shows_is_what_happens(make_world: MakeWorld) -> None:
    world = make_world(domains=3)
    rollout = a_rollout(world, "02:00 10m Europe/Berlin")
    preview = world.do(dry_run_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False))
    start(world, "02:00 10m Europe/Berlin")
    world.advance(4 * A_DAY)
    assert [event.starts_at for event in preview.events] == starts(world)


def test_other_maintenance_does_not_wait_for_the_windows_of_a_rollout(make_world: MakeWorld) -> None:
    world = make_world()
    start(world, NIGHT)
    (restart,) = world.ask(RequestedOperation.RESTART, "web-1")
    world.advance(3600)
    assert restart.calendar is None
    assert starts(world) == [restart.not_before]


@pytest.mark.parametrize(
    ("windows", "deadline", "message"),
    [
        (
            ["2026-01-05T10:00 1h UTC"],
            None,
            "no maintenance window (2026-01-05T10:00 1h UTC) follows the notice of 15 min",
        ),
        ([NIGHT], berlin("2026-01-05T12:00"), "the deadline Mon 2026-01-05 12:00 CET is over: give a later one"),
    ],
)
def test_windows_that_are_over_are_rejected_and_change_nothing(
    make_world: MakeWorld, windows: list[str], deadline: float | None, message: str
) -> None:
    world = make_world()
    with pytest.raises(Rejected) as raised:
        start(world, *windows, deadline=deadline)
    assert message in str(raised.value)
    assert world.store.requests() == []


def test_a_rollout_stops_at_the_end_of_its_last_window_although_nothing_else_happens(make_world: MakeWorld) -> None:
    """The service was down until shortly before the end, and its grace period took the rest of the window."""
    world = make_world(domains=1)
    request = start(world, "2026-01-06T02:00 2m Europe/Berlin")
    world.do(world.control.close())
    world.clock.apply_setting(world.clock.setting_after_jump(berlin("2026-01-06T02:01") + 10))
    world.restart()
    assert world.rollout(request.id).progress is RolloutState.RUNNING
    world.advance(60)
    rollout = world.rollout(request.id)
    assert (rollout.progress, rollout.closed) == (RolloutState.STOPPED, True)
    assert [(event.ending, event.over_at) for event in world.events()] == [
        (Ending.WITHDRAWN, berlin("2026-01-06T02:02"))
    ]


def test_a_rollout_that_waits_for_a_budget_stops_when_no_notice_fits_before_the_last_end(make_world: MakeWorld) -> None:
    world = make_world()
    world.do(world.control.budgets.set_budget(make_budget("one", max_vms=1), who="ann"))
    world.ask(RequestedOperation.POWER_OFF, "web-1")
    calendar = make_calendar(["2026-01-06T02:00 2h Europe/Berlin"], (), None)
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h0",), calendar=calendar)
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.advance(berlin("2026-01-06T03:44") - world.now)
    assert world.rollout(request.id).progress is RolloutState.RUNNING
    world.advance(60)
    assert world.rollout(request.id).progress is RolloutState.STOPPED
