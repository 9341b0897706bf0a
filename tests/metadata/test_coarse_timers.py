"""One timer for many: each is called once, not before its moment, and nobody keeps others from their turn."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.metadata.coarse_timers import CoarseTimers

RESOLUTION_S = 0.01
PER_TURN = 200


class Calls:
    """Who was called, when, and how many of them in one turn of the loop."""

    def __init__(self, expected, *, also=lambda name: None):
        self.loop = asyncio.get_running_loop()
        self.table = CoarseTimers(self.loop, resolution_s=RESOLUTION_S, callback=self.call)
        self.expected, self.also = expected, also
        self.times, self.turns, self.turn = {}, [], 0
        self.all = asyncio.Event()

    def call(self, name):
        assert name not in self.times, f"{name} was called twice"
        self.times[name] = self.loop.time()
        self.turns.append(self.turn)
        if len(self.times) == self.expected:
            self.all.set()
        self.also(name)

    async def count_turns(self):
        while not self.all.is_set():
            self.turn += 1
            await asyncio.sleep(0)


@pytest.fixture
def tell(runner):
    async def within(scenario):
        async with asyncio.timeout(10):
            await scenario()

    return lambda scenario: runner.run(within(scenario))


def test_items_are_called_at_their_time_or_later(tell):
    async def scenario():
        calls, now = Calls(6), asyncio.get_running_loop().time()
        moments = {"later": now + 0.03, "past": now - 5, "soon": now + 0.01, "now": now}
        moments |= {"between": now + 0.02, "as soon": now + 0.01}
        for name, at in moments.items():
            calls.table.schedule(at, name)
        await calls.all.wait()
        assert all(calls.times[name] >= at for name, at in moments.items())
        # One in the past and one of now may share a ring, and within a ring the order does not matter.
        assert list(calls.times)[-2:] == ["between", "later"]

    tell(scenario)


def test_a_canceled_item_is_not_called(tell):
    async def scenario():
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

    tell(scenario)


def test_an_item_canceled_by_another_in_the_same_slot_is_not_called(tell):
    async def scenario():
        other = {"a": "b", "b": "a", "last": "last"}
        calls = Calls(2, also=lambda name: calls.table.cancel(slots[other[name]], other[name]))
        now = asyncio.get_running_loop().time()
        slots = {name: calls.table.schedule(now + (0.03 if name == "last" else 0), name) for name in other}
        await calls.all.wait()
        assert list(calls.times) in (["a", "last"], ["b", "last"])

    tell(scenario)


def test_many_items_of_one_slot_are_called_in_batches(tell):
    async def scenario():
        calls = Calls(1000)
        at = asyncio.get_running_loop().time()
        for name in range(1000):
            calls.table.schedule(at, name)
        await calls.count_turns()
        portions = [calls.turns.count(turn) for turn in set(calls.turns)]
        assert max(portions) <= PER_TURN
        assert len(portions) >= 1000 / PER_TURN

    tell(scenario)


def test_a_failing_callback_does_not_stop_the_others(tell, caplog):
    async def scenario():
        calls = Calls(3, also=lambda name: 1 / (name != "bad"))
        at = asyncio.get_running_loop().time()
        for name in ("one", "bad", "two"):
            calls.table.schedule(at, name)
        await calls.all.wait()

    tell(scenario)
    assert "'bad'" in caplog.text


def test_a_callback_may_schedule_another_item(tell):
    async def scenario():
        def again(name):
            if name < 500:
                calls.table.schedule(at, name + 1)

        calls = Calls(501, also=again)
        at = asyncio.get_running_loop().time()
        calls.table.schedule(at, 0)
        await calls.count_turns()
        assert sorted(calls.times) == list(range(501))
        assert max(calls.turns.count(turn) for turn in set(calls.turns)) <= PER_TURN

    tell(scenario)


def test_an_earlier_time_scheduled_later_is_not_missed(tell):
    async def scenario():
        calls, now = Calls(1), asyncio.get_running_loop().time()
        calls.table.schedule(now + 3600, "in an hour")
        calls.table.schedule(now, "now")
        await calls.all.wait()
        assert list(calls.times) == ["now"]

    tell(scenario)
