"""A libvirt host is lost in the middle of a live migration: the guest never runs twice, and is not lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.acts import MachineHypervisor, MachinePolicy
from forewarn.machines.driver import MachineState
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.journal import MachineJournal
from forewarn.machines.libvirt.driver import LibvirtDriver
from tests.vms.hosts import VM
from tests.vms.libvirt_hosts import TIMEOUT_S, Guest, MigrationSite

pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms-long` installs it")
pytestmark = [pytest.mark.vms_long, pytest.mark.timeout(900)]
ACT = Act(id="A-1", vm="s/g/v", name=VM, verb=Verb.MIGRATE, event_id="E", from_host="kvm-a", to_host="kvm-b")
POLICY = MachinePolicy(clean_up_timeout_s=3.0)
SOURCE_QUESTION = (
    f"kvm-a does not answer, and {VM} may still run there: fence kvm-a, or confirm that it is down once it is certain "
    f"that {VM} does not run there"
)
DESTINATION_QUESTION = (
    f"kvm-b does not answer, and {VM} has left kvm-a: confirm that kvm-b is down once that is certain, or bring it back"
)


class Migration:
    """The act that migrates the guest, as the service performs it, and the hosts that a person has confirmed down."""

    def __init__(self, journal: MachineJournal, driver: LibvirtDriver) -> None:
        self.confirmed: set[str] = set()
        self._hypervisor = MachineHypervisor(driver, journal, POLICY, is_confirmed_down=self.confirmed.__contains__)
        self._now = 1_700_000_000.0

    async def advance_until(self, text: str) -> ActUnderWay:
        """Perform the act until what it waits for has this text. AssertionError if it ends first."""
        while True:
            answer = await self._advance()
            assert isinstance(answer, ActUnderWay), answer
            if text in answer.note:
                return answer

    async def finish(self) -> ActDone:
        """Perform the act until it is over."""
        while not isinstance(answer := await self._advance(), ActDone):
            pass
        return answer

    async def _advance(self) -> ActDone | ActUnderWay:
        self._now += 1
        async with asyncio.timeout(TIMEOUT_S):
            return await self._hypervisor.perform(ACT, self._now)


def limit_speed(site: MigrationSite) -> None:
    """Let the source send so slowly that the migration does not end while a test looks."""
    uri = site.daemons["kvm-a"].uri
    line = ["virsh", "--connect", uri, "migrate-setspeed", VM, "1"]
    subprocess.run(line, check=True, capture_output=True, timeout=TIMEOUT_S)


def run(
    site: MigrationSite,
    scenario: Callable[[Migration, LibvirtDriver, Guest], Awaitable[None]],
    *,
    by_peers: bool = False,
) -> None:
    async def with_journal(driver: LibvirtDriver, guest: Guest) -> None:
        with closing(MachineJournal(site.directory / "acts.db")) as journal:
            await scenario(Migration(journal, driver), driver, guest)

    site.run(Guest(site.directory, has_disks=False), with_journal, by_peers=by_peers)


async def check_runs_once(driver: LibvirtDriver, guest: Guest, host: str, *, boots: int) -> None:
    """Check that the guest counts, that only this host runs it, and how often it has booted."""
    await asyncio.to_thread(guest.wait_for_ticks)
    found = {name: await driver.state(name, VM) for name in ("kvm-a", "kvm-b")}
    assert [name for name, state in found.items() if state is MachineState.RUNNING] == [host], found
    assert len(guest.boots()) == boots


@pytest.mark.parametrize("by_peers", [False, True], ids=["by the service", "by the hosts"])
def test_a_vm_whose_source_is_lost_while_it_is_sent_boots_elsewhere_once_a_person_has_confirmed_it(
    migration_site: MigrationSite, by_peers: bool
) -> None:
    async def scenario(migration: Migration, driver: LibvirtDriver, guest: Guest) -> None:
        limit_speed(migration_site)
        await migration.advance_until("MiB remain")
        migration_site.daemons["kvm-a"].lose()
        waiting = await migration.advance_until("does not answer")
        assert (waiting.note, waiting.waits_for_host) == (SOURCE_QUESTION, "kvm-a")
        assert await driver.state("kvm-b", VM) is not MachineState.RUNNING
        assert len(guest.boots()) == 1
        migration.confirmed.add("kvm-a")
        done = await migration.finish()
        assert done.ok, done.note
        assert f"kvm-a went down while it sent {VM}, which was booted" in done.note
        migration_site.daemons["kvm-a"].start()
        await check_runs_once(driver, guest, "kvm-b", boots=2)

    run(migration_site, scenario, by_peers=by_peers)


def test_a_vm_whose_sources_daemon_is_restarted_while_it_is_sent_goes_on_where_it_was(
    migration_site: MigrationSite,
) -> None:
    async def scenario(migration: Migration, driver: LibvirtDriver, guest: Guest) -> None:
        limit_speed(migration_site)
        await migration.advance_until("MiB remain")
        migration_site.daemons["kvm-a"].stop(signal.SIGKILL)
        assert (await migration.advance_until("does not answer")).waits_for_host == "kvm-a"
        await asyncio.to_thread(guest.wait_for_ticks)
        migration_site.daemons["kvm-a"].start()
        done = await migration.finish()
        assert not done.ok
        await check_runs_once(driver, guest, "kvm-a", boots=1)

    run(migration_site, scenario)


@pytest.mark.parametrize("by_peers", [False, True], ids=["by the service", "by the hosts"])
def test_a_vm_whose_destination_is_lost_while_it_is_sent_goes_on_where_it_was(
    migration_site: MigrationSite, by_peers: bool
) -> None:
    async def scenario(migration: Migration, driver: LibvirtDriver, guest: Guest) -> None:
        limit_speed(migration_site)
        await migration.advance_until("MiB remain")
        migration_site.daemons["kvm-b"].lose()
        done = await migration.finish()
        assert not done.ok
        assert f"kvm-b may still hold what was prepared for {VM}" in done.note
        migration_site.daemons["kvm-b"].start()
        await check_runs_once(driver, guest, "kvm-a", boots=1)

    run(migration_site, scenario, by_peers=by_peers)


def test_a_vm_whose_destination_is_lost_before_it_goes_on_there_boots_on_its_source_once_that_is_confirmed(
    migration_site: MigrationSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(migration: Migration, driver: LibvirtDriver, guest: Guest) -> None:
        resume = driver.resume

        async def lose_and_resume(host: str, vm: str) -> None:
            if host == "kvm-b":
                migration_site.daemons["kvm-b"].lose()
            await resume(host, vm)

        monkeypatch.setattr(driver, "resume", lose_and_resume)
        waiting = await migration.advance_until("does not answer, and")
        assert (waiting.note, waiting.waits_for_host) == (DESTINATION_QUESTION, "kvm-b")
        assert await driver.state("kvm-a", VM) is MachineState.SENT
        migration.confirmed.add("kvm-b")
        done = await migration.finish()
        assert not done.ok
        assert f"kvm-b went down before {VM} was known to run there" in done.note
        migration_site.daemons["kvm-b"].start()
        await check_runs_once(driver, guest, "kvm-a", boots=2)

    run(migration_site, scenario)
