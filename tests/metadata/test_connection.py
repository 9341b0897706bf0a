"""Many requests on one connection: order, keep-alive, half-closing, and clients that do not read."""

from __future__ import annotations

import pytest

from forewarn.metadata import Limits
from tests.metadata.conftest import MakeRequest, RunScenario, World

WRITE_BYTES = 64 * 1024
READ_BYTES = 256 * 1024  # what an event loop reads at once


@pytest.mark.parametrize("size", [1, 7, 100_000], ids=["bytewise", "in sevens", "at once"])
def test_pipelined_requests_are_answered_in_order(
    run_scenario: RunScenario, request_bytes: MakeRequest, size: int
) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        raw = request_bytes() + request_bytes("/metadata/versions")
        raw += request_bytes(method="POST", body=b'{"StartRequests":[]}') + request_bytes(method="PUT")
        raw += request_bytes("/nowhere")
        for start in range(0, len(raw), size):
            client.send(raw[start : start + size])
        assert [(await client.reply()).status for _ in range(5)] == [200, 200, 200, 400, 404]

    run_scenario(scenario)


def test_thousands_of_pipelined_requests_are_all_answered(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(request_bytes() * 3000)
        for _ in range(3000):
            assert (await client.reply()).status == 200

    run_scenario(scenario)


def test_the_responses_of_a_client_that_never_reads_are_bounded(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    """Buffered bytes are bounded by the limit plus one read, and others are served meanwhile."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(request_bytes("/metadata/instance?api-version=2021-02-01") * 100_000)
        served = -1
        while served != world.server.counters.requests:
            served = world.server.counters.requests
            for _ in range(5):
                assert (await world.ask(vm="b")).status == 200
                assert world.server.buffered_bytes < WRITE_BYTES + READ_BYTES + 64 * 1024
            served += 5
        assert served < 100_000

    run_scenario(scenario, limits=Limits(write_bytes=WRITE_BYTES))


def test_a_client_that_reads_late_gets_every_response(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        count = 5000
        client.send(request_bytes("/metadata/instance?api-version=2021-02-01") * count)
        await world.until(lambda: world.server.buffered_bytes > WRITE_BYTES)
        for _ in range(count):
            assert (await client.reply()).status == 200

    run_scenario(scenario)


def test_the_connection_of_a_client_that_never_reads_is_closed(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        client.pause_reading()
        client.send(request_bytes("/metadata/instance?api-version=2021-02-01") * 20_000)
        await world.until(lambda: world.server.buffered_bytes > WRITE_BYTES)
        await world.until(lambda: world.server.connection_count == 0)

    run_scenario(scenario, limits=Limits(idle_s=0.3))


def test_bytes_behind_a_pending_response_are_bounded(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    """No request is processed while an earlier response is pending, and little is read ahead."""

    async def scenario(world: World) -> None:
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method="POST", body=b'{"StartRequests":[]}'))
        await world.until(lambda: world.backend.waiting == 1)
        client.send(request_bytes() * 20_000)
        await world.until(lambda: world.server.buffered_bytes > 16 * 1024)
        for _ in range(20):
            assert (await world.ask(vm="b")).status == 200
        assert world.server.buffered_bytes < READ_BYTES + 32 * 1024
        world.backend.is_open.set()
        assert (await client.reply()).status == 200
        assert (await client.reply()).status == 200

    run_scenario(scenario)


def test_a_half_closing_client_still_gets_all_its_responses(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method="POST", body=b'{"StartRequests":[]}') + request_bytes())
        client.writer.write_eof()
        await world.until(lambda: world.backend.waiting == 1)
        world.backend.is_open.set()
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]
        assert await client.is_closed()

    run_scenario(scenario)


def test_a_connection_stays_open_unless_the_client_says_otherwise(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    """HTTP/1.1: requests after one with Connection: close are ignored."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        for _ in range(3):
            reply = await client.ask()
            assert "connection" not in reply.headers
        client.send(request_bytes(Connection="close") + request_bytes())
        assert (await client.reply()).headers["connection"] == "close"
        assert await client.is_closed()

    run_scenario(scenario)


@pytest.mark.parametrize("keep_alive", [False, True])
def test_an_http_1_0_connection_stays_open_only_on_request(
    run_scenario: RunScenario, request_bytes: MakeRequest, keep_alive: bool
) -> None:
    """HTTP/1.0."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        extra = {"Connection": "keep-alive"} if keep_alive else {}
        client.send(request_bytes(**extra).replace(b"HTTP/1.1", b"HTTP/1.0"))
        reply = await client.reply()
        assert reply.headers["connection"] == ("keep-alive" if keep_alive else "close")
        if keep_alive:
            assert (await client.ask()).status == 200
        else:
            assert await client.is_closed()

    run_scenario(scenario)


def test_a_client_that_expects_100_continue_gets_it_before_its_body(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    """Spec §5.2."""

    async def scenario(world: World) -> None:
        body = b'{"StartRequests":[]}'
        client = await world.connect()
        head = request_bytes(method="POST", Expect="100-continue", Content_Length=str(len(body)))
        for _ in range(2):
            client.send(head)
            assert (await client.reply()).status == 100
            client.send(body)
            assert (await client.reply()).status == 200

    run_scenario(scenario)


def test_a_client_that_expects_100_continue_for_a_large_body_gets_413_at_once(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        client.send(request_bytes(method="POST", Expect="100-continue", Content_Length="70000"))
        assert (await client.reply()).status == 413

    run_scenario(scenario)


@pytest.mark.parametrize("method", ["GET", "CONNECT"])
def test_a_request_for_another_protocol_is_answered_in_http_1_1(
    run_scenario: RunScenario, request_bytes: MakeRequest, method: str
) -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        target = "host:80" if method == "CONNECT" else "/metadata/versions"
        client.send(request_bytes(target, method=method, Connection="Upgrade", Upgrade="h2c"))
        assert (await client.reply()).status == (400 if method == "CONNECT" else 200)
        if method == "CONNECT":
            assert await client.is_closed()

    run_scenario(scenario)


def test_an_approval_with_an_upgrade_header_is_accepted(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    """Spec §5.1. Java's HTTP client offers HTTP/2 with every first request and sends the body anyway."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAEAAEAA"}
        client.send(request_bytes(method="POST", body=b'{"StartRequests":[]}', **offer) + request_bytes())
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]

    run_scenario(scenario)
