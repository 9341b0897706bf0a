"""A running service moves VMs of real QEMU to hosts that can run them, or says what a host lacks (spec §6.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vms.hosts import DEVICE, HOST_NAMES, MEMORY_MIB, VM, QemuSite, toml_text
from tests.vms.service import FLEET, QemuService

pytestmark = pytest.mark.vms
FIRST, SECOND = HOST_NAMES
THIRD = "host-3"
TOO_LITTLE_MIB = MEMORY_MIB - 1


def service_with_full_second_host(site: QemuSite, *, third_mib: int) -> QemuService:
    """Return a service with three hosts, of which the second has too little memory for the VM, which is off."""
    site.define(FIRST, site.empty_command())
    service = QemuService(site)
    third = site.directory / THIRD
    third.mkdir()
    config = site.directory / "settings.toml"
    before, table, after = config.read_text().partition(f"[qemu.hosts.{SECOND}]")
    config.write_text(
        before
        + table
        + after.replace("memory_mib = 1024", f"memory_mib = {TOO_LITTLE_MIB}", 1)
        + f"[qemu.hosts.{THIRD}]\ndirectory = {toml_text(str(third))}\n"
        + f"prefix = {toml_text(site.hosts[SECOND].settings.prefix)}\nmemory_mib = {third_mib}\n"
        + "[machines]\nacpi_timeout_s = 1\n"
    )
    (service.data / "fleet.toml").write_text(FLEET + f'[[hosts]]\nname = "{THIRD}"\n')
    return service


def is_defined(directory: Path) -> bool:
    return (directory / f"{VM}.toml").exists()


def test_moves_go_past_a_host_that_is_full(site: QemuSite) -> None:
    with service_with_full_second_host(site, third_mib=1024) as service:
        service.wait_for_end(service.request("start"))
        service.wait_for_end(service.request("redeploy"))
        assert service.host_of_vm() == THIRD
        assert is_defined(site.directory / THIRD)
        assert not is_defined(site.hosts[SECOND].directory)


def test_a_move_fails_with_one_sentence_if_all_hosts_are_full_and_the_vm_stays(site: QemuSite) -> None:
    with service_with_full_second_host(site, third_mib=TOO_LITTLE_MIB) as service:
        service.wait_for_end(service.request("start"))
        texts = service.wait_for_end(service.request("redeploy"))
        problem = f"{SECOND} has {TOO_LITTLE_MIB} MiB free, and {VM} needs {MEMORY_MIB} MiB"
        assert any(problem in text for text in texts), texts
        assert service.host_of_vm() == FIRST
        assert service.api("GET", f"/vms/{VM}").json["power"] == "running"
        assert not is_defined(site.hosts[SECOND].directory)


def test_a_move_fails_with_one_sentence_if_the_destination_lacks_the_tap_and_the_vm_comes_back(site: QemuSite) -> None:
    """QEMU creates a missing tap itself if it may, so the destination runs it without that right, as most do."""
    tap = ("-netdev", f"tap,id=net0,ifname={DEVICE},script=no,downscript=no")
    site.define(FIRST, [*site.empty_command(), *tap, "-device", "virtio-net-pci,netdev=net0,romfile="])
    service = QemuService(site)
    config = site.directory / "settings.toml"
    prefix = site.hosts[SECOND].settings.prefix
    without_right = toml_text((*prefix, "setpriv", "--bounding-set=-net_admin"))
    settings = config.read_text().replace(toml_text(prefix), without_right)
    config.write_text(f"{settings}[machines]\nacpi_timeout_s = 1\n")
    with service:
        service.wait_for_end(service.request("start"))
        site.remove_tap(SECOND)
        texts = service.wait_for_end(service.request("redeploy"))
        problem = f"QEMU did not start VM '{VM}' on host '{SECOND}': tap {DEVICE} is missing on this host"
        assert any(problem in text for text in texts), texts
        assert service.host_of_vm() == FIRST
        assert service.api("GET", f"/vms/{VM}").json["power"] == "running"
        assert not is_defined(site.hosts[SECOND].directory)
