"""The simulation's own parts: virtual time, processes, and checkers that find what they should find."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.core.cause import Cause, Verb
from forewarn.core.commit import Commit
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.core.fleet import HostHealth, PowerState
from forewarn.machines.ledger import Effect, EffectLedger
from forewarn.store.interface import AppliedCommit
from tests.simulation.invariants import HostChecker
from tests.simulation.process import ProcessDied, SimulatedProcess, create_task_in_process
from tests.simulation.virtual_loop import NeverAtRest, NothingLeft, VirtualTimeLoop
from tests.support.world import a_host, a_vm

VM = a_vm("web", host="h1")


def an_act(**facts: object) -> Act:
    known = {"id": "E:web", "vm": VM.key, "name": "web", "verb": Verb.REBOOT, "event_id": "E", "from_host": "h1"}
    return Act(**{**known, **facts})  # type: ignore[arg-type]


def an_event(cause: Cause, *acts: Act) -> Event:
    return Event(
        id="E", scope_id=VM.scope_id, request_id="r", cause=cause, requested_by="op", vms=("web",),
        published_at=0, not_before=0, host="h1", status=EventState.STARTED, started_at=0.0, acts=acts,
    )  # fmt: skip


class Found:
    """A host checker, and the rules that it reported."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self.ledger = EffectLedger(None)
        self.now = 0.0
        self.checker = HostChecker(lambda rule, text: self.rules.append(rule), lambda: self.ledger, lambda: self.now)
        self.commit(Commit(vms=(VM,), hosts=(a_host("h1"), a_host("h2"))))

    def commit(self, commit: Commit) -> None:
        self.checker.on_commit(AppliedCommit(commit, 0))

    def fail_host(self, name: str, at: float = 10.0) -> None:
        self.now = at
        self.commit(Commit(hosts=(a_host(name, health=HostHealth.FAILED),)))


def test_an_act_on_a_failed_host_is_found() -> None:
    found = Found()
    found.checker.on_perform(an_act(), 20.0)
    assert found.rules == []
    found.fail_host("h1")
    found.checker.on_perform(an_act(), 20.0)
    assert found.rules == ["§6.4 nothing is performed on a host that has failed"]


def test_a_move_away_from_a_failed_host_is_correct_and_a_move_to_one_is_not() -> None:
    found = Found()
    found.fail_host("h1")
    found.checker.on_perform(an_act(verb=Verb.REDEPLOY, to_host="h2"), 20.0)
    assert found.rules == []
    found.fail_host("h2")
    found.checker.on_perform(an_act(verb=Verb.REDEPLOY, to_host="h2"), 20.0)
    assert found.rules == ["§6.4 no VM moves to a host that has failed"]


@pytest.mark.parametrize(("verb", "to_host"), [(Verb.REDEPLOY, "h3"), (Verb.DELETE, "")])
def test_an_act_on_a_host_that_the_vm_has_left_is_found(verb: Verb, to_host: str) -> None:
    found = Found()
    found.checker.on_perform(an_act(verb=verb, from_host="h2", to_host=to_host), 20.0)
    assert found.rules == ["§6.4 an act is performed where its VM is"]


def test_an_act_on_a_vm_that_is_gone_or_deallocated_is_found() -> None:
    found = Found()
    found.commit(Commit(vms=(a_vm("web", host="", power=PowerState.DEALLOCATED),)))
    found.checker.on_perform(an_act(), 20.0)
    found.commit(Commit(vms=(a_vm("web", host="", removed_at=10.0),)))
    found.checker.on_perform(an_act(), 20.0)
    assert found.rules == [
        "§6.4 an act is performed only where the VM's power state allows it",
        "§4.2 nothing is performed on a VM that is gone",
    ]


@pytest.mark.parametrize(
    ("host", "rules"), [("h1", []), ("h2", ["§6.4 work on a host concerns only VMs that are on it"])]
)
def test_host_work_on_a_vm_that_has_left_is_found(host: str, rules: list[str]) -> None:
    found = Found()
    found.commit(Commit(vms=(a_vm("web", host=host),)))
    found.commit(Commit(events=(an_event(Cause.HOST_UPDATE, an_act(verb=Verb.FREEZE)),)))
    assert found.rules == rules


@pytest.mark.parametrize(("ok", "failed_at", "count"), [(True, 10.0, 1), (False, 10.0, 0), (True, 99.0, 0)])
def test_a_success_although_the_source_host_failed_is_found(ok: bool, failed_at: float, count: int) -> None:
    found = Found()
    effect = Effect(act_id="E:web", vm=VM.key, verb=Verb.REDEPLOY, event_id="E", begun_at=5.0, ends_at=50.0)
    found.ledger.record_effect(effect)
    found.fail_host("h1", failed_at)
    act = an_act(verb=Verb.REDEPLOY, to_host="h2", outcome=ActOutcome(ok=ok, at=50.0))
    found.commit(Commit(events=(an_event(Cause.USER_REDEPLOY, act),)))
    assert len(found.rules) == count


def run(work: object) -> object:
    loop = VirtualTimeLoop()
    loop.set_task_factory(create_task_in_process)  # type: ignore[arg-type]
    try:
        return loop.run_until_complete(work)  # type: ignore[arg-type]
    finally:
        loop.close()


def test_virtual_time_passes_at_once_and_in_order() -> None:
    async def scenario() -> list[str]:
        seen: list[str] = []

        async def wait(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            seen.append(name)

        began = asyncio.get_running_loop().time()
        await asyncio.gather(wait(7 * 86400, "week"), wait(1, "second"), wait(3600, "hour"))
        assert asyncio.get_running_loop().time() - began == pytest.approx(7 * 86400)
        return seen

    assert run(scenario()) == ["second", "hour", "week"]


def test_work_for_a_thread_runs_at_once_in_the_same_thread() -> None:
    async def scenario() -> list[int]:
        return [await asyncio.to_thread(lambda: 1)]

    assert run(scenario()) == [1]


def test_a_wait_that_nothing_can_end_is_reported() -> None:
    with pytest.raises(NothingLeft):
        run(asyncio.Event().wait())


def test_a_loop_that_never_comes_to_rest_is_reported() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(NeverAtRest):
        run(spin())


def test_a_process_dies_at_its_crash_point_with_all_its_tasks() -> None:
    async def scenario() -> list[str]:
        seen: list[str] = []
        process = SimulatedProcess("p", lambda: seen.append("dead"))

        async def forever() -> None:
            try:
                await asyncio.sleep(1e6)
            finally:
                seen.append("cancelled")

        async def work() -> None:
            process.pass_point()
            asyncio.get_running_loop().create_task(forever())
            await asyncio.sleep(1)
            process.pass_point()
            seen.append("not reached")

        process.die_after(1)
        with pytest.raises(ProcessDied):
            await process.call(work())
        await asyncio.sleep(1)
        with pytest.raises(ProcessDied):
            process.pass_point()
        return seen

    assert run(scenario()) == ["dead", "cancelled"]
