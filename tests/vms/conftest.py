"""Fixtures of tests on real VMs: a site with two hosts, and a guest that was booted once and is cloned."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from forewarn.hypervisor.qemu.instance import QemuInstance
from tests.support.service_process import eventually
from tests.vms.hosts import HOST_NAMES, VM, QemuSite, why_vms_are_unavailable

_NUMBERS = itertools.count()


class CloneGuest(Protocol):
    """Starts the saved guest on a host of a site; it counts on from where it was saved."""

    def __call__(self, site: QemuSite, host: str = HOST_NAMES[0]) -> None: ...


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect tests of real VMs only where they are selected: other targets do not install what their modules need."""
    expression = str(config.option.markexpr)
    is_selected = not expression or "vms" in expression.replace("not vms_long", "").replace("not vms", "")
    return None if is_selected else True


@pytest.fixture(scope="session")
def _can_run_vms() -> None:
    if reason := why_vms_are_unavailable():
        pytest.skip(reason)


@pytest.fixture
def site(_can_run_vms: None) -> Iterator[QemuSite]:
    with _new_site() as site:
        yield site


@contextmanager
def _new_site() -> Iterator[QemuSite]:
    directory = Path(tempfile.mkdtemp(prefix="fwvm-"))  # short: the path of a Unix socket is limited
    site = QemuSite(directory, next(_NUMBERS))
    try:
        yield site
    finally:
        site.close()
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class SavedGuest:
    """A guest that has booted: its memory and its disks at one moment."""

    memory: Path
    data_disk: Path
    ephemeral_disk: Path
    console: str


@pytest.fixture(scope="session")
def saved_guest(_can_run_vms: None, tmp_path_factory: pytest.TempPathFactory) -> SavedGuest:
    """Boot a guest once, and save it when it counts."""
    with _new_site() as site:
        return _boot_and_save(site, tmp_path_factory.mktemp("guest"))


def _boot_and_save(site: QemuSite, directory: Path) -> SavedGuest:
    instance = _start(site, HOST_NAMES[0])
    host = site.hosts[HOST_NAMES[0]]
    host.wait_for_ticks()
    monitor = _Monitor(instance.monitor_socket)
    monitor.execute("migrate", uri=f"exec:cat > {directory / 'memory'}")
    eventually(lambda: monitor.execute("query-migrate")["status"] == "completed", within_s=60)
    monitor.close()
    for disk in (site.data_disk, site.ephemeral_disk):
        shutil.copy(disk, directory / disk.name)
    return SavedGuest(
        memory=directory / "memory",
        data_disk=directory / site.data_disk.name,
        ephemeral_disk=directory / site.ephemeral_disk.name,
        console=host.console.read_text(),
    )


@pytest.fixture
def clone_guest(saved_guest: SavedGuest) -> CloneGuest:
    """Start the saved guest; the disks are copied for the first clone of a site only."""

    def clone(site: QemuSite, host: str = HOST_NAMES[0]) -> None:
        if not site.data_disk.exists():
            shutil.copy(saved_guest.data_disk, site.data_disk)
            shutil.copy(saved_guest.ephemeral_disk, site.ephemeral_disk)
        site.hosts[host].console.write_text(saved_guest.console)
        _start(site, host, "-incoming", f"exec:cat {saved_guest.memory}")
        site.hosts[host].wait_for_ticks()

    return clone


def _start(site: QemuSite, name: str, *options: str) -> QemuInstance:
    """Start the guest of a site as the driver does."""
    host = site.hosts[name]
    site.define(name, site.guest_command(), disks=True)
    if not site.ephemeral_disk.exists():
        with site.ephemeral_disk.open("wb") as file:
            file.truncate(1 << 20)
    instance = QemuInstance(name, VM, host.directory)
    monitor = f"unix:{instance.monitor_socket},server=on,wait=off"
    child = instance.start(
        [
            *(*host.settings.prefix, *site.guest_command(), "-qmp", monitor, "-pidfile", str(instance.pid_file)),
            *("-no-shutdown", *options),
        ]
    )
    child.returncode = 0  # nobody waits for it: the driver or the end of the test ends it
    return instance


class _Monitor:
    """QMP without a library, for what the driver has no operation for."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")
        self._lines.readline()
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: str) -> dict[str, str]:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while "event" in (message := json.loads(self._lines.readline())):
            pass
        answer = message["return"]
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
