"""The stored lab clock: it never goes back, even if the wall clock does (spec §12)."""

from __future__ import annotations

import pytest

from forewarn.base.clock import LabClock
from forewarn.control.lab_clock import load_clock_setting
from forewarn.errors import Refused, Rejected
from tests.support.world import World, a_host, a_vm


def test_lab_time_does_not_go_back_when_the_wall_clock_is_set_back_between_two_runs() -> None:
    world = World(hosts=[a_host("h1")], vms=[a_vm("web-0")])
    world.advance(3600)
    world.do(world.control.lab_clock.save_position())
    shown = world.now

    stored = load_clock_setting(world.store)
    assert stored is not None
    later = LabClock(stored, real=lambda: stored.real_at - 7200)
    assert later.now() == shown
    world.close()


def test_lab_time_continues_from_its_saved_position() -> None:
    world = World(hosts=[a_host("h1")], vms=[a_vm("web-0")])
    world.do(world.control.lab_clock.set_speed(2.0))
    world.do(world.control.lab_clock.save_position())
    stored = load_clock_setting(world.store)
    assert stored is not None
    assert LabClock(stored, real=lambda: stored.real_at + 30).now() == world.now + 60
    world.close()


@pytest.mark.parametrize("speed", [-1, 100_001, float("nan"), float("inf")])
def test_a_speed_out_of_range_is_rejected_as_bad_input_and_changes_nothing(speed: float) -> None:
    """It is wrong in every state of the clock, so it is not refused because of the state."""
    world = World(hosts=[a_host("h1")], vms=[a_vm("web-0")])
    before = world.control.lab_clock.status(), world.store.last_seq()
    with pytest.raises(Rejected, match="is out of range: give a number from 0") as caught:
        world.do(world.control.lab_clock.set_speed(speed, who="ann"))
    assert not isinstance(caught.value, Refused)
    assert (world.control.lab_clock.status(), world.store.last_seq()) == before
    world.close()
