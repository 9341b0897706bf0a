"""Storms: same seed, same faults at the same offsets (spec §11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.control.fleet import FleetChange
from forewarn.core.fault_storm import StormTarget, plan_storm
from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultKind, check_parameters, fault_duration_s
from forewarn.errors import Refused, Rejected
from tests.support.world import World, a_host, a_vm

TWO = [StormTarget(vm="sub/lab/a", has_neighbour=True), StormTarget(vm="sub/lab/b", has_neighbour=False)]


@given(seed=st.integers(0, 2**53), for_s=st.floats(1, 3600))
@settings(max_examples=100, deadline=None)
def test_a_storm_follows_from_its_seed_alone(seed: int, for_s: float) -> None:
    gusts = plan_storm(seed, TWO, for_s)
    assert gusts == plan_storm(seed, list(reversed(TWO)), for_s)
    assert all(0 <= gust.after_s < for_s for gust in gusts)
    assert [gust.after_s for gust in gusts] == sorted(gust.after_s for gust in gusts)
    longer = plan_storm(seed, TWO, for_s + 600)
    assert longer[: len(gusts)] == gusts  # a longer storm begins the same


@given(seed=st.integers(0, 2**53))
@settings(max_examples=50, deadline=None)
def test_every_fault_of_a_storm_could_be_set_by_hand(seed: int) -> None:
    for gust in plan_storm(seed, TWO, 3600):
        check_parameters(gust.kind, gust.parameters)
        at_once = FAULT_DEFINITIONS[gust.kind].category is FaultCategory.AT_ONCE
        assert (gust.count is None, gust.for_s is None) == (at_once, at_once)
        assert fault_duration_s(gust.kind, gust.count, gust.for_s) == gust.for_s
        assert gust.kind is not FaultKind.NEIGHBOUR_ONLY or gust.vm == "sub/lab/a"


def test_a_long_storm_has_every_kind() -> None:
    assert {gust.kind for gust in plan_storm(1, TWO, 24 * 3600)} == set(FaultKind)


def test_this_seed_gives_this_storm_on_every_machine_and_in_every_release() -> None:
    assert [(gust.after_s, str(gust.kind), gust.vm[-1], gust.count, gust.for_s) for gust in plan_storm(7, TWO, 60)] == [
        (0, "gone", "b", 8, 26),
        (6, "unknown-version-404", "a", 2, 13),
        (21, "stale", "a", 5, 10),
        (48, "late-first-answer", "a", 3, 7),
    ]


@pytest.fixture
def a_world() -> Iterator[Callable[[], World]]:
    """Makes worlds that are all alike; closes them afterwards."""
    made: list[World] = []

    def make() -> World:
        vms = [a_vm(f"web-{n}", availability_set="web", update_domain=n, host=f"h{n + 1}") for n in (0, 1)]
        made.append(World(vms=vms, hosts=[a_host("h1"), a_host("h2")]))
        return made[-1]

    yield make
    for world in made:
        world.close()


def play(world: World, seed: int = 7) -> list[str]:
    begun = world.now
    vms = [world.vm("web-0"), world.vm("web-1")]
    world.do(world.control.fault_storms.start(seed, vms, for_s=600, who="ann"))
    for _ in range(20):
        world.advance(90)
    told = [entry for entry in world.store.history() if entry.what == "fault"]
    return [f"{entry.at - begun:.0f} {entry.text}" for entry in told]


def test_two_labs_live_through_the_same_storm_in_the_same_way(a_world: Callable[[], World]) -> None:
    one, other, third = a_world(), a_world(), a_world()
    assert play(one) == play(other)
    assert one.document("web-0") == other.document("web-0")
    assert play(third, seed=8) != play(a_world())


def test_a_storm_tells_when_it_begins_and_when_its_last_fault_is_set(a_world: Callable[[], World]) -> None:
    world = a_world()
    lines = play(world)
    assert lines[0].startswith("0 storm s1 with seed 7 set by ann: ")
    assert any(line.endswith("storm s1 is over: its last fault is set") for line in lines)
    assert world.control.faults.active.storms == ()
    assert all(" by storm s1" in line for line in lines if " set for " in line)


def test_a_storm_goes_on_after_a_restart(a_world: Callable[[], World]) -> None:
    calm, shaken = a_world(), a_world()
    play(calm)
    shaken.do(shaken.control.fault_storms.start(7, [shaken.vm("web-0"), shaken.vm("web-1")], for_s=600, who="ann"))
    for _ in range(20):
        shaken.advance(90)
        shaken.restart()

    def kinds(world: World) -> list[str]:
        texts = (entry.text for entry in world.store.history() if entry.what == "fault")
        return [text.partition("(")[2].partition(")")[0] for text in texts if " set for " in text]

    assert kinds(shaken) == kinds(calm)


def test_a_cleared_storm_sets_nothing_more(a_world: Callable[[], World]) -> None:
    world = a_world()
    storm = world.do(world.control.fault_storms.start(7, [world.vm("web-0")], for_s=600, who="ann"))
    world.settle()
    ended = world.do(world.control.fault_storms.clear([storm.id], who="bob"))
    assert [storm.id for storm in ended] == ["s1"]
    count = len([e for e in world.store.history() if " set for " in e.text])
    world.advance(3600)
    assert len([e for e in world.store.history() if " set for " in e.text]) == count


def test_a_vm_that_has_left_is_passed_over(a_world: Callable[[], World]) -> None:
    world = a_world()
    vm = world.vm("web-0")
    world.do(world.control.fault_storms.start(7, [vm], for_s=600, who="ann"))
    world.do(world.control.fleet.apply_change(FleetChange(removed=(vm,)), who="ann"))
    world.advance(3600)
    texts = [entry.text for entry in world.store.history() if " skipped " in entry.text]
    assert texts
    assert texts[-1].endswith("for web-0: VM 'web-0' does not exist any more")


def test_a_storm_that_cannot_be_is_refused(a_world: Callable[[], World]) -> None:
    world = a_world()
    with pytest.raises(Rejected, match="a storm cannot last 0 s: give more than 0 s, up to 86400 s"):
        world.do(world.control.fault_storms.start(7, [world.vm("web-0")], for_s=0, who="ann"))
    with pytest.raises(Refused, match="a storm needs a VM to hit"):
        world.do(world.control.fault_storms.start(7, [], for_s=60, who="ann"))
