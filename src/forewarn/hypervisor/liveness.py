"""Whether a process is alive, safe against reused process ids: compares start times (/proc, Linux).

Shared by the command hypervisor and the process hypervisor.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

_STATE_FIELD, _START_TIME_FIELD = 0, 19  # of the fields after the command's name; proc(5) counts them 3 and 22


def process_start_time(pid: int) -> str:
    """When the process started, in ticks since boot; "" when there is none, or only what is left of one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].split()  # the name before may hold anything
    return "" if fields[_STATE_FIELD] in (b"Z", b"X") else fields[_START_TIME_FIELD].decode()


def is_process_alive(pid: int, started: str) -> bool:
    return pid > 0 and started != "" and process_start_time(pid) == started


async def wait_for_process_exit(pid: int, started: str, *, within_s: float) -> bool:
    """Wait until the process is gone; False: it lives still."""
    deadline = asyncio.get_running_loop().time() + within_s
    nap_s = 0.01
    while is_process_alive(pid, started):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(nap_s)
        nap_s = min(0.2, nap_s * 1.5)
    return True
