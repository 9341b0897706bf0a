"""A control node that cannot reach its record refuses nothing, and a fence command may take its time."""

from __future__ import annotations

import asyncio

from forewarn.base.times import RealTime
from forewarn.cluster.bus import NoAnswer, Subjects
from forewarn.cluster.messages import OrderReport, encode_bus_message
from forewarn.cluster.move_plan import MoveSettlements
from forewarn.cluster.node_registry import NodeRegistry, NodeSilence
from forewarn.cluster.remote_hypervisor import ClusterView, RemoteHypervisor
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.core.request import RequestedOperation
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.moves import MoveStep, StepReport
from forewarn.store.memory import MemoryStore
from tests.simulation.virtual_loop import VirtualTimeLoop
from tests.support import cluster_world
from tests.support.cluster_world import ChangingTerm, ClusterWorld, run_cluster
from tests.support.memory_bus import decode_order
from tests.support.world import a_host, a_vm

HOSTS = [a_host("h1"), a_host("h2")]
VMS = [a_vm("web", host="h1", address="10.0.0.1"), a_vm("db", host="h2", address="10.0.0.2")]


async def bind_to_given_host(act: Act, host: str) -> str:
    return host


def test_a_suspended_control_node_does_not_refuse_approvals_that_the_active_one_accepts() -> None:
    """It does not know that the VM was moved to another host since."""

    async def scenario(world: ClusterWorld) -> None:
        first, second = await world.start_node("h1"), await world.start_node("h2")
        suspended = world.active
        world.term.is_held = False
        world.term = ChangingTerm(number=2)
        world.store = world.store.copy()
        world.active = cluster_world.ControlNode(world, 2)
        await world.active.start()
        await asyncio.sleep(3)

        (moved,) = await world.ask(RequestedOperation.REDEPLOY, "web")
        await asyncio.sleep(0.1)
        assert (await world.approve(first, "web", moved)).status == 200
        await world.wait_until(lambda: world.vm("web").host == "h2")
        await asyncio.sleep(5)
        (restart,) = await world.ask(RequestedOperation.RESTART, "web")
        await asyncio.sleep(0.5)
        assert (await world.approve(second, "web", restart)).status == 200
        event = world.store.event(restart)
        assert event is not None
        assert event.approved_at is not None
        await suspended.kill()

    run_cluster(scenario, vms=VMS, hosts=HOSTS)


class BusWithSlowFence:
    """The source is silent; the destination runs a fence command that takes seconds, and keeps its result briefly."""

    def __init__(self) -> None:
        self.commands: list[float] = []  # when one was begun
        self.steps: list[MoveStep | None] = []

    async def request(self, subject: str, payload: bytes, *, timeout_s: float) -> bytes:
        if subject.endswith(".h1"):
            await asyncio.sleep(timeout_s)
            raise NoAnswer("silent")
        order, now = decode_order(payload), asyncio.get_running_loop().time()
        self.steps.append(order.step)
        answer: ActDone | ActUnderWay = ActDone(True)
        if order.step is MoveStep.FENCE:
            if not self.commands or now - self.commands[-1] > 15:
                self.commands.append(now)
            if now - self.commands[-1] < 5:
                answer = ActUnderWay(at=order.now + 1, note="the fence command is running")
        return encode_bus_message(OrderReport(StepReport.of(answer)))


def test_the_result_of_a_slow_fence_command_counts() -> None:
    async def scenario() -> None:
        loop, bus = asyncio.get_running_loop(), BusWithSlowFence()
        view = ClusterView(
            term=lambda: 1,
            is_held=lambda: True,
            store_tag=lambda: "tag",
            hosts=lambda: ["h2"],
            bind_act=bind_to_given_host,
            is_confirmed_down=lambda host: False,
            silence_text=lambda host: f"waits for the node of host {host}",
            host_scopes=lambda host, vm: (),
            real_time=lambda: RealTime(loop.time()),
            failed_moves=lambda act: (),
            settlements=MoveSettlements(MemoryStore),
        )
        hypervisor = RemoteHypervisor(bus, Subjects(), view)  # type: ignore[arg-type]
        act = Act(
            id="a",
            vm="sub/lab/web",
            name="web",
            verb=Verb.REDEPLOY,
            event_id="e",
            from_host="h1",
            to_host="h2",
            abrupt=True,
        )
        for _ in range(60):
            answer = await hypervisor.perform(act, loop.time())
            if isinstance(answer, ActDone):
                break
            await asyncio.sleep(1)
        assert isinstance(answer, ActDone)
        assert len(bus.commands) == 1
        assert bus.steps[-1] is MoveStep.ACTIVATE

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(scenario())


def test_a_host_whose_node_has_not_joined_counts_as_silent_from_the_start() -> None:
    """Otherwise an event would start right after a takeover although its VM cannot poll."""
    assert NodeRegistry().silence_of("h1", now=0.0) == NodeSilence(None, None)
