"""Starts a supervisor for each VM whose fleet file entry has a program.

Level-triggered: the store says which VMs should run, the registry which do. A supervisor that died is started again
with backoff; there is never a second one; a VM whose program ended by itself or by an act stays down.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from forewarn.core.cause import Verb
from forewarn.core.event import Act, Event, EventState
from forewarn.core.fleet import PowerState, Vm
from forewarn.core.history import EntryKind
from forewarn.machines.interface import process_start_time
from forewarn.machines.process.hypervisor import SupervisorRegistry
from forewarn.machines.process.server import WriteHistory

log = logging.getLogger(__name__)
_INTERVAL_S = 0.5
_MAX_STARTS_PER_PASS = 8  # supervisors started in one pass
_MAX_BACKOFF_S = 60.0
_LOG_TAIL_BYTES = 1000
_LOG_FILE = "supervisor.log"


class _ProgramStore(Protocol):
    def vms_with_program(self) -> Sequence[Vm]:
        """All present VMs whose `program` is not empty."""

    def vm(self, key: str) -> Vm | None:
        """The VM with this key, even if it was removed; None if it never existed."""

    def events(self, *, statuses: Sequence[EventState]) -> Sequence[Event]:
        """The events with these statuses."""

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Call `listener` with each `AppliedCommit`; returns a function that ends this."""


@dataclass(slots=True)
class _StartAttempt:
    child: subprocess.Popen[bytes] | None = None
    failures: int = 0
    not_before: float = 0.0  # loop time
    last_reported: str = ""


@dataclass(slots=True, kw_only=True)
class ProgramStarter:
    """Keeps a supervisor running for each running VM that has a program, until the program ends."""

    store: _ProgramStore  # part of `forewarn.store.Store`
    supervisors: SupervisorRegistry
    data: Path  # the service's data directory, where supervisors find its socket
    write_history: WriteHistory  # called with the kind, VM and text of an entry
    _vms_with_program: dict[str, Vm] = field(default_factory=dict)  # by key
    _attempts: dict[str, _StartAttempt] = field(default_factory=dict)

    async def run(self) -> None:
        """Read the VMs from the store, then call `reconcile` twice a second until cancelled."""
        for vm in self.store.vms_with_program():
            self._track_vm(vm)
        unsubscribe = self.store.subscribe(self._on_commit)
        try:
            while True:
                try:
                    await self.reconcile()
                except Exception:
                    log.exception("starting programs failed, trying again")
                await asyncio.sleep(_INTERVAL_S)
        finally:
            unsubscribe()
            self._detach()

    async def reconcile(self) -> None:
        """Make one pass: report supervisors that failed, start missing ones, and stop those of removed VMs."""
        for vm in tuple(self._vms_with_program.values()):
            await self._check_supervisor(vm)
        wanted = [vm for vm in self._vms_with_program.values() if self._should_start(vm)]
        for vm in wanted[:_MAX_STARTS_PER_PASS]:
            await self._start_supervisor(vm)
        self._stop_removed()
        self._reap_untracked()

    def _on_commit(self, committed: Any) -> None:
        for vm in committed.commit.vms:
            previous = self._vms_with_program.get(vm.key)
            if vm.program != (previous.program if previous else ()):
                # A new program, or a VM that is new or back: how the last program ended does not matter.
                self.supervisors.forget(vm.key)
                self._attempts.pop(vm.key, None)
            self._track_vm(vm)

    def _track_vm(self, vm: Vm) -> None:
        if vm.program and vm.removed_at is None:
            self._vms_with_program[vm.key] = vm
        else:
            self._vms_with_program.pop(vm.key, None)

    def _should_start(self, vm: Vm) -> bool:
        if (
            vm.power is not PowerState.RUNNING
            or self.supervisors.is_supervised(vm.key)
            or self.supervisors.has_program_ended(vm.key)
        ):
            return False
        waits = asyncio.get_running_loop().time() < self._attempt_for(vm).not_before
        return not waits and not self._has_pending_act(vm.key)

    def _has_pending_act(self, key: str) -> bool:
        """Whether an act on the VM is pending; its outcome decides whether the VM should run."""
        started = self.store.events(statuses=[EventState.STARTED])
        return any(act.vm == key for event in started for act in event.unfinished_acts)

    def _attempt_for(self, vm: Vm) -> _StartAttempt:
        return self._attempts.setdefault(vm.key, _StartAttempt())

    async def _start_supervisor(self, vm: Vm) -> None:
        attempt = self._attempt_for(vm)
        attempt.failures += 1
        wait_s = min(_MAX_BACKOFF_S, 2.0 ** (attempt.failures - 1))
        attempt.not_before = asyncio.get_running_loop().time() + wait_s
        try:
            attempt.child = _launch_supervisor(vm, data=self.data, directory=self.supervisors.vm_directory(vm.key))
        except OSError as error:
            await self._report_once(vm, f"the program of {vm.name} cannot be started: {error}")
            return
        self.supervisors.record(vm.key, attempt.child.pid, process_start_time(attempt.child.pid))

    async def _check_supervisor(self, vm: Vm) -> None:
        attempt = self._attempt_for(vm)
        if self.supervisors.connection_of(vm.key) is not None and attempt.failures > 1:
            attempt.failures = 1
        if attempt.child is None or (code := attempt.child.poll()) is None:
            return
        attempt.child = None
        if code != 0 and not self.supervisors.has_program_ended(vm.key):
            output = _log_tail(self.supervisors.vm_directory(vm.key) / _LOG_FILE)
            await self._report_once(
                vm, f"the supervisor of {vm.name} ended with code {code}" + (f": {output}" if output else "")
            )

    async def _report_once(self, vm: Vm, text: str) -> None:
        attempt = self._attempt_for(vm)
        if attempt.last_reported != text:
            attempt.last_reported = text
            await self.write_history(EntryKind.PROGRAM, vm, text)

    def _stop_removed(self) -> None:
        for key, connection in self.supervisors.connections.items():
            vm = self.store.vm(key)
            if vm is not None and vm.removed_at is not None and not self._has_pending_act(key):
                act_id = f"removed {vm.removed_at}:{key}"
                connection.send_order(Act(id=act_id, vm=key, name=vm.name, verb=Verb.DELETE, event_id=""), 0.0)

    def _reap_untracked(self) -> None:
        for key in self._attempts.keys() - self._vms_with_program.keys():
            child = self._attempts[key].child
            if child is None or child.poll() is not None:
                del self._attempts[key]

    def _detach(self) -> None:
        """Leave supervisors running when the service stops; do not warn about unreaped children."""
        for attempt in self._attempts.values():
            if attempt.child is not None and attempt.child.poll() is None:
                attempt.child.returncode = 0


def _launch_supervisor(vm: Vm, *, data: Path, directory: Path) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-P", "-m", "forewarn.machines.namespace_vm", str(data), vm.key, *vm.program]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
    with (directory / _LOG_FILE).open("wb") as log_file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            env=environment | vm.environment,
            cwd=vm.directory or None,
            start_new_session=True,
        )


def _log_tail(path: Path) -> str:
    try:
        return path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""
