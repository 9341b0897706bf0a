"""Settings of QEMU hosts, and definitions of VMs: the file `NAME.toml` in the host's directory.

    command = ["qemu-system-x86_64", "-accel", "kvm", "-m", "2048", "-drive", "file=/shared/web-0.raw,format=raw"]
    memory_mib = 2048
    disks = ["/shared/web-0.raw"]

    [ephemeral]
    path = "/shared/web-0-temporary.raw"
    size_mib = 4096

Relative paths are relative to the host's directory, in which QEMU runs.
"""

from __future__ import annotations

import tomllib
from pathlib import Path, PurePath

import msgspec

from forewarn.errors import Refused, Rejected

DEFINITION_SUFFIX = ".toml"
# Options that the driver adds itself, and one that would make QEMU leave its process.
_DRIVER_OPTIONS = frozenset(
    {"S", "daemonize", "incoming", "mon", "no-shutdown", "pidfile", "qmp", "qmp-pretty", "loadvm"}
)
_MAX_SOCKET_PATH = 107  # bytes; the limit of Linux


class QemuHost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host that runs VMs with plain QEMU, on this machine: `[qemu.hosts.NAME]` of the settings."""

    directory: str  # absolute: definitions, sockets, process ids, logs and marks of its VMs
    prefix: tuple[str, ...] = ()  # put before QEMU's command, such as `ip netns exec host-1`
    fence: tuple[str, ...] = ()  # command that cuts the host off, exit code 0 if no VM runs there any more; (): none
    fence_timeout_s: float = 60  # seconds of real time; after it the command is killed, and has failed
    migration: str = ""  # IP address for live migrations to this host; "": a unix socket in `directory`
    memory_mib: int = 0  # for VMs: none moves to a host with too little free; 0: all memory of the machine


class QemuSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[qemu]` of the settings: hosts that run VMs with plain QEMU."""

    hosts: dict[str, QemuHost] = {}  # by the fleet's name of the host
    lock_directories: tuple[str, ...] = ()  # absolute, on local file systems: locks of disks there count; (): none do


def check_qemu(settings: QemuSettings) -> None:
    """Raise Rejected if the settings of a host are wrong; the message names the setting."""
    for path in settings.lock_directories:
        if not PurePath(path).is_absolute():
            raise Rejected(f"setting 'qemu.lock_directories' has {path!r}: give absolute paths")
    directories: dict[PurePath, str] = {}
    for name, host in settings.hosts.items():
        where = f"setting 'qemu.hosts.{name}"
        directory = PurePath(host.directory)
        if not directory.is_absolute():
            raise Rejected(f"{where}.directory' is {host.directory!r}: give an absolute path")
        if directory in directories:
            raise Rejected(
                f"{where}.directory' is also that of host {directories[directory]!r}: give each host its own"
            )
        directories[directory] = name
        if host.memory_mib < 0:
            raise Rejected(f"{where}.memory_mib' is {host.memory_mib}: give 0 or more")
        if host.fence_timeout_s <= 0:
            raise Rejected(f"{where}.fence_timeout_s' is {host.fence_timeout_s:g}: give more than 0 seconds")
        for option in ("prefix", "fence"):
            if "" in getattr(host, option)[:1]:
                raise Rejected(f"{where}.{option}' begins with an empty string: name a program and its arguments")


class EphemeralDisk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A disk that is emptied when its VM boots on another host: a raw file, which the driver creates."""

    path: str  # relative to the host's directory, or absolute
    size_mib: int  # in MiB


class VmDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the QEMU driver must know about a VM: the content of its definition file, `NAME.toml`."""

    # A VM moves only if the paths of its `disks` are absolute, and live only if that of its ephemeral disk is as well.

    command: tuple[str, ...]  # QEMU and its options, without those that the driver adds
    memory_mib: int  # in MiB, as in `command`
    disks: tuple[str, ...] = ()  # paths of files and devices with data that outlive the VM's move to another host
    image: str = ""  # what a reimage copies over the first disk; "": the VM cannot be reimaged
    ephemeral: EphemeralDisk | None = None  # None: it has none

    def local_paths(self) -> list[str]:
        """Return the disks whose paths are relative, so that they exist on one host only."""
        ephemeral = [self.ephemeral.path] if self.ephemeral else []
        return [path for path in (*self.disks, *ephemeral) if not PurePath(path).is_absolute()]


def parse_definition(data: bytes, file: Path) -> VmDefinition:
    """Return the definition of a VM from the content of its file, after checking it."""
    try:
        definition = msgspec.convert(tomllib.loads(data.decode()), VmDefinition)
    except UnicodeDecodeError as error:
        raise Refused(f"definition {str(file)!r} is not UTF-8 text: correct it") from error
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"definition {str(file)!r} is not TOML ({error}): correct it") from error
    except msgspec.ValidationError as error:
        raise Refused(f"definition {str(file)!r} is wrong ({error}): correct it") from error
    if problem := _problem(definition):
        raise Refused(f"definition {str(file)!r}: {problem}")
    return definition


def _problem(definition: VmDefinition) -> str:
    if not definition.command or not definition.command[0]:
        return "'command' is empty: give QEMU's program and its options"
    options = {text.lstrip("-") for text in definition.command[1:] if text.startswith("-")}
    if mine := sorted(options & _DRIVER_OPTIONS):
        return f"'command' has the option -{mine[0]}, which forewarn sets or does not allow: remove it"
    if definition.memory_mib < 1:
        return f"'memory_mib' is {definition.memory_mib}: give the VM's memory, 1 or more"
    if "" in definition.disks:
        return "'disks' has an empty path: name a file or a device"
    if definition.image and not definition.disks:
        return "'image' needs a disk: name the disk that a reimage replaces first in 'disks'"
    if definition.ephemeral and not definition.ephemeral.path:
        return "'ephemeral.path' is empty: name a file"
    if definition.ephemeral and definition.ephemeral.size_mib < 1:
        return f"'ephemeral.size_mib' is {definition.ephemeral.size_mib}: give 1 or more"
    return ""


def option_text(value: object) -> str:
    """Return a value, such as a path, as it is written in QEMU's option strings: with commas doubled."""
    return str(value).replace(",", ",,")


def check_vm_name(vm: str, directory: Path) -> None:
    """Raise Refused if a VM of this name cannot have files and sockets in a host's directory."""
    if not vm or vm.startswith(".") or "/" in vm or "\0" in vm or "," in vm:
        raise Refused(f"VM name {vm!r} cannot be the name of a file: QEMU's VMs need a name without '/' and ','")
    longest = directory / f"{vm}.migrate"
    if len(str(longest).encode()) > _MAX_SOCKET_PATH:
        raise Refused(
            f"socket {str(longest)!r} has a path of more than {_MAX_SOCKET_PATH} bytes: "
            "choose a directory with a shorter path for this host"
        )
