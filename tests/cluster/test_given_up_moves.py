"""Moves between host nodes that were given up never lead to a second copy of the VM, in any order of events.

Random walks with fixed seeds: a VM is moved again and again, hosts are silent, lose their answers, crash, are
confirmed down and come back, and the active control node is killed before and after any order.
"""

from __future__ import annotations

import asyncio
from random import Random

from msgspec.structs import replace

from forewarn.base.times import RealTime
from forewarn.cluster.bus import NoAnswer, Subjects
from forewarn.cluster.messages import ActOrder, OrderReport, encode_bus_message
from forewarn.cluster.move_plan import MoveSettlements
from forewarn.cluster.remote_hypervisor import ClusterView, RemoteHypervisor
from forewarn.core.cause import Cause, Verb
from forewarn.core.commit import Commit
from forewarn.core.event import Act, ActOutcome, Event
from forewarn.core.request import RequestedOperation
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.moves import MoveHandover, MoveRelease, MoveStep, StepReport
from forewarn.store.memory import MemoryStore
from tests.simulation.virtual_loop import VirtualTimeLoop
from tests.support.cluster_world import ClusterWorld, run_cluster
from tests.support.memory_bus import decode_order
from tests.support.world import a_host, a_vm

HOST_NAMES = ("h1", "h2", "h3", "h4")
_SEEDS, _CHANGES = range(35, 65), 60


class SimpleHost:
    """A host with a ledger of steps, known by act id and step, and perhaps the VM."""

    def __init__(self, *, is_running: bool) -> None:
        self.is_running = is_running
        self.is_silent = self.is_down = self.is_confirmed = False
        self.done: dict[tuple[str, str], bool] = {}

    def carry_out(self, order: ActOrder, chance: Random) -> StepReport:
        """Perform a step once, or answer as the first time."""
        act, step, abrupt = order.act.id, order.step, order.act.abrupt
        match step:
            case MoveStep.RELEASE | MoveStep.WITHDRAW if (act, "return") in self.done:
                return StepReport.of(ActDone(step is MoveStep.WITHDRAW))
            case MoveStep.RELEASE | MoveStep.WITHDRAW:
                is_given = step is MoveStep.RELEASE and chance.random() < 0.9
                if self.done.setdefault((act, "release"), is_given):
                    if is_given and self.done.setdefault((act, "stop"), True):
                        self.is_running = False
                    return StepReport.of(ActDone(True), MoveHandover(release=MoveRelease.STOPPED))
                return StepReport.of(ActDone(step is MoveStep.WITHDRAW))
            case MoveStep.ACTIVATE:
                if (act, "activate") not in self.done:
                    is_ok = order.given.release is not None and (act, "undo") not in self.done and chance.random() < 0.9
                    self.done[act, "activate"] = is_ok
                    self.is_running = self.is_running or is_ok
                return StepReport.of(ActDone(self.done[act, "activate"]))
            case MoveStep.UNDO:
                self.done[act, "undo"] = not self.done.get((act, "activate"), False)
                return StepReport.of(ActDone(self.done[act, "undo"]))
            case MoveStep.RETURN:
                if (act, "return") not in self.done:
                    self.done[act, "return"] = True
                    self.is_running = self.is_running or not abrupt
        return StepReport.of(ActDone(True))


class ForgetfulSettlements(MoveSettlements):
    """Keeps nothing: a wrong implementation, to be found out."""

    async def keep_found(self, failed: Act, host: str) -> None:
        pass

    async def keep_returning(self, failed: Act) -> None:
        pass

    async def keep_fenced(self, act: Act) -> None:
        pass


class Walk:
    """One VM, its hosts, and the control node that moves it; also the bus between them."""

    def __init__(self, seed: int, settlements: type[MoveSettlements]) -> None:
        self.chance = Random(seed)
        self.hosts = {name: SimpleHost(is_running=name == "h1") for name in HOST_NAMES}
        self.store = MemoryStore()
        self.settlements = settlements
        self.vm_host = "h1"  # as the fleet says
        self.failed: list[Act] = []
        self.made = self.settled = 0
        self.story = ""  # of the first time that the VM ran twice; "": never
        self.killed = asyncio.Event()  # the process of the control node
        self.log: list[str] = []
        self.hypervisor = self._start()

    def _start(self) -> RemoteHypervisor:
        """The next process of the control node."""

        async def bind(act: Act, host: str) -> str:
            return host

        view = ClusterView(
            term=lambda: 1,
            is_held=lambda: True,
            store_tag=lambda: "tag",
            hosts=lambda: HOST_NAMES,
            bind_act=bind,
            is_confirmed_down=lambda host: self.hosts[host].is_confirmed,
            silence_text=lambda host: f"waits for {host}",
            host_scopes=lambda host, vm: (),
            real_time=lambda: RealTime(asyncio.get_running_loop().time()),
            failed_moves=lambda act: tuple(self.failed),
            settlements=self.settlements(lambda: self.store),
        )
        return RemoteHypervisor(self, Subjects(), view)  # type: ignore[arg-type]

    async def request(self, subject: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Carry out an order, unless its host is silent."""
        name, order = subject.rpartition(".")[2], decode_order(payload)
        host, luck = self.hosts[name], self.chance.random()
        if luck < 0.03:
            self.killed.set()
        if host.is_silent or host.is_down or self.killed.is_set():
            await asyncio.sleep(timeout_s)
            raise NoAnswer("silent")
        if order.step is MoveStep.FENCE:
            is_fenced = self.chance.random() < 0.5
            if is_fenced:
                self.crash(order.act.from_host)
            return encode_bus_message(OrderReport(StepReport.of(ActDone(is_fenced))))
        report = host.carry_out(order, self.chance)
        self.log.append(f"{order.act.id} {order.step} {name}: {report.done} {report.handover.release}")
        running = [name for name, each in self.hosts.items() if each.is_running]
        if len(running) > 1 and not self.story:
            self.story = "\n".join([*self.log, f"it runs on {running}"])
        if luck < 0.06:
            self.killed.set()
        elif luck < 0.12:
            self.silence(name)
        if luck < 0.12:
            await asyncio.sleep(timeout_s)
            raise NoAnswer("lost")
        return encode_bus_message(OrderReport(report))

    def crash(self, name: str) -> None:
        host = self.hosts[name]
        host.is_down, host.is_silent, host.is_running = True, False, False
        self.log.append(f"{name} is down")

    def silence(self, name: str) -> None:
        host = self.hosts[name]
        host.is_silent = True
        host.is_confirmed = False  # it was repaired
        self.log.append(f"{name} is silent")

    def change_hosts(self) -> None:
        """Let something happen to a host, or not."""
        name = self.chance.choice(HOST_NAMES)
        host = self.hosts[name]
        match self.chance.randrange(5):
            case 0 if not (host.is_down or host.is_silent):
                self.crash(name)
            case 1 if not (host.is_down or host.is_silent):
                self.silence(name)
            case 2 if host.is_down:
                host.is_confirmed = True
                self.log.append(f"{name} is confirmed down")
            case 3 | 4 if host.is_down or host.is_silent:  # its repair may not be stated yet
                host.is_down = host.is_silent = False
                self.log.append(f"{name} is back")

    async def make_act(self) -> Act:
        """A move of the VM from where the fleet says it is, in an event that is stored."""
        self.made += 1
        to_host = self.chance.choice([name for name in HOST_NAMES if name != self.vm_host])
        act = Act(
            id=f"E{self.made}:web",
            vm="sub/lab/web",
            name="web",
            verb=Verb.REDEPLOY,
            event_id=f"E{self.made}",
            from_host=self.vm_host,
            to_host=to_host,
            abrupt=self.chance.random() < 0.5,
        )
        await self._store(act)
        self.log.append(f"{act.id} from {act.from_host} to {to_host}{' abruptly' if act.abrupt else ''}")
        return act

    async def _store(self, act: Act) -> None:
        event = Event(
            id=act.event_id,
            scope_id="lab",
            request_id="r",
            cause=Cause.HOST_FAILED,
            requested_by="ann",
            vms=("web",),
            published_at=0.0,
            not_before=0.0,
            acts=(act,),
        )
        await self.store.commit(Commit(events=(event,)))

    async def end(self, act: Act, *, ok: bool) -> None:
        """Store how an act ended, or that it was given up."""
        self.log.append(f"{act.id} ended: {ok}")
        await self._store(replace(act, outcome=ActOutcome(ok=ok, at=float(self.made))))
        if ok:
            self.vm_host, self.failed = act.to_host, []
        else:
            self.failed.append(act)

    async def run(self) -> None:
        """Move the VM until enough has happened, or it has run twice."""
        act = await self.make_act()
        for _ in range(_CHANGES):
            for _ in range(self.chance.randrange(3)):
                self.change_hosts()
            answer = await self._perform(act)
            if self.story:
                return
            if answer is None:
                self.log.append("the control node was killed")
                self.killed.clear()
                self.hypervisor = self._start()
                continue
            if isinstance(answer, ActDone):
                self.settled += bool(self.failed)
                await self.end(act, ok=answer.ok)
            elif self.chance.random() < 0.3:
                await self.end(act, ok=False)  # a host of it has failed
            else:
                continue
            act = await self.make_act()

    async def _perform(self, act: Act) -> ActDone | ActUnderWay | None:
        """Let the control node perform an act; None if it was killed meanwhile."""
        performing = asyncio.create_task(self.hypervisor.perform(act, 0.0))
        killing = asyncio.create_task(self.killed.wait())
        await asyncio.wait({performing, killing}, return_when=asyncio.FIRST_COMPLETED)
        answer = performing.result() if performing.done() and not self.killed.is_set() else None
        for task in (performing, killing):
            task.cancel()
        await asyncio.gather(performing, killing, return_exceptions=True)
        return answer


def walk(seed: int, settlements: type[MoveSettlements]) -> Walk:
    async def scenario() -> Walk:
        walk = Walk(seed, settlements)
        await walk.run()
        return walk

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(scenario())


def test_a_vm_never_runs_twice_however_many_of_its_moves_were_given_up() -> None:
    walks = [walk(seed, MoveSettlements) for seed in _SEEDS]
    assert [each.story for each in walks if each.story] == []
    assert sum(each.settled for each in walks) > len(_SEEDS)


def test_a_control_node_that_settles_moves_again_after_a_restart_starts_a_second_copy() -> None:
    assert any(walk(seed, ForgetfulSettlements).story for seed in _SEEDS)


def test_a_move_to_a_host_that_is_back_is_not_completed_by_a_restarted_control_node() -> None:
    """The VM was redeployed elsewhere since, and the control node was killed before it knew that."""
    web = a_vm("web", host="h1", address="10.0.0.1")

    async def scenario(world: ClusterWorld) -> None:
        nodes = {name: await world.start_node(name) for name in ("h1", "h2", "h3")}
        (event_id,) = await world.ask(RequestedOperation.REDEPLOY, "web")
        await asyncio.sleep(0.01)
        assert (await world.approve(nodes["h1"], "web", event_id)).status == 200
        await world.wait_until(lambda: bool(acts_of_web(world)))
        (first,) = acts_of_web(world)
        await world.wait_until(lambda: world.ledgers["h1"].find(f"{first.id}/release") is not None)
        await nodes[first.to_host].kill()
        world.nodes.remove(nodes[first.to_host])
        other = "h2" if first.to_host == "h3" else "h3"
        world.broker.on_reply = lambda subject, request, reply: lose_activation(world, subject, request)
        await world.active.control.requests.fail_host(first.to_host, who="ann")
        await world.active.control.host_statements.confirm_down(first.to_host, who="ann")
        await world.wait_until(lambda: len(acts_of_web(world)) > 1, within_s=60)
        second = acts_of_web(world)[-1]
        assert (second.from_host, second.to_host) == ("h1", other)
        await world.wait_until(lambda: world.ledgers[other].find(second.id) is not None, within_s=120)
        await world.start_node(first.to_host)  # its repair is not stated yet
        await asyncio.sleep(1)
        assert acts_of_web(world)[-1].outcome is None
        await world.active.kill()
        world.broker.lose_replies_of("")
        world.broker.on_reply = lambda subject, request, reply: None
        await world.start_control()
        await world.wait_until(lambda: acts_of_web(world)[-1].outcome is not None, within_s=60)
        assert world.vm("web").host == other
        assert world.ledgers[first.to_host].find(first.id) is None
        assert world.ledgers["h1"].find_outcome(f"{first.id}/return") is not None

    run_cluster(scenario, vms=[web], hosts=[a_host("h1"), a_host("h2"), a_host("h3")])


def acts_of_web(world: ClusterWorld) -> list[Act]:
    return [act for event in world.store.events() for act in event.acts if act.name == "web"]


def lose_activation(world: ClusterWorld, subject: str, request: bytes) -> None:
    """Lose the answers of a host from the first order to activate a VM on."""
    host = subject.rpartition(".")[2]
    if subject == Subjects().act(host) and decode_order(request).step is MoveStep.ACTIVATE:
        world.broker.lose_replies_of(f"node-{host}")
