"""Finds the processes of this machine that have a disk open for writing (/proc, Linux)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

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
