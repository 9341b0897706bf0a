"""Planned work never takes two update domains of a scope at a time (spec §6.2, §13.1), however much is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from forewarn.core.budgets import make_budget
from forewarn.core.event import EventState
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.core.standing_order import StandingOrder
from forewarn.core.waves import make_waves
from forewarn.core.windows import make_calendar
from forewarn.machines.simulated import DurationRule, SimulatedBehaviour
from tests.properties.commit_checks import CommitChecker
from tests.support.world import World, a_host, a_vm

DOMAINS = 3


@pytest.fixture
def world() -> Iterator[World]:
    """Three update domains of one scope, on two hosts, whose maintenance takes ten minutes each."""
    vms = [a_vm(f"web-{n}", host=f"h{n % 2}", availability_set="web", update_domain=n % DOMAINS) for n in range(6)]
    made = World(hosts=[a_host("h0"), a_host("h1"), a_host("h2")], vms=vms)
    made.hypervisor.set_behaviour(SimulatedBehaviour((DurationRule(seconds=600.0),)))
    yield made
    made.close()


def roll_out(world: World, rollout: Rollout) -> None:
    world.do(world.control.rollout_requests.start(rollout, who="op"))


def over_hosts(impact: RolloutImpact) -> Callable[[World], None]:
    return lambda world: roll_out(world, Rollout(impact=impact, hosts=("h0", "h1"), max_failures=0))


def over_scope(impact: RolloutImpact) -> Callable[[World], None]:
    return lambda world: roll_out(world, Rollout(impact=impact, scope_id=world.vm("web-0").scope_id, max_failures=0))


def in_waves(world: World) -> None:
    roll_out(world, Rollout(impact=RolloutImpact.UPDATE, everything=True, waves=make_waves("2", [50]), max_failures=0))


def in_a_window(world: World) -> None:
    calendar = make_calendar(["12:20 2h"], [], None)
    roll_out(world, Rollout(impact=RolloutImpact.REBOOT, everything=True, calendar=calendar, max_failures=0))


def standing_order(world: World) -> None:
    order = StandingOrder(within_s=86_400.0, impact=RolloutImpact.UPDATE, set_by="op", set_at=world.now, at_once=2)
    world.do(world.control.standing_order.set_order(order))


def restarts(world: World) -> None:
    vms = [world.vm("web-0"), world.vm("web-1")]
    world.do(world.control.requests.request_for_vms(RequestedOperation.RESTART, vms, who="ann"))


WORK = {
    "updates of hosts": over_hosts(RolloutImpact.UPDATE),
    "reboots of hosts": over_hosts(RolloutImpact.REBOOT),
    "migrations from hosts": over_hosts(RolloutImpact.MIGRATE),
    "reboots of the scope": over_scope(RolloutImpact.REBOOT),
    "updates in waves": in_waves,
    "reboots in a window": in_a_window,
    "a standing order": standing_order,
    "restarts by a user": restarts,
}
PAIRS = [(one, other) for one in WORK for other in WORK if one != "restarts by a user"]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda name: name.replace(" ", "-"))
def test_two_pieces_of_planned_work_take_one_update_domain_at_a_time(world: World, one: str, other: str) -> None:
    """Each event is approved as soon as VMs see it, which is when most of them are ready together."""
    checker = CommitChecker(world.policy)
    checker.follow(world.store, None)
    WORK[one](world)
    WORK[other](world)
    domains: set[int] = set()
    for _ in range(40):
        world.settle()
        for event in world.events(EventState.SCHEDULED):
            world.do(world.control.requests.approve(event.id, who="op"))
        world.settle()
        started = [e for e in world.events(EventState.STARTED) if e.rules.planned]
        assert len({event.update_domain for event in started}) <= 1
        domains |= {event.update_domain for event in started}
        world.advance(300)
    assert checker.violations == []
    assert domains == set(range(DOMAINS)), "the work gets done"


def test_maintenance_that_a_user_starts_early_waits_for_the_update_domain_under_way(world: World) -> None:
    over_hosts(RolloutImpact.UPDATE)(world)
    over_scope(RolloutImpact.REBOOT)(world)
    checker = CommitChecker(world.policy)
    checker.follow(world.store, None)
    world.settle()
    for name in ("web-0", "web-1", "web-2"):
        pending = [e for e in world.events(EventState.SCHEDULED) if name in e.vms]
        if pending:
            world.do(world.control.requests.perform_maintenance([world.vm(name)], who="ann"))
    world.advance(3 * 86_400)
    assert checker.violations == []
    ended = {request.rollout.progress for request in world.store.requests() if request.rollout is not None}
    assert ended == {RolloutState.COMPLETED}


def test_a_budget_does_not_let_a_second_update_domain_begin(world: World) -> None:
    world.do(world.control.budgets.set_budget(make_budget("all", max_vms=4), who="op"))
    checker = CommitChecker(world.policy)
    checker.follow(world.store, None)
    over_scope(RolloutImpact.REBOOT)(world)
    over_scope(RolloutImpact.UPDATE)(world)
    world.advance(86_400)
    assert checker.violations == []
