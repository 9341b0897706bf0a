"""Every operation of the QEMU driver on real QEMU processes, in every state, repeated, and with QEMU killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable, MachineDriver, MachineMark, MachineState
from forewarn.machines.qemu.definition import QemuHost
from forewarn.machines.qemu.driver import QemuDriver
from tests.vms.conftest import CloneGuest
from tests.vms.hosts import HOST_NAMES, MEMORY_MIB, VM, QemuSite, toml_text

pytestmark = pytest.mark.vms
FIRST, SECOND = HOST_NAMES


def run(site: QemuSite, scenario: Callable[[QemuDriver], Awaitable[None]], *, timeout_s: float = 15.0) -> None:
    async def main() -> None:
        driver = site.driver(timeout_s=timeout_s)
        try:
            await scenario(driver)
        finally:
            await driver.close()

    asyncio.run(main())


def qemu_pid(site: QemuSite, host: str) -> int:
    return int((site.hosts[host].directory / f"{VM}.pid").read_text())


async def reaches(driver: MachineDriver, host: str, state: MachineState) -> None:
    """Wait until the host reports this state."""
    async with asyncio.timeout(60):
        while await driver.state(host, VM) is not state:
            await asyncio.sleep(0.05)


async def move_live(driver: QemuDriver) -> None:
    """Migrate from the first host to the second one, up to the moment when the destination may be resumed."""
    await driver.copy_definition(FIRST, VM, SECOND)
    await driver.prepare_to_receive(SECOND, VM)
    await driver.send(FIRST, VM, SECOND)
    await reaches(driver, FIRST, MachineState.SENT)
    await reaches(driver, SECOND, MachineState.RECEIVED)


def test_a_vm_goes_through_all_states_on_one_host_and_repeated_calls_change_nothing(site: QemuSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        assert await driver.state(FIRST, VM) is MachineState.ABSENT
        await driver.remove(FIRST, VM, delete_disks=True)
        site.define(FIRST, site.empty_command())
        assert await driver.state(FIRST, VM) is MachineState.OFF
        await driver.power_off(FIRST, VM)
        await driver.press_power_button(FIRST, VM)
        for _ in range(2):
            await driver.power_on(FIRST, VM)
            assert await driver.state(FIRST, VM) is MachineState.RUNNING
        process = qemu_pid(site, FIRST)
        for _ in range(2):
            await driver.pause(FIRST, VM)
            assert await driver.state(FIRST, VM) is MachineState.PAUSED
        for _ in range(2):
            await driver.reset(FIRST, VM)
            assert await driver.state(FIRST, VM) is MachineState.PAUSED
        for _ in range(2):
            await driver.resume(FIRST, VM)
            assert await driver.state(FIRST, VM) is MachineState.RUNNING
        assert qemu_pid(site, FIRST) == process
        for _ in range(2):
            await driver.power_off(FIRST, VM)
            assert await driver.state(FIRST, VM) is MachineState.OFF
        for _ in range(2):
            await driver.remove(FIRST, VM, delete_disks=False)
            assert await driver.state(FIRST, VM) is MachineState.ABSENT
        assert [path.name for path in site.hosts[FIRST].directory.iterdir()] == ["console.log"]

    run(site, scenario)


def test_a_vm_is_migrated_between_hosts_whose_directories_have_commas_in_their_names(site: QemuSite) -> None:
    hosts = {}
    for name, host in site.hosts.items():
        directory = site.directory / f"{name},x,,"
        directory.mkdir()
        hosts[name] = QemuHost(directory=str(directory), prefix=host.settings.prefix, memory_mib=1024)
    command = toml_text(site.empty_command())
    (site.directory / f"{FIRST},x,," / f"{VM}.toml").write_text(f"command = {command}\nmemory_mib = {MEMORY_MIB}\n")

    async def scenario() -> None:
        driver = QemuDriver(hosts, copies=site.directory / "copies", timeout_s=15, start_timeout_s=60)
        await driver.power_on(FIRST, VM)
        await move_live(driver)
        await driver.resume(SECOND, VM)
        assert await driver.state(SECOND, VM) is MachineState.RUNNING
        await driver.close()

    asyncio.run(scenario())


def test_operations_that_the_state_forbids_are_refused_and_change_nothing(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())

    async def scenario(driver: QemuDriver) -> None:
        for operation in (driver.pause, driver.resume, driver.reset):
            with pytest.raises(Refused, match="is off: it cannot be"):
                await operation(FIRST, VM)
        with pytest.raises(Refused, match="is off: it cannot be migrated"):
            await driver.send(FIRST, VM, SECOND)
        await driver.power_on(FIRST, VM)
        with pytest.raises(Refused, match="is running: only a paused VM can be reset"):
            await driver.reset(FIRST, VM)
        with pytest.raises(Refused, match="is running: only a VM that is off can be removed"):
            await driver.remove(FIRST, VM, delete_disks=True)
        with pytest.raises(Refused, match="is running: only a VM that is off can be reimaged"):
            await driver.reimage(FIRST, VM)
        with pytest.raises(Refused, match="is running: only a VM that is off can receive"):
            await driver.prepare_to_receive(FIRST, VM)
        with pytest.raises(Refused, match="'web-0' on host 'host-2' does not exist"):
            await driver.send(FIRST, VM, SECOND)
        await driver.pause(FIRST, VM)
        with pytest.raises(Refused, match="is paused: only a VM that is off can be booted"):
            await driver.power_on(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.PAUSED

    run(site, scenario)


def test_a_live_migration_leaves_the_source_sent_and_the_destination_received(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        before = await driver.migration(FIRST, VM)
        assert (before.is_active, before.transferred_bytes, before.error) == (False, 0, "")
        for _ in range(2):
            await driver.copy_definition(FIRST, VM, SECOND)
            assert await driver.state(SECOND, VM) is MachineState.OFF
        for _ in range(2):
            await driver.prepare_to_receive(SECOND, VM)
            assert await driver.state(SECOND, VM) is MachineState.RECEIVING
        with pytest.raises(Refused, match="is receiving: it cannot be resumed"):
            await driver.resume(SECOND, VM)
        await driver.send(FIRST, VM, SECOND)
        await driver.send(FIRST, VM, SECOND)
        await reaches(driver, FIRST, MachineState.SENT)
        await reaches(driver, SECOND, MachineState.RECEIVED)
        after = await driver.migration(FIRST, VM)
        assert (after.is_active, after.error) == (False, "")
        assert after.transferred_bytes > 0
        assert after.downtime_ms is not None
        await driver.send(FIRST, VM, SECOND)
        with pytest.raises(Refused, match="is sent: it cannot be resumed"):
            await driver.resume(FIRST, VM)
        await driver.pause(SECOND, VM)
        assert await driver.state(SECOND, VM) is MachineState.RECEIVED
        await driver.resume(SECOND, VM)
        assert await driver.state(SECOND, VM) is MachineState.RUNNING
        await driver.pause(SECOND, VM)
        assert await driver.state(SECOND, VM) is MachineState.PAUSED
        await driver.power_off(FIRST, VM)
        await driver.remove(FIRST, VM, delete_disks=False)
        assert await driver.state(FIRST, VM) is MachineState.ABSENT

    run(site, scenario)


def test_another_driver_sees_the_same_states_after_the_first_one_has_ended(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())

    async def begin(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        await move_live(driver)

    async def go_on(driver: QemuDriver) -> None:
        assert await driver.state(FIRST, VM) is MachineState.SENT
        assert await driver.state(SECOND, VM) is MachineState.RECEIVED
        await driver.resume(SECOND, VM)
        await driver.power_off(FIRST, VM)
        assert await driver.state(SECOND, VM) is MachineState.RUNNING

    run(site, begin)
    run(site, go_on)


def test_a_cancelled_migration_leaves_the_vm_running_on_the_source(site: QemuSite, clone_guest: CloneGuest) -> None:
    clone_guest(site)

    async def scenario(driver: QemuDriver) -> None:
        await driver.cancel_send(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND)
        await driver.prepare_to_receive(SECOND, VM)
        os.kill(qemu_pid(site, SECOND), signal.SIGSTOP)  # so that the migration cannot complete
        try:
            target = site.hosts[SECOND].directory / f"{VM}.migrate"
            await driver_send_to(driver, target)
            assert (await driver.migration(FIRST, VM)).is_active
            await driver.pause(FIRST, VM)
            with pytest.raises(Refused, match="is being migrated"):
                await driver.resume(FIRST, VM)
            for _ in range(2):
                await driver.cancel_send(FIRST, VM)
        finally:
            os.kill(qemu_pid(site, SECOND), signal.SIGCONT)
        assert not (await driver.migration(FIRST, VM)).is_active
        await driver.resume(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.RUNNING
        await reaches(driver, SECOND, MachineState.OFF)  # QEMU ends when the migration that it receives breaks
        site.hosts[FIRST].wait_for_ticks()

    run(site, scenario)


async def driver_send_to(driver: QemuDriver, target: Path) -> None:
    """Begin a migration whose destination does not answer any more, and so cannot be asked."""
    async with driver._running(FIRST, VM, "migrated") as (_, monitor):
        await monitor.execute("migrate", {"uri": f"unix:{target}"})


def test_a_migration_to_a_destination_that_was_killed_fails_with_a_reason(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND)
        await driver.prepare_to_receive(SECOND, VM)
        os.kill(qemu_pid(site, SECOND), signal.SIGKILL)
        await reaches(driver, SECOND, MachineState.OFF)
        with pytest.raises(Refused, match="is off: it cannot be a destination"):
            await driver.send(FIRST, VM, SECOND)
        await driver_send_to(driver, site.hosts[SECOND].directory / f"{VM}.migrate")
        async with asyncio.timeout(30):
            while not (progress := await driver.migration(FIRST, VM)).error:
                await asyncio.sleep(0.05)
        assert not progress.is_active
        assert await driver.state(FIRST, VM) is MachineState.RUNNING
        await driver.prepare_to_receive(SECOND, VM)  # what an earlier attempt left is no obstacle
        await driver.send(FIRST, VM, SECOND)
        await reaches(driver, SECOND, MachineState.RECEIVED)

    run(site, scenario)


def test_migrations_can_go_over_tcp(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())
    hosts = {name: host.settings for name, host in site.hosts.items()}
    hosts[FIRST], hosts[SECOND] = (
        type(settings)(directory=settings.directory, migration="127.0.0.1") for settings in hosts.values()
    )

    async def main() -> None:
        driver = QemuDriver(hosts, copies=site.directory / "copies", timeout_s=15)
        await driver.power_on(FIRST, VM)
        await move_live(driver)
        await driver.resume(SECOND, VM)
        assert await driver.state(SECOND, VM) is MachineState.RUNNING
        for host in HOST_NAMES:
            await driver.power_off(host, VM)

    asyncio.run(main())


def test_a_guest_that_shuts_down_is_off_and_can_be_booted_again(site: QemuSite, clone_guest: CloneGuest) -> None:
    clone_guest(site)
    host = site.hosts[FIRST]

    async def scenario(driver: QemuDriver) -> None:
        await driver.press_power_button(FIRST, VM)
        await reaches(driver, FIRST, MachineState.OFF)
        host.console.unlink()
        await driver.power_on(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.RUNNING
        host.wait_for_ticks()
        assert "data used" in host.console.read_text()
        assert "ephemeral used" in host.console.read_text()

    run(site, scenario)


def test_a_fresh_ephemeral_disk_is_empty_and_the_other_disk_keeps_its_data(
    site: QemuSite, clone_guest: CloneGuest
) -> None:
    clone_guest(site)

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_off(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND)
        await driver.power_on(SECOND, VM, fresh_ephemeral_disk=True)
        site.hosts[SECOND].wait_for_ticks()
        text = site.hosts[SECOND].console.read_text()
        assert "data used" in text
        assert "ephemeral empty" in text

    run(site, scenario)


def test_a_killed_qemu_is_off(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        os.kill(qemu_pid(site, FIRST), signal.SIGKILL)
        await reaches(driver, FIRST, MachineState.OFF)
        await driver.power_off(FIRST, VM)
        await driver.power_on(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.RUNNING

    run(site, scenario)


def test_a_qemu_that_hangs_makes_its_host_unreachable_and_can_be_powered_off(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        os.kill(qemu_pid(site, FIRST), signal.SIGSTOP)
        with pytest.raises(HostUnreachable, match="did not answer"):
            await driver.state(FIRST, VM)
        await driver.power_off(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.OFF

    run(site, scenario, timeout_s=2)


def test_a_running_vm_whose_socket_is_missing_is_never_taken_for_one_that_is_off(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())
    run(site, lambda driver: driver.power_on(FIRST, VM))  # with another driver, which no longer has a connection
    (site.hosts[FIRST].directory / f"{VM}.qmp").unlink()

    async def scenario(driver: QemuDriver) -> None:
        with pytest.raises(HostUnreachable, match="runs, but nothing answers on its socket"):
            await driver.state(FIRST, VM)
        with pytest.raises(HostUnreachable, match="runs, but nothing answers"):
            await driver.power_on(FIRST, VM)
        await driver.power_off(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.OFF

    run(site, scenario, timeout_s=2)


def test_a_running_vm_without_a_definition_is_not_absent(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())

    async def scenario(driver: QemuDriver) -> None:
        await driver.power_on(FIRST, VM)
        (site.hosts[FIRST].directory / f"{VM}.toml").unlink()
        assert await driver.state(FIRST, VM) is MachineState.RUNNING
        await driver.power_off(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.ABSENT

    run(site, scenario)


def test_a_command_that_qemu_does_not_understand_is_refused_with_its_message(site: QemuSite) -> None:
    site.define(FIRST, [*site.empty_command(), "-drive", "file=/does/not/exist.raw,format=raw,if=virtio"])

    async def scenario(driver: QemuDriver) -> None:
        with pytest.raises(Refused, match=r"QEMU did not start VM 'web-0' on host 'host-1': .*No such file"):
            await driver.power_on(FIRST, VM)
        assert await driver.state(FIRST, VM) is MachineState.OFF

    run(site, scenario)


def test_a_mark_is_kept_by_the_host_until_the_vm_is_removed(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())
    mark = MachineMark(act_id="E1:web-0", step="send")

    async def scenario(driver: QemuDriver) -> None:
        assert await driver.read_mark(FIRST, VM) is None
        await driver.write_mark(FIRST, VM, mark)
        assert await driver.read_mark(FIRST, VM) == mark
        await driver.power_on(FIRST, VM)
        await driver.power_off(FIRST, VM)
        assert await driver.read_mark(FIRST, VM) == mark
        await driver.remove(FIRST, VM, delete_disks=False)
        assert await driver.read_mark(FIRST, VM) is None
        await driver.copy_definition(FIRST, VM, FIRST)
        assert await driver.read_mark(FIRST, VM) is None

    run(site, scenario)


def test_memory_of_running_vms_is_not_free(site: QemuSite) -> None:
    site.define(FIRST, site.empty_command())

    async def scenario(driver: QemuDriver) -> None:
        assert (await driver.capacity(FIRST)).memory_mib == 1024
        await driver.power_on(FIRST, VM)
        assert (await driver.capacity(FIRST)).memory_mib == 1024 - MEMORY_MIB
        await driver.power_off(FIRST, VM)
        assert (await driver.capacity(FIRST)).memory_mib == 1024

    run(site, scenario)
