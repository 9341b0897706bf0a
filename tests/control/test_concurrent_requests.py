"""Things asked for at the same moment, while the store takes its time: none undoes another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from forewarn.clock import ClockSetting
from forewarn.control.executor import ActExecutor
from forewarn.control.lab_clock import load_clock_setting
from forewarn.core.decision import Policy
from forewarn.core.event import Act, Event, EventState
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.hypervisor.interface import ActDone
from forewarn.store.interface import LastPoll
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
def test_a_speed_set_while_the_clock_is_advanced_moves_no_time_back(world: World, speed_first: bool) -> None:
    """Spec §12: the offset is stored, and never moves back."""
    labtime = world.control.lab_clock
    before = world.now

    async def both() -> None:
        asked = [labtime.advance(7 * DAY_S), labtime.set_speed(60)]
        await asyncio.gather(*(reversed(asked) if speed_first else asked))

    world.do(both())

    setting = load_clock_setting(world.store)
    assert setting is not None
    assert (setting.lab_at, setting.speed) == (before + 7 * DAY_S, 60)


def test_a_vm_whose_poll_is_held_counts_as_polling_while_days_are_skipped() -> None:
    """Spec §12, §4.4: a request may be held for 300 s, and whoever waits so long has not fallen silent."""
    small = World(hosts=[a_host("h1")], vms=[a_vm("web-0")], policy=Policy())
    vm = small.vm("web-0")
    small.do(small.control.guests.enable_scope_of(vm.key))
    asked = LastPoll(vm=vm.key, scope_id=vm.scope_id, at=small.now, version="2020-07-01", count=1)
    small.do(small.store.record_observations([asked], []))
    small.clock.apply_setting(ClockSetting(lab_at=small.now + 299, real_at=0.0, speed=0.0))

    small.advance(2 * DAY_S)

    assert small.scope("web-0").is_enabled
    small.close()


def test_an_id_that_is_no_text_was_never_an_event(world: World) -> None:
    """Spec §5.2: 400, not a mistake of ours; JSON can spell half of a character, and no store can look for it."""
    assert world.approve("web-0", "\ud800") == "\ud800"


def test_a_rollout_longer_than_the_history_is_kept_reaches_every_vm_once() -> None:
    """Spec §6.2: update domain by update domain; what was pruned meanwhile is not begun again."""
    numbers = range(5)
    world = World(
        hosts=[a_host(f"h{number}") for number in numbers],
        vms=[a_vm(f"db-{n}", availability_set="db", update_domain=n, host=f"h{n}") for n in numbers],
    )
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=tuple(f"h{number}" for number in numbers))
    request = world.do(world.control.requests.start_rollout(rollout, who="ann", notice_s=40 * DAY_S))

    for _ in range(22):
        world.advance(10 * DAY_S)
        world.do(world.store.prune(world.now - 90 * DAY_S))

    ended = world.store.request(request.id)
    assert ended is not None
    assert ended.rollout is not None
    assert ended.rollout.progress is RolloutState.COMPLETED
    assert [world.ledger.vm_history(world.vm(f"db-{n}").key).boots for n in numbers] == [1] * 5
    world.close()


def test_an_executor_that_has_its_hands_full_asks_for_no_turn_before_it_has_one_free() -> None:
    """Otherwise the loop would spin for as long as the acts take."""

    class Slow:
        def __init__(self) -> None:
            self.ended = asyncio.Event()

        async def perform(self, act: Act, now: float) -> ActDone:
            await self.ended.wait()
            return ActDone(ok=True)

        async def close(self) -> None:
            pass

    async def story(event: Event) -> None:
        hypervisor = Slow()
        executor = ActExecutor(hypervisor=hypervisor, clock=small.clock, wake=lambda: None, max_concurrent=1)
        executor.add_acts(event)
        assert executor.next_due_at() == small.now
        assert executor.start_due_acts()
        assert executor.next_due_at() is None
        hypervisor.ended.set()
        await executor.wait_for_any()
        assert executor.next_due_at() == small.now
        await executor.close()

    small = World(hosts=[a_host("h1")], vms=[a_vm("web-0"), a_vm("web-1")])
    (started, other) = small.ask(RequestedOperation.POWER_OFF, "web-0", "web-1")
    acts = tuple(act for event in (started, other) for act in event.acts)
    assert len(acts) == 2
    small.do(story(_owing(started, acts)))
    small.close()


def _owing(event: Event, acts: tuple[Act, ...]) -> Event:
    return replace(event, status=EventState.STARTED, acts=tuple(replace(act, outcome=None) for act in acts))
