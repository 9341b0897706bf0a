"""Finds processes in /proc, signals them without hitting a reused pid, and marks those of a command."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from forewarn.client.cursor import read_boot_id

LOG = logging.getLogger("forewarn.agent")

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


# Marks the processes of a command, so that the next agent finds and ends them if this one is killed.
#
# The mark is a file in the step's folder, written before the command starts. It has a random id, which the command and
# its children carry in their environment and in the name of their standard input; no other process has the id. Once the
# command runs, the mark also has its pid, start time and boot id, because a command may change its environment and its
# standard input; a later process with the same pid has another start time. The mark is removed when a command ends
# while the agent runs, so processes that the command leaves behind on purpose are not ended.

RUN_VARIABLE = "FOREWARN_RUN"  # marks the processes of one run in their environment
_RUN_MARK_FILE = "running"
_KILL_TIMEOUT_S = 2.0
_ORPHAN_GRACE_S = 5.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """The content of a mark, by which the next agent finds processes that this one left running."""

    run_id: str  # the random id of the run, which its processes carry; "" if the file is damaged
    command: ProcessInfo | None = None  # the command; None: not known to have started, or in an earlier boot


def mark_command_run(folder: Path) -> str:
    """Note in the step's folder that a command is about to run; return its new run id.

    The command must get the id as RUN_VARIABLE, and as standard input the file of `open_input_file`, so that its
    processes can be found.
    """
    run_id = secrets.token_hex(16)
    _write_mark(folder, run_id)
    return run_id


def open_input_file(folder: Path, run_id: str, content: bytes) -> BinaryIO:
    """Write a file with this content and the run id in its name, open it, and delete it from the folder."""
    path = folder / _input_file_name(run_id)
    path.write_bytes(content)
    try:
        return path.open("rb")
    finally:
        path.unlink()


def mark_command_process(folder: Path, pid: int) -> None:
    """Add the pid, start time and boot id of a started command to its mark."""
    mark, command = read_run_mark(folder), find_process(pid)
    if mark is not None and command is not None:
        _write_mark(folder, f"{mark.run_id} {command.pid} {command.start_ticks} {read_boot_id()}")


def remove_run_mark(folder: Path) -> None:
    """Remove the mark once the command has ended; signals no process."""
    (folder / _RUN_MARK_FILE).unlink(missing_ok=True)


def read_run_mark(folder: Path) -> RunMark | None:
    """Read the mark in a step's folder; its `command` is None if the process was marked before a reboot."""
    try:
        words = (folder / _RUN_MARK_FILE).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    run_id = words[0] if words else ""
    if len(words) != 4 or not (words[1].isdigit() and words[2].isdigit()) or words[3] != read_boot_id():
        return RunMark(run_id=run_id)
    pid = int(words[1])
    return RunMark(run_id=run_id, command=ProcessInfo(pid=pid, group=pid, start_ticks=int(words[2])))


async def end_orphan_processes(folder: Path, grace_s: float) -> None:
    """End processes of an earlier command in this step's folder whose end no agent saw.

    They get SIGTERM, and SIGKILL after `grace_s` seconds. A process that does not end keeps the mark, and is logged.
    """
    mark = read_run_mark(folder)
    if mark is None:
        return
    try:
        has_ended = await signal_and_wait(_marked_processes(mark), signal.SIGTERM, grace_s)
        has_ended = has_ended or await signal_and_wait(_marked_processes(mark), signal.SIGKILL, _KILL_TIMEOUT_S)
    except PermissionError:
        has_ended = False
    if has_ended:
        remove_run_mark(folder)
    else:
        pids = ", ".join(str(each.pid) for each in _marked_processes(mark))
        LOG.error(
            "processes of an earlier run of step %s cannot be ended: end them by hand (pids %s)", folder.name, pids
        )


async def end_all_orphan_processes(root: Path) -> None:
    """End the processes that an earlier agent left running for any step; `root` contains EVENT/STEP."""
    folders = [mark.parent for mark in root.glob(f"*/*/{_RUN_MARK_FILE}")]
    for folder in folders:
        mark = read_run_mark(folder)
        if mark is not None and _marked_processes(mark):
            LOG.warning("a command of step %s outlived the agent that ran it: it is ended now", folder.name)
    await asyncio.gather(*(end_orphan_processes(folder, _ORPHAN_GRACE_S) for folder in folders))


def _marked_processes(mark: RunMark) -> list[ProcessInfo]:
    found = [each for each in other_processes() if mark.run_id and _carries_run_id(each.pid, mark.run_id)]
    is_running = mark.command is not None and find_process(mark.command.pid) == mark.command
    return [*found, mark.command] if mark.command is not None and is_running and mark.command not in found else found


def _carries_run_id(pid: int, run_id: str) -> bool:
    """Whether the process has this id; False if it has ended or belongs to another user."""
    with suppress(OSError):
        if f"{RUN_VARIABLE}={run_id}".encode("ascii") in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
    with suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/fd/0")).name.removesuffix(" (deleted)") == _input_file_name(run_id)
    return False


def _input_file_name(run_id: str) -> str:
    return f"event.{run_id}.json"


def _write_mark(folder: Path, text: str) -> None:
    new_file = folder / f"{_RUN_MARK_FILE}.new"
    new_file.write_text(text, encoding="ascii")
    os.replace(new_file, folder / _RUN_MARK_FILE)  # a kill leaves the old mark or the new one
