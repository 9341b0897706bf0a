"""The executor performs each act once: none is lost, none is repeated before its outcome is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import RealTime
from forewarn.control.executor import ActExecutor, ActRetryPolicy
from forewarn.core.cause import Cause, Verb
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.machines.interface import ActDone, ActNotTried, ActUnderWay

Answer = Callable[[Act], ActDone | ActUnderWay]


class FakeHypervisor:
    """A hypervisor that records the acts and answers with a function of the test."""

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
        requested_by="ann",
        vms=names,
        published_at=0,
        not_before=0,
        status=EventState.STARTED,
        acts=acts,
    )


def an_executor(
    hypervisor: FakeHypervisor,
    retry: ActRetryPolicy | None = None,
    needs_failed_host: Callable[[Act], bool] = lambda act: False,
    may_act: Callable[[], bool] = lambda: True,
) -> ActExecutor:
    clock = LabClock(ClockSetting(lab_at=0.0, real_at=RealTime(0.0), speed=0.0), real=lambda: RealTime(0.0))
    return ActExecutor(
        hypervisor=hypervisor,
        clock=clock,
        wake=lambda: None,
        needs_failed_host=needs_failed_host,
        may_act=may_act,
        retry=retry or ActRetryPolicy(),
    )


async def perform_all(executor: ActExecutor) -> None:
    """Start all due acts, and wait until none is running."""
    executor.start_due_acts()
    while executor.running_acts:
        await executor.wait_for_any()


def test_an_act_whose_outcome_waits_to_be_recorded_is_not_performed_again() -> None:
    """Another act of the event was stored meanwhile, and in that commit this act is still unfinished."""

    async def scenario() -> None:
        hypervisor = FakeHypervisor(lambda act: ActDone(ok=True))
        executor = an_executor(hypervisor)
        executor.add_acts(an_event("a"))
        await perform_all(executor)

        executor.add_acts(an_event("a"))
        await perform_all(executor)

        assert hypervisor.performed == ["E:a"]
        assert [act.id for act, _ in executor.take_outcomes()] == ["E:a"]

    asyncio.run(scenario())


def test_an_executor_forgets_an_act_once_its_outcome_is_stored() -> None:
    """From then on only the store says which acts are unfinished, so the executor needs no memory of it."""

    async def scenario() -> None:
        hypervisor = FakeHypervisor(lambda act: ActDone(ok=True))
        executor = an_executor(hypervisor)
        event = an_event("a")
        executor.add_acts(event)
        await perform_all(executor)
        ((act, outcome),) = executor.take_outcomes()

        executor.add_acts(replace(event, acts=(replace(act, outcome=outcome),)))
        executor.add_acts(event)
        await perform_all(executor)

        assert hypervisor.performed == ["E:a", "E:a"]

    asyncio.run(scenario())


def test_the_next_act_of_a_vm_begins_as_stored_when_the_outcome_of_the_one_before_is_stored() -> None:
    """The act before it may have moved the VM; only the store says where to."""

    async def scenario() -> None:
        performed: list[tuple[str, str]] = []

        def answer(act: Act) -> ActDone:
            performed.append((act.id, act.from_host))
            return ActDone(ok=True)

        executor = an_executor(FakeHypervisor(answer))
        first = an_event("a")
        following = replace(first, id="F", acts=(replace(first.acts[0], id="F:a", event_id="F", from_host="h1"),))
        executor.add_acts(first)
        executor.add_acts(following)
        await perform_all(executor)
        await perform_all(executor)
        assert performed == [("E:a", "")]
        ((act, outcome),) = executor.take_outcomes()

        executor.add_acts(replace(first, acts=(replace(act, outcome=outcome),)))
        executor.add_acts(replace(following, acts=(replace(following.acts[0], from_host="h2"),)))
        await perform_all(executor)
        assert performed == [("E:a", ""), ("F:a", "h2")]

    asyncio.run(scenario())


def test_an_act_that_was_not_tried_does_not_count_as_an_attempt() -> None:
    """A full disk can prevent the attempt; however long that lasts, the act stays unfinished."""

    def refuse(act: Act) -> ActDone | ActUnderWay:
        raise ActNotTried("the disk is full")

    async def scenario() -> None:
        executor = an_executor(FakeHypervisor(refuse), ActRetryPolicy(max_attempts=2, first_delay_s=0))
        executor.add_acts(an_event("a"))
        for _ in range(10):
            await perform_all(executor)
        assert executor.take_outcomes() == []
        assert {attempt.reason for attempt in executor.take_failed_attempts()} == {"the disk is full"}

    asyncio.run(scenario())


@pytest.mark.parametrize("attempts", [1, 3])
def test_an_act_fails_when_its_hypervisor_hangs_in_every_attempt(attempts: int) -> None:
    class HangingHypervisor(FakeHypervisor):
        async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
            self.performed.append(act.id)
            await asyncio.Event().wait()
            raise AssertionError

    async def scenario() -> tuple[list[str], list[ActOutcome]]:
        hypervisor = HangingHypervisor(lambda act: ActDone(ok=True))
        executor = an_executor(hypervisor, ActRetryPolicy(max_attempts=attempts, first_delay_s=0, timeout_s=0.01))
        executor.add_acts(an_event("a"))
        for _ in range(attempts):
            await perform_all(executor)
        return hypervisor.performed, [outcome for _, outcome in executor.take_outcomes()]

    performed, (outcome,) = asyncio.run(scenario())
    assert len(performed) == attempts
    assert not outcome.ok
    assert outcome.note == f"no answer within 0.01 s (tried {attempts} times)"


def test_an_act_that_needs_a_failed_host_starts_when_the_host_is_repaired_and_others_at_once() -> None:
    async def scenario() -> None:
        hypervisor, held = FakeHypervisor(lambda act: ActDone(ok=True)), {"a", "b"}
        executor = an_executor(hypervisor, needs_failed_host=lambda act: act.name in held)
        executor.add_acts(an_event("a", "b", "c"))
        await perform_all(executor)
        assert hypervisor.performed == ["E:c"]
        assert executor.next_due_at() is None
        assert not executor.has_due_acts

        held.discard("a")
        await perform_all(executor)
        assert hypervisor.performed == ["E:c", "E:a"]

    asyncio.run(scenario())


def test_an_act_whose_host_fails_before_the_first_step_of_its_attempt_waits() -> None:
    """Spec §6.4: nothing is performed on a host that has failed. A commit may come between task and first step."""

    async def scenario() -> None:
        hypervisor, failed = FakeHypervisor(lambda act: ActDone(ok=True)), set[str]()
        executor = an_executor(hypervisor, needs_failed_host=lambda act: act.name in failed)
        executor.add_acts(an_event("a"))
        executor.start_due_acts()
        failed.add("a")
        await perform_all(executor)
        assert hypervisor.performed == []
        failed.clear()
        await perform_all(executor)
        assert hypervisor.performed == ["E:a"]

    asyncio.run(scenario())


def test_an_act_that_is_under_way_when_its_host_fails_is_not_performed_again() -> None:
    async def scenario() -> None:
        hypervisor, failed = FakeHypervisor(lambda act: ActUnderWay(at=0.0)), set[str]()
        executor = an_executor(hypervisor, needs_failed_host=lambda act: act.name in failed)
        executor.add_acts(an_event("a"))
        await perform_all(executor)
        failed.add("a")
        await perform_all(executor)
        assert hypervisor.performed == ["E:a"]

        event = an_event("a")
        outcome = ActOutcome(ok=False, at=0.0, note="host h1 failed")
        executor.add_acts(replace(event, acts=(replace(event.acts[0], outcome=outcome),)))
        failed.clear()
        await perform_all(executor)
        assert hypervisor.performed == ["E:a"]
        assert executor.take_outcomes() == []

    asyncio.run(scenario())


def test_no_act_begins_while_the_service_may_not_act() -> None:
    """A control node that cannot renew its lease must not act: another one may have taken over."""

    async def scenario() -> None:
        hypervisor, allowed = FakeHypervisor(lambda act: ActDone(ok=True)), [False]
        executor = an_executor(hypervisor, may_act=lambda: allowed[0])
        executor.add_acts(an_event("a", "b"))
        await perform_all(executor)
        assert hypervisor.performed == []
        assert executor.next_due_at() is None  # nothing to wait for: the owner wakes the reconciler

        allowed[0] = True
        await perform_all(executor)
        assert hypervisor.performed == ["E:a", "E:b"]

    asyncio.run(scenario())
