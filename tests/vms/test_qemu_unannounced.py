"""What others do to VMs of real QEMU, and crashes, are recorded by a running service, also after it was down."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest

from forewarn.machines.driver import MachineState
from forewarn.machines.qemu.driver import QemuDriver
from tests.support.service_process import eventually
from tests.vms.hosts import HOST_NAMES, VM, QemuSite
from tests.vms.service import ACT_S, QemuService

pytestmark = pytest.mark.vms
FIRST, SECOND = HOST_NAMES
# So long that what a test finds was found because of an event, or because the service looked when it started.
SETTINGS = "[machines]\nobserve_interval_s = 600\nacpi_timeout_s = 1\n"


@pytest.fixture
def service(site: QemuSite) -> Iterator[QemuService]:
    """A service with a VM that is off and that the fleet has seen so; the VM runs only firmware, and starts at once."""
    site.define(FIRST, site.empty_command())
    service = QemuService(site)
    with (site.directory / "settings.toml").open("a") as settings:
        settings.write(SETTINGS)
    with service:
        wait_for_entry(service, f"{VM} is off on {FIRST}: the fleet follows its hosts", what="fleet")
        yield service


def unannounced(service: QemuService, what: str = "unannounced") -> list[str]:
    entries = service.api("GET", "/history?limit=1000").json["entries"]
    return [entry["text"] for entry in entries if entry["kind"] == what]


def wait_for_entry(service: QemuService, text: str, *, what: str = "unannounced") -> None:
    eventually(lambda: text in unannounced(service, what), within_s=ACT_S)


def start(service: QemuService) -> None:
    service.wait_for_end(service.request("start"))
    assert service.api("GET", f"/vms/{VM}").json["power"] == "running"


def process_of(service: QemuService, host: str = FIRST) -> int:
    return int((service.site.hosts[host].directory / f"{VM}.pid").read_text())


def act_by_hand(site: QemuSite, scenario: Callable[[QemuDriver], Awaitable[None]]) -> None:
    """Do something with another driver, of which the service knows nothing."""

    async def run() -> None:
        driver = site.driver()
        try:
            await scenario(driver)
        finally:
            await driver.close()

    asyncio.run(run())


def explain(service: QemuService, name: str = VM) -> str:
    """What `forewarn explain` prints about the VM or a host, in one line."""
    return " ".join(service.forewarn("explain", name).stdout.split())


def test_a_killed_qemu_is_a_crash_once_and_the_vm_can_be_started_again(service: QemuService) -> None:
    start(service)
    os.kill(process_of(service), signal.SIGKILL)
    crash = f"{VM} is off on {FIRST}: it crashed, without notice"
    wait_for_entry(service, crash)
    assert service.api("GET", f"/vms/{VM}").json["power"] == "stopped"
    assert "it crashed, without notice" in explain(service)
    assert "It stopped without being asked to: start it." in explain(service)
    start(service)
    service.kill()
    service.start()
    assert unannounced(service) == [crash]


def test_changes_by_hand_are_found_at_once_and_those_while_the_service_was_down_when_it_starts(
    service: QemuService,
) -> None:
    start(service)

    async def pause(driver: QemuDriver) -> None:
        await driver.pause(FIRST, VM)

    act_by_hand(service.site, pause)
    paused = f"{VM} is paused on {FIRST}: paused by somebody else, without notice"
    wait_for_entry(service, paused)
    service.kill()

    async def move(driver: QemuDriver) -> None:
        await driver.resume(FIRST, VM)
        await driver.copy_definition(FIRST, VM, SECOND)
        await driver.prepare_to_receive(SECOND, VM)
        await driver.send(FIRST, VM, SECOND)
        async with asyncio.timeout(ACT_S):
            while await driver.state(SECOND, VM) is not MachineState.RECEIVED:
                await asyncio.sleep(0.1)
        await driver.resume(SECOND, VM)

    act_by_hand(service.site, move)
    service.start()
    moved = f"{VM} is on {SECOND} instead of {FIRST}: moved by somebody else, without notice"
    wait_for_entry(service, moved)
    assert unannounced(service) == [paused, moved]
    assert service.host_of_vm() == SECOND
    assert "moved by somebody else, without notice" in explain(service)
    service.wait_for_end(service.request("power-off"))
    assert unannounced(service) == [paused, moved]


def test_two_copies_of_a_vm_are_reported_and_left_alone(service: QemuService) -> None:
    start(service)
    service.site.define(SECOND, service.site.empty_command())

    async def start_second(driver: QemuDriver) -> None:
        await driver.power_on(SECOND, VM)

    service.kill()
    act_by_hand(service.site, start_second)
    service.start()
    eventually(
        lambda: any(f"{VM} is active on {FIRST} and {SECOND} at once" in t for t in unannounced(service)),
        within_s=ACT_S,
    )
    assert service.host_of_vm() == FIRST
    for host in HOST_NAMES:
        os.kill(process_of(service, host), 0)


def test_a_host_whose_directory_disappears_does_not_answer_until_it_is_back(service: QemuService) -> None:
    directory = service.site.hosts[SECOND].directory
    away = directory.with_name("away")
    service.kill()
    directory.rename(away)
    service.start()
    eventually(lambda: any(f"host {SECOND} does not answer" in text for text in unannounced(service)), within_s=ACT_S)
    assert "It is unreachable: it does not answer the hypervisor" in explain(service, SECOND)
    service.kill()
    away.rename(directory)
    service.start()
    eventually(lambda: any(f"host {SECOND} answers again" in text for text in unannounced(service)), within_s=ACT_S)
    assert len(unannounced(service)) == 2
