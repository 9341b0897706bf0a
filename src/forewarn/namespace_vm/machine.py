"""The VM as the supervisor sees it: start, stop, freeze, thaw, wipe, and its state."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from uuid import uuid4

from forewarn.namespace_vm.messages import VmDescription, VmProgramExit
from forewarn.namespace_vm.namespaces import InitEvent, VmNamespaces

RUNNING, FROZEN, DOWN = "running", "frozen", "down"
_INIT_KILLED = VmProgramExit(signal=signal.SIGKILL)


def boot_id_file(vm: VmDescription) -> Path:
    return vm.directory / "boot_id"


class Machine:
    def __init__(self, enclosure: VmNamespaces, vm: VmDescription, *, grace_s: float, boot_id: str) -> None:
        self.state = RUNNING  # as good as: it is started as soon as the service listens
        self.boot_id = boot_id  # of the first boot
        self.host = vm.host
        self.last_exit = VmProgramExit()
        self.exited_by_itself = asyncio.Event()
        self._namespaces = enclosure
        self._vm = vm
        self._grace_s = grace_s
        self._has_booted = False
        self._is_stopping = False
        self._no_processes_left = asyncio.Event()

    async def start(self) -> None:
        """Boot: a new boot id, and the program from its beginning."""
        if self._has_booted:
            self.boot_id = str(uuid4())
        self._has_booted = True
        boot_id_file(self._vm).write_text(f"{self.boot_id}\n")
        self._is_stopping = False
        self.state = DOWN
        await self._namespaces.call("start", self._boot_environment())
        self.state = RUNNING

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask everybody to end, and after the grace insist."""
        self._is_stopping = True
        self._no_processes_left.clear()
        await self._namespaces.call("signal", number)
        try:
            await asyncio.wait_for(self._no_processes_left.wait(), self._grace_s)
        except TimeoutError:
            await self.kill()
        self.state = DOWN

    async def kill(self) -> None:
        await self._namespaces.call("signal", signal.SIGKILL)
        await self._no_processes_left.wait()

    async def freeze(self) -> None:
        if self.state == RUNNING:
            self.state = FROZEN  # also if only some of it stops: all of it is continued
            await self._namespaces.call("freeze")

    async def thaw(self) -> None:
        if self.state == FROZEN:
            await self._namespaces.call("thaw")
            self.state = RUNNING

    async def resume(self) -> None:
        """Go on after somebody had stopped the program from its terminal."""
        await self._namespaces.call("continue")

    async def has_background_processes(self) -> bool:
        """Whether a program that ended well left others behind, as one does that goes to the background."""
        return self.last_exit.code == 0 and bool((await self._namespaces.call("signal", signal.SIGCONT)).value)

    def wipe_ephemeral_disk(self) -> None:
        """Empty the disk that does not outlive a move."""
        empty_directory(self._vm.ephemeral)

    def _boot_environment(self) -> dict[str, str]:
        return {
            "FOREWARN_VM": self._vm.name,
            "FOREWARN_BOOT_ID": self.boot_id,
            "FOREWARN_EPHEMERAL": str(self._vm.ephemeral),
            "FOREWARN_HOST": self.host,
        }

    def handle_init_event(self, event: InitEvent) -> None:
        """Something happened inside."""
        match event["event"]:
            case "empty":
                self._no_processes_left.set()
            case "exited":
                self._record_exit(VmProgramExit(code=event["code"], signal=event["signal"]))
            case "gone":
                self._no_processes_left.set()
                self._is_stopping = False  # whatever was under way, nothing can be started here again
                self._record_exit(_INIT_KILLED)

    def _record_exit(self, how: VmProgramExit) -> None:
        self.last_exit = how
        if not self._is_stopping:
            self.state = DOWN
            self.exited_by_itself.set()


def empty_directory(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            _remove_tree(entry)
        else:
            entry.unlink()


def _remove_tree(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except PermissionError:
        _make_writable(directory)
        shutil.rmtree(directory)


def _make_writable(directory: Path) -> None:
    """Some programs leave directories that not even their owner may write to."""
    directory.chmod(0o700)
    for place, names, _ in os.walk(directory):  # each is opened before it is entered
        for path in (Path(place, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o700)
