"""Finds the processes of this machine that have a disk open for writing (/proc, Linux)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_PROC = Path("/proc")
_OPEN_MODES = os.O_RDONLY | os.O_WRONLY | os.O_RDWR


def find_disk_users(disks: Iterable[Path]) -> dict[int, Path]:
    """Return one disk for each process that has some of them open for writing, by process id; blocks.

    Without this process, and without those that this user may not look at: root sees all.
    """
    wanted = {identity: disk for disk in disks if (identity := _identity(disk)) is not None}
    users: dict[int, Path] = {}
    if not wanted:
        return users
    for process in _PROC.iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            for descriptor in _descriptors(process):
                disk = wanted.get(_identity(process / "fd" / descriptor) or (0, 0, 0))
                if disk is not None and _is_writable(process, descriptor):
                    users[int(process.name)] = disk
                    break
    return users


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What a file or a device is, under any name; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    if stat.S_ISBLK(found.st_mode):
        return (0, 0, found.st_rdev)
    return (found.st_dev, found.st_ino, 0)


def _descriptors(process: Path) -> Iterator[str]:
    try:
        yield from os.listdir(process / "fd")
    except OSError:  # it has ended, or belongs to somebody else
        return


def _is_writable(process: Path, descriptor: str) -> bool:
    try:
        lines = (process / "fdinfo" / descriptor).read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), os.O_RDONLY)
    return flags & _OPEN_MODES != os.O_RDONLY
