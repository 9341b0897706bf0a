"""Coarse timers: each item is called once, not before its time, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from forewarn.metadata.server_state import CoarseTimers
from tests.metadata.conftest import RunScenario

RESOLUTION_S = 0.01
MAX_PER_TURN = 200


class Calls:
    """Records which items were called, when, and how many in one turn of the event loop."""

    def __init__(self, expected: int, *, also: Callable[[Any], None] = lambda name: None) -> None:
        self.loop = asyncio.get_running_loop()
        self.table = CoarseTimers(self.loop, resolution_s=RESOLUTION_S, callback=self.call)
        self.expected, self.also = expected, also
        self.times: dict[Any, float] = {}
        self.turns: list[int] = []
        self.turn = 0
        self.all = asyncio.Event()

    def call(self, name: Any) -> None:
        assert name not in self.times, f"{name} was called twice"
        self.times[name] = self.loop.time()
        self.turns.append(self.turn)
        if len(self.times) == self.expected:
            self.all.set()
        self.also(name)

    async def count_turns(self) -> None:
        while not self.all.is_set():
            self.turn += 1
            await asyncio.sleep(0)


@pytest.fixture
def run_scenario(runner: asyncio.Runner) -> RunScenario:
    async def within(scenario: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.timeout(10):
            await scenario()

    return lambda scenario: runner.run(within(scenario))


def test_items_are_called_at_their_time_or_later(run_scenario: RunScenario) -> None:
    async def scenario() -> None:
        calls, now = Calls(6), asyncio.get_running_loop().time()
        times = {"later": now + 0.03, "past": now - 5, "soon": now + 0.01, "now": now}
        times |= {"between": now + 0.02, "as soon": now + 0.01}
        for name, at in times.items():
            calls.table.schedule(at, name)
        await calls.all.wait()
        assert all(calls.times[name] >= at for name, at in times.items())
        # Past and current times may share a slot; the order within a slot does not matter.
        assert list(calls.times)[-2:] == ["between", "later"]

    run_scenario(scenario)


def test_a_canceled_item_is_not_called(run_scenario: RunScenario) -> None:
    async def scenario() -> None:
        calls, now = Calls(2), asyncio.get_running_loop().time()
        slots = {name: calls.table.schedule(now + 0.01, name) for name in ("dropped", "kept")}
        alone = calls.table.schedule(now, "alone")
        calls.table.cancel(slots["dropped"], "dropped")
        calls.table.cancel(alone, "alone")
        calls.table.cancel(alone, "alone")
        calls.table.cancel(slots["kept"], "never there")
        calls.table.schedule(now + 0.03, "last")
        await calls.all.wait()
        assert list(calls.times) == ["kept", "last"]

    run_scenario(scenario)


def test_an_item_canceled_by_another_in_the_same_slot_is_not_called(run_scenario: RunScenario) -> None:
    async def scenario() -> None:
        other = {"a": "b", "b": "a", "last": "last"}
        calls = Calls(2, also=lambda name: calls.table.cancel(slots[other[name]], other[name]))
        now = asyncio.get_running_loop().time()
        slots = {name: calls.table.schedule(now + (0.03 if name == "last" else 0), name) for name in other}
        await calls.all.wait()
        assert list(calls.times) in (["a", "last"], ["b", "last"])

    run_scenario(scenario)


def test_many_items_of_one_slot_are_called_in_batches(run_scenario: RunScenario) -> None:
    async def scenario() -> None:
        calls = Calls(1000)
        at = asyncio.get_running_loop().time()
        for name in range(1000):
            calls.table.schedule(at, name)
        await calls.count_turns()
        batches = [calls.turns.count(turn) for turn in set(calls.turns)]
        assert max(batches) <= MAX_PER_TURN
        assert len(batches) >= 1000 / MAX_PER_TURN

    run_scenario(scenario)


def test_a_failing_callback_does_not_stop_the_others(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        calls = Calls(3, also=lambda name: 1 / (name != "bad"))
        at = asyncio.get_running_loop().time()
        for name in ("one", "bad", "two"):
            calls.table.schedule(at, name)
        await calls.all.wait()

    run_scenario(scenario)
    assert "'bad'" in caplog.text


def test_a_callback_may_schedule_another_item(run_scenario: RunScenario) -> None:
    async def scenario() -> None:
        def again(name: int) -> None:
            if name < 500:
                calls.table.schedule(at, name + 1)

        calls = Calls(501, also=again)
        at = asyncio.get_running_loop().time()
        calls.table.schedule(at, 0)
        await calls.count_turns()
        assert sorted(calls.times) == list(range(501))
        assert max(calls.turns.count(turn) for turn in set(calls.turns)) <= MAX_PER_TURN

    run_scenario(scenario)


def test_an_earlier_time_scheduled_later_is_not_missed(run_scenario: RunScenario) -> None:
    async def scenario() -> None:
        calls, now = Calls(1), asyncio.get_running_loop().time()
        calls.table.schedule(now + 3600, "in an hour")
        calls.table.schedule(now, "now")
        await calls.all.wait()
        assert list(calls.times) == ["now"]

    run_scenario(scenario)
