"""The process hypervisor: keepers are ordered about, each act takes effect once, and nobody stays stopped.

A fake keeper speaks the contract of `forewarn.vms` on one end of a socket pair.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop

from forewarn.conformance.hypervisor import HypervisorConformance
from forewarn.core.cause import Verb
from forewarn.core.event import Act, act_id
from forewarn.errors import Refused, Unavailable
from forewarn.hypervisor.interface import ActDone, ActUnderWay, Hypervisor
from forewarn.hypervisor.ledger import EffectLedger
from forewarn.hypervisor.liveness import is_process_alive
from forewarn.hypervisor.process.connection import SupervisorConnection
from forewarn.hypervisor.process.hypervisor import ProcessHypervisor
from forewarn.hypervisor.process.registry import SupervisorRecords, SupervisorRegistry
from forewarn.hypervisor.simulated import SimulatedHypervisor
from tests.support.fake_supervisor import FakeSupervisor, FakeSupervisorJournal, process_start_time

NOW = 1_700_000_000.0
KEY = "s/g/vm-1"
LOOPS: list[Any] = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(uvloop.new_event_loop, id="uvloop"),
]


def an_act(verb: Verb, event_id: str = "E1", **facts: Any) -> Act:
    given = {"from_host": "host-1", **facts}
    return Act(id=act_id(event_id, "vm-1"), vm=KEY, name="vm-1", verb=verb, event_id=event_id, **given)


@dataclass(kw_only=True)
class House:
    """One run of the service: what is in the folder outlives it."""

    keepers: SupervisorRegistry
    process: ProcessHypervisor
    ledger: EffectLedger

    async def meet(self, keeper: FakeSupervisor) -> SupervisorConnection:
        """As the door does it: hello, welcome, and the line is the VM's."""
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        link = SupervisorConnection(ours)
        greeting = asyncio.create_task(keeper.attach(theirs))
        heard = await link.receive()
        assert heard is not None
        assert heard.hello is not None
        link.identify(heard.hello)
        self.keepers.register(KEY, link)
        link.send({"welcome": {"vm": {"name": "vm-1"}}})
        await greeting
        return link

    async def done(self, act: Act, now: float = NOW) -> ActDone:
        """Perform it as the executor does, at the lab times that are named."""
        for _ in range(100):
            answer = await self.process.perform(act, now)
            if isinstance(answer, ActDone):
                return answer
            now = answer.at
        raise AssertionError(f"{act.id} is never done")

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        return await self.process.perform(act, now)

    async def close(self) -> None:
        for link in self.keepers.connections.values():
            link.close()
        await self.process.close()


def open_house(folder: Path, *, grace_s: float = 5.0, patience_s: float = 5.0) -> House:
    ledger = EffectLedger.open(folder / "ledger.db")
    keepers = SupervisorRegistry(SupervisorRecords(folder / "vms"), grace_s=grace_s)
    return House(
        keepers=keepers,
        process=ProcessHypervisor(keepers, SimulatedHypervisor(ledger), patience_s=patience_s),
        ledger=ledger,
    )


@asynccontextmanager
async def house_in(folder: Path, *, grace_s: float = 5.0, patience_s: float = 5.0) -> AsyncIterator[House]:
    house = open_house(folder, grace_s=grace_s, patience_s=patience_s)
    try:
        yield house
    finally:
        await house.close()


@pytest.fixture(params=LOOPS)
def play(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def playing(story: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(story)

    return playing


Play = Callable[[Coroutine[Any, Any, None]], None]


def test_a_vm_that_nobody_keeps_is_left_to_the_other_hypervisor(tmp_path: Path, play: Play) -> None:
    async def story() -> None:
        async with house_in(tmp_path) as house:
            assert await house.perform(an_act(Verb.REBOOT), NOW) == ActUnderWay(at=NOW + 30)
            assert await house.done(an_act(Verb.REBOOT)) == ActDone(ok=True, note="reboot took 30 s")

    play(story())


def test_an_order_names_the_verb_the_duration_and_the_host(tmp_path: Path, play: Play) -> None:
    keeper = FakeSupervisor("vm-1")

    async def story() -> None:
        async with house_in(tmp_path) as house:
            await house.meet(keeper)
            done = await house.done(an_act(Verb.REDEPLOY, to_host="host-2"))
            assert done == ActDone(ok=True, note="done by a fake")
            assert house.ledger.effects() == []

    play(story())
    assert keeper.orders == [{"act": "E1:vm-1", "verb": "redeploy", "duration_s": 120.0, "host": "host-2"}]


def test_a_failed_act_carries_the_keepers_note(tmp_path: Path, play: Play) -> None:
    keeper = FakeSupervisor("vm-1")
    keeper.failure_note = "the program did not start: No such file"

    async def story() -> None:
        async with house_in(tmp_path) as house:
            await house.meet(keeper)
            assert await house.done(an_act(Verb.REBOOT)) == ActDone(ok=False, note=keeper.failure_note)

    play(story())


def test_a_freeze_ends_when_lab_time_has_reached_its_end(tmp_path: Path, play: Play) -> None:
    """Spec §12: a clock that is advanced does not wait for nine real seconds."""
    keeper = FakeSupervisor("vm-1")

    async def story() -> None:
        async with house_in(tmp_path) as house:
            await house.meet(keeper)
            later = await house.perform(an_act(Verb.FREEZE, duration_s=900), NOW)
            assert isinstance(later, ActUnderWay)
            assert NOW + 890 < later.at <= NOW + 900
            assert keeper.state == "frozen"
            assert await house.perform(an_act(Verb.FREEZE, duration_s=900), NOW + 1) == later
            assert (await house.perform(an_act(Verb.FREEZE, duration_s=900), later.at)) == ActDone(
                ok=True, note="done by a fake"
            )

    play(story())
    assert keeper.journal.effects == [("E1:vm-1", "freeze")]
    assert keeper.state == "running"


@pytest.mark.parametrize("verb", [Verb.FREEZE, Verb.REBOOT])
def test_an_act_that_was_ordered_before_the_service_died_is_not_done_again(
    tmp_path: Path, play: Play, verb: Verb
) -> None:
    """The service dies after the order, before the answer; the keeper says hello to the next one."""
    keeper = FakeSupervisor("vm-1")

    async def story() -> None:
        async with house_in(tmp_path, patience_s=0.05) as house:
            await house.meet(keeper)
            keeper.sends_no_outcomes = True
            with pytest.raises(Unavailable, match="says nothing about act 'E1:vm-1'"):
                await house.perform(an_act(verb, duration_s=60), NOW)
        keeper.sends_no_outcomes = False
        async with house_in(tmp_path) as house:
            await house.meet(keeper)
            assert (await house.done(an_act(verb, duration_s=60))).ok

    play(story())
    assert keeper.effect_count("E1:vm-1") == 1
    assert keeper.journal.thaws_at == {}


def test_an_act_that_was_answered_before_the_service_died_needs_no_order(tmp_path: Path, play: Play) -> None:
    keeper = FakeSupervisor("vm-1")

    async def story() -> None:
        async with house_in(tmp_path) as house:
            await house.meet(keeper)
            first = await house.done(an_act(Verb.REBOOT))
        keeper.ignores_orders = True
        async with house_in(tmp_path) as house:
            await house.meet(keeper)
            assert await house.done(an_act(Verb.REBOOT)) == first

    play(story())
    assert len(keeper.orders) == 1


def test_a_keeper_that_was_started_again_knows_from_its_journal(tmp_path: Path, play: Play) -> None:
    journal = FakeSupervisorJournal()

    async def story() -> None:
        async with house_in(tmp_path) as house:
            link = await house.meet(FakeSupervisor("vm-1", journal=journal))
            await house.done(an_act(Verb.REBOOT))
            link.close()
            house.keepers.unregister(KEY, link)
            await house.meet(FakeSupervisor("vm-1", journal=journal))
            assert (await house.done(an_act(Verb.REBOOT))).ok

    play(story())
    assert journal.effects == [("E1:vm-1", "reboot")]


def test_a_keeper_that_is_away_for_a_moment_is_waited_for(tmp_path: Path, play: Play) -> None:
    """The service has started again and is quicker than the keeper: the VM is not simulated meanwhile."""
    keeper = FakeSupervisor("vm-1")

    async def story() -> None:
        async with house_in(tmp_path) as house:
            await house.meet(keeper)
        async with house_in(tmp_path) as house:
            performing = asyncio.create_task(house.done(an_act(Verb.REBOOT)))
            await asyncio.sleep(0)
            assert not performing.done()
            await house.meet(keeper)
            assert (await performing).ok
            assert house.ledger.effects() == []

    play(story())
    assert keeper.effect_count("E1:vm-1") == 1


def test_a_keeper_that_lives_and_does_not_come_back_makes_its_vm_unavailable(tmp_path: Path, play: Play) -> None:
    async def story() -> None:
        async with house_in(tmp_path) as house:
            await house.meet(FakeSupervisor("vm-1"))
        async with house_in(tmp_path, grace_s=0.05) as house:
            with pytest.raises(Unavailable, match=rf"process {os.getpid()}\) lives but does not answer"):
                await house.perform(an_act(Verb.REBOOT), NOW)
            assert house.ledger.effects() == []

    play(story())


def test_a_keeper_that_is_gone_for_good_leaves_its_vm_to_the_other_hypervisor(tmp_path: Path, play: Play) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:

        async def story() -> None:
            async with house_in(tmp_path) as house:
                link = await house.meet(FakeSupervisor("vm-1", pid=child.pid))
                os.kill(child.pid, signal.SIGKILL)
                link.close()
                house.keepers.unregister(KEY, link)
                done = await house.done(an_act(Verb.REBOOT))
                gone = f"its keeper (process {child.pid}) is gone, and its program with it"
                assert done == ActDone(ok=True, note=f"reboot took 30 s; {gone}")
                assert await house.done(an_act(Verb.REBOOT, "E2")) == ActDone(ok=True, note="reboot took 30 s")

        play(story())


def test_a_keeper_that_hangs_up_during_an_act_is_asked_again(tmp_path: Path, play: Play) -> None:
    keeper = FakeSupervisor("vm-1")

    async def story() -> None:
        async with house_in(tmp_path) as house:
            link = await house.meet(keeper)
            keeper.ignores_orders = True
            performing = asyncio.create_task(house.perform(an_act(Verb.REBOOT), NOW))
            await keeper.wait_until(lambda: keeper.orders)
            await keeper.disconnect()
            with pytest.raises(Unavailable, match="has hung up"):
                await performing
            house.keepers.unregister(KEY, link)
            keeper.ignores_orders = False
            await house.meet(keeper)
            assert (await house.done(an_act(Verb.REBOOT))).ok

    play(story())
    assert keeper.effect_count("E1:vm-1") == 1


def test_an_act_begun_while_nobody_kept_the_vm_stays_with_the_other_hypervisor(tmp_path: Path, play: Play) -> None:
    """A program that is put into the VM meanwhile has not earned a second reboot."""
    keeper = FakeSupervisor("vm-1")

    async def story() -> None:
        async with house_in(tmp_path) as house:
            assert isinstance(await house.perform(an_act(Verb.REBOOT), NOW), ActUnderWay)
        async with house_in(tmp_path) as house:
            await house.meet(keeper)
            assert await house.done(an_act(Verb.REBOOT)) == ActDone(ok=True, note="reboot took 30 s")

    play(story())
    assert keeper.orders == []


def test_one_vm_has_one_keeper(tmp_path: Path, play: Play) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:

            async def story() -> None:
                async with house_in(tmp_path) as house:
                    await house.meet(FakeSupervisor("vm-1", pid=child.pid))
                    sentence = f"VM 'vm-1' is kept by process {child.pid} already: end that one first"
                    second = asyncio.create_task(house.meet(FakeSupervisor("vm-1")))
                    with pytest.raises(Refused, match=re.escape(sentence)):
                        await second

            play(story())
        finally:
            child.kill()


def test_a_line_that_is_not_understood_ends_the_link(tmp_path: Path, play: Play) -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        link = SupervisorConnection(ours)
        theirs.sendall(b'{"hello": 7}\n')
        assert await link.receive() is None
        assert b"this line is not understood" in theirs.recv(4096)
        theirs.close()

    play(story())


def test_a_process_is_told_from_another_with_its_number() -> None:
    assert is_process_alive(os.getpid(), process_start_time(os.getpid()))
    assert not is_process_alive(os.getpid(), "1")
    assert not is_process_alive(0, "")


class TestProcess(HypervisorConformance):
    """With a keeper that is there: as any other hypervisor."""

    @pytest.fixture(autouse=True)
    def _in_a_folder_of_its_own(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.keeper = FakeSupervisor("vm-1")

    async def open(self) -> Hypervisor:
        house = open_house(self.folder)
        await house.meet(self.keeper)
        return house

    def effects(self, act: Act) -> int:
        return self.keeper.effect_count(act.id)


def test_a_program_that_ended_is_forgotten_while_its_keeper_is_still_leaving(tmp_path: Path, play: Play) -> None:
    """Another program may be given to the VM at that moment: it must be started once the keeper is gone."""

    async def story() -> None:
        async with house_in(tmp_path) as house:
            link = await house.meet(FakeSupervisor("vm-1"))
            house.keepers.mark_ended(KEY)
            assert house.keepers.has_program_ended(KEY)
            house.keepers.forget(KEY)
            assert not house.keepers.has_program_ended(KEY)
            assert house.keepers.is_supervised(KEY)
            assert house.keepers.unregister(KEY, link)
            link.close()
        async with house_in(tmp_path) as house:
            assert not house.keepers.has_program_ended(KEY)

    play(story())
