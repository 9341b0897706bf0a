"""The process hypervisor: performs acts on namespace VMs through their supervisors.

A VM without a supervisor is left to a fallback hypervisor, so that in a lab only VMs with a program are really
affected. A supervisor performs an act once, however often it is asked: its journal outlives it and the service.
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
from typing import Protocol

import msgspec
from msgspec.structs import replace

from forewarn.base.times import LabSeconds
from forewarn.core.cause import VmEffect
from forewarn.core.event import Act
from forewarn.errors import Refused, Unavailable
from forewarn.machines.interface import ActDone, ActUnderWay, Hypervisor, is_process_alive
from forewarn.machines.process.connection import SupervisorConnection
from forewarn.machines.process.messages import SupervisorHello, SupervisorMessage

log = logging.getLogger(__name__)


# Which supervisor holds which VM: the connected ones, and the records of those that should return.
#
# Records are files below `DATA/vms`, so that a restarted service knows which supervisors to expect. Waiting is in
# real time, because supervisors reconnect in real time, at any speed of lab time.

_RECORD_FILE = "supervisor.json"
RECONNECT_GRACE_S = 5.0  # real time; a supervisor tries to connect five times a second
_POLL_INTERVAL_S = 0.1


class SupervisorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor of a VM as it was last seen; a restarted service reads it to know whom to expect."""

    vm: str  # the VM's key
    pid: int = 0  # the pid of the supervisor
    started: str = ""  # the process's start time, see `process_start_time`
    ended: bool = False  # its program ended by itself or by an act, so the service does not start it again

    @property
    def is_alive(self) -> bool:
        """Whether the recorded supervisor process is alive now, and not a later process with its pid."""
        return is_process_alive(self.pid, self.started)


class SupervisorRecords:
    """The records of supervisors below a directory, one file per VM, by VM key. Unreadable ones are logged."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._records = {record.vm: record for record in _read_records(directory)}

    def vm_directory(self, vm: str) -> Path:
        """Return the directory of the VM with this key, for its record, log and ephemeral disk."""
        plain = re.sub(r"[^a-z0-9._-]", "_", vm.rpartition("/")[2])[:40]
        return self._directory / f"{plain}-{hashlib.sha256(vm.encode()).hexdigest()[:12]}"

    def get(self, vm: str) -> SupervisorRecord | None:
        """Return the record of the supervisor of the VM with this key, from memory; None without one."""
        return self._records.get(vm)

    @property
    def live_pids(self) -> list[int]:
        """The process ids of the recorded supervisors that are alive now, sorted."""
        return sorted(record.pid for record in self._records.values() if record.is_alive)

    def save(self, record: SupervisorRecord) -> None:
        """Write the record of a VM to its file. Not synced: a crash of the machine may lose it."""
        if self._records.get(record.vm) == record:
            return
        path = self.vm_directory(record.vm) / _RECORD_FILE
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new_file = path.with_suffix(".new")
        new_file.write_bytes(msgspec.json.encode(record))
        os.replace(new_file, path)
        self._records[record.vm] = record  # last: after a failed write, the next save must try again

    def delete(self, vm: str) -> None:
        """Delete the record of the VM with this key, if any, so that its supervisor does not count as missing."""
        if self._records.pop(vm, None) is not None:
            (self.vm_directory(vm) / _RECORD_FILE).unlink(missing_ok=True)


def _read_records(directory: Path) -> Iterator[SupervisorRecord]:
    for path in sorted(directory.glob(f"*/{_RECORD_FILE}")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=SupervisorRecord)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be read and is ignored: %s", path, error)


class SupervisorRegistry:
    """The supervisors of VMs, by VM key: those connected, and those whose processes are alive."""

    def __init__(self, records: SupervisorRecords, *, grace_s: float = RECONNECT_GRACE_S) -> None:
        self._records = records
        self._grace_s = grace_s
        self._connections: dict[str, SupervisorConnection] = {}
        self._registered = asyncio.Event()

    def vm_directory(self, vm: str) -> Path:
        """Return the directory of the VM with this key, for its record and log; it may not exist yet."""
        return self._records.vm_directory(vm)

    @property
    def connections(self) -> dict[str, SupervisorConnection]:
        """A copy of the registered connections to supervisors, by VM key; one may have closed just now."""
        return dict(self._connections)

    def connection_of(self, vm: str) -> SupervisorConnection | None:
        """Return the registered connection to the supervisor of this VM (by key), or None; does not wait."""
        return self._connections.get(vm)

    def is_supervised(self, vm: str) -> bool:
        """Return whether a supervisor of this VM (by key) is connected, or its recorded process is alive."""
        record = self._records.get(vm)
        return vm in self._connections or (record is not None and record.is_alive)

    def has_program_ended(self, vm: str) -> bool:
        """Return whether the program of this VM (by key) is recorded as ended, by itself or by an act."""
        record = self._records.get(vm)
        return record is not None and record.ended

    def require_no_other_supervisor(self, vm: str, hello: SupervisorHello) -> None:
        """Raise Refused if another live process is recorded as the supervisor of this VM (by key)."""
        record = self._records.get(vm)
        if record is not None and (record.pid, record.started) != hello.process_identity and record.is_alive:
            raise Refused(
                f"VM {hello.vm!r} already runs a program (supervisor: process {record.pid}): end that one first"
            )

    def is_recorded(self, vm: str, hello: SupervisorHello) -> bool:
        record = self._records.get(vm)
        return record is not None and (record.pid, record.started) == hello.process_identity

    def register(self, vm: str, connection: SupervisorConnection) -> bool:
        """Make this the VM's connection, record its supervisor, and return whether that supervisor is new.

        Refuses, and changes nothing, if another live process is the VM's supervisor. If the record cannot be written
        (OSError), the connection is not registered, although an earlier one is closed.
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
        """Save this process as the VM's supervisor, with a program that has not ended."""
        self._records.save(SupervisorRecord(vm=vm, pid=pid, started=started))

    def unregister(self, vm: str, connection: SupervisorConnection) -> bool:
        """Forget this connection, and return True; False if it is no longer the VM's registered one."""
        was_registered = self._connections.get(vm) is connection
        if was_registered:
            del self._connections[vm]
        return was_registered

    def mark_ended(self, vm: str) -> None:
        """Record that the VM's program ended by itself or by an act, so that it is not started again."""
        if (record := self._records.get(vm)) is not None:
            self._records.save(replace(record, ended=True))

    def forget(self, vm: str) -> None:
        """Forget how the last program of this VM (by key) ended, so that a program may be started again."""
        record = self._records.get(vm)
        if record is not None and self.is_supervised(vm):
            self._records.save(replace(record, ended=False))
        else:
            self._records.delete(vm)

    async def wait_for_connection(self, vm: str) -> SupervisorConnection | None:
        """Wait up to `grace_s` for an open connection to the supervisor of this VM (by key)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                while self.is_supervised(vm):
                    if (connection := self._connections.get(vm)) is not None and not connection.is_closed:
                        return connection
                    await self._wait_for_change()
                return None
        record = self._records.get(vm)
        is_alive = record is not None and record.is_alive
        state = "is alive but does not connect" if is_alive else "has ended, and its connection is still being closed"
        raise Unavailable(f"the supervisor of VM {vm!r} (process {record.pid if record else 0}) {state}")

    def missing_supervisor_text(self, vm: str) -> str:
        """Return a clause for people about a supervisor of this VM (by key) that died with its program."""
        record = self._records.get(vm)
        if record is None or record.ended or self.is_supervised(vm):
            return ""
        return f"its supervisor (process {record.pid}) is gone, and its program with it"

    async def _wait_for_change(self) -> None:
        """Wait for a connection, but not long: the exit of a process causes no notification."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_INTERVAL_S):
                await self._registered.wait()


ANSWER_TIMEOUT_S = 15.0  # real time: how long one `perform` waits for a supervisor's answer
_MIN_RETRY_AFTER_S: LabSeconds = 0.05


class FallbackHypervisor(Hypervisor, Protocol):
    """A hypervisor for VMs without a supervisor, which also says whether it has begun an act."""

    def has_begun(self, act_id: str) -> bool:
        """Return whether this hypervisor has performed the act with this id, or is performing it."""


class ProcessHypervisor:
    """Performs acts on namespace VMs through their supervisors; other VMs are left to `fallback`, which it owns."""

    def __init__(
        self,
        supervisors: SupervisorRegistry,
        fallback: FallbackHypervisor,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self._supervisors = supervisors
        self._fallback = fallback
        self._answer_timeout_s = answer_timeout_s
        # Act id → the connection on which it was ordered, and the lab time of its end:
        self._pauses: dict[str, tuple[SupervisorConnection, float]] = {}
        self._missing_supervisor_texts: dict[str, str] = {}  # act id → why the fallback performs it

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        # An act that began with the fallback stays there. A freeze or migration pauses the VM until its duration in
        # real time is over or lab time has advanced by it.
        connection = await self._supervisors.wait_for_connection(act.vm)
        if connection is None or (connection.final_answer(act.id) is None and self._fallback.has_begun(act.id)):
            return await self._perform_with_fallback(act, now)
        if (message := connection.final_answer(act.id)) is not None:
            return self._finish(message)
        if act.verb.rules.effect is VmEffect.PAUSE:
            return await self._continue_pause(connection, act, now)
        connection.send_order(act, _duration_s(act))
        return self._answer_to_outcome(
            await connection.wait_for_answer(act.id, within_s=self._answer_timeout_s, final=True), act, now
        )

    async def close(self) -> None:
        """Close the fallback hypervisor; may be called twice."""
        await self._fallback.close()

    async def _perform_with_fallback(self, act: Act, now: float) -> ActDone | ActUnderWay:
        if missing_text := self._supervisors.missing_supervisor_text(act.vm):
            self._missing_supervisor_texts[act.id] = missing_text
        answer = await self._fallback.perform(act, now)
        if isinstance(answer, ActUnderWay):
            return answer
        missing_text = self._missing_supervisor_texts.pop(act.id, "")
        if missing_text or act.verb.rules.boots:
            self._supervisors.forget(act.vm)
        return replace(answer, note=f"{answer.note}; {missing_text}") if missing_text else answer

    async def _continue_pause(self, connection: SupervisorConnection, act: Act, now: float) -> ActDone | ActUnderWay:
        """Keep the VM paused until its duration in real time is over, or lab time reaches the end."""
        holder, ends_at = self._pauses.get(act.id, (None, 0.0))
        if holder is not connection:
            return await self._begin_pause(connection, act, now)
        if now < ends_at:
            return ActUnderWay(at=ends_at)
        connection.send_thaw(act.id)
        message = await connection.wait_for_answer(act.id, within_s=self._answer_timeout_s, final=True)
        return (
            self._answer_to_outcome(message, act, now)
            if message is None or message.is_final
            else ActUnderWay(at=now + _MIN_RETRY_AFTER_S)
        )

    async def _begin_pause(self, connection: SupervisorConnection, act: Act, now: float) -> ActDone | ActUnderWay:
        """Order the pause, or find it again after the supervisor or the service was away."""
        connection.send_order(act, _duration_s(act))
        message = await connection.wait_for_answer(act.id, within_s=self._answer_timeout_s, final=False)
        if message is None or message.until is None:
            return self._answer_to_outcome(message, act, now)
        ends_at = now + max(_MIN_RETRY_AFTER_S, message.until)
        self._pauses[act.id] = (connection, ends_at)
        return ActUnderWay(at=ends_at)

    def _answer_to_outcome(self, message: SupervisorMessage | None, act: Act, now: float) -> ActDone | ActUnderWay:
        if message is None:
            raise Unavailable(f"the supervisor of VM {act.name!r} does not answer for act {act.id!r}: try again later")
        if not message.is_final:
            return ActUnderWay(at=now + max(_MIN_RETRY_AFTER_S, message.until or 0.0))
        return self._finish(message)

    def _finish(self, message: SupervisorMessage) -> ActDone:
        self._pauses.pop(message.act, None)
        return ActDone(ok=bool(message.ok), note=message.note)


def _duration_s(act: Act) -> float:
    return float(act.duration_s) if act.duration_s >= 0 else act.verb.rules.usual_duration_s
