"""The libvirt driver on libvirt's own test driver, which keeps its domains in the process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable, MachineMark, MachineState, VmNeeds
from forewarn.machines.libvirt.connection import LibvirtHost
from forewarn.machines.libvirt.domain_state import ChangeKind
from forewarn.machines.libvirt.driver import LibvirtDriver
from forewarn.machines.libvirt.session import LibvirtSession, cpu_needs
from tests.vms.libvirt_hosts import OTHER_UUID, domain, driver_of

pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms` installs it")
pytestmark = pytest.mark.vms

LOOK_AS_NOBODY = """
import asyncio, os, sys
import libvirt
from forewarn.machines.libvirt.driver import LibvirtDriver, LibvirtHost

async def main():
    driver = LibvirtDriver({"a": LibvirtHost(uri=sys.argv[1])}, None)
    try:
        await driver.state("a", "web-1")
    finally:
        await driver.close()

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
asyncio.run(main())
"""
OLD_CPU = "<domain type='test'><cpu mode='custom'><model>pentium</model></cpu></domain>"
MARK = MachineMark(act_id="A-1", step="pause")
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
            with pytest.raises(Refused, match="MiB of memory left, but VM 'web-1' needs 900000 MiB"):
                await driver.copy_definition("a", "web-1", "b")
            assert await driver.state("b", "web-1") is MachineState.ABSENT
        async with driver_of(tmp_path, c=domain(memory=900_000)) as driver:
            await driver.power_off("c", "web-1")
            with pytest.raises(Refused, match="MiB of memory left, but VM 'web-1' needs 900000 MiB"):
                await driver.prepare_to_receive("c", "web-1")
            assert await driver.state("c", "web-1") is MachineState.OFF

    asyncio.run(scenario())


def test_a_host_says_what_its_vms_need_and_cpus_that_it_cannot_compare_fit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            assert driver.hosts == ("a",)
            assert (await driver.capacity("a")).vms == {"web-1": VmNeeds(memory_mib=256)}
            assert await driver.can_run_cpu("a", cpu_needs(OLD_CPU, ""))
            assert await driver.kept_vms() == {}
            await driver.power_off("a", "web-1")
            await driver.remove("a", "web-1", delete_disks=False)
            assert (await driver.capacity("a")).vms == {}
            assert await driver.kept_vms() == {"web-1": VmNeeds(memory_mib=256)}

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


def test_a_socket_without_permission_says_what_to_do() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as server:
        os.chmod(directory, 0o755)
        path = Path(directory) / "libvirt-sock"
        server.bind(str(path))
        path.chmod(0o600)
        server.listen()
        uri = f"qemu+unix:///system?socket={path}"
        line = [sys.executable, "-c", LOOK_AS_NOBODY, uri]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert f"Refused: host a does not let this user use its libvirt at {uri}: add the user to the group libvirt" in (
        done.stderr
    )


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


def test_a_call_that_changes_disks_waits_for_an_earlier_one_that_was_cancelled(tmp_path: Path) -> None:
    """A reimage that is given up may still work in its thread: the VM must not boot meanwhile."""

    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            await driver.power_off("a", "web-1")
            is_working, may_end = threading.Event(), threading.Event()

            def change_disks(session: LibvirtSession) -> None:
                is_working.set()
                may_end.wait(60)

            given_up = asyncio.create_task(driver._hosts.run("a", "web-1", "reimage", change_disks, is_exclusive=True))
            await asyncio.to_thread(is_working.wait, 60)
            given_up.cancel()
            await asyncio.wait({given_up})
            with pytest.raises(HostUnreachable, match="host a has not finished an earlier call for VM 'web-1'"):
                await driver.power_on("a", "web-1")
            assert await driver.state("a", "web-1") is MachineState.OFF
            may_end.set()
            async with asyncio.timeout(60):
                while await driver.state("a", "web-1") is MachineState.OFF:
                    with suppress(HostUnreachable):
                        await driver.power_on("a", "web-1")

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


def test_waiting_ends_when_the_host_reports_a_change_of_the_domain(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            await driver.state("a", "web-1")
            waiting = asyncio.ensure_future(driver.wait_for_change("a", "web-1", within_s=60))
            await asyncio.sleep(0)
            assert not waiting.done()
            await driver.pause("a", "web-1")
            assert await waiting
            assert await driver.state("a", "web-1") is MachineState.PAUSED
            assert not await driver.wait_for_change("a", "web-1", within_s=0.01)

    asyncio.run(scenario())


def test_a_transient_vm_gets_no_mark_because_its_host_would_forget_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            await driver._hosts.connection("a").call(lambda session: session.undefine("web-1"))
            with pytest.raises(Refused, match="'web-1' is transient"):
                await driver.write_mark("a", "web-1", MARK)

    asyncio.run(scenario())
