"""A fenced QEMU host: its command has succeeded, and no process of this machine runs a VM of it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.machines.driver import MachineState
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.machines.qemu.processes import QemuInstance
from tests.support.fake_qemu_site import FIRST, SECOND, VM, FakeSite
from tests.support.service_process import eventually


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    site = FakeSite(tmp_path)
    site.define_with_disks()
    site.hosts[FIRST] = site.host(FIRST, fence=("true",), memory_mib=64)
    yield site
    site.close()


@pytest.mark.parametrize(
    ("fence", "ok"),
    [
        ((), False),
        (("/does/not/exist",), False),
        (("false",), False),
        (("sh", "-c", 'test "$FOREWARN_HOST" = host-1 && { kill -9 $(cat host-1/web-0.pid); true; }'), True),
        (("true",), False),  # it says that it succeeded, and QEMU still runs
        (("sleep", "60"), False),
    ],
)
def test_a_host_is_fenced_if_its_command_succeeds_and_no_vm_runs(
    site: FakeSite, fence: tuple[str, ...], ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.define()
    site.hosts[FIRST] = site.host(FIRST, fence=fence, fence_timeout_s=0.5)
    monkeypatch.chdir(site.directory)

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        if ok:  # the kernel ends the process after the command has ended
            async with asyncio.timeout(30):
                while not await driver.fence(FIRST):
                    pass
            assert not QemuInstance(FIRST, VM, site.directory / FIRST).is_alive()
        else:
            assert not await driver.fence(FIRST)

    site.run(scenario)


def test_a_qemu_that_somebody_started_with_the_monitor_of_a_vm_is_not_overlooked(site: FakeSite) -> None:
    socket = site.path(FIRST, ".qmp")

    async def scenario(driver: QemuDriver) -> None:
        assert await driver.fence(FIRST)
        with site.qemu_by_hand("-qmp", f"unix:{socket},server=on,wait=off"):
            eventually(socket.exists, within_s=30)
            assert not await driver.fence(FIRST)
        assert await driver.fence(FIRST)

    site.run(scenario)


@pytest.mark.parametrize("is_directory_lost", [False, True])
def test_a_qemu_that_somebody_started_with_a_disk_of_a_vm_is_not_overlooked(
    site: FakeSite, is_directory_lost: bool
) -> None:
    async def scenario(driver: QemuDriver) -> None:
        assert await driver.state(FIRST, VM) is MachineState.OFF
        if is_directory_lost:
            (site.directory / FIRST).rename(site.directory / "unmounted")
        assert await driver.fence(FIRST)
        disk = str(site.shared / "data.raw")
        with site.qemu_by_hand("-disks", disk):
            assert not await driver.fence(FIRST)
        assert await driver.fence(FIRST)

    site.run(scenario)


def test_processes_that_only_read_a_disk_and_the_vms_of_other_hosts_do_not_prevent_fencing(site: FakeSite) -> None:
    disk = site.shared / "data.raw"
    text = site.path(FIRST, ".toml").read_text()
    site.path(SECOND, ".toml").write_text(text.replace('fake_qemu.py"', f'fake_qemu.py", "-disks", "{disk}"'))

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(SECOND, VM)
        assert await driver.fence(FIRST)
        await driver.power_off(SECOND, VM)

    with disk.open("rb") as file, subprocess.Popen(["sleep", "60"], stdin=file) as reader:
        site.run(scenario)
        reader.kill()
