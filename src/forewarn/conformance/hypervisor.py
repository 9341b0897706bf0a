"""The conformance suite for implementations of `Hypervisor`.

Subclass it in a test module, and define how to open your hypervisor and how to count effects from outside; pytest
collects the tests:

    class TestMine(HypervisorConformance):
        async def open(self) -> Hypervisor: ...
        def effects(self, act: Act) -> int: ...
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from forewarn.core.cause import Verb
from forewarn.core.event import Act, act_id
from forewarn.errors import Unavailable
from forewarn.machines.interface import ActDone, ActUnderWay, Hypervisor

_MAX_PERFORM_CALLS = 1000  # calls after which an act counts as never done


class HypervisorConformance(ABC):
    """The tests that every `Hypervisor` must pass. Subclass it and define `open` and `effects`.

    pytest collects the tests of the subclass; they run event loops of their own, without a plugin. Override `act` (to
    name a VM of yours), `wait_until` (if acts take real time) and `start_time` (the time of the first call, in seconds
    since 1970) if your hypervisor needs that.
    """

    start_time = 1_700_000_000.0  # the `now` of the first `perform`, in seconds since 1970; may be overridden

    @abstractmethod
    async def open(self) -> Hypervisor:
        """Open and return the hypervisor under test; the suite closes it.

        The first call in a test must return one that knows no acts, because tests use the same act ids. A later call in
        the same test comes after the previous hypervisor was closed, perhaps on another event loop, and must find the
        state that this one left.
        """

    @abstractmethod
    def effects(self, act: Act) -> int:
        """Return how often the act, found by its id, took effect on its VM, such as how often the VM rebooted.

        Count from outside the hypervisor: the method is called while none is open. Only effects in the present test
        count.
        """

    async def wait_until(self, at: float) -> float:
        """Wait until the time `at` (seconds since 1970) and return the time then.

        Here it returns `at` at once, as virtual time allows. If acts take real time, override it to wait.
        """
        return at

    def act(self, verb: Verb, event_id: str = "6D9F3C1A-0000-4000-8000-000000000001") -> Act:
        """Return an act with this verb for the hypervisor to perform, on VM `vm-1` of host `host-1`.

        Each event id leads to another act id, and the verb does not change that; a migration or redeploy goes to
        `host-2`. Override it to name a VM of yours.
        """
        to_host = "host-2" if verb.rules.moves else ""
        return Act(
            id=act_id(event_id, "vm-1"),
            vm="s/g/vm-1",
            name="vm-1",
            verb=verb,
            event_id=event_id,
            from_host="host-1",
            to_host=to_host,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Hypervisor]:
        """Open the hypervisor under test for an `async with` block, which gets it; close it at the end."""
        hypervisor = await self.open()
        try:
            yield hypervisor
        finally:
            await hypervisor.close()

    async def perform_until_done(self, hypervisor: Hypervisor, act: Act, now: float) -> tuple[ActDone, float]:
        """Call `perform` again and again, as the service does, until the act is done; return (result, time).

        `now` is the time of the first call in seconds since 1970; the next one is at the time that ActUnderWay names,
        through `wait_until`. After Unavailable it tries again a second later. The returned time is that of the last
        call. Raises AssertionError after 1000 calls, or if ActUnderWay names a time that is not in the future.
        """
        for _ in range(_MAX_PERFORM_CALLS):
            try:
                answer = await hypervisor.perform(act, now)
            except Unavailable:
                now = await self.wait_until(now + 1)
                continue
            if isinstance(answer, ActDone):
                return answer, now
            assert answer.at > now, f"ActUnderWay({answer.at}) at {now}: it must name a time in the future"
            now = await self.wait_until(answer.at)
        raise AssertionError(f"act {act.id!r} was not done after {_MAX_PERFORM_CALLS} calls of perform")

    def test_every_verb_can_be_performed(self) -> None:
        """Performs an act of each verb until it is done: each succeeds, and takes effect exactly once.

        The acts are all on one VM, in the order of `Verb`, even after it was deleted; the hypervisor is opened anew for
        each.
        """

        async def scenario(verb: Verb) -> None:
            async with self.opened() as hypervisor:
                done, _ = await self.perform_until_done(hypervisor, self.act(verb, f"event-{verb}"), self.start_time)
            assert done.ok, f"{verb}: {done.note}"
            assert self.effects(self.act(verb, f"event-{verb}")) == 1, verb

        for verb in Verb:
            _run(scenario(verb))

    def test_performing_an_act_again_before_it_is_done_changes_nothing(self) -> None:
        """Calls `perform` four times in a row with the same `now`, then until the act is done: one effect.

        Each ActUnderWay must name a time in the future. Unavailable at one of the four calls fails the test.
        """
        act = self.act(Verb.REBOOT)

        async def scenario() -> None:
            async with self.opened() as hypervisor:
                answers = [await hypervisor.perform(act, self.start_time) for _ in range(4)]
                ahead = [answer.at > self.start_time for answer in answers if isinstance(answer, ActUnderWay)]
                assert all(ahead), f"{answers}: ActUnderWay must name a time in the future"
                await self.perform_until_done(hypervisor, act, self.start_time)

        _run(scenario())
        assert self.effects(act) == 1

    def test_a_finished_act_returns_the_same_result_again(self) -> None:
        """Calls `perform` twice more after the act is done: the results are equal, and it took effect once."""
        act = self.act(Verb.REDEPLOY)

        async def scenario() -> None:
            async with self.opened() as hypervisor:
                done, now = await self.perform_until_done(hypervisor, act, self.start_time)
                assert await hypervisor.perform(act, now) == done
                assert await hypervisor.perform(act, await self.wait_until(now + 1)) == done

        _run(scenario())
        assert self.effects(act) == 1

    def test_concurrent_calls_for_one_act_take_effect_once(self) -> None:
        """Calls `perform` five times concurrently, then until the act is done: it takes effect once.

        Unavailable at one of the five calls fails the test.
        """
        act = self.act(Verb.REBOOT)

        async def scenario() -> None:
            async with self.opened() as hypervisor:
                await asyncio.gather(*(hypervisor.perform(act, self.start_time) for _ in range(5)))
                await self.perform_until_done(hypervisor, act, self.start_time)

        _run(scenario())
        assert self.effects(act) == 1

    def test_two_acts_on_one_vm_both_take_effect(self) -> None:
        """Performs two acts of different events on one VM, one after the other: each takes effect once."""
        acts = [self.act(Verb.REBOOT, "event-1"), self.act(Verb.REBOOT, "event-2")]

        async def scenario() -> None:
            async with self.opened() as hypervisor:
                _, now = await self.perform_until_done(hypervisor, acts[0], self.start_time)
                await self.perform_until_done(hypervisor, acts[1], now)

        _run(scenario())
        assert [self.effects(act) for act in acts] == [1, 1]

    def test_an_act_under_way_survives_reopening(self) -> None:
        """Begins an act, opens the hypervisor again and completes it there: it succeeds and takes effect once.

        It begins with one call of `perform`, which may also complete the act, but must not raise Unavailable.
        """
        act = self.act(Verb.REDEPLOY)

        async def scenario() -> None:
            async with self.opened() as hypervisor:
                await hypervisor.perform(act, self.start_time)
            async with self.opened() as hypervisor:
                done, _ = await self.perform_until_done(hypervisor, act, self.start_time)
            assert done.ok, done.note

        _run(scenario())
        assert self.effects(act) == 1

    def test_a_finished_act_survives_reopening(self) -> None:
        """Completes an act and opens the hypervisor again: `perform` returns an equal result, without effect."""
        act = self.act(Verb.REBOOT)

        async def scenario() -> None:
            async with self.opened() as hypervisor:
                done, now = await self.perform_until_done(hypervisor, act, self.start_time)
            async with self.opened() as hypervisor:
                assert await hypervisor.perform(act, now) == done

        _run(scenario())
        assert self.effects(act) == 1

    def test_a_hypervisor_can_be_closed_twice(self) -> None:
        """Calls `close` twice on an open hypervisor: the second call raises nothing."""

        async def scenario() -> None:
            hypervisor = await self.open()
            await hypervisor.close()
            await hypervisor.close()

        _run(scenario())


def _run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)
