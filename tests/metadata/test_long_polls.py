"""Prefer: wait with a known ETag holds a poll until the document changes (spec §4.4)."""

from __future__ import annotations

import pytest

from forewarn.metadata import Limits
from tests.metadata.conftest import Client, MakeNotice, MakeRequest, RunScenario, World
from tests.support.metadata_backend import tag_of

POLL = "/metadata/scheduledevents?api-version=2020-07-01"


async def held(
    world: World, request_bytes: MakeRequest, vm: str = "a", wait: str = "wait=300", count: int = 1
) -> list[Client]:
    """Clients whose polls are held."""
    tag = (await world.ask(vm=vm)).headers["etag"]
    already = world.server.counters.held
    clients = [await world.connect(vm) for _ in range(count)]
    for client in clients:
        client.send(request_bytes(If_None_Match=tag, Prefer=wait))
    await world.until(lambda: world.server.counters.held == already + count)
    return clients


def test_a_change_answers_a_held_poll(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    """Spec §4.4."""

    async def scenario(world: World) -> None:
        [client] = await held(world, request_bytes)
        assert world.server.counters.responses_by_status[200] == 1
        world.backend.show("pair", notice())
        reply = await client.reply()
        assert reply.status == 200
        assert b"EVENT-1" in reply.body
        assert reply.headers["preference-applied"] == "wait=300"
        assert (await client.ask()).status == 200

    run_scenario(scenario)


def test_a_held_poll_gets_304_after_its_wait(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    """Spec §4.4: after N seconds of real time."""

    async def scenario(world: World) -> None:
        [client] = await held(world, request_bytes, wait="wait=1")
        reply = await client.reply()
        assert reply.status == 304
        assert reply.headers["preference-applied"] == "wait=1"

    run_scenario(scenario)


def test_a_client_without_the_current_document_is_not_held(run_scenario: RunScenario) -> None:
    """Spec §4.4: without a matching If-None-Match there is nothing to wait for."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        assert (await client.ask(Prefer="wait=300")).status == 200
        assert (await client.ask(Prefer="wait=300", If_None_Match='"0-0"')).status == 200

    run_scenario(scenario)


def test_a_held_poll_does_not_delay_other_requests(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    async def scenario(world: World) -> None:
        await held(world, request_bytes)
        for vm in ("a", "b", "other"):
            assert (await world.ask(vm=vm)).status == 200

    run_scenario(scenario)


def test_a_held_poll_is_not_woken_by_another_scope_or_by_no_change(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    """Spec §7.4."""

    async def scenario(world: World) -> None:
        [client] = await held(world, request_bytes)
        world.backend.show("single", notice())
        world.backend.republish("pair")
        assert (await world.ask()).status == 200
        assert world.server.counters.held == 1
        world.backend.show("pair", notice())
        assert (await client.reply()).status == 200

    run_scenario(scenario)


def test_many_held_polls_are_all_answered(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    """They are woken in batches, and none is missed between two."""

    async def scenario(world: World) -> None:
        clients = await held(world, request_bytes, count=230)
        world.backend.show("pair", notice())
        for client in clients:
            assert (await client.reply()).status == 200
        assert world.server.counters.held == 0

    run_scenario(scenario, limits=Limits(connections=10_000))


def test_held_polls_are_answered_in_their_version_and_with_their_wait(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    """Spec §3, §4.4: each in its version and with its wait."""

    async def scenario(world: World) -> None:
        tag = (await world.ask()).headers["etag"]
        old = "/metadata/scheduledevents?api-version=2017-08-01"
        polls = [(target, wait, vm) for target in (POLL, old) for wait in (200, 300) for vm in ("a", "b")]
        clients = []
        for target, wait, vm in polls:
            client = await world.connect(vm)
            client.send(request_bytes(target, If_None_Match=tag, Prefer=f"wait={wait}"))
            clients.append(client)
        await world.until(lambda: world.server.counters.held == len(polls))
        world.backend.show("pair", notice())
        for (target, wait, _), client in zip(polls, clients, strict=True):
            reply = await client.reply()
            assert reply.headers["preference-applied"] == f"wait={wait}"
            assert (b"Description" in reply.body) == (target == POLL)

    run_scenario(scenario)


def test_a_repeated_long_poll_is_held_again(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    """Spec §4.4: an earlier 304 is not repeated."""

    async def scenario(world: World) -> None:
        [client] = await held(world, request_bytes, wait="wait=1")
        assert (await client.reply()).status == 304
        client.send(request_bytes(If_None_Match=tag_of(), Prefer="wait=1"))
        await world.until(lambda: world.server.counters.held == 1)

    run_scenario(scenario)


def test_a_client_that_disconnects_is_no_longer_held(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        first, second = await held(world, request_bytes, count=2)
        first.reset()
        await world.until(lambda: world.server.counters.held == 1)
        second.close()
        await world.until(lambda: world.server.counters.held == 0)
        world.backend.show("pair", notice())
        assert (await world.ask()).status == 200

    run_scenario(scenario)


def test_a_client_that_half_closes_gets_its_304_at_once(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    """The server cannot distinguish it from a closed connection, so it does not hold it."""

    async def scenario(world: World) -> None:
        [client] = await held(world, request_bytes)
        client.writer.write_eof()
        assert (await client.reply()).status == 304
        assert await client.is_closed()

    run_scenario(scenario)


def test_a_half_closed_connection_is_not_held_for_a_pipelined_long_poll(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    """A client that closed before its turn looks the same."""

    async def scenario(world: World) -> None:
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method="POST", body=b'{"StartRequests":[]}'))
        await world.until(lambda: world.backend.waiting == 1)
        client.send(request_bytes(If_None_Match=tag_of(), Prefer="wait=300"))
        client.writer.write_eof()
        await world.pause()
        world.backend.is_open.set()
        assert [(await client.reply()).status for _ in range(2)] == [200, 304]
        assert await client.is_closed()

    run_scenario(scenario)


@pytest.mark.parametrize("change", ["dropped", "readdressed"])
def test_a_vm_that_is_removed_while_held_gets_404(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest, change: str
) -> None:
    """Spec §7.4: the caller does not see the scope of the next VM at its address."""

    async def scenario(world: World) -> None:
        [client] = await held(world, request_bytes)
        if change == "dropped":
            world.backend.drop_scope("pair")
        else:
            world.callers.assign("127.0.7.1", "other")
            world.backend.show("pair", notice())
        assert (await client.reply()).status == 404

    run_scenario(scenario)


def test_requests_behind_a_held_poll_wait_for_it(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    """Responses come in the order of the requests."""

    async def scenario(world: World) -> None:
        [client] = await held(world, request_bytes)
        client.send(request_bytes("/metadata/versions"))
        client.send(request_bytes())
        assert (await world.ask()).status == 200
        assert world.server.counters.held == 1
        world.backend.show("pair", notice())
        first, second, third = await client.reply(), await client.reply(), await client.reply()
        assert b"EVENT-1" in first.body
        assert b"apiVersions" in second.body
        assert b"EVENT-1" in third.body

    run_scenario(scenario)


def test_a_scope_enabled_by_a_long_poll_holds_it_too(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    """Spec §8.1 and §4.4 together: no change between enabling and holding is missed."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(request_bytes(If_None_Match=tag_of(), Prefer="wait=300"))
        await world.until(lambda: world.server.counters.held == 1)
        world.backend.show("pair", notice())
        assert (await client.reply()).status == 200

    run_scenario(scenario, enabled=False)


def test_a_change_right_after_enabling_is_not_missed(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(If_None_Match=tag_of(), Prefer="wait=300"))
        await world.until(lambda: world.backend.waiting == 1)
        world.backend.is_open.set()
        while not world.backend.enabled_by:
            await world.next_turn()
        world.backend.show("pair", notice())
        assert (await client.reply()).status == 200

    run_scenario(scenario, enabled=False)
