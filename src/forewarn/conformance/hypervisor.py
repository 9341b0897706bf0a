"""The conformance suite for implementations of `Hypervisor`.

Subclass it in a test module, say how yours is opened and how an effect is counted from outside; pytest does the
rest:

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
from forewarn.hypervisor.interface import ActDone, ActUnderWay, Hypervisor

_MOVING_VERBS = (Verb.MIGRATE, Verb.REDEPLOY)
_MAX_PERFORM_CALLS = 1000  # how often an act is asked after before it counts as never done


class HypervisorConformance(ABC):
    start_time = 1_700_000_000.0

    @abstractmethod
    async def open(self) -> Hypervisor:
        """Yours; opened again within one test, it finds what it did before."""

    @abstractmethod
    def effects(self, act: Act) -> int:
        """How often the act took effect, as seen from outside; asked when no hypervisor is open."""

    async def wait_until(self, at: float) -> float:
        """The time once it is `at` or later. Jumps; yours waits if its acts take real time."""
        return at

    def act(self, verb: Verb, event_id: str = "6D9F3C1A-0000-4000-8000-000000000001") -> Act:
        """An act on a VM that yours may touch."""
        to_host = "host-2" if verb in _MOVING_VERBS else ""
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
        hypervisor = await self.open()
        try:
            yield hypervisor
        finally:
            await hypervisor.close()

    async def perform_until_done(self, hypervisor: Hypervisor, act: Act, now: float) -> tuple[ActDone, float]:
        """Perform the act as the executor does, until it is done; and when that was."""
        for _ in range(_MAX_PERFORM_CALLS):
            try:
                answer = await hypervisor.perform(act, now)
            except Unavailable:
                now = await self.wait_until(now + 1)
                continue
            if isinstance(answer, ActDone):
                return answer, now
            assert answer.at > now, f"Later({answer.at}) at {now}: it must name a time to come"
            now = await self.wait_until(answer.at)
        raise AssertionError(f"act {act.id!r} was not done after {_MAX_PERFORM_CALLS} performs")

    def test_every_verb_can_be_performed(self) -> None:
        async def story(verb: Verb) -> None:
            async with self.opened() as hypervisor:
                done, _ = await self.perform_until_done(hypervisor, self.act(verb, f"event-{verb}"), self.start_time)
            assert done.ok, f"{verb}: {done.note}"
            assert self.effects(self.act(verb, f"event-{verb}")) == 1, verb

        for verb in Verb:
            _run(story(verb))

    def test_asking_again_before_its_time_changes_nothing(self) -> None:
        act = self.act(Verb.REBOOT)

        async def story() -> None:
            async with self.opened() as hypervisor:
                answers = [await hypervisor.perform(act, self.start_time) for _ in range(4)]
                ahead = [answer.at > self.start_time for answer in answers if isinstance(answer, ActUnderWay)]
                assert all(ahead), f"{answers}: Later must name a time to come"
                await self.perform_until_done(hypervisor, act, self.start_time)

        _run(story())
        assert self.effects(act) == 1

    def test_an_act_that_is_done_stays_done_and_says_the_same(self) -> None:
        act = self.act(Verb.REDEPLOY)

        async def story() -> None:
            async with self.opened() as hypervisor:
                done, now = await self.perform_until_done(hypervisor, act, self.start_time)
                assert await hypervisor.perform(act, now) == done
                assert await hypervisor.perform(act, await self.wait_until(now + 1)) == done

        _run(story())
        assert self.effects(act) == 1

    def test_performs_at_the_same_moment_take_effect_once(self) -> None:
        act = self.act(Verb.REBOOT)

        async def story() -> None:
            async with self.opened() as hypervisor:
                await asyncio.gather(*(hypervisor.perform(act, self.start_time) for _ in range(5)))
                await self.perform_until_done(hypervisor, act, self.start_time)

        _run(story())
        assert self.effects(act) == 1

    def test_two_acts_on_one_vm_take_effect_both(self) -> None:
        acts = [self.act(Verb.REBOOT, "event-1"), self.act(Verb.REBOOT, "event-2")]

        async def story() -> None:
            async with self.opened() as hypervisor:
                _, now = await self.perform_until_done(hypervisor, acts[0], self.start_time)
                await self.perform_until_done(hypervisor, acts[1], now)

        _run(story())
        assert [self.effects(act) for act in acts] == [1, 1]

    def test_an_act_under_way_survives_reopening(self) -> None:
        act = self.act(Verb.REDEPLOY)

        async def story() -> None:
            async with self.opened() as hypervisor:
                await hypervisor.perform(act, self.start_time)
            async with self.opened() as hypervisor:
                done, _ = await self.perform_until_done(hypervisor, act, self.start_time)
            assert done.ok, done.note

        _run(story())
        assert self.effects(act) == 1

    def test_an_act_that_is_done_survives_reopening(self) -> None:
        act = self.act(Verb.REBOOT)

        async def story() -> None:
            async with self.opened() as hypervisor:
                done, now = await self.perform_until_done(hypervisor, act, self.start_time)
            async with self.opened() as hypervisor:
                assert await hypervisor.perform(act, now) == done

        _run(story())
        assert self.effects(act) == 1

    def test_closing_twice_is_fine(self) -> None:
        async def story() -> None:
            hypervisor = await self.open()
            await hypervisor.close()
            await hypervisor.close()

        _run(story())


def _run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)
