"""Each act on a real QEMU is completed once although the service was killed, and a migration ends at its deadline.

The VM runs only firmware, which starts at once and ignores requests to shut down. Moves that are killed are in
`test_qemu_two_copies`.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from forewarn.machines.driver import MachineState
from tests.support.service_process import eventually
from tests.vms.hosts import HOST_NAMES, VM, QemuSite
from tests.vms.service import QemuService

FIRST, SECOND = HOST_NAMES
_SHUT_DOWN = ("step:shut-down", "before:press_power_button", "after:press_power_button")
_POWER_OFF = ("step:power-off", "before:power_off", "after:power_off")
POINTS = {
    "update": (
        "step:pause",
        "before:pause",
        "after:pause",
        "step:hold",
        "step:resume",
        "before:resume",
        "after:resume",
    ),
    "restart": (*_SHUT_DOWN, "step:reset", "before:reset", "after:reset", "before:resume", "after:resume"),
    "power-off": (*_SHUT_DOWN, *_POWER_OFF),
    "start": ("step:boot", "before:power_on", "spawned", "after:power_on"),
    "evict": (*_SHUT_DOWN, *_POWER_OFF, "step:remove", "before:remove", "after:remove"),
}
STATE_AFTER = {"power-off": MachineState.OFF, "evict": MachineState.ABSENT}
IN_SHORT_RUNS = {("update", "after:pause"), ("evict", "after:power_off")}
CASES = [(ask, point) for ask, points in POINTS.items() for point in points]


def start_vm(site: QemuSite) -> int:
    """Start QEMU of the VM on the first host; returns its process id."""

    async def start() -> None:
        driver = site.driver()
        try:
            await driver.power_on(FIRST, VM)
        finally:
            await driver.close()

    asyncio.run(start())
    return process_of(site)


def state_of(site: QemuSite, host: str = FIRST) -> MachineState:
    async def look() -> MachineState:
        driver = site.driver()
        try:
            return await driver.state(host, VM)
        finally:
            await driver.close()

    return asyncio.run(look())


def process_of(site: QemuSite) -> int:
    return int((site.hosts[FIRST].directory / f"{VM}.pid").read_text())


def new_service(site: QemuSite, settings: str, *, crash_point: str = "") -> QemuService:
    service = QemuService(site, crash_point=crash_point)
    with (site.directory / "settings.toml").open("a") as config:
        config.write(f"[machines]\n{settings}\n")
    return service


def begin(service: QemuService, ask: str) -> None:
    """Request an act, and approve it; the service may be killed before it has answered."""
    with suppress(ConnectionError):
        if ask in ("update", "migrate"):
            service.api("POST", f"/events/{service.roll_out(ask)}/approve", {})
        else:
            service.request(ask)


def wait_for_end(service: QemuService) -> list[str]:
    """Wait until the one event is over; returns the texts of the history about it."""
    return service.wait_for_end(eventually(lambda: event_id_of(service)))


def event_id_of(service: QemuService) -> str:
    events = service.api("GET", f"/events?all=true&vm={VM}").json["events"]
    return str(events[0]["id"]) if events else ""


def check_act_after_a_crash(site: QemuSite, ask: str, crash_point: str) -> None:
    site.define(FIRST, site.empty_command())
    pid = 0 if ask == "start" else start_vm(site)
    with new_service(site, "acpi_timeout_s = 0.5", crash_point=crash_point) as service:
        begin(service, ask)
        service.wait_until_killed()
        service.start()
        texts = wait_for_end(service)
        assert not any("failed" in text for text in texts), texts
        power = service.api("GET", f"/vms/{VM}").json["power"]
    assert state_of(site) is STATE_AFTER.get(ask, MachineState.RUNNING)
    assert power == {"power-off": "stopped", "evict": "deallocated"}.get(ask, "running")
    if ask in ("update", "restart"):
        assert process_of(site) == pid, "the same QEMU goes on"
    assert not is_defined(site.hosts[SECOND].directory)


def is_defined(directory: Path) -> bool:
    return (directory / f"{VM}.toml").exists()


@pytest.mark.vms
@pytest.mark.parametrize(("ask", "crash_point"), [case for case in CASES if case in IN_SHORT_RUNS])
def test_an_act_is_completed_although_the_service_was_killed(site: QemuSite, ask: str, crash_point: str) -> None:
    check_act_after_a_crash(site, ask, crash_point)


@pytest.mark.vms_long
@pytest.mark.parametrize(("ask", "crash_point"), [case for case in CASES if case not in IN_SHORT_RUNS])
def test_an_act_is_completed_wherever_the_service_was_killed(site: QemuSite, ask: str, crash_point: str) -> None:
    check_act_after_a_crash(site, ask, crash_point)


@pytest.mark.vms
def test_a_vm_has_its_definition_on_the_destination_although_the_service_was_killed_while_it_wrote_it(
    site: QemuSite,
) -> None:
    site.define(FIRST, site.empty_command())
    start_vm(site)
    with new_service(site, "", crash_point="listening") as service:
        begin(service, "migrate")
        service.wait_until_killed()
        assert not is_defined(site.hosts[SECOND].directory)
        assert (site.hosts[SECOND].directory / f"{VM}.pid").exists()
        service.start()
        texts = wait_for_end(service)
        assert not any("failed" in text for text in texts), texts
        assert service.host_of_vm() == SECOND
    assert state_of(site, SECOND) is MachineState.RUNNING
    assert is_defined(site.hosts[SECOND].directory)
    assert not is_defined(site.hosts[FIRST].directory)


@pytest.mark.vms
def test_a_migration_that_cannot_end_in_time_is_aborted_and_the_vm_stays(site: QemuSite) -> None:
    """QEMU may send so slowly that the VM would never have been sent."""
    site.define(FIRST, site.empty_command())
    pid = start_vm(site)

    async def slow_down() -> None:
        driver = site.driver()
        try:
            async with driver._running(FIRST, VM, "slowed down") as (_, monitor):
                await monitor.execute("migrate-set-parameters", {"max-bandwidth": 1024})
        finally:
            await driver.close()

    asyncio.run(slow_down())
    with new_service(site, "migration_deadline_s = 3") as service:
        begin(service, "migrate")
        texts = wait_for_end(service)
        assert any(f"{VM} could not be migrated in time" in text for text in texts), texts
        assert any(f"MiB remain): it continues on {FIRST}" in text for text in texts), texts
        assert service.host_of_vm() == FIRST
    assert state_of(site) is MachineState.RUNNING
    os.kill(pid, 0)
    assert not is_defined(site.hosts[SECOND].directory)
