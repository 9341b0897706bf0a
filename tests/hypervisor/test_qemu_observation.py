"""What is observed of VMs of plain QEMU without changing them, and what makes the driver look again at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.core.unannounced import ObservedMachine, ObservedState, StateCause
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.machines.qemu.observation import changed_hosts, machine_in_state
from tests.support.fake_qemu_site import FIRST, SECOND, VM, FakeSite
from tests.support.service_process import eventually

S, C = ObservedState, StateCause
WITHIN_S = 60.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    site = FakeSite(tmp_path)
    yield site
    site.close()


@pytest.mark.parametrize(
    ("status", "state", "cause"),
    [
        ("running", S.RUNNING, C.UNKNOWN),
        ("suspended", S.RUNNING, C.UNKNOWN),
        ("paused", S.PAUSED, C.OPERATOR),
        ("prelaunch", S.PAUSED, C.OPERATOR),
        ("io-error", S.PAUSED, C.DISK_ERROR),
        ("watchdog", S.PAUSED, C.WATCHDOG),
        ("shutdown", S.OFF, C.GUEST),
        ("guest-panicked", S.PAUSED, C.CRASH),
        ("internal-error", S.PAUSED, C.CRASH),
        ("postmigrate", S.OFF, C.MIGRATED),
        ("inmigrate", S.CHANGING, C.UNKNOWN),
        ("finish-migrate", S.CHANGING, C.UNKNOWN),
        ("save-vm", S.CHANGING, C.UNKNOWN),
        ("a state of a later QEMU", S.CHANGING, C.UNKNOWN),
    ],
)
def test_a_run_state_of_qemu_says_how_the_vm_is(status: str, state: ObservedState, cause: StateCause) -> None:
    machine = machine_in_state(status, is_destination=False, instance="5-1")
    assert (machine.state, machine.cause) == (state, cause)
    assert machine.instance == ("5-1" if state in (S.RUNNING, S.PAUSED) else "")


def test_a_destination_of_a_migration_is_changing_until_it_is_resumed() -> None:
    assert machine_in_state("paused", is_destination=True, instance="5-1").state is S.CHANGING
    assert machine_in_state("running", is_destination=True, instance="5-1").state is S.RUNNING


def test_a_host_lists_its_vms_with_the_cause_of_each_end(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        async def observe() -> ObservedMachine:
            observed = await driver.observe(FIRST)
            assert list(observed) == [VM]
            return observed[VM]

        assert await driver.observe(FIRST) == {}
        site.define()
        assert await observe() == ObservedMachine(state=S.OFF, cause=C.OPERATOR)
        await driver.power_on(FIRST, VM)
        running = await observe()
        assert (running.state, running.instance.partition("-")[0]) == (S.RUNNING, str(site.pid()))
        await driver.pause(FIRST, VM)
        assert await observe() == ObservedMachine(state=S.PAUSED, cause=C.OPERATOR, instance=running.instance)
        await driver.resume(FIRST, VM)
        await driver.press_power_button(FIRST, VM)
        assert await observe() == ObservedMachine(state=S.OFF, cause=C.GUEST)
        assert await observe() == ObservedMachine(state=S.OFF, cause=C.GUEST), "an observation has no effect"
        await driver.power_on(FIRST, VM)
        assert (await observe()).instance not in ("", running.instance)
        await driver.power_off(FIRST, VM)
        assert await observe() == ObservedMachine(state=S.OFF, cause=C.OPERATOR)
        await driver.power_on(FIRST, VM)
        os.kill(site.pid(), signal.SIGKILL)
        while (crashed := await observe()).state is not S.OFF:
            await asyncio.sleep(0.02)
        assert crashed.cause is C.CRASH

    site.run(scenario)


def is_stopped(pid: int) -> bool:
    """Return whether all threads of a process have stopped, which takes a moment after SIGSTOP."""
    stats = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(text.rpartition(") ")[2].startswith("T") for text in stats)


def test_a_qemu_that_does_not_answer_is_changing_and_does_not_hide_the_others(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define()
        await driver.power_on(FIRST, VM)
        os.kill(site.pid(), signal.SIGSTOP)
        await asyncio.to_thread(eventually, lambda: is_stopped(site.pid()))
        site.path(FIRST, ".toml").with_name("db.toml").write_bytes(site.path(FIRST, ".toml").read_bytes())
        try:
            observed = await driver.observe(FIRST)
        finally:
            os.kill(site.pid(), signal.SIGCONT)
        assert {name: machine.state for name, machine in observed.items()} == {VM: S.CHANGING, "db": S.OFF}

    site.run(scenario, timeout_s=0.5)


def test_a_host_without_its_directory_does_not_answer(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        assert driver.hosts == (FIRST, SECOND)
        (site.directory / SECOND).rmdir()
        with pytest.raises(HostUnreachable, match="of host 'host-2' does not exist"):
            await driver.observe(SECOND)

    site.run(scenario)


def test_a_change_of_a_vm_and_the_end_of_its_process_name_its_host(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define()
        directories = {name: site.directory / name for name in site.hosts}
        changes = changed_hosts(directories, scan_interval_s=0.05)
        try:
            async with asyncio.timeout(WITHIN_S):
                await driver.power_on(FIRST, VM)
                changed = asyncio.ensure_future(anext(changes))
                while not changed.done():  # until the new monitor is watched
                    await driver.pause(FIRST, VM)
                    await driver.resume(FIRST, VM)
                    await asyncio.wait([changed], timeout=0.1)
                assert await changed == FIRST
                os.kill(site.pid(), signal.SIGKILL)
                while (await driver.observe(FIRST))[VM].state is not S.OFF:
                    assert await anext(changes) == FIRST
                assert await anext(changes) == FIRST
        finally:
            await changes.aclose()

    site.run(scenario)


def test_the_driver_follows_the_events_of_its_hosts(site: FakeSite) -> None:
    async def scenario(driver: QemuDriver) -> None:
        site.define()
        await driver.power_on(FIRST, VM)
        changes = driver.changed_hosts()
        changed = asyncio.ensure_future(anext(changes))
        async with asyncio.timeout(WITHIN_S):
            while not changed.done():
                await driver.pause(FIRST, VM)
                await driver.resume(FIRST, VM)
                await asyncio.wait([changed], timeout=0.1)
        assert await changed == FIRST
        await changes.aclose()

    site.run(scenario)
