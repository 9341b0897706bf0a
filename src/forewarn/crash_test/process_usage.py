"""Reads from /proc which processes a program has, and what they use. Linux only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ZOMBIE = "Z"
_MAX_SHARE_RUNNING = 0.25  # of the time that a thread wants a CPU: one that gets more is not starved


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """What some processes use together, at one moment; zombies do not count."""

    cpu_s: float  # CPU time since their start, with that of children that they have waited for
    memory_bytes: int  # resident memory; pages that processes share count for each of them
    processes: int  # how many


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTimes:
    """What the kernel has counted for one thread since the thread's start."""

    id: int  # the thread id of the kernel
    ran_ns: int  # nanoseconds on a CPU
    waited_ns: int  # nanoseconds in which it was ready to run, and had no CPU


class StarvationMeter:
    """Measures how long a program could not go on because other programs had taken the CPUs."""

    # The kernel counts for each thread how long it ran, and how long it was ready to run and had to wait. Waits of
    # processes that start and end between two measurements are not seen.

    def __init__(self, read_threads: Callable[[int], Iterable[ThreadTimes]] | None = None) -> None:
        self._read_threads = read_threads or _read_threads
        self._measured: dict[int, ThreadTimes] = {}  # by thread id

    def measure(self, pids: Iterable[int]) -> float:
        """Return how many seconds the thread that waited longest has waited for a CPU since the last call."""
        # Counts only threads that ran for less than a quarter of the time in which they could run: one that computes
        # without a pause always waits, but goes on. Waits for the program's own threads do not count: the time that all
        # of them ran is subtracted.
        before, self._measured = self._measured, {}
        longest = total = 0
        for pid in pids:
            for thread in self._read_threads(pid):
                self._measured[thread.id] = thread
                earlier = before.get(thread.id, ThreadTimes(id=thread.id, ran_ns=0, waited_ns=0))
                ran = max(0, thread.ran_ns - earlier.ran_ns)
                waited = max(0, thread.waited_ns - earlier.waited_ns)
                total += ran
                if ran < _MAX_SHARE_RUNNING * (ran + waited):
                    longest = max(longest, waited)
        return max(0, longest - total) / 1e9


def list_descendants(pid: int) -> list[int]:
    """Return the pids of all descendants of a process, without itself, parents before children."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def list_pids_with_variable(name: str, value: str) -> list[int]:
    """Return the pids of all other processes that were started with this environment variable and value."""
    wanted = f"{name}={value}".encode()
    found = []
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and int(entry) != os.getpid():
            try:
                variables = (_PROC / entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended, or belongs to another user
            if wanted in variables:
                found.append(int(entry))
    return found


def is_running(pid: int) -> bool:
    """Return whether this process exists and is no zombie."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] != _ZOMBIE


def read_usage(pids: Iterable[int]) -> ProcessUsage:
    """Return the CPU time, memory and number of these processes together, without those that have ended."""
    ticks = pages = processes = 0
    for pid in pids:
        fields = _stat_fields(pid)
        if fields is None or fields[0] == _ZOMBIE:
            continue
        ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime; see proc(5)
        pages += int(fields[21])
        processes += 1
    return ProcessUsage(cpu_s=ticks / _TICKS_PER_S, memory_bytes=pages * _PAGE_BYTES, processes=processes)


def _read_threads(pid: int) -> Iterator[ThreadTimes]:
    """Yield the threads of a process, without those of low priority (with a positive nice value)."""
    try:
        for thread in os.listdir(_PROC / str(pid) / "task"):
            ran, waited, _ = (_PROC / str(pid) / "task" / thread / "schedstat").read_text().split()
            fields = _stat_fields(int(thread))
            if fields is not None and int(fields[16]) <= 0:
                yield ThreadTimes(id=int(thread), ran_ns=int(ran), waited_ns=int(waited))
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return  # it has ended, or this kernel does not count


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(_PROC / str(pid) / "task"):
            text = (_PROC / str(pid) / "task" / thread / "children").read_text()
            children += map(int, text.split())
    except FileNotFoundError:
        if (_PROC / str(pid)).exists() and not (_PROC / "self/task" / str(os.getpid()) / "children").exists():
            return _children_by_parent(pid)  # this kernel has no lists of children
    except ProcessLookupError:
        pass
    return children


def _children_by_parent(pid: int) -> list[int]:
    pids = (int(entry) for entry in os.listdir(_PROC) if entry.isdecimal())
    stats = ((other, _stat_fields(other)) for other in pids)
    return [other for other, fields in stats if fields is not None and fields[1] == str(pid)]


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
