"""Finds processes of this machine in /proc, and signals them without hitting a reused pid."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BOOT_TIME_TOLERANCE_S = 2.0  # the kernel gives its boot time in whole seconds
_DEAD_STATES = frozenset({"Z", "X"})
_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process of this machine: its pid with its start time, because a pid may be reused."""

    pid: int  # the process id
    group: int  # process group id
    start_ticks: int  # clock ticks from the boot to its start

    @property
    def is_group_leader(self) -> bool:
        """Whether the process leads its process group, whose id is then its pid."""
        return self.group == self.pid


def find_process(pid: int) -> ProcessInfo | None:
    """Return the process that has this pid now; None if there is none (a zombie counts as ended)."""
    state, found = _read_process(pid)
    return None if state in _DEAD_STATES else found


def _read_process(pid: int) -> tuple[str, ProcessInfo | None]:
    """The state letter and the process that has this pid now, also a zombie; "" and None without one."""
    try:
        words = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", None
    return words[0], ProcessInfo(pid=pid, group=int(words[2]), start_ticks=int(words[19]))


def _is_pid_reused(target: ProcessInfo) -> bool:
    """Whether another process, perhaps a zombie, has the target's pid now."""
    # The group that the target led is gone then: the kernel gives no new process a pid that is the id of a group.
    _, found = _read_process(target.pid)
    return found is not None and found.start_ticks != target.start_ticks


def other_processes() -> Iterator[ProcessInfo]:
    """Yield all running processes except this one, of all users, in no order."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and (found := find_process(int(entry.name))):
            yield found


def process_from_pid_file(pid_file: Path) -> ProcessInfo | None:
    """Return the process whose pid is the first word of the file; None if it has ended."""
    # None even if it began after the file was written (the pid was reused), and for this process and pid 1.
    try:
        pid = int(pid_file.read_text(encoding="ascii").split()[0])
        written_at = pid_file.stat().st_mtime
    except (OSError, ValueError, IndexError):
        return None
    found = find_process(pid) if pid > 1 and pid != os.getpid() else None
    return found if found and _process_start_time(found) <= written_at + _BOOT_TIME_TOLERANCE_S else None


def find_processes(exe: str, command: tuple[str, ...], uid: int) -> list[ProcessInfo]:
    """Return the running processes of user `uid` with exactly this program file and command line."""
    return [each for each in other_processes() if _process_matches(each.pid, exe, command, uid)]


def _process_matches(pid: int, exe: str, command: tuple[str, ...], uid: int) -> bool:
    folder = _PROC / str(pid)
    try:
        if folder.stat().st_uid != uid or (exe and os.readlink(folder / "exe").removesuffix(" (deleted)") != exe):
            return False
        words = (folder / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False
    return not command or words == [os.fsencode(word) for word in command]


def remaining_processes(targets: Iterable[ProcessInfo]) -> list[ProcessInfo]:
    """Return the targets that still run, and all running members of process groups that a target led."""
    target_list = list(targets)
    groups = {each.group for each in target_list if each.is_group_leader and not _is_pid_reused(each)}
    return [each for each in other_processes() if each in target_list or each.group in groups]


def send_signal(target: ProcessInfo, number: signal.Signals) -> None:
    """Send a signal to the whole process group if the target leads one, else only to the target."""
    # A group is signalled as long as it has members, even if its leader has ended; in this process's own group, only
    # the target is signalled.
    if _is_pid_reused(target):
        return
    with suppress(ProcessLookupError):
        if target.is_group_leader and target.group != os.getpgrp():
            os.killpg(target.group, number)
        elif find_process(target.pid) == target:
            os.kill(target.pid, number)


async def signal_and_wait(targets: Iterable[ProcessInfo], number: signal.Signals, timeout_s: float) -> bool:
    """Signal processes and the groups that they lead, and wait up to `timeout_s` seconds for their end."""
    target_list = list(targets)
    for target in target_list:
        send_signal(target, number)
    deadline = asyncio.get_running_loop().time() + timeout_s
    while remaining_processes(target_list):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_POLL_INTERVAL_S)
    return True


def _process_start_time(found: ProcessInfo) -> float:
    lines = (_PROC / "stat").read_text(encoding="ascii").splitlines()
    booted_at = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted_at + found.start_ticks / _TICKS_PER_S
