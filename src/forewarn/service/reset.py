"""Removes what a lab has stored, so that its next start applies the first fleet again."""

from __future__ import annotations

import shutil
from pathlib import Path

from forewarn.errors import Refused
from forewarn.service.data_directory import (
    COMMANDS_DIRECTORY,
    DATABASE_FILE,
    LEDGER_FILE,
    MACHINES_DIRECTORY,
    VMS_DIRECTORY,
    DataDirectory,
)
from forewarn.store.commit_mark import MARK_SUFFIX
from forewarn.store.purpose import StorePurpose, read_purpose

_SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal", MARK_SUFFIX)


def require_lab(data: Path) -> None:
    """Raise Refused if this data directory holds the store of a production service, not of a lab."""
    if read_purpose(data / DATABASE_FILE) is StorePurpose.PRODUCTION:
        raise Refused(
            f"data directory {str(data)!r} holds the store of a production service, and only labs can be reset: "
            "name the directory of a lab with --data"
        )


def wipe_lab(directory: DataDirectory) -> None:
    """Delete a lab's store, its simulated hypervisor's ledger, and its files of VMs, commands and acts.

    Certificates and the administrator's secret stay: clients trust the one and know the other.
    """
    require_lab(directory.path)
    directory.allow_new_store()  # first: a crash in between must not leave a directory that no service opens
    for name in (DATABASE_FILE, LEDGER_FILE):
        for suffix in _SQLITE_SUFFIXES:
            (directory.path / f"{name}{suffix}").unlink(missing_ok=True)
    for name in (VMS_DIRECTORY, COMMANDS_DIRECTORY, MACHINES_DIRECTORY):
        shutil.rmtree(directory.path / name, ignore_errors=True)
