"""A real guest whose disk is full: QEMU halts it, it moves as it is, and continues where there is space."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.machines.driver import MachineState
from forewarn.machines.qemu.driver import QemuDriver
from tests.vms.hosts import HOST_NAMES, VM, QemuSite
from tests.vms.test_qemu_driver import reaches

pytestmark = pytest.mark.vms
FIRST, SECOND = HOST_NAMES


@pytest.fixture
def filler(site: QemuSite) -> Iterator[Path]:
    """The file that fills the small file system of the guest's disks, which have no blocks yet."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "forewarn-test", str(site.shared)], check=True)
    site.define(FIRST, site.guest_command(), disks=True)
    with site.ephemeral_disk.open("wb") as file:
        file.truncate(1 << 20)
    path = site.shared / "filler"
    with pytest.raises(OSError, match="No space left"):
        path.write_bytes(bytes(1 << 23))
    yield path
    subprocess.run(["umount", "--lazy", str(site.shared)], check=True)


def test_a_guest_with_a_full_disk_is_halted_moves_and_goes_on_once_there_is_space(site: QemuSite, filler: Path) -> None:
    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        await reaches(driver, FIRST, MachineState.HALTED)
        assert await driver.stop_reason(FIRST, VM) == "no space is left for disk virtio0"
        await driver.resume(FIRST, VM)
        await reaches(driver, FIRST, MachineState.HALTED)  # the disk is still full
        await driver.copy_definition(FIRST, VM, SECOND)
        await driver.prepare_to_receive(SECOND, VM)
        await driver.send(FIRST, VM, SECOND)
        await reaches(driver, FIRST, MachineState.SENT)
        await reaches(driver, SECOND, MachineState.RECEIVED)
        filler.unlink()
        await driver.resume(SECOND, VM)
        await asyncio.to_thread(site.hosts[SECOND].wait_for_ticks)
        assert await driver.state(SECOND, VM) is MachineState.RUNNING
        assert await driver.stop_reason(SECOND, VM) == ""

    async def main() -> None:
        driver = site.driver()
        try:
            await scenario(driver)
        finally:
            await driver.power_off(SECOND, VM)
            await driver.close()

    asyncio.run(main())
