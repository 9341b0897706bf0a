"""A move of a real VM between two hosts with a hypervisor and a journal each, ordered step by step.

Each node is killed before and after every call of its driver and every write of its journal, hosts do not answer or
lose their answers, and the control node that orders the steps forgets everything between any two of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.cluster.move_plan import MoveProgress, StepOrder, next_step
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.driver import MachineState
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.moves import MoveHandover, MoveRelease, MoveStep, SteppedHypervisor, StepReport
from tests.support.disturbed_calls import Disturbance, DisturbedCalls, ServiceKilled
from tests.support.fake_machines import FakeBehaviour, FakeHosts, FakeMachines
from tests.support.machine_acts import POLICY, START, DisturbedJournal, machine_act

RUNNING, OFF = MachineState.RUNNING, MachineState.OFF
SOURCE, DESTINATION = "host-1", "host-2"
_MAX_ORDERS = 300


class OneHost(FakeMachines):
    """The driver of one host, which reaches no other."""

    def __init__(self, hosts: FakeHosts, calls: DisturbedCalls, host: str) -> None:
        super().__init__(hosts, calls)
        self._host = host

    def _call(self, operation: str, host: str, effect: Any) -> Any:
        assert host == self._host, f"the node of {self._host} was asked to {operation} on {host}"
        return super()._call(operation, host, effect)


class TwoNodes:
    """Two hosts, each with a node, and a control node that orders the steps of moves."""

    def __init__(self, directory: Path, **behaviour: Any) -> None:
        self.directory = directory
        self.hosts = FakeHosts(behaviour=FakeBehaviour(**behaviour))
        self.now = START
        self.orders: list[tuple[str, MoveStep]] = []  # of the latest move
        self._nodes: dict[str, MachineHypervisor] = {}
        self.calls = DisturbedCalls()

    def node(self, host: str) -> MachineHypervisor:
        """The node of a host, opened on its journal as it is."""
        if host not in self._nodes:
            driver = OneHost(self.hosts, self.calls, host)
            journal = DisturbedJournal(self.directory / f"{host}.db", self.calls)
            self._nodes[host] = MachineHypervisor(driver, journal, POLICY, real_clock=self.hosts.clock)
        return self._nodes[host]

    async def close(self) -> None:
        """Close all nodes; the journals stay."""
        for node in self._nodes.values():
            await node.close()
        self._nodes.clear()

    async def order(self, act: Act, step: MoveStep, given: MoveHandover = MoveHandover()) -> StepReport:
        """Order a step until it is over; a node that is killed is opened again."""
        host = act.from_host if step not in _ON_DESTINATION else act.to_host
        self.orders.append((host, step))
        for _ in range(_MAX_ORDERS):
            try:
                report = await self.node(host).perform_step(act, step, given, self.now)
            except ServiceKilled:
                await self.close()
                self.calls = DisturbedCalls()
                continue
            if report.done is not None:
                return report
            answer = report.answer
            assert isinstance(answer, ActUnderWay)
            self.now = max(self.now, answer.at)
        raise AssertionError(f"{step} on {host} does not end: {report.answer.note}")

    async def move(self, act: Act, *, forget_after: int = -1) -> ActDone:
        """Order all steps of a move; the control node forgets everything after that many of them."""
        self.orders = []
        progress = MoveProgress(act)
        while isinstance(following := next_step(progress), StepOrder):
            progress.record(following.step, await self.order(act, following.step, following.given))
            if len(self.orders) == forget_after:
                progress = MoveProgress(act)
        return following


_ON_DESTINATION = (MoveStep.PREPARE, MoveStep.ACTIVATE, MoveStep.UNDO, MoveStep.FENCE)
CASES: dict[str, tuple[Verb, Mapping[str, Any], Mapping[str, Any], MachineState]] = {
    # name: verb, fields of the act, behaviour of the hosts, the state of the VM before and afterwards
    "migrate": (Verb.MIGRATE, {}, {}, RUNNING),
    "migrate a VM that is off": (Verb.MIGRATE, {}, {}, OFF),
    "redeploy": (Verb.REDEPLOY, {}, {}, RUNNING),
    "redeploy by force": (Verb.REDEPLOY, {}, {"shutdown_s": math.inf}, RUNNING),
    "redeploy a stopped VM": (Verb.REDEPLOY, {"is_stopped": True}, {}, OFF),
}


async def perform_case(nodes: TwoNodes, name: str, vm: str, *, forget_after: int = -1) -> None:
    """Move a new VM, and check that it has arrived once."""
    verb, fields, _, state = CASES[name]
    nodes.hosts.add(SOURCE, vm, state)
    done = await nodes.move(machine_act(verb, vm=vm, **fields), forget_after=forget_after)
    noticed = [entry.what for entry in nodes.hosts.log if entry.vm == vm and entry.host == DESTINATION]
    assert done.ok, f"{vm}: {done.note}"
    assert nodes.hosts.states(vm) == {DESTINATION: state}, vm
    expected = [] if state is OFF else ["arrived" if verb is Verb.MIGRATE else "booted"]
    assert [what for what in noticed if what in ("arrived", "booted", "resumed")] == expected, vm
    await nodes.close()


@pytest.mark.parametrize("name", CASES)
def test_a_move_takes_effect_once_whichever_call_of_a_node_is_disturbed(tmp_path: Path, name: str) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path, **CASES[name][2])
        await perform_case(nodes, name, "undisturbed")
        kinds = (Disturbance.KILL_BEFORE, Disturbance.KILL_AFTER, Disturbance.UNREACHABLE, Disturbance.LOST_ANSWER)
        calls = nodes.calls.calls
        assert calls > 10
        for number, kind in product(range(calls), kinds):
            nodes.calls = DisturbedCalls(number=number, kind=kind)
            await perform_case(nodes, name, f"vm-{number}-{kind.name.lower()}")

    asyncio.run(run())


@pytest.mark.parametrize("name", CASES)
def test_a_move_takes_effect_once_if_the_control_node_forgets_it_after_any_step(tmp_path: Path, name: str) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path, **CASES[name][2])
        for number in range(1, 6):
            await perform_case(nodes, name, f"vm-{number}", forget_after=number)

    asyncio.run(run())


def test_a_release_goes_on_as_soon_as_its_host_reports_that_the_vm_was_sent(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path, migration_s=0.01, reports_changes=True)
        nodes.hosts.add(SOURCE, "web-1")
        act = machine_act(Verb.MIGRATE, vm="web-1")
        described = await nodes.order(act, MoveStep.DESCRIBE)
        prepared = await nodes.order(act, MoveStep.PREPARE, described.handover)
        before = nodes.hosts.clock.now()
        released = await nodes.order(act, MoveStep.RELEASE, prepared.handover)
        assert released.handover.release is MoveRelease.SENT
        assert nodes.hosts.clock.now() - before < POLICY.poll_interval_s
        await nodes.close()

    asyncio.run(run())


def test_the_steps_of_a_move_are_ordered_from_the_host_that_performs_them(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path)
        await perform_case(nodes, "migrate", "web-1")
        assert nodes.orders == [
            (SOURCE, MoveStep.DESCRIBE),
            (DESTINATION, MoveStep.PREPARE),
            (SOURCE, MoveStep.RELEASE),
            (DESTINATION, MoveStep.ACTIVATE),
            (SOURCE, MoveStep.CLEAN_UP),
        ]
        assert isinstance(nodes.node(SOURCE), SteppedHypervisor)
        await nodes.close()

    asyncio.run(run())


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY])
def test_a_vm_that_its_new_host_cannot_boot_runs_on_its_old_one_again(tmp_path: Path, verb: Verb) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path, refused={"power_on on host-2": "there is no KVM"})
        if verb is Verb.MIGRATE:  # the state was sent, but the destination loses it
            nodes.hosts.behaviour.migration_s = 0.0
        nodes.hosts.add(SOURCE, "web-1")
        act = machine_act(verb, vm="web-1")
        if verb is Verb.MIGRATE:
            await nodes.order(act, MoveStep.DESCRIBE)
            prepared = await nodes.order(act, MoveStep.PREPARE, MoveHandover(definition=b"web-1"))
            released = await nodes.order(act, MoveStep.RELEASE, prepared.handover)
            assert released.handover.release is MoveRelease.SENT
            nodes.hosts.machines[DESTINATION]["web-1"].state = OFF
        done = await nodes.move(act)
        assert not done.ok
        assert done.note == "there is no KVM; web-1 was started on host-1 again"
        assert nodes.hosts.states("web-1") == {SOURCE: RUNNING}
        again = await nodes.move(act)  # as after a restart of the control node
        assert (again.ok, again.note) == (False, "web-1 was taken back by host-1; there is no KVM")
        assert nodes.hosts.states("web-1") == {SOURCE: RUNNING}
        await nodes.close()

    asyncio.run(run())


def test_a_migration_that_does_not_end_in_time_is_stopped_and_undone(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path, migration_s=math.inf)
        nodes.hosts.add(SOURCE, "web-1")
        done = await nodes.move(machine_act(Verb.MIGRATE))
        assert not done.ok
        assert done.note == "web-1 could not be migrated in time (75 % sent, 1 MiB remain): it continues on host-1"
        assert nodes.hosts.states("web-1") == {SOURCE: RUNNING}
        assert nodes.orders[-1] == (DESTINATION, MoveStep.UNDO)
        await nodes.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_release_waits_for_a_source_that_does_not_let_its_mark_be_read(tmp_path: Path, is_silent: bool) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path, migration_s=math.inf)
        nodes.hosts.add(SOURCE, "web-1")
        act = machine_act(Verb.MIGRATE)
        prepared = await nodes.order(act, MoveStep.PREPARE, MoveHandover(definition=b"web-1"))
        await nodes.node(SOURCE).perform_step(act, MoveStep.RELEASE, prepared.handover, nodes.now)
        await nodes.close()
        (tmp_path / f"{SOURCE}.db").unlink()  # the mark on the VM says that it is being sent
        if is_silent:
            nodes.hosts.behaviour.unreachable.add(SOURCE)
        else:
            nodes.hosts.behaviour.refused["read_mark"] = "permission denied"
        report = await nodes.node(SOURCE).perform_step(act, MoveStep.RELEASE, prepared.handover, nodes.now)
        answer = report.answer
        assert isinstance(answer, ActUnderWay)
        assert (answer.note, answer.waits_for_host) == (
            ("host-1 does not answer", SOURCE) if is_silent else ("permission denied", "")
        )
        nodes.hosts.behaviour.unreachable.clear()
        nodes.hosts.behaviour.refused.clear()
        nodes.hosts.behaviour.migration_s = 0.0
        released = await nodes.order(act, MoveStep.RELEASE, prepared.handover)
        assert released.handover.release is MoveRelease.SENT
        await nodes.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_sending", [False, True])
def test_a_release_that_was_withdrawn_is_never_given(tmp_path: Path, is_sending: bool) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path, migration_s=math.inf)
        nodes.hosts.add(SOURCE, "web-1")
        act = machine_act(Verb.MIGRATE)
        prepared = await nodes.order(act, MoveStep.PREPARE, MoveHandover(definition=b"web-1"))
        if is_sending:
            report = await nodes.node(SOURCE).perform_step(act, MoveStep.RELEASE, prepared.handover, nodes.now)
            assert report.answer.note == "75 % sent, 1 MiB remain"
        withdrawn = await nodes.order(act, MoveStep.WITHDRAW)
        assert withdrawn.handover.release is None
        nodes.hosts.behaviour.migration_s = 0.0
        released = await nodes.order(act, MoveStep.RELEASE, prepared.handover)
        assert released.done == ActDone(False, "web-1 was not released")
        assert nodes.hosts.states("web-1")[SOURCE] is RUNNING
        await nodes.close()

    asyncio.run(run())


def test_a_vm_is_not_activated_without_a_release_or_after_its_preparation_was_undone(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path)
        nodes.hosts.add(SOURCE, "web-1")
        act = machine_act(Verb.REDEPLOY)
        await nodes.order(act, MoveStep.PREPARE, MoveHandover(definition=b"web-1"))
        unreleased = await nodes.order(act, MoveStep.ACTIVATE)
        assert unreleased.done == ActDone(False, "host-1 has not released web-1")
        assert (await nodes.order(act, MoveStep.UNDO)).done == ActDone(True)
        late = await nodes.order(act, MoveStep.ACTIVATE, MoveHandover(release=MoveRelease.STOPPED))
        assert late.done == ActDone(False, "what host-2 had prepared for web-1 was undone")
        assert nodes.hosts.states("web-1") == {SOURCE: RUNNING}
        await nodes.close()

    asyncio.run(run())


def test_late_orders_of_a_move_do_not_touch_a_vm_that_has_come_back(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path)
        nodes.hosts.add(SOURCE, "web-1")
        there = machine_act(Verb.REDEPLOY, event_id="there")
        back = replace(there, id="back", from_host=DESTINATION, to_host=SOURCE)
        assert (await nodes.move(there)).ok
        nodes.now += 60
        assert (await nodes.move(back)).ok
        for step in MoveStep:
            await nodes.order(there, step, MoveHandover(release=MoveRelease.STOPPED))
        assert nodes.hosts.states("web-1") == {SOURCE: RUNNING}
        await nodes.close()

    asyncio.run(run())


def test_a_whole_act_ends_the_steps_of_a_move_that_was_given_up_first(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path, migration_s=math.inf)
        nodes.hosts.add(SOURCE, "web-1")
        act = machine_act(Verb.MIGRATE)
        prepared = await nodes.order(act, MoveStep.PREPARE, MoveHandover(definition=b"web-1"))
        await nodes.node(SOURCE).perform_step(act, MoveStep.RELEASE, prepared.handover, nodes.now)
        reboot = machine_act(Verb.REBOOT, event_id="reboot")
        nodes.hosts.behaviour.unreachable.add(SOURCE)
        waiting = await nodes.node(SOURCE).perform(reboot, nodes.now)
        assert isinstance(waiting, ActUnderWay)
        assert waiting.note == "an earlier move must end first: host-1 does not answer: waiting for it"
        assert waiting.waits_for_host == SOURCE
        nodes.hosts.behaviour.unreachable.clear()
        for _ in range(_MAX_ORDERS):
            answer = await nodes.node(SOURCE).perform(reboot, nodes.now)
            if isinstance(answer, ActDone):
                break
            nodes.now = max(nodes.now, answer.at)
        assert isinstance(answer, ActDone)
        assert answer.ok
        withdrawn = await nodes.order(act, MoveStep.RELEASE, prepared.handover)
        assert withdrawn.done == ActDone(False, "web-1 was not released")
        assert nodes.hosts.states("web-1")[SOURCE] is RUNNING
        await nodes.close()

    asyncio.run(run())


def test_the_destination_fences_a_source_if_it_has_a_command_for_that(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = TwoNodes(tmp_path)
        nodes.hosts.add(SOURCE, "web-1")
        act = machine_act(Verb.REDEPLOY, abrupt=True)
        refused = await nodes.order(act, MoveStep.FENCE)
        assert refused.done == ActDone(False, "host-2 has no fence command for it, or the command failed")
        nodes.hosts.behaviour.can_fence = True
        await nodes.hosts.clock.sleep_until(nodes.hosts.clock.now() + POLICY.fence_interval_s)
        assert (await nodes.order(act, MoveStep.FENCE)).done == ActDone(True)
        await nodes.close()

    asyncio.run(run())
