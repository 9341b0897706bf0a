"""Fault storms: the same seed gives the same faults at the same offsets (spec §11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.control.fleet import FleetChange
from forewarn.core.faults import (
    FAULT_DEFINITIONS,
    FaultCategory,
    FaultKind,
    StormTarget,
    check_parameters,
    fault_duration_s,
    plan_storm,
)
from forewarn.errors import Refused, Rejected, Unavailable
from tests.support.world import World, a_host, a_vm

TWO = [StormTarget(vm="sub/lab/a", has_neighbour=True), StormTarget(vm="sub/lab/b", has_neighbour=False)]


@given(seed=st.integers(0, 2**53), duration_s=st.floats(1, 3600))
@settings(max_examples=100, deadline=None)
def test_a_storm_depends_only_on_its_seed(seed: int, duration_s: float) -> None:
    faults = plan_storm(seed, TWO, duration_s)
    assert faults == plan_storm(seed, list(reversed(TWO)), duration_s)
    assert all(0 <= fault.after_s < duration_s for fault in faults)
    assert [fault.after_s for fault in faults] == sorted(fault.after_s for fault in faults)
    longer = plan_storm(seed, TWO, duration_s + 600)
    assert longer[: len(faults)] == faults  # a longer storm starts with the same faults


@given(seed=st.integers(0, 2**53))
@settings(max_examples=50, deadline=None)
def test_every_fault_of_a_storm_is_a_valid_fault(seed: int) -> None:
    for fault in plan_storm(seed, TWO, 3600):
        check_parameters(fault.kind, fault.parameters)
        at_once = FAULT_DEFINITIONS[fault.kind].category is FaultCategory.AT_ONCE
        assert (fault.count is None, fault.duration_s is None) == (at_once, at_once)
        assert fault_duration_s(fault.kind, fault.count, fault.duration_s) == fault.duration_s
        assert fault.kind is not FaultKind.NEIGHBOUR_ONLY or fault.vm == "sub/lab/a"


def test_a_long_storm_has_every_kind_that_storms_had_from_the_start() -> None:
    """A kind that was added later would give a seed another storm than in earlier releases."""
    added_later = {FaultKind.UNSIGNED_401, FaultKind.SEVERAL_UPDATE_DOMAINS}
    assert {fault.kind for fault in plan_storm(1, TWO, 24 * 3600)} == set(FaultKind) - added_later


def test_a_seed_gives_the_same_storm_on_every_machine_and_in_every_release() -> None:
    assert [
        (fault.after_s, str(fault.kind), fault.vm[-1], fault.count, fault.duration_s)
        for fault in plan_storm(7, TWO, 60)
    ] == [
        (0, "gone", "b", 8, 26),
        (6, "unknown-version-404", "a", 2, 13),
        (21, "stale", "a", 5, 10),
        (48, "late-first-answer", "a", 3, 7),
    ]


@pytest.fixture
def make_world() -> Iterator[Callable[[], World]]:
    """Return a function that makes equal worlds, which are closed after the test."""
    made: list[World] = []

    def make() -> World:
        vms = [a_vm(f"web-{n}", availability_set="web", update_domain=n, host=f"h{n + 1}") for n in (0, 1)]
        made.append(World(vms=vms, hosts=[a_host("h1"), a_host("h2")]))
        return made[-1]

    yield make
    for world in made:
        world.close()


def run_storm(world: World, seed: int = 7) -> list[str]:
    begun = world.now
    vms = [world.vm("web-0"), world.vm("web-1")]
    world.do(world.control.fault_storms.start(seed, vms, for_s=600, who="ann"))
    for _ in range(20):
        world.advance(90)
    entries = [entry for entry in world.store.history() if entry.kind == "fault"]
    return [f"{entry.at - begun:.0f} {entry.text}" for entry in entries]


def test_a_storm_has_the_same_effects_in_two_equal_labs(make_world: Callable[[], World]) -> None:
    one, other, third = make_world(), make_world(), make_world()
    assert run_storm(one) == run_storm(other)
    assert one.document("web-0") == other.document("web-0")
    assert run_storm(third, seed=8) != run_storm(make_world())


def test_the_history_says_when_a_storm_starts_and_when_its_last_fault_is_set(make_world: Callable[[], World]) -> None:
    world = make_world()
    lines = run_storm(world)
    assert lines[0].startswith("0 storm s1 with seed 7 set by ann: ")
    assert any(line.endswith("storm s1 is over: its last fault is set") for line in lines)
    assert world.control.faults.active.storms == ()
    assert all(" by storm s1" in line for line in lines if " set for " in line)


def storm_texts(world: World, verb: str) -> list[str]:
    return [entry.text for entry in world.store.history() if entry.text.startswith("storm ") and verb in entry.text]


@pytest.mark.parametrize("writes", [0, 1])
def test_a_storm_goes_on_exactly_if_the_history_says_that_it_was_set_and_not_cleared(
    make_world: Callable[[], World], writes: int
) -> None:
    world = make_world()
    storms = world.control.fault_storms
    world.store.fail_next(Unavailable("the disk is full"), after=writes)  # type: ignore[attr-defined]
    with suppress(Unavailable):
        world.do(storms.start(7, [world.vm("web-0")], for_s=600, who="ann"))
    assert len(world.control.faults.active.storms) == len(storm_texts(world, "set by ann"))
    with suppress(Unavailable):
        world.do(storms.clear(["s1"], who="bob"))
    ended = len(storm_texts(world, "cleared by bob"))
    assert len(world.control.faults.active.storms) == len(storm_texts(world, "set by ann")) - ended


@pytest.mark.parametrize("writes", range(4))
def test_a_storm_whose_last_fault_is_set_is_over_in_the_history_after_a_crash_at_any_write(
    make_world: Callable[[], World], writes: int
) -> None:
    world = make_world()
    world.do(world.control.fault_storms.start(7, [world.vm("web-0")], for_s=5, who="ann"))
    assert len(world.control.faults.active.storms[0].faults) == 1
    world.store.fail_next(Unavailable("the disk is full"), after=writes)  # type: ignore[attr-defined]
    with suppress(Unavailable):
        world.do(world.control.fault_storms.reconcile())
    assert len(world.control.faults.active.storms) == 1 - len(storm_texts(world, "is over"))


def test_a_storm_continues_after_a_restart(make_world: Callable[[], World]) -> None:
    uninterrupted, restarted = make_world(), make_world()
    run_storm(uninterrupted)
    restarted.do(
        restarted.control.fault_storms.start(7, [restarted.vm("web-0"), restarted.vm("web-1")], for_s=600, who="ann")
    )
    for _ in range(20):
        restarted.advance(90)
        restarted.restart()

    def kinds(world: World) -> list[str]:
        texts = (entry.text for entry in world.store.history() if entry.kind == "fault")
        return [text.partition("(")[2].partition(")")[0] for text in texts if " set for " in text]

    assert kinds(restarted) == kinds(uninterrupted)


def test_a_cleared_storm_sets_no_more_faults(make_world: Callable[[], World]) -> None:
    world = make_world()
    storm = world.do(world.control.fault_storms.start(7, [world.vm("web-0")], for_s=600, who="ann"))
    world.settle()
    ended = world.do(world.control.fault_storms.clear([storm.id], who="bob"))
    assert [storm.id for storm in ended] == ["s1"]
    count = len([e for e in world.store.history() if " set for " in e.text])
    world.advance(3600)
    assert len([e for e in world.store.history() if " set for " in e.text]) == count


def test_a_storm_skips_a_vm_that_was_removed(make_world: Callable[[], World]) -> None:
    world = make_world()
    vm = world.vm("web-0")
    world.do(world.control.fault_storms.start(7, [vm], for_s=600, who="ann"))
    world.do(world.control.fleet.apply_change(FleetChange(removed=(vm,)), who="ann"))
    world.advance(3600)
    texts = [entry.text for entry in world.store.history() if " skipped " in entry.text]
    assert texts
    assert texts[-1].endswith("for web-0: VM 'web-0' does not exist any more")


def test_a_storm_says_in_the_history_what_to_do_about_a_fault_that_it_skips(make_world: Callable[[], World]) -> None:
    world = make_world()
    vm = world.vm("web-0")
    spec = FaultSpec(kind=FaultKind.THROTTLED, target=FaultTarget(name=vm.name, vm=vm))
    for _ in range(1000):
        world.do(world.control.faults.set(spec, who="ann"))
    world.do(world.control.fault_storms.start(7, [vm], for_s=600, who="ann"))
    world.advance(3600)
    texts = [entry.text for entry in world.store.history() if " skipped " in entry.text]
    assert texts
    assert texts[0].endswith(" for web-0: 1000 faults are active, and that is the maximum: clear some of them")


def test_a_storm_without_duration_or_vms_is_rejected(make_world: Callable[[], World]) -> None:
    world = make_world()
    with pytest.raises(Rejected, match="a storm cannot last 0 s: give more than 0 s, up to 1 d"):
        world.do(world.control.fault_storms.start(7, [world.vm("web-0")], for_s=0, who="ann"))
    with pytest.raises(Refused, match="a storm needs a VM to hit"):
        world.do(world.control.fault_storms.start(7, [], for_s=60, who="ann"))
