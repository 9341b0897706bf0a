"""The stored lab clock: it never goes back, even if the wall clock does (spec §12)."""

from __future__ import annotations

from forewarn.clock import LabClock
from forewarn.control.lab_clock import load_clock_setting
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
