"""Observes VMs of plain QEMU without changing them, and watches their events.

QEMU serves one client per monitor, so events have a monitor of their own. They are only a reason to look again: a VM
whose QEMU was started without that monitor is observed, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from forewarn.core.unannounced import ObservedMachine, ObservedState, StateCause
from forewarn.errors import ForewarnError
from forewarn.machines.driver import MachineState, MigrationProgress
from forewarn.machines.interface import process_start_time
from forewarn.machines.qemu.processes import EVENTS_SUFFIX, NotRunning, QemuInstance, QemuProcesses, delete_file
from forewarn.machines.qemu.qmp import Monitor

log = logging.getLogger(__name__)


# Translates what QEMU reports, its run state and its migration, into forewarn's own states.

_ACTIVE_MIGRATIONS = frozenset(
    {"setup", "active", "cancelling", "pre-switchover", "device", "wait-unplug", "postcopy-active", "postcopy-paused"}
)
_RUN_STATES = {
    "running": MachineState.RUNNING,
    "suspended": MachineState.RUNNING,  # the guest suspended itself, and wakes by itself
    "inmigrate": MachineState.RECEIVING,
    "postmigrate": MachineState.SENT,
    "shutdown": MachineState.OFF,  # the process stays because of -no-shutdown
    "io-error": MachineState.HALTED,
    "internal-error": MachineState.HALTED,
    "guest-panicked": MachineState.HALTED,
    "watchdog": MachineState.HALTED,
}  # in all other states the CPUs are stopped
_REASONS = {
    "internal-error": "QEMU cannot continue the guest",
    "guest-panicked": "the guest's kernel has crashed",
    "watchdog": "the guest's watchdog has expired",
}


async def read_state(monitor: Monitor, instance: QemuInstance) -> MachineState:
    """Ask QEMU for the state of its VM: any but ABSENT."""
    monitor.forget_changes()
    if instance.incoming_file.exists():  # then the answer may need both, which QEMU gives in one go
        answer, report = await asyncio.gather(monitor.execute("query-status"), monitor.execute("query-migrate"))
    else:
        answer, report = await monitor.execute("query-status"), None
    status = answer["status"]
    if status == "finish-migrate":  # the last part is on its way; after a failure the VM goes on here
        has_completed = (await monitor.execute("query-migrate")).get("status") == "completed"
        return MachineState.SENT if has_completed else MachineState.RUNNING
    if status == "inmigrate" and not (report if report is not None else await monitor.execute("query-migrate")):
        return MachineState.OFF  # the service was killed before it told QEMU where to listen; nothing can arrive
    state = _RUN_STATES.get(status, MachineState.PAUSED)
    if state is MachineState.RUNNING:
        delete_file(instance.incoming_file)  # the service was killed after it resumed the VM
    elif state is MachineState.HALTED and instance.incoming_file.exists():
        return MachineState.RECEIVED  # complete, as it was on its source; resuming it tries again
    elif state is MachineState.PAUSED and instance.incoming_file.exists():
        return MachineState.RECEIVED if status == "paused" else MachineState.RECEIVING
    return state


async def stop_reason(monitor: Monitor) -> str:
    """Return for people why QEMU has halted the VM, with the disks that fail; "" if it has not."""
    status = (await monitor.execute("query-status"))["status"]
    if status != "io-error":
        return _REASONS.get(status, "")
    problems = [_disk_problem(block) for block in await monitor.execute("query-block")]
    return ", ".join(filter(None, problems)) or "a disk cannot be read or written"


def _disk_problem(block: Mapping[str, Any]) -> str:
    name = block.get("device") or block.get("qdev") or "?"
    match block.get("io-status", "ok"):
        case "ok":
            return ""
        case "nospace":
            return f"no space is left for disk {name}"
        case _:
            return f"disk {name} cannot be read or written"


async def has_arrivals(monitor: Monitor) -> bool:
    """Return whether a live migration to this QEMU has begun, even if it failed or is complete."""
    report = await monitor.execute("query-migrate")
    return report.get("status", "none") not in ("none", "setup")  # of a QEMU that only listens, by its version


async def is_migrating(monitor: Monitor) -> bool:
    """Return whether a live migration from or to this QEMU is active, or is being cancelled."""
    return (await monitor.execute("query-migrate")).get("status") in _ACTIVE_MIGRATIONS


def migration_progress(report: Mapping[str, Any]) -> MigrationProgress:
    """Return QEMU's report about the live migration from a host (`query-migrate`) as progress."""
    memory = report.get("ram", {})
    return MigrationProgress(
        is_active=report.get("status") in _ACTIVE_MIGRATIONS,
        transferred_bytes=memory.get("transferred", 0),
        remaining_bytes=memory.get("remaining", 0),
        downtime_ms=report.get("downtime"),
        error=_migration_error(report),
    )


def _migration_error(report: Mapping[str, Any]) -> str:
    if report.get("status") != "failed":
        return ""
    return str(report.get("error-desc") or "QEMU does not say why the migration failed")


_SCAN_INTERVAL_S = 5.0  # between searches for VMs whose events are not watched
_STATES = {  # by QEMU's run state
    "running": (ObservedState.RUNNING, StateCause.UNKNOWN),
    "suspended": (ObservedState.RUNNING, StateCause.UNKNOWN),  # the guest suspended itself, and wakes by itself
    "paused": (ObservedState.PAUSED, StateCause.OPERATOR),
    "prelaunch": (ObservedState.PAUSED, StateCause.OPERATOR),  # it was reset while it was paused
    "debug": (ObservedState.PAUSED, StateCause.OPERATOR),
    "io-error": (ObservedState.PAUSED, StateCause.DISK_ERROR),
    "watchdog": (ObservedState.PAUSED, StateCause.WATCHDOG),
    "shutdown": (ObservedState.OFF, StateCause.GUEST),  # the process stays because of -no-shutdown
    "guest-panicked": (ObservedState.PAUSED, StateCause.CRASH),
    "internal-error": (ObservedState.PAUSED, StateCause.CRASH),
    "postmigrate": (ObservedState.OFF, StateCause.MIGRATED),
}  # all others are steps of a migration, or of saving and loading
_CHANGES = frozenset({"SHUTDOWN", "STOP", "RESUME", "RESET", "SUSPEND", "WAKEUP", "GUEST_PANICKED", "BLOCK_IO_ERROR"})


def machine_in_state(status: str, *, is_destination: bool, instance: str) -> ObservedMachine:
    """Return what QEMU's run state says about a VM; CHANGING for a state that is not known.

    `is_destination`: its process was started for a live migration and has not been resumed since; then a paused one is
    CHANGING.
    """
    state, cause = _STATES.get(status, (ObservedState.CHANGING, StateCause.UNKNOWN))
    if is_destination and state is ObservedState.PAUSED:
        state, cause = ObservedState.CHANGING, StateCause.UNKNOWN
    is_active = state in (ObservedState.RUNNING, ObservedState.PAUSED)
    return ObservedMachine(state=state, cause=cause, instance=instance if is_active else "")


async def observe_instance(instance: QemuInstance, processes: QemuProcesses) -> ObservedMachine:
    """Ask the QEMU of a VM that is defined on its host, and return the VM's state. Raises nothing."""
    # Without a process it is OFF: by a CRASH if its pid file is left, since QEMU removes that when it ends by itself.
    try:
        answer = await processes.ask(instance, lambda monitor: monitor.execute("query-status"))
        status = str(answer["status"])
    except NotRunning:
        cause = StateCause.CRASH if instance.pid_file.exists() else StateCause.OPERATOR
        return ObservedMachine(state=ObservedState.OFF, cause=cause)
    except ForewarnError as error:
        log.info("%s cannot be observed: %s", instance.name, error)
        return ObservedMachine(state=ObservedState.CHANGING)
    return machine_in_state(
        status, is_destination=instance.incoming_file.exists(), instance=_process_identity(instance)
    )


def _process_identity(instance: QemuInstance) -> str:
    with suppress(OSError, ValueError):
        pid = int(instance.pid_file.read_text())
        if started := process_start_time(pid):
            return f"{pid}-{started}"
    return ""


async def changed_hosts(
    directories: Mapping[str, Path], *, scan_interval_s: float = _SCAN_INTERVAL_S
) -> AsyncGenerator[str, None]:
    """Yield the name of a host for each change that QEMU reports about one of its VMs, and when QEMU ends."""
    changed: asyncio.Queue[str] = asyncio.Queue()
    watchers: dict[_Socket, asyncio.Task[None]] = {}
    scanner = asyncio.create_task(_watch_all(directories, changed, watchers, scan_interval_s))
    try:
        while True:
            yield await changed.get()
    finally:
        tasks = [scanner, *watchers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Socket(NamedTuple):
    """The monitor for events of one QEMU process; that of the next one has the same path."""

    path: Path
    inode: int
    changed_at: int


async def _watch_all(
    directories: Mapping[str, Path],
    changed: asyncio.Queue[str],
    watchers: dict[_Socket, asyncio.Task[None]],
    scan_interval_s: float,
) -> None:
    """Start a watcher for each monitor that has none, again and again."""
    while True:
        found = {socket: host for host, directory in directories.items() for socket in _sockets(directory)}
        for socket, host in found.items():
            if socket not in watchers:
                watchers[socket] = asyncio.create_task(_watch_events(socket.path, host, changed))
        for socket in [socket for socket, task in watchers.items() if socket not in found and task.done()]:
            del watchers[socket]
        await asyncio.sleep(scan_interval_s)


def _sockets(directory: Path) -> Iterator[_Socket]:
    for path in directory.glob(f"*{EVENTS_SUFFIX}"):
        with suppress(OSError):
            stat = path.stat()
            yield _Socket(path, stat.st_ino, stat.st_ctime_ns)


async def _watch_events(socket: Path, host: str, changed: asyncio.Queue[str]) -> None:
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        changed.put_nowait(host)  # it was killed before it could be watched
        return
    try:
        writer.write(b'{"execute": "qmp_capabilities"}\n')
        while line := await reader.readline():  # no line, if another client holds the monitor
            message = json.loads(line)
            if "QMP" in message or message.get("event") in _CHANGES:
                changed.put_nowait(host)
        changed.put_nowait(host)
    except (OSError, ValueError) as error:
        log.info("events on %s cannot be watched: %s", socket, error)
    finally:
        writer.close()
