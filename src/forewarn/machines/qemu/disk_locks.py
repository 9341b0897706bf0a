"""Locks of disks as evidence that a VM does not run: QEMU holds them for as long as it uses the disks.

The locks count only where they are lost with the process alone: on file systems of this machine, on which all hosts of
this driver are. A server of files may take a lock away from a client whose VM still runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from forewarn.errors import Rejected
from forewarn.machines.liveness import is_process_alive, process_start_time
from forewarn.machines.qemu.disk_users import LOCK_BYTES, LOCK_START, FileIdentity, find_disk_users, identity_of
from forewarn.machines.qemu.instance import QemuInstance, create_directory, delete_file, write_durably

_LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "overlay"})
_SUFFIX = ".locks"
_OCTAL = re.compile(rb"\\([0-7]{3})")  # blanks and the like in the kernel's list of mounts
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, process


class LockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which QEMU process was seen to hold the locks of all disks of a VM. Stored as JSON in a file."""

    host: str  # the name of the host where the VM was
    pid: int  # the pid of its QEMU
    started: str  # when the process started, as `process_start_time` returns it
    definition: str  # a digest of the VM's definition
    disks: dict[str, FileIdentity]  # which file each disk was, by its path


class DiskLocks:
    """Records which QEMU processes hold their VMs' disk locks, and tells whether the locks are free.

    Only the locks below `directories` count, which must be on local file systems. `records` is a directory of this
    machine, which outlives the hosts.
    """

    def __init__(self, directories: Sequence[str], records: Path) -> None:
        self._directories = [Path(directory) for directory in directories]
        self._records = records
        for directory in self._directories:
            if (kind := _file_system(directory)) not in _LOCAL_FILE_SYSTEMS:
                raise Rejected(
                    f"setting 'qemu.lock_directories' has {str(directory)!r}, on a file system of type {kind!r}: only "
                    "locks on local file systems show that a VM does not run; remove it"
                )

    @property
    def is_used(self) -> bool:
        """Whether the settings have lock directories, so that locks of disks in them count."""
        return bool(self._directories)

    def observe(self, instance: QemuInstance) -> None:
        """Check whether the QEMU process of a VM that is in memory holds the locks of all its disks."""
        record, pid = self._read(instance.vm), instance.pid()
        if pid is None or not self.is_used:
            return
        started = process_start_time(pid)
        if record is not None and (record.host, record.pid, record.started) == (instance.host, pid, started):
            return
        definition, data = instance.read_definition()
        disks = [Path(disk) for disk in definition.disks]
        identities = {str(disk): identity for disk in disks if (identity := identity_of(disk)) is not None}
        if started and len(identities) == len(disks) and self._has_locks(pid, disks):
            found = LockRecord(host=instance.host, pid=pid, started=started, definition=_digest(data), disks=identities)
            create_directory(self._records)
            write_durably(self._file(instance.vm), msgspec.json.encode(found))
        else:
            self.forget(instance.vm)

    def forget(self, vm: str) -> None:
        """Delete the lock record of a VM (by name), if there is one."""
        delete_file(self._file(vm))

    def are_free(self, host: str, vm: str, definition: bytes) -> bool:
        """Return whether the locks of its disks show that the VM, last seen on this host, does not run there."""
        # All of this must hold: its QEMU process was seen with locks on all its disks, and has ended; its definition
        # and its disks are still the same; the disks are below the directories whose locks count; all their locks can
        # be taken now (they are given back); and no process has one of them open for writing.
        record = self._read(vm)
        if record is None or record.host != host or record.definition != _digest(definition):
            return False
        disks = [Path(path) for path in record.disks]
        is_same = all(identity_of(Path(path)) == identity for path, identity in record.disks.items())
        if not is_same or not self._count(disks) or is_process_alive(record.pid, record.started):
            return False
        return _can_lock(disks) and not find_disk_users(disks)

    def _has_locks(self, pid: int, disks: Sequence[Path]) -> bool:
        """Whether this process holds the locks of all these disks, and no other process writes to one of them."""
        users = find_disk_users(disks) if self._count(disks) else []
        return {user.disk for user in users} == set(disks) and all(user.pid == pid and user.has_lock for user in users)

    def _count(self, disks: Sequence[Path]) -> bool:
        return bool(disks) and all(
            disk.is_file()
            and any(disk.resolve().is_relative_to(directory.resolve()) for directory in self._directories)
            and _file_system(disk) in _LOCAL_FILE_SYSTEMS
            for disk in disks
        )

    def _read(self, vm: str) -> LockRecord | None:
        try:
            return msgspec.json.decode(self._file(vm).read_bytes(), type=LockRecord)
        except (OSError, msgspec.DecodeError):
            return None

    def _file(self, vm: str) -> Path:
        return self._records / f"{vm}{_SUFFIX}"


def _can_lock(disks: Sequence[Path]) -> bool:
    """Whether nobody holds a lock on these images: takes all of them at once, and gives them back."""
    with ExitStack() as stack:
        for disk in disks:
            try:
                descriptor = os.open(disk, os.O_RDWR | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, LOCK_START, LOCK_BYTES, 0)
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
            except OSError:
                return False
        return True


def _digest(definition: bytes) -> str:
    return hashlib.sha256(definition).hexdigest()


def _file_system(path: Path) -> str:
    resolved, depth, kind = path.resolve(), 0, ""
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields, _, rest = line.partition(b" - ")
        mount_point = Path(os.fsdecode(_OCTAL.sub(lambda code: bytes([int(code[1], 8)]), fields.split()[4])))
        if (
            resolved.is_relative_to(mount_point) and len(mount_point.parts) >= depth
        ):  # a later one covers an earlier one
            depth, kind = len(mount_point.parts), os.fsdecode(rest.split()[0])
    return kind
