"""The process hypervisor orders acts from supervisors; each takes effect once.

A fake supervisor uses the protocol of `forewarn.vms` on one end of a socket pair.
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
from forewarn.machines.interface import ActDone, ActUnderWay, Hypervisor, is_process_alive
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.process.connection import SupervisorConnection
from forewarn.machines.process.hypervisor import (
    ProcessHypervisor,
    SupervisorRecord,
    SupervisorRecords,
    SupervisorRegistry,
)
from forewarn.machines.simulated import SimulatedHypervisor
from tests.support.fake_supervisor import FakeSupervisor, FakeSupervisorJournal, process_start_time

NOW = 1_700_000_000.0
KEY = "s/g/vm-1"
LOOPS: list[Any] = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(uvloop.new_event_loop, id="uvloop"),
]


def an_act(verb: Verb, event_id: str = "E1", **facts: Any) -> Act:
    values = {"from_host": "host-1", **facts}
    return Act(id=act_id(event_id, "vm-1"), vm=KEY, name="vm-1", verb=verb, event_id=event_id, **values)


@dataclass(kw_only=True)
class ServiceRun:
    """One run of the service; the files in its directory outlive it."""

    supervisors: SupervisorRegistry
    process: ProcessHypervisor
    ledger: EffectLedger

    async def connect(self, supervisor: FakeSupervisor) -> SupervisorConnection:
        """Connect a supervisor as the server does: hello, welcome, registration."""
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        connection = SupervisorConnection(ours)
        attaching = asyncio.create_task(supervisor.attach(theirs))
        notification = await connection.receive()
        assert notification is not None
        assert notification.hello is not None
        connection.identify(notification.hello)
        self.supervisors.register(KEY, connection)
        connection.send({"welcome": {"vm": {"name": "vm-1"}}})
        await attaching
        return connection

    async def perform_until_done(self, act: Act, now: float = NOW) -> ActDone:
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
        for connection in self.supervisors.connections.values():
            connection.close()
        await self.process.close()


def open_run(directory: Path, *, grace_s: float = 5.0, answer_timeout_s: float = 5.0) -> ServiceRun:
    ledger = EffectLedger(directory / "ledger.db")
    supervisors = SupervisorRegistry(SupervisorRecords(directory / "vms"), grace_s=grace_s)
    return ServiceRun(
        supervisors=supervisors,
        process=ProcessHypervisor(supervisors, SimulatedHypervisor(ledger), answer_timeout_s=answer_timeout_s),
        ledger=ledger,
    )


@asynccontextmanager
async def service_run(
    directory: Path, *, grace_s: float = 5.0, answer_timeout_s: float = 5.0
) -> AsyncIterator[ServiceRun]:
    run = open_run(directory, grace_s=grace_s, answer_timeout_s=answer_timeout_s)
    try:
        yield run
    finally:
        await run.close()


@pytest.fixture(params=LOOPS)
def run_scenario(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_coroutine(scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario)

    return run_coroutine


RunScenario = Callable[[Coroutine[Any, Any, None]], None]


def test_an_act_on_a_vm_without_a_supervisor_is_performed_by_the_fallback(
    tmp_path: Path, run_scenario: RunScenario
) -> None:
    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            assert await run.perform(an_act(Verb.REBOOT), NOW) == ActUnderWay(at=NOW + 30)
            assert await run.perform_until_done(an_act(Verb.REBOOT)) == ActDone(ok=True, note="reboot took 30 s")

    run_scenario(scenario())


def test_an_order_says_what_happens_to_the_vm(tmp_path: Path, run_scenario: RunScenario) -> None:
    supervisor = FakeSupervisor("vm-1")

    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            await run.connect(supervisor)
            perform_until_done = await run.perform_until_done(an_act(Verb.REDEPLOY, to_host="host-2"))
            assert perform_until_done == ActDone(ok=True, note="done by a fake")
            assert run.ledger.effects() == []

    run_scenario(scenario())
    effect = {"effect": "reboot", "wipes_disk": True, "removed_as": "", "abrupt": False}
    order = {"act": "E1:vm-1", "verb": "redeploy", "duration_s": 120.0, "host": "host-2", **effect}
    assert supervisor.orders == [order]


def test_a_failed_act_has_the_note_of_the_supervisor(tmp_path: Path, run_scenario: RunScenario) -> None:
    supervisor = FakeSupervisor("vm-1")
    supervisor.failure_note = "the program did not start: No such file"

    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            await run.connect(supervisor)
            assert await run.perform_until_done(an_act(Verb.REBOOT)) == ActDone(ok=False, note=supervisor.failure_note)

    run_scenario(scenario())


def test_a_freeze_ends_when_lab_time_reaches_its_end(tmp_path: Path, run_scenario: RunScenario) -> None:
    """Spec §12: a clock that is advanced does not wait for nine real seconds."""
    supervisor = FakeSupervisor("vm-1")

    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            await run.connect(supervisor)
            later = await run.perform(an_act(Verb.FREEZE, duration_s=900), NOW)
            assert isinstance(later, ActUnderWay)
            assert NOW + 890 < later.at <= NOW + 900
            assert supervisor.state == "frozen"
            assert await run.perform(an_act(Verb.FREEZE, duration_s=900), NOW + 1) == later
            assert (await run.perform(an_act(Verb.FREEZE, duration_s=900), later.at)) == ActDone(
                ok=True, note="done by a fake"
            )

    run_scenario(scenario())
    assert supervisor.journal.effects == [("E1:vm-1", "freeze")]
    assert supervisor.state == "running"


@pytest.mark.parametrize("verb", [Verb.FREEZE, Verb.REBOOT])
def test_an_act_ordered_before_the_service_died_is_not_done_again(
    tmp_path: Path, run_scenario: RunScenario, verb: Verb
) -> None:
    """The service dies between order and answer; the supervisor then connects to the next one."""
    supervisor = FakeSupervisor("vm-1")

    async def scenario() -> None:
        async with service_run(tmp_path, answer_timeout_s=0.05) as run:
            await run.connect(supervisor)
            supervisor.sends_no_outcomes = True
            with pytest.raises(Unavailable, match="does not answer for act 'E1:vm-1'"):
                await run.perform(an_act(verb, duration_s=60), NOW)
        supervisor.sends_no_outcomes = False
        async with service_run(tmp_path) as run:
            await run.connect(supervisor)
            assert (await run.perform_until_done(an_act(verb, duration_s=60))).ok

    run_scenario(scenario())
    assert supervisor.effect_count("E1:vm-1") == 1
    assert supervisor.journal.thaws_at == {}


def test_an_act_answered_before_the_service_died_needs_no_order(tmp_path: Path, run_scenario: RunScenario) -> None:
    supervisor = FakeSupervisor("vm-1")

    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            await run.connect(supervisor)
            first = await run.perform_until_done(an_act(Verb.REBOOT))
        supervisor.ignores_orders = True
        async with service_run(tmp_path) as run:
            await run.connect(supervisor)
            assert await run.perform_until_done(an_act(Verb.REBOOT)) == first

    run_scenario(scenario())
    assert len(supervisor.orders) == 1


def test_a_restarted_supervisor_knows_outcomes_from_its_journal(tmp_path: Path, run_scenario: RunScenario) -> None:
    journal = FakeSupervisorJournal()

    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            connection = await run.connect(FakeSupervisor("vm-1", journal=journal))
            await run.perform_until_done(an_act(Verb.REBOOT))
            connection.close()
            run.supervisors.unregister(KEY, connection)
            await run.connect(FakeSupervisor("vm-1", journal=journal))
            assert (await run.perform_until_done(an_act(Verb.REBOOT))).ok

    run_scenario(scenario())
    assert journal.effects == [("E1:vm-1", "reboot")]


def test_an_act_waits_for_a_supervisor_that_is_away_for_a_moment(tmp_path: Path, run_scenario: RunScenario) -> None:
    """The service restarts faster than the supervisor reconnects: the act is not simulated meanwhile."""
    supervisor = FakeSupervisor("vm-1")

    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            await run.connect(supervisor)
        async with service_run(tmp_path) as run:
            performing = asyncio.create_task(run.perform_until_done(an_act(Verb.REBOOT)))
            await asyncio.sleep(0)
            assert not performing.done()
            await run.connect(supervisor)
            assert (await performing).ok
            assert run.ledger.effects() == []

    run_scenario(scenario())
    assert supervisor.effect_count("E1:vm-1") == 1


def test_a_live_supervisor_that_does_not_reconnect_makes_its_vm_unavailable(
    tmp_path: Path, run_scenario: RunScenario
) -> None:
    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            await run.connect(FakeSupervisor("vm-1"))
        async with service_run(tmp_path, grace_s=0.05) as run:
            with pytest.raises(Unavailable, match=rf"process {os.getpid()}\) is alive but does not connect"):
                await run.perform(an_act(Verb.REBOOT), NOW)
            assert run.ledger.effects() == []

    run_scenario(scenario())


def test_a_supervisor_that_has_just_died_is_not_said_to_be_alive(tmp_path: Path, run_scenario: RunScenario) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:

        async def scenario() -> None:
            async with service_run(tmp_path, grace_s=0.05) as run:
                connection = await run.connect(FakeSupervisor("vm-1", pid=child.pid))
                child.kill()
                child.wait()
                connection.close()  # it is still registered, because the server is busy with its last message
                with pytest.raises(Unavailable, match=rf"process {child.pid}\) has ended, and its connection is still"):
                    await run.perform(an_act(Verb.REBOOT), NOW)
                assert run.ledger.effects() == []

        run_scenario(scenario())


def test_acts_on_a_vm_whose_supervisor_died_are_performed_by_the_fallback(
    tmp_path: Path, run_scenario: RunScenario
) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:

        async def scenario() -> None:
            async with service_run(tmp_path) as run:
                connection = await run.connect(FakeSupervisor("vm-1", pid=child.pid))
                os.kill(child.pid, signal.SIGKILL)
                connection.close()
                run.supervisors.unregister(KEY, connection)
                perform_until_done = await run.perform_until_done(an_act(Verb.REBOOT))
                gone = f"its supervisor (process {child.pid}) is gone, and its program with it"
                assert perform_until_done == ActDone(ok=True, note=f"reboot took 30 s; {gone}")
                assert await run.perform_until_done(an_act(Verb.REBOOT, "E2")) == ActDone(
                    ok=True, note="reboot took 30 s"
                )

        run_scenario(scenario())


def test_a_supervisor_that_disconnects_during_an_act_gets_the_order_again(
    tmp_path: Path, run_scenario: RunScenario
) -> None:
    supervisor = FakeSupervisor("vm-1")

    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            connection = await run.connect(supervisor)
            supervisor.ignores_orders = True
            performing = asyncio.create_task(run.perform(an_act(Verb.REBOOT), NOW))
            await supervisor.wait_until(lambda: supervisor.orders)
            await supervisor.disconnect()
            with pytest.raises(Unavailable, match="has disconnected"):
                await performing
            run.supervisors.unregister(KEY, connection)
            supervisor.ignores_orders = False
            await run.connect(supervisor)
            assert (await run.perform_until_done(an_act(Verb.REBOOT))).ok

    run_scenario(scenario())
    assert supervisor.effect_count("E1:vm-1") == 1


def test_an_act_begun_by_the_fallback_stays_with_the_fallback(tmp_path: Path, run_scenario: RunScenario) -> None:
    """A program that starts in the VM meanwhile must not be rebooted a second time."""
    supervisor = FakeSupervisor("vm-1")

    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            assert isinstance(await run.perform(an_act(Verb.REBOOT), NOW), ActUnderWay)
        async with service_run(tmp_path) as run:
            await run.connect(supervisor)
            assert await run.perform_until_done(an_act(Verb.REBOOT)) == ActDone(ok=True, note="reboot took 30 s")

    run_scenario(scenario())
    assert supervisor.orders == []


def test_a_vm_has_one_supervisor(tmp_path: Path, run_scenario: RunScenario) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:

            async def scenario() -> None:
                async with service_run(tmp_path) as run:
                    await run.connect(FakeSupervisor("vm-1", pid=child.pid))
                    sentence = f"VM 'vm-1' already runs a program (supervisor: process {child.pid}): end that one first"
                    second = asyncio.create_task(run.connect(FakeSupervisor("vm-1")))
                    with pytest.raises(Refused, match=re.escape(sentence)):
                        await second

            run_scenario(scenario())
        finally:
            child.kill()


def test_a_malformed_message_closes_the_connection(tmp_path: Path, run_scenario: RunScenario) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        connection = SupervisorConnection(ours)
        theirs.sendall(b'{"hello": 7}\n')
        assert await connection.receive() is None
        assert b"the message is not understood" in theirs.recv(4096)
        theirs.close()

    run_scenario(scenario())


def test_a_process_is_distinguished_from_a_later_one_with_the_same_pid() -> None:
    assert is_process_alive(os.getpid(), process_start_time(os.getpid()))
    assert not is_process_alive(os.getpid(), "1")
    assert not is_process_alive(0, "")


class TestProcess(HypervisorConformance):
    """With a connected supervisor, it passes the suite for every hypervisor."""

    @pytest.fixture(autouse=True)
    def _use_own_directory(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.supervisor = FakeSupervisor("vm-1")

    async def open(self) -> Hypervisor:
        run = open_run(self.folder)
        await run.connect(self.supervisor)
        return run

    def effects(self, act: Act) -> int:
        return self.supervisor.effect_count(act.id)


def test_an_ended_program_can_be_forgotten_while_its_supervisor_still_exits(
    tmp_path: Path, run_scenario: RunScenario
) -> None:
    """The VM may get another program at that moment, which must start once the supervisor is gone."""

    async def scenario() -> None:
        async with service_run(tmp_path) as run:
            connection = await run.connect(FakeSupervisor("vm-1"))
            run.supervisors.mark_ended(KEY)
            assert run.supervisors.has_program_ended(KEY)
            run.supervisors.forget(KEY)
            assert not run.supervisors.has_program_ended(KEY)
            assert run.supervisors.is_supervised(KEY)
            assert run.supervisors.unregister(KEY, connection)
            connection.close()
        async with service_run(tmp_path) as run:
            assert not run.supervisors.has_program_ended(KEY)

    run_scenario(scenario())


def test_a_record_that_could_not_be_written_is_written_by_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "vms").write_text("a file where the directory should be")
    records, record = SupervisorRecords(tmp_path / "vms"), SupervisorRecord(vm="sub/lab/web", pid=1)
    with pytest.raises(OSError, match="vms"):
        records.save(record)
    (tmp_path / "vms").unlink()
    records.save(record)
    assert list((tmp_path / "vms").glob("*/*"))
