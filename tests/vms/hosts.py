"""Two hosts made of network namespaces, with taps, for real VMs; and a guest that counts on its console.

Both hosts forward to a namespace for a peer, so that a guest can have a TCP connection that outlives its move. In a
guest without an agent the lab's script polls and approves. With one, it is a resource agent of Pacemaker, unchanged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forewarn.machines.qemu.definition import QemuHost
from forewarn.machines.qemu.driver import QemuDriver

ROOT = Path(__file__).parents[2]
GUEST = ROOT / ".venv-vms" / "guest"
VM = "web-0"
DEVICE = "tap0"
GUEST_ADDRESS = "10.0.0.4"
PEER = ("10.9.0.1", 7000)
HOST_NAMES = ("host-1", "host-2")
MEMORY_MIB = 96
AGENT = "azure-events-az"  # of Debian's package resource-agents
AGENT_MEMORY_MIB = 144  # with Python
START_S = 240.0  # for a guest to boot, or to approve, on a very busy machine
_TAP_MAC = "12:34:56:78:9a:bc"  # the same on all hosts, so that a migrated guest finds its gateway at once


def why_vms_are_unavailable() -> str:
    """Say what is missing for tests of real VMs; "" if nothing is."""
    if os.geteuid() != 0:
        return "real VMs need root, for taps in network namespaces"
    if missing := [tool for tool in ("qemu-system-x86_64", "ip", "busybox") if shutil.which(tool) is None]:
        return f"{', '.join(missing)} missing: `make test-vms` installs what is needed"
    if not all((GUEST / name).exists() for name in ("vmlinux", "initramfs")):
        return "the test guest is missing: `make test-vms` builds it"
    return ""


def toml_text(value: object) -> str:
    """Return a string or a list of strings as TOML, whose text and lists are those of JSON."""
    return json.dumps(value)


def wait_for(pattern: str, file: Path, *, after: int = 0, within_s: float = START_S) -> re.Match[str]:
    """Return the first match of the pattern in a line of the file, after this offset in characters."""
    deadline = time.monotonic() + within_s
    while True:
        text = file.read_text(errors="replace")[after:] if file.exists() else ""
        if found := re.search(pattern, text, re.MULTILINE):
            return found
        assert time.monotonic() < deadline, f"no line {pattern!r} in {file} after {within_s:g} s:\n{text[-2000:]}"
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class HostSetup:
    """One host: its network namespace and its directory, on which the console files of its guests are too."""

    name: str
    namespace: str
    directory: Path
    console_name: str = "console.log"  # in the directory

    @property
    def settings(self) -> QemuHost:
        prefix = ("ip", "netns", "exec", self.namespace, "nice", "-n", "5")
        return QemuHost(directory=str(self.directory), prefix=prefix, memory_mib=1024)

    @property
    def console(self) -> Path:
        """What guests printed on this host; further boots append to it."""
        return self.directory / self.console_name

    def console_text(self) -> str:
        """Return all that guests printed here; "" if none ran here."""
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def boots(self) -> list[str]:
        """Return the boot ids that guests printed here, in their order."""
        return re.findall(r"^boot (\S+)\r?\n", self.console_text(), re.MULTILINE)

    def ticks(self) -> list[int]:
        """Return the numbers in all complete lines of ticks."""
        return [int(number) for number in re.findall(r"^tick (\d+)\r?\n", self.console_text(), re.MULTILINE)]

    def last_tick(self) -> int:
        """Return the number of the last tick; 0: there is none."""
        return self.ticks()[-1] if self.ticks() else 0

    def wait_for_ticks(self, more: int = 3) -> int:
        """Wait until the guest has counted on from its latest tick on this console; returns the new number."""
        target = self.last_tick() + more
        deadline = time.monotonic() + START_S
        while (tick := self.last_tick()) < target:
            assert time.monotonic() < deadline, f"tick {tick} on {self.name}, not {target}"
            time.sleep(0.05)
        return tick

    def paused_s(self, *, after: int) -> float:
        """Return how long the guest was paused after this offset in its console, by its own clocks, to a second.

        Its clock of time since boot stops meanwhile, and its real-time clock does not. A guest that only waits for a
        CPU of a busy machine was not paused.
        """
        found = re.findall(r"^clocks (\d+) ([\d.]+)\r?\n", self.console_text()[after:], re.MULTILINE)
        ahead = [float(rtc) - float(uptime) for rtc, uptime in found]
        return max(ahead) - min(ahead) if ahead else 0.0


class Site(ABC):
    """Two hosts, a directory for disks that both reach, and a peer; `close` ends what runs in their namespaces."""

    hypervisor = ""  # as the setting of this name

    def __init__(self, directory: Path, number: int, *, agent: str = "", console_name: str = "console.log") -> None:
        self.directory = directory
        self.agent = agent
        self.shared = directory / "shared"
        self.shared.mkdir()
        self._tag = f"fwvm{os.getpid() % 100000}-{number}"
        self.peer_namespace = f"{self._tag}-peer"
        self.hosts: dict[str, HostSetup] = {}
        _ip("netns", "add", self.peer_namespace)
        _in(self.peer_namespace, "address", "add", f"{PEER[0]}/32", "dev", "lo")
        _in(self.peer_namespace, "link", "set", "lo", "up")
        for index, name in enumerate(HOST_NAMES, 1):
            host = HostSetup(name, f"{self._tag}-{index}", directory / f"h{index}", console_name)
            host.directory.mkdir()
            self.hosts[name] = host
            self._connect_host(host, index)
        self.route_to(HOST_NAMES[0])

    @property
    def data_disk(self) -> Path:
        return self.shared / "data.raw"

    @property
    def ephemeral_disk(self) -> Path:
        return self.shared / "ephemeral.raw"

    def conflicts(self) -> list[str]:
        """Return what guests found on the data disk that another copy of the VM had written."""
        found = [line for host in self.hosts.values() for line in re.findall("conflict.*", host.console_text())]
        sector = self.data_disk.read_bytes()[9 * 512 : 10 * 512].strip(b"\0\n")
        return [*found, sector.decode()] if sector else found

    def _connect_host(self, host: HostSetup, index: int) -> None:
        space = host.namespace
        _ip("netns", "add", space)
        _run("ip", "netns", "exec", space, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        _in(space, "link", "set", "lo", "up")
        _in(space, "address", "add", "169.254.169.254/32", "dev", "lo")
        self.add_tap(host.name)
        _in(space, "link", "add", "up0", "type", "veth", "peer", "name", f"h{index}", "netns", self.peer_namespace)
        _in(space, "address", "add", f"10.9.{index}.2/24", "dev", "up0")
        _in(space, "link", "set", "up0", "up")
        _in(self.peer_namespace, "address", "add", f"10.9.{index}.1/24", "dev", f"h{index}")
        _in(self.peer_namespace, "link", "set", f"h{index}", "up")
        _in(space, "route", "add", f"{PEER[0]}/32", "via", f"10.9.{index}.1")

    def add_tap(self, host: str) -> None:
        """Create the tap of the guest on a host, which is its gateway."""
        space = self.hosts[host].namespace
        _in(space, "tuntap", "add", DEVICE, "mode", "tap")
        _in(space, "link", "set", DEVICE, "address", _TAP_MAC, "up")
        _in(space, "address", "add", "10.0.0.1/24", "dev", DEVICE)
        for scope in ("all", "default", DEVICE):
            _run("ip", "netns", "exec", space, "sysctl", "-q", "-w", f"net.ipv4.conf.{scope}.rp_filter=0")

    def remove_tap(self, host: str) -> None:
        """Remove the tap of the guest from a host."""
        _in(self.hosts[host].namespace, "link", "del", DEVICE)

    def route_to(self, host: str) -> None:
        """Let the peer reach the guest through this host, as a network does after a move."""
        index = HOST_NAMES.index(host) + 1
        _in(self.peer_namespace, "route", "replace", f"{GUEST_ADDRESS}/32", "via", f"10.9.{index}.2")

    def listen_as_peer(self, output: Path) -> subprocess.Popen[bytes]:
        """Accept one TCP connection at the peer, and write what it brings to the file."""
        with output.open("wb") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.peer_namespace, "busybox", "nc", "-l", "-p", str(PEER[1])],
                stdin=subprocess.PIPE,  # at the end of its input it would close the connection
                stdout=file,
            )

    @property
    def memory_mib(self) -> int:
        """The memory of the guest."""
        return AGENT_MEMORY_MIB if self.agent else MEMORY_MIB

    @property
    def initramfs(self) -> Path:
        """The guest's programs."""
        return GUEST / ("initramfs-agent" if self.agent else "initramfs")

    def kernel_words(self, address: str = GUEST_ADDRESS) -> str:
        """Return the kernel's command line, from which the guest knows what to do."""
        words = f"console=ttyS0 quiet panic=-1 fw_name={VM} fw_address={address} fw_peer={PEER[0]}:{PEER[1]}"
        return f"{words} fw_ticks=0.1 fw_poll=0.3 fw_agent={self.agent}"

    def listeners_toml(self) -> str:
        """Return the tables [[listeners]] of the settings of a service: the guest is known by its device."""
        return "\n".join(
            f'[[listeners]]\nby = "device"\nnamespace = {toml_text(host.namespace)}\n'
            f"device = {toml_text(DEVICE)}\nvm = {toml_text(VM)}\n"
            for host in self.hosts.values()
        )

    @abstractmethod
    def settings_toml(self) -> str:
        """Return the tables of the hosts and [[listeners]] of the settings of a service."""

    @abstractmethod
    def knows_vm(self, host: str) -> bool:
        """Return whether the host has a definition of the VM."""

    def close(self) -> None:
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        for space in (self.peer_namespace, *(host.namespace for host in self.hosts.values())):
            _ip("netns", "del", space)

    def _processes(self) -> Iterator[int]:
        """Yield the processes in the namespaces of this site."""
        for space in (self.peer_namespace, *(host.namespace for host in self.hosts.values())):
            yield from map(int, _run("ip", "netns", "pids", space).split())


class QemuSite(Site):
    """Hosts with plain QEMU; the driver starts it inside the namespace of its host."""

    hypervisor = "qemu"

    def driver(self, *, timeout_s: float = 15.0) -> QemuDriver:
        """A new driver; a busy machine needs more time than the usual one."""
        settings = {name: host.settings for name, host in self.hosts.items()}
        return QemuDriver(settings, copies=self.directory / "copies", timeout_s=timeout_s, start_timeout_s=60)

    def settings_toml(self) -> str:
        """Return the tables [qemu.hosts.…] and [[listeners]] of the settings of a service."""
        lines = []
        for name, host in self.hosts.items():
            lines += [
                f"[qemu.hosts.{name}]",
                f"directory = {toml_text(str(host.directory))}",
                f"prefix = {toml_text(host.settings.prefix)}",
                "memory_mib = 1024",
            ]
        return "\n".join(lines) + "\n" + self.listeners_toml()

    def knows_vm(self, host: str) -> bool:
        """Return whether the host has a definition of the VM, or any other file of it."""
        return any(self.hosts[host].directory.glob(f"{VM}.*"))

    def guest_command(self, *, device: str = DEVICE, disks: Path | None = None) -> list[str]:
        """Return QEMU's command for a guest that counts, polls and writes to the data disk.

        A second guest has another device, and its disks in another directory.
        """
        data, ephemeral = ((disks or self.shared) / path.name for path in (self.data_disk, self.ephemeral_disk))
        return [
            *self.empty_command(),
            *("-kernel", str(GUEST / "vmlinux"), "-initrd", str(self.initramfs), "-append", self.kernel_words()),
            *("-drive", f"file={data},format=raw,if=virtio,file.locking=off"),
            *("-drive", f"file={ephemeral},format=raw,if=virtio,file.locking=off"),
            *("-netdev", f"tap,id=net0,ifname={device},script=no,downscript=no"),
            *("-device", "virtio-net-pci,netdev=net0,mac=52:54:00:00:00:01,romfile="),
        ]

    def empty_command(self) -> list[str]:
        """Return QEMU's command for a VM without disks and network, which starts at once and runs only firmware."""
        return [
            *("qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-m", str(self.memory_mib), "-nodefaults"),
            *("-no-user-config", "-display", "none"),
            *("-chardev", "file,id=console,path=console.log,append=on", "-serial", "chardev:console"),
        ]

    def define(self, host: str, command: list[str], *, disks: bool = False) -> None:
        """Write the VM's definition on the host; with `disks` the guest's two disks, which are created."""
        lines = [f"command = {toml_text(command)}", f"memory_mib = {self.memory_mib}"]
        if disks:
            if not self.data_disk.exists():
                with self.data_disk.open("wb") as file:
                    file.truncate(1 << 20)
            lines += [f"disks = {toml_text([str(self.data_disk)])}", "[ephemeral]"]
            lines += [f"path = {toml_text(str(self.ephemeral_disk))}", "size_mib = 1"]
        (self.hosts[host].directory / f"{VM}.toml").write_text("\n".join(lines) + "\n")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _in(namespace: str, *arguments: str) -> None:
    _run("ip", "-n", namespace, *arguments)


def _run(*arguments: str) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
    return done.stdout
