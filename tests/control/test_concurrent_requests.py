"""Concurrent requests on a slow store: none undoes another. Also limits of time and of the executor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from forewarn.base.clock import ClockSetting
from forewarn.base.times import RealTime
from forewarn.control.executor import ActExecutor, ActLimits
from forewarn.control.lab_clock import load_clock_setting
from forewarn.core.decision import Policy
from forewarn.core.event import Act, Event, EventState
from forewarn.core.history import LastPoll
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.machines.interface import ActDone
from forewarn.store.sqlite import SqliteStore
from tests.support.world import World, a_host, a_vm

DAY_S = 86400.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    hosts = [a_host(f"h{number}") for number in range(1, 4)]
    world = World(store=SqliteStore.open(tmp_path / "forewarn.db"), hosts=hosts, vms=[a_vm("web-0")])
    yield world
    world.close()


@pytest.mark.parametrize("speed_first", [False, True])
def test_setting_the_speed_while_the_clock_advances_never_moves_time_back(world: World, speed_first: bool) -> None:
    """Spec §12: the offset is stored, and never moves back."""
    lab_clock = world.control.lab_clock
    before = world.now

    async def both() -> None:
        calls = [lab_clock.advance(7 * DAY_S), lab_clock.set_speed(60)]
        await asyncio.gather(*(reversed(calls) if speed_first else calls))

    world.do(both())

    setting = load_clock_setting(world.store)
    assert setting is not None
    assert (setting.lab_at, setting.speed) == (before + 7 * DAY_S, 60)


def test_a_vm_whose_poll_is_held_counts_as_polling_while_the_clock_skips_days() -> None:
    """Spec §12, §4.4: a poll may be held for 300 s, and its VM counts as polling for that long."""
    world = World(hosts=[a_host("h1")], vms=[a_vm("web-0")], policy=Policy())
    vm = world.vm("web-0")
    world.do(world.control.guests.enable_scope_of(vm.key))
    last_poll = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=world.now, version="2020-07-01", count=1)
    world.do(world.store.record_observations([last_poll], []))
    world.clock.apply_setting(ClockSetting(lab_at=world.now + 299, real_at=RealTime(0.0), speed=0.0))

    world.advance(2 * DAY_S)

    assert world.scope("web-0").is_enabled
    world.close()


def test_an_event_id_that_is_not_valid_text_is_unknown(world: World) -> None:
    """Spec §5.2: 400, not 500. JSON can contain a lone surrogate, which no store can look up."""
    assert world.approve("web-0", "\ud800") == "\ud800"


def test_a_rollout_that_outlasts_the_kept_history_reaches_every_vm_once() -> None:
    """Spec §6.2: update domain by update domain; VMs whose old events are pruned are not repeated."""
    numbers = range(5)
    world = World(
        hosts=[a_host(f"h{number}") for number in numbers],
        vms=[a_vm(f"db-{n}", availability_set="db", update_domain=n, host=f"h{n}") for n in numbers],
    )
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=tuple(f"h{number}" for number in numbers))
    request = world.do(world.control.rollout_requests.start(rollout, who="ann", notice_s=40 * DAY_S))

    for _ in range(22):
        world.advance(10 * DAY_S)
        world.do(world.store.prune(world.now - 90 * DAY_S))

    assert world.rollout(request.id).progress is RolloutState.COMPLETED
    assert [world.ledger.vm_history(world.vm(f"db-{n}").key).boots for n in numbers] == [1] * 5
    world.close()


def test_a_full_executor_has_no_due_time_until_an_act_ends() -> None:
    """Otherwise the reconciler would spin for as long as the acts take."""

    class SlowHypervisor:
        def __init__(self) -> None:
            self.ended = asyncio.Event()

        async def perform(self, act: Act, now: float) -> ActDone:
            await self.ended.wait()
            return ActDone(ok=True)

        async def close(self) -> None:
            pass

    async def scenario(world: World, event: Event) -> None:
        hypervisor = SlowHypervisor()
        limits = ActLimits(overall=1)
        executor = ActExecutor(hypervisor=hypervisor, clock=world.clock, wake=lambda: None, limits=limits)
        executor.add_acts(event)
        assert executor.next_due_at() == world.now
        assert executor.start_due_acts()
        assert executor.next_due_at() is None
        hypervisor.ended.set()
        await executor.wait_for_any()
        assert executor.next_due_at() == world.now
        await executor.close()

    world = World(hosts=[a_host("h1")], vms=[a_vm("web-0"), a_vm("web-1")])
    (started, other) = world.ask(RequestedOperation.POWER_OFF, "web-0", "web-1")
    acts = tuple(act for event in (started, other) for act in event.acts)
    assert len(acts) == 2
    world.do(scenario(world, _with_unfinished_acts(started, acts)))
    world.close()


def _with_unfinished_acts(event: Event, acts: tuple[Act, ...]) -> Event:
    return replace(event, status=EventState.STARTED, acts=tuple(replace(act, outcome=None) for act in acts))
