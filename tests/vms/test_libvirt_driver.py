"""The libvirt driver on libvirt's own test driver, which keeps its domains in the process."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from forewarn.errors import Refused
from forewarn.hypervisor.libvirt.connection import LibvirtHost
from forewarn.hypervisor.libvirt.domain_state import ChangeKind
from forewarn.hypervisor.libvirt.driver import LibvirtDriver
from forewarn.hypervisor.libvirt.session import LibvirtSession
from forewarn.hypervisor.machines.driver import HostUnreachable, MachineMark, MachineState

pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms` installs it")
pytestmark = pytest.mark.vms

MARK = MachineMark(act_id="A-1", step="pause")
DOMAIN = """
<domain type='test'><name>web-1</name><uuid>{uuid}</uuid><memory unit='MiB'>{memory}</memory><vcpu>1</vcpu>
<metadata><forewarn:disks xmlns:forewarn='urn:forewarn:disks:1' ephemeral='vdb'/></metadata>
<os><type>hvm</type></os><devices>{devices}</devices></domain>
"""
UUID = "11111111-1111-4111-8111-111111111111"
OTHER_UUID = "22222222-2222-4222-8222-222222222222"
NODE = """
<node><memory>4194304</memory>{domain}
<pool type='dir'><name>images</name><target><path>/images</path></target></pool></node>
"""
DISKS = """
<disk type='file' device='disk'><source file='/images/root.qcow2'/><target dev='vda'/></disk>
<disk type='file' device='disk'><source file='/images/scratch.qcow2'/><target dev='vdb'/></disk>
<disk type='file' device='cdrom'><source file='/iso/debian.iso'/><target dev='hda'/><readonly/></disk>
"""
VOLUME = "<volume><name>{}</name><capacity unit='MiB'>64</capacity></volume>"


def domain(*, uuid: str = UUID, memory: int = 256, devices: str = "") -> str:
    return DOMAIN.format(uuid=uuid, memory=memory, devices=devices)


@asynccontextmanager
async def driver_of(tmp_path: Path, **hosts: str) -> AsyncIterator[LibvirtDriver]:
    """A driver whose hosts have the domain XML given, each in a world of its own."""
    specs = {}
    for name, xml in hosts.items():
        (tmp_path / f"{name}.xml").write_text(NODE.format(domain=xml))
        specs[name] = LibvirtHost(uri=f"test://{tmp_path}/{name}.xml")
    driver = LibvirtDriver(specs, tmp_path / "definitions")
    try:
        yield driver
    finally:
        await driver.close()


Operation = Callable[[LibvirtDriver], Coroutine[Any, Any, None]]
OPERATIONS: dict[str, tuple[Operation, MachineState]] = {
    "pause": (lambda driver: driver.pause("a", "web-1"), MachineState.PAUSED),
    "resume": (lambda driver: driver.resume("a", "web-1"), MachineState.RUNNING),
    "reset": (lambda driver: driver.reset("a", "web-1"), MachineState.PAUSED),
    "press_power_button": (lambda driver: driver.press_power_button("a", "web-1"), MachineState.OFF),
    "power_on": (lambda driver: driver.power_on("a", "web-1"), MachineState.RUNNING),
    "power_off": (lambda driver: driver.power_off("a", "web-1"), MachineState.OFF),
    "remove": (lambda driver: driver.remove("a", "web-1", delete_disks=False), MachineState.ABSENT),
}
BEFORE: dict[str, tuple[str, ...]] = {  # the operations that lead to a state from RUNNING
    "running": (),
    "paused": ("pause",),
    "off": ("power_off",),
    "absent": ("power_off", "remove"),
}
ALLOWED = {
    *(("running", name) for name in ("pause", "resume", "press_power_button", "power_on", "power_off")),
    *(("paused", name) for name in ("pause", "resume", "reset", "power_off")),
    *(("off", name) for name in ("press_power_button", "power_on", "power_off", "remove")),
    ("absent", "remove"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("before", BEFORE)
def test_an_operation_leads_to_its_state_also_when_repeated_or_is_refused_and_changes_nothing(
    tmp_path: Path, before: str, operation: str
) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            for name in BEFORE[before]:
                await OPERATIONS[name][0](driver)
            run, state = OPERATIONS[operation]
            if (before, operation) in ALLOWED:
                for _ in range(2):
                    await run(driver)
                    assert await driver.state("a", "web-1") is state
            else:
                with pytest.raises(Refused, match="web-1"):
                    await run(driver)
                assert await driver.state("a", "web-1") == before

    asyncio.run(scenario())


def test_a_mark_stays_with_the_vm_while_it_is_powered_off_and_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            assert await driver.read_mark("a", "web-1") is None
            await driver.write_mark("a", "web-1", MachineMark(act_id="A-0", step="stop"))
            await driver.write_mark("a", "web-1", MARK)
            await driver.power_off("a", "web-1")
            assert await driver.read_mark("a", "web-1") == MARK
            await driver.power_on("a", "web-1")
            assert await driver.read_mark("a", "web-1") == MARK
            assert await driver.read_mark("a", "web-2") is None

    asyncio.run(scenario())


def test_a_copied_definition_is_off_on_the_other_host_and_has_only_the_mark_of_that_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(), b="") as driver:
            await driver.write_mark("a", "web-1", MARK)
            await driver.copy_definition("a", "web-1", "b")
            assert await driver.state("b", "web-1") is MachineState.OFF
            assert await driver.read_mark("b", "web-1") is None
            await driver.write_mark("b", "web-1", MachineMark(act_id="A-1", step="start"))
            await driver.copy_definition("a", "web-1", "b")
            assert await driver.read_mark("b", "web-1") == MachineMark(act_id="A-1", step="start")

    asyncio.run(scenario())


def test_a_vm_can_be_defined_elsewhere_after_its_host_was_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(), b="") as driver:
            assert await driver.state("a", "web-1") is MachineState.RUNNING
        (tmp_path / "a.xml").unlink()
        hosts = {name: LibvirtHost(uri=f"test://{tmp_path}/{name}.xml") for name in "ab"}
        driver = LibvirtDriver(hosts, tmp_path / "definitions")
        with pytest.raises(HostUnreachable, match="host a cannot be reached"):
            await driver.state("a", "web-1")
        await driver.copy_definition("a", "web-1", "b")
        assert await driver.state("b", "web-1") is MachineState.OFF
        with pytest.raises(HostUnreachable):
            await driver.copy_definition("a", "web-2", "b")
        await driver.close()
        copy = tmp_path / "definitions" / "a" / "web-1.xml"
        assert copy.stat().st_mode & 0o777 == 0o600

    asyncio.run(scenario())


def test_a_different_vm_of_the_same_name_on_the_destination_is_not_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(), b=domain(uuid=OTHER_UUID)) as driver:
            with pytest.raises(Refused, match="'web-1' is running on host b already"):
                await driver.copy_definition("a", "web-1", "b")
            await driver.power_off("b", "web-1")
            with pytest.raises(Refused, match=f"another VM 'web-1', with UUID {OTHER_UUID}"):
                await driver.copy_definition("a", "web-1", "b")

    asyncio.run(scenario())


def test_a_prepared_destination_is_receiving_until_it_is_powered_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(), b="") as driver:
            with pytest.raises(Refused, match="'web-1' is absent on host b"):
                await driver.prepare_to_receive("b", "web-1")
            with pytest.raises(Refused, match="is absent on host b, so host a cannot send it"):
                await driver.send("a", "web-1", "b")
            await driver.copy_definition("a", "web-1", "b")
            for _ in range(2):
                await driver.prepare_to_receive("b", "web-1")
                assert await driver.state("b", "web-1") is MachineState.RECEIVING
            await driver.copy_definition("a", "web-1", "b")
            assert await driver.state("b", "web-1") is MachineState.RECEIVING
            with pytest.raises(Refused, match="is receiving on host b"):
                await driver.power_on("b", "web-1")
            await driver.power_off("b", "web-1")
            assert await driver.state("b", "web-1") is MachineState.OFF

    asyncio.run(scenario())


def test_a_host_without_enough_memory_does_not_receive_a_vm(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(memory=900_000), b="") as driver:
            await driver.copy_definition("a", "web-1", "b")
            with pytest.raises(Refused, match="MiB of memory left, but VM 'web-1' needs 900000 MiB"):
                await driver.prepare_to_receive("b", "web-1")
            assert await driver.state("b", "web-1") is MachineState.OFF

    asyncio.run(scenario())


def test_a_migration_that_libvirt_refuses_leaves_the_vm_running_and_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(), b="") as driver:  # this driver of libvirt cannot migrate
            await driver.copy_definition("a", "web-1", "b")
            await driver.prepare_to_receive("b", "web-1")
            assert not (await driver.migration("a", "web-1")).is_active
            await driver.send("a", "web-1", "b")
            while (progress := await driver.migration("a", "web-1")).is_active:
                await asyncio.sleep(0)
            assert "host a refused to send VM 'web-1'" in progress.error
            assert await driver.state("a", "web-1") is MachineState.RUNNING
            await driver.cancel_send("a", "web-1")

    asyncio.run(scenario())


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


def test_hosts_are_found_in_any_case_and_a_host_without_settings_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            assert await driver.state("A", "web-1") is MachineState.RUNNING
            assert (await driver.capacity("a")).memory_mib > 0
            with pytest.raises(Refused, match=r"add \[libvirt.hosts.b\]"):
                await driver.state("b", "web-1")

    asyncio.run(scenario())


def test_a_fence_command_decides_whether_the_host_is_cut_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        script = 'import os, sys; sys.exit(0 if os.environ["FOREWARN_HOST"] == "good" else 3)'
        hosts = {
            "good": LibvirtHost(uri="test:///default", fence=(sys.executable, "-c", script)),
            "bad": LibvirtHost(uri="test:///default", fence=(sys.executable, "-c", script)),
            "missing": LibvirtHost(uri="test:///default", fence=(str(tmp_path / "missing"),)),
            "slow": LibvirtHost(uri="test:///default", fence=("sleep", "600"), fence_timeout_s=0.01),
            "none": LibvirtHost(uri="test:///default"),
        }
        driver = LibvirtDriver(hosts, tmp_path)
        assert {name: await driver.fence(name) for name in hosts} == {
            **dict.fromkeys(hosts, False),
            "good": True,
        }
        await driver.close()

    asyncio.run(scenario())


def test_a_socket_without_a_daemon_is_an_unreachable_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        uri = f"qemu+unix:///system?socket={tmp_path}/missing"
        driver = LibvirtDriver({"a": LibvirtHost(uri=uri)}, tmp_path)
        with pytest.raises(HostUnreachable, match=r"the libvirt of host a cannot be reached at .*missing"):
            await driver.state("a", "web-1")
        await driver.close()

    asyncio.run(scenario())


def test_a_daemon_that_accepts_and_never_answers_is_an_unreachable_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        uri = f"qemu+unix:///system?socket={tmp_path}/silent"
        driver = LibvirtDriver({"a": LibvirtHost(uri=uri, timeout_s=0.1)}, tmp_path)
        with pytest.raises(HostUnreachable, match=r"did not answer within 0\.1 s"):
            await driver.state("a", "web-1")
        await driver.close()

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        asyncio.run(scenario())


def test_changes_that_hosts_report_are_yielded_in_their_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            await driver.state("a", "web-1")
            changes = driver.changes()
            first = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)  # the iterator has subscribed
            await driver.pause("a", "web-1")
            await driver.resume("a", "web-1")
            await driver.power_off("a", "web-1")
            await driver.power_on("a", "web-1")
            seen = [await first, *[await anext(changes) for _ in range(3)]]
            assert [(change.host, change.vm, change.kind) for change in seen] == [
                ("a", "web-1", kind)
                for kind in (ChangeKind.PAUSED, ChangeKind.RESUMED, ChangeKind.POWERED_OFF, ChangeKind.STARTED)
            ]
            await changes.aclose()

    asyncio.run(scenario())


def test_a_transient_vm_gets_no_mark_because_its_host_would_forget_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            await driver._connection("a").call(lambda session: session.undefine("web-1"))
            with pytest.raises(Refused, match="'web-1' is transient"):
                await driver.write_mark("a", "web-1", MARK)

    asyncio.run(scenario())


def images(session: LibvirtSession) -> Any:
    """The storage pool, as libvirt's own object: the driver has no need to fill pools."""
    return session._connection.storagePoolLookupByName("images")


async def with_volumes(driver: LibvirtDriver, *names: str, end: str = "</volume>") -> None:
    def create(session: LibvirtSession) -> None:
        for name in names:
            session.delete_volume(f"/images/{name}")
            images(session).createXML(VOLUME.format(name).replace("</volume>", end))

    await driver._connection("a").call(create)


async def volumes(driver: LibvirtDriver) -> list[str]:
    return await driver._connection("a").call(lambda session: sorted(images(session).listVolumes()))
