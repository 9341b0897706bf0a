"""The start of a service: what it reads of a large fleet, which decides how long it takes, and a start that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from forewarn.base.clock import SystemClock
from forewarn.cluster.bus import MessageHandler
from forewarn.control.control_plane import ControlPlane
from forewarn.control.fleet import FleetChange
from forewarn.core.fleet import Vm
from forewarn.errors import Refused
from forewarn.service.data_directory import DataDirectory
from forewarn.service.settings import Settings, load_settings
from forewarn.service.wiring import ServiceStorage, new_cluster_control, open_control, running_service, start_service
from forewarn.store import MemoryStore
from forewarn.store.sqlite import SqliteStore
from tests.support.memory_bus import MemoryBroker, MemoryBus
from tests.support.service_process import free_port
from tests.support.world import a_vm

FLEET = """
[[hosts]]
name = "host-{n}"
count = 2

[[vms]]
name = "web-{n}"
count = 12
"""


def lab_settings(directory: Path) -> Settings:
    (directory / "fleet.toml").write_text(FLEET)
    flags = {
        "data": str(directory / "data"),
        "fleet": str(directory / "fleet.toml"),
        "port": free_port(),
        "api": "",
    }
    return load_settings(flags, lab=True, config=None)


def start_and_list(settings: Settings) -> list[str]:
    """Start the service, let its background tasks begin, and return the VMs that it announces."""

    async def start() -> list[str]:
        async with running_service(settings) as service:
            await asyncio.sleep(0)
            return [name for name, _ in service.lab_endpoints(10)]

    return asyncio.run(start())


def test_a_start_reads_all_vms_from_the_store_once_for_each_index_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lab_settings(tmp_path)
    start_and_list(settings)
    reads = []
    read_vms = SqliteStore.vms

    def counted(store: SqliteStore, **conditions: Any) -> list[Vm]:
        reads.append(conditions)
        return read_vms(store, **conditions)

    monkeypatch.setattr(SqliteStore, "vms", counted)
    assert start_and_list(settings) == [f"web-{number}" for number in range(10)]
    assert reads == [{}, {"removed": True}]  # of the placement index, and of the directory of names


class BusThatRefuses(MemoryBus):
    """A bus that permits no subscription, and takes so long to say so that the fleet changes meanwhile."""

    control: ControlPlane

    async def subscribe(self, subject: str, handler: MessageHandler) -> Callable[[], None]:
        vms = tuple(a_vm(f"web-{number}", host="") for number in range(5000))
        await self.control.fleet.apply_change(FleetChange(vms=vms), who="ann")
        raise Refused("the bus does not permit it")


def test_a_service_that_the_bus_refuses_leaves_nothing_running(tmp_path: Path) -> None:
    """Scopes of a large change are published in the background."""
    flags = {"data": str(tmp_path / "data"), "bus": "nats://127.0.0.1:4222", "api": ""}
    settings = load_settings(flags, lab=False, config=None)

    async def scenario() -> None:
        bus = BusThatRefuses(MemoryBroker(Random(0)), "c1")
        cluster = new_cluster_control(bus, settings, "c1")
        async with AsyncExitStack() as stack:
            directory = DataDirectory.acquire(settings.directory)
            stack.callback(directory.close)
            storage = ServiceStorage(store=MemoryStore(), clock=SystemClock(), cluster=cluster)
            bus.control, supervisors = await open_control(stack, settings, directory, storage)
            with pytest.raises(Refused, match="the bus does not permit it"):
                await start_service(stack, settings, directory, bus.control, supervisors, None, (), cluster)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
