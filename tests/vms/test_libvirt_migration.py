"""Live migration of a real guest between two real libvirtd, with and without the service carrying it."""

from __future__ import annotations

import asyncio
import signal

import pytest

from forewarn.cluster.move_plan import MoveProgress, StepOrder, next_step
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable, MachineMark, MachineState, MigrationProgress
from forewarn.machines.libvirt.domain_state import ChangeKind
from forewarn.machines.libvirt.driver import LibvirtDriver
from tests.vms.hosts import VM
from tests.vms.libvirt_hosts import TIMEOUT_S, Guest, MigrationSite

pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms-long` installs it")
pytestmark = [pytest.mark.vms_long, pytest.mark.timeout(900), pytest.mark.usefixtures("_can_run_vms")]


async def prepare(driver: LibvirtDriver) -> None:
    await driver.write_mark("kvm-a", VM, MachineMark(act_id="A-1", step="prepare"))
    await driver.copy_definition("kvm-a", VM, "kvm-b")
    await driver.write_mark("kvm-b", VM, MachineMark(act_id="A-1", step="receive"))
    await driver.prepare_to_receive("kvm-b", VM)


async def end_of_migration(driver: LibvirtDriver) -> MigrationProgress:
    async with asyncio.timeout(TIMEOUT_S):
        while (progress := await driver.migration("kvm-a", VM)).is_active:
            await asyncio.sleep(0.02)
    return progress


async def states(driver: LibvirtDriver) -> tuple[MachineState, MachineState]:
    return await driver.state("kvm-a", VM), await driver.state("kvm-b", VM)


@pytest.mark.parametrize("by_peers", [False, True], ids=["by the service", "by the hosts"])
def test_a_migrated_guest_is_paused_on_the_destination_and_goes_on_there(
    migration_site: MigrationSite, by_peers: bool
) -> None:
    async def scenario(driver: LibvirtDriver, guest: Guest) -> None:
        await prepare(driver)
        assert await states(driver) == (MachineState.RUNNING, MachineState.RECEIVING)
        for _ in range(2):
            await driver.send("kvm-a", VM, "kvm-b")
        progress = await end_of_migration(driver)
        assert (progress.error, progress.remaining_bytes) == ("", 0)
        assert progress.transferred_bytes > 0
        assert progress.downtime_ms is not None
        assert await states(driver) == (MachineState.SENT, MachineState.RECEIVED)
        for forbidden in (driver.resume, driver.power_on):
            with pytest.raises(Refused, match="is sent on host kvm-a"):
                await forbidden("kvm-a", VM)
        await driver.send("kvm-a", VM, "kvm-b")  # it was sent already
        assert await driver.read_mark("kvm-b", VM) == MachineMark(act_id="A-1", step="receive")

        await driver.resume("kvm-b", VM)
        await asyncio.to_thread(guest.wait_for_ticks)
        assert await driver.state("kvm-b", VM) is MachineState.RUNNING
        await driver.power_off("kvm-a", VM)
        await driver.remove("kvm-a", VM, delete_disks=False)
        await driver.pause("kvm-b", VM)
        assert await states(driver) == (MachineState.ABSENT, MachineState.PAUSED)
        assert len(guest.boots()) == 1

    migration_site.run(Guest(migration_site.directory, has_disks=False), scenario, by_peers=by_peers)


def test_a_cancelled_migration_leaves_the_guest_running_on_its_source_and_can_be_repeated(
    migration_site: MigrationSite,
) -> None:
    async def scenario(driver: LibvirtDriver, guest: Guest) -> None:
        await prepare(driver)
        await driver.send("kvm-a", VM, "kvm-b")
        await driver.cancel_send("kvm-a", VM)
        assert await states(driver) == (MachineState.RUNNING, MachineState.RECEIVING)
        assert "host kvm-a refused to send VM 'web-0'" in (await driver.migration("kvm-a", VM)).error
        await asyncio.to_thread(guest.wait_for_ticks)
        await driver.cancel_send("kvm-a", VM)
        await driver.send("kvm-a", VM, "kvm-b")
        assert (await end_of_migration(driver)).error == ""
        assert await states(driver) == (MachineState.SENT, MachineState.RECEIVED)

    migration_site.run(Guest(migration_site.directory, has_disks=False), scenario)


def test_a_guest_without_shared_storage_is_not_migrated_and_goes_on(migration_site: MigrationSite) -> None:
    async def scenario(driver: LibvirtDriver, guest: Guest) -> None:
        await prepare(driver)
        await driver.send("kvm-a", VM, "kvm-b")
        error = (await end_of_migration(driver)).error
        assert error.startswith("VM 'web-0' cannot move from host kvm-a, because its disks are not on shared storage")
        assert await states(driver) == (MachineState.RUNNING, MachineState.RECEIVING)
        await asyncio.to_thread(guest.wait_for_ticks)

    migration_site.run(Guest(migration_site.directory), scenario)


def test_a_sent_vm_is_still_sent_after_its_daemon_has_restarted(migration_site: MigrationSite) -> None:
    async def scenario(driver: LibvirtDriver, guest: Guest) -> None:
        await prepare(driver)
        await driver.send("kvm-a", VM, "kvm-b")
        await end_of_migration(driver)
        for daemon in migration_site.daemons.values():
            daemon.stop(signal.SIGKILL)
            daemon.start()
        assert await states(driver) == (MachineState.SENT, MachineState.RECEIVED)
        await driver.resume("kvm-b", VM)
        await asyncio.to_thread(guest.wait_for_ticks)

    migration_site.run(Guest(migration_site.directory, has_disks=False), scenario)


def test_a_migration_that_the_hosts_carry_completes_without_the_service(migration_site: MigrationSite) -> None:
    async def scenario(driver: LibvirtDriver, guest: Guest) -> None:
        await prepare(driver)
        first = migration_site.driver(by_peers=True)
        await first.send("kvm-a", VM, "kvm-b")
        async with asyncio.timeout(TIMEOUT_S):  # the hosts have begun: a job is active that this driver did not begin
            while not (await driver.migration("kvm-a", VM)).is_active:
                assert await driver.state("kvm-a", VM) is not MachineState.SENT
                await asyncio.sleep(0.01)
        await first.close()
        assert (await end_of_migration(driver)).error == ""
        assert await states(driver) == (MachineState.SENT, MachineState.RECEIVED)

    migration_site.run(Guest(migration_site.directory, has_disks=False), scenario, by_peers=True)


def test_a_daemon_that_ends_is_reported_and_found_again_and_its_guest_goes_on(migration_site: MigrationSite) -> None:
    async def scenario(driver: LibvirtDriver, guest: Guest) -> None:
        changes = driver.changes()
        lost = asyncio.ensure_future(anext(changes))
        await driver.state("kvm-a", VM)
        migration_site.daemons["kvm-a"].stop(signal.SIGKILL)
        assert [(await lost).host, (await lost).kind] == ["kvm-a", ChangeKind.HOST_LOST]
        with pytest.raises(HostUnreachable, match="host kvm-a cannot be reached"):
            await driver.state("kvm-a", VM)
        await asyncio.to_thread(guest.wait_for_ticks)
        migration_site.daemons["kvm-a"].start()
        assert await driver.state("kvm-a", VM) is MachineState.RUNNING
        found = await anext(changes)
        assert [found.host, found.kind] == ["kvm-a", ChangeKind.HOST_FOUND]
        await changes.aclose()

    migration_site.run(Guest(migration_site.directory), scenario)


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY])
def test_two_nodes_move_a_guest_with_a_driver_and_a_journal_each(migration_site: MigrationSite, verb: Verb) -> None:
    """The source reaches the destination's libvirt for the migration only; the destination knows its own host only."""

    async def scenario(driver: LibvirtDriver, guest: Guest) -> None:
        act = Act(id="A-1", vm="s/g/v", name=VM, verb=verb, event_id="E", from_host="kvm-a", to_host="kvm-b")
        nodes = {
            "kvm-a": migration_site.node("kvm-a", "kvm-b"),
            "kvm-b": migration_site.node("kvm-b"),
        }
        progress, now = MoveProgress(act), 1_700_000_000.0
        async with asyncio.timeout(10 * TIMEOUT_S):
            while isinstance(following := next_step(progress), StepOrder):
                now += 1
                report = await nodes[following.host].perform_step(act, following.step, following.given, now)
                if report.done is not None:
                    progress.record(following.step, report)
        assert following.ok, following.note
        assert await states(driver) == (MachineState.ABSENT, MachineState.RUNNING)
        await asyncio.to_thread(guest.wait_for_ticks)
        assert len(guest.boots()) == (1 if verb is Verb.MIGRATE else 2)
        for node in nodes.values():
            await node.close()

    migration_site.run(Guest(migration_site.directory, has_disks=False), scenario)
