"""Translates what QEMU reports, its run state and its migration, into forewarn's own states."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from forewarn.machines.driver import MachineState, MigrationProgress
from forewarn.machines.qemu.instance import QemuInstance, delete_file
from forewarn.machines.qemu.qmp import Monitor

_ACTIVE_MIGRATIONS = frozenset(
    {"setup", "active", "cancelling", "pre-switchover", "device", "wait-unplug", "postcopy-active", "postcopy-paused"}
)
_STATES = {
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
    state = _STATES.get(status, MachineState.PAUSED)
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
