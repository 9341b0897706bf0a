"""The standing order: every host is visited within its interval, the one that waits longest first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.core.budgets import make_budget
from forewarn.core.event import EventState
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.history import EntryKind
from forewarn.core.request import RolloutImpact, RolloutState
from forewarn.core.standing_order import HostVisit, StandingOrder, due_at, late_at, next_visits, order_warning
from forewarn.core.windows import make_calendar
from forewarn.errors import Refused, Rejected
from forewarn.machines.simulated import DurationRule, FailRule, SimulatedBehaviour
from forewarn.store.memory import MemoryStore
from tests.support.disturbed_calls import ServiceKilled
from tests.support.world import NOON, World, a_host, a_vm

A_DAY = 86_400.0
HOSTS = ("h0", "h1", "h2")


@pytest.fixture
def world() -> Iterator[World]:
    world = world_with()
    yield world
    world.close()


def world_with(*vms: Vm) -> World:
    """Three hosts with a VM each, and these VMs."""
    hosts = [a_host(host) for host in HOSTS]
    return World(hosts=hosts, vms=[*(a_vm(f"vm-{host[1]}", host=host) for host in HOSTS), *vms])


def give_order(world: World, **fields: Any) -> None:
    facts = {"within_s": 10 * A_DAY, "impact": RolloutImpact.UPDATE, "set_by": "ann", "set_at": world.now, **fields}
    world.do(world.control.standing_order.set_order(StandingOrder(**facts)))
    world.settle()


def visited(world: World) -> list[str]:
    """The hosts of the events, in the order in which they were published."""
    return [event.host for event in world.events()]


def visit_of(world: World, host: str) -> HostVisit:
    order = world.control.standing_order.order
    assert order is not None
    return order.visit(host)


def test_hosts_are_visited_one_after_the_other_and_again_before_the_interval_is_over(world: World) -> None:
    give_order(world)
    assert visited(world) == ["h0"]
    world.advance(2 * 3600)
    assert visited(world) == list(HOSTS)
    assert all(visit_of(world, host).visited_at is not None for host in HOSTS)
    world.advance(10 * A_DAY)
    assert visited(world) == [*HOSTS, *HOSTS]
    for host in HOSTS:
        first, second = (event.over_at for event in world.events() if event.host == host)
        assert first is not None
        assert second is not None
        assert second - first < 10 * A_DAY


def test_several_hosts_are_visited_at_once_if_the_order_says_so(world: World) -> None:
    give_order(world, at_once=2)
    assert visited(world) == ["h0", "h1"]


def test_visits_keep_to_windows_budgets_and_the_hold(world: World) -> None:
    world.do(world.control.budgets.set_budget(make_budget("all", max_vms=1), who="ann"))
    give_order(world, at_once=3, calendar=make_calendar(["02:00 1h"], [], None))
    assert len(world.events()) == 1
    world.advance(A_DAY)
    world.do(world.control.rollouts.holds.set_hold("an incident", who="ann"))
    held = len(world.events())
    world.advance(2 * A_DAY)
    assert len(world.events()) == held
    world.do(world.control.rollouts.holds.lift_hold(who="ann"))
    world.advance(3 * A_DAY)
    assert sorted(visited(world)) == list(HOSTS)


def test_a_visit_that_fails_is_noted_and_repeated(world: World) -> None:
    world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(vm="vm-0"),)))
    give_order(world)
    world.advance(3600)
    assert "vm-0" in visit_of(world, "h0").problem
    world.hypervisor.set_behaviour(SimulatedBehaviour())
    world.advance(2 * A_DAY)
    assert (visit_of(world, "h0").problem, visited(world).count("h0")) == ("", 2)


def test_a_host_that_exceeds_a_budget_does_not_keep_the_others_waiting() -> None:
    world = world_with(a_vm("vm-00", host="h0"))
    world.do(world.control.budgets.set_budget(make_budget("one", max_vms=1), who="ann"))
    give_order(world)
    world.advance(3 * 3600)
    assert visited(world) == ["h1", "h2"]
    assert "2 of its VMs on host h0 go together" in visit_of(world, "h0").problem
    world.advance(30 * A_DAY)
    assert visited(world).count("h1") == visited(world).count("h2") >= 4
    assert visit_of(world, "h0").failed_at == visit_of(world, "h0").asked_at  # it is given up at once
    world.do(world.control.budgets.set_budget(make_budget("one", max_vms=2), who="ann"))
    world.advance(2 * A_DAY)
    assert (visit_of(world, "h0").problem, "h0" in visited(world)) == ("", True)
    world.close()


def test_a_visit_that_publishes_nothing_for_a_day_is_given_up_and_repeated() -> None:
    stopped = a_vm("db", host="h2", power=PowerState.STOPPED, tags={"app": "db"})
    world = world_with(stopped, a_vm("db-0", host="h0", tags={"app": "db"}))
    world.do(world.control.budgets.set_budget(make_budget("db", max_vms=1, tag="app=db"), who="ann"))
    give_order(world)
    world.advance(A_DAY - 3600)
    assert visited(world) == []
    world.advance(3 * 3600)
    assert set(visited(world)) == {"h1", "h2"}
    assert "and db is" in visit_of(world, "h0").problem
    world.do(world.control.budgets.remove_budget("db", who="ann"))
    world.advance(2 * A_DAY)
    assert (visit_of(world, "h0").problem, "h0" in visited(world)) == ("", True)
    world.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_visit_does_not_end_because_of_a_hold(world: World, restarts: bool) -> None:
    """Even if the service starts again right after the hold was lifted."""
    world.do(world.control.budgets.set_budget(make_budget("all", max_vms=1), who="ann"))
    give_order(world, at_once=2)
    waiting = visit_of(world, "h1").request_id
    world.do(world.control.rollouts.holds.set_hold("an incident", who="ann"))
    world.advance(5 * A_DAY)
    world.do(world.control.rollouts.holds.lift_hold(who="ann"))
    if restarts:
        world.settle()
        world.restart()
    world.advance(2 * 3600)
    assert [event.host for event in world.store.events(request_id=waiting)] == ["h1"]


def test_a_paused_visit_does_not_keep_the_others_waiting_and_goes_on_when_it_resumes() -> None:
    later = a_vm("web-1", host="h0", availability_set="web", update_domain=1)
    world = world_with(a_vm("web-0", host="h0", availability_set="web"), later)
    give_order(world)
    paused = visit_of(world, "h0").request_id
    world.do(world.control.rollout_requests.change_state(paused, RolloutState.PAUSED, who="ann"))
    world.advance(600)
    assert set(visited(world)) == {"h0"}
    world.advance(3 * A_DAY)
    assert {"h1", "h2"} < set(visited(world))
    assert "web-1" not in [name for event in world.events() for name in event.vms]
    world.do(world.control.rollout_requests.change_state(paused, RolloutState.RUNNING, who="ann"))
    world.advance(3600)
    assert "web-1" in [name for event in world.store.events(request_id=paused) for name in event.vms]
    assert visit_of(world, "h0").visited_at is not None
    world.close()


def test_a_restart_of_the_service_neither_forgets_nor_repeats_a_visit(world: World) -> None:
    give_order(world)
    for _ in range(8):
        world.restart()
        world.settle()
        world.advance(20 * 60)
    assert visited(world) == list(HOSTS)


def test_a_crash_before_the_request_of_a_visit_repeats_the_request(world: World) -> None:
    give_order(world)
    service = world.control.standing_order
    assert service.order is not None
    lost = replace(service.order, visits={"h1": HostVisit(request_id="lost", asked_at=world.now)}, at_once=2)
    world.do(service._save(lost))
    world.settle()
    assert world.store.request("lost") is not None


def test_a_host_that_is_removed_is_forgotten_and_a_new_one_is_visited(world: World) -> None:
    from forewarn.control.fleet import FleetChange

    give_order(world)
    world.advance(2 * 3600)
    vm = world.vm("vm-2")
    change = FleetChange(removed=(vm,), removed_hosts=("h2",), hosts=(a_host("h9"),))
    world.do(world.control.fleet.apply_change(change, who="ann"))
    world.advance(3600)
    order = world.control.standing_order.order
    assert order is not None
    assert sorted(order.visits) == ["h0", "h1", "h9"]
    assert order.visit("h9").visited_at is not None


def test_the_host_that_waits_longest_is_next() -> None:
    impact = RolloutImpact.UPDATE
    visits = {host: HostVisit(visited_at=at, impact=impact) for host, at in (("a", 50.0), ("b", 20.0))}
    visits["d"] = HostVisit(request_id="x")
    order = StandingOrder(within_s=100.0, impact=impact, set_by="ann", set_at=0.0, visits=visits, at_once=3)
    assert next_visits(order, ["a", "b", "c", "d"], 135.0) == ["c", "b"]
    assert (due_at(order, "b"), late_at(order, "b"), late_at(order, "c")) == (100.0, 120.0, 100.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"within_s": 60.0}, "hosts cannot be visited within 1 min: give 1 h to 366 d"),
        ({"at_once": 0}, "0 hosts cannot be visited at once: give 1 to 1000"),
        ({"notice_s": 5.0}, "notice of 5 s is shorter than the 15 min a Freeze needs"),
    ],
)
def test_a_wrong_order_is_rejected_and_changes_nothing(world: World, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Rejected) as raised:
        give_order(world, **fields)
    assert message in str(raised.value)
    assert world.control.standing_order.order is None


def test_an_order_is_removed_and_its_visits_end(world: World) -> None:
    give_order(world)
    world.do(world.control.standing_order.remove_order(who="ann"))
    world.advance(A_DAY)
    assert visited(world) == ["h0"]
    with pytest.raises(Refused, match="there is no standing order"):
        world.do(world.control.standing_order.remove_order(who="ann"))


@pytest.mark.parametrize("applied", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("writes", [0, 1])
def test_an_order_is_in_force_exactly_if_the_history_has_its_entry_whenever_the_process_dies(
    world: World, writes: int, applied: bool
) -> None:
    assert isinstance(world.store, MemoryStore)
    service = world.control.standing_order
    order = StandingOrder(within_s=10 * A_DAY, impact=RolloutImpact.UPDATE, set_by="ann", set_at=world.now)
    world.store.fail_next(ServiceKilled(), after=writes, applied=applied)
    with suppress(ServiceKilled):
        world.do(service.set_order(order))
        world.do(service.remove_order(who="ann"))
    world.restart()
    found = [entry.text for entry in world.store.history() if entry.kind is EntryKind.STANDING_ORDER]
    assert found == ["standing order: visit every host within 10 d (update)", "standing order removed"][: len(found)]
    assert len(found) == writes + applied
    assert (world.control.standing_order.order is not None) == (len(found) == 1)


def test_an_order_that_is_removed_and_given_again_remembers_its_visits(world: World) -> None:
    give_order(world)
    world.advance(2 * 3600)
    assert visited(world) == list(HOSTS)
    at = visit_of(world, "h0").visited_at
    world.do(world.control.standing_order.remove_order(who="ann"))
    world.restart()
    assert world.control.standing_order.order is None
    world.advance(A_DAY)
    give_order(world)
    world.advance(A_DAY)
    assert visited(world) == list(HOSTS), "no host is due again"
    assert visit_of(world, "h0").visited_at == at
    world.advance(8 * A_DAY)
    assert visited(world).count("h0") == 2


def test_a_visit_that_ends_while_there_is_no_order_counts_for_the_next_one(world: World) -> None:
    give_order(world)
    world.do(world.control.standing_order.remove_order(who="ann"))
    world.advance(3600)
    (event,) = world.events()
    give_order(world)
    world.advance(3 * 3600)
    assert visit_of(world, "h0").visited_at == event.over_at
    assert visited(world) == list(HOSTS)


@pytest.mark.parametrize(
    "changed",
    [
        {"impact": RolloutImpact.REBOOT},
        {"calendar": make_calendar(["02:00 1h"], [], None)},
        {"notice_s": 7200.0},
    ],
)
def test_a_visit_under_the_rules_of_an_earlier_order_ends_and_begins_again(world: World, changed: Any) -> None:
    give_order(world)
    old = visit_of(world, "h0").request_id
    give_order(world, **changed)
    assert [event.is_withdrawn for event in world.store.events(request_id=old)] == [True]
    new = visit_of(world, "h0").request_id
    assert new not in ("", old)
    rollout, order = world.rollout(new), world.control.standing_order.order
    assert order is not None
    assert (rollout.impact, rollout.calendar) == (order.impact, order.calendar)
    assert visit_of(world, "h0").problem == ""
    assert len(world.events(EventState.SCHEDULED)) == 1, "never more than one visit at once"


def test_a_visit_goes_on_if_a_new_order_has_the_same_rules(world: World) -> None:
    give_order(world)
    old = visit_of(world, "h0").request_id
    give_order(world, within_s=20 * A_DAY)
    assert visit_of(world, "h0").request_id == old


def test_a_visit_with_another_impact_does_not_count_for_a_new_order(world: World) -> None:
    give_order(world)
    world.advance(2 * 3600)
    assert visited(world) == list(HOSTS)
    world.do(world.control.standing_order.remove_order(who="ann"))
    give_order(world, impact=RolloutImpact.REBOOT)
    order = world.control.standing_order.order
    assert order is not None
    assert [order.visited_at(host) for host in HOSTS] == [None, None, None]
    assert [late_at(order, host) for host in HOSTS] == [world.now + 10 * A_DAY] * 3
    world.restart()
    world.advance(A_DAY)
    assert visited(world) == [*HOSTS, *HOSTS]
    assert [event.rules.kind for event in world.events()][3:] == ["Reboot"] * 3


def test_a_visit_that_finishes_after_an_order_with_another_impact_does_not_count_for_it(world: World) -> None:
    world.hypervisor.set_behaviour(SimulatedBehaviour((DurationRule(seconds=600.0),)))
    give_order(world, at_once=3)
    world.do(world.control.standing_order.remove_order(who="ann"))
    world.advance(3600)  # all three visits end
    give_order(world, impact=RolloutImpact.REBOOT, at_once=3)
    assert sorted(event.host for event in world.events(EventState.SCHEDULED)) == list(HOSTS)


def test_a_started_visit_of_an_earlier_order_finishes_before_the_host_is_visited_again(world: World) -> None:
    world.hypervisor.set_behaviour(SimulatedBehaviour((DurationRule(seconds=600.0),)))
    give_order(world)
    world.advance(15 * 60)
    (started,) = world.events(EventState.STARTED)
    give_order(world, impact=RolloutImpact.REBOOT)
    assert world.events(EventState.SCHEDULED) == []
    world.advance(601)
    assert [event.host for event in world.events(EventState.SCHEDULED)] == [started.host]


NIGHTLY = make_calendar(["02:00 1h"], [], None)
ALWAYS = make_calendar(["00:00 24h"], [], None)


@pytest.mark.parametrize(
    ("fields", "domains", "warning"),
    [
        ({}, [1] * 90, ""),
        ({}, [], ""),
        (
            {},
            [1] * 100,
            "at most 95 of 100 hosts with VMs can be visited within 1 d: an update domain of a host takes at least "
            "15 min 9 s, and the order visits 1 at a time; give more time or more hosts at once",
        ),
        ({"at_once": 2}, [1] * 100, ""),
        ({}, [4] * 24, "at most 23 of 24 hosts"),
        ({"within_s": 10 * A_DAY, "calendar": NIGHTLY}, [1] * 40, ""),
        (
            {"within_s": 10 * A_DAY, "calendar": NIGHTLY},
            [1] * 41,
            "at most 40 of 41 hosts with VMs can be visited within 10 d: an update domain of a host takes at least "
            "15 min 9 s, within its windows, and the order visits 1 at a time; give more time, "
            "longer windows or more hosts at once",
        ),
        ({"notice_s": 7200.0, "calendar": NIGHTLY, "within_s": 10 * A_DAY}, [1] * 41, "at most 10 of 41 hosts"),
        ({"within_s": 366 * A_DAY}, [1] * 34_788, ""),
        ({"within_s": 366 * A_DAY}, [1] * 34_789, "at most 34788 of 34789 hosts"),
        ({"within_s": 366 * A_DAY, "calendar": ALWAYS}, [1] * 100_000, "at most 34788 of 100000 hosts"),
    ],
)
def test_an_order_with_too_many_hosts_warns_with_numbers(fields: Any, domains: list[int], warning: str) -> None:
    facts = {"within_s": A_DAY, "impact": RolloutImpact.UPDATE, "set_by": "ann", "set_at": NOON, **fields}
    found = order_warning(StandingOrder(**facts), domains, NOON)
    assert found.startswith(warning)
    assert bool(found) == bool(warning)


def test_the_warning_counts_hosts_by_the_update_domains_on_them() -> None:
    """Three update domains of a scope on one host follow one another, and an hour has time for three in all."""
    vms = [a_vm(f"web-{n}", host="h0", availability_set="web", update_domain=n) for n in range(3)]
    world = world_with(*vms)
    give_order(world, within_s=3600.0)
    assert world.control.standing_order.warning().startswith("at most 2 of 3 hosts with VMs can be visited within 1 h")
    world.do(world.control.standing_order.remove_order(who="ann"))
    assert world.control.standing_order.warning() == ""
    world.close()
