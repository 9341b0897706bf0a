"""The lab's clock as it is stored: it never moves back, whatever the wall clock under it does (spec §12)."""

from __future__ import annotations

from forewarn.clock import LabClock
from forewarn.control.lab_clock import load_clock_setting
from tests.support.world import World, a_host, a_vm


def test_a_wall_clock_that_is_set_back_between_two_runs_takes_no_lab_time_back() -> None:
    world = World(hosts=[a_host("h1")], vms=[a_vm("web-0")])
    world.advance(3600)
    world.do(world.control.lab_clock.save_position())
    shown = world.now

    stored = load_clock_setting(world.store)
    assert stored is not None
    later = LabClock(stored, real=lambda: stored.real_at - 7200)
    assert later.now() == shown
    world.close()


def test_time_goes_on_where_it_was_anchored() -> None:
    world = World(hosts=[a_host("h1")], vms=[a_vm("web-0")])
    world.do(world.control.lab_clock.set_speed(2.0))
    world.do(world.control.lab_clock.save_position())
    stored = load_clock_setting(world.store)
    assert stored is not None
    assert LabClock(stored, real=lambda: stored.real_at + 30).now() == world.now + 60
    world.close()
