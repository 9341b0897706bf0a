"""The QEMU driver with processes that behave like QEMU: states, files, copies, crashes of the service, errors."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable, MachineDriver, MachineMark, MachineState
from forewarn.machines.qemu.definition import QemuHost
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.machines.qemu.processes import QemuInstance, sync_directory
from tests.support import fake_qemu
from tests.support.fake_qemu_site import FIRST, PYTHON, SECOND, VM, FakeSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    site = FakeSite(tmp_path)
    yield site
    site.close()


def test_the_driver_implements_the_interface(site: FakeSite) -> None:
    driver: MachineDriver = QemuDriver(site.hosts, copies=site.directory / "copies")
    assert driver.can_reimage


def test_a_vm_is_booted_paused_reset_resumed_shut_down_and_removed(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        seen = [await driver.state(FIRST, VM)]
        site.define()
        for operation in (
            *(driver.power_off, driver.power_on, driver.power_on, driver.pause, driver.pause, driver.reset),
            *(driver.resume, driver.resume, driver.press_power_button, driver.press_power_button, driver.power_on),
            *(driver.power_off, driver.power_off),
        ):
            await operation(FIRST, VM)
            seen.append(await driver.state(FIRST, VM))
        await driver.remove(FIRST, VM, delete_disks=False)
        assert " ".join([*seen, await driver.state(FIRST, VM)]) == (
            "absent off running running paused paused paused running running off off running off off absent"
        )
        assert list((site.directory / FIRST).iterdir()) == []

    site.run(scenario)


def test_a_vm_moves_live(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define()
        await driver.power_on(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND)
        for _ in range(2):
            await driver.prepare_to_receive(SECOND, VM)
            assert await driver.state(SECOND, VM) is MachineState.RECEIVING
        with pytest.raises(Refused, match="is receiving: it cannot be resumed"):
            await driver.resume(SECOND, VM)
        for _ in range(2):
            await driver.send(FIRST, VM, SECOND)
            assert await driver.state(FIRST, VM) is MachineState.SENT
        async with asyncio.timeout(30):
            while await driver.state(SECOND, VM) is MachineState.RECEIVING:
                await asyncio.sleep(0.02)
        progress = await driver.migration(FIRST, VM)
        assert (progress.transferred_bytes, progress.remaining_bytes, progress.downtime_ms) == (4096, 0, 7)
        assert await driver.state(SECOND, VM) is MachineState.RECEIVED
        with pytest.raises(Refused, match="is sent: it cannot be resumed"):
            await driver.resume(FIRST, VM)
        await driver.resume(SECOND, VM)
        await driver.pause(SECOND, VM)
        assert await driver.state(SECOND, VM) is MachineState.PAUSED
        await driver.power_off(SECOND, VM)

    site.run(scenario)


def test_the_directory_of_a_host_may_have_commas_in_its_name(tmp_path: Path) -> None:
    directory = tmp_path / "a,b,,c"
    directory.mkdir()
    site = FakeSite(directory)
    site.define()

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.RUNNING
        await driver.power_off(FIRST, VM)

    site.run(scenario)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("io-error", "no space is left for disk disk1"),
        ("guest-panicked", "the guest's kernel has crashed"),
        ("internal-error", "QEMU cannot continue the guest"),
    ],
)
def test_a_guest_that_qemu_has_stopped_because_of_an_error_is_halted_and_the_driver_says_why(
    site: FakeSite, status: str, reason: str
) -> None:
    site.define(FIRST, "-halt", status)

    async def scenario(driver: QemuDriver) -> None:
        assert await driver.stop_reason(FIRST, VM) == ""
        await driver.power_on(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.HALTED
        assert await driver.stop_reason(FIRST, VM) == reason
        await driver.reset(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.PAUSED
        await driver.resume(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.HALTED
        await driver.power_off(FIRST, VM)

    site.run(scenario)


def test_a_halted_guest_arrives_complete_and_can_be_resumed_on_the_destination(site: FakeSite) -> None:
    site.define(FIRST, "-halt", "io-error")
    site.define(SECOND)

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        await driver.prepare_to_receive(SECOND, VM)
        await driver.send(FIRST, VM, SECOND)
        async with asyncio.timeout(30):
            while await driver.state(SECOND, VM) is not MachineState.RECEIVED:
                await asyncio.sleep(0.02)
        await driver.resume(SECOND, VM)
        assert await driver.state(SECOND, VM) is MachineState.RUNNING
        await driver.power_off(SECOND, VM)

    site.run(scenario)


def test_a_destination_that_was_resumed_without_a_record_is_paused_and_not_received(site: FakeSite) -> None:
    site.define(SECOND)

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(SECOND, VM)
        site.path(SECOND, ".incoming").touch()  # as if the service was killed just after it had resumed the VM
        await driver.pause(SECOND, VM)
        assert await driver.state(SECOND, VM) is MachineState.PAUSED

    site.run(scenario)


def test_a_destination_that_does_not_listen_yet_is_off_and_can_be_prepared_again(site: FakeSite) -> None:
    """The service is killed after it has started QEMU as a destination, before QEMU listens."""
    site.define(SECOND)
    instance = QemuInstance(SECOND, VM, site.directory / SECOND)
    monitor, pid_file = f"unix:{instance.monitor_socket},server=on", str(instance.pid_file)
    options = ("-qmp", monitor, "-pidfile", pid_file, "-incoming", "defer", "-S")
    with instance.start([*PYTHON, fake_qemu.__file__, *options]) as process:

        async def scenario(driver: QemuDriver) -> None:
            assert await driver.state(SECOND, VM) is MachineState.OFF
            await driver.prepare_to_receive(SECOND, VM)
            assert await driver.state(SECOND, VM) is MachineState.RECEIVING
            assert process.wait(timeout=10) == 0

        site.run(scenario)


def test_a_migration_under_way_can_be_cancelled_and_forbids_to_resume(site: FakeSite) -> None:
    site.define(FIRST, "-stuck")
    site.define(SECOND)

    async def scenario(driver: QemuDriver) -> None:
        await driver.cancel_send(FIRST, VM)
        assert not (await driver.migration(FIRST, VM)).is_active
        await driver.power_on(FIRST, VM)
        await driver.prepare_to_receive(SECOND, VM)
        await driver.send(FIRST, VM, SECOND)
        assert (await driver.migration(FIRST, VM)).is_active
        await driver.pause(FIRST, VM)
        with pytest.raises(Refused, match="is being migrated"):
            await driver.resume(FIRST, VM)
        for _ in range(2):
            await driver.cancel_send(FIRST, VM)
        await driver.resume(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.RUNNING

    site.run(scenario)


def test_a_destination_that_does_not_listen_or_wait_is_refused(site: FakeSite) -> None:
    site.define(FIRST)

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        with pytest.raises(Refused, match="'web-0' on host 'host-2' does not exist"):
            await driver.send(FIRST, VM, SECOND)
        site.define(SECOND)
        with pytest.raises(Refused, match="on host 'host-2' is off: it cannot be a destination"):
            await driver.send(FIRST, VM, SECOND)
        await driver.power_on(SECOND, VM)
        with pytest.raises(Refused, match="on host 'host-2' is running: it does not wait for a live migration"):
            await driver.send(FIRST, VM, SECOND)
        site.define(FIRST, "-deaf")
        with pytest.raises(Refused, match="is running with a different definition"):
            await driver.copy_definition(FIRST, VM, SECOND)

    site.run(scenario)


def test_a_vm_that_runs_is_never_off_for_a_new_service(site: FakeSite) -> None:
    """The service is killed at the moment when it has started QEMU, before QEMU has made its socket."""
    site.define()
    instance = QemuInstance(FIRST, VM, site.directory / FIRST)
    child = instance.start(["sleep", "60"])
    try:

        async def scenario(driver: QemuDriver) -> None:
            with pytest.raises(HostUnreachable, match="runs, but nothing answers on its socket"):
                await driver.state(FIRST, VM)
            with pytest.raises(HostUnreachable, match="runs, but nothing answers on its socket"):
                await driver.power_on(FIRST, VM)
            with pytest.raises(HostUnreachable, match=r"'.*web-0.pid' does not say in which process: end it by hand"):
                await driver.power_off(FIRST, VM)
            with pytest.raises(Refused, match="its QEMU process still runs"):
                instance.start(["true"])

        site.run(scenario, timeout_s=0.2)
    finally:
        child.kill()
        child.wait()


def test_a_qemu_that_a_person_started_is_found_by_its_socket(site: FakeSite) -> None:
    site.define()
    monitor, pid_file = f"unix:{site.path(FIRST, '.qmp')},server=on", str(site.path(FIRST, ".pid"))
    with subprocess.Popen([*PYTHON, fake_qemu.__file__, "-qmp", monitor, "-pidfile", pid_file]) as process:

        async def scenario(driver: QemuDriver) -> None:
            async with asyncio.timeout(30):
                while await driver.state(FIRST, VM) is not MachineState.RUNNING:
                    await asyncio.sleep(0.02)
            await driver.power_on(FIRST, VM)
            assert process.poll() is None
            await driver.power_off(FIRST, VM)
            assert await driver.state(FIRST, VM) is MachineState.OFF

        site.run(scenario)


def test_a_hanging_qemu_is_killed_when_it_is_powered_off(site: FakeSite) -> None:
    site.define(FIRST, "-hang", "query-status")

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        with pytest.raises(HostUnreachable, match="did not answer 'query-status'"):
            await driver.state(FIRST, VM)
        os.kill(site.pid(), signal.SIGSTOP)
        await driver.power_off(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.OFF

    site.run(scenario, timeout_s=0.5)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            "Operation not permitted",
            "tap tap-web0 is missing on this host, or belongs to another user, and QEMU may not create it: "
            "create it with `ip tuntap add dev tap-web0 mode tap user USER`, for the user who runs QEMU",
        ),
        (
            "Device or resource busy",
            "another process uses tap tap-web0 of this host: end it, or give the VM a tap of its own",
        ),
        ("Invalid argument", "tap tap-web0 of this host cannot be used: Invalid argument"),
    ],
)
def test_qemu_that_cannot_use_its_tap_is_refused_with_what_to_do(site: FakeSite, reason: str, text: str) -> None:
    site.define(FIRST, "-fail", f"qemu: -netdev tap,id=n: could not configure /dev/net/tun (tap-web0): {reason}")

    async def scenario(driver: QemuDriver) -> None:
        with pytest.raises(Refused, match=re.escape(f"QEMU did not start VM 'web-0' on host 'host-1': {text}")):
            await driver.power_on(FIRST, VM)

    site.run(scenario)


def test_qemu_that_ends_at_once_is_refused_with_its_last_message(site: FakeSite) -> None:
    site.define(FIRST, "-fail", "qemu: no such disk")

    async def scenario(driver: QemuDriver) -> None:
        with pytest.raises(Refused, match="QEMU did not start VM 'web-0' on host 'host-1': qemu: no such disk"):
            await driver.power_on(FIRST, VM)
        site.hosts[FIRST] = QemuHost(directory=str(site.directory / FIRST), prefix=("/does/not/exist",))
        with pytest.raises(Refused, match="cannot be started: '/does/not/exist': No such file or directory"):
            await driver.power_on(FIRST, VM)
        site.path(FIRST, ".toml").write_text("command = 1\n")
        with pytest.raises(Refused, match=r"definition '.*web-0.toml' is wrong"):
            await driver.power_on(FIRST, VM)

    site.run(scenario)


def test_unknown_hosts_lost_directories_and_missing_vms_are_named(site: FakeSite) -> None:
    (site.directory / SECOND).rmdir()

    async def scenario(driver: QemuDriver) -> None:
        with pytest.raises(Refused, match=r"host 'host-9' is not in the settings: add \[qemu.hosts.host-9\]"):
            await driver.state("host-9", VM)
        with pytest.raises(HostUnreachable, match=r"directory '.*host-2' of host 'host-2' does not exist"):
            await driver.state(SECOND, VM)
        for operation in (driver.pause, driver.press_power_button, driver.power_on, driver.power_off):
            with pytest.raises(Refused, match="VM 'web-0' on host 'host-1' does not exist"):
                await operation(FIRST, VM)
        with pytest.raises(Refused, match="VM 'web-0' on host 'host-1' does not exist"):
            await driver.write_mark(FIRST, VM, MachineMark(act_id="1", step="send"))

    site.run(scenario)


def test_a_vm_of_a_lost_host_is_defined_elsewhere_from_the_copy(site: FakeSite) -> None:
    site.define_with_disks()

    async def scenario(driver: QemuDriver) -> None:
        await driver.state(FIRST, VM)
        (site.directory / FIRST).rename(site.directory / "lost")
        with pytest.raises(HostUnreachable):
            await driver.state(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND)
        await driver.power_on(SECOND, VM, fresh_ephemeral_disk=True)
        assert await driver.state(SECOND, VM) is MachineState.RUNNING

    site.run(scenario)


def test_a_vm_does_not_move_to_a_host_with_too_little_memory(site: FakeSite) -> None:
    site.define_with_disks()
    site.hosts[SECOND] = site.host(SECOND, memory_mib=15)

    async def scenario(driver: QemuDriver) -> None:
        with pytest.raises(Refused, match=f"^{SECOND} has 15 MiB free, and {VM} needs 16 MiB$"):
            await driver.copy_definition(FIRST, VM, SECOND)
        assert await driver.state(SECOND, VM) is MachineState.ABSENT

    site.run(scenario)


def test_a_vm_does_not_move_over_a_definition_that_cannot_be_read(site: FakeSite) -> None:
    site.define_with_disks()
    site.path(SECOND, ".toml").mkdir()

    async def scenario(driver: QemuDriver) -> None:
        with pytest.raises(Refused, match=r"definition '.*host-2/web-0.toml' cannot be read: Is a directory"):
            await driver.copy_definition(FIRST, VM, SECOND)

    site.run(scenario)


def test_a_directory_whose_changes_cannot_be_made_durable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"changes in directory '.*lost' cannot be made durable: No such file"):
        sync_directory(tmp_path / "lost")


def test_a_disk_that_is_a_device_is_not_deleted_with_its_vm(site: FakeSite) -> None:
    site.define(more='disks = ["/dev/null"]\n')

    async def scenario(driver: QemuDriver) -> None:
        with pytest.raises(Refused, match=r"disk '/dev/null' of .* is a device, and cannot be deleted"):
            await driver.remove(FIRST, VM, delete_disks=True)
        assert await driver.state(FIRST, VM) is MachineState.OFF

    site.run(scenario)


def test_a_vm_without_a_host_keeps_its_disks_until_they_are_deleted(site: FakeSite) -> None:
    site.define_with_disks()

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        await driver.power_off(FIRST, VM)
        await driver.remove(FIRST, VM, delete_disks=False)
        assert (site.shared / "data.raw").read_text() == "data"
        await driver.copy_definition("", VM, SECOND)
        assert await driver.state(SECOND, VM) is MachineState.OFF
        await driver.remove(SECOND, VM, delete_disks=False)
        for _ in range(2):
            await driver.remove("", VM, delete_disks=True)
        assert [path.name for path in site.shared.iterdir()] == ["image.raw"]
        with pytest.raises(Refused, match="is not defined on a host, and there is no copy"):
            await driver.copy_definition("", VM, SECOND)

    site.run(scenario)


def test_an_ephemeral_disk_is_created_when_missing_and_emptied_when_asked(site: FakeSite) -> None:
    site.define_with_disks()
    disk = site.shared / "ephemeral.raw"

    async def scenario(driver: QemuDriver) -> None:
        for fresh, first_byte in ((False, b"\0"), (False, b"x"), (True, b"\0")):
            await driver.power_on(FIRST, VM, fresh_ephemeral_disk=fresh)
            assert disk.stat().st_size == 1 << 20
            assert disk.read_bytes()[:1] == first_byte
            await driver.power_off(FIRST, VM)
            disk.write_bytes(b"x" + disk.read_bytes()[1:])

    site.run(scenario)


def test_a_reimage_replaces_the_first_disk(site: FakeSite) -> None:
    site.define_with_disks()

    async def scenario(driver: QemuDriver) -> None:
        for _ in range(2):
            await driver.reimage(FIRST, VM)
            assert (site.shared / "data.raw").read_text() == "image"
        (site.shared / "image.raw").unlink()
        with pytest.raises(Refused, match=r"image '.*image.raw' cannot be copied to '.*data.raw': No such file"):
            await driver.reimage(FIRST, VM)
        assert (site.shared / "data.raw").read_text() == "image"
        site.define()
        with pytest.raises(Refused, match="cannot be reimaged: add 'image' to"):
            await driver.reimage(FIRST, VM)

    site.run(scenario)


def test_a_disk_that_only_one_host_reaches_forbids_to_move(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define(more='disks = ["data.raw"]\n')
        with pytest.raises(Refused, match=r"disk 'data.raw' .* needs disks with absolute paths"):
            await driver.copy_definition(FIRST, VM, SECOND)
        site.define(more='disks = ["/does/not/exist"]\n')
        with pytest.raises(Refused, match=r"disk '/does/not/exist' of .* does not exist"):
            await driver.copy_definition(FIRST, VM, SECOND)
        site.define(more='[ephemeral]\npath = "local.raw"\nsize_mib = 1\n')
        await driver.copy_definition(FIRST, VM, SECOND)  # a redeploy makes a new one
        with pytest.raises(Refused, match="a live migration needs disks with absolute paths"):
            await driver.prepare_to_receive(SECOND, VM)
        await driver.power_on(SECOND, VM)
        await driver.power_off(SECOND, VM)
        assert (site.directory / SECOND / "local.raw").exists()
        await driver.remove(SECOND, VM, delete_disks=False)
        assert not (site.directory / SECOND / "local.raw").exists()

    site.run(scenario)


def test_marks_are_stored_beside_the_vm(site: FakeSite) -> None:
    site.define()
    mark = MachineMark(act_id="E1:web-0", step="send")

    async def scenario(driver: QemuDriver) -> None:
        assert await driver.read_mark(SECOND, VM) is None
        assert await driver.read_mark(FIRST, VM) is None
        await driver.write_mark(FIRST, VM, mark)
        assert await driver.read_mark(FIRST, VM) == mark
        site.path(FIRST, ".mark").write_text("{")
        with pytest.raises(Refused, match=r"mark '.*web-0.mark' cannot be read"):
            await driver.read_mark(FIRST, VM)

    site.run(scenario)


def test_free_memory_does_not_count_that_of_running_vms(site: FakeSite) -> None:
    site.define()

    async def scenario(driver: QemuDriver) -> None:
        assert (await driver.capacity(FIRST)).memory_mib == 64
        await driver.power_on(FIRST, VM)
        assert (await driver.capacity(FIRST)).memory_mib == 48

    site.run(scenario)


def test_a_host_without_a_limit_has_the_memory_of_the_machine(site: FakeSite) -> None:
    site.hosts[FIRST] = site.host(FIRST)

    async def scenario(driver: QemuDriver) -> None:
        free = await driver.capacity(FIRST)
        assert free.memory_mib == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (1 << 20)

    site.run(scenario)
