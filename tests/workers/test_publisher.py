"""The publisher keeps what VMs see, and what is known of their polls, equal to the store."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.errors import Rejected
from forewarn.metadata import IdentifyBy, ListenerSpec
from forewarn.metadata.workers.publisher import GuestBackend, MetadataPublisher, PublisherConfig, load_store_tag
from forewarn.service.maintenance_jobs import write_all_observations
from forewarn.store.interface import Store
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite import SqliteStore
from tests.support.service_process import free_port
from tests.support.world import World, a_host, a_vm

POLL = "GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n"
VM = a_vm("web-0", lab_address="127.0.0.1")
WORKERS = pytest.mark.parametrize("workers", [0, 1], ids=["one process", "a worker"])


@contextmanager
def new_world() -> Iterator[World]:
    world = World(vms=[VM], hosts=[a_host("h1")])
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def world() -> Iterator[World]:
    with new_world() as world:
        yield world


def run_scenario(world: World, scenario: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await scenario

    world.do(run())


@asynccontextmanager
async def serving(world: World, *, workers: int = 0) -> AsyncIterator[MetadataPublisher]:
    config = PublisherConfig(is_lab=True, port=0, one_port_per_vm=True, workers=workers)
    publisher = MetadataPublisher.open(config, world.control)
    await publisher.start(GuestBackend(world.control))
    try:
        yield publisher
    finally:
        await publisher.drain(1.0)


async def poll(publisher: MetadataPublisher, *headers: str) -> tuple[int, str]:
    """Poll as the VM; returns the status and the ETag."""
    where = urlsplit(publisher.lab_endpoint(VM))
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write((POLL + "".join(f"{header}\r\n" for header in (*headers, "Connection: close")) + "\r\n").encode())
    head = (await reader.read()).partition(b"\r\n\r\n")[0].decode()
    writer.close()
    tag = next((line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("ETag")), "")
    return int(head.split()[1]), tag


async def write_observations(publisher: MetadataPublisher, world: World) -> None:
    await publisher.frontend.collect_worker_reports()
    await write_all_observations(publisher.frontend.observations, world.store)


@WORKERS
def test_an_etag_of_one_store_is_not_that_of_another(workers: int) -> None:
    """Spec §4.3: a client that knows the document of a lost store must not get 304."""
    tags: list[str] = []
    for _ in range(2):
        with new_world() as world:

            async def scenario(world: World = world) -> None:
                async with serving(world, workers=workers) as publisher:
                    status, tag = await poll(publisher, *(f"If-None-Match: {known}" for known in tags))
                    assert status == 200
                    assert await poll(publisher, f"If-None-Match: {tag}") == (304, tag)
                    tags.append(tag)

            run_scenario(world, scenario())
    assert tags[0] != tags[1]


def test_the_etags_of_a_store_survive_a_restart(tmp_path: Path) -> None:
    """Spec §4.3."""

    async def read_tag() -> str:
        store = SqliteStore.open(tmp_path / "store.db")
        try:
            return await load_store_tag(store)
        finally:
            await store.close()

    first, again = asyncio.run(read_tag()), asyncio.run(read_tag())
    assert first == again
    assert int(first, 16) >= 0


def test_two_stores_have_different_tags() -> None:
    async def read_tag(store: Store) -> str:
        return await load_store_tag(store)

    assert len({asyncio.run(read_tag(MemoryStore())) for _ in range(20)}) == 20


@WORKERS
@pytest.mark.parametrize("written", [False, True], ids=["polls not stored yet", "polls stored"])
def test_a_vm_that_is_removed_and_added_again_has_not_polled(world: World, workers: int, written: bool) -> None:
    async def scenario() -> None:
        fleet = world.control.fleet
        async with serving(world, workers=workers) as publisher:
            for _ in range(3):
                await poll(publisher)
            if written:
                await write_observations(publisher, world)
                assert [last.count for last in world.store.last_polls()] == [3]
            await fleet.apply_change(FleetChange(removed=(world.vm("web-0"),), text="removed"), who="test")
            await fleet.apply_change(FleetChange(vms=(VM,), text="added again"), who="test")
            await write_observations(publisher, world)
            assert world.store.last_polls() == []
            assert publisher.frontend.observations.pace(VM.key) is None

            await publisher.wait_until_published()
            await poll(publisher)
            await write_observations(publisher, world)
            (last,) = world.store.last_polls()
            assert (last.count, last.vm_id) == (1, world.vm("web-0").vm_id)
            assert publisher.frontend.observations.pace(VM.key) is not None

    run_scenario(world, scenario())


def test_a_vm_that_was_removed_before_a_restart_has_not_polled_when_it_is_added_again(world: World) -> None:
    async def scenario() -> None:
        fleet = world.control.fleet
        async with serving(world) as publisher:
            await poll(publisher)
            await write_observations(publisher, world)
        await fleet.apply_change(FleetChange(removed=(world.vm("web-0"),), text="removed"), who="test")
        assert len(world.store.last_polls()) == 1
        async with serving(world) as publisher:
            await fleet.apply_change(FleetChange(vms=(VM,), text="added again"), who="test")
            assert publisher.frontend.observations.pace(VM.key) is None
            assert world.store.last_polls() == []

    run_scenario(world, scenario())


def test_a_changed_vm_keeps_its_polls(world: World) -> None:
    async def scenario() -> None:
        async with serving(world) as publisher:
            await poll(publisher)
            await write_observations(publisher, world)
            changed = a_vm("web-0", lab_address="127.0.0.1", vm_id=world.vm("web-0").vm_id, tags={"team": "shop"})
            await world.control.fleet.apply_change(FleetChange(vms=(changed,), text="tagged"), who="test")
            await poll(publisher)
            await write_observations(publisher, world)
            assert [last.count for last in world.store.last_polls()] == [2]

    run_scenario(world, scenario())


def test_no_network_socket_stays_bound_if_the_port_of_the_lab_is_in_use(world: World) -> None:
    network = ListenerSpec(identify_by=IdentifyBy.SOURCE, address="127.0.0.1", port=free_port())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = PublisherConfig(is_lab=True, port=port, one_port_per_vm=True, listeners=(network,))
        with pytest.raises(Rejected) as refused:
            MetadataPublisher.open(config, world.control)
    socket.create_server(("127.0.0.1", network.port)).close()  # while the error still refers to what it left
    assert f"127.0.0.1:{port} is in use" in str(refused.value)
