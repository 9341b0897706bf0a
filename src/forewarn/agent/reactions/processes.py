"""Processes of this machine, from /proc: which there are, and signals to those that are still the ones meant."""

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
_SLACK_S = 2.0  # the kernel's idea of when it booted is whole seconds
_DEAD = frozenset({"Z", "X"})
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A pid alone may be somebody else's by now; with the start it is not."""

    pid: int
    group: int
    start: int  # ticks since the boot

    @property
    def leads_group(self) -> bool:
        return self.group == self.pid


def process_of(pid: int) -> Process | None:
    """None if it has ended, waited for or not."""
    try:
        words = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if words[0] in _DEAD else Process(pid=pid, group=int(words[2]), start=int(words[19]))


def processes() -> Iterator[Process]:
    """All but this one."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and (found := process_of(int(entry.name))):
            yield found


def process_in(pid_file: Path) -> Process | None:
    """The process that the file is about: one that is younger than the file has only got the number."""
    try:
        pid = int(pid_file.read_text(encoding="ascii").split()[0])
        written_at = pid_file.stat().st_mtime
    except (OSError, ValueError, IndexError):
        return None
    found = process_of(pid) if pid > 1 and pid != os.getpid() else None
    return found if found and _started_at(found) <= written_at + _SLACK_S else None


def processes_like(exe: str, command: tuple[str, ...], uid: int) -> list[Process]:
    """Those of this user whose program is exactly this file, and whose words are exactly these; "" and () are any."""
    return [each for each in processes() if _is_like(each.pid, exe, command, uid)]


def _is_like(pid: int, exe: str, command: tuple[str, ...], uid: int) -> bool:
    folder = _PROC / str(pid)
    try:
        if folder.stat().st_uid != uid or (exe and os.readlink(folder / "exe").removesuffix(" (deleted)") != exe):
            return False
        words = (folder / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    except OSError:  # ended meanwhile, or none of our business
        return False
    return not command or words == [os.fsencode(word) for word in command]


def still_there(targets: Iterable[Process]) -> list[Process]:
    """Those that have not ended, and who is left of their groups."""
    meant = list(targets)
    groups = {each.group for each in meant if each.leads_group}
    return [each for each in processes() if each in meant or each.group in groups]


def send_signal(target: Process, number: signal.Signals) -> None:
    """To its whole group if it leads one that is not ours, else to it alone."""
    with suppress(ProcessLookupError):
        if target.leads_group and target.group != os.getpgrp():
            os.killpg(target.group, number)
        elif process_of(target.pid) == target:
            os.kill(target.pid, number)


async def have_ended(targets: Iterable[Process], number: signal.Signals, within_s: float) -> bool:
    """Whether they are gone, with their groups, so soon after this signal."""
    meant = list(targets)
    for target in meant:
        send_signal(target, number)
    deadline = asyncio.get_running_loop().time() + within_s
    while still_there(meant):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


def _started_at(found: Process) -> float:
    lines = (_PROC / "stat").read_text(encoding="ascii").splitlines()
    booted_at = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted_at + found.start / _TICKS_PER_S
