"""The VM as the supervisor sees it: start, stop, freeze, thaw, wipe, and its state."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from uuid import uuid4

from forewarn.machines.namespace_vm.messages import VmDescription, VmProgramExit
from forewarn.machines.namespace_vm.namespaces import InitEvent, VmNamespaces

RUNNING, FROZEN, DOWN = "running", "frozen", "down"  # as messages to the service name them
_INIT_KILLED = VmProgramExit(signal=signal.SIGKILL)


def boot_id_file(vm: VmDescription) -> Path:
    """Return the path of the file that the VM's program reads as /proc/sys/kernel/random/boot_id."""
    return vm.directory / "boot_id"


class Machine:
    """One VM of the supervisor: its state, and the operations on it. `state` is RUNNING, FROZEN or DOWN.

    The owner passes each event that `VmNamespaces.watch_events` reports of init to `handle_init_event`. Call one
    operation at a time, except for `kill`. Async methods raise OSError if init is gone.
    """

    def __init__(self, namespaces: VmNamespaces, vm: VmDescription, *, grace_s: float, boot_id: str) -> None:
        self.state = RUNNING  # although it starts only when the service listens
        self.boot_id = boot_id  # of the first boot, then of the latest
        self.host = vm.host  # the program sees it as FOREWARN_HOST from the next boot on
        self.last_exit = VmProgramExit()  # of the program's latest run that ended
        self.exited_by_itself = asyncio.Event()  # the program ended without `stop`, or init was killed
        self._namespaces = namespaces
        self._vm = vm
        self._grace_s = grace_s
        self._has_booted = False
        self._is_stopping = False
        self._no_processes_left = asyncio.Event()

    async def start(self, *, is_boot: bool = True) -> None:
        """Boot: start the program, with a new boot id except the first time; then the VM is running.

        Without `is_boot` the boot id stays: the program starts again in a VM that is up.
        """
        if self._has_booted and is_boot:
            self.boot_id = str(uuid4())
        self._has_booted = True
        boot_id_file(self._vm).write_text(f"{self.boot_id}\n")
        self._is_stopping = False
        self.state = DOWN
        await self._namespaces.call("start", self._boot_environment())
        self.state = RUNNING

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """Send the signal to all processes of the VM, even frozen ones; after `grace_s`, kill those that are left."""
        self._is_stopping = True
        self._no_processes_left.clear()
        await self._namespaces.call("signal", number)
        try:
            await asyncio.wait_for(self._no_processes_left.wait(), self._grace_s)
        except TimeoutError:
            await self.kill()
        self.state = DOWN

    async def kill(self) -> None:
        """Kill all processes of the VM and wait until none is left; for use while `stop` waits."""
        await self._namespaces.call("signal", signal.SIGKILL)
        await self._no_processes_left.wait()

    async def freeze(self) -> None:
        """Pause all processes of the VM with SIGSTOP; does nothing unless the VM is running."""
        if self.state == RUNNING:
            self.state = FROZEN  # set first: after a partial freeze, `thaw` must continue everything
            await self._namespaces.call("freeze")

    async def thaw(self) -> None:
        """Continue the processes that `freeze` stopped; those that were stopped before the freeze stay stopped."""
        if self.state == FROZEN:
            await self._namespaces.call("thaw")
            self.state = RUNNING

    async def resume(self) -> None:
        """Send SIGCONT to the program's process group, after the user suspended it from the terminal."""
        await self._namespaces.call("continue")

    async def has_background_processes(self) -> bool:
        """Whether the program exited with code 0 and left other processes behind, as a daemon does."""
        return self.last_exit.code == 0 and bool((await self._namespaces.call("signal", signal.SIGCONT)).value)

    def wipe_ephemeral_disk(self) -> None:
        """Remove everything in the VM's ephemeral directory, which is created if it is missing."""
        empty_directory(self._vm.ephemeral)

    def _boot_environment(self) -> dict[str, str]:
        return {
            "FOREWARN_VM": self._vm.name,
            "FOREWARN_BOOT_ID": self.boot_id,
            "FOREWARN_EPHEMERAL": str(self._vm.ephemeral),
            "FOREWARN_HOST": self.host,
        }

    def handle_init_event(self, event: InitEvent) -> None:
        """Update the state from an event of the init process; ignores `stopped` and `finished`."""
        match event["event"]:
            case "empty":
                self._no_processes_left.set()
            case "exited":
                self._record_exit(VmProgramExit(code=event["code"], signal=event["signal"]))
            case "gone":
                self._no_processes_left.set()
                self._is_stopping = False  # init is dead: the VM cannot start again
                self._record_exit(_INIT_KILLED)

    def _record_exit(self, program_exit: VmProgramExit) -> None:
        self.last_exit = program_exit
        if not self._is_stopping:
            self.state = DOWN
            self.exited_by_itself.set()


def empty_directory(directory: Path) -> None:
    """Remove everything in a directory, and create the directory first if it is missing."""
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
    """Make all directories below writable: some programs leave read-only ones."""
    directory.chmod(0o700)
    for parent, names, _ in os.walk(directory):  # top down: a directory becomes readable before it is entered
        for path in (Path(parent, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o700)
