"""Files that only one VM sees: a disk of limited size in memory, and a /tmp of its own."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from forewarn.machines.namespace_vm import syscalls

TMP = Path("/tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFiles:
    """The private files of a VM. The directories exist before the VM is created; its creator removes them."""

    disk: Path  # an empty directory: the disk is mounted there, and the program starts there
    disk_bytes: int  # the size of the disk
    disk_contents: Path  # a directory that is copied to the disk when the VM is created; links stay links
    tmp: Path  # the directory that the program sees as /tmp
    shared_tmp_entries: tuple[str, ...] = ()  # names in the machine's /tmp that the program sees there too


def mount_private_files(files: VmFiles) -> None:
    """Mount the VM's disk and its /tmp in the current mount namespace, and change into the disk.

    Call it only in a mount namespace of the VM: it covers /tmp.
    """
    syscalls.mount_tmpfs(str(files.disk), files.disk_bytes)
    shutil.copytree(files.disk_contents, files.disk, symlinks=True, dirs_exist_ok=True)
    for name in files.shared_tmp_entries:
        source, target = TMP / name, files.tmp / name
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        syscalls.bind_mount(str(source), str(target))
    syscalls.bind_mount(str(files.tmp), str(TMP))
    os.chdir(files.disk)


def empty_private_tmp(files: VmFiles) -> None:
    """Remove everything from the VM's /tmp except for the entries shared with the machine, as a boot does."""
    for entry in files.tmp.iterdir():
        if entry.name in files.shared_tmp_entries:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
