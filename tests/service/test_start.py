"""The start of a service with a large fleet: what it reads, which decides how long it takes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.fleet import Vm
from forewarn.service.settings import Settings, load_settings
from forewarn.service.wiring import running_service
from forewarn.store.sqlite import SqliteStore
from tests.support.service_process import free_port

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
        "console": "",
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
