"""A process that ends between the release of a gate and the starts behind it (spec §6.2, §13.3, §13.5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.core.windows import is_open, make_calendar
from forewarn.errors import Unavailable
from tests.properties.crashing_stores import CrashingMemoryStore, CrashingWorld, ProcessDied
from tests.support.world import NOON, a_host, a_vm

HOUR = 3600.0
NIGHT = make_calendar(["02:00 1h"], [], None)
OPENS = NOON + 14 * HOUR  # the world begins at noon


class ReleaseCrashingStore(CrashingMemoryStore):
    """Ends the process right after it has stored a release, or fails all writes after that, if it is told to."""

    dies_at_release = False
    fails_after_release = False
    is_failing = False

    async def commit(self, commit: Commit) -> int:
        if self.is_failing:
            raise Unavailable("the disk is full: try again later")
        if any(gate.released_at is not None for gate in commit.gates):
            if self.dies_at_release:
                self.failures.dies_in, self.failures.dies_late = 0, True
            if self.fails_after_release:
                self.is_failing, self.fails_after_release = True, False
        return await super().commit(commit)


@pytest.fixture
def world() -> Iterator[CrashingWorld]:
    """Two VMs of different scopes on one host, whose rollout has waited for the window that opens now."""
    made = CrashingWorld(ReleaseCrashingStore(), hosts=[a_host("h1")], vms=[a_vm("web"), a_vm("db")])
    roll_out(made)
    made.advance(OPENS - NOON - 0.5)
    yield made
    made.close()


def roll_out(world: CrashingWorld, deadline: float | None = None) -> None:
    calendar = make_calendar(["02:00 1h"], [], deadline)
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",), calendar=calendar)
    world.do(world.control.rollout_requests.start(rollout, who="op"))
    world.settle()


def is_in_window(at: float) -> bool:
    assert NIGHT is not None
    return is_open(NIGHT, at)


def open_window(world: CrashingWorld) -> None:
    with suppress(ProcessDied, Unavailable):
        world.advance(0.5)


def start_again_after(world: CrashingWorld, down_s: float) -> None:
    """Start a new process on what the last one left, which does all that is due at once, and after its grace period."""
    world.failures.dies_in = None
    world.clock.apply_setting(world.clock.setting_after_jump(world.now + down_s))
    world.restart_process()
    world.settle()
    world.advance(HOUR)


def started(world: CrashingWorld) -> list[Event]:
    return [event for event in world.store.events() if event.started_at is not None]


def released(world: CrashingWorld) -> list[float]:
    gates = {event.gate_id for event in world.store.events()}
    found = [world.store.gate(gate_id) for gate_id in gates]
    return [gate.released_at for gate in found if gate is not None and gate.released_at is not None]


def store_of(world: CrashingWorld) -> ReleaseCrashingStore:
    assert isinstance(world.store, ReleaseCrashingStore)
    return world.store


def die_at_the_release(world: CrashingWorld) -> None:
    store_of(world).dies_at_release = True
    open_window(world)
    assert (released(world), started(world)) == ([OPENS], [])


def test_events_wait_for_the_next_window_if_the_service_dies_at_the_release(world: CrashingWorld) -> None:
    die_at_the_release(world)
    start_again_after(world, 10 * HOUR)
    assert (released(world), started(world)) == ([], [])
    world.advance(24 * HOUR)
    assert [event.started_at for event in started(world)] == [OPENS + 24 * HOUR] * 2
    assert "the events on host h1 must wait again: all were ready, but none has started" in world.transcript()


def test_events_start_if_the_service_is_back_while_the_window_is_open(world: CrashingWorld) -> None:
    die_at_the_release(world)
    start_again_after(world, 60.0)
    assert len(started(world)) == 2
    assert all(is_in_window(event.started_at) for event in started(world) if event.started_at is not None)


def test_events_wait_for_the_grace_period_if_the_service_dies_at_the_release(world: CrashingWorld) -> None:
    """VMs that could not poll while the service was down get that time, before and after a release."""
    die_at_the_release(world)
    world.failures.dies_in = None
    world.restart_process()
    world.settle()
    assert started(world) == []
    world.advance(world.policy.grace_s)
    assert [event.started_at for event in started(world)] == [OPENS + world.policy.grace_s] * 2


def test_a_hold_keeps_events_whose_gate_a_dead_process_released(world: CrashingWorld) -> None:
    die_at_the_release(world)
    world.failures.dies_in = None
    world.restart_process()
    world.do(world.control.rollouts.holds.set_hold("an incident", who="op"))
    world.advance(30 * 60)
    assert started(world) == []
    world.do(world.control.rollouts.holds.lift_hold(who="op"))
    world.settle()
    assert len(started(world)) == 2


def test_an_approval_starts_events_whose_gate_a_dead_process_released(world: CrashingWorld) -> None:
    die_at_the_release(world)
    start_again_after(world, 10 * HOUR)
    for event in world.events(EventState.SCHEDULED):
        world.do(world.control.requests.approve(event.id, who="op"))
    world.settle()
    assert len(started(world)) == 2


def test_other_work_in_the_scope_does_not_start_events_behind_a_void_release(world: CrashingWorld) -> None:
    """The new process looks at the scope, for a restart of its VM, before it looks at the gate."""
    die_at_the_release(world)
    world.failures.dies_in = None
    world.clock.apply_setting(world.clock.setting_after_jump(OPENS + 10 * HOUR))
    world.restart_process()
    world.ask(RequestedOperation.RESTART, "web")
    world.advance(HOUR)
    assert {event.cause for event in started(world)} == {"user restart"}


def test_a_store_that_fails_after_the_release_until_the_window_is_over_starts_nothing(world: CrashingWorld) -> None:
    """The process lives on, and repeats its passes until the store works again."""
    store = store_of(world)
    store.fails_after_release = True
    open_window(world)
    assert (released(world), started(world)) == ([OPENS], [])
    store.is_failing = False
    world.clock.apply_setting(world.clock.setting_after_jump(OPENS + 10 * HOUR))
    world.settle()
    assert (released(world), started(world)) == ([], [])
    world.advance(24 * HOUR)
    assert [event.started_at for event in started(world)] == [OPENS + 24 * HOUR] * 2


def test_the_deadline_starts_events_whose_gate_a_dead_process_released() -> None:
    world = CrashingWorld(ReleaseCrashingStore(), hosts=[a_host("h1")], vms=[a_vm("web"), a_vm("db")])
    roll_out(world, deadline=OPENS + 12 * HOUR)
    world.advance(OPENS - NOON - 0.5)
    die_at_the_release(world)
    start_again_after(world, 10 * HOUR)
    assert started(world) == []
    world.advance(2 * HOUR)
    assert [event.started_at for event in started(world)] == [OPENS + 12 * HOUR] * 2
    world.close()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("writes", range(8))
def test_a_process_that_dies_at_any_write_starts_no_host_outside_its_window(
    world: CrashingWorld, writes: int, late: bool
) -> None:
    world.failures.dies_in, world.failures.dies_late = writes, late
    open_window(world)
    in_time = {event.started_at for event in started(world)}
    start_again_after(world, 10 * HOUR)
    world.advance(30 * HOUR)
    starts = sorted(event.started_at or 0.0 for event in started(world))
    assert len(starts) == 2
    assert is_in_window(starts[0])
    if not in_time:
        assert is_in_window(starts[1]), "an event follows another one of its host, and starts alone only in a window"
