"""Fixtures of tests on real VMs: a site with two hosts, and a guest that was booted once and is cloned."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from forewarn.machines.qemu.processes import QemuInstance
from tests.support.service_process import eventually
from tests.vms.hosts import AGENT, GUEST, HOST_NAMES, VM, HostSetup, QemuSite, why_vms_are_unavailable
from tests.vms.libvirt_hosts import LibvirtSite, MigrationSite

TEST_MONITOR = "test.qmp"  # a monitor of a cloned guest's QEMU that only tests use, in its host's directory
_NUMBERS = itertools.count()


class CloneGuest(Protocol):
    """Starts the saved guest on a host of a site; it counts on from where it was saved."""

    def __call__(self, site: QemuSite, host: str = HOST_NAMES[0]) -> None: ...


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect tests of real VMs only where they are selected: other targets do not install what their modules need."""
    expression = str(config.option.markexpr)
    is_selected = not expression or "vms" in expression.replace("not vms_long", "").replace("not vms", "")
    return None if is_selected else True


@pytest.fixture(scope="session", autouse=True)
def _end_vms_when_terminated() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does, so that fixtures end their VMs, daemons and namespaces."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def _can_run_vms() -> None:
    if reason := why_vms_are_unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def _can_run_agent(_can_run_vms: None) -> None:
    if not (GUEST / "initramfs-agent").exists():
        pytest.skip(
            "the guest with Pacemaker's agent is missing: `make test-vms` builds it if Debian's mirror has trixie"
        )


@pytest.fixture
def site(_can_run_vms: None) -> Iterator[QemuSite]:
    with _new_site() as site:
        yield site


@pytest.fixture
def migration_site(_can_run_vms: None) -> Iterator[MigrationSite]:
    with _short_directory() as directory:
        site = MigrationSite(directory)
        try:
            site.start()
            yield site
        finally:
            site.close()


@contextmanager
def _new_site(agent: str = "") -> Iterator[QemuSite]:
    with _short_directory() as directory:
        site = QemuSite(directory, next(_NUMBERS), agent=agent)
        try:
            yield site
        finally:
            site.close()


@contextmanager
def _short_directory() -> Iterator[Path]:
    """A new directory with a short path, because the path of a Unix socket is limited; removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="fwvm-"))
    try:
        yield directory
    finally:
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


@pytest.fixture(scope="session")
def _saved_agent_guest(_can_run_agent: None, tmp_path_factory: pytest.TempPathFactory) -> SavedGuest:
    """The same with a guest in which Pacemaker's agent polls and approves."""
    with _new_site(AGENT) as site:
        return _boot_and_save(site, tmp_path_factory.mktemp("agent-guest"))


@pytest.fixture
def qemu_agent_site(_saved_agent_guest: SavedGuest) -> Iterator[QemuSite]:
    """A site of plain QEMU with a running guest, in which Pacemaker's agent polls and approves."""
    with _new_site(AGENT) as site:
        _clone(_saved_agent_guest, site, HOST_NAMES[0])
        yield site


@pytest.fixture(scope="session")
def _libvirt_site(_can_run_agent: None) -> Iterator[LibvirtSite]:
    """Two hosts with a libvirtd each, for all tests; their guest was saved when it had booted."""
    pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms` installs it")
    with _short_directory() as directory:
        site = LibvirtSite(directory, next(_NUMBERS), agent=AGENT)
        try:
            site.start()
            yield site
        finally:
            site.close()


@pytest.fixture
def libvirt_agent_site(_libvirt_site: LibvirtSite) -> Iterator[LibvirtSite]:
    """A site of libvirt without a guest; afterwards no host knows the VM."""
    try:
        yield _libvirt_site
    finally:
        _libvirt_site.remove_guest()


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
        _clone(saved_guest, site, host)

    return clone


@pytest.fixture
def clone_neighbour(saved_guest: SavedGuest) -> Callable[[QemuSite, str], HostSetup]:
    """Start the saved guest on the first host once more, on another device: with the same address and MAC."""

    def clone(site: QemuSite, device: str) -> HostSetup:
        host = site.hosts[HOST_NAMES[0]]
        neighbour = HostSetup(host.name, host.namespace, site.directory / device)
        neighbour.directory.mkdir()
        for path in (saved_guest.data_disk, saved_guest.ephemeral_disk):
            shutil.copy(path, neighbour.directory)
        neighbour.console.write_text(saved_guest.console)
        command = site.guest_command(device=device, disks=neighbour.directory)
        _start_qemu(neighbour, command, "-incoming", f"exec:cat {saved_guest.memory}")
        neighbour.wait_for_ticks()
        return neighbour

    return clone


def _clone(saved: SavedGuest, site: QemuSite, host: str) -> None:
    if not site.data_disk.exists():
        shutil.copy(saved.data_disk, site.data_disk)
        shutil.copy(saved.ephemeral_disk, site.ephemeral_disk)
    site.hosts[host].console.write_text(saved.console)
    _start(site, host, "-incoming", f"exec:cat {saved.memory}")
    site.hosts[host].wait_for_ticks()


def _start(site: QemuSite, name: str, *options: str) -> QemuInstance:
    """Start the guest of a site as the driver does."""
    host = site.hosts[name]
    site.define(name, site.guest_command(), disks=True)
    if not site.ephemeral_disk.exists():
        with site.ephemeral_disk.open("wb") as file:
            file.truncate(1 << 20)
    return _start_qemu(host, site.guest_command(), *options)


def _start_qemu(host: HostSetup, command: list[str], *options: str) -> QemuInstance:
    instance = QemuInstance(host.name, VM, host.directory)
    monitor = f"unix:{instance.monitor_socket},server=on,wait=off"
    child = instance.start(
        [
            *(*host.settings.prefix, *command, "-qmp", monitor, "-pidfile", str(instance.pid_file)),
            *("-no-shutdown", "-qmp", f"unix:{TEST_MONITOR},server=on,wait=off", *options),
        ]
    )
    child.returncode = 0  # nobody waits for it: the driver or the end of the test ends it
    return instance


class _Monitor:
    """QMP without a library, for what the driver has no operation for."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(240)
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
