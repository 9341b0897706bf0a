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
RECONNECT_GRACE_S = 5.0  # real time; a supervisor tries to connect five times a second
_POLL_INTERVAL_S = 0.1


class SupervisorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor of a VM (the process that holds it), as it was last seen; stored in a file."""

    vm: str  # the VM's key
    pid: int = 0  # of the supervisor
    started: str = ""  # the process's start time, see `process_start_time`
    ended: bool = False  # its program ended by itself or by an act, so the service does not start it again

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor process is alive now, and not another one with its pid."""
        return is_process_alive(self.pid, self.started)


class SupervisorRecords:
    """The records of supervisors below a directory, one file per VM, by VM key.

    A supervisor is the process that holds a namespace VM. The constructor reads all records; unreadable ones are logged
    and ignored. The directory need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._records = {record.vm: record for record in _read_records(directory)}

    def vm_directory(self, vm: str) -> Path:
        """The directory of the VM with this key: its name, as far as it is plain, and a hash of the key.

        It may not exist yet.
        """
        plain = re.sub(r"[^a-z0-9._-]", "_", vm.rpartition("/")[2])[:40]
        return self._directory / f"{plain}-{hashlib.sha256(vm.encode()).hexdigest()[:12]}"

    def get(self, vm: str) -> SupervisorRecord | None:
        """The record of the VM with this key, or None."""
        return self._records.get(vm)

    @property
    def live_pids(self) -> list[int]:
        """The process ids of the recorded supervisors that are alive now, sorted."""
        return sorted(record.pid for record in self._records.values() if record.is_alive)

    def save(self, record: SupervisorRecord) -> None:
        """Write the record of a VM to its file, in place of an earlier one; OSError if that fails.

        Does nothing if the record is unchanged. Creates the VM's directory.
        """
        if self._records.get(record.vm) == record:
            return
        path = self.vm_directory(record.vm) / _RECORD_FILE
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new_file = path.with_suffix(".new")
        new_file.write_bytes(msgspec.json.encode(record))
        os.replace(new_file, path)
        self._records[record.vm] = record  # last: after a failed write, the next save must try again

    def delete(self, vm: str) -> None:
        """Delete the record of the VM with this key, if any: then no supervisor of it is missing."""
        if self._records.pop(vm, None) is not None:
            (self.vm_directory(vm) / _RECORD_FILE).unlink(missing_ok=True)


def _read_records(directory: Path) -> Iterator[SupervisorRecord]:
    for path in sorted(directory.glob(f"*/{_RECORD_FILE}")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=SupervisorRecord)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be read and is ignored: %s", path, error)


class SupervisorRegistry:
    """The supervisors of VMs, by VM key: those connected, and those whose processes are alive.

    A supervisor is the process that holds a namespace VM; `records` remembers it over restarts of the service, and no
    connection is registered at first. An act waits up to `grace_s` of real time for a supervisor to reconnect. Keys
    must match exactly. Use it on one event loop.
    """

    def __init__(self, records: SupervisorRecords, *, grace_s: float = RECONNECT_GRACE_S) -> None:
        self._records = records
        self._grace_s = grace_s
        self._connections: dict[str, SupervisorConnection] = {}
        self._registered = asyncio.Event()

    def vm_directory(self, vm: str) -> Path:
        """The directory of the VM with this key; it may not exist yet."""
        return self._records.vm_directory(vm)

    @property
    def connections(self) -> dict[str, SupervisorConnection]:
        """A copy of the registered connections, by VM key; one may have closed just now."""
        return dict(self._connections)

    def connection_of(self, vm: str) -> SupervisorConnection | None:
        """The registered connection to the supervisor of this VM (by key), or None; does not wait.

        It may have closed just now: see its `is_closed`.
        """
        return self._connections.get(vm)

    def is_supervised(self, vm: str) -> bool:
        """Whether a supervisor of this VM is connected, or its process is alive and will connect."""
        record = self._records.get(vm)
        return vm in self._connections or (record is not None and record.is_alive)

    def has_program_ended(self, vm: str) -> bool:
        """Whether the program of this VM ended by itself or by an act, and was not forgotten since."""
        record = self._records.get(vm)
        return record is not None and record.ended

    def require_no_other_supervisor(self, vm: str, hello: SupervisorHello) -> None:
        """Raises Refused if another live process is recorded as the supervisor of this VM.

        `hello` says which process asks; the recorded one itself may connect again.
        """
        record = self._records.get(vm)
        if record is not None and (record.pid, record.started) != hello.process_identity and record.is_alive:
            raise Refused(
                f"VM {hello.vm!r} already runs a program (supervisor: process {record.pid}): end that one first"
            )

    def is_recorded(self, vm: str, hello: SupervisorHello) -> bool:
        """Whether the process of this hello is the recorded supervisor of the VM with this key.

        The supervisor need not be connected. False if the VM has no record.
        """
        record = self._records.get(vm)
        return record is not None and (record.pid, record.started) == hello.process_identity

    def register(self, vm: str, connection: SupervisorConnection) -> bool:
        """Make this the VM's connection, record its supervisor, and return whether that supervisor is new.

        The connection must be identified (`SupervisorConnection.identify`). Closes an earlier connection of the VM, and
        ends `wait_for_connection`. Raises Refused if another live process is the VM's supervisor, and then changes
        nothing; OSError if the record cannot be written, and then this connection is not registered.
        """
        self.require_no_other_supervisor(vm, connection.hello)
        if (previous := self._connections.get(vm)) is not None:
            previous.close()
        is_new = not self.is_recorded(vm, connection.hello)
        self.record(vm, *connection.hello.process_identity)
        self._connections[vm] = connection
        self._registered.set()
        self._registered = asyncio.Event()
        return is_new

    def record(self, vm: str, pid: int, started: str) -> None:
        """Save this process as the VM's supervisor, with a program that has not ended.

        It may not be connected yet. `started` is its start time, see `process_start_time`. OSError if the record cannot
        be written. `vm` is the VM's key, `pid` the process id.
        """
        self._records.save(SupervisorRecord(vm=vm, pid=pid, started=started))

    def unregister(self, vm: str, connection: SupervisorConnection) -> bool:
        """Forget this connection, and return True; False if it is no longer the VM's registered one.

        That is so if the supervisor has already connected again. The record stays.
        """
        was_registered = self._connections.get(vm) is connection
        if was_registered:
            del self._connections[vm]
        return was_registered

    def mark_ended(self, vm: str) -> None:
        """Record that the VM's program ended by itself or by an act.

        Then its supervisor is not missing when it exits. Does nothing without a record. OSError if that cannot be
        written.
        """
        if (record := self._records.get(vm)) is not None:
            self._records.save(replace(record, ended=True))

    def forget(self, vm: str) -> None:
        """Forget how the last program of this VM ended; without a live supervisor, delete the record.

        Then a program may be started again. OSError if the file cannot be written or deleted.
        """
        record = self._records.get(vm)
        if record is not None and self.is_supervised(vm):
            self._records.save(replace(record, ended=False))
        else:
            self._records.delete(vm)

    async def wait_for_connection(self, vm: str) -> SupervisorConnection | None:
        """The connection to the VM's supervisor, after a wait of up to `grace_s`; None if it has none.

        Does not wait if none is registered or alive. Raises Unavailable if its process is alive, but does not connect.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                while self.is_supervised(vm):
                    if (connection := self._connections.get(vm)) is not None and not connection.is_closed:
                        return connection
                    await self._wait_for_change()
                return None
        record = self._records.get(vm)
        raise Unavailable(
            f"the supervisor of VM {vm!r} (process {record.pid if record else 0}) is alive but does not connect"
        )

    def missing_supervisor_text(self, vm: str) -> str:
        """A clause for people about a supervisor of this VM that died with its program; "" if none is missing.

        None is missing if it is connected or alive, if its program had ended, or if the VM has no record.
        """
        record = self._records.get(vm)
        if record is None or record.ended or self.is_supervised(vm):
            return ""
        return f"its supervisor (process {record.pid}) is gone, and its program with it"

    async def _wait_for_change(self) -> None:
        """Wait for a connection, but not long: the exit of a process causes no notification."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_INTERVAL_S):
                await self._registered.wait()
