"""A host is lost in the middle of a live migration of a real guest: it never runs twice, and is not lost.

The disk is shared by both hosts, without QEMU's locks, and the guest reads before each write what it wrote last.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from forewarn.machines.qemu.processes import QemuInstance
from forewarn.machines.qemu.qmp import connect_monitor
from tests.support.service_process import eventually
from tests.vms.conftest import TEST_MONITOR, CloneGuest
from tests.vms.hosts import HOST_NAMES, VM, QemuSite
from tests.vms.service import ACT_S, QemuService

FIRST, SECOND = HOST_NAMES
SLOW = 1 << 20  # bytes per second, too few to send the guest while a test looks


def set_rate(site: QemuSite, rate: int) -> None:
    """Limit how fast QEMU of the first host sends the guest."""

    async def limit() -> None:
        async with connect_monitor(site.hosts[FIRST].directory / TEST_MONITOR, VM, timeout_s=60) as monitor:
            await monitor.execute("migrate-set-parameters", {"max-bandwidth": rate})

    asyncio.run(limit())


def new_service(site: QemuSite, *, crash_point: str = "") -> QemuService:
    service = QemuService(site, crash_point=crash_point)
    with (site.directory / "settings.toml").open("a") as config:
        config.write("[machines]\nclean_up_timeout_s = 3\n")
    return service


def begin_to_migrate(site: QemuSite, service: QemuService) -> str:
    """Announce a migration, and wait until QEMU sends the guest; returns the id of the event."""
    service.wait_until_polled()
    event_id = service.roll_out("migrate")
    eventually(lambda: "MiB remain" in explanation(service), within_s=ACT_S)
    return event_id


def explanation(service: QemuService) -> str:
    return " ".join(service.forewarn("explain", VM).stdout.split())


def process_of(site: QemuSite, host: str) -> int:
    return int((site.hosts[host].directory / f"{VM}.pid").read_text())


def lose(site: QemuSite, host: str) -> Path:
    """Take the directory of a host away, so that it does not answer; returns where it is."""
    lost = site.directory / f"lost-{host}"
    site.hosts[host].directory.rename(lost)
    return lost


def wait_for_ticks(console: Path) -> None:
    """Wait until the guest counts on."""
    before, deadline = console.read_text(errors="replace").count("tick "), time.monotonic() + ACT_S
    while console.read_text(errors="replace").count("tick ") < before + 3:
        assert time.monotonic() < deadline, "the guest does not count"
        time.sleep(0.05)


def check_runs_once_on(site: QemuSite, host: str, *, boots: int) -> None:
    """Check that the guest counts on this host only, and how often it booted there since it was cloned."""
    site.hosts[host].wait_for_ticks(5)
    others = [name for name in HOST_NAMES if name != host]
    alive = [name for name in others if QemuInstance(name, VM, site.hosts[name].directory).is_alive()]
    assert (alive, site.conflicts()) == ([], [])
    assert len(site.hosts[host].boots()) == boots


@pytest.mark.vms
def test_a_vm_whose_source_is_lost_while_it_is_sent_boots_elsewhere_once_a_person_has_confirmed_it(
    site: QemuSite, clone_guest: CloneGuest
) -> None:
    clone_guest(site)
    set_rate(site, SLOW)
    with new_service(site) as service:
        event_id = begin_to_migrate(site, service)
        pid = process_of(site, FIRST)
        lose(site, FIRST)
        os.kill(pid, signal.SIGKILL)
        question = f"{FIRST} does not answer, and {VM} may still run there: fence {FIRST}, or confirm that it is down"
        eventually(lambda: question in explanation(service), within_s=ACT_S)
        assert site.hosts[SECOND].ticks() == []
        confirmed = service.forewarn("confirm-down", FIRST, "--yes")
        assert confirmed.returncode == 0, confirmed.stderr
        texts = service.wait_for_end(event_id)
        assert any(f"{FIRST} went down while it sent {VM}, which was booted" in text for text in texts), texts
        assert service.host_of_vm() == SECOND
    check_runs_once_on(site, SECOND, boots=1)


@pytest.mark.vms_long
def test_a_vm_whose_source_does_not_answer_for_a_while_arrives_with_its_memory(
    site: QemuSite, clone_guest: CloneGuest
) -> None:
    clone_guest(site)
    set_rate(site, SLOW)
    with new_service(site) as service:
        event_id = begin_to_migrate(site, service)
        lost = lose(site, FIRST)
        eventually(lambda: f"{FIRST} does not answer, and {VM} may still run there" in explanation(service))
        wait_for_ticks(lost / "console.log")
        assert site.hosts[SECOND].ticks() == []
        lost.rename(site.hosts[FIRST].directory)
        set_rate(site, 1 << 30)
        service.wait_for_end(event_id)
        assert service.host_of_vm() == SECOND
    check_runs_once_on(site, SECOND, boots=0)


@pytest.mark.parametrize(
    "is_host_lost", [pytest.param(False, marks=pytest.mark.vms_long), pytest.param(True, marks=pytest.mark.vms)]
)
def test_a_vm_whose_destination_is_lost_while_it_is_sent_goes_on_where_it_was(
    site: QemuSite, clone_guest: CloneGuest, is_host_lost: bool
) -> None:
    clone_guest(site)
    set_rate(site, SLOW)
    boots = len(site.hosts[FIRST].boots())
    with new_service(site) as service:
        event_id = begin_to_migrate(site, service)
        pid = process_of(site, SECOND)
        if is_host_lost:
            lose(site, SECOND)
        os.kill(pid, signal.SIGKILL)
        texts = service.wait_for_end(event_id)
        assert any("failed" in text for text in texts), texts
        is_named = any(f"{SECOND} may still hold what was prepared for {VM}" in text for text in texts)
        assert is_named == is_host_lost, texts
        assert service.host_of_vm() == FIRST
    check_runs_once_on(site, FIRST, boots=boots)


@pytest.mark.vms_long
def test_a_vm_whose_destination_is_lost_before_it_goes_on_there_boots_on_its_source_once_that_is_confirmed(
    site: QemuSite, clone_guest: CloneGuest
) -> None:
    clone_guest(site)
    boots = len(site.hosts[FIRST].boots())
    with new_service(site, crash_point="step:activate") as service:
        service.wait_until_polled()
        event_id = service.roll_out("migrate")
        service.wait_until_killed()
        pid = process_of(site, SECOND)
        lose(site, SECOND)
        os.kill(pid, signal.SIGKILL)
        service.start()
        question = f"{SECOND} does not answer, and {VM} has left {FIRST}: confirm that {SECOND} is down"
        eventually(lambda: question in explanation(service), within_s=ACT_S)
        confirmed = service.forewarn("confirm-down", SECOND, "--yes")
        assert confirmed.returncode == 0, confirmed.stderr
        texts = service.wait_for_end(event_id)
        assert any(f"{SECOND} went down before {VM} was known to run there" in text for text in texts), texts
        assert service.host_of_vm() == FIRST
    check_runs_once_on(site, FIRST, boots=boots + 1)
