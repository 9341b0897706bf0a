"""What a control node orders depends on its lease at that moment; acts without a host keep the one they got."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from forewarn.base.times import RealTime
from forewarn.cluster.bus import NoAnswer, Subjects
from forewarn.cluster.control_side import ActBindings
from forewarn.cluster.host_node import RulesChanged
from forewarn.cluster.messages import (
    JoinAccepted,
    JoinRequest,
    NodeInfo,
    OrderReport,
    RecordPosition,
    decode_from_active,
    encode_bus_message,
)
from forewarn.cluster.move_plan import MoveSettlements
from forewarn.cluster.remote_hypervisor import ClusterView, RemoteHypervisor
from forewarn.control.fleet import FleetChange
from forewarn.core.cause import Cause, Verb
from forewarn.core.commit import Commit
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.core.request import RequestedOperation
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.moves import MoveHandover, MoveRelease, StepReport
from forewarn.store.memory import MemoryStore
from tests.simulation.virtual_loop import VirtualTimeLoop
from tests.support.cluster_world import ChangingTerm, ClusterWorld, run_cluster
from tests.support.world import a_host, a_vm

HOSTS = [a_host("h1"), a_host("h2")]
WEB = a_vm("web", host="h1", address="10.0.0.1")
DB = a_vm("db", host="h2", address="10.0.0.2")
HOMELESS = a_vm("homeless", host="", address="10.0.0.3")
RESTART = Act(id="E:web", vm="sub/lab/web", name="web", verb=Verb.REBOOT, event_id="E", from_host="h1")
MOVE = replace(RESTART, verb=Verb.REDEPLOY, to_host="h2")


class RecordingBus:
    """Notes when each order was sent; nobody answers, or every step is done at once."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.sent_at: list[float] = []
        self.on_order: Callable[[], None] = lambda: None

    async def request(self, subject: str, payload: bytes, *, timeout_s: float) -> bytes:
        self.sent_at.append(asyncio.get_running_loop().time())
        self.on_order()
        if not self.answers:
            await asyncio.sleep(timeout_s)
            raise NoAnswer("silent")
        done = StepReport.of(ActDone(True), MoveHandover(release=MoveRelease.STOPPED))
        return encode_bus_message(OrderReport(done))


def perform(act: Act, bus: RecordingBus, is_held: Callable[[], bool]) -> ActDone | ActUnderWay:
    """Let a control node perform an act once, in virtual time."""

    async def scenario() -> ActDone | ActUnderWay:
        async def bind(act: Act, host: str) -> str:
            return host

        view = ClusterView(
            term=lambda: 1,
            is_held=is_held,
            store_tag=lambda: "tag",
            hosts=lambda: ["h1", "h2"],
            bind_act=bind,
            is_confirmed_down=lambda host: False,
            silence_text=lambda host: f"waits for the node of host {host}",
            host_scopes=lambda host, vm: (),
            real_time=lambda: RealTime(asyncio.get_running_loop().time()),
            failed_moves=lambda act: (),
            settlements=MoveSettlements(MemoryStore),
        )
        return await RemoteHypervisor(bus, Subjects(), view).perform(act, 0.0)  # type: ignore[arg-type]

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(scenario())


UNSURE = "waits until this control node is active again"


def test_an_order_is_not_sent_again_once_the_lease_may_have_expired() -> None:
    bus = RecordingBus(answers=False)
    answer = perform(RESTART, bus, lambda: len(bus.sent_at) < 2)
    assert isinstance(answer, ActUnderWay)
    assert answer.note == UNSURE  # and it concludes nothing from the silence
    assert len(bus.sent_at) == 2


def test_the_next_step_of_a_move_is_not_ordered_once_the_lease_may_have_expired() -> None:
    bus = RecordingBus(answers=True)
    answer = perform(MOVE, bus, lambda: len(bus.sent_at) < 2)
    assert isinstance(answer, ActUnderWay)
    assert answer.note == UNSURE
    assert len(bus.sent_at) == 2
    assert isinstance(perform(MOVE, RecordingBus(answers=True), lambda: True), ActDone)


def test_an_act_on_a_vm_without_a_host_stays_with_the_host_that_first_got_it() -> None:
    """Another host, added or failed since, does not know what the first one has done."""

    async def scenario(world: ClusterWorld) -> None:
        act = replace(RESTART, id="E:homeless", vm=HOMELESS.key, name="homeless", from_host="")
        for host in ("h1", "h2"):
            await world.start_node(host)
        hypervisor, now = world.active.cluster.hypervisor, world.clock.now

        async def until_done() -> ActDone:
            for _ in range(20):
                if isinstance(answer := await hypervisor.perform(act, now()), ActDone):
                    return answer
                await asyncio.sleep(1)
            raise AssertionError(answer)

        assert (await until_done()).ok
        performed = {host: len(list(ledger.effects())) for host, ledger in world.ledgers.items()}
        assert sorted(performed.values()) == [0, 1]
        first = max(performed, key=lambda host: performed[host])
        added = tuple(a_host(f"new-{number}") for number in range(40))  # some are before the first one in order
        await world.active.control.fleet.apply_change(FleetChange(hosts=added, text="hosts"), who="test")
        await world.active.control.requests.fail_host(first, who="ann")
        await world.active.kill()
        await world.start_control()
        hypervisor = world.active.cluster.hypervisor
        assert (await until_done()).ok
        assert sum(len(list(ledger.effects())) for ledger in world.ledgers.values()) == 1

    run_cluster(scenario, vms=[WEB, DB, HOMELESS], hosts=HOSTS)


def test_hosts_of_acts_that_are_over_are_forgotten_and_acts_at_the_same_time_keep_theirs() -> None:
    async def scenario(world: ClusterWorld) -> None:
        acts = [replace(RESTART, id=f"E{number}:web") for number in range(3)]
        bindings = ActBindings()
        bound = await asyncio.gather(*(bindings.bind(world.store, act, "h1") for act in acts))
        assert bound == ["h1", "h1", "h1"]
        assert await bindings.bind(world.store, acts[2], "h2") == "h1"
        assert world.store.load("bound-acts") == b'{"E2:web":"h1"}'  # no event has the others

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)


def test_a_failed_move_is_settled_however_many_events_its_scope_had_since() -> None:
    async def scenario(world: ClusterWorld) -> None:
        scope_id = world.scope_of("web").id
        failed = replace(MOVE, id="OLD:web", event_id="OLD", outcome=ActOutcome(ok=False, at=1.0, note="gone"))
        old = Event(
            id="OLD",
            scope_id=scope_id,
            request_id="r",
            cause=Cause.HOST_FAILED,
            requested_by="ann",
            vms=("web",),
            published_at=0.0,
            not_before=0.0,
            status=EventState.OVER,
            over_at=1.0,
            acts=(failed,),
        )
        later = [replace(old, id=f"E{number}", acts=()) for number in range(130)]
        await world.store.commit(Commit(events=(old, *later)))
        assert list(world.active.cluster._failed_moves(MOVE)) == [failed]

    run_cluster(scenario, vms=[WEB, DB], hosts=HOSTS)


def test_a_node_that_starts_again_with_other_rules_leaves_no_handler_at_the_bus() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        node.node._finish(RulesChanged())
        with pytest.raises(RulesChanged):
            await node.task
        joins = dict(node.node.joins)
        node.bus.doubt("reconnected")
        assert node.node.joins == joins
        assert node.bus._doubt_handlers == []

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)


@pytest.mark.parametrize(
    ("shown", "is_lost"),
    [
        (RecordPosition("r1", 8, "h8"), True),
        (RecordPosition("r1", 7, "other"), True),
        (RecordPosition("r1", 7, "h7"), False),
        (RecordPosition("r1", 6, "h6"), False),
        (RecordPosition("before renewal", 8, "h8"), False),
        (RecordPosition(), False),
    ],
)
def test_a_node_that_has_shown_what_the_record_has_lost_gets_no_facts(shown: RecordPosition, is_lost: bool) -> None:
    async def scenario(world: ClusterWorld) -> None:
        world.term.record = RecordPosition("r1", 7, "h7")
        client = world.broker.connect("client")
        request = JoinRequest(NodeInfo("node-h2", 1, "0.2.0"), "h2", shown.number, shown.id, shown.hash)
        asked = client.request("forewarn.request.h2", encode_bus_message(request), timeout_s=1)
        if is_lost:
            with pytest.raises(NoAnswer):
                await asked
        else:
            accepted = decode_from_active(await asked)
            assert isinstance(accepted, JoinAccepted)
            assert accepted.record == world.term.record
        assert world.term.losses == ([("the node of host h2", shown.number)] if is_lost else [])

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)


def test_a_node_tells_another_active_node_which_commit_it_has_shown_last() -> None:
    """The heartbeats of a node that it has not joined, with other commits, do not hide it."""

    async def scenario(world: ClusterWorld) -> None:
        world.term.record = RecordPosition("r1", 7, "h7")
        node = await world.start_node("h1")
        assert node.node.follower.record == world.term.record
        world.term.record = RecordPosition("r1", 8, "h8")
        await world.ask(RequestedOperation.RESTART, "web")
        await world.wait_until(lambda: node.node.follower.record == world.term.record)
        await world.active.kill()
        world.term = ChangingTerm(number=2, record=RecordPosition("r1", 9, "other"))
        world.term.marks[8] = "another"
        await world.start_control()
        await asyncio.sleep(5)
        assert set(world.term.losses) == {("the node of host h1", 8)}
        assert node.node.follower.record == RecordPosition("r1", 8, "h8")

    run_cluster(scenario, vms=[WEB], hosts=HOSTS)
