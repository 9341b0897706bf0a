"""Starts, reaches and ends the QEMU processes of VMs, with waiting."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from forewarn.base.files import sync_to_disk
from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.interface import ActNotTried, process_start_time, wait_for_process_exit
from forewarn.machines.qemu.definition import DEFINITION_SUFFIX, VmDefinition, parse_definition
from forewarn.machines.qemu.qmp import (
    Monitor,
    MonitorDisconnected,
    MonitorNotListening,
    connect_monitor,
    open_monitor,
)

_Answer = TypeVar("_Answer")


# A VM on one host: its files in the host's directory, and its QEMU process.
#
# QEMU holds a lock on its log file, from before it is started until it has ended. So a new service sees whether
# QEMU runs, even if the previous one was killed while it started QEMU.

_LOG_TAIL_BYTES = 4096
EVENTS_SUFFIX = ".events"  # of the socket of QEMU's monitor for events


@dataclass(frozen=True, slots=True)
class QemuInstance:
    """One VM on one host: the paths of its files in the host's directory, and its QEMU process. Holds nothing open."""

    host: str  # its name in the settings; "": a copy of a definition, on no host
    vm: str  # the VM's name
    directory: Path  # with the files of all VMs of the host, but for disks with absolute paths

    @property
    def name(self) -> str:
        """The VM and its host, for messages: `VM 'web' on host 'h1'`."""
        return f"VM {self.vm!r} on host {self.host!r}"

    @property
    def definition_file(self) -> Path:
        """The path of the VM's definition (`VM.toml`); without this file the host does not know the VM."""
        return self._file(DEFINITION_SUFFIX)

    @property
    def monitor_socket(self) -> Path:
        """The path of the socket of QEMU's monitor (QMP); QEMU creates it."""
        return self._file(".qmp")

    @property
    def events_socket(self) -> Path:
        """The path of the socket of QEMU's second monitor (QMP), for a client that waits for events."""
        return self._file(EVENTS_SUFFIX)

    @property
    def migration_socket(self) -> Path:
        """The path of the socket on which QEMU receives a live migration if its host has no address for that."""
        return self._file(".migrate")

    @property
    def pid_file(self) -> Path:
        """The path of the file with QEMU's process id, which QEMU writes, and deletes when it ends by itself."""
        return self._file(".pid")

    @property
    def log_file(self) -> Path:
        """The path of the file with QEMU's output; a lock on it shows that QEMU runs."""
        return self._file(".log")

    @property
    def mark_file(self) -> Path:
        """The path of the file with the mark: the act that was last begun on the VM."""
        return self._file(".mark")

    @property
    def incoming_file(self) -> Path:
        """The path of an empty file that exists while the VM is the destination of a live migration."""
        return self._file(".incoming")

    def files(self) -> tuple[Path, ...]:
        """Return the paths of all files of the VM in the host's directory, the definition last."""
        return (
            *(self.mark_file, self.incoming_file, self.migration_socket, self.monitor_socket, self.events_socket),
            *(self.pid_file, self.log_file, self.definition_file),
        )

    def _file(self, suffix: str) -> Path:
        return self.directory / f"{self.vm}{suffix}"

    def is_defined(self) -> bool:
        """Return whether the definition file exists."""
        if not self.directory.is_dir():
            raise HostUnreachable(
                f"directory {str(self.directory)!r} of host {self.host!r} does not exist: create it, or mount it"
            )
        return self.definition_file.exists()

    def read_definition(self) -> tuple[VmDefinition, bytes]:
        data = self.definition_bytes()
        return parse_definition(data, self.definition_file), data

    def definition_bytes(self) -> bytes:
        """Return the content of the VM's definition file, which may be wrong."""
        if not self.is_defined():
            raise Refused(f"{self.name} does not exist: there is no file {str(self.definition_file)!r}")
        try:
            return self.definition_file.read_bytes()
        except OSError as error:
            raise Refused(f"definition {str(self.definition_file)!r} cannot be read: {error.strerror}") from error

    def disks(self) -> list[Path]:
        """Return the paths of all disks of the VM, the ephemeral one last; [] without a correct definition."""
        with suppress(Refused, HostUnreachable):
            definition = self.read_definition()[0]
            ephemeral = [definition.ephemeral.path] if definition.ephemeral else []
            return [self.directory / path for path in (*definition.disks, *ephemeral)]
        return []

    def pid(self) -> int | None:
        """Return the process id that QEMU has written to its pid file, even if that process has ended."""
        with suppress(OSError, ValueError):
            return int(self.pid_file.read_text())
        return None

    def is_alive(self) -> bool:
        """Return whether the QEMU process that the driver started is running, or is being started."""
        # The lock on its log file shows that, even to a restarted service; a QEMU that a person started does not count.
        try:
            log = os.open(self.log_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Refused(
                f"log {str(self.log_file)!r} of {self.name} cannot be read: {error.strerror}; "
                "run the service as the user who owns it"
            ) from error
        try:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(log)
        return False

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start QEMU in the host's directory, in a session of its own, and return before it has come up."""
        # Its output goes to the log file, which is emptied first; old sockets and the pid file are deleted.
        try:
            log = os.open(self.log_file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise file_error(f"log {str(self.log_file)!r} cannot be written", error) from error
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(log, 0)
            for stale in (self.monitor_socket, self.events_socket, self.migration_socket, self.pid_file):
                stale.unlink(missing_ok=True)
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")},
                start_new_session=True,
            )
        except BlockingIOError as error:
            raise Refused(f"{self.name} cannot be started: its QEMU process still runs") from error
        except OSError as error:
            raise Refused(f"{self.name} cannot be started: {argv[0]!r}: {error.strerror}") from error
        finally:
            os.close(log)

    def kill(self) -> tuple[int, str]:
        """Send SIGKILL to QEMU; return its process id and start time, or (0, "") if it is gone already."""
        with suppress(OSError, ValueError):
            pid = int(self.pid_file.read_text())
            process = os.pidfd_open(pid)
            try:
                started = process_start_time(pid)
                if not self.is_alive():
                    return 0, ""
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return pid, started
            except PermissionError as error:
                raise Refused(
                    f"no permission to end process {pid}, QEMU of {self.name}: run the service as its user"
                ) from error
            finally:
                os.close(process)
        if self.is_alive():
            raise HostUnreachable(
                f"QEMU of {self.name} runs, but {str(self.pid_file)!r} does not say in which process: end it by hand"
            )
        return 0, ""

    def log_tail(self) -> str:
        """Return the last line of QEMU's output, which says why it ended; "" without output."""
        with suppress(OSError):
            lines = self.log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""


def file_error(problem: str, error: OSError) -> Refused | ActNotTried:
    """Return (not raise) the error for a file that cannot be written: ActNotTried if only space is missing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ActNotTried(f"{problem} now ({error.strerror}): free some space")
    return Refused(f"{problem}: {error.strerror}")


def write_durably(path: Path, data: bytes) -> None:
    """Replace the file's content, atomically and durably; one call per file at a time."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise file_error(f"file {str(path)!r} cannot be written", error) from error


def create_file(path: Path) -> None:
    """Create an empty file unless it exists."""
    try:
        path.touch()
    except OSError as error:
        raise file_error(f"file {str(path)!r} cannot be created", error) from error


def create_directory(path: Path) -> None:
    """Create a directory that only its owner may enter, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise file_error(f"directory {str(path)!r} cannot be created", error) from error


def delete_file(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"file {str(path)!r} cannot be deleted: {error.strerror}") from error


def sync_directory(directory: Path) -> None:
    """Make renamed, created and deleted names of this directory durable (fsync)."""
    try:
        sync_to_disk(directory)
    except OSError as error:
        raise file_error(f"changes in directory {str(directory)!r} cannot be made durable", error) from error


def require_movable(definition: VmDefinition, instance: QemuInstance) -> None:
    """Raise Refused if a disk, even the ephemeral one, has a relative path: other hosts cannot reach it."""
    if local := definition.local_paths():
        raise Refused(
            f"disk {local[0]!r} of {instance.name} is in the directory of its host: "
            "a live migration needs disks with absolute paths, which both hosts reach"
        )


def require_shared_disks(definition: VmDefinition, instance: QemuInstance) -> None:
    """Raise Refused if a disk has a relative path or does not exist; the ephemeral one is not looked at."""
    if local := [path for path in definition.local_paths() if path in definition.disks]:
        raise Refused(
            f"disk {local[0]!r} of {instance.name} is in the directory of its host: "
            "a VM that moves needs disks with absolute paths, which both hosts reach"
        )
    for disk in definition.disks:
        if not Path(disk).exists():
            raise Refused(f"disk {disk!r} of {instance.name} does not exist: make it reachable from both hosts")


def require_defined(instance: QemuInstance) -> None:
    """Raise Refused if the VM has no definition on its host; HostUnreachable if its directory is missing."""
    if not instance.is_defined():
        raise Refused(f"{instance.name} does not exist: there is no file {str(instance.definition_file)!r}")


def require_files(definition: VmDefinition, instance: QemuInstance) -> None:
    """Raise Refused if a disk exists and is a device, not a file: deleting its name would keep its data."""
    for disk in definition.disks:
        path = instance.directory / disk
        if path.exists() and not path.is_file():
            raise Refused(f"disk {disk!r} of {instance.name} is a device, and cannot be deleted: empty it by hand")


_INTERVAL_S = 0.02  # between checks of a process
_START_INTERVAL_S = 0.002  # the same, of one that is about to open its monitor
_KEEP_S = 1.0  # how long a connection is kept open for the next operation, which usually follows at once
_QUIT_WAIT_S = 3.0  # for QEMU to end after `quit`, before it is killed
_KILL_WAIT_S = 10.0


_TAP_ERROR = re.compile(r"could not configure /dev/net/tun \(([^()]+)\): (.+)")


def _start_failure(message: str) -> str:
    if (found := _TAP_ERROR.search(message)) is None:
        return message
    tap, reason = found.groups()
    if "busy" in reason:
        return f"another process uses tap {tap} of this host: end it, or give the VM a tap of its own"
    if "not permitted" in reason:
        return (
            f"tap {tap} is missing on this host, or belongs to another user, and QEMU may not create it: "
            f"create it with `ip tuntap add dev {tap} mode tap user USER`, for the user who runs QEMU"
        )
    return f"tap {tap} of this host cannot be used: {reason}"


class NotRunning(Exception):
    """The VM has no QEMU process. `QemuProcesses` raises it."""


class _KeptMonitor(NamedTuple):
    """A connection that no operation uses now."""

    monitor: Monitor
    timer: asyncio.TimerHandle  # closes it


class QemuProcesses:
    """Starts, reaches and ends the QEMU processes of VMs, including those that an earlier service started."""

    # A connection is kept open for a second for the next operation. One operation at a time per VM.

    def __init__(self, *, timeout_s: float, start_timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._children: list[subprocess.Popen[bytes]] = []
        self._kept: dict[QemuInstance, _KeptMonitor] = {}
        self._closing: set[asyncio.Task[None]] = set()  # connections that were kept long enough

    @asynccontextmanager
    async def monitor(self, instance: QemuInstance) -> AsyncIterator[Monitor]:
        """Return an async context manager for a connection to QEMU's monitor."""
        monitor = await self._take_kept(instance) or await self._connect(instance)
        try:
            yield monitor
        except BaseException:
            await monitor.close()
            raise
        await self._keep(instance, monitor)

    async def ask(self, instance: QemuInstance, question: Callable[[Monitor], Awaitable[_Answer]]) -> _Answer:
        """Connect to QEMU and return the answer to a question that changes nothing."""
        is_kept = instance in self._kept
        try:
            async with self.monitor(instance) as monitor:
                return await question(monitor)
        except MonitorDisconnected:
            if not is_kept:
                raise
        async with self.monitor(instance) as monitor:
            return await question(monitor)

    async def _keep(self, instance: QemuInstance, monitor: Monitor) -> None:
        if not monitor.is_connected:
            await monitor.close()
            return
        timer = asyncio.get_running_loop().call_later(_KEEP_S, self._begin_to_drop, instance)
        self._kept[instance] = _KeptMonitor(monitor, timer)

    def _begin_to_drop(self, instance: QemuInstance) -> None:
        task = asyncio.create_task(self._drop(instance))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _take_kept(self, instance: QemuInstance) -> Monitor | None:
        kept = self._kept.pop(instance, None)
        if kept is None:
            return None
        kept.timer.cancel()
        if kept.monitor.is_connected and instance.is_alive():
            return kept.monitor
        await kept.monitor.close()
        return None

    async def _drop(self, instance: QemuInstance) -> None:
        if (kept := self._kept.pop(instance, None)) is not None:
            kept.timer.cancel()
            await kept.monitor.close()

    async def close(self) -> None:
        """Close all connections that are kept, and wait until they are closed. The processes keep running."""
        for instance in list(self._kept):
            await self._drop(instance)
        await asyncio.gather(*self._closing)

    async def _connect(self, instance: QemuInstance) -> Monitor:
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            is_alive = instance.is_alive()  # before connecting: QEMU may end in between
            if not is_alive and not instance.monitor_socket.exists():
                raise NotRunning
            try:
                return await open_monitor(instance.monitor_socket, instance.name, timeout_s=self._timeout_s)
            except MonitorNotListening as error:
                if not is_alive:
                    raise NotRunning from error
                if asyncio.get_running_loop().time() >= deadline:
                    raise HostUnreachable(
                        f"QEMU of {instance.name} runs, but nothing answers on its socket "
                        f"{str(instance.monitor_socket)!r}: end it by hand"
                    ) from error
                await asyncio.sleep(_START_INTERVAL_S)

    async def start(self, instance: QemuInstance, argv: Sequence[str]) -> None:
        """Start QEMU for this VM, and return once its monitor answers."""
        child = instance.start(argv)
        self._children.append(child)
        deadline = asyncio.get_running_loop().time() + self._start_timeout_s
        while True:
            has_ended = child.poll() is not None and not instance.is_alive()
            try:
                if not has_ended and not instance.monitor_socket.exists():
                    raise MonitorNotListening(f"QEMU of {instance.name} has not opened its monitor yet")
                monitor = await open_monitor(
                    instance.monitor_socket,
                    instance.name,
                    timeout_s=self._timeout_s,
                    connect_timeout_s=self._start_timeout_s,
                )
                await self._keep(instance, monitor)
                return
            except MonitorNotListening as error:
                if has_ended:
                    reason = _start_failure(instance.log_tail()) or f"exit code {child.returncode}"
                    raise Refused(f"QEMU did not start {instance.name}: {reason}") from error
                if asyncio.get_running_loop().time() >= deadline:
                    raise
                await asyncio.sleep(_START_INTERVAL_S)

    async def end(self, instance: QemuInstance) -> None:
        """End the VM's QEMU if it runs, by `quit`, else by SIGKILL, and return when it is gone."""
        try:
            async with self.monitor(instance) as monitor:
                await monitor.quit()
            await self._drop(instance)
            is_gone = await self._wait_until_gone(instance, _QUIT_WAIT_S)
        except NotRunning:
            is_gone = True
        except HostUnreachable:
            is_gone = False
        if not is_gone:
            pid, started = instance.kill()
            await wait_for_process_exit(pid, started, within_s=_KILL_WAIT_S)
            if not await self._wait_until_gone(instance, _KILL_WAIT_S):
                raise HostUnreachable(f"QEMU of {instance.name} was killed, but does not end")
        self._children = [child for child in self._children if child.poll() is None]

    async def _wait_until_gone(self, instance: QemuInstance, within_s: float) -> bool:
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            for child in self._children:
                child.poll()
            if not instance.is_alive() and not await self.is_listening(instance):
                return True
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_INTERVAL_S)

    async def is_listening(self, instance: QemuInstance) -> bool:
        """Return whether something listens on the VM's monitor socket, even if it does not answer."""
        try:
            async with connect_monitor(instance.monitor_socket, instance.name, timeout_s=self._timeout_s):
                return True
        except MonitorNotListening:
            return False
        except HostUnreachable:
            return True

    def release(self) -> None:
        """Forget the child processes, so that Python does not wait for them. They keep running."""
        for child in self._children:
            if child.poll() is None:
                child.returncode = 0  # otherwise Python warns about a process that nobody waits for
        self._children.clear()
