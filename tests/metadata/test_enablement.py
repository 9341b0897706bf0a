"""The first request of a scope enables it (spec §8.1)."""

from __future__ import annotations

import asyncio

import pytest

from tests.metadata.conftest import MakeNotice, MakeRequest, RunScenario, World

START = b'{"StartRequests":[{"EventId":"EVENT-1"}]}'


@pytest.mark.parametrize(("method", "body"), [("GET", b""), ("POST", START)])
def test_the_first_request_waits_until_enabling_is_durable(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest, method: str, body: bytes
) -> None:
    """Spec §8.1: GET or POST."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method=method, body=body))
        await world.until(lambda: world.backend.waiting == 1)
        assert not world.server.counters.responses_by_status
        world.backend.is_open.set()
        assert (await client.reply()).status == 200
        assert world.backend.enabled_by == ["a"]

    run_scenario(scenario, enabled=False)


def test_the_first_response_lists_events_that_were_pending(run_scenario: RunScenario, notice: MakeNotice) -> None:
    """Spec §8.1, §4.2: incarnation 1, and pending events are listed."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        assert (await world.ask()).body.startswith(b'{"DocumentIncarnation":1,"Events":[{"EventId":"EVENT-1"')

    run_scenario(scenario, enabled=False)


def test_concurrent_first_requests_enable_the_scope_once(run_scenario: RunScenario, request_bytes: MakeRequest) -> None:
    """Spec §8.1: per scope, for any of its VMs."""

    async def scenario(world: World) -> None:
        world.backend.is_open.clear()
        clients = [await world.connect(vm) for vm in ("a", "b", "a", "b")]
        for client in clients:
            client.send(request_bytes())
        await world.until(lambda: world.server.counters.requests == 4)
        await world.until(lambda: world.backend.waiting == 1)
        world.backend.is_open.set()
        assert [(await client.reply()).status for client in clients] == [200] * 4
        assert len(world.backend.enabled_by) == 1

    run_scenario(scenario, enabled=False)


def test_a_client_that_disconnects_does_not_cancel_the_enabling(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    """Spec §8.1."""

    async def scenario(world: World) -> None:
        world.backend.is_open.clear()
        first, second = await world.connect("a"), await world.connect("b")
        first.send(request_bytes())
        await world.until(lambda: world.backend.waiting == 1)
        second.send(request_bytes())
        await world.until(lambda: world.server.counters.requests == 2)
        first.reset()
        await world.until(lambda: world.server.connection_count == 1)
        world.backend.is_open.set()
        assert (await second.reply()).status == 200

    run_scenario(scenario, enabled=False)


def test_instance_requests_and_refused_requests_do_not_enable_the_scope(run_scenario: RunScenario) -> None:
    """Spec §8.1: only a GET or POST on scheduledevents does."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        assert (await client.ask("/metadata/instance?api-version=2021-02-01")).status == 200
        assert (await client.ask("/metadata/versions")).status == 200
        assert (await client.ask("/metadata/scheduledevents?api-version=nonsense")).status == 400
        assert (await client.ask(Origin="http://example.org")).status == 400
        assert world.backend.enabled_by == []

    run_scenario(scenario, enabled=False)


def test_without_the_store_the_first_request_gets_503_and_a_later_one_enables(run_scenario: RunScenario) -> None:
    """Spec §10: only a scope's first request waits for the store; another scope is served from memory."""

    async def scenario(world: World) -> None:
        world.backend.is_unavailable = True
        client = await world.connect()
        refused = await client.ask()
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert (await world.ask(vm="other")).status == 200
        world.backend.is_unavailable = False
        assert (await client.ask()).status == 200

    run_scenario(scenario, enabled=False)


def test_the_first_answer_delay_holds_all_responses_of_the_scope_only(
    run_scenario: RunScenario, request_bytes: MakeRequest
) -> None:
    """Spec §8.1, §12: real time, counted from enabling."""

    async def scenario(world: World) -> None:
        first = await world.connect("a")
        first.send(request_bytes())
        await world.until(lambda: world.server.counters.held == 1)
        second = await world.connect("b")
        second.send(request_bytes())
        await world.until(lambda: world.server.counters.held == 2)
        assert (await world.ask(vm="other")).status == 200
        await world.server.drain(5)
        assert [(await client.reply()).status for client in (first, second)] == [200, 200]

    run_scenario(scenario, enabled=False, delay_s=100)


def test_delayed_responses_are_sent_after_the_delay(run_scenario: RunScenario, notice: MakeNotice) -> None:
    """Spec §8.1; an approval is delayed like a poll."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        replies = await asyncio.gather(world.ask(), world.ask(vm="b", method="POST", body=START))
        assert [reply.status for reply in replies] == [200, 200]
        assert world.backend.approved == [("b", ("EVENT-1",))]

    run_scenario(scenario, enabled=False, delay_s=0.05)
