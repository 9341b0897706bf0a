"""Hosts with a real libvirt: its QEMU driver inside the test's process, and daemons in namespaces of their own.

`LibvirtSite` has two daemons on the network of a `Site`, and a guest that was booted once and is restored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

from forewarn.machines.acts import MachineHypervisor
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.journal import MachineJournal
from forewarn.machines.libvirt.connection import LibvirtHost
from forewarn.machines.libvirt.driver import LibvirtDriver
from tests.support.service_process import eventually
from tests.vms.hosts import DEVICE, GUEST, GUEST_ADDRESS, HOST_NAMES, MEMORY_MIB, VM, Site, toml_text, wait_for

TIMEOUT_S = 240.0  # libvirt first asks QEMU what it can do, which takes long on a busy machine
_QEMU_SETTINGS = """
stdio_handler = "file"
security_driver = "none"
user = "root"
group = "root"
namespaces = []
cgroup_controllers = []
"""
_DOMAIN = """
<domain type='qemu'><name>{vm}</name><uuid>11111111-1111-4111-8111-111111111111</uuid>
<metadata><forewarn:disks xmlns:forewarn='urn:forewarn:disks:1' ephemeral='vdb'/></metadata>
<memory unit='MiB'>{memory}</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>{guest}/vmlinux</kernel><initrd>{initramfs}</initrd>
<cmdline>{words}</cmdline></os>
<features><acpi/></features>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>{devices}
<serial type='file'><source path='{console}' append='on'/></serial><memballoon model='none'/></devices></domain>
"""
_DISK = """
<disk type='file' device='disk'><driver name='qemu' type='raw' cache='none'/><source file='{path}'/>
<target dev='{target}' bus='virtio'/></disk>
"""
_TAP = f"""
<interface type='ethernet'><mac address='52:54:00:00:00:01'/><target dev='{DEVICE}' managed='no'/>
<model type='virtio'/><rom enabled='no'/></interface>
"""


_TEST_DOMAIN = """
<domain type='test'><name>web-1</name><uuid>{uuid}</uuid><memory unit='MiB'>{memory}</memory><vcpu>1</vcpu>
<metadata><forewarn:disks xmlns:forewarn='urn:forewarn:disks:1' ephemeral='vdb'/></metadata>
<os><type>hvm</type></os><devices>{devices}</devices></domain>
"""
UUID = "11111111-1111-4111-8111-111111111111"
OTHER_UUID = "22222222-2222-4222-8222-222222222222"
_TEST_NODE = """
<node><memory>4194304</memory>{domain}
<pool type='dir'><name>images</name><target><path>/images</path></target></pool></node>
"""
DISKS = """
<disk type='file' device='disk'><source file='/images/root.qcow2'/><target dev='vda'/></disk>
<disk type='file' device='disk'><source file='/images/scratch.qcow2'/><target dev='vdb'/></disk>
<disk type='file' device='cdrom'><source file='/iso/debian.iso'/><target dev='hda'/><readonly/></disk>
"""
VOLUME = "<volume><name>{}</name><capacity unit='MiB'>64</capacity></volume>"


def domain(*, uuid: str = UUID, memory: int = 256, devices: str = "") -> str:
    return _TEST_DOMAIN.format(uuid=uuid, memory=memory, devices=devices)


@asynccontextmanager
async def driver_of(tmp_path: Path, **hosts: str) -> AsyncIterator[LibvirtDriver]:
    """A driver whose hosts have the domain XML given, each in a world of its own."""
    specs = {}
    for name, xml in hosts.items():
        (tmp_path / f"{name}.xml").write_text(_TEST_NODE.format(domain=xml))
        specs[name] = LibvirtHost(uri=f"test://{tmp_path}/{name}.xml")
    driver = LibvirtDriver(specs, tmp_path / "definitions")
    try:
        yield driver
    finally:
        await driver.close()


class Guest:
    """The guest that counts on its console, with or without a data disk and an ephemeral disk in one directory.

    libvirt migrates no VM with disks on a local file system.
    """

    def __init__(self, directory: Path, *, has_disks: bool = True) -> None:
        self.console = directory / "console.log"
        disks = {"vda": directory / "data.raw", "vdb": directory / "ephemeral.raw"} if has_disks else {}
        for path in disks.values():
            with path.open("wb") as file:
                file.truncate(1 << 20)
        self.xml = _domain_xml(
            words=f"console=ttyS0 quiet panic=-1 fw_name={VM} fw_address=10.0.0.4 fw_ticks=0.1 fw_poll=0.3",
            initramfs=GUEST / "initramfs",
            memory_mib=MEMORY_MIB,
            console=self.console,
            devices=_disk_devices(disks),
        )

    def text(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def boots(self) -> list[str]:
        return [line.split()[1] for line in self.text().splitlines() if line.startswith("boot ")]

    def wait_for_line(self, line: str, *, after: int = 0) -> None:
        wait_for(rf"^{line}\b", self.console, after=after, within_s=TIMEOUT_S)

    def wait_for_ticks(self, more: int = 3) -> None:
        """Wait until the guest counts on."""
        at = len(self.text())
        for _ in range(more):
            self.wait_for_line(r"tick \d+\r?\n", after=at)
            at = self.text().index("tick", at) + 1

    def wait_for_boot(self, number: int) -> None:
        eventually(lambda: len(self.boots()) >= number, within_s=TIMEOUT_S)
        self.wait_for_ticks()


def _domain_xml(*, words: str, initramfs: Path, memory_mib: int, console: Path, devices: str) -> str:
    return _DOMAIN.format(
        vm=VM, memory=memory_mib, guest=GUEST, initramfs=initramfs, words=words, console=console, devices=devices
    )


def _disk_devices(disks: Mapping[str, Path]) -> str:
    return "".join(_DISK.format(path=path, target=name) for name, path in disks.items())


def embedded_host(directory: Path) -> LibvirtHost:
    """Return a host whose libvirt is in this process; what QEMU can do is found out once per directory."""
    (directory / "etc").mkdir(parents=True, exist_ok=True)
    (directory / "etc" / "qemu.conf").write_text(_QEMU_SETTINGS)
    return LibvirtHost(uri=f"qemu:///embed?root={directory}", timeout_s=TIMEOUT_S)


class LibvirtDaemon:
    """A libvirtd in mount and UTS namespaces of its own, and in a network namespace: this one, or its own."""

    def __init__(self, name: str, number: int, directory: Path, *, namespace: str = "") -> None:
        self.name = name
        self.directory = directory
        self._isolated = ["ip", "netns", "exec", namespace, "unshare"] if namespace else ["unshare", "--net"]
        for part in ("run", "lib", "cache", "etc"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        (directory / "etc" / "qemu.conf").write_text(_QEMU_SETTINGS)
        (directory / "etc" / "libvirtd.conf").write_text(
            f'auth_unix_rw = "none"\nauth_unix_ro = "none"\nunix_sock_dir = "{directory}/run"\n'
            f'host_uuid = "0000000{number}-0000-4000-8000-000000000000"\nlog_outputs = "3:file:{directory}/log"\n'
        )
        (directory / "hosts").write_text(f"127.0.0.1 localhost {name}\n")  # else each migration waits for a DNS server
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"qemu+unix:///system?socket={self.directory}/run/libvirt-sock"

    def start(self) -> None:
        mounts = "".join(
            f"mount --bind {self.directory}/{part} {target};"
            for part, target in (
                ("run", "/run/libvirt"),
                ("lib", "/var/lib/libvirt"),
                ("cache", "/var/cache/libvirt"),
                ("etc", "/etc/libvirt"),
                ("hosts", "/etc/hosts"),
            )
        )
        script = (
            "set -e; mkdir -p /run/libvirt /var/lib/libvirt /var/cache/libvirt /etc/libvirt; "
            f"hostname {self.name}; ip link set lo up; {mounts} "
            f"exec nice -n 5 libvirtd -f {self.directory}/etc/libvirtd.conf -p {self.directory}/pid"
        )
        self._child = subprocess.Popen(
            [*self._isolated, "--mount", "--uts", "sh", "-c", script], start_new_session=True
        )
        eventually(self._is_listening, within_s=TIMEOUT_S)

    def _is_listening(self) -> bool:
        """Whether the daemon accepts connections; its socket exists a moment earlier."""
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.directory / "run" / "libvirt-sock")) == 0

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the daemon; its VMs go on."""
        if self._child is not None:
            os.kill(self._child.pid, number)
            try:
                self._child.wait(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                raise
            self._child = None
            (self.directory / "run" / "libvirt-sock").unlink(missing_ok=True)

    def lose(self) -> None:
        """End the daemon and the guest's QEMU at once, as if the host had lost its power."""
        self.stop(signal.SIGKILL)
        self._kill_guest()

    def close(self) -> None:
        """End the daemon, and the guest if a failed test has left it running."""
        try:
            self.stop()
        finally:
            self._kill_guest()

    def _kill_guest(self) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((self.directory / "run" / "qemu" / f"{VM}.pid").read_text()), signal.SIGKILL)


async def end_guest(driver: LibvirtDriver, *hosts: str) -> None:
    """Power the guest off on these hosts, also after a failed test; not on a host that does not answer."""
    for host in hosts:
        with suppress(HostUnreachable):
            if await driver.state(host, VM) != "absent":
                await driver.power_off(host, VM)
    await driver.close()


class LibvirtSite(Site):
    """Hosts with a libvirtd each, for all tests of a session: `start_guest` and `remove_guest` are for one test.

    Each daemon sees a directory of its own in place of /var/lib/libvirt, where its guests write their console.
    """

    hypervisor = "libvirt"

    def __init__(self, directory: Path, number: int, *, agent: str) -> None:
        super().__init__(directory, number, agent=agent, console_name="lib/console.log")
        self._daemons = {
            host.name: LibvirtDaemon(host.name, index, host.directory, namespace=host.namespace)
            for index, host in enumerate(self.hosts.values(), 1)
        }
        self._saved = directory / "saved"

    def start(self) -> None:
        """Start the daemons, boot a guest, and save it when it counts."""
        first, second = self._daemons.values()
        first.start()
        self._virsh(first.name, "version")  # now it knows what QEMU can do, which takes seconds to find out
        shutil.copytree(first.directory / "cache", second.directory / "cache", dirs_exist_ok=True)
        second.start()
        for name in HOST_NAMES:
            self._virsh(name, "pool-define-as", "shared", "dir", "--target", str(self.shared))
            self._virsh(name, "pool-start", "shared")
        self.start_guest()
        self._saved.mkdir()
        self._virsh(HOST_NAMES[0], "save", VM, str(self._saved / "memory"))
        for path in (self.data_disk, self.ephemeral_disk, self.hosts[HOST_NAMES[0]].console):
            shutil.copy(path, self._saved / path.name)
        self.remove_guest()

    def uri(self, host: str) -> str:
        """Return the URI of the host's libvirt."""
        return self._daemons[host].uri

    def start_guest(self, *, has_disks: bool = True, address: str = GUEST_ADDRESS) -> None:
        """Restore the guest on the first host, or boot it: without disks, as libvirt moves it, or with an address."""
        host = self.hosts[HOST_NAMES[0]]
        disks = {"vda": self.data_disk, "vdb": self.ephemeral_disk} if has_disks else {}
        is_saved = has_disks and address == GUEST_ADDRESS and self._saved.exists()
        for path in disks.values():
            if is_saved:
                shutil.copy(self._saved / path.name, path)
            else:
                with path.open("wb") as file:
                    file.truncate(1 << 20)
        definition = self.directory / "domain.xml"
        definition.write_text(
            _domain_xml(
                words=self.kernel_words(address),
                initramfs=self.initramfs,
                memory_mib=self.memory_mib,
                console=Path("/var/lib/libvirt/console.log"),
                devices=_disk_devices(disks) + _TAP,
            )
        )
        self._virsh(host.name, "define", str(definition))
        if is_saved:
            shutil.copy(self._saved / host.console.name, host.console)
            self._virsh(host.name, "restore", str(self._saved / "memory"))
        else:
            self._virsh(host.name, "start", VM)
        host.wait_for_ticks()

    def remove_guest(self) -> None:
        """Make both hosts forget the guest, also after a failed test."""
        for name, host in self.hosts.items():
            if self.knows_vm(name):
                if "running" in self._virsh(name, "domstate", VM) or "paused" in self._virsh(name, "domstate", VM):
                    self._virsh(name, "destroy", VM)
                self._virsh(name, "undefine", VM)
            host.console.unlink(missing_ok=True)
        for disk in (self.data_disk, self.ephemeral_disk):
            disk.unlink(missing_ok=True)
        self.route_to(HOST_NAMES[0])

    def knows_vm(self, host: str) -> bool:
        """Return whether the host has a definition of the VM."""
        return VM in self._virsh(host, "list", "--all", "--name").split()

    def settings_toml(self) -> str:
        """Return the tables [libvirt.hosts.…] and [[listeners]] of the settings of a service."""
        lines = []
        for name, daemon in self._daemons.items():
            migrate_uri = f"unix://{self.directory}/{{vm}}.sock"
            lines += [f"[libvirt.hosts.{name}]", f"uri = {toml_text(daemon.uri)}", f"timeout_s = {TIMEOUT_S:g}"]
            lines += [f"migrate_uri = {toml_text(migrate_uri)}"]
        return "\n".join(lines) + "\n" + self.listeners_toml()

    def close(self) -> None:
        """End the daemons, and then all that still runs in the namespaces."""
        with ExitStack() as stack:
            stack.callback(super().close)
            for daemon in self._daemons.values():
                stack.callback(daemon.close)

    def _virsh(self, host: str, *arguments: str) -> str:
        line = ["virsh", "--connect", self.uri(host), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, f"{' '.join(line)}: {done.stderr}"
        return done.stdout


class MigrationSite:
    """Two daemons, kvm-a and kvm-b, and a driver of them for each scenario; the guest is ended afterwards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.daemons = {
            name: LibvirtDaemon(name, number, directory / name) for number, name in enumerate(("kvm-a", "kvm-b"), 1)
        }

    def start(self) -> None:
        for daemon in self.daemons.values():
            daemon.start()

    def driver(self, *, by_peers: bool = False) -> LibvirtDriver:
        hosts = {
            name: LibvirtHost(
                uri=daemon.uri,
                peer_uri=daemon.uri if by_peers else "",
                migrate_uri=f"unix://{self.directory}/{{vm}}.sock",
                timeout_s=TIMEOUT_S,
            )
            for name, daemon in self.daemons.items()
        }
        return LibvirtDriver(hosts, self.directory / "definitions")

    def node(self, name: str, *others: str) -> MachineHypervisor:
        """The hypervisor of one host; it also reaches the libvirt of others."""
        hosts = {
            each: LibvirtHost(
                uri=self.daemons[each].uri, migrate_uri=f"unix://{self.directory}/{{vm}}.sock", timeout_s=TIMEOUT_S
            )
            for each in (name, *others)
        }
        driver = LibvirtDriver(hosts, self.directory / f"definitions-{name}")
        return MachineHypervisor(driver, MachineJournal(self.directory / f"{name}.db"))

    def run(
        self, guest: Guest, scenario: Callable[[LibvirtDriver, Guest], Awaitable[None]], *, by_peers: bool = False
    ) -> None:
        async def run() -> None:
            driver = self.driver(by_peers=by_peers)
            try:
                await driver._hosts.connection("kvm-a").call(lambda session: session.define(guest.xml))
                await driver.power_on("kvm-a", VM)
                await asyncio.to_thread(guest.wait_for_boot, 1)
                await scenario(driver, guest)
            finally:
                await end_guest(driver, "kvm-a", "kvm-b")

        asyncio.run(run())

    def close(self) -> None:
        with ExitStack() as stack:
            for daemon in self.daemons.values():
                stack.callback(daemon.close)
