"""The roster: which process keeps which VM, so that a service that starts again knows whom to expect.

Each VM has a directory of its own below `DATA/vms`; what is written here need not outlive the machine, whose
processes do not either.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from forewarn.hypervisor.life import lives

log = logging.getLogger(__name__)
_FILE = "keeper.json"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A VM's keeper, as it was last seen."""

    vm: str  # the VM's key
    pid: int = 0
    started: str = ""
    ended: bool = False  # its program ended by itself, and is not to be started again by us

    @property
    def is_alive(self) -> bool:
        return lives(self.pid, self.started)


class Roster:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept = {kept.vm: kept for kept in _read(directory)}

    def directory_of(self, vm: str) -> Path:
        """Of the VM with this key: readable where its name is plain, and of a length that any name allows."""
        plain = re.sub(r"[^a-z0-9._-]", "_", vm.rpartition("/")[2])[:40]
        return self._directory / f"{plain}-{hashlib.sha256(vm.encode()).hexdigest()[:12]}"

    def find(self, vm: str) -> Kept | None:
        return self._kept.get(vm)

    @property
    def alive(self) -> list[int]:
        """The processes that keep a VM now."""
        return sorted(kept.pid for kept in self._kept.values() if kept.is_alive)

    def write(self, kept: Kept) -> None:
        if self._kept.get(kept.vm) == kept:
            return
        self._kept[kept.vm] = kept
        path = self.directory_of(kept.vm) / _FILE
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(kept))
        os.replace(fresh, path)

    def strike(self, vm: str) -> None:
        """It has no keeper, and none is missing."""
        if self._kept.pop(vm, None) is not None:
            (self.directory_of(vm) / _FILE).unlink(missing_ok=True)


def _read(directory: Path) -> Iterator[Kept]:
    for path in sorted(directory.glob(f"*/{_FILE}")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=Kept)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s is not understood and left alone: %s", path, error)
