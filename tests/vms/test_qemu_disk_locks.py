"""Locks that real QEMU holds on disks: a VM of a lost host starts elsewhere once they are free, and not before."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.errors import Refused
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.driver import MachineState
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.journal import MachineJournal
from forewarn.machines.qemu.driver import QemuDriver
from tests.support.machine_acts import machine_act
from tests.vms.hosts import HOST_NAMES, MEMORY_MIB, VM, QemuSite, toml_text

pytestmark = pytest.mark.vms
FIRST, SECOND = HOST_NAMES
NOW = 1_700_000_000.0


def define(site: QemuSite, locking: str) -> None:
    """Define a VM without a guest that has the data disk, with or without locks."""
    with site.data_disk.open("wb") as file:
        file.truncate(1 << 20)
    drive = ("-drive", f"file={site.data_disk},format=raw,if=virtio,file.locking={locking}")
    (site.hosts[FIRST].directory / f"{VM}.toml").write_text(
        f"command = {toml_text([*site.empty_command(), *drive])}\nmemory_mib = {MEMORY_MIB}\n"
        f"disks = {toml_text([str(site.data_disk)])}\n"
    )


def driver_of(site: QemuSite) -> QemuDriver:
    hosts = {name: host.settings for name, host in site.hosts.items()}
    directories = (str(site.shared),)
    return QemuDriver(
        hosts, copies=site.directory / "copies", lock_directories=directories, timeout_s=15, start_timeout_s=60
    )


async def boot_and_lose_directory(driver: QemuDriver, site: QemuSite) -> int:
    """Boot the VM on the first host, whose directory is then lost; returns the process id of QEMU, which runs on."""
    await driver.power_on(FIRST, VM)
    assert await driver.state(FIRST, VM) is MachineState.RUNNING
    pid = int((site.hosts[FIRST].directory / f"{VM}.pid").read_text())
    site.hosts[FIRST].directory.rename(site.directory / "lost")
    return pid


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_vm_of_a_lost_host_starts_elsewhere_once_qemu_has_released_its_disk(site: QemuSite, is_paused: bool) -> None:
    define(site, "on")
    act = machine_act(Verb.REDEPLOY, vm=VM, from_host=FIRST, to_host=SECOND, abrupt=True)

    async def scenario() -> None:
        driver = driver_of(site)
        hypervisor = MachineHypervisor(driver, MachineJournal(site.directory / "acts.db"))
        pid = await boot_and_lose_directory(driver, site)
        if is_paused:
            os.kill(pid, signal.SIGSTOP)  # it hangs, and may go on at any time
        for _ in range(3):
            answer = await hypervisor.perform(act, NOW)
            assert isinstance(answer, ActUnderWay)
        assert answer.note.startswith("host-1 does not answer, and web-0 may still run there")
        assert await driver.state(SECOND, VM) is MachineState.OFF
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(120):
            while not isinstance(done := await hypervisor.perform(act, NOW), ActDone):
                pass
        assert done.ok, done.note
        assert "host-1 did not answer, and did not hold the locks of the disks of web-0" in done.note
        assert await driver.state(SECOND, VM) is MachineState.RUNNING
        await driver.power_off(SECOND, VM)
        await hypervisor.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_vm_that_does_not_lock_its_disk_waits_for_a_person(site: QemuSite, is_ended: bool) -> None:
    define(site, "off")

    async def scenario() -> None:
        driver = driver_of(site)
        pid = await boot_and_lose_directory(driver, site)
        if is_ended:
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                while Path(f"/proc/{pid}/fd/0").exists():
                    await asyncio.sleep(0.05)
        assert not await driver.can_lock_disks(FIRST, VM)
        await driver.close()

    asyncio.run(scenario())


def test_qemu_itself_does_not_start_a_second_copy_of_a_vm_with_locks(site: QemuSite) -> None:
    define(site, "on")

    async def scenario() -> None:
        driver = driver_of(site)
        await driver.copy_definition(FIRST, VM, SECOND)
        await boot_and_lose_directory(driver, site)
        with pytest.raises(Refused, match="Is another process using the image"):
            await driver.power_on(SECOND, VM)
        await driver.close()

    asyncio.run(scenario())
