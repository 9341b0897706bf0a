"""Measures processes from outside: CPU time, memory, and the core they run on."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = _CORES[0], _CORES[-1]
_IDLE_CHECK_S = 0.3


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Run this thread, and processes that it starts, on one core until the block ends. None: on any core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _CORES if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit, also for child processes, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def process_tree(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += process_tree(int(child))
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU time, user and system, of the process and its descendants."""
    return sum(_ticks(member) for member in process_tree(pid)) / _TICKS_PER_S


def cpu_ns(pid: int) -> int:
    """Return the CPU time of the process's threads in nanoseconds; exact for short runs, unlike `cpu_s`."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def connections_made() -> int:
    """Return how many TCP connections this machine has opened since it was started."""
    names, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line[:4] == "Tcp:")
    return int(values[names.index("ActiveOpens")])


def memory_bytes(pid: int) -> int:
    """Return the proportional set size (PSS) of the process."""
    return _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") * 1024


def peak_memory_bytes(pid: int) -> int:
    """Return the peak resident memory of the process."""
    return _kib(Path(f"/proc/{pid}/status"), "VmHWM:") * 1024


def wait_until_idle(pid: int, within_s: float = 60.0) -> None:
    """Return when the process uses no CPU. TimeoutError if it stays busy."""
    deadline = time.monotonic() + within_s
    before = cpu_s(pid)
    while time.monotonic() < deadline:
        time.sleep(_IDLE_CHECK_S)
        now = cpu_s(pid)
        if now - before <= 1.5 / _TICKS_PER_S:
            return
        before = now
    raise TimeoutError(f"process {pid} was still busy after {within_s:g} s: find out what it does")


def _ticks(pid: int) -> int:
    # The name before the fields may contain anything, also closing brackets.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _kib(path: Path, label: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(label):
            return int(line.split()[1])
    raise LookupError(f"{path} has no line {label!r}")
