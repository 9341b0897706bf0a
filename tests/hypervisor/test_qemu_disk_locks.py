"""Locks of disks as evidence that a VM does not run on its silent host: only if everything about them is certain."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.errors import Refused, Rejected
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.driver import MachineState
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.journal import MachineJournal
from forewarn.machines.qemu.disks import DiskLocks
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.machines.qemu.processes import QemuInstance
from tests.support import fake_qemu
from tests.support.fake_qemu_site import FIRST, SECOND, VM, FakeSite
from tests.support.machine_acts import machine_act
from tests.vms.hosts import toml_text


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    site = FakeSite(tmp_path)
    define(site)
    site.lock_directories = (str(site.shared),)
    yield site
    for name in (FIRST, "lost"):
        if (site.directory / name).exists():
            (site.directory / name).rename(site.directory / f"host-{name}")
    site.close()


def disks(site: FakeSite) -> list[Path]:
    return [site.shared / "data.raw", site.shared / "log.raw"]


def define(site: FakeSite, *options: str) -> None:
    """Define a VM with two disks; it locks them if the options say so."""
    for disk in disks(site):
        disk.write_text("data")
    command = [fake_qemu.__file__, "-disks", ":".join(map(str, disks(site))), *(options or ("-lock",))]
    text = f"command = {toml_text(command)}\nmemory_mib = 16\ndisks = {toml_text(list(map(str, disks(site))))}\n"
    site.path(FIRST, ".toml").write_text(text)


async def run_and_lose_host(driver: QemuDriver, site: FakeSite, *, is_ended: bool) -> None:
    """Run the VM for a moment; then its host's directory is gone, and the VM has ended or not."""
    await driver.power_on(FIRST, VM)
    assert await driver.state(FIRST, VM) is MachineState.RUNNING
    assert not await driver.can_lock_disks(FIRST, VM)
    if is_ended:
        await driver.power_off(FIRST, VM)
    (site.directory / FIRST).rename(site.directory / "lost")


def test_the_locks_of_a_vm_that_has_ended_are_free(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        await run_and_lose_host(driver, site, is_ended=True)
        assert await driver.can_lock_disks(FIRST, VM)
        assert not await driver.can_lock_disks(SECOND, VM)  # it was not seen there

    site.run(scenario)


def test_a_lock_record_that_cannot_be_written_is_refused(site: FakeSite) -> None:
    (site.directory / "file").touch()
    locks = DiskLocks(site.lock_directories, site.directory / "file" / "records")

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        with pytest.raises(Refused, match=r"directory '.*file/records' cannot be created: Not a directory"):
            locks.observe(QemuInstance(FIRST, VM, site.directory / FIRST))

    site.run(scenario)


def test_the_locks_of_a_vm_that_still_runs_are_not_free(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        await run_and_lose_host(driver, site, is_ended=False)
        assert not await driver.can_lock_disks(FIRST, VM)

    site.run(scenario)


def replace_disk(site: FakeSite) -> None:
    (site.shared / "new.raw").write_text("other data")
    (site.shared / "new.raw").replace(disks(site)[1])


def change_definition(site: FakeSite) -> None:
    copy = site.directory / "copies" / f"{VM}.toml"
    copy.write_text(copy.read_text() + 'image = "/other.raw"\n')


def delete_disk(site: FakeSite) -> None:
    disks(site)[0].unlink()


def lose_record(site: FakeSite) -> None:
    (site.directory / "copies" / f"{VM}.locks").unlink()


@pytest.mark.parametrize("change", [replace_disk, change_definition, delete_disk, lose_record])
def test_free_locks_prove_nothing_if_something_about_the_disks_has_changed(
    site: FakeSite, change: Callable[[FakeSite], None]
) -> None:
    async def scenario(driver: QemuDriver) -> None:
        await run_and_lose_host(driver, site, is_ended=True)
        change(site)
        assert not await driver.can_lock_disks(FIRST, VM)

    site.run(scenario)


@pytest.mark.parametrize("is_locked", [False, True])
def test_free_locks_prove_nothing_if_another_process_writes_to_a_disk(site: FakeSite, is_locked: bool) -> None:
    async def scenario(driver: QemuDriver) -> None:
        await run_and_lose_host(driver, site, is_ended=True)
        with site.qemu_by_hand("-disks", str(disks(site)[1]), *(["-lock"] if is_locked else [])):
            assert not await driver.can_lock_disks(FIRST, VM)
        assert await driver.can_lock_disks(FIRST, VM)

    site.run(scenario)


def test_free_locks_prove_nothing_about_a_vm_that_was_seen_without_locks(site: FakeSite) -> None:
    define(site, "-nolock")

    async def scenario(driver: QemuDriver) -> None:
        await run_and_lose_host(driver, site, is_ended=True)
        assert not await driver.can_lock_disks(FIRST, VM)

    site.run(scenario)


def test_a_vm_that_was_booted_again_without_locks_has_no_evidence_any_more(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        await driver.state(FIRST, VM)
        await driver.power_off(FIRST, VM)
        define(site, "-nolock")
        await run_and_lose_host(driver, site, is_ended=True)
        assert not await driver.can_lock_disks(FIRST, VM)

    site.run(scenario)


@pytest.mark.parametrize("directories", [(), ("/elsewhere",)])
def test_locks_outside_the_directories_of_the_settings_do_not_count(
    site: FakeSite, directories: tuple[str, ...]
) -> None:
    site.lock_directories = directories

    async def scenario(driver: QemuDriver) -> None:
        await run_and_lose_host(driver, site, is_ended=True)
        assert not await driver.can_lock_disks(FIRST, VM)

    site.run(scenario)


def test_a_directory_on_a_file_system_that_is_not_local_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"'/proc', on a file system of type 'proc': only locks on local file systems"):
        DiskLocks(("/proc",), tmp_path)


def test_a_vm_of_a_lost_host_is_redeployed_without_fencing_once_its_locks_are_free(site: FakeSite) -> None:
    act = machine_act(Verb.REDEPLOY, vm=VM, from_host=FIRST, to_host=SECOND, abrupt=True)

    async def scenario(driver: QemuDriver) -> None:
        hypervisor = MachineHypervisor(driver, MachineJournal(site.directory / "acts.db"))
        await run_and_lose_host(driver, site, is_ended=False)
        for _ in range(3):
            answer = await hypervisor.perform(act, 1_700_000_000.0)
            assert isinstance(answer, ActUnderWay)
        assert "may still run there" in answer.note
        os.kill(int((site.directory / "lost" / f"{VM}.pid").read_text()), signal.SIGKILL)
        async with asyncio.timeout(60):
            while not isinstance(done := await hypervisor.perform(act, 1_700_000_000.0), ActDone):
                pass
        assert done.ok, done.note
        assert "did not hold the locks of the disks of web-0" in done.note
        assert await driver.state(SECOND, VM) is MachineState.RUNNING
        await driver.power_off(SECOND, VM)
        await hypervisor.close()

    site.run(scenario)
    shutil.rmtree(site.directory / "lost")
