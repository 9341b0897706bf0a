"""Stopping: nobody new is let in, everybody inside is answered, and the time given is kept."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.metadata import Limits

START = b'{"StartRequests":[]}'


def test_held_polls_are_answered_when_the_server_drains(play, request_bytes):
    """Spec §4.4."""

    async def story(world):
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

    play(story, limits=Limits(connections=10_000))


def test_what_is_in_work_is_finished_and_idle_connections_are_closed(play, request_bytes):
    async def story(world):
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

    play(story)


def test_a_request_that_has_begun_may_still_become_whole(play, request_bytes):
    async def story(world):
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

    play(story)


def test_nobody_waits_for_a_caller_that_was_slow_to_read_and_has_everything(play, request_bytes, notice):
    async def story(world):
        world.backend.show("pair", *(notice(f"EVENT-{number}", resources=("a" * 4000,)) for number in range(4000)))
        client = await world.connect()
        client.writer.transport.pause_reading()
        client.send(request_bytes())
        await world.until(lambda: world.server.buffered_bytes > Limits().write_bytes)
        async with asyncio.TaskGroup() as group:
            group.create_task(world.server.drain(300))
            await world.next_turn()
            client.writer.transport.resume_reading()
            assert len((await client.reply()).body) > 16_000_000
            assert await client.is_closed()

    play(story)


def test_nobody_is_let_in_any_more(play):
    async def story(world):
        assert (await world.ask()).status == 200
        await world.server.drain(1)
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    play(story)


def test_who_is_not_done_in_time_is_hung_up_on(play, request_bytes):
    async def story(world):
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method="POST", body=START))
        await world.until(lambda: world.backend.waiting == 1)
        await world.server.drain(0.05)
        assert await client.is_closed()
        assert world.server.connection_count == 0

    play(story)
