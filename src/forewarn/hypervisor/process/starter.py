"""Programs of the fleet file: each VM that has one and should run gets a keeper, started here and detached from us.

Level, not edge: who should run is read off the store, who does off the roster. A keeper that died is started again,
one that lives is never doubled, and one whose program ended by itself, or by an act, is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from forewarn.assembly.keepers import Tell
from forewarn.core.cause import Verb
from forewarn.core.event import Act, Status
from forewarn.core.fleet import Power, Vm
from forewarn.core.history import What
from forewarn.hypervisor.keepers import Keepers
from forewarn.hypervisor.life import started_of
from forewarn.store.seam import Committed, Store

log = logging.getLogger(__name__)
_EVERY_S = 0.5
_AT_ONCE = 8  # keepers that are started in one turn
_LONGEST_WAIT_S = 60.0
_TAIL = 1000


@dataclass(slots=True)
class _Try:
    """What came of starting one VM's keeper."""

    child: subprocess.Popen[bytes] | None = None
    failures: int = 0
    not_before: float = 0.0  # loop time
    told: str = ""


@dataclass(slots=True, kw_only=True)
class Starter:
    store: Store
    keepers: Keepers
    data: Path
    tell: Tell
    _vms: dict[str, Vm] = field(default_factory=dict)  # those with a program, by key
    _tries: dict[str, _Try] = field(default_factory=dict)

    async def run(self) -> None:
        for vm in self.store.vms():
            self._meet(vm)
        unsubscribe = self.store.subscribe(self._hear)
        try:
            while True:
                try:
                    await self.turn()
                except Exception:
                    log.exception("starting programs failed, trying again")
                await asyncio.sleep(_EVERY_S)
        finally:
            unsubscribe()
            self._let_go()

    async def turn(self) -> None:
        for vm in tuple(self._vms.values()):
            await self._look_after(vm)
        wanted = [vm for vm in self._vms.values() if self._should_start(vm)]
        for vm in wanted[:_AT_ONCE]:
            await self._start(vm)
        self._end_removed()
        self._bury()

    def _hear(self, committed: Committed) -> None:
        for vm in committed.commit.vms:
            old = self._vms.get(vm.key)
            if vm.program != (old.program if old else ()):
                # Another program, or a VM that is new or back: how the last one ended means nothing for it.
                self.keepers.strike(vm.key)
                self._tries.pop(vm.key, None)
            self._meet(vm)

    def _meet(self, vm: Vm) -> None:
        if vm.program and vm.removed_at is None:
            self._vms[vm.key] = vm
        else:
            self._vms.pop(vm.key, None)

    def _should_start(self, vm: Vm) -> bool:
        if vm.power is not Power.RUNNING or self.keepers.is_kept(vm.key) or self.keepers.has_ended(vm.key):
            return False
        waits = asyncio.get_running_loop().time() < self._try_of(vm).not_before
        return not waits and not self._is_being_hit(vm.key)

    def _is_being_hit(self, key: str) -> bool:
        """Whether an act on the VM is owed: once it is done, the store says whether the VM should run."""
        started = self.store.events(statuses=[Status.STARTED])
        return any(act.vm == key for event in started for act in event.owed)

    def _try_of(self, vm: Vm) -> _Try:
        return self._tries.setdefault(vm.key, _Try())

    async def _start(self, vm: Vm) -> None:
        tried = self._try_of(vm)
        tried.failures += 1
        wait_s = min(_LONGEST_WAIT_S, 2.0 ** (tried.failures - 1))
        tried.not_before = asyncio.get_running_loop().time() + wait_s
        try:
            tried.child = _launch(vm, data=self.data, directory=self.keepers.directory_of(vm.key))
        except OSError as error:
            await self._tell_once(vm, f"the program of {vm.name} cannot be started: {error}")
            return
        self.keepers.expect(vm.key, tried.child.pid, started_of(tried.child.pid))

    async def _look_after(self, vm: Vm) -> None:
        """Take note of a keeper of ours that came up, or went."""
        tried = self._try_of(vm)
        if self.keepers.link_of(vm.key) is not None and tried.failures > 1:
            tried.failures = 1
        if tried.child is None or (code := tried.child.poll()) is None:
            return
        tried.child = None
        if code != 0 and not self.keepers.has_ended(vm.key):
            words = _tail(self.keepers.directory_of(vm.key) / _LOG)
            await self._tell_once(
                vm, f"the keeper of {vm.name} ended with code {code}" + (f": {words}" if words else "")
            )

    async def _tell_once(self, vm: Vm, text: str) -> None:
        tried = self._try_of(vm)
        if tried.told != text:
            tried.told = text
            await self.tell(What.PROGRAM, vm, text)

    def _end_removed(self) -> None:
        """A VM that was taken out of the fleet, by no event, takes its program with it."""
        for key, link in self.keepers.links.items():
            vm = self.store.vm(key)
            if vm is not None and vm.removed_at is not None and not self._is_being_hit(key):
                act_id = f"removed {vm.removed_at}:{key}"
                link.order(Act(id=act_id, vm=key, name=vm.name, verb=Verb.DELETE, event_id=""), 0.0)

    def _bury(self) -> None:
        """Keepers of VMs that are no longer looked after, once they have ended."""
        for key in self._tries.keys() - self._vms.keys():
            child = self._tries[key].child
            if child is None or child.poll() is not None:
                del self._tries[key]

    def _let_go(self) -> None:
        """Keepers go on without us, and nobody here will wait for them."""
        for tried in self._tries.values():
            if tried.child is not None and tried.child.poll() is None:
                tried.child.returncode = 0


_LOG = "keeper.log"


def _launch(vm: Vm, *, data: Path, directory: Path) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = [sys.executable, "-P", "-m", "forewarn.vm", str(data), vm.key, *vm.program]
    ours = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
    with (directory / _LOG).open("wb") as log_file:
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            env=ours | vm.environment,
            cwd=vm.directory or None,
            start_new_session=True,
        )


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-_TAIL:].decode(errors="replace").strip()
    except OSError:
        return ""
