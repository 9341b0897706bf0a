"""Acts are performed by the node of the VM's host, once, and a move between two nodes never makes two copies."""

from __future__ import annotations

import asyncio

from forewarn.cluster.messages import ActOrder, OrderRefused, decode_order_reply, encode_bus_message
from forewarn.control.fleet import FleetChange
from forewarn.core.cause import Verb
from forewarn.core.event import Act, Event
from forewarn.core.release import MAX_SILENCE_S, start_wait
from forewarn.core.request import RequestedOperation
from forewarn.machines.moves import MoveHandover, MoveStep
from forewarn.machines.simulated import SimulatedBehaviour
from tests.support.cluster_world import ClusterWorld, RunningNode, run_cluster
from tests.support.world import LAB_POLICY, a_host, a_vm

HOSTS = [a_host("h1"), a_host("h2")]
WEB = a_vm("web", host="h1", address="10.0.0.1")
DB = a_vm("db", host="h2", address="10.0.0.2")
FLEET = [WEB, DB]


async def both_nodes(world: ClusterWorld) -> tuple[RunningNode, RunningNode]:
    return await world.start_node("h1"), await world.start_node("h2")


async def start_act(world: ClusterWorld, node: RunningNode, operation: RequestedOperation) -> None:
    """Request an operation on `web` and let the VM approve it at this node."""
    (event_id,) = await world.ask(operation, "web")
    await asyncio.sleep(0.01)
    assert (await world.approve(node, "web", event_id)).status == 200
    await world.wait_until(lambda: bool(latest(world).acts))


def latest(world: ClusterWorld) -> Event:
    return world.store.events()[-1]


def the_act(world: ClusterWorld) -> Act:
    return latest(world).acts[0]


def note(world: ClusterWorld) -> str:
    return world.active.control.executor.progress.note(the_act(world).id)


def is_over(world: ClusterWorld) -> bool:
    return the_act(world).outcome is not None


def effects(world: ClusterWorld, act: Act) -> list[tuple[str, str]]:
    """Host and id of each effect of this act or of its steps, over all ledgers."""
    return [
        (host, effect.act_id)
        for host, ledger in sorted(world.ledgers.items())
        for effect in ledger.effects()
        if effect.act_id.partition("/")[0] == act.id
    ]


def test_an_act_is_performed_by_the_node_of_its_host_only() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node, _ = await both_nodes(world)
        await start_act(world, node, RequestedOperation.RESTART)
        await world.wait_until(lambda: is_over(world))
        assert the_act(world).outcome is not None
        assert effects(world, the_act(world)) == [("h1", the_act(world).id)]

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_an_act_waits_visibly_for_a_silent_node_and_is_then_performed_once() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node, _ = await both_nodes(world)
        (event_id,) = await world.ask(RequestedOperation.RESTART, "web")
        await asyncio.sleep(0.01)
        await node.kill()
        world.nodes.remove(node)
        await world.active.control.guests.approve(WEB.key, (event_id,))
        await world.active.control.reconciler.catch_up()
        await asyncio.sleep(47)
        assert note(world) == "waits for the node of host h1, silent for 40 s"
        assert world.active.control.executor.progress.unreachable_hosts() == {"h1"}
        assert not is_over(world)
        await world.start_node("h1")
        assert await world.wait_until(lambda: is_over(world)) < 10
        assert effects(world, the_act(world)) == [("h1", the_act(world).id)]
        assert not any("tried again" in entry.text for entry in world.store.history())

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_an_event_does_not_start_while_its_vm_cannot_poll_and_then_waits_for_the_grace_period() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node, _ = await both_nodes(world)
        await world.poll(node, "web")
        (event_id,) = await world.ask(RequestedOperation.RESTART, "web")
        not_before = latest(world).not_before
        await node.kill()
        world.nodes.remove(node)
        await world.sleep_until(not_before + 120)
        view = world.active.control.transactions
        wait = start_wait(world.scope_of("web"), latest(world), view.context_for(world.scope_of("web")))
        assert wait is not None
        assert wait.text == "web, which cannot poll: the node of its host h1 is silent"
        assert latest(world).acts == ()
        node = await world.start_node("h1")
        back_at = world.clock.now()
        assert (await world.poll(node, "web")).events[0]["EventId"] == event_id
        await world.wait_until(lambda: bool(latest(world).acts), within_s=90)
        assert world.clock.now() - back_at >= LAB_POLICY.grace_s

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_an_event_starts_ten_minutes_late_if_the_node_of_its_vm_stays_silent() -> None:
    async def scenario(world: ClusterWorld) -> None:
        await world.ask(RequestedOperation.RESTART, "web")
        not_before = latest(world).not_before
        await world.sleep_until(not_before + MAX_SILENCE_S - 1)
        assert latest(world).acts == ()
        await world.wait_until(lambda: bool(latest(world).acts))

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_an_act_waits_for_a_node_that_never_joined() -> None:
    async def scenario(world: ClusterWorld) -> None:
        (event_id,) = await world.ask(RequestedOperation.RESTART, "web")
        await world.active.control.guests.approve(WEB.key, (event_id,))
        await world.active.control.reconciler.catch_up()
        await asyncio.sleep(5)
        assert note(world) == "waits for the node of host h1, which has not joined"

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_move_hands_the_vm_over_without_an_older_document_or_a_gap() -> None:
    async def scenario(world: ClusterWorld) -> None:
        source, destination = await both_nodes(world)
        await start_act(world, source, RequestedOperation.REDEPLOY)
        last, seen, gap_began = 0, {200: 0, 404: 0}, None
        longest_gap = 0.0
        while not (is_over(world) and seen[404]):
            at_source = await world.poll(source, "web")
            at_destination = await world.poll(destination, "web")
            answers = [answer for answer in (at_source, at_destination) if answer.status == 200]
            seen[at_source.status] += 1
            for answer in answers:
                assert answer.incarnation >= last
                last = max(last, answer.incarnation)
            if answers:
                gap_began = None
            else:
                gap_began = gap_began or world.loop.time()
                longest_gap = max(longest_gap, world.loop.time() - gap_began)
            await asyncio.sleep(0.05)
        assert longest_gap == 0.0
        act = the_act(world)
        assert act.outcome is not None
        assert act.outcome.ok
        assert effects(world, act) == [("h1", f"{act.id}/release"), ("h2", act.id)]
        assert world.vm("web").host == "h2"
        assert (await world.poll(destination, "web")).status == 200

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_destination_that_is_behind_gets_the_document_with_the_order() -> None:
    async def scenario(world: ClusterWorld) -> None:
        source, destination = await both_nodes(world)
        world.broker.lose_subject("forewarn.host.h2")
        await start_act(world, source, RequestedOperation.REDEPLOY)
        seen = await world.poll(source, "web")
        assert seen.events[0]["EventStatus"] == "Started"
        await world.wait_until(lambda: bool(world.ledgers["h2"].find_outcome(f"{the_act(world).id}/prepare")))
        there = await world.poll(destination, "web")
        assert there.incarnation >= seen.incarnation

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_release_that_the_source_refuses_leaves_the_vm_there() -> None:
    def setup(world: ClusterWorld) -> None:
        rules = [{"then": "fail", "verb": "redeploy", "note": "the disk is busy"}]
        world.behaviour = SimulatedBehaviour.from_rules(rules)

    async def scenario(world: ClusterWorld) -> None:
        source, _ = await both_nodes(world)
        await start_act(world, source, RequestedOperation.REDEPLOY)
        await world.wait_until(lambda: is_over(world))
        act = the_act(world)
        assert act.outcome is not None
        assert (act.outcome.ok, act.outcome.note) == (False, "the disk is busy")
        assert effects(world, act) == []
        assert world.ledgers["h2"].find_outcome(f"{act.id}/undo") is not None
        assert world.vm("web").host == "h1"

    run_cluster(scenario, vms=FLEET, hosts=HOSTS, setup=setup)


def test_a_move_from_a_silent_source_waits_until_the_operator_confirms_that_it_is_down() -> None:
    async def scenario(world: ClusterWorld) -> None:
        source, _ = await both_nodes(world)
        await start_act(world, source, RequestedOperation.REDEPLOY)
        await source.kill()
        world.nodes.remove(source)
        await asyncio.sleep(30)
        assert not is_over(world)
        assert note(world) == (
            "waits for the node of host h1, silent for 20 s, and web may still run there: fence h1, or confirm that it "
            "is down once it is certain that web does not run there"
        )
        assert effects(world, the_act(world))[-1:] != [("h2", the_act(world).id)]
        await world.active.control.host_statements.confirm_down("h1", who="ann")
        await world.wait_until(lambda: is_over(world))
        assert effects(world, the_act(world))[-1] == ("h2", the_act(world).id)
        assert world.vm("web").host == "h2"

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_vm_that_has_left_its_source_waits_for_a_silent_destination() -> None:
    async def scenario(world: ClusterWorld) -> None:
        source, destination = await both_nodes(world)
        await start_act(world, source, RequestedOperation.REDEPLOY)
        release = f"{the_act(world).id}/release"
        await world.wait_until(lambda: world.ledgers["h1"].find(release) is not None)
        await destination.kill()
        world.nodes.remove(destination)
        await asyncio.sleep(15)
        assert note(world) == "waits for the node of host h2, silent for 10 s: web has left h1"
        await world.start_node("h2")
        await world.wait_until(lambda: is_over(world))
        assert world.vm("web").host == "h2"

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_move_to_a_host_that_is_confirmed_down_fails_and_the_vm_stays_on_its_source() -> None:
    async def scenario(world: ClusterWorld) -> None:
        source, destination = await both_nodes(world)
        await start_act(world, source, RequestedOperation.REDEPLOY)
        act = the_act(world)
        await world.wait_until(lambda: world.ledgers["h1"].find(f"{act.id}/release") is not None)
        await destination.kill()
        world.nodes.remove(destination)
        await asyncio.sleep(15)
        assert not is_over(world)
        await world.active.control.host_statements.confirm_down("h2", who="ann")
        await world.wait_until(lambda: is_over(world))
        outcome = the_act(world).outcome
        assert outcome is not None
        assert (outcome.ok, outcome.note) == (False, "h2 went down before web was known to run there")
        assert world.vm("web").host == "h1"
        assert world.ledgers["h1"].find_outcome(f"{act.id}/return") is not None
        await world.start_node("h2")  # it never gets the VM of that move any more
        await asyncio.sleep(5)
        assert ("h2", act.id) not in effects(world, act)

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_restarted_service_continues_a_move_from_the_ledgers_of_its_hosts() -> None:
    async def scenario(world: ClusterWorld) -> None:
        source, _ = await both_nodes(world)
        await start_act(world, source, RequestedOperation.REDEPLOY)
        release = f"{the_act(world).id}/release"
        await world.wait_until(lambda: world.ledgers["h1"].find(release) is not None)
        await world.active.kill()
        await asyncio.sleep(5)
        await world.start_control()
        await world.wait_until(lambda: is_over(world))
        act = the_act(world)
        assert effects(world, act) == [("h1", release), ("h2", act.id)]

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_move_that_was_given_up_but_completed_does_not_lead_to_a_second_copy() -> None:
    """The destination activated the VM, its answer was lost, and the source failed before anybody knew."""

    async def scenario(world: ClusterWorld) -> None:
        hosts = (a_host("h3"),)
        await world.active.control.fleet.apply_change(FleetChange(hosts=hosts, text="a host"), who="test")
        source, destination = await both_nodes(world)
        await world.start_node("h3")
        await start_act(world, source, RequestedOperation.REDEPLOY)
        act = the_act(world)
        there = act.to_host
        release = f"{act.id}/release"
        await world.wait_until(lambda: world.ledgers["h1"].find(release) is not None)
        world.broker.lose_replies_of(f"node-{there}")
        await world.wait_until(lambda: world.ledgers[there].find(act.id) is not None)
        await source.kill()
        world.nodes.remove(source)
        await world.active.control.requests.fail_host("h1", who="ann")
        world.broker.lose_replies_of("")
        await world.wait_until(
            lambda: world.vm("web").host not in ("h1", there) and not world.store.events()[-1].is_live, within_s=120
        )
        arrived = [
            (host, effect.act_id)
            for host, ledger in world.ledgers.items()
            for effect in ledger.effects()
            if effect.act_id.endswith("/release") or effect.to_host == host
        ]
        # It was released by its first source, arrived, was released there, and arrived where it is now.
        assert [host for host, act_id in arrived if act_id.endswith("/release")] == ["h1", there]
        assert destination is not None

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def order(world: ClusterWorld, term: int, act_id: str, step: MoveStep | None = None) -> ActOrder:
    act = Act(id=act_id, vm=WEB.key, name="web", verb=Verb.REBOOT, event_id="E", from_host="h1")
    return ActOrder(term, "tag", act, world.clock.now(), step, MoveHandover())


def test_orders_of_an_older_term_are_refused_also_after_a_restart_of_the_node() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        client = world.broker.connect("client")

        async def send(term: int, act_id: str) -> bool:
            payload = encode_bus_message(order(world, term, act_id))
            reply = decode_order_reply(await client.request("forewarn.act.h1", payload, timeout_s=5))
            return not isinstance(reply, OrderRefused)

        assert await send(3, "a")
        assert not await send(2, "b")
        await node.kill()
        world.nodes.remove(node)
        await world.start_node("h1")
        assert not await send(2, "b")
        assert await send(3, "c")
        assert [effect.act_id for effect in world.ledgers["h1"].effects()] == ["a", "c"]

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_nothing_is_ordered_while_the_lease_is_not_certainly_held() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node, _ = await both_nodes(world)
        (event_id,) = await world.ask(RequestedOperation.RESTART, "web")
        world.term.is_held = False
        await world.active.control.guests.approve(WEB.key, (event_id,))
        await world.active.control.reconciler.catch_up()
        await asyncio.sleep(5)
        assert effects(world, the_act(world)) == []
        assert node.node.silent_s() > 4  # no heartbeats either
        world.term.is_held = True
        await world.wait_until(lambda: is_over(world))

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)
