"""Creates and replaces the files of disks, in threads that do not outlive the act that needs them."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import stat
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import msgspec

from forewarn.errors import Refused, Rejected
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.interface import is_process_alive, process_start_time
from forewarn.machines.qemu.processes import (
    QemuInstance,
    create_directory,
    delete_file,
    file_error,
    sync_directory,
    write_durably,
)

# Finds the processes of this machine that have a disk open for writing (/proc, Linux).

_PROC = Path("/proc")
_OPEN_MODES = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
LOCK_START, LOCK_BYTES = 100, 200  # QEMU locks bytes of this range of an image for each way in which it uses it


class FileIdentity(msgspec.Struct, frozen=True):
    """Which file or block device a path leads to, independent of its name; equal for equal files."""

    device: int  # its number, as of stat
    inode: int  # 0: a block device, whose number is `device`


class DiskUser(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has a disk open for writing; `find_disk_users` returns it."""

    pid: int  # the pid of the process, as this process sees it
    disk: Path  # the path that was searched for
    has_lock: bool  # whether the process holds a lock on it, as QEMU locks images


def identity_of(path: Path) -> FileIdentity | None:
    """Return which file or device this path leads to, following symbolic links."""
    try:
        found = path.stat()
    except OSError:
        return None
    if stat.S_ISBLK(found.st_mode):
        return FileIdentity(found.st_rdev, 0)
    return FileIdentity(found.st_dev, found.st_ino)


def find_disk_users(disks: Iterable[Path]) -> list[DiskUser]:
    """Return the processes that have some of these disks open for writing: one entry per process and disk."""
    wanted = {identity: disk for disk in disks if (identity := identity_of(disk)) is not None}
    found: dict[tuple[int, Path], DiskUser] = {}
    for process in _PROC.iterdir() if wanted else ():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        for descriptor in _descriptors(process):
            identity = identity_of(process / "fd" / descriptor)
            user = _user(process, descriptor, wanted[identity]) if identity in wanted else None
            if user is not None and (user.has_lock or (user.pid, user.disk) not in found):
                found[user.pid, user.disk] = user
    return list(found.values())


def _descriptors(process: Path) -> Iterator[str]:
    try:
        yield from os.listdir(process / "fd")
    except OSError:  # it has ended, or belongs to somebody else
        return


def _user(process: Path, descriptor: str, disk: Path) -> DiskUser | None:
    try:
        lines = (process / "fdinfo" / descriptor).read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), os.O_RDONLY)
    if flags & _OPEN_MODES == os.O_RDONLY:
        return None
    return DiskUser(pid=int(process.name), disk=disk, has_lock=any(_is_image_lock(line) for line in lines))


def _is_image_lock(line: str) -> bool:
    """Whether a line is about a lock of QEMU: `lock: 1: OFDLCK ADVISORY READ -1 fe:00:24087 100 101`."""
    words = line.split()
    if len(words) < 2 or words[0] != "lock:" or "OFDLCK" not in words:
        return False
    first = words[-2]
    return first.isdigit() and LOCK_START <= int(first) < LOCK_START + LOCK_BYTES


# Locks of disks as evidence that a VM does not run: QEMU holds them for as long as it uses the disks.
#
# The locks count only where they are lost with the process alone: on file systems of this machine, on which all hosts
# of this driver are. A server of files may take a lock away from a client whose VM still runs.

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


_CHUNK_BYTES = 1 << 22
_ZEROS = bytes(_CHUNK_BYTES)


class DiskFileJobs:
    """Creates and replaces disk files, each in a thread."""

    # A job whose caller is cancelled stops at once, and the caller waits for it: otherwise it could replace the disk of
    # a VM that has been booted meanwhile.

    def __init__(self) -> None:
        self._running: dict[asyncio.Future[None], threading.Event] = {}
        self._is_closed = False

    async def make_empty_disk(self, path: Path, size_mib: int) -> None:
        """Replace the file with an empty raw disk of `size_mib` MiB, atomically and durably."""
        await self._run(lambda stop: _make_empty_disk(path, size_mib, stop))

    async def copy_disk(self, image: Path, disk: Path) -> None:
        """Replace the disk's file with a copy of the image, atomically and durably."""
        await self._run(lambda stop: _copy_disk(image, disk, stop))

    async def close(self) -> None:
        """Stop all jobs, which leave their files as they were, and wait until they have ended."""
        self._is_closed = True
        for stop in self._running.values():
            stop.set()
        if self._running:
            await asyncio.wait(set(self._running))

    async def _run(self, work: Callable[[threading.Event], None]) -> None:
        if self._is_closed:
            raise HostUnreachable("the driver of QEMU is closed")
        stop = threading.Event()
        job = asyncio.get_running_loop().run_in_executor(None, work, stop)
        self._running[job] = stop
        job.add_done_callback(self._running.pop)
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            stop.set()
            while not job.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({job})
            job.exception()  # seen
            raise


def _make_empty_disk(path: Path, size_mib: int, stop: threading.Event) -> None:
    def fill(file: IO[bytes]) -> None:
        file.truncate(size_mib * 1024 * 1024)

    try:
        _replace(path, fill, stop)
    except OSError as error:
        raise file_error(f"disk {str(path)!r} cannot be created", error) from error


def _copy_disk(image: Path, disk: Path, stop: threading.Event) -> None:
    if disk.exists() and not disk.is_file():
        raise Refused(f"disk {str(disk)!r} is not a file: an image can only be copied over a file")

    def fill(file: IO[bytes]) -> None:
        with image.open("rb", buffering=0) as source:
            while (chunk := source.read(_CHUNK_BYTES)) and not stop.is_set():
                if chunk == _ZEROS[: len(chunk)]:
                    file.seek(len(chunk), os.SEEK_CUR)  # leaves a hole
                else:
                    file.write(chunk)
            file.truncate(file.tell())

    try:
        _replace(disk, fill, stop)
    except OSError as error:
        raise file_error(f"image {str(image)!r} cannot be copied to {str(disk)!r}", error) from error


def _replace(path: Path, fill: Callable[[IO[bytes]], None], stop: threading.Event) -> None:
    """Replace the file with one that `fill` writes; leaves it as it is after `stop`, or if `fill` raises."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        with temporary.open("wb") as file:
            fill(file)
            if stop.is_set():
                raise HostUnreachable(f"disk {str(path)!r} was left as it is, because the act has ended")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
