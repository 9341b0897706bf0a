"""Draining: no new connections, current responses are finished, and the timeout is kept."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.metadata import Limits
from tests.metadata.conftest import MakeNotice, MakeRequest, RunScenario, World

START = b'{"StartRequests":[]}'


def test_held_polls_are_answered_when_the_server_drains(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    """Spec §4.4."""

    async def scenario(world: World) -> None:
        tag = (await world.ask()).headers["etag"]
        clients = [await world.connect() for _ in range(250)]
        for client in clients:
            client.send(request_bytes(If_None_Match=tag, Prefer="wait=300"))
        await world.until(lambda: world.server.counters.held == len(clients))
        await world.server.drain(10)
        for client in clients:
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (304, "close")
            assert await client.is_closed()
        assert world.server.connection_count == 0

    run_scenario(scenario, limits=Limits(connections=10_000))


def test_a_drain_finishes_pending_requests_and_closes_idle_connections(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        idle, working = await world.connect(), await world.connect("b")
        assert (await idle.ask()).status == 200
        world.backend.is_open.clear()
        working.send(request_bytes(method="POST", body=START))
        await world.until(lambda: world.backend.waiting == 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(world.server.drain(10))
            assert await idle.is_closed()
            world.backend.is_open.set()
            assert (await working.reply()).status == 200
        assert world.backend.approved == [("b", ())]
        assert await working.is_closed()

    run_scenario(scenario)


def test_a_drain_with_a_grace_answers_one_more_request_on_idle_connections(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    """A request that is on its way when the drain begins is not lost."""

    async def scenario(world: World) -> None:
        busy, idle, held = await world.connect(), await world.connect(), await world.connect("b")
        tag = (await busy.ask()).headers["etag"]
        assert (await idle.ask()).status == 200
        held.send(request_bytes(If_None_Match=tag, Prefer="wait=300"))
        await world.until(lambda: world.server.counters.held == 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(world.server.drain(20, idle_grace_s=20))
            assert (await held.reply()).status == 304, "held requests are answered at once"
            reply = await busy.ask()
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert await busy.is_closed()
            assert world.server.connection_count == 1
            world.server.end_idle_grace()
            assert await idle.is_closed()

    run_scenario(scenario)


def test_a_drain_closes_idle_connections_when_their_grace_is_over(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        idle = await world.connect()
        assert (await idle.ask()).status == 200
        await world.server.drain(20, idle_grace_s=0.05)
        assert await idle.is_closed()

    run_scenario(scenario)


def test_a_drain_lets_a_partial_request_complete(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    async def scenario(world: World) -> None:
        client, idle = await world.connect(), await world.connect()
        assert (await client.ask()).status == 200
        assert (await idle.ask()).status == 200
        raw = request_bytes()
        client.send(raw[:20])
        await world.until(lambda: world.server.buffered_bytes == 20)
        async with asyncio.TaskGroup() as group:
            group.create_task(world.server.drain(10))
            assert await idle.is_closed()
            client.send(raw[20:])
            assert (await client.reply()).headers["connection"] == "close"

    run_scenario(scenario)


def test_a_drain_ends_when_a_slow_client_has_read_everything(
    run_scenario: RunScenario, request_bytes: MakeRequest, notice: MakeNotice
) -> None:
    async def scenario(world: World) -> None:
        world.backend.show("pair", *(notice(f"EVENT-{number}", resources=("a" * 4000,)) for number in range(4000)))
        client = await world.connect()
        client.pause_reading()
        client.send(request_bytes())
        await world.until(lambda: world.server.buffered_bytes > Limits().write_bytes)
        async with asyncio.TaskGroup() as group:
            group.create_task(world.server.drain(300))
            await world.next_turn()
            client.resume_reading()
            assert len((await client.reply()).body) > 16_000_000
            assert await client.is_closed()

    run_scenario(scenario)


def test_a_drained_server_refuses_connections(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        assert (await world.ask()).status == 200
        await world.server.drain(1)
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    run_scenario(scenario)


def test_a_drain_aborts_connections_after_its_timeout(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    async def scenario(world: World) -> None:
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method="POST", body=START))
        await world.until(lambda: world.backend.waiting == 1)
        await world.server.drain(0.05)
        assert await client.is_closed()
        assert world.server.connection_count == 0

    run_scenario(scenario)
