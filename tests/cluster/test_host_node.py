"""A host node answers the VMs of its host from the stream of that host, and sends the rest to the active node."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from forewarn.cluster.bus import Subjects
from forewarn.cluster.messages import HEARTBEAT_INTERVAL_S, PROTOCOL, SEEN_INTERVAL_S
from forewarn.control.fleet import FleetChange
from forewarn.core.request import RequestedOperation
from forewarn.errors import Refused
from forewarn.metadata.listeners import IdentifyBy, ListenerSpec
from tests.support.cluster_world import ClusterWorld, run_cluster
from tests.support.service_process import free_port
from tests.support.world import a_host, a_vm

HOSTS = [a_host("h1"), a_host("h2")]
WEB_0 = a_vm("web-0", host="h1", address="10.0.0.1", availability_set="web")
WEB_1 = a_vm("web-1", host="h2", address="10.0.0.2", availability_set="web", update_domain=1)
DB = a_vm("db", host="h2", address="10.0.0.3")
FLEET = [WEB_0, WEB_1, DB]


def test_a_vm_sees_and_approves_its_event_at_the_node_of_its_host() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        before = await world.poll(node, "web-0")
        assert before.events == []
        (event_id,) = await world.ask(RequestedOperation.RESTART, "web-0")
        await asyncio.sleep(0.01)
        seen = await world.poll(node, "web-0")
        assert [(event["EventId"], event["EventStatus"]) for event in seen.events] == [(event_id, "Scheduled")]
        assert seen.incarnation > before.incarnation
        assert (await world.approve(node, "web-0", event_id)).status == 200
        await world.wait_until(lambda: world.store.events()[0].started_at is not None)
        await asyncio.sleep(0.01)
        assert (await world.poll(node, "web-0")).events[0]["EventStatus"] == "Started"

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_answers_only_the_vms_of_its_host() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        assert (await world.poll(node, "web-0")).status == 200
        assert (await world.poll(node, "web-1")).status == 404  # of the same scope, on another host
        assert (await world.poll(node, "db")).status == 404

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_an_approval_of_an_unknown_event_is_refused_as_by_the_service_itself() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        answer = await world.approve(node, "web-0", "00000000-0000-4000-8000-0000000000FF")
        assert answer.status == 400

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_may_not_act_for_a_vm_of_another_host() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        (event_id,) = await world.ask(RequestedOperation.RESTART, "db")
        backend = node.server._state.responder._backend
        with pytest.raises(Exception, match="not on host 'h1'"):
            await backend.approve(DB.key, (event_id,))
        assert world.store.events()[0].approved_at is None

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_polls_and_deliveries_reach_the_active_node() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        for _ in range(3):
            await world.poll(node, "web-0")
        observations = world.active.publisher.frontend.observations
        await world.wait_until(lambda: observations.pace(WEB_0.key) is not None)
        polls, _ = observations.take_batch()
        assert [(poll.vm, poll.count) for poll in polls] == [(WEB_0.key, 3)]

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_that_stops_sends_the_report_again_that_was_not_answered_yet() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        world.broker.lose_subject(Subjects().report("h1"))
        for _ in range(3):
            await world.poll(node, "web-0")
        await asyncio.sleep(2 * SEEN_INTERVAL_S)  # these polls are in a report that is sent again and again
        await world.poll(node, "web-0")
        world.broker.lose_subject("")
        await node.stop()
        (poll,), _ = world.active.publisher.frontend.observations.take_batch()
        assert (poll.vm, poll.count) == (WEB_0.key, 4)

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_that_stops_says_so_although_an_earlier_report_is_not_answered() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        world.broker.lose_replies_of("control-1")
        await world.poll(node, "web-0")
        await asyncio.sleep(2 * SEEN_INTERVAL_S)
        await node.stop()
        (joined,) = world.active.cluster.streams.registry.nodes()
        assert joined.has_left

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_repeated_report_counts_once() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        await world.poll(node, "web-0")
        report = node.node._next_report()
        for _ in range(3):
            await node.node._send_report(report, within_s=1.0)
        (poll,), _ = world.active.publisher.frontend.observations.take_batch()
        assert poll.count == 1

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_polls_are_answered_while_the_bus_is_down_and_the_node_catches_up_within_two_seconds() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        world.broker.stop()
        (event_id,) = await world.ask(RequestedOperation.RESTART, "web-0")
        for _ in range(50):
            assert (await world.poll(node, "web-0")).status == 200
            await asyncio.sleep(0.1)
        assert (await world.approve(node, "web-0", event_id)).status == 503
        assert (await world.poll(node, "web-0")).events == []
        world.broker.start()

        def has_event() -> bool:
            return any(scope.update.document.notices for scope in node.node.facts.scopes.values())

        assert await world.wait_until(has_event) <= 2.0
        assert (await world.approve(node, "web-0", event_id)).status == 200

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_an_approval_waits_for_a_service_that_is_started_again() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        (event_id,) = await world.ask(RequestedOperation.RESTART, "web-0")
        await asyncio.sleep(0.01)
        await world.active.kill()
        approval = asyncio.create_task(world.approve(node, "web-0", event_id))
        await asyncio.sleep(3.0)
        assert not approval.done()
        await world.start_control()
        assert (await approval).status == 200
        assert world.store.events()[0].approved_at is not None

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_restarted_service_is_followed_at_once() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        await world.active.kill()
        await asyncio.sleep(2.0)
        await world.start_control()
        (event_id,) = await world.ask(RequestedOperation.RESTART, "web-0")

        def shows_event() -> bool:
            return any(scope.update.document.notices for scope in node.node.facts.scopes.values())

        assert await world.wait_until(shows_event) <= 0.5
        assert (await world.poll(node, "web-0")).events[0]["EventId"] == event_id

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_control_node_whose_lease_has_run_out_gives_no_state_to_a_node_that_starts() -> None:
    """Another one may be active, with newer documents than this one knows."""

    async def scenario(world: ClusterWorld) -> None:
        world.term.is_held = False
        node = await world.start_node("h1", wait=False)
        await asyncio.sleep(5)
        assert not node.node.is_serving
        world.term.is_held = True
        await world.wait_until(lambda: node.node.is_serving)

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_control_node_that_starts_without_a_lease_that_is_certain_sends_no_heartbeat() -> None:
    async def scenario(world: ClusterWorld) -> None:
        heard: list[bytes] = []
        listener = world.broker.connect("listener")
        await world.active.kill()
        await listener.subscribe(Subjects().heartbeat, lambda message: heard.append(message.payload))
        world.term.is_held = False
        await world.start_control()
        await asyncio.sleep(5)
        assert heard == []
        world.term.is_held = True
        await world.wait_until(lambda: bool(heard))
        await listener.close()

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_polls_get_503_after_a_long_silence_and_documents_again_afterwards() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1", stale_s=30)
        world.broker.stop()
        await asyncio.sleep(25)
        assert (await world.poll(node, "web-0")).status == 200
        await asyncio.sleep(10)
        assert (await world.poll(node, "web-0")).status == 503
        world.broker.start()
        await asyncio.sleep(1)
        assert (await world.poll(node, "web-0")).status == 200

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_that_was_killed_takes_over_again_at_once() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        await node.kill()
        world.nodes.remove(node)
        began = world.loop.time()
        again = await world.start_node("h1")
        assert world.loop.time() - began < 0.5
        assert (await world.poll(again, "web-0")).status == 200

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_second_node_of_a_host_is_refused_while_the_first_one_lives() -> None:
    async def scenario(world: ClusterWorld) -> None:
        await world.start_node("h1")
        second = await world.start_node("h1", id="other", wait=False)
        with pytest.raises(Refused, match=r"host 'h1' already has a node \(process 4711 on machine-h1\): stop it"):
            await second.task
        world.nodes.remove(second)

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_elsewhere_takes_over_a_silent_one_which_then_ends() -> None:
    async def scenario(world: ClusterWorld) -> None:
        first = await world.start_node("h1")
        world.broker.cut_off("node-h1")
        await asyncio.sleep(4)
        second = await world.start_node("h1", id="other")
        world.broker.heal("node-h1")
        with pytest.raises(Refused, match="host 'h1' has another node now"):
            await first.task
        world.nodes.remove(first)
        assert (await world.poll(second, "web-0")).status == 200

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_that_was_stopped_can_be_replaced_at_once_by_one_elsewhere() -> None:
    async def scenario(world: ClusterWorld) -> None:
        first = await world.start_node("h1")
        await first.stop()
        world.nodes.remove(first)
        began = world.loop.time()
        await world.start_node("h1", id="other")
        assert world.loop.time() - began < 0.5

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_with_another_protocol_is_refused_in_one_sentence() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1", protocol=PROTOCOL + 1, wait=False)
        with pytest.raises(Refused) as refused:
            await node.task
        world.nodes.remove(node)
        assert str(refused.value) == (
            "the node of host 'h1' (forewarn 0.2.0) speaks version 2 of the bus protocol, and the service version 1: "
            "install the same release on both"
        )

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


@pytest.mark.parametrize("subject", [Subjects().heartbeat, Subjects().host("h1"), Subjects().act("h1")])
def test_a_node_that_the_bus_does_not_permit_its_subjects_leaves_nothing_open(subject: str) -> None:
    async def scenario(world: ClusterWorld) -> None:
        world.broker.refuse_subject(subject)
        spec = ListenerSpec(identify_by=IdentifyBy.SOURCE, address="127.0.0.1", port=free_port())
        node = await world.start_node("h1", wait=False, listeners=(spec,))
        with pytest.raises(Refused, match=f"does not permit 'node-h1' to subscribe to '{subject}'"):
            await node.task
        world.nodes.remove(node)
        assert node.bus.subscriptions == []
        socket.create_server((spec.address, spec.port)).close()

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_waits_until_its_host_is_in_the_fleet(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h9", wait=False)
        await asyncio.sleep(2)
        assert not node.node.is_serving
        change = FleetChange(hosts=(a_host("H9"),), text="a host")
        await world.active.control.fleet.apply_change(change, who="test")
        assert await world.wait_until(node.serving.is_set) < 1

    with caplog.at_level(logging.WARNING):
        run_cluster(scenario, vms=FLEET, hosts=HOSTS)
    assert [record.message for record in caplog.records if "h9" in record.message] == [
        "host 'h9' is not in the fleet: add it to the fleet, or give the node another --host"
    ]


def test_a_vm_that_is_removed_is_unknown_at_its_node() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h2")
        assert (await world.poll(node, "db")).status == 200
        change = FleetChange(removed=(world.vm("db"),), text="removed")
        await world.active.control.fleet.apply_change(change, who="test")
        await asyncio.sleep(0.01)
        assert node.node.frontend is not None
        assert node.node.frontend.callers.vm_at("10.0.0.3") is None

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_a_node_that_gets_heartbeats_of_its_own_takes_those_for_all_only_in_doubt() -> None:
    async def scenario(world: ClusterWorld) -> None:
        node = await world.start_node("h1")
        heartbeats = node.node._heartbeats
        await world.wait_until(lambda: not heartbeats.is_subscribed)
        for _ in range(30):
            await asyncio.sleep(0.1)
            assert node.node.silent_s() < 0.5
            assert not heartbeats.is_subscribed
        await world.active.kill()
        await world.wait_until(lambda: heartbeats.is_subscribed)
        assert node.node.silent_s() < 1.2
        await world.start_control()
        await world.wait_until(lambda: not heartbeats.is_subscribed)
        assert not node.node.follower.is_joining
        assert (await world.poll(node, "web-0")).status == 200

    run_cluster(scenario, vms=FLEET, hosts=HOSTS)


def test_heartbeats_of_nodes_that_have_joined_are_spread_over_the_interval() -> None:
    hosts = [a_host(f"h{number}") for number in range(10)]
    times: dict[str, list[float]] = {}

    async def scenario(world: ClusterWorld) -> None:
        loop = asyncio.get_running_loop()
        for host in hosts:
            await world.start_node(host.name)
        await asyncio.sleep(1.0)
        bus = world.broker.connect("watcher")
        for host in hosts:
            times[Subjects().host(host.name)] = []
            await bus.subscribe(Subjects().host(host.name), lambda message: times[message.subject].append(loop.time()))
        await asyncio.sleep(2.0)
        assert {len(seen) for seen in times.values()} <= {7, 8, 9}
        assert len({round(seen[0] % HEARTBEAT_INTERVAL_S, 3) for seen in times.values()}) >= 8

    run_cluster(scenario, vms=[a_vm("web-0", host="h0", address="10.0.0.1")], hosts=hosts)
