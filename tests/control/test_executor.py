"""Acts that are owed get performed: none forgotten, none begun again while its outcome waits to be recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from forewarn.clock import ClockSetting, LabClock
from forewarn.control.executor import ActExecutor, ActRetryPolicy
from forewarn.core.cause import Cause, Verb
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.hypervisor.interface import ActDone, ActNotTried, ActUnderWay

Answer = Callable[[Act], ActDone | ActUnderWay]


class Hands:
    """A hypervisor that keeps count, and answers as it is told to."""

    def __init__(self, answer: Answer) -> None:
        self.performed: list[str] = []
        self._answer = answer

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        self.performed.append(act.id)
        return self._answer(act)

    async def close(self) -> None:
        return


def an_event(*names: str) -> Event:
    acts = tuple(Act(id=f"E:{name}", vm=f"s/g/{name}", name=name, verb=Verb.REBOOT, event_id="E") for name in names)
    return Event(
        id="E",
        scope_id="set:s/g/web",
        request_id="r",
        cause=Cause.USER_RESTART,
        who="ann",
        vms=names,
        published_at=0,
        not_before=0,
        status=EventState.STARTED,
        acts=acts,
    )


def an_executor(hands: Hands, retry: ActRetryPolicy | None = None) -> ActExecutor:
    clock = LabClock(ClockSetting(lab_at=0.0, real_at=0.0, speed=0.0), real=lambda: 0.0)
    return ActExecutor(hypervisor=hands, clock=clock, wake=lambda: None, retry=retry or ActRetryPolicy())


async def work_through(executor: ActExecutor) -> None:
    executor.start_due_acts()
    while executor.running_acts:
        await executor.wait_for_any()


def test_an_act_whose_outcome_waits_to_be_recorded_is_not_performed_again() -> None:
    """Another act of the event was recorded meanwhile, and the event as committed still owes this one."""

    async def story() -> None:
        hands = Hands(lambda act: ActDone(ok=True))
        executor = an_executor(hands)
        executor.add_acts(an_event("a"))
        await work_through(executor)

        executor.add_acts(an_event("a"))
        await work_through(executor)

        assert hands.performed == ["E:a"]
        assert [act.id for act, _ in executor.take_outcomes()] == ["E:a"]

    asyncio.run(story())


def test_what_was_recorded_is_forgotten_here() -> None:
    """Nothing is kept of acts for good: once the store has the outcome, only the store says what is owed."""

    async def story() -> None:
        hands = Hands(lambda act: ActDone(ok=True))
        executor = an_executor(hands)
        event = an_event("a")
        executor.add_acts(event)
        await work_through(executor)
        ((act, outcome),) = executor.take_outcomes()

        executor.add_acts(replace(event, acts=(replace(act, outcome=outcome),)))
        executor.add_acts(event)
        await work_through(executor)

        assert hands.performed == ["E:a", "E:a"]

    asyncio.run(story())


def test_trouble_of_our_own_does_not_count_as_a_try() -> None:
    """A full disk kept the act from being tried at all: however long it lasts, the act is still owed."""

    def refuse(act: Act) -> ActDone | ActUnderWay:
        raise ActNotTried("the disk is full")

    async def story() -> None:
        executor = an_executor(Hands(refuse), ActRetryPolicy(max_attempts=2, first_delay_s=0))
        executor.add_acts(an_event("a"))
        for _ in range(10):
            await work_through(executor)
        assert executor.take_outcomes() == []
        assert {setback.reason for setback in executor.take_failed_attempts()} == {"the disk is full"}

    asyncio.run(story())


@pytest.mark.parametrize("tries", [1, 3])
def test_a_hypervisor_that_hangs_is_given_up_on_after_its_tries(tries: int) -> None:
    class Hung(Hands):
        async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
            self.performed.append(act.id)
            await asyncio.Event().wait()
            raise AssertionError

    async def story() -> tuple[list[str], list[ActOutcome]]:
        hands = Hung(lambda act: ActDone(ok=True))
        executor = an_executor(hands, ActRetryPolicy(max_attempts=tries, first_delay_s=0, timeout_s=0.01))
        executor.add_acts(an_event("a"))
        for _ in range(tries):
            await work_through(executor)
        return hands.performed, [outcome for _, outcome in executor.take_outcomes()]

    performed, (outcome,) = asyncio.run(story())
    assert len(performed) == tries
    assert not outcome.ok
    assert outcome.note == f"no answer within 0.01 s (tried {tries} times)"
