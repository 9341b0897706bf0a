"""All processes of the VM at once, as its first process sees them: stop, continue, signal.

`kill(-1)` reaches every process of the namespace but its first one in a single step, so that none can slip through
by starting another.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

_ENOUGH_LOOKS = 200
_LOOK_S = 0.001
_STANDING = frozenset("TtZX")  # stopped, traced, dead


def signal_all(number: int) -> None:
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        pass


def stop_all() -> frozenset[int]:
    """Stop everything; those that somebody had stopped before."""
    before = frozenset(pid for pid in pids() if states(pid) == {"T"})
    signal_all(signal.SIGSTOP)
    _watch_them_stop()
    return before


def continue_all(but: frozenset[int]) -> None:
    """Children before their parents, so that no shell sees its jobs stopped."""
    try:
        found = set(pids()) if sees_own_processes() else None
    except OSError:  # /proc cannot be read now, and nobody may stay stopped for that
        found = None
    if found is None:
        signal_all(signal.SIGCONT)
        return
    for pid in sorted(found - but, reverse=True):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def pids() -> Iterator[int]:
    """Every process but the first; none where /proc shows those of another namespace."""
    if sees_own_processes():
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1")


def sees_own_processes() -> bool:
    return os.readlink("/proc/self") == str(os.getpid())


def states(pid: int) -> set[str]:
    """The states of a process's threads, as letters; empty when it has gone."""
    found = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
                found.add(file.read().rpartition(")")[2].split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def _watch_them_stop() -> None:
    """A process on another core stops a moment later; one that waits for a disk runs nothing meanwhile."""
    for _ in range(_ENOUGH_LOOKS):
        if all(states(pid) <= _STANDING for pid in pids()):
            return
        time.sleep(_LOOK_S)
