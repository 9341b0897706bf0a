"""A lab with real VMs: its files in the data directory, its guests and its network.

settings.toml fleet.toml        what `forewarn up` is started with
hosts/host-1/web-0.toml …       a definition per VM, on the host where it is
disks/web-0.raw …               disks that both hosts reach
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from forewarn.errors import Rejected
from forewarn.lab.vms.image import GuestImage
from forewarn.machines.driver import MachineState
from forewarn.machines.qemu.definition import QemuHost, option_text
from forewarn.machines.qemu.driver import QemuDriver
from forewarn.metadata.listeners import METADATA_ADDRESS

HOSTS = ("host-1", "host-2")
GUESTS = ("web-0", "web-1")
_MEMORY_MIB = 96
_DISK_MIB = 16
LAB_MARKER = "lab-vms"  # the name of the file that marks the data directory of a lab with real VMs
_SLIRP_PORT = 8253  # where guests without taps are served, on loopback
_HOST_MEMORY_MIB = 1024
_NEW_DIRECTORY = "The directory was empty before.\n"  # in the marker


@dataclass(frozen=True, slots=True)
class VmLab:
    """The layout of one lab with real VMs (`forewarn lab vms`): its files, hosts and names.

    With `taps`, guests have taps in a network namespace per host; otherwise QEMU's own network serves them.
    """

    directory: Path  # the data directory, an absolute path
    taps: bool  # whether each guest has a tap; needs root

    @property
    def marker_file(self) -> Path:
        """The file that marks the data directory as a lab's: where it exists, everything of the lab may be removed."""
        return self.directory / LAB_MARKER

    def is_in_new_directory(self) -> bool:
        """Return whether the data directory was empty before the lab was written; False without a lab."""
        try:
            return self.marker_file.read_text(encoding="utf-8") == _NEW_DIRECTORY
        except FileNotFoundError:
            return False

    @property
    def settings_file(self) -> Path:
        """The path of the settings, in TOML, that the service is started with; `write` creates it."""
        return self.directory / "settings.toml"

    @property
    def fleet_file(self) -> Path:
        """The path of the fleet file, with two hosts and two VMs; `write` creates it."""
        return self.directory / "fleet.toml"

    def namespace(self, host: str) -> str:
        """Return the name of the network namespace that stands for this host in a lab with taps."""
        digest = hashlib.sha256(str(self.directory).encode()).hexdigest()[:6]
        return f"forewarn-{digest}-{host}"

    def host_directory(self, host: str) -> Path:
        """Return the directory with the definitions, sockets and consoles of the host's VMs; it may not exist."""
        return self.directory / "hosts" / host

    def hosts(self) -> dict[str, QemuHost]:
        """Return the settings of the lab's two hosts for the QEMU driver, by host name."""
        return {
            host: QemuHost(
                directory=str(self.host_directory(host)),
                prefix=("ip", "netns", "exec", self.namespace(host)) if self.taps else (),
                memory_mib=_HOST_MEMORY_MIB,
                fence=("true",),
            )
            for host in HOSTS
        }

    def write(self, image: GuestImage) -> None:
        """Write all files of a new lab. What an earlier lab left must be removed first."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        is_new = not any(self.directory.iterdir())
        disks = self.directory / "disks"
        for directory in (disks, *map(self.host_directory, HOSTS)):
            directory.mkdir(parents=True, exist_ok=True)
        self.marker_file.write_text(_NEW_DIRECTORY if is_new else "", encoding="utf-8")
        self.fleet_file.write_text(_fleet(), encoding="utf-8")
        self.settings_file.write_text(self._settings(), encoding="utf-8")
        for number, vm in enumerate(GUESTS):
            disk = disks / f"{vm}.raw"
            with disk.open("wb") as file:
                file.truncate(_DISK_MIB * 1024 * 1024)
            definition = self.host_directory(first_host(number)) / f"{vm}.toml"
            definition.write_text(self._definition(vm, number, image, disk), encoding="utf-8")

    def _settings(self) -> str:
        lines = ['hypervisor = "qemu"', ""]
        for host, qemu in self.hosts().items():
            lines += [
                f"[qemu.hosts.{host}]",
                f"directory = {json.dumps(qemu.directory)}",
                f"prefix = {json.dumps(list(qemu.prefix))}",
                f"memory_mib = {qemu.memory_mib}",
                'fence = ["true"]  # both hosts are this machine, which cannot be cut off',
                "",
            ]
        return "\n".join([*lines, *self._listeners()])

    def _listeners(self) -> list[str]:
        if not self.taps:
            vms = ", ".join(f'"{_slirp_source(number)}" = "{vm}"' for number, vm in enumerate(GUESTS))
            return [
                "[[listeners]]",
                'by = "source"',
                'address = "127.0.0.1"',
                f"port = {_SLIRP_PORT}",
                'network = "guests"',
                f"vms = {{{vms}}}",
                "",
            ]
        return [
            line
            for host in HOSTS
            for vm in GUESTS
            for line in (
                "[[listeners]]",
                'by = "device"',
                f'namespace = "{self.namespace(host)}"',
                f'device = "{tap_name(vm)}"',
                f'vm = "{vm}"',
                "",
            )
        ]

    def _definition(self, vm: str, number: int, image: GuestImage, disk: Path) -> str:
        address = guest_address(number) if self.taps else "169.254.0.15"
        kernel_options = f"console=ttyS0 quiet panic=-1 fw_name={vm} fw_address={address} fw_approve=5"
        ephemeral = disk.with_name(f"{vm}-temporary.raw")
        command = [
            *("qemu-system-x86_64", "-name", vm, "-accel", "tcg", "-m", str(_MEMORY_MIB), "-display", "none"),
            *("-nodefaults", "-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", kernel_options),
            *("-chardev", f"socket,id=console,path={vm}.console,server=on,wait=off,logfile={vm}.console.log"),
            *("-serial", "chardev:console"),
            *("-drive", f"file={option_text(disk)},format=raw,if=virtio"),
            *("-drive", f"file={option_text(ephemeral)},format=raw,if=virtio"),
            *("-netdev", self._netdev(vm, number), "-device", f"virtio-net-pci,netdev=net,mac={_guest_mac(number)}"),
        ]
        return (
            f"command = {json.dumps(command)}\n"
            f"memory_mib = {_MEMORY_MIB}\n"
            f"disks = [{json.dumps(str(disk))}]\n\n"
            f"[ephemeral]\npath = {json.dumps(str(ephemeral))}\nsize_mib = {_DISK_MIB}\n"
        )

    def _netdev(self, vm: str, number: int) -> str:
        if self.taps:
            return f"tap,id=net,ifname={tap_name(vm)},script=no,downscript=no"
        forward = Path(str(resources.files("forewarn.lab.vms").joinpath("forward.py")))
        words = (sys.executable, "-I", "-S", str(forward), _slirp_source(number), "127.0.0.1", str(_SLIRP_PORT))
        command = option_text(shlex.join(words))
        network = "net=169.254.0.0/16,host=169.254.0.1,dns=169.254.0.3,dhcpstart=169.254.0.15"
        return f"user,id=net,restrict=on,{network},guestfwd=tcp:169.254.169.254:80-cmd:{command}"


def first_host(number: int) -> str:
    """Return the name of the host on which the guest with this number, from 0, boots first."""
    return HOSTS[number % len(HOSTS)]


def tap_name(vm: str) -> str:
    """Return the name of the VM's tap: `tap-` and the VM's name, the same on every host."""
    return f"tap-{vm}"


def guest_address(number: int) -> str:
    """Return the IPv4 address of the guest with this number, from 0, in a lab with taps."""
    return f"10.254.{number}.4"


def _guest_mac(number: int) -> str:
    return f"52:54:00:fe:00:{number:02x}"


def _slirp_source(number: int) -> str:
    """The loopback address that a guest's calls come from, which identifies it."""
    return f"127.254.0.{number + 1}"


def _fleet() -> str:
    hosts = "\n".join(f'[[hosts]]\nname = "{host}"\n' for host in HOSTS)
    vms = "\n".join(
        f'[[vms]]\nname = "{vm}"\nhost = "{first_host(number)}"\npriority = "Spot"\neviction_policy = "Deallocate"\n'
        for number, vm in enumerate(GUESTS)
    )
    return (
        "# Two hosts and two real VMs. They are Spot VMs, so that they can be evicted too.\n"
        '[defaults]\nlocation = "westeurope"\nresource_group = "lab"\n\n'
        f"{hosts}\n{vms}"
    )


# Starts and ends the guests of a lab, wherever maintenance has brought them.

# What the service of a lab leaves beside its keys in tls; two of them if it ran in the background.
_SERVICE_FILES = ("admin.secret", "detached.json", "lock", "new-store", "service.log")


async def start_guests(lab: VmLab) -> None:
    """Boot every guest of a new lab on its first host, in a QEMU process that outlives this one."""
    driver = _driver(lab)
    try:
        for number, vm in enumerate(GUESTS):
            await driver.power_on(first_host(number), vm)
    finally:
        await driver.close()


async def end_guests(lab: VmLab) -> int:
    """End every guest at once, on every host, without asking it to shut down; return how many ran."""
    driver = _driver(lab)
    ended = 0
    try:
        for host in filter(lambda host: lab.host_directory(host).exists(), HOSTS):
            for vm in GUESTS:
                if await driver.state(host, vm) not in (MachineState.OFF, MachineState.ABSENT):  # ends one that is off
                    await driver.power_off(host, vm)
                    ended += 1
    finally:
        await driver.close()
    return ended


def remove_files(lab: VmLab) -> None:
    """Remove hosts, disks, settings, fleet and marker of a lab whose guests have ended; none need exist.

    Call it while you hold the lock of the data directory.
    """
    is_new = lab.is_in_new_directory()
    for directory in ("hosts", "disks", "definitions"):
        shutil.rmtree(lab.directory / directory, ignore_errors=True)
    for file in (lab.settings_file, lab.fleet_file, lab.marker_file):
        file.unlink(missing_ok=True)
    if is_new:
        shutil.rmtree(lab.directory / "tls", ignore_errors=True)
        for name in _SERVICE_FILES:
            (lab.directory / name).unlink(missing_ok=True)
        with suppress(OSError):  # somebody has put something there
            lab.directory.rmdir()


def _driver(lab: VmLab) -> QemuDriver:
    return QemuDriver(lab.hosts(), copies=lab.directory / "definitions")


# The network of a lab with taps: a namespace per host, with a tap per VM. Needs root.

# The same on every host: a guest that has moved still has it in its ARP table.
_TAP_MAC = "12:34:56:78:9a:bc"


def create_network(lab: VmLab) -> None:
    """Create a network namespace per host and, in each, a tap per VM and the metadata address."""
    remove_network(lab)
    for host in HOSTS:
        namespace = lab.namespace(host)
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "address", "add", f"{METADATA_ADDRESS}/32", "dev", "lo")
        _disable_reverse_path_filter(namespace)
        for number, vm in enumerate(GUESTS):
            tap = tap_name(vm)
            _ip("-n", namespace, "tuntap", "add", tap, "mode", "tap")
            _ip("-n", namespace, "link", "set", tap, "address", _TAP_MAC, "up")
            gateway = guest_address(number).rpartition(".")[0] + ".1"
            _ip("-n", namespace, "address", "add", f"{gateway}/24", "dev", tap)


def remove_network(lab: VmLab) -> None:
    """Remove the network namespaces of both hosts with their taps; ignores all failures of `ip`."""
    for host in HOSTS:
        with suppress(FileNotFoundError):
            subprocess.run(["ip", "netns", "delete", lab.namespace(host)], capture_output=True, check=False)


def _disable_reverse_path_filter(namespace: str) -> None:
    """Let the kernel answer for the metadata address on taps, whose networks do not contain it."""
    command = "for f in all default; do echo 0 > /proc/sys/net/ipv4/conf/$f/rp_filter; done"
    _run("ip", "netns", "exec", namespace, "sh", "-c", command)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Rejected(
            f"`ip` cannot be run ({error.strerror}): install iproute2, or use --slirp, which needs no taps"
        ) from error
    if done.returncode != 0:
        raise Rejected(
            f"`{' '.join(command)}` failed ({done.stderr.strip()}): use --slirp, which needs no taps and no root"
        )
