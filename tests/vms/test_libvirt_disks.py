"""Disks of libvirt VMs in storage pools: deleted, emptied and recreated, or refused; on libvirt's own test driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.cause import Verb
from forewarn.errors import Refused
from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.driver import MachineState
from forewarn.machines.interface import ActDone
from forewarn.machines.journal import MachineJournal
from forewarn.machines.libvirt.domain_state import ChangeKind
from forewarn.machines.libvirt.driver import LibvirtDriver
from forewarn.machines.libvirt.session import LibvirtSession
from tests.support.machine_acts import machine_act
from tests.vms.libvirt_hosts import DISKS, VOLUME, domain, driver_of

pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms` installs it")
pytestmark = pytest.mark.vms


def images(session: LibvirtSession) -> Any:
    """The storage pool, as libvirt's own object: the driver has no need to fill pools."""
    return session._connection.storagePoolLookupByName("images")


async def with_volumes(driver: LibvirtDriver, *names: str, host: str = "a", end: str = "</volume>") -> None:
    def create(session: LibvirtSession) -> None:
        for name in names:
            session.storage.delete_volume(f"/images/{name}")
            images(session).createXML(VOLUME.format(name).replace("</volume>", end))

    await driver._hosts.connection(host).call(create)


async def volumes(driver: LibvirtDriver, host: str = "a") -> list[str]:
    return await driver._hosts.connection(host).call(lambda session: sorted(images(session).listVolumes()))


async def set_pool(driver: LibvirtDriver, host: str, *, is_active: bool) -> None:
    """Start or stop the storage pool of a host, as `virsh pool-start` and `virsh pool-destroy` do."""
    await driver._hosts.connection(host).call(
        lambda session: images(session).create() if is_active else images(session).destroy()
    )


def test_removing_a_vm_with_its_disks_deletes_those_that_are_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(devices=DISKS)) as driver:
            await with_volumes(driver, "root.qcow2", "scratch.qcow2", "other.qcow2")
            await driver.power_off("a", "web-1")
            await driver.remove("a", "web-1", delete_disks=True)
            assert await driver.state("a", "web-1") is MachineState.ABSENT
            assert await volumes(driver) == ["other.qcow2"]

    asyncio.run(scenario())


def test_a_vm_starts_with_an_empty_ephemeral_disk_if_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(devices=DISKS)) as driver:
            await with_volumes(driver, "root.qcow2", "scratch.qcow2")
            await driver.power_off("a", "web-1")
            await driver.power_on("a", "web-1", fresh_ephemeral_disk=True)
            assert await driver.state("a", "web-1") is MachineState.RUNNING
            assert await volumes(driver) == ["root.qcow2", "scratch.qcow2"]

    asyncio.run(scenario())


def test_an_os_disk_is_made_anew_from_its_image_and_only_if_it_has_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(devices=DISKS)) as driver:
            await with_volumes(driver, "root.qcow2")
            await driver.power_off("a", "web-1")
            with pytest.raises(Refused, match=r"disk /images/root.qcow2 .* is not a copy of an image"):
                await driver.reimage("a", "web-1")
            assert await volumes(driver) == ["root.qcow2"]
            backing = "<backingStore><path>/images/debian.qcow2</path></backingStore></volume>"
            await with_volumes(driver, "root.qcow2", end=backing)
            await driver.reimage("a", "web-1")
            assert await volumes(driver) == ["root.qcow2"]
            assert await driver.state("a", "web-1") is MachineState.OFF

    asyncio.run(scenario())


def test_a_vm_that_was_removed_without_its_disks_is_defined_again_elsewhere_or_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(devices=DISKS), b="") as driver:
            await with_volumes(driver, "root.qcow2", "other.qcow2")
            with pytest.raises(Refused, match="'web-1' is on no host, and no definition of it is kept"):
                await driver.copy_definition("", "web-1", "b")
            await driver.power_off("a", "web-1")
            await driver.remove("a", "web-1", delete_disks=False)
            await driver.copy_definition("", "web-1", "b")
            assert await driver.state("b", "web-1") is MachineState.OFF
            await driver.remove("b", "web-1", delete_disks=False)
            for _ in range(2):
                await driver.remove("", "web-1", delete_disks=True)
            assert await volumes(driver) == ["other.qcow2"]

    asyncio.run(scenario())


def test_disks_outside_of_storage_pools_are_not_deleted_and_the_vm_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        devices = DISKS.replace("/images/root", "/elsewhere/root")
        async with driver_of(tmp_path, a=domain(devices=devices)) as driver:
            await driver.power_off("a", "web-1")
            with pytest.raises(Refused, match=r"disk /elsewhere/root.qcow2 .* in no storage pool of host a"):
                await driver.remove("a", "web-1", delete_disks=True)
            assert await driver.state("a", "web-1") is MachineState.OFF

    asyncio.run(scenario())


INACTIVE = r"disk /images/\S+ of VM 'web-1' is in the storage pool 'images' of host a, which is not active: start it"


OPERATIONS: dict[str, Callable[[LibvirtDriver], Coroutine[Any, Any, None]]] = {
    "remove": lambda driver: driver.remove("a", "web-1", delete_disks=True),
    "power_on": lambda driver: driver.power_on("a", "web-1", fresh_ephemeral_disk=True),
    "reimage": lambda driver: driver.reimage("a", "web-1"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_disk_in_an_inactive_pool_does_not_pass_for_deleted(tmp_path: Path, operation: str) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(devices=DISKS)) as driver:
            await with_volumes(driver, "root.qcow2", "scratch.qcow2")
            await driver.power_off("a", "web-1")
            await set_pool(driver, "a", is_active=False)
            with pytest.raises(Refused, match=INACTIVE):
                await OPERATIONS[operation](driver)
            assert await driver.state("a", "web-1") is MachineState.OFF
            await set_pool(driver, "a", is_active=True)
            assert await volumes(driver) == ["root.qcow2", "scratch.qcow2"]

    asyncio.run(scenario())


def test_disks_of_a_vm_on_no_host_are_deleted_where_they_are_and_only_then_the_vm_is_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a="", b=domain(devices=DISKS)) as driver:
            await with_volumes(driver, "root.qcow2", "scratch.qcow2", host="b")
            await driver.power_off("b", "web-1")
            await driver.remove("b", "web-1", delete_disks=False)
            await set_pool(driver, "b", is_active=False)
            with pytest.raises(Refused, match=INACTIVE.replace("host a", "host b")):
                await driver.remove("", "web-1", delete_disks=True)
            await set_pool(driver, "b", is_active=True)
            for _ in range(2):
                await driver.remove("", "web-1", delete_disks=True)
            assert await volumes(driver, "b") == []
            with pytest.raises(Refused, match="no definition of it is kept"):
                await driver.copy_definition("", "web-1", "a")

    asyncio.run(scenario())


def test_an_ephemeral_disk_is_created_on_another_host_as_it_was_on_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(devices=DISKS), b="") as driver:
            await with_volumes(driver, "root.qcow2", "scratch.qcow2")
            await driver.copy_definition("a", "web-1", "b", fresh_ephemeral_disk=True)
            assert await volumes(driver, "b") == []
            await driver.power_off("a", "web-1")
            await driver.power_on("b", "web-1", fresh_ephemeral_disk=True)
            assert await volumes(driver, "b") == ["scratch.qcow2"]

    asyncio.run(scenario())


async def redeploy(tmp_path: Path, driver: LibvirtDriver) -> ActDone:
    """Redeploy the VM from host a to host b, as the service does; the driver stays open."""
    journal = MachineJournal(tmp_path / "acts.db")
    act = machine_act(Verb.REDEPLOY, from_host="a", to_host="b")
    with closing(journal):
        hypervisor = MachineHypervisor(driver, journal)
        async with asyncio.timeout(60):
            while not isinstance(answer := await hypervisor.perform(act, 1_700_000_000.0), ActDone):
                await asyncio.sleep(0)
        return answer


def test_a_redeploy_fails_before_the_guest_notices_it_if_its_ephemeral_disk_has_no_pool_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(devices=DISKS), b="") as driver:
            await with_volumes(driver, "root.qcow2", "scratch.qcow2")
            await set_pool(driver, "b", is_active=False)
            changes = driver.changes()
            first = asyncio.ensure_future(anext(changes))
            done = await redeploy(tmp_path, driver)
            assert not done.ok
            assert "the storage pool 'images' of host b, which is not active" in done.note
            assert await driver.state("a", "web-1") is MachineState.RUNNING
            await driver.pause("a", "web-1")
            assert (await first).kind is ChangeKind.PAUSED  # nothing happened to the guest before
            await changes.aclose()

    asyncio.run(scenario())


def test_a_vm_whose_ephemeral_disk_cannot_be_created_on_the_destination_comes_back_on_its_source(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(devices=DISKS), b="") as driver:
            await with_volumes(driver, "root.qcow2", "scratch.qcow2")
            free = await driver._hosts.connection("b").call(lambda session: images(session).info()[3])
            size = f"<capacity>{free}</capacity></volume>"
            fill = VOLUME.format("full.raw").replace("<capacity unit='MiB'>64</capacity></volume>", size)
            await driver._hosts.connection("b").call(lambda session: images(session).createXML(fill))
            done = await redeploy(tmp_path, driver)
            assert not done.ok
            assert "Not enough free space in pool" in done.note
            assert done.note.endswith("; web-1 was started on a again")
            assert await driver.state("a", "web-1") is MachineState.RUNNING
            assert await driver.state("b", "web-1") is MachineState.ABSENT
            assert await volumes(driver) == ["root.qcow2", "scratch.qcow2"]

    asyncio.run(scenario())
