"""Which supervisor holds which VM: the connected ones, and the records of those that should return.

Records are files below `DATA/vms`, so that a restarted service knows which supervisors to expect. Waiting is in
real time, because supervisors reconnect in real time, at any speed of lab time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from forewarn.errors import Refused, Unavailable
from forewarn.hypervisor.liveness import is_process_alive
from forewarn.hypervisor.process.connection import SupervisorConnection
from forewarn.hypervisor.process.messages import SupervisorHello

log = logging.getLogger(__name__)
_RECORD_FILE = "keeper.json"


class SupervisorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A VM's keeper, as it was last seen."""

    vm: str  # the VM's key
    pid: int = 0
    started: str = ""
    ended: bool = False  # its program ended by itself, and is not to be started again by us

    @property
    def is_alive(self) -> bool:
        return is_process_alive(self.pid, self.started)


class SupervisorRecords:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._records = {kept.vm: kept for kept in _read_records(directory)}

    def vm_directory(self, vm: str) -> Path:
        """Of the VM with this key: readable where its name is plain, and of a length that any name allows."""
        plain = re.sub(r"[^a-z0-9._-]", "_", vm.rpartition("/")[2])[:40]
        return self._directory / f"{plain}-{hashlib.sha256(vm.encode()).hexdigest()[:12]}"

    def get(self, vm: str) -> SupervisorRecord | None:
        return self._records.get(vm)

    @property
    def live_pids(self) -> list[int]:
        """The processes that keep a VM now."""
        return sorted(kept.pid for kept in self._records.values() if kept.is_alive)

    def save(self, kept: SupervisorRecord) -> None:
        if self._records.get(kept.vm) == kept:
            return
        self._records[kept.vm] = kept
        path = self.vm_directory(kept.vm) / _RECORD_FILE
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(kept))
        os.replace(fresh, path)

    def delete(self, vm: str) -> None:
        """It has no keeper, and none is missing."""
        if self._records.pop(vm, None) is not None:
            (self.vm_directory(vm) / _RECORD_FILE).unlink(missing_ok=True)


def _read_records(directory: Path) -> Iterator[SupervisorRecord]:
    for path in sorted(directory.glob(f"*/{_RECORD_FILE}")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=SupervisorRecord)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s is not understood and left alone: %s", path, error)


RECONNECT_GRACE_S = 5.0  # real time: a keeper tries five times a second
_POLL_INTERVAL_S = 0.1


class SupervisorRegistry:
    """VMs are known by their keys. Waiting is in real time: a keeper reconnects in real time, however lab time runs."""

    def __init__(self, roster: SupervisorRecords, *, grace_s: float = RECONNECT_GRACE_S) -> None:
        self._records = roster
        self._grace_s = grace_s
        self._connections: dict[str, SupervisorConnection] = {}
        self._registered = asyncio.Event()

    def vm_directory(self, vm: str) -> Path:
        return self._records.vm_directory(vm)

    @property
    def connections(self) -> dict[str, SupervisorConnection]:
        """Of the keepers that are connected, by the VM's key."""
        return dict(self._connections)

    def connection_of(self, vm: str) -> SupervisorConnection | None:
        return self._connections.get(vm)

    def is_supervised(self, vm: str) -> bool:
        """Whether a keeper is connected, or its process lives and will be."""
        kept = self._records.get(vm)
        return vm in self._connections or (kept is not None and kept.is_alive)

    def has_program_ended(self, vm: str) -> bool:
        """Whether the program ended by itself."""
        kept = self._records.get(vm)
        return kept is not None and kept.ended

    def require_no_other_supervisor(self, vm: str, hello: SupervisorHello) -> None:
        """One keeper per VM; the same one may come again before we know that it was gone."""
        kept = self._records.get(vm)
        if kept is not None and (kept.pid, kept.started) != hello.process_identity and kept.is_alive:
            raise Refused(f"VM {hello.vm!r} is kept by process {kept.pid} already: end that one first")

    def is_recorded(self, vm: str, hello: SupervisorHello) -> bool:
        """Whether this keeper had the VM before, or was started for it by us."""
        kept = self._records.get(vm)
        return kept is not None and (kept.pid, kept.started) == hello.process_identity

    def register(self, vm: str, link: SupervisorConnection) -> bool:
        """Take the link as the VM's; whether its keeper is one that was not known before."""
        self.require_no_other_supervisor(vm, link.hello)
        if (old := self._connections.get(vm)) is not None:
            old.close()
        is_new = not self.is_recorded(vm, link.hello)
        self.record(vm, *link.hello.process_identity)
        self._connections[vm] = link
        self._registered.set()
        self._registered = asyncio.Event()
        return is_new

    def record(self, vm: str, pid: int, started: str) -> None:
        """This process keeps the VM, or will in a moment."""
        self._records.save(SupervisorRecord(vm=vm, pid=pid, started=started))

    def unregister(self, vm: str, link: SupervisorConnection) -> bool:
        """Whether it was the VM's link still: its keeper may have come back on another before we knew it was gone."""
        was_its = self._connections.get(vm) is link
        if was_its:
            del self._connections[vm]
        return was_its

    def mark_ended(self, vm: str) -> None:
        """The program ended by itself: nobody is missing when its keeper goes."""
        if (kept := self._records.get(vm)) is not None:
            self._records.save(replace(kept, ended=True))

    def forget(self, vm: str) -> None:
        """Nobody is missing, and how the last program ended is forgotten; a keeper that lives stays known."""
        kept = self._records.get(vm)
        if kept is not None and self.is_supervised(vm):
            self._records.save(replace(kept, ended=False))
        else:
            self._records.delete(vm)

    async def wait_for_connection(self, vm: str) -> SupervisorConnection | None:
        """The link of the VM's keeper, waited for if it is away for a moment; None: the VM has no keeper.

        Raises Unavailable for one that lives and does not come.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                while self.is_supervised(vm):
                    if (link := self._connections.get(vm)) is not None and not link.is_closed:
                        return link
                    await self._wait_for_change()
                return None
        kept = self._records.get(vm)
        raise Unavailable(f"the keeper of VM {vm!r} (process {kept.pid if kept else 0}) lives but does not answer")

    def missing_supervisor_text(self, vm: str) -> str:
        """Who should be there and is gone for good, as a sentence; "" if nobody is missing."""
        kept = self._records.get(vm)
        if kept is None or kept.ended or self.is_supervised(vm):
            return ""
        return f"its keeper (process {kept.pid}) is gone, and its program with it"

    async def _wait_for_change(self) -> None:
        """That a process has gone nobody tells us, so we look."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_INTERVAL_S):
                await self._registered.wait()
