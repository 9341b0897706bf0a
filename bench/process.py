"""Processes from outside: on which core they run, what time and memory they have used."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = _CORES[0], _CORES[-1]
_QUIET_S = 0.3


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """This thread, and whatever it starts meanwhile; None: on any that there is."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _CORES if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def raise_file_limit() -> int:
    """As many open files as this process, and those it starts, may have; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


def cpu_s(pid: int) -> float:
    """Time on a core, user and system, of the process and its family."""
    return sum(_ticks(member) for member in family(pid)) / _TICKS


def connections_made() -> int:
    """How many TCP connections this machine has opened to others or to itself since it was started."""
    names, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line[:4] == "Tcp:")
    return int(values[names.index("ActiveOpens")])


def memory_bytes(pid: int) -> int:
    """Its proportional share of what is in memory."""
    return _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") * 1024


def peak_bytes(pid: int) -> int:
    return _kib(Path(f"/proc/{pid}/status"), "VmHWM:") * 1024


def wait_until_quiet(pid: int, within_s: float = 60.0) -> None:
    """Until it has nothing left to do."""
    deadline = time.monotonic() + within_s
    before = cpu_s(pid)
    while time.monotonic() < deadline:
        time.sleep(_QUIET_S)
        now = cpu_s(pid)
        if now - before <= 1.5 / _TICKS:
            return
        before = now
    raise TimeoutError(f"process {pid} was still busy after {within_s:g} s: look for what else it does")


def _ticks(pid: int) -> int:
    # The name before the fields may hold anything, closing brackets included.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _kib(path: Path, label: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(label):
            return int(line.split()[1])
    raise LookupError(f"{path} has no line {label!r}")
