"""A connection per poll: cached requests are answered on the accepted socket, with the same bytes."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.metadata import CallerDirectory, Limits, MetadataServer, PublishedDocuments, open_lab_listeners
from forewarn.protocol.exchange import EndpointRules
from tests.metadata.conftest import MakeNotice, MakeRequest, RunScenario, World
from tests.support.metadata_backend import FakeMetadataBackend, tag_of

ADDRESS = "127.0.5.7"


class CountingRules:
    """Endpoint rules that count how often a request was parsed with them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, location: str) -> EndpointRules:
        self.count += 1
        return EndpointRules()


def test_a_client_that_connects_for_every_poll_is_served_from_the_cache_and_counted(run_scenario: RunScenario) -> None:
    rules = CountingRules()

    async def scenario(world: World) -> None:
        first = await world.ask(Connection="close")
        once = rules.count
        for _ in range(50):
            world.backend.at += 1
            client = await world.connect()
            reply = await client.ask(Connection="close")
            assert (reply.status, reply.body) == (200, first.body)
            assert reply.headers["connection"] == "close"
            assert await client.is_closed()
        assert rules.count == once > 0
        counters = world.server.counters
        assert (counters.accepted, counters.requests, counters.responses_by_status[200]) == (51, 51, 51)
        [poll], _ = world.server.observations.take_batch()
        assert (poll.count, poll.at) == (51, 1_700_000_050.0)

    run_scenario(scenario, rules=rules)


def test_a_client_with_keep_alive_stays_connected(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        await world.ask()
        client = await world.connect()
        for _ in range(3):
            reply = await client.ask()
            assert (reply.status, "connection" in reply.headers) == (200, False)
        assert world.server.connection_count == 2
        assert world.server.counters.accepted == 2

    run_scenario(scenario)


def test_split_and_pipelined_first_requests_are_served(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    async def scenario(world: World) -> None:
        await world.ask()
        raw = request_bytes()
        split, pipelined = await world.connect(), await world.connect()
        split.send(raw[:30])
        await world.until(lambda: world.server.buffered_bytes == 30)
        split.send(raw[30:])
        assert (await split.reply()).status == 200
        pipelined.send(raw * 100)
        for _ in range(100):
            assert (await pipelined.reply()).status == 200

    run_scenario(scenario)


def test_the_next_connection_sees_a_change(run_scenario: RunScenario, notice: MakeNotice) -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            assert b"EVENT-1" not in (await world.ask(Connection="close")).body
        world.backend.show("pair", notice())
        for _ in range(3):
            assert b"EVENT-1" in (await world.ask(Connection="close")).body
        world.callers.assign(world.lab.attachment("127.0.7.1"), "other")
        for _ in range(3):
            assert b"EVENT-1" not in (await world.ask(Connection="close")).body
        world.callers.release(world.lab.attachment("127.0.7.1"))
        assert (await world.ask(Connection="close")).status == 404

    run_scenario(scenario)


def test_the_connection_limit_applies_to_cached_requests_too(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        await world.ask(Connection="close")
        for _ in range(3):
            assert (await world.ask()).status == 200
        refused = await world.connect()
        refused.send(request_bytes(Connection="close"))
        assert await refused.is_closed()
        assert world.server.counters.refused == 1
        assert (await world.ask(vm="b", Connection="close")).status == 200

    run_scenario(scenario, limits=Limits(connections_per_vm=3))


def test_a_response_larger_than_the_send_buffer_arrives_complete(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        world.lab.listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        world.backend.show("pair", *(notice(f"EVENT-{number}", description="x" * 1000) for number in range(400)))
        body = (await world.ask(Connection="close")).body
        assert len(body) > 400_000
        await world.ask()
        for more in ({"Connection": "close"}, {}):
            late = await world.connect()
            late.pause_reading()
            late.send(request_bytes(**more))
            await world.until(lambda: world.server.buffered_bytes > 0)
            late.resume_reading()
            assert (await late.reply()).body == body
            if more:
                assert await late.is_closed()
            else:
                assert (await late.ask()).body == body

    run_scenario(scenario)


def test_connections_wait_while_the_process_has_no_free_file(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        await world.ask(Connection="close")
        sock = socket.socket()
        sock.setblocking(False)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
            with suppress(BlockingIOError):
                sock.connect(world.lab.endpoint("127.0.7.1"))
            await asyncio.get_running_loop().sock_sendall(sock, request_bytes(Connection="close"))
            await world.until(lambda: "cannot accept more connections" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
        with sock:
            assert (await asyncio.get_running_loop().sock_recv(sock, 65_536)).startswith(b"HTTP/1.1 200 OK")
        assert caplog.text.count("cannot accept more connections") <= 2

    run_scenario(scenario)


def poll(*lines: str, version: str = "2020-07-01", http: str = "1.1") -> bytes:
    head = "".join(f"{line}\r\n" for line in ("Metadata: true", *lines))
    return f"GET /metadata/scheduledevents?api-version={version} HTTP/{http}\r\n{head}\r\n".encode()


REQUESTS = [
    poll(),
    poll("Connection: close"),
    poll("Connection: close", version="2017-08-01"),
    poll("Connection: close", f"If-None-Match: {tag_of()}"),
    poll(http="1.0"),
    poll("Connection: keep-alive", http="1.0"),
    poll() + poll(),
    poll() * 3 + poll("Connection: close"),
    poll()[:-1],
    poll("Connection: close", f"If-None-Match: {tag_of()}", "Prefer: wait=300"),
    poll("Connection: close", version="nonsense"),
    b"",
]
requests = st.tuples(st.just("send"), st.sampled_from(REQUESTS))
changes = st.sampled_from([("show",), ("republish",), ("drop",), ("tick",), ("release",), ("assign",)])


class RunningServer:
    """One server on a socket of its own."""

    def __init__(self, notice: MakeNotice, *, use_response_cache: bool) -> None:
        self.notice, self.documents, self.callers = notice, PublishedDocuments(), CallerDirectory()
        self.backend = FakeMetadataBackend(self.documents)
        self.backend.add_scope("single", "a")
        self.lab = open_lab_listeners(lambda: [ADDRESS], 0)
        self.assign()
        self.server = MetadataServer(
            documents=self.documents, backend=self.backend, callers=self.callers, use_response_cache=use_response_cache
        )

    async def send(self, raw: bytes) -> bytes:
        """Send the bytes, close the sending side, and return all bytes of the server."""
        reader, writer = await asyncio.open_connection(*self.lab.endpoint(ADDRESS))
        writer.write(raw)
        writer.write_eof()
        async with asyncio.timeout(5):
            received = await reader.read()
        writer.close()
        await writer.wait_closed()
        return received

    def show(self) -> None:
        if self.documents.view("a"):
            self.backend.show("single", self.notice())

    def republish(self) -> None:
        if self.documents.view("a"):
            self.backend.republish("single")

    def drop(self) -> None:
        if self.documents.view("a"):
            self.backend.drop_scope("single")
        else:
            self.backend.add_scope("single", "a")

    def tick(self) -> None:
        self.backend.at += 0.5

    def assign(self) -> None:
        self.callers.assign(self.lab.attachment(ADDRESS), "a")

    def release(self) -> None:
        self.callers.release(self.lab.attachment(ADDRESS))

    def visible_state(self) -> tuple[Any, ...]:
        counters = self.server.counters
        polls, deliveries = self.server.observations.take_batch()
        return (
            [replace(poll, real_at=0.0) for poll in polls],
            deliveries,
            +counters.answered,
            counters.requests,
            counters.accepted,
            counters.refused,
        )


async def run_steps(steps: list[tuple[Any, ...]], notice: MakeNotice) -> None:
    servers = [RunningServer(notice, use_response_cache=True), RunningServer(notice, use_response_cache=False)]
    for server in servers:
        await server.server.start([server.lab.listener])
    for name, *details in steps:
        if name == "send":
            # Twice, so that the second request may be cached.
            received = [[await server.send(*details) for _ in range(2)] for server in servers]
            assert received[0] == received[1], details
        else:
            for server in servers:
                getattr(server, name)()
    assert servers[0].visible_state() == servers[1].visible_state()
    for server in servers:
        await server.server.drain(1)


@given(steps=st.lists(st.one_of(requests, requests, changes), min_size=2, max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_clients_get_the_same_bytes_from_servers_with_and_without_a_cache(
    runner: asyncio.Runner, notice: MakeNotice, steps: list[tuple[Any, ...]]
) -> None:
    runner.run(run_steps(steps, notice))
