"""Hosts with a real libvirt: its QEMU driver inside the test's process, and daemons in namespaces of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from forewarn.hypervisor.libvirt.connection import LibvirtHost
from forewarn.hypervisor.libvirt.driver import LibvirtDriver
from tests.support.service_process import eventually
from tests.vms.hosts import GUEST, MEMORY_MIB, VM, wait_for

TIMEOUT_S = 120.0  # libvirt first asks QEMU what it can do, which takes long on a busy machine
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
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>{guest}/vmlinux</kernel><initrd>{guest}/initramfs</initrd>
<cmdline>console=ttyS0 quiet panic=-1 fw_name={vm} fw_address=10.0.0.4 fw_ticks=0.1 fw_poll=0.3</cmdline></os>
<features><acpi/></features>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>{disks}
<serial type='file'><source path='{console}' append='on'/></serial><memballoon model='none'/></devices></domain>
"""
_DISK = """
<disk type='file' device='disk'><driver name='qemu' type='raw' cache='none'/><source file='{path}'/>
<target dev='{target}' bus='virtio'/></disk>
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
        self.xml = _DOMAIN.format(
            vm=VM,
            memory=MEMORY_MIB,
            guest=GUEST,
            console=self.console,
            disks="".join(_DISK.format(path=path, target=name) for name, path in disks.items()),
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


def embedded_host(directory: Path) -> LibvirtHost:
    """Return a host whose libvirt is in this process; what QEMU can do is found out once per directory."""
    (directory / "etc").mkdir(parents=True, exist_ok=True)
    (directory / "etc" / "qemu.conf").write_text(_QEMU_SETTINGS)
    return LibvirtHost(uri=f"qemu:///embed?root={directory}", timeout_s=TIMEOUT_S)


class LibvirtDaemon:
    """A libvirtd in mount, network and UTS namespaces of its own."""

    def __init__(self, name: str, number: int, directory: Path) -> None:
        self.name = name
        self.directory = directory
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
            ["unshare", "--mount", "--net", "--uts", "sh", "-c", script], start_new_session=True
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
            self._child.wait(timeout=TIMEOUT_S)
            self._child = None
            (self.directory / "run" / "libvirt-sock").unlink(missing_ok=True)

    def end_guest_left_over(self) -> None:
        """Kill the guest if a failed test has left it running."""
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((self.directory / "run" / "qemu" / f"{VM}.pid").read_text()), signal.SIGKILL)


async def end_guest(driver: LibvirtDriver, *hosts: str) -> None:
    """Power the guest off on these hosts, also after a failed test."""
    for host in hosts:
        if await driver.state(host, VM) != "absent":
            await driver.power_off(host, VM)
    await driver.close()
