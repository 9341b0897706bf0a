"""Managed identity tokens over real sockets: which callers get one (spec §2.8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import quote

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.base.clock import read_real_time
from forewarn.metadata import (
    CallerDirectory,
    DedicatedIdentity,
    IdentifyBy,
    Limits,
    ListenerSpec,
    MetadataServer,
    PublishedDocuments,
    VmListener,
    dedicated_attachment,
    listener_for_socket,
    open_lab_listeners,
    open_network_listener,
)
from forewarn.protocol.exchange import EndpointRules
from tests.metadata.conftest import Client, RunScenario, World
from tests.support.metadata_backend import AUDIENCE, FakeMetadataBackend

TOKEN = f"/metadata/identity/oauth2/token?api-version=2018-02-01&resource={quote(AUDIENCE)}"
INFO = "/metadata/instance?api-version=2021-02-01"
OPEN = EndpointRules(gives_tokens=True)


def allowed(location: str) -> EndpointRules:
    return OPEN


async def serve_inside(world: World, vm: str = "a") -> tuple[str, int]:
    """Start a listener that only this VM can reach, as in a network namespace of its own."""
    sockets = open_network_listener("127.0.0.1", 0).sockets
    world.callers.assign(dedicated_attachment(vm), vm)
    await world.server.start([VmListener(sockets=sockets, strategy=DedicatedIdentity(vm), is_loopback=False)])
    host, port = sockets[0].getsockname()[:2]
    return host, port


async def dial_inside(world: World, vm: str = "a") -> Client:
    return await world.dial(*await serve_inside(world, vm))


def test_a_vm_on_its_own_listener_gets_a_token(run_scenario: RunScenario) -> None:
    """Spec §12: its times are in real time, although the lab clock shows 2023."""

    async def scenario(world: World) -> None:
        reply = await (await dial_inside(world)).ask(TOKEN)
        assert reply.status == 200
        assert reply.headers["content-type"] == "application/json; charset=utf-8"
        assert reply.headers["cache-control"] == "no-store"
        fields = json.loads(reply.body)
        ((identity, resource),) = world.backend.tokens
        assert (identity.vm, identity.vm_id, resource) == ("a", "pair-a", AUDIENCE)
        assert fields["access_token"] == "token-1-of-a"
        assert fields["client_id"] == identity.client_id
        assert fields["resource"] == AUDIENCE
        assert 3590 <= int(fields["expires_in"]) <= 3600
        assert abs(int(fields["expires_on"]) - read_real_time() - 3600) < 10

    run_scenario(scenario)


def test_each_vm_gets_a_token_of_its_own(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        ids = set()
        for vm in ("a", "b", "other"):
            fields = json.loads((await (await dial_inside(world, vm)).ask(TOKEN)).body)
            assert fields["access_token"].endswith(f"-of-{vm}")
            ids.add(fields["client_id"])
        assert len(ids) == 3

    run_scenario(scenario)


def test_a_vm_gets_tokens_for_its_own_identity_only(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client, other = await dial_inside(world), await dial_inside(world, "b")
        own = json.loads((await client.ask(TOKEN)).body)["client_id"]
        assert (await client.ask(f"{TOKEN}&client_id={own}")).status == 200
        refused = await other.ask(f"{TOKEN}&client_id={own}")
        assert refused.status == 400
        assert json.loads(refused.body) == {"error": "invalid_request", "error_description": "Identity not found"}
        assert len(world.backend.tokens) == 2

    run_scenario(scenario)


def test_an_unknown_resource_is_refused(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        reply = await (await dial_inside(world)).ask(f"{TOKEN}x")
        assert (reply.status, json.loads(reply.body)["error"]) == (400, "invalid_resource")
        assert AUDIENCE in json.loads(reply.body)["error_description"]

    run_scenario(scenario)


def test_loopback_gets_no_token(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        reply = await world.ask(TOKEN)
        assert (reply.status, json.loads(reply.body)["error"]) == (403, "access_denied")
        assert (await world.ask(INFO)).status == 200, "everything else is served there"
        assert world.backend.tokens == []

    run_scenario(scenario)


def test_a_setting_allows_tokens_on_loopback(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        assert json.loads((await world.ask(TOKEN, vm="b")).body)["access_token"] == "token-1-of-b"

    run_scenario(scenario, rules=allowed)


def test_a_loopback_source_address_gets_no_token_on_any_listener(run_scenario: RunScenario) -> None:
    """On a listener for all addresses, any program of this machine can connect from 127.0.9.1."""

    async def scenario(world: World) -> None:
        listener = replace(open_network_listener("127.0.0.1", 0), is_loopback=False)
        await world.server.start([listener])
        world.callers.assign("127.0.9.1", "a")
        client = await world.dial(*listener.sockets[0].getsockname(), local="127.0.9.1")
        assert (await client.ask(INFO)).status == 200
        assert (await client.ask(TOKEN)).status == 403

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("spec", "is_loopback"),
    [
        (ListenerSpec(identify_by=IdentifyBy.SOURCE, address="127.0.0.1"), True),
        (ListenerSpec(identify_by=IdentifyBy.SOURCE, address="::1"), True),
        (ListenerSpec(identify_by=IdentifyBy.SOURCE, address="10.0.0.1"), False),
        (ListenerSpec(identify_by=IdentifyBy.SOURCE), False),
        (ListenerSpec(identify_by=IdentifyBy.DEVICE, device="tap0"), False),
        (ListenerSpec(identify_by=IdentifyBy.DEVICE, device="lo"), True),
        (ListenerSpec(identify_by=IdentifyBy.DEVICE, device="lo", namespace="tenant-a"), False),
        (ListenerSpec(identify_by=IdentifyBy.NAMESPACE, namespace="tenant-a"), False),
        (ListenerSpec(identify_by=IdentifyBy.MARK, device="br0"), False),
    ],
    ids=lambda given: given.name if isinstance(given, ListenerSpec) else None,
)
def test_a_listener_is_loopback_if_only_this_machine_can_reach_it(spec: ListenerSpec, is_loopback: bool) -> None:
    sock = open_network_listener("127.0.0.1", 0).sockets[0]
    listener = listener_for_socket(spec, sock)
    listener.close()
    assert listener.is_loopback is is_loopback


def test_an_unknown_caller_gets_404_instead_of_a_token(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        reply = await world.ask(TOKEN, vm="unknown")
        assert (reply.status, reply.body) == (404, b'{ "error": "Not found" }')

    run_scenario(scenario, rules=allowed)


def test_a_removed_vm_gets_no_token(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client = await dial_inside(world)
        assert (await client.ask(TOKEN)).status == 200
        world.backend.drop_scope("pair")
        assert (await client.ask(TOKEN)).status == 404
        assert len(world.backend.tokens) == 1

    run_scenario(scenario)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_token_issued_while_its_vm_was_removed_is_not_sent(run_scenario: RunScenario, comes_back: bool) -> None:
    """Not even to a new VM with the same name, key and attachment."""

    async def scenario(world: World) -> None:
        client = await dial_inside(world)
        world.backend.is_open.clear()
        pending = asyncio.ensure_future(client.ask(TOKEN))
        await world.until(lambda: world.backend.waiting == 1)
        world.backend.drop_scope("pair")
        if comes_back:
            world.backend.add_scope("new", "a")
        world.backend.is_open.set()
        reply = await pending
        assert len(world.backend.tokens) == 1, "it was issued"
        assert (reply.status, reply.body) == (404, b'{ "error": "Not found" }')

    run_scenario(scenario)


def test_an_unavailable_issuer_gets_503_so_that_clients_retry(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client = await dial_inside(world)
        world.backend.is_unavailable = True
        reply = await client.ask(TOKEN)
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        world.backend.is_unavailable = False
        assert (await client.ask(TOKEN)).status == 200

    run_scenario(scenario)


def test_a_pending_token_does_not_delay_polls(run_scenario: RunScenario) -> None:
    async def scenario(world: World) -> None:
        client, poller = await dial_inside(world), await world.connect("b")
        world.backend.is_open.clear()
        pending = asyncio.ensure_future(client.ask(TOKEN))
        await world.until(lambda: world.backend.waiting == 1)
        assert (await poller.ask()).status == 200
        world.backend.is_open.set()
        assert (await pending).status == 200

    run_scenario(scenario)


def test_token_requests_count_for_the_rate_limit_and_do_not_enable_the_scope(run_scenario: RunScenario) -> None:
    """Spec §8.1, §8.5."""

    async def scenario(world: World) -> None:
        client = await dial_inside(world)
        statuses = [(await client.ask(TOKEN)).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert world.backend.enabled_by == []

    run_scenario(scenario, limits=Limits(requests_per_s=2), enabled=False)


NAMES = st.sampled_from(["api-version", "resource", "client_id", "object_id", "msi_res_id", "Resource", "x"])
VALUES = st.sampled_from(["2018-02-01", quote(AUDIENCE), "", "%", "%ff", "x"]) | st.text(max_size=20).map(quote)
QUERIES = st.lists(st.tuples(NAMES, VALUES).map("=".join), max_size=5).map("&".join) | st.just(TOKEN.partition("?")[2])
HEADERS = st.sampled_from(["", "Metadata: true\r\n", "Metadata: false\r\n", "Metadata: true\r\nOrigin: x\r\n"])
ENDPOINTS = st.sampled_from(["inside", "loopback", "unknown", "removed"])


@given(requests=st.lists(st.tuples(QUERIES, HEADERS, ENDPOINTS), min_size=1, max_size=20), is_allowed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_token_response_is_json_and_only_allowed_callers_get_tokens(
    requests: list[tuple[str, str, str]], is_allowed: bool
) -> None:
    """Spec §2.8, §10."""

    async def scenario() -> None:
        async with asyncio.timeout(30), serving(is_allowed=is_allowed) as (backend, ends):
            for query, header, mode in requests:
                before = len(backend.tokens)
                status, body = await exchange(ends[mode], query, header)
                fields = json.loads(body)
                is_entitled = mode == "inside" or (mode == "loopback" and is_allowed)
                has_header = header == "Metadata: true\r\n"
                assert status in ({200, 400} if is_entitled else {400, 403} if mode == "loopback" else {404})
                assert ("access_token" in fields) is (status == 200) is (len(backend.tokens) > before)
                assert status != 200 or has_header

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


@asynccontextmanager
async def serving(*, is_allowed: bool) -> AsyncIterator[tuple[FakeMetadataBackend, dict[str, tuple[str, int]]]]:
    """A server, and endpoints for a VM, for loopback, for an unknown caller and for a removed VM."""
    documents, callers = PublishedDocuments(), CallerDirectory()
    backend = FakeMetadataBackend(documents)
    backend.add_scope("single", "a")
    backend.add_scope("past", "gone")
    lab = open_lab_listeners(lambda: ["127.0.5.1", "127.0.5.2"], 0)
    callers.assign(lab.attachment("127.0.5.1"), "a")
    rules = EndpointRules(gives_tokens=is_allowed)
    server = MetadataServer(documents=documents, backend=backend, callers=callers, rules_for=lambda location: rules)
    listeners = [lab.listener]
    ends = {"loopback": lab.endpoint("127.0.5.1"), "unknown": lab.endpoint("127.0.5.2")}
    for mode, vm in (("inside", "a"), ("removed", "gone")):
        callers.assign(dedicated_attachment(vm), vm)
        sockets = open_network_listener("127.0.0.1", 0).sockets
        listeners.append(VmListener(sockets=sockets, strategy=DedicatedIdentity(vm), is_loopback=False))
        ends[mode] = sockets[0].getsockname()[:2]
    backend.drop_scope("past")
    await server.start(listeners)
    try:
        yield backend, ends
    finally:
        await server.drain(0.5)


async def exchange(end: tuple[str, int], query: str, header: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(*end)
    target = f"/metadata/identity/oauth2/token?{query}"
    writer.write(f"GET {target} HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n{header}\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body
