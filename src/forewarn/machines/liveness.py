"""Whether a process is alive, safe against reused process ids: compares start times (/proc, Linux).

Shared by the command hypervisor and the process hypervisor.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

_STATE_FIELD, _START_TIME_FIELD = 0, 19  # after the command's name; fields 3 and 22 in proc(5)


def process_start_time(pid: int) -> str:
    """Return when the process with this pid started, in clock ticks since boot, as text."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].split()  # the name before it may contain anything
    return "" if fields[_STATE_FIELD] in (b"Z", b"X") else fields[_START_TIME_FIELD].decode()


def is_process_alive(pid: int, started: str) -> bool:
    """Return whether this process, and not a later one with the same pid, is alive."""
    return pid > 0 and started != "" and process_start_time(pid) == started


async def wait_for_process_exit(pid: int, started: str, *, within_s: float) -> bool:
    """Wait until the process is gone, for at most `within_s` real seconds; return whether it is gone."""
    deadline = asyncio.get_running_loop().time() + within_s
    interval_s = 0.01
    while is_process_alive(pid, started):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(interval_s)
        interval_s = min(0.2, interval_s * 1.5)
    return True
