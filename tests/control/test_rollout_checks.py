"""When a rollout is checked: once for many events that end together, and soon in any case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from forewarn.core.event import EventState
from forewarn.core.request import MaintenanceRequest, PlannedEvent, Rollout, RolloutImpact, RolloutState
from forewarn.store.memory import MemoryStore
from tests.support.world import World, a_host, a_vm


class CountingStore(MemoryStore):
    """Counts how often the planned events of each rollout are read, which happens once per check."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: Counter[str] = Counter()

    def planned(self, *, request_id: str | None = None) -> list[PlannedEvent]:
        self.checks[request_id or ""] += 1
        return super().planned(request_id=request_id)


@pytest.mark.parametrize("count", [100, 600])
def test_the_number_of_checks_of_a_rollout_does_not_grow_with_its_vms(count: int) -> None:
    store = CountingStore()
    hosts = [a_host(f"h{number}") for number in range(10)]
    world = World(store=store, hosts=hosts, vms=[a_vm(f"web-{n}", host=f"h{n % 10}") for n in range(count)])
    rollout = _start_rollout(world, *(host.name for host in hosts))

    world.advance(3600)

    assert world.rollout(rollout.id).progress is RolloutState.COMPLETED
    assert len(world.events(EventState.OVER)) == count
    assert store.checks[rollout.id] <= 8
    world.close()


@pytest.fixture
def world() -> Iterator[World]:
    """A rollout that has published the first of two update domains, whose event is over."""
    hosts = [a_host("h1"), a_host("h2")]
    vms = [a_vm(f"web-{n}", host=f"h{n + 1}", availability_set="web", update_domain=n) for n in (0, 1)]
    world = World(hosts=hosts, vms=vms)
    _start_rollout(world, "h1", "h2")
    world.settle()
    (event,) = world.events()
    world.do(world.control.requests.withdraw(event.id, who="ann"))
    yield world
    world.close()


def test_the_next_wave_waits_for_due_acts_but_not_for_long(world: World) -> None:
    rollouts = world.control.rollouts
    assert not world.do(rollouts.reconcile(acts_are_due=True))

    world.clock.apply_setting(world.clock.setting_after_jump(world.now + 9.9))
    assert not world.do(rollouts.reconcile(acts_are_due=True))
    world.clock.apply_setting(world.clock.setting_after_jump(world.now + 0.2))
    assert world.do(rollouts.reconcile(acts_are_due=True))
    assert [planned.vms for planned in world.store.planned()] == [("web-1",)]


def test_the_next_wave_is_planned_at_once_if_no_act_is_due(world: World) -> None:
    assert world.do(world.control.rollouts.reconcile(acts_are_due=False))
    assert [planned.vms for planned in world.store.planned()] == [("web-1",)]


def _start_rollout(world: World, *hosts: str) -> MaintenanceRequest:
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=hosts, max_failures=1)
    return world.do(world.control.rollout_requests.start(rollout, who="ann"))
