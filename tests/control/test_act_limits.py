"""A host whose hypervisor hangs does not keep acts of other hosts from starting, and people can see that it hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import RealTime
from forewarn.control.executor import ActExecutor, ActLimits, ActRetryPolicy
from forewarn.core.cause import Cause, Verb
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.core.fleet import PowerState
from forewarn.core.request import RequestedOperation
from forewarn.machines.interface import ActDone
from tests.support.hanging_hypervisor import HangingHostHypervisor
from tests.support.world import World, a_host, a_vm

SOON = 0.01  # real seconds after which an attempt counts as unanswered here
MANY_ROUNDS = 1000  # of the event loop


class HangingHypervisor:
    """A hypervisor that answers an act once the test allows it; acts that hang wait in `calls`."""

    def __init__(self, hangs: Callable[[Act], bool] = lambda act: True) -> None:
        self.calls: dict[str, asyncio.Event] = {}
        self.performed: list[str] = []
        self._hangs = hangs

    async def perform(self, act: Act, now: float) -> ActDone:
        if self._hangs(act):
            self.calls[act.id] = asyncio.Event()
            try:
                await self.calls[act.id].wait()
            finally:
                del self.calls[act.id]
        self.performed.append(act.id)
        return ActDone(ok=True)

    async def close(self) -> None:
        return


def an_act(number: int, from_host: str, to_host: str = "", verb: Verb = Verb.REBOOT) -> Act:
    name = f"vm-{number}"
    return Act(
        id=f"E:{name}", vm=f"s/g/{name}", name=name, verb=verb, event_id="E", from_host=from_host, to_host=to_host
    )


def an_event(acts: Sequence[Act]) -> Event:
    return Event(
        id="E",
        scope_id="set:s/g/web",
        request_id="r",
        cause=Cause.USER_RESTART,
        requested_by="ann",
        vms=tuple(act.name for act in acts),
        published_at=0,
        not_before=0,
        status=EventState.STARTED,
        acts=tuple(acts),
    )


def an_executor(hypervisor: HangingHypervisor, limits: ActLimits, acts: Sequence[Act]) -> ActExecutor:
    clock = LabClock(ClockSetting(lab_at=0.0, real_at=RealTime(0.0), speed=0.0), real=lambda: RealTime(0.0))
    executor = ActExecutor(hypervisor=hypervisor, clock=clock, wake=lambda: None, limits=limits)
    executor.add_acts(an_event(acts))
    return executor


async def run_until_idle(executor: ActExecutor) -> None:
    """Start due acts until no further one starts and no attempt ends by itself."""
    idle = 0
    while idle < 3:
        idle = 0 if executor.start_due_acts() else idle + 1
        await asyncio.sleep(0)


def test_acts_on_other_hosts_start_while_one_host_hangs() -> None:
    async def scenario() -> list[str]:
        hanging = [an_act(number, "h1") for number in range(100)]
        hypervisor = HangingHypervisor(lambda act: act.from_host == "h1")
        executor = an_executor(
            hypervisor, ActLimits(), [*hanging, an_act(100, "h2"), an_act(101, "h1", verb=Verb.DELETE)]
        )
        await run_until_idle(executor)
        assert len(hypervisor.calls) == ActLimits().per_host + 1
        await executor.close()
        return hypervisor.performed

    assert asyncio.run(scenario()) == ["E:vm-100"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(an_act(100, "h1", "h3", Verb.MIGRATE), id="from the same host to another"),
        pytest.param(an_act(100, "h3", "h4", Verb.MIGRATE), id="between other hosts"),
    ],
)
def test_moves_start_while_those_to_one_destination_hang(other: Act) -> None:
    async def scenario() -> list[str]:
        hanging = [an_act(number, "h1", "h2", Verb.MIGRATE) for number in range(100)]
        hypervisor = HangingHypervisor(lambda act: act.to_host == "h2")
        executor = an_executor(hypervisor, ActLimits(), [*hanging, other])
        await run_until_idle(executor)
        assert len(hypervisor.calls) == ActLimits().per_move
        await executor.close()
        return hypervisor.performed

    assert asyncio.run(scenario()) == ["E:vm-100"]


def test_a_hanging_destination_limits_the_moves_to_it_from_all_hosts() -> None:
    async def scenario() -> int:
        hypervisor = HangingHypervisor()
        moves = [an_act(number, f"h{number}", "spare", Verb.REDEPLOY) for number in range(100)]
        executor = an_executor(hypervisor, ActLimits(), moves)
        await run_until_idle(executor)
        running = len(hypervisor.calls)
        await executor.close()
        return running

    assert asyncio.run(scenario()) == ActLimits().per_host


def test_acts_start_although_more_hosts_hang_than_acts_may_run() -> None:
    async def scenario() -> None:
        hypervisor = HangingHypervisor(lambda act: act.from_host != "healthy")
        acts = [an_act(number, f"h{number}") for number in range(4)]
        limits = ActLimits(overall=2, unanswered_after_s=SOON)
        executor = an_executor(hypervisor, limits, [*acts, an_act(4, "healthy")])
        executor.start_due_acts()
        assert executor.next_due_at() is None
        for _ in range(MANY_ROUNDS):
            if hypervisor.performed:
                break
            await executor.wait_for_any()
            executor.start_due_acts()
        assert hypervisor.performed == ["E:vm-4"]
        await executor.close()

    asyncio.run(scenario())


def test_acts_that_wait_for_a_host_start_in_order_when_it_answers_again() -> None:
    async def scenario() -> list[str]:
        hypervisor = HangingHypervisor()
        executor = an_executor(hypervisor, ActLimits(per_host=2), [an_act(number, "h1") for number in range(6)])
        await run_until_idle(executor)
        assert executor.blocking_hosts() == {f"E:vm-{number}": "h1" for number in range(2, 6)}
        for _ in range(6):
            next(iter(hypervisor.calls.values())).set()
            await run_until_idle(executor)
        assert executor.blocking_hosts() == {}
        return hypervisor.performed

    assert asyncio.run(scenario()) == [f"E:vm-{number}" for number in range(6)]


def test_a_slot_is_not_lost_when_the_act_that_was_to_take_it_is_cancelled() -> None:
    async def scenario() -> list[str]:
        hypervisor = HangingHypervisor()
        acts = [an_act(number, "h1") for number in range(3)]
        executor = an_executor(hypervisor, ActLimits(per_host=1), acts)
        await run_until_idle(executor)
        hypervisor.calls["E:vm-0"].set()
        await executor.wait_for_any()  # vm-1 is to start next

        outcome = ActOutcome(ok=False, at=0.0, note="host h1 failed")
        executor.add_acts(an_event([replace(acts[1], outcome=outcome)]))
        await run_until_idle(executor)
        running = list(hypervisor.calls)
        await executor.close()
        return running

    assert asyncio.run(scenario()) == ["E:vm-2"]


def test_an_act_that_waits_for_its_host_stays_before_later_acts_on_its_vm() -> None:
    async def scenario() -> list[str]:
        hypervisor = HangingHypervisor()
        reboot = an_act(1, "h1")
        delete = Act(id="F:vm-1", vm=reboot.vm, name=reboot.name, verb=Verb.DELETE, event_id="F", from_host="h1")
        executor = an_executor(hypervisor, ActLimits(per_host=1), [an_act(0, "h1"), reboot, delete])
        for _ in range(3):
            await run_until_idle(executor)
            next(iter(hypervisor.calls.values())).set()
            await run_until_idle(executor)
            executor.add_acts(an_event([replace(act, outcome=done) for act, done in executor.take_outcomes()]))
        await run_until_idle(executor)
        return hypervisor.performed

    assert asyncio.run(scenario()) == ["E:vm-0", "E:vm-1", "F:vm-1"]


@pytest.mark.parametrize("per_host", [1, 2], ids=["while it waits for its host", "while the hypervisor hangs"])
def test_an_act_that_ended_because_its_host_failed_makes_way_for_the_next_act_of_its_vm(per_host: int) -> None:
    async def scenario() -> list[str]:
        hypervisor = HangingHypervisor(lambda act: act.from_host == "h1")
        first, reboot = an_act(0, "h1"), an_act(1, "h1")
        redeploy = Act(id="F:vm-1", vm=reboot.vm, name=reboot.name, verb=Verb.REDEPLOY, event_id="F", to_host="h2")
        executor = an_executor(hypervisor, ActLimits(per_host=per_host), [first, reboot, redeploy])
        await run_until_idle(executor)
        assert hypervisor.performed == []

        failed = ActOutcome(ok=False, at=0.0, note="the host failed")
        executor.add_acts(an_event([first, replace(reboot, outcome=failed), redeploy]))
        await run_until_idle(executor)
        assert (list(hypervisor.calls), executor.running_acts, executor.blocking_hosts()) == ([first.id], 1, {})
        assert [act.id for act, _ in executor.take_outcomes()] == [redeploy.id]
        await executor.close()
        return hypervisor.performed

    assert asyncio.run(scenario()) == ["F:vm-1"]


HOSTS = st.sampled_from(["", "a", "b", "c"])
VERBS = st.sampled_from([Verb.REBOOT, Verb.MIGRATE, Verb.REDEPLOY])


@given(
    moves=st.lists(st.tuples(HOSTS, HOSTS, VERBS), max_size=30),
    answers=st.lists(st.integers(min_value=0, max_value=10), min_size=30, max_size=30),
)
def test_every_act_is_performed_once_within_the_limits_in_any_order_of_answers(
    moves: list[tuple[str, str, Verb]], answers: list[int]
) -> None:
    limits = ActLimits(overall=5, per_host=3, per_move=2)

    async def scenario() -> None:
        hypervisor = HangingHypervisor()
        acts = [an_act(number, *move) for number, move in enumerate(moves)]
        by_id = {act.id: act for act in acts}
        executor = an_executor(hypervisor, limits, acts)
        for answer in answers:
            await run_until_idle(executor)
            running = [by_id[act_id] for act_id in hypervisor.calls]
            assert len(running) <= limits.overall
            hosts = Counter((act.verb, host) for act in running for host in {act.from_host, act.to_host} if host)
            assert max(hosts.values(), default=0) <= limits.per_host
            pairs = Counter((act.verb, act.from_host, act.to_host) for act in running if act.from_host and act.to_host)
            assert all(count <= limits.per_move for (_, a, b), count in pairs.items() if a != b)
            if running:
                list(hypervisor.calls.values())[answer % len(running)].set()
        await run_until_idle(executor)
        assert sorted(hypervisor.performed) == sorted(by_id)
        assert executor.running_acts == 0
        assert executor.blocking_hosts() == {}

    asyncio.run(scenario())


def test_lab_time_can_be_advanced_while_a_hypervisor_does_not_answer() -> None:
    """Advancing holds the reconciler's lock: waiting for the hypervisor would stop everything."""
    world = World(
        hosts=[a_host("h1"), a_host("h2")],
        vms=[a_vm("web", host="h1"), a_vm("db", host="h2")],
        hypervisor=HangingHostHypervisor("h1"),
        retry=ActRetryPolicy(timeout_s=60),
        limits=ActLimits(unanswered_after_s=SOON),
    )
    try:
        world.ask(RequestedOperation.POWER_OFF, "web")
        world.ask(RequestedOperation.POWER_OFF, "db")
        world.advance(60)
        assert [event.vms for event in world.events(EventState.STARTED)] == [("web",)]
        assert world.vm("db").power is PowerState.STOPPED
        (act_id,) = world.control.executor.unanswered_s()
        assert act_id.endswith(":web")
    finally:
        world.close()
