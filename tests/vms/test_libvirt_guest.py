"""A real guest under libvirt's QEMU driver, which runs inside of the test's process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.machines.driver import MachineMark, MachineState
from forewarn.machines.libvirt.driver import LibvirtDriver
from forewarn.machines.libvirt.session import cpu_needs
from tests.vms.hosts import MEMORY_MIB, VM
from tests.vms.libvirt_hosts import TIMEOUT_S, Guest, embedded_host, end_guest

pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms` installs it")
pytestmark = [pytest.mark.vms, pytest.mark.timeout(900), pytest.mark.usefixtures("_can_run_vms")]
UNKNOWN_CPU = cpu_needs(
    "<domain type='qemu'><os><type arch='x86_64' machine='q35'>hvm</type></os><cpu mode='custom' match='exact'>"
    "<model>Cascadelake-Server</model><feature policy='require' name='avx512f'/></cpu></domain>",
    "",
)
MARK = MachineMark(act_id="E-1:web-0", step="shut-down")


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="fwlv-"))  # short: the path of a Unix socket is limited
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def until(driver: LibvirtDriver, state: MachineState) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await driver.state("kvm-a", VM) is not state:
            await asyncio.sleep(0.05)


def test_a_real_guest_is_paused_reset_shut_down_and_started_and_keeps_its_mark(directory: Path) -> None:
    guest = Guest(directory)
    hosts = {"kvm-a": embedded_host(directory / "kvm-a")}

    async def act(driver: LibvirtDriver) -> None:
        await driver._hosts.connection("kvm-a").call(lambda session: session.define(guest.xml))
        await driver.power_on("kvm-a", VM)
        await asyncio.to_thread(guest.wait_for_boot, 1)

        capacity = await driver.capacity("kvm-a")
        assert capacity.memory_mib > 0
        needs = capacity.vms[VM]
        assert needs.memory_mib == MEMORY_MIB
        assert await driver.can_run_cpu("kvm-a", needs.cpu), "a host can run the CPU of a VM that it runs"
        assert not await driver.can_run_cpu("kvm-a", UNKNOWN_CPU)

        await driver.pause("kvm-a", VM)
        assert await driver.state("kvm-a", VM) is MachineState.PAUSED
        await driver.resume("kvm-a", VM)
        await asyncio.to_thread(guest.wait_for_ticks)
        assert len(guest.boots()) == 1, "a pause does not boot the guest"

        await driver.pause("kvm-a", VM)
        for _ in range(2):
            await driver.reset("kvm-a", VM)
            assert await driver.state("kvm-a", VM) is MachineState.PAUSED
        await driver.resume("kvm-a", VM)
        await asyncio.to_thread(guest.wait_for_boot, 2)
        await driver.write_mark("kvm-a", VM, MARK)

    async def after_reopening(driver: LibvirtDriver) -> None:
        assert await driver.read_mark("kvm-a", VM) == MARK
        assert await driver.state("kvm-a", VM) is MachineState.RUNNING
        await driver.press_power_button("kvm-a", VM)
        await until(driver, MachineState.OFF)
        assert await driver.read_mark("kvm-a", VM) == MARK

        await driver.power_on("kvm-a", VM)
        await asyncio.to_thread(guest.wait_for_boot, 3)
        guest.wait_for_line("data used")
        await driver.power_off("kvm-a", VM)
        await driver.remove("kvm-a", VM, delete_disks=False)
        assert await driver.state("kvm-a", VM) is MachineState.ABSENT

    async def scenario() -> None:
        for part in (act, after_reopening):
            driver = LibvirtDriver(hosts, directory / "definitions")
            try:
                await part(driver)
            except BaseException:
                await end_guest(driver, "kvm-a")
                raise
            await driver.close()

    asyncio.run(scenario())
    assert len(set(guest.boots())) == 3
    assert "conflict" not in guest.text()
